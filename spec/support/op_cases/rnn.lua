--- Cases of the rows in host/core/ops/rnn.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, int64 = H.range, H.int64

local function sigmoid(x) return 1 / (1 + math.exp(-x)) end
local function tanh(x) return (math.exp(x) - math.exp(-x)) / (math.exp(x) + math.exp(-x)) end

-- w x (+ b), of lists
local function times(w, x, b)
  local out = {}
  for i, row in ipairs(w) do
    local s = b and b[i] or 0
    for j, v in ipairs(row) do s = s + v * x[j] end
    out[i] = s
  end
  return out
end

local function lstm_step(gx, gh, c)
  local n, h, c1 = #c, {}, {}
  for k = 1, n do
    local function gate(part) return gx[part * n + k] + gh[part * n + k] end
    c1[k] = sigmoid(gate(1)) * c[k] + sigmoid(gate(0)) * tanh(gate(2))
    h[k] = sigmoid(gate(3)) * tanh(c1[k])
  end
  return h, c1
end

local function gru_step(gx, gh, h)
  local n, out = #h, {}
  for k = 1, n do
    local r, z = sigmoid(gx[k] + gh[k]), sigmoid(gx[n + k] + gh[n + k])
    out[k] = (1 - z) * tanh(gx[2 * n + k] + r * gh[2 * n + k]) + z * h[k]
  end
  return out
end

local function rnn_step(gx, gh, f)
  local out = {}
  for k = 1, #gx do out[k] = f(gx[k] + gh[k]) end
  return out
end

local function rows(n, f)
  local a, b = {}, {}
  for i = 1, n do a[i], b[i] = f(i) end
  return a, b
end

local function relu(x) return math.max(x, 0) end

C.lstm_cell = {
  inputs = { range(-1, 1, { 2, 3 }), range(-1, 1, { 2, 2 }), range(-1, 1, { 2, 2 }), range(-1, 1, { 8, 3 }),
    range(-1, 1, { 8, 2 }), range(-1, 1, { 8 }), range(-1, 1, { 8 }) },
  call = function(...) return core.lstm_cell(...) end,
  ref = function(x, h, c, wi, wh, bi, bh)
    return rows(#x, function(i) return lstm_step(times(wi, x[i], bi), times(wh, h[i], bh), c[i]) end)
  end,
}
C._lstm_gates = { through = "lstm_cell" }
C._lstm_gates_backward = { through = "lstm_cell" }
C.gru_cell = {
  inputs = { range(-1, 1, { 2, 3 }), range(-1, 1, { 2, 2 }), range(-1, 1, { 6, 3 }), range(-1, 1, { 6, 2 }),
    range(-1, 1, { 6 }), range(-1, 1, { 6 }) },
  call = function(...) return core.gru_cell(...) end,
  ref = function(x, h, wi, wh, bi, bh)
    return (rows(#x, function(i) return gru_step(times(wi, x[i], bi), times(wh, h[i], bh), h[i]) end))
  end,
}
C._gru_gates = { through = "gru_cell" }
C._gru_gates_backward = { through = "gru_cell" }
C.rnn_cell = {
  inputs = { range(-1, 1, { 2, 3 }), range(-1, 1, { 2, 2 }), range(-1, 1, { 2, 3 }), range(-1, 1, { 2, 2 }),
    range(-1, 1, { 2 }), range(-1, 1, { 2 }) },
  call = function(x, h, wi, wh, bi, bh)
    return core.rnn_cell(x, h, wi, wh, bi, bh),
      core.rnn_cell(x, h, wi, wh, bi, nil, { nonlinearity = "relu" }), core.rnn_cell(x[1], h[1], wi, wh)
  end,
  ref = function(x, h, wi, wh, bi, bh)
    local function step(f, b)
      return (rows(#x, function(i) return rnn_step(times(wi, x[i], bi), times(wh, h[i], b), f) end))
    end
    return step(tanh, bh), step(relu), rnn_step(times(wi, x[1]), times(wh, h[1]), tanh)
  end,
}

-- A layer over all steps, dense and packed (three sequences of 3, 2 and 2 steps, and the same
-- reversed where they are dense).
local function dense(T, B, reverse, gx, step, ...)
  local states, y = { ... }, {}
  for i = 1, T do
    local t = reverse and T + 1 - i or i
    y[t] = {}
    for b = 1, B do
      local now = {}
      for k, s in ipairs(states) do now[k] = s[b] end
      local next_states = { step(gx[t][b], unpack(now)) }
      for k, s in ipairs(next_states) do
        if states[k] == ({ ... })[k] then states[k] = { unpack(states[k]) } end
        states[k][b] = s
      end
      y[t][b] = next_states[1]
    end
  end
  return y, states[2]
end

local function lstm_ref(w)
  return function(g, h, c) return lstm_step(g, times(w, h), c) end
end

C.lstm_layer = {
  inputs = { range(-1, 1, { 3, 2, 8 }), range(-1, 1, { 8, 2 }), range(-1, 1, { 2, 2 }),
    range(-1, 1, { 2, 2 }), range(-1, 1, { 5, 8 }) },
  call = function(gx, w, h, c, packed)
    local a, b = core.lstm_layer(gx, w, h, c)
    local d, e = core.lstm_layer(gx, w, h, c, { reverse = true })
    local f, g = core.lstm_layer(packed, w, h, c, int64 { 2, 2, 1 })
    return a, b, d, e, f, g
  end,
  ref = function(gx, w, h, c, packed)
    local a, b = dense(3, 2, false, gx, lstm_ref(w), h, c)
    local d, e = dense(3, 2, true, gx, lstm_ref(w), h, c)
    local y1, c1 = dense(3, 1, false, { { packed[1] }, { packed[3] }, { packed[5] } }, lstm_ref(w), { h[1] },
      { c[1] })
    local y2, c2 = dense(2, 1, false, { { packed[2] }, { packed[4] } }, lstm_ref(w), { h[2] }, { c[2] })
    return a, b, d, e, { y1[1][1], y2[1][1], y1[2][1], y2[2][1], y1[3][1] }, { c1[1], c2[1] }
  end,
}
C._lstm_layer_backward = { through = "lstm_layer" }
C._rnn_before = { through = "lstm_layer" }

C.gru_layer = {
  inputs = { range(-1, 1, { 3, 2, 6 }), range(-1, 1, { 6, 2 }), range(-1, 1, { 6 }), range(-1, 1, { 2, 2 }),
    range(-1, 1, { 5, 6 }) },
  call = function(gx, w, b, h, packed)
    return core.gru_layer(gx, w, b, h), core.gru_layer(gx, w, nil, h, { reverse = true }),
      core.gru_layer(packed, w, b, h, int64 { 2, 2, 1 })
  end,
  ref = function(gx, w, b, h, packed)
    local function step(bias) return function(g, s) return gru_step(g, times(w, s, bias), s) end end
    local y1 = dense(3, 1, false, { { packed[1] }, { packed[3] }, { packed[5] } }, step(b), { h[1] })
    local y2 = dense(2, 1, false, { { packed[2] }, { packed[4] } }, step(b), { h[2] })
    return (dense(3, 2, false, gx, step(b), h)), (dense(3, 2, true, gx, step(), h)),
      { y1[1][1], y2[1][1], y1[2][1], y2[2][1], y1[3][1] }
  end,
}
C._gru_layer_backward = { through = "gru_layer" }

C.rnn_layer = {
  inputs = { range(-1, 1, { 3, 2, 2 }), range(-1, 1, { 2, 2 }), range(-1, 1, { 2, 2 }),
    range(-1, 1, { 5, 2 }) },
  call = function(gx, w, h, packed)
    return core.rnn_layer(gx, w, h), core.rnn_layer(gx, w, h, { nonlinearity = "relu", reverse = true }),
      core.rnn_layer(packed, w, h, int64 { 2, 2, 1 })
  end,
  ref = function(gx, w, h, packed)
    local function step(f) return function(g, s) return rnn_step(g, times(w, s), f) end end
    local y1 = dense(3, 1, false, { { packed[1] }, { packed[3] }, { packed[5] } }, step(tanh), { h[1] })
    local y2 = dense(2, 1, false, { { packed[2] }, { packed[4] } }, step(tanh), { h[2] })
    return (dense(3, 2, false, gx, step(tanh), h)), (dense(3, 2, true, gx, step(relu), h)),
      { y1[1][1], y2[1][1], y1[2][1], y2[2][1], y1[3][1] }
  end,
}
C._rnn_layer_backward = { through = "rnn_layer" }
