--- Every allocation of a training step is made to fail in turn: each failure is a Lua error that
--- names memory, nothing leaks, and the next step works.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"

local function live()
  jit.flush() -- a trace holds the objects that it was specialised on
  for _ = 1, 2 do -- the test counts; programs need not do this
    collectgarbage()
    core.is_released(core.zeros(0)) -- a call into the binding drops what finalisers let go of
  end
  collectgarbage()
  local s = core.memory_stats()
  return s.live_bytes, s.structs
end

-- Runs `step` with the n-th allocation failing, n = 1, 2, 3 ... until it passes; returns the number
-- of failures seen.
local function torture(step, reset)
  local n = 0
  while true do
    n = n + 1
    reset()
    local bytes, structs = live()
    core.debug_fail_alloc(n)
    local ok, message = pcall(step)
    core.debug_fail_alloc(0)
    if ok then return n - 1 end
    assert.is_truthy(tostring(message):find("out of memory", 1, true),
      ("failure %d: %s"):format(n, tostring(message)))
    reset()
    local bytes_after, structs_after = live()
    assert.are.equal(bytes, bytes_after, ("failure %d leaks tensor memory: %s"):format(n, message))
    assert.are.equal(structs, structs_after, ("failure %d leaks structures: %s"):format(n, message))
    assert.is_true(n < 5000, "the step never passes")
  end
end

describe("running out of memory", function()
  it("in any allocation of forward, backward and the optimizer's step is an error and leaks nothing",
    function()
    tensor.manual_seed(1)
    local model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3))
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
    local x, y = tensor.randn(4, 6), tensor.tensor({ 0, 2, 1, 1 }, { dtype = "int64" })
    local loss_fn = nn.CrossEntropyLoss()
    local function step()
      local loss = loss_fn(model(x), y)
      loss:backward()
      core.clip_grad_norm_(model:parameters(), 1.0)
      optimizer:step()
      optimizer:zero_grad()
    end
    step() -- optimizer state exists from here on
    assert.is_true(torture(step, function() optimizer:zero_grad() end) > 30)
    step()
  end)

  it("in any allocation of a step under autocast is an error and leaks nothing", function()
    tensor.manual_seed(1)
    local model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
    local slots, works = tensor.zeros(80), tensor.zeros(80, { dtype = "bfloat16" })
    core.set_grad_slot(model[1].weight, slots, 0)
    core.set_work(model[1].weight, works, 0)
    core.set_work(model[3].weight, works, 40)
    local x, y = tensor.randn(4, 6), tensor.tensor({ 0, 2, 1, 1 }, { dtype = "int64" })
    local loss_fn = nn.CrossEntropyLoss()
    local function step()
      tensor.autocast(function() return loss_fn(model(x):tanh():exp(), y) end):backward()
      optimizer:step()
      optimizer:zero_grad()
    end
    step()
    assert.is_true(torture(step, function() optimizer:zero_grad() end) > 30)
    assert.is_false(tensor.is_autocast_enabled())
    step()
  end)

  it("in any allocation of shape, index and reduction ops is an error and leaks nothing", function()
    local x = tensor.randn(4, 6, { requires_grad = true })
    local index = tensor.tensor({ 1, 0, 3 }, { dtype = "int64" })
    local function step()
      local a = core.cat({ x[{ { 1, 2 } }], x:index_select(1, index), x:t():reshape(4, 6) }, 1)
      local b = core.stack { a:softmax(2), a:log_softmax(1) }
      local c = b[b:gt(0)]:sum() + a:max { dim = 2 }:sum() + (a:matmul(x:t())):mean()
      local g = core.grad({ c }, { x }, { create_graph = true })
      g:square():sum():backward()
      x.grad = nil
    end
    assert.is_true(torture(step, function() x.grad = nil end) > 30)
    step()
  end)

  it("in any allocation of recurrent layers, checkpoints and passes inside a pass is an error and leaks " ..
    "nothing", function()
    local lstm, gru, cell = nn.LSTM(3, 4, { bidirectional = true }), nn.GRU(8,
      3):bfloat16(), nn.LSTMCell(3, 3)
    local x, w = tensor.randn(4, 2, 3), tensor.ones(2, { requires_grad = true })
    local packed = nn.utils.rnn.pack_padded_sequence(x, { 4, 2 })
    local all = { w }
    for _, m in ipairs { lstm, gru, cell } do
      for _, p in ipairs(m:parameters()) do all[#all + 1] = p end
    end
    local function reset()
      for _, p in ipairs(all) do p.grad = nil end
    end
    local function step()
      local y = nn.utils.checkpoint(function(v) return (lstm(v)) end, x)
      local z = gru(y:to "bfloat16"):float()
      local h, c = cell(z[1])
      local total = (z.sum(z) + h:sum() + c:sum()) * w
      total:register_hook(function() tensor.enable_grad(function() (w * w):sum():backward() end) end)
      total:sum():backward()
      lstm(packed).data:sum():backward()
    end
    step()
    assert.is_true(torture(step, reset) > 100)
    step()
  end)

  it("in any allocation of hooks and custom functions that capture their own result is an error and " ..
    "leaks nothing", function()
    local x = tensor.ones(3, { requires_grad = true })
    local y, z, handle
    local function step()
      local double = tensor.Function {
        forward = function(_, a) return a * 2 end,
        backward = function(_, g) return g * 2 + y * 0 end,
      }
      y = double(x)
      y:register_hook(function(g) return g + y end)
      z = y * y
      handle = z:register_hook(function(g) return g * z end)
      z:register_hook(function() handle:remove() end)
      z:sum():backward { retain_graph = true }
      z:sum():backward()
      z:register_hook(function(g) return g + z end)
    end
    step()
    assert.is_true(torture(step, function() x.grad, y, z, handle = nil, nil, nil, nil end) > 20)
    step()
  end)
end)
