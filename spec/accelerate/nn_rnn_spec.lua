--- Recurrent modules against PyTorch's (values written by spec/reference/torch/rnn_modules.py),
--- packed batches, and what they refuse.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local gradcheck = require "spec.support.gradcheck"
local reference = require "spec.reference.torch.rnn_modules"
local message = require("spec.support.messages").message
local rnn = nn.utils.rnn

local function formula(k, shape)
  local n, list = 1, {}
  for _, s in ipairs(shape) do n = n * s end
  for i = 0, n - 1 do list[i + 1] = math.sin(0.7 * i + 1.3 * k) / 2 end
  return tensor(list, { dtype = "float64" }):view(shape)
end

local function weighted(t)
  local w = (core.arange(t:numel()) % 7):double() / 8 + 0.5
  return (t * w:view(t.shape)):sum()
end

local function check(what, t, expected)
  assert.are.same(expected.s, t.shape, what)
  local got = t:reshape(-1):totable()
  for i, e in ipairs(expected.v) do
    assert.is_true(math.abs(got[i] - e) < 1e-9,
      ("%s, flat position %d: got %.12g, PyTorch %.12g"):format(what, i, got[i], e))
  end
end

local function run(case)
  local m = nn[case.kind](case.sizes[1], case.sizes[2], case.options):double():eval()
  local printed = case.print
  assert.equal(printed, tostring(m))
  local names = {}
  for name, p in m:named_parameters() do
    names[#names + 1] = name
    core.no_grad(function() p:copy_(formula(#names - 1, p.shape)) end)
  end
  assert.are.same(case.names, names)
  local x = formula(100, case.x):requires_grad_()
  local states = {}
  for k, shape in ipairs(case.states) do states[k] = formula(199 + k, shape):requires_grad_() end
  local lstm = case.kind:find("LSTM") ~= nil
  local state = lstm and #states > 0 and states or states[1]
  local input = case.options.batch_first or false
  local out
  if case.lengths then
    local packed = rnn.pack_padded_sequence(x, case.lengths, { batch_first = input, enforce_sorted = false })
    out = { m(packed, state) }
    local first
    out[1], first = rnn.pad_packed_sequence(out[1], { batch_first = input, padding_value = 0.25 })
    assert.are.same(case.lengths, first:totable())
  else
    out = { m(x, state) }
  end
  if type(out[2]) == "table" then out = { out[1], out[2][1], out[2][2] } end
  local total
  for k, expected in ipairs(case.out) do
    check("result " .. k, out[k], expected)
    total = total and total + weighted(out[k]) or weighted(out[k])
  end
  total:backward()
  check("gradient of x", x.grad, case.grad_x)
  for k, expected in ipairs(case.grad_states) do
    check("gradient of state " .. k, states[k].grad, expected)
  end
  for k, p in ipairs(m:parameters()) do
    local got = weighted(p.grad):item()
    assert.is_true(math.abs(got - case.sums[k]) < 1e-8,
      ("gradient of %s: %.12g, PyTorch %.12g"):format(names[k], got, case.sums[k]))
  end
end

describe("recurrent modules agree with PyTorch:", function()
  for i, case in ipairs(reference) do
    it(("%d: %s over %s"):format(i, case.print, table.concat(case.x, "x")), function() run(case) end)
  end
end)

describe("a recurrent layer", function()
  it("starts as PyTorch's does: uniform in +-1/sqrt(hidden_size)", function()
    core.manual_seed(1)
    local m = nn.LSTM(30, 100)
    for _, p in ipairs(m:parameters()) do
      local top = p:abs():max():item()
      assert.is_true(top <= 0.1 and top > 0.095)
    end
    core.manual_seed(1)
    assert.is_true(tensor.equal(m.weight_hh_l0, nn.LSTM(30, 100).weight_hh_l0))
  end)

  it("gives the same in halves, with the state carried over", function()
    for _, kind in ipairs { "RNN", "GRU", "LSTM" } do
      local m = nn[kind](3, 5, { num_layers = 2 })
      local x = core.randn(6, 2, 3)
      local whole = m(x)
      local a, state = m(x:narrow(1, 1, 4))
      local b = m(x:narrow(1, 5, 2), state)
      assert.is_true(tensor.allclose(whole, core.cat({ a, b }, 1), { atol = 1e-6 }))
    end
  end)

  it("computes a packed batch as each sequence alone", function()
    for _, kind in ipairs { "RNN", "GRU", "LSTM" } do
      local m = nn[kind](3, 5, { num_layers = 2, bidirectional = true })
      local parts = { core.randn(2, 3), core.randn(5, 3), core.randn(1, 3), core.randn(5, 3) }
      local y, state = m(rnn.pack_sequence(parts, { enforce_sorted = false }))
      for i, part in ipairs(rnn.unpack_sequence(y)) do
        local alone, own = m(parts[i])
        assert.is_true(tensor.allclose(part, alone, { atol = 1e-6 }), kind .. " " .. i)
        local h, own_h = kind == "LSTM" and state[1] or state, kind == "LSTM" and own[1] or own
        assert.is_true(tensor.allclose(h:select(2, i), own_h, { atol = 1e-6 }), kind .. " state " .. i)
      end
    end
  end)

  it("computes in half types by way of float32", function()
    for _, kind in ipairs { "RNN", "GRU", "LSTM" } do
      local m = nn[kind](8, 16)
      local x = core.randn(5, 3, 8)
      local exact = m(x)
      local low = m:bfloat16()(x:to "bfloat16")
      assert.equal("bfloat16", low.dtype)
      assert.is_true(tensor.allclose(low:float(), exact, { atol = 0.03 }))
      low:float():sum():backward()
      assert.equal("bfloat16", m.weight_hh_l0.grad.dtype)
    end
  end)

  it("can be differentiated twice and more, as gradient penalties need", function()
    for _, kind in ipairs { "RNN", "GRU", "LSTM" } do
      local m = nn[kind](2, 3, { num_layers = 2, bidirectional = true }):double()
      local parts = { formula(1, { 2, 2 }), formula(2, { 4, 2 }) }
      for k, part in ipairs(parts) do parts[k] = part:requires_grad_() end
      gradcheck.second(kind .. ", packed", function(...)
        local y, state = m(rnn.pack_sequence({ ... }, { enforce_sorted = false }))
        return y.data, kind == "LSTM" and state[2] or state
      end, parts)
      local x = formula(3, { 3, 1, 2 }):requires_grad_()
      local function penalty(v)
        local slope = core.grad({ (m(v)):sum() }, { v }, { create_graph = true })
        return slope:square():sum()
      end
      gradcheck.second(kind .. ", a penalty", penalty, { x, m.weight_hh_l0 })
    end
  end)

  it("has a second gradient where the numbers of sequences are not adjacent in memory", function()
    local gx, w, h = formula(1, { 5, 3 }), formula(2, { 3, 3 }), formula(3, { 2, 3 })
    local sizes = tensor.tensor({ 2, 9, 2, 9, 1, 9 }, { dtype = "int64" })
    local function second(batch_sizes)
      local x = gx:clone():requires_grad_()
      local g = core.grad({ core.rnn_layer(x, w, h, batch_sizes):sum() }, { x }, { create_graph = true })
      return core.grad({ g:square():sum() }, { x })
    end
    local strided = sizes:view(3, 2):select(2, 1)
    assert.is_true(tensor.equal(second(strided:clone()), second(strided)))
  end)

  it("refuses a second gradient in half types by name", function()
    local m = nn.GRU(2, 3):bfloat16()
    local x = core.randn(4, 1, 2):to("bfloat16"):requires_grad_()
    assert.equal("gru_layer: its gradient cannot be differentiated again in bfloat16; call the layer " ..
      "with x:float()",
      (message(core.grad, { (m(x)):sum() }, { x }, { create_graph = true }):gsub("^.-gru_layer",
      "gru_layer")))
  end)

  it("gives the same bits for any number of threads", function()
    local threads = tensor.get_num_threads()
    local function bits(n)
      tensor.set_num_threads(n)
      core.manual_seed(3)
      local m = nn.LSTM(40, 64)
      local y = m(core.randn(7, 32, 40))
      y:sum():backward()
      return y, m.weight_hh_l0.grad
    end
    local a, ga = bits(1)
    local b, gb = bits(2)
    tensor.set_num_threads(threads)
    assert.is_true(tensor.equal(a, b) and tensor.equal(ga, gb))
  end)

  it("drops out between layers, in training alone", function()
    core.manual_seed(5)
    local m = nn.GRU(3, 50, { num_layers = 2, dropout = 0.9 })
    local x = core.randn(4, 2, 3)
    assert.is_false(tensor.equal(m(x), m(x)))
    m:eval()
    assert.is_true(tensor.equal(m(x), m(x)))
  end)

  it("learns in one flat buffer, its recurrent weight's gradient written straight there", function()
    local accelerate = require "accelerate"
    core.manual_seed(0)
    local accelerator = accelerate.Accelerator {}
    local plain = nn.LSTM(4, 8)
    local model = nn.LSTM(4, 8)
    model:load_state_dict(plain:state_dict())
    local a, b = optim.SGD(plain:parameters(), { lr = 0.1 }), optim.SGD(model:parameters(), { lr = 0.1 })
    model, b = accelerator:prepare(model, b)
    local x = core.randn(5, 3, 4)
    for _ = 1, 3 do
      for m, o in pairs { [plain] = a, [model] = b } do
        (m(x) * m(x)):sum():backward()
        o:step()
        o:zero_grad()
      end
    end
    assert.is_true(tensor.allclose(plain.weight_hh_l0, model.weight_hh_l0, { atol = 1e-6 }))
  end)

  it("refuses what does not fit, by name", function()
    local m = nn.LSTM(3, 5)
    assert.matches("LSTM: the input %[4, 2, 7%] has 7 features, the layer expects 3",
      message(m, core.randn(4, 2, 7)))
    assert.matches("LSTM: the input must be %(T, B, 3%) or unbatched %(T, 3%), got %[3%]",
      message(m, core.randn(3)))
    assert.matches("the first h must be %[1, 2, 5%] for this input, got %[2, 2, 5%]",
      message(m, core.randn(4, 2, 3), { core.zeros(2, 2, 5), core.zeros(1, 2, 5) }))
    assert.matches("the state must be a list of two tensors, { h, c }, got a float32 tensor",
      message(m, core.randn(4, 2, 3), core.zeros(1, 2, 5)))
    assert.matches("LSTM: proj_size must be below hidden_size, got 5 and 5",
      message(nn.LSTM, 3, 5, { proj_size = 5 }))
    assert.matches("LSTM: unknown option 'num_layer'; did you mean 'num_layers'",
      message(nn.LSTM, 3, 5, { num_layer = 2 }))
    assert.matches("lstm_layer: gx %[0, 2, 20%] has no step", message(m, core.randn(0, 2, 3)))
    assert.matches("lstm_cell: .* h must be %(B, 5%), got %[2, 4%]",
      message(nn.LSTMCell(3, 5), core.randn(2, 3), { core.zeros(2, 4), core.zeros(2, 5) }))
    assert.matches("lengths must fall", message(rnn.pack_padded_sequence, core.randn(4, 2, 3), { 2, 4 }))
    assert.matches("length 2 must be a whole number in 1..4, got 5",
      message(rnn.pack_padded_sequence, core.randn(4, 2, 3), { 4, 5 }))
    assert.matches("entry 2 is %[2, 4%]", message(rnn.pad_sequence, { core.zeros(3, 3), core.zeros(2, 4) }))
    assert.matches("pad_sequence: expected a list of tensors, but it has no entry 2",
      message(rnn.pad_sequence, { core.zeros(3), nil, core.zeros(2) }))
    assert.matches("pad_sequence: expected a list of tensors, but it has the key 'batch_first'",
      message(rnn.pad_sequence, { core.zeros(3), core.zeros(2), batch_first = true }))
    assert.matches("batch_sizes add up to 3, gx has 4 rows",
      message(core.lstm_layer, core.zeros(4, 20), m.weight_hh_l0, core.zeros(2, 5), core.zeros(2, 5),
      tensor({ 2, 1 }, { dtype = "int64" })))
    assert.matches("entry 2 is 3", message(core.gru_layer, core.zeros(5, 15), core.zeros(15, 5), nil,
      core.zeros(2, 5), tensor({ 2, 3 }, { dtype = "int64" })))
  end)

  it("takes an empty batch", function()
    local y, state = nn.LSTM(3, 5)(core.zeros(4, 0, 3))
    assert.are.same({ 4, 0, 5 }, y.shape)
    assert.are.same({ 1, 0, 5 }, state[2].shape)
    y:sum():backward()
  end)
end)

describe("pad_sequence", function()
  it("fills on either side", function()
    local a, b = tensor { 1, 2, 3 }, tensor { 4 }
    assert.are.same({ { 1, 4 }, { 2, 0 }, { 3, 0 } }, rnn.pad_sequence({ a, b }):totable())
    assert.are.same({ { 1, 2, 3 }, { -1, -1, 4 } },
      rnn.pad_sequence({ a, b }, { batch_first = true, padding_value = -1, padding_side = "left" }):totable())
  end)

  it("and packing come back, longer if asked", function()
    local a, b = tensor { 1, 2, 3 }, tensor { 4 }
    local packed = rnn.pack_sequence({ b, a }, { enforce_sorted = false })
    assert.are.same({ 1, 4, 2, 3 }, packed.data:totable())
    assert.are.same({ 2, 1, 1 }, packed.batch_sizes:totable())
    local x, lengths = rnn.pad_packed_sequence(packed, { batch_first = true, total_length = 4 })
    assert.are.same({ { 4, 0, 0, 0 }, { 1, 2, 3, 0 } }, x:totable())
    assert.are.same({ 1, 3 }, lengths:totable())
    assert.matches("total_length must be at least 3",
      message(rnn.pad_packed_sequence, packed, { total_length = 2 }))
  end)
end)
