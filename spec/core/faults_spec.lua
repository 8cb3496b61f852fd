--- Every allocation of a training step is made to fail in turn: each failure is a Lua error that
--- names memory, nothing leaks, and the next step works.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local manifest = require "accelerate.checkpoint.manifest"
local layouts = require "spec.support.layouts"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local state = require "accelerate.state"

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
  reset()
  local bytes, structs = live()
  while true do
    n = n + 1
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
    layouts.of({ model[1].weight }, { grads = true, work = "bfloat16" })
    layouts.of({ model[3].weight }, { work = "bfloat16" })
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

  it("in any allocation of recurrent layers, checkpoints and passes inside a pass " ..
    "is an error and leaks nothing", function()
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

  it("in any allocation of a second gradient through recurrent layers is an error and leaks nothing",
    function()
    local x = tensor.randn(3, 2, 2, { requires_grad = true })
    for _, m in ipairs { nn.LSTM(2, 2), nn.GRU(2, 2), nn.RNN(2, 2) } do
      local function reset()
        x.grad = nil
        for _, p in ipairs(m:parameters()) do p.grad = nil end
      end
      local function step()
        local y = m(nn.utils.rnn.pack_padded_sequence(x, { 3, 1 })).data
        core.grad({ y:sum() }, { x }, { create_graph = true }):square():sum():backward()
      end
      step()
      assert.is_true(torture(step, reset) > 100)
      step()
    end
  end)

  it("in any allocation of hooks and custom functions that capture their own result " ..
    "is an error and leaks nothing", function()
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

  describe("at a checkpoint", function()
    local accelerator, model, optimizer
    before_each(function()
      state.reset()
      accelerator = accelerate.Accelerator { cpu = true }
      model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
      optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
      model, optimizer = accelerator:prepare(model, optimizer)
      accelerator:backward(model(tensor.ones(3, 4)):square():sum())
      optimizer:step()
      optimizer:zero_grad()
    end)
    after_each(state.reset)

    local function nothing() end

    it("in any allocation of a save is an error, and the older one stays whole", function()
      host.in_folder(function(folder)
        local path = folder .. "/c"
        local function whole()
          assert(not fs.exists(path) or manifest.verify(path))
          assert.is_false(fs.exists(folder .. "/.c.saving"))
        end
        for _, options in ipairs { {}, { safe_serialization = false }, { async = true } } do
          local function save()
            accelerator:save_state(path, options)
            accelerator:wait_for_checkpoint()
          end
          save()
          assert.is_true(torture(save, whole) > 20)
        end
      end)
    end)

    it("in any allocation of a load is an error, and the next load brings all back", function()
      host.in_folder(function(folder)
        accelerator:save_state(folder .. "/c")
        local bits = model[1].weight:totable()
        local function load() accelerator:load_state(folder .. "/c") end
        load()
        assert.is_true(torture(load, nothing) > 20)
        assert.same(bits, model[1].weight:totable())
      end)
    end)

    it("in any allocation of copies and of files is an error and leaks nothing", function()
      host.in_folder(function(folder)
        local image, x = tensor.zeros(3, 4, 5, { dtype = "uint8" }), tensor.ones(3, 2)
        for what, step in pairs {
          clone = function() model:clone() end,
          deepcopy = function() accelerate.utils.deepcopy(model) end,
          save = function() accelerate.utils.save({ a = x, b = { x } }, folder .. "/v.pt") end,
          load = function() accelerate.utils.load(folder .. "/v.pt") end,
          npy = function() data.write_npy(folder .. "/a.npy", x) end,
          npz = function() data.write_npz(folder .. "/a.npz", { a = x, b = x }) end,
          csv = function() data.write_csv(folder .. "/a.csv", { a = x:select(2, 1), b = x:select(2, 2) }) end,
          png = function() data.write_image(folder .. "/a.png", image) end,
        } do
          if what == "load" then accelerate.utils.save({ a = x, b = { x } }, folder .. "/v.pt") end
          step()
          assert.is_true(torture(step, nothing) > 0, what)
        end
        for _, name in ipairs(assert(fs.list(folder))) do assert.is_nil(name:find "tmp", name) end
      end)
    end)
  end)
end)
