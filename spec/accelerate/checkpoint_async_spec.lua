-- save_state { async = true }: what is written is the state at the call, and what goes wrong
-- surfaces.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local tensor = require "accelerate.tensor"
local matches = require("spec.support.messages").matches

-- Before scripts: `full(bytes)` makes each write beyond so many bytes of a file fail.
local FULL = [[
local ffi = require "ffi"
ffi.cdef "struct spec_limit { unsigned long now, most; }; int setrlimit(int, const struct spec_limit *);"
ffi.cdef "void (*signal(int sig, void (*handler)(int)))(int);"
local function full(bytes)
  ffi.C.signal(25, ffi.cast("void (*)(int)", 1)) -- SIGXFSZ, SIG_IGN
  assert(ffi.C.setrlimit(1, ffi.new("struct spec_limit", bytes, -1ULL)) == 0) -- RLIMIT_FSIZE
end
local folder = arg[1]
local nn, optim = require "accelerate.nn", require "accelerate.optim"
local accelerator = accelerate.Accelerator { cpu = true }
local model, optimizer
model = nn.Linear(300, 300)
optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
model, optimizer = accelerator:prepare(model, optimizer)
local function step()
  accelerator:backward(model(core.ones(2, 300)):square():mean())
  optimizer:step()
  optimizer:zero_grad()
end
]]

describe("an asynchronous save", function()
  local folder
  before_each(function()
    state.reset()
    folder = os.tmpname()
    os.remove(folder)
  end)
  after_each(function()
    state.reset()
    fs.remove_tree(folder)
  end)

  local function world()
    tensor.manual_seed(1)
    local accelerator = accelerate.Accelerator { cpu = true }
    local model = nn.Sequential(nn.Linear(600, 700), nn.BatchNorm1d(700), nn.Linear(700, 1))
    local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
    model, optimizer = accelerator:prepare(model, optimizer)
    local w = { accelerator = accelerator, model = model, optimizer = optimizer }
    function w.step()
      accelerator:backward(model(tensor.rand(4, 600)):square():sum())
      optimizer:step()
      optimizer:zero_grad()
    end
    return w
  end

  it("has the state at the call, whatever is written to it right after", function()
    local w = world()
    w.step()
    w.accelerator:save_state(folder .. "/plain")
    w.accelerator:save_state(folder .. "/async", { async = true })
    w.step()
    tensor.no_grad(function()
      for _, p in ipairs(w.model:parameters()) do p:zero_() end
      for _, b in ipairs(w.model:buffers()) do b:fill_(3) end
    end)
    tensor.rand(10)
    math.random()
    w.accelerator:wait_for_checkpoint()
    for _, name in ipairs { "model.safetensors", "optimizer.bin", "random_states_0.pkl" } do
      assert.equal(fs.read(folder .. "/plain/" .. name), fs.read(folder .. "/async/" .. name), name)
    end
    w.accelerator:load_state(folder .. "/async")
  end)

  it("has the state at the call, however it is written to", function()
    local w = world()
    local weight, mean, optimizer = w.model[1].weight, w.model[2].running_mean, w.optimizer
    w.step()
    local early = w.model[3].weight:data_ptr() -- a pointer from before the call
    local inputs = tensor.rand(4, 600)
    local ways = {
      function() w.step() end,
      function() optimizer.optimizer:step() end,
      function() w.model(inputs) end, -- running statistics
      function() tensor.no_grad(function() weight:add_(1) end) end,
      function() tensor.no_grad(function() weight[1] = 3 end) end,
      function() tensor.no_grad(function() weight:t():copy_(tensor.ones(600, 700)) end) end,
      function() tensor.no_grad(function() weight.data:fill_(2) end) end,
      function() tensor.no_grad(function() tensor.add(mean, 1, { out = mean }) end) end,
      function() nn.init.normal_(weight) end,
      function() weight:data_ptr()[5] = 8 end,
      function() early[5] = 8 end,
      function() nn.utils.clip_grad_norm_(w.model:parameters(), 1) end,
      function() core.dist.all_reduce(weight.data, "sum") end,
      function() core.dist.broadcast(mean, 0) end,
      function() w.model:load_state_dict(nn.Sequential(nn.Linear(600, 700), nn.BatchNorm1d(700),
        nn.Linear(700, 1)):state_dict()) end,
      function() weight.data = tensor.zeros(700, 600) end,
      function() w.model:half() end,
    }
    for i, write in ipairs(ways) do
      w.accelerator:backward(w.model(inputs):square():sum())
      optimizer:step()
      w.accelerator:save_state(folder .. "/plain")
      core._save_hold(true) -- the thread has read nothing when the write comes
      w.accelerator:save_state(folder .. "/async", { async = true })
      local ok, why = pcall(write)
      w.accelerator:wait_for_checkpoint()
      assert(ok or tostring(why):find "out", why)
      for _, name in ipairs(fs.list(folder .. "/plain")) do
        assert.equal(fs.read(folder .. "/plain/" .. name), fs.read(folder .. "/async/" .. name),
          i .. ": " .. name)
      end
    end
  end)

  it("copies nothing that nobody writes to before it is read", function()
    local w = world()
    w.step()
    local function peak(during)
      w.accelerator:wait_for_checkpoint()
      collectgarbage()
      collectgarbage()
      local before = core.memory_stats().live_bytes
      core._save_hold(true)
      w.accelerator:save_state(folder, { async = true })
      during()
      local after = core.memory_stats().live_bytes
      w.accelerator:wait_for_checkpoint()
      return after - before
    end
    assert.is_true(peak(function() end) < 100000)
    assert.is_true(peak(function() w.optimizer.optimizer:step() end) < 100000) -- there are no gradients
    assert.is_true(peak(w.step) > 700 * 600 * 4)
  end)

  it("waits for the thread where there is no memory for copies", function()
    local w = world()
    w.step()
    w.accelerator:save_state(folder .. "/plain")
    w.accelerator:save_state(folder .. "/async", { async = true })
    core.debug_fail_alloc(1)
    tensor.no_grad(function() pcall(w.model[1].weight.zero_, w.model[1].weight) end)
    core.debug_fail_alloc(0)
    tensor.no_grad(function() w.model[1].weight:zero_() end)
    w.accelerator:wait_for_checkpoint()
    assert.equal(fs.read(folder .. "/plain/model.safetensors"), fs.read(folder .. "/async/model.safetensors"))
  end)

  it("has the gradients of an open window, and tensors that are no contiguous memory", function()
    local w = world()
    local seen = tensor.arange(12):reshape(3, 4):t()
    w.accelerator:register_for_checkpointing({
      state_dict = function() return { seen = seen, text = ("x"):rep(5000) .. "\0" } end,
      load_state_dict = function(_, found) seen = found.seen end })
    w.accelerator:backward(w.model(tensor.rand(4, 600)):square():sum())
    local expected = w.model[1].weight.grad:clone():totable()
    w.accelerator:save_state(folder, { async = true })
    w.optimizer:zero_grad()
    seen:fill_(7)
    w.accelerator:load_state(folder)
    assert.same(expected, w.model[1].weight.grad:totable())
    assert.same({ { 0, 4, 8 }, { 1, 5, 9 }, { 2, 6, 10 }, { 3, 7, 11 } }, seen:totable())
  end)

  it("goes on while the next one waits for it", function()
    local w = world()
    for i = 1, 3 do
      w.accelerator:save_state(folder .. "/" .. i, { async = true })
      w.step()
    end
    assert.is_true(core._save_under_way())
    w.accelerator:wait_for_checkpoint()
    assert.is_false(core._save_under_way())
    for i = 1, 3 do assert.is_true(fs.exists(folder .. "/" .. i .. "/accelerate_manifest.json")) end
    w.accelerator:wait_for_checkpoint()
  end)

  it("frees what it has copied", function()
    local w = world()
    local function live()
      w.accelerator:save_state(folder, { async = true })
      w.accelerator:wait_for_checkpoint()
      collectgarbage()
      collectgarbage()
      return core.memory_stats().live_bytes
    end
    live()
    assert.equal(live(), live())
  end)

  it("that fails says so at the next call, and leaves the former checkpoint", function()
    host.in_folder(function(path)
      ranks.ok(1, FULL .. [[
        accelerator:save_state(folder .. "/c")
        step()
        full(100000)
        local calls = {
          function() accelerator:save_state(folder .. "/c") end,
          function() accelerator:load_state(folder .. "/c") end,
          function() accelerator:wait_for_checkpoint() end,
        }
        for i, call in ipairs(calls) do
          accelerator:save_state(folder .. "/c", { async = true })
          local ok, why = pcall(call)
          check(not ok and why:find("save_state: safetensors: '" .. folder ..
            "/.c.saving/model.safetensors': cannot write it: File too large", 1, true),
            i .. ": " .. tostring(why))
          accelerator:wait_for_checkpoint()
        end
        accelerator:load_state(folder .. "/c")
      ]], { arguments = { path } })
      assert.same({ "c" }, fs.list(path))
    end)
  end)

  it("that fails at the end of the run gives a status that is not 0", function()
    for n = 1, 2 do
      for _, last in ipairs { n == 1 and "" or "os.exit(0)", "accelerator:end_training()" } do
        host.in_folder(function(path)
          local status, _, err = ranks.run(n, FULL .. [[
            full(100000)
            accelerator:save_state(folder .. "/c", { async = true })
          ]] .. last, { arguments = { path } })
          assert.equal(1, status)
          matches(err, "the last checkpoint was not written: .*model.safetensors.: " ..
            "cannot write it: File too large")
          assert.is_false(fs.exists(path .. "/c"))
        end)
      end
    end
  end)

  it("is whole when the script has ended", function()
    for n = 1, 2 do
      for _, last in ipairs { n == 2 and "" or "os.exit(0)", "accelerator:end_training()" } do
        host.in_folder(function(path)
          ranks.ok(n, FULL .. "accelerator:save_state(folder .. '/c', { async = true })\n" .. last,
            { arguments = { path } })
          assert.same({ "c" }, fs.list(path))
          assert.truthy(require("accelerate.checkpoint.manifest").verify(path .. "/c"))
        end)
      end
    end
  end)

  it("fails on all ranks when it fails on one", function()
    host.in_folder(function(path)
      ranks.ok(2, FULL .. [[
        accelerator:save_state(folder .. "/c")
        accelerator:backward(model(core.ones(2, 300)):square():mean())
        if rank == 1 then full(100000) end -- its gradients
        accelerator:save_state(folder .. "/c", { async = true })
        local ok, why = pcall(accelerator.wait_for_checkpoint, accelerator)
        check(not ok and why:find("rank 1: safetensors: .*gradients_1.safetensors.*File too large"),
          tostring(why))
        accelerator:load_state(folder .. "/c")
      ]], { arguments = { path } })
      assert.same({ "c" }, fs.list(path))
    end)
  end)

  it("leaves a whole checkpoint when a rank dies meanwhile", function()
    for _, signal in ipairs { 9, 19 } do -- 19: its thread is stopped, too, for ever
      host.in_folder(function(path)
        local status = ranks.run(2, FULL .. [[
          ffi.cdef "int getpid(void); int kill(int pid, int sig);"
          accelerator:save_state(folder .. "/c")
          accelerator:save_state(folder .. "/c", { async = true })
          if rank == 1 then ffi.C.kill(ffi.C.getpid(), tonumber(arg[2])) end
          accelerator:wait_for_everyone()
        ]], { arguments = { path, tostring(signal) }, launch = { "--timeout", host.limit(4) } })
        assert.are_not.equal(0, status)
        assert.truthy(require("accelerate.checkpoint.manifest").verify(path .. "/c"))
      end)
    end
  end)

  it("refuses what is no data before it begins", function()
    local w = world()
    w.accelerator:register_for_checkpointing({ state_dict = function() return { f = print } end,
      load_state_dict = function() end })
    assert.error_matches(function() w.accelerator:save_state(folder, { async = true }) end,
      "save_state: .*f is a function")
    assert.is_false(core._save_under_way())
    assert.error_matches(function() w.accelerator:save_state(folder, { asynch = true }) end,
      "did you mean 'async'")
  end)
end)
