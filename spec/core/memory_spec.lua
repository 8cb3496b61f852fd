-- Memory: the collector is driven by live tensor bytes, the limit is an error, and a failed
-- allocation leaves nothing behind.
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local raises = require("spec.support.messages").raises

local flat_memory = require "spec.support.flat"
local host = require "spec.support.host"

local MB = 1024 * 1024

local function collect()
  for _ = 1, 3 do
    collectgarbage()
    core.release(tensor.ones(1))  -- a call into the binding drops what finalisers let go of
  end
  collectgarbage()
  return core.memory_stats()
end

-- What is live: neither garbage nor what LuaJIT's traces were specialised on.
local function settle()
  jit.flush()
  return collect()
end

-- The most live bytes at any time while fn runs n times, over those before.
local function growth(n, fn)
  local before, most = settle().live_bytes, 0
  for i = 1, n do
    fn(i)
    most = math.max(most, core.memory_stats().live_bytes)
  end
  return most - before
end

describe("garbage tensors", function()
  -- The collector's pause, in percent, in a process of its own after `code`.
  local function pause_after(code)
    local status, out, err = host.run { "--cpu", "-e", [[
      local tensor = require "accelerate.tensor"
      local leaf = tensor.ones(4, { requires_grad = true })
      ]] .. code .. [[
      collectgarbage()
      collectgarbage()
      print(collectgarbage("setpause", 200))]] }
    assert.are.equal(0, status, err)
    return tonumber(out)
  end

  it("begin a collector's cycle when the last one ends, once something is recorded", function()
    assert.are.equal(200, pause_after "local _ = tensor.ones(4) + 1; _ = nil;")
    assert.are.equal(100, pause_after "local _ = leaf + 1; _ = nil;")
    assert.are.equal(100, pause_after "leaf:sum():backward();")
    assert.are.equal(150, pause_after "collectgarbage('setpause', 150) leaf:sum():backward();")
  end)

  it("are collected without a call to collectgarbage", function()
    -- 1 MB each: 3 GB in all
    assert.is_true(growth(3000, function() return tensor.empty(256 * 1024) end) < 256 * MB)
  end)

  it("are collected when they are many and small", function()
    local before = settle().structs
    local most = 0
    for i = 1, 400000 do
      local _ = tensor.ones(4)
      if i % 1000 == 0 then most = math.max(most, core.memory_stats().structs) end
    end
    assert.is_true(most - before < 400000, ("%d structures"):format(most - before))
  end)

  it("are collected beside a large Lua heap", function()
    local samples = {}
    for i = 1, 100000 do samples[i] = { i, tostring(i), { i } } end
    local seconds = os.clock()
    local most = growth(2000, function() return tensor.empty(256 * 1024) end)
    seconds = os.clock() - seconds
    assert.is_true(most < 256 * MB, ("%.0f MB"):format(most / MB))
    assert.is_true(seconds < 10)
    assert.equal(100000, #samples)
  end)

  it("are collected with the graphs and closures that hold them", function()
    local threads = tensor.get_num_threads()
    -- small products; with more threads than free cores they would wait for each other
    tensor.set_num_threads(1)
    finally(function() tensor.set_num_threads(threads) end)
    local w = tensor.randn(256, 256, { requires_grad = true })
    local most = growth(2000, function()
      local x = tensor.randn(64, 256)
      local function forward() return x:matmul(w):relu():matmul(w) end
      local y = forward()
      y:register_hook(function(g) return g * 1 end)
      return y
    end)
    assert.is_true(most < 256 * MB, ("%.0f MB"):format(most / MB))
  end)

  it("pile up no further when a collection takes long but computes little", function()
    local ffi = require "ffi"
    pcall(ffi.cdef, "int usleep(unsigned microseconds);")
    local slept, cost = 0, os.clock()
    collectgarbage()
    cost = os.clock() - cost
    local function sleeper()  -- each collection waits for a while, as on a busy machine
      getmetatable(newproxy(true)).__gc = function()
        if slept < 0 then return end
        slept = slept + 1
        ffi.C.usleep(1e6 * 20 * cost)
        sleeper()
      end
    end
    sleeper()
    local most = growth(40, function()
      local stop = os.clock() + 3 * cost  -- 32 MB take more than ten times what a collection computes
      while os.clock() < stop do end
      return tensor.empty(MB)
    end)
    assert.is_true(slept > 3, ("%d collections"):format(slept))
    slept = -1
    assert.is_true(most < 100 * MB, ("%.0f MB"):format(most / MB))
  end)

  -- What a collection in the middle of a forward pass leaves is the step's, and no measure of what
  -- lives between steps.
  it("of a step are collected when its backward ends, also after a collection in its forward", function()
    settle()
    local before, cost = core.memory_stats(), 0
    local x = tensor.randn(MB):requires_grad_()
    local function forward()
      local kept, y = {}, x
      for k = 1, 30 do -- 120 MB that live until the step ends
        y = y * 1.5
        kept[k] = y
      end
      local counted = core.memory_stats().pressure_collections
      cost = os.clock()
      while core.memory_stats().pressure_collections == counted do tensor.empty(MB) end
      cost = os.clock() - cost -- of the collection, which also gives memory back
      assert.are.equal(30, #kept)
      return y:sum()
    end
    forward():backward()
    local loss = forward()
    local stop = os.clock() + 20 * cost
    while os.clock() < stop do end
    loss:backward()
    local left = core.memory_stats().live_bytes - before.live_bytes
    assert.is_true(left < 40 * MB, ("%.0f MB"):format(left / MB))
  end)

  it("are counted", function()
    local before = core.memory_stats().pressure_collections
    for _ = 1, 200 do tensor.empty(MB) end
    assert.is_true(core.memory_stats().pressure_collections > before)
  end)
end)

describe("empty_cache", function()
  it("returns what lies between blocks in use", function()
    local why = flat_memory.cannot
      or host.path:find("/asan/", 1, true) and "the sanitizer's allocator keeps what is freed"
    if why then return pending(why) end
    local held = {}
    local function fill()
      local passing = {}
      for i = 1, 1000 do -- 64 MB, and a small block in use after each 64 KB
        passing[i] = tensor.zeros(16 * 1024)
        held[i] = tensor.zeros(8)
      end
      return flat_memory.resident_bytes(), passing[1000]:sum():item()
    end
    local before = fill()
    settle()
    core.empty_cache()
    local returned = before - flat_memory.resident_bytes()
    assert.is_true(returned > 50e6, ("%.1f MB"):format(returned / 1e6))
    assert.equal(0, held[1000]:sum():item())
  end)
end)

describe("the limit", function()
  after_each(function()
    core.set_memory_limit(0)
    core.debug_fail_alloc(0)
  end)

  it("is reached only when a collection frees nothing", function()
    core.empty_cache()
    core.set_memory_limit(settle().live_bytes + 64 * MB)
    for _ = 1, 100 do tensor.empty(6 * MB) end  -- 24 MB each
    do
      local held = {}
      raises("out of memory", function()
        for i = 1, 100 do held[i] = tensor.empty(6 * MB) end
      end)
      assert.equal(2, #held)
    end
    assert.equal(1, tensor.ones(1):item())
    tensor.empty(6 * MB)
  end)

  it("is not reached by what only LuaJIT's traces hold", function()
    local drive = loadstring "local f, n = ..., 0 for _ = 1, 300 do n = n + f() end return n"
    local closure = "local held = ... return function() return held and 1 or 0 end"
    local function run() assert.equal(300, drive(loadstring(closure)(tensor.empty(12 * MB)))) end
    local before, tries, held = settle().live_bytes, 0
    core.empty_cache()
    repeat
      run()
      held, tries = collect().live_bytes - before, tries + 1
    until held > 0 or tries == 50 or not jit.status()
    assert.equal(jit.status() and 48 * MB or 0, held)
    core.empty_cache()
    core.set_memory_limit(before + 64 * MB)
    assert.equal(12 * MB, tensor.empty(12 * MB):numel())
  end)

  it("is reached by what lives, also in a finaliser and in a trace's event", function()
    local block = tensor.empty(12 * MB)
    local live = settle().live_bytes
    core.empty_cache()
    core.set_memory_limit(live + 24 * MB)
    local messages = {}
    local function try(where)
      local ok, message = pcall(tensor.empty, 12 * MB)
      messages[where] = not ok and message:match "out of memory"
    end
    for _ = 1, 3 do
      getmetatable(newproxy(true)).__gc = function() try "finaliser" end
    end
    settle()
    local function event() try "trace" end
    jit.attach(event, "trace")
    for _ = 1, 10 do
      assert.equal(45150, loadstring "local n = 0 for i = 1, 300 do n = n + i end return n"())
    end
    jit.attach(event)
    assert.same({ finaliser = "out of memory", trace = jit.status() and "out of memory" or nil }, messages)
    assert.equal(12 * MB, block:numel())
  end)

  it("must be a size", function()
    raises("set_memory_limit: bytes: expected an integer of at least 0", core.set_memory_limit, -1)
    raises("expected an integer", core.set_memory_limit, 0 / 0)
    raises("expected an integer", core.set_memory_limit, "1 GB")
  end)
end)

describe("statistics", function()
  it("follow tensors", function()
    local before = settle()
    local x = tensor.empty(MB)
    local during = core.memory_stats()
    assert.equal(4 * MB, during.live_bytes - before.live_bytes)
    assert.equal(1, during.live_blocks - before.live_blocks)
    core.release(x)
    assert.equal(before.live_bytes, core.memory_stats().live_bytes)
    core.reset_peak_memory_stats()
    assert.equal(core.memory_stats().live_bytes, core.memory_stats().peak_bytes)
    core.empty_cache()
    assert.equal(0, core.memory_stats().cached_bytes)
  end)
end)

describe("a failed allocation", function()
  after_each(function() core.debug_fail_alloc(0) end)

  local square = tensor.Function {
    forward = function(ctx, x)
      ctx:save_for_backward(x)
      return x * x, x + 1
    end,
    backward = function(ctx, g, h) return 2 * ctx:saved_tensors() * g + h end,
  }

  local CASES = {
    ["tensor from a table"] = function()
      return tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "float64", requires_grad = true })
    end,
    ["constructors"] = function()
      return tensor.zeros(3), tensor.full({ 2 }, 3), tensor.arange(5), tensor.eye(2),
        tensor.linspace(0, 1, 3), tensor.rand(2), tensor.randperm(3)
    end,
    ["operators"] = function()
      local x = tensor.ones(3)
      return (x + x) * 2 - -x
    end,
    ["several results"] = function() return tensor.ones(2, 3):max(1) end,
    ["reading with keys"] = function()
      local x = tensor.arange(12):view(3, 4)
      return x[1], x[{ { 1, 2 }, 3 }], x[x:gt(3)], x[tensor({ 0, 2 }, { dtype = "int64" })],
        x[{ {}, tensor({ true, false, true, false }) }]
    end,
    ["writing with keys"] = function()
      local x = tensor.zeros(3, 4)
      x[1] = 1
      x[{ { 1, 2 }, 3 }] = tensor.ones(2)
      x[x:gt(0)] = 2
      x[x:gt(1)] = tensor.ones(5)
      x[tensor({ 0, 2 }, { dtype = "int64" })] = tensor.ones(2, 4)
    end,
    ["recorded writing"] = function()
      local v = tensor.ones(4, { requires_grad = true })
      local x = tensor.zeros(3, 4)
      x[2] = v
      x[x:gt(5)] = v:sum()
      x:sum():backward()
    end,
    ["conversion"] = function()
      local x = tensor.ones(2, 2)
      return x:double():long():t():contiguous(), x:t():totable(), tostring(x), x:detach(), x.data
    end,
    ["gradients"] = function()
      local x = tensor.ones(3, { requires_grad = true })
      local g = tensor.grad((x * x):sum(), x, { create_graph = true })
      g:sum():backward()
      return x.grad
    end,
    ["hooks"] = function()
      local x = tensor.ones(3, { requires_grad = true })
      local y = x * 2
      y:register_hook(function(g) return g * 2 end)
      x:register_hook(function(g) return g + 1 end)
      x:register_post_accumulate_grad_hook(function(p) p.grad:zero_() end)
      y:sum():backward()
    end,
    ["a custom function"] = function()
      local x = tensor.ones(3, { requires_grad = true })
      local y, z = square(x)
      y:sum():backward({ retain_graph = true })
      z:sum():backward()
    end,
    ["clipping and a step"] = function()
      local x = tensor.ones(3, { requires_grad = true })
      x.grad = tensor.ones(3)
      core.clip_grad_norm_({ x }, 0.5)
      core.optim_group("adam", { x }):step(
        { lr = 0.1, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01, maximize = false,
        amsgrad = false, decoupled_weight_decay = true })
    end,
    ["moving parameters"] = function()
      local x = tensor.ones(3, { requires_grad = true })
      core.flat({ x }):give_grads()
      x.grad = tensor.ones(3)
      x.data = tensor.zeros(3)
    end,
    ["laying parameters out"] = function()
      local x, y = tensor.ones(3, { requires_grad = true }), tensor.ones(70, { requires_grad = true })
      x.grad = tensor.ones(3)
      local layout = core.flat { x, y }
      layout:give_grads()
      layout:give_work("bfloat16")
      layout:cut { 1, 2 }
      layout:remember()
      layout:collect(1)
      layout:collect(2)
      layout:adopt()
      layout:scale_grads(2)
    end,
    ["states of parameters in a layout"] = function()
      local x, y = tensor.ones(3, { requires_grad = true }), tensor.ones(70, { requires_grad = true })
      local layout = core.flat { x, y }
      layout:give_grads()
      x.grad, y.grad = tensor.ones(3), tensor.ones(70)
      local group = core.optim_group("sgd", { x, y })
      group:step { lr = 1, weight_decay = 0, maximize = false, momentum = 0.9, dampening = 0,
        nesterov = false }
      local again = core.optim_group("sgd", { x, y })
      again:load(1, group:get(1))
      again:inherit(group)
      again:relayout()
    end,
    ["a scope"] = function()
      return tensor.scope(function() return tensor.ones(2) + 1 end)
    end,
  }

  for name, case in pairs(CASES) do
    it("is an error and leaves nothing behind: " .. name, function()
      case()
      local before = settle()
      local n = 0
      repeat
        n = n + 1
        core.debug_fail_alloc(n)
        local ok, message = pcall(case)
        core.debug_fail_alloc(0)
        assert.is_true(ok or tostring(message):find("out of memory", 1, true) ~= nil, tostring(message))
        assert.is_true(tensor.is_grad_enabled())
        assert.is_true(n < 2000)
      until ok
      assert.is_true(n > 1)
      local after = settle()
      assert.equal(before.live_blocks, after.live_blocks)
      assert.equal(before.structs, after.structs)
    end)
  end

  it("names the line of each script, and the function, also where a line was named before", function()
    local held = {}
    for _ = 1, 2 do
      for _, name in ipairs { "one.lua", "two.lua", ("far"):rep(50) .. "/three.lua" } do
        for _, fn in ipairs { "zeros", "ones" } do
          local code = ("local x = require('accelerate.core').%s(2^18 + 77)\nreturn x"):format(fn)
          held[#held + 1] = assert(loadstring(code, "@" .. name))()
        end
      end
    end
    local live = {}
    for _, group in ipairs((core._memory_groups("cpu", 64))) do live[group.where] = group.live end
    for _, name in ipairs { "one.lua:1", "two.lua:1" } do
      for _, fn in ipairs { "zeros", "ones" } do
        assert.are.equal(2, live[("%s (%s)"):format(name, fn)], name .. fn)
      end
    end
    local far = 0
    for where, count in pairs(live) do
      if where:find "far/three%.lua:1" then far = far + count end
    end
    assert.are.equal(4, far)
    assert.are.equal(12, #held)
  end)
end)
