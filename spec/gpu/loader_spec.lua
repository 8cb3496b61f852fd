--- Batches on their way to the device: the copy stream, pinned memory, prepared loaders.
local device = require "spec.support.device"
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local emulator = require "spec.support.emulator"
local gpu_ranks = require "spec.support.gpu_ranks"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"

if not device.name then
  describe("loaders on a device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local SEEDS = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }

-- Runs fn once, or on the emulated device under each schedule.
local function under(fn)
  if emulator then emulator.under(SEEDS, fn) else fn(0) end
end

local function same(a, b)
  assert.are.equal(0, (a:to("cpu"):double() - b:to("cpu"):double()):abs():max():item())
end

local function dataset(n)
  tensor.manual_seed(3)
  return data.TensorDataset(tensor.randn(n, 100), tensor.arange(n))
end

local function prepared(loader, config)
  local accelerator = accelerate.Accelerator { dataloader_config = config
    and accelerate.DataLoaderConfiguration(config) }
  assert.are.equal(D, accelerator.device)
  return accelerator:prepare(loader), accelerator
end

describe("a tensor that is sent ahead", function()
  it("is there after arrive, whatever runs first", function()
    under(function()
      local x = tensor.randn(3, 50)
      local t, ticket = core._send(x, D)
      assert.are.equal(D, t.device)
      core._arrive(D, ticket)
      same(x, t)
      same(x * 2, t * 2)
    end)
  end)

  it("is not there before (the emulator shows it)", function()
    if not emulator then return pending("only the emulated device can hold a copy back") end
    if emulator.uncached then return pending(emulator.uncached) end
    emulator.under({ 2 }, function()
      local x = tensor.randn(300, 500)
      local t, ticket = core._send(x, D)
      assert.is_true((t:to("cpu") - x):abs():max():item() > 0)
      core._arrive(D, ticket)
      same(x, t)
    end)
  end)

  it("is not overwritten by the next one while it is being read", function()
    under(function()
      local sums, expected = {}, {}
      for i = 1, 6 do
        local x = tensor.full({ 64, 64 }, i)
        local t, ticket = core._send(x, D)
        core._arrive(D, ticket)
        sums[i], expected[i] = (t * 3):sum(), i * 3 * 64 * 64
        tensor.release(t)
      end
      for i, s in ipairs(sums) do assert.are.equal(expected[i], s:item()) end
    end)
  end)

  it("may be let go before it arrives", function()
    under(function()
      for i = 1, 4 do tensor.release((core._send(tensor.full({ 1000 }, i), D))) end
      local t, ticket = core._send(tensor.full({ 1000 }, 7), D)
      core._arrive(D, ticket)
      core._arrive(D, ticket) -- again: nothing to wait for
      assert.are.equal(7000, t:sum():item())
      core.synchronize(D)
    end)
  end)

  it("of other layouts and types is what x:to gives", function()
    for _, x in ipairs { tensor.randn(4, 6):t(), tensor.arange(10):narrow(1, 3, 4),
      tensor.randn(5):to("bfloat16"), tensor.tensor({ true, false }) } do
      local t, ticket = core._send(x, D)
      core._arrive(D, ticket)
      assert.are.same(x:totable(), t:totable())
      assert.are.equal(x.dtype, t.dtype)
    end
    assert.is_nil(core._send(tensor.zeros(0), D))
    assert.is_nil(core._send(tensor.zeros(3, { requires_grad = true }), D))
    assert.is_nil(core._send(tensor.zeros(3, { device = D }), D))
  end)
end)

describe("pinned memory", function()
  it("holds a tensor's elements and says so", function()
    local x = tensor.randn(7, 9)
    local p = x:t():pin_memory()
    assert.is_true(p:is_pinned())
    assert.is_false(x:is_pinned())
    assert.is_true(rawequal(p, p:pin_memory()))
    same(x:t(), p)
    assert.is_true(p:narrow(1, 2, 3):is_pinned())
    assert.error_matches(function() tensor.ones(2, { device = D }):pin_memory() end,
      "pin_memory: only tensors of the CPU can be pinned, this one lies on cuda:0", 1, true)
  end)

  it("is read and written by copies that nobody waits for", function()
    under(function()
      local p = tensor.randn(200, 30):pin_memory()
      local there = p:to(D, { non_blocking = true })
      local back = (there * 2):to("cpu", { non_blocking = true })
      assert.is_true(back:is_pinned())
      core.synchronize(D)
      same(p * 2, back)
    end)
  end)

  it("is not handed out again while a copy reads it", function()
    under(function()
      local results = {}
      for i = 1, 5 do
        local p = tensor.full({ 3000 }, i):pin_memory()
        results[i] = p:to(D, { non_blocking = true })
        tensor.release(p)
      end
      for i, t in ipairs(results) do assert.are.equal(i * 3000, t:sum():item()) end
    end)
  end)
end)

describe("a prepared loader", function()
  it("gives the batches of the CPU's, whatever runs first", function()
    local set = dataset(37)
    under(function()
      local loader = prepared(data.DataLoader(set,
        { batch_size = 8, shuffle = true, generator = tensor.Generator(1) }))
      local plain = data.DataLoader(set,
        { batch_size = 8, shuffle = true, generator = tensor.Generator(1) }):iter()
      local n, kept = 0, {}
      for x, y in loader:iter() do
        local px, py = plain()
        assert.are.equal(D, x.device)
        kept[#kept + 1] = { x * 2, px * 2, y, py }
        n = n + y:size(1)
      end
      assert.are.equal(37, n)
      for _, k in ipairs(kept) do same(k[1], k[2]) same(k[3], k[4]) end
    end)
  end)

  it("does so for nested batches, strings among them", function()
    local set = { len = function() return 6 end,
      get = function(_, i)
        return { x = tensor.full({ 300 }, i), more = { id = "n" .. i, y = tensor.tensor(i) } }
      end }
    under(function()
      local loader, seen = prepared(data.DataLoader(set, { batch_size = 2, collate_fn = function(samples)
        return { x = tensor.stack { samples[1].x, samples[2].x },
          more = { y = samples[2].more.y, ids = { samples[1].more.id, samples[2].more.id } } }
      end })), {}
      for batch in loader:iter() do
        assert.are.equal(D, batch.x.device)
        assert.are.equal(D, batch.more.y.device)
        seen[#seen + 1] = { batch.x:sum(), batch.more.y, batch.more.ids }
      end
      for k = 1, 3 do
        assert.are.equal((4 * k - 1) * 300, seen[k][1]:item())
        assert.are.equal(2 * k, seen[k][2]:item())
        assert.are.same({ "n" .. 2 * k - 1, "n" .. 2 * k }, seen[k][3])
      end
    end)
  end)

  it("pins its batches where it is asked to, and reads them without staging", function()
    under(function()
      local set = dataset(20)
      for x in data.DataLoader(set, { batch_size = 4, pin_memory = true }):iter() do
        assert.is_true(x:is_pinned())
      end
      local total = 0
      for x, y in prepared(data.DataLoader(set, { batch_size = 4, pin_memory = true }),
        { non_blocking = true }):iter() do
        total = total + y:sum():item()
        same(x, set.tensors[1]:narrow(1, y:select(1, 1):item() + 1, 4))
      end
      assert.are.equal(190, total)
    end)
  end)

  it("works with a dispatching loader, worker processes, and a pass that is left", function()
    local set = dataset(24)
    under(function(seed)
      local loader = prepared(data.DataLoader(set, { batch_size = 4 }), { dispatch_batches = true })
      local list = {}
      for x, y in loader:iter() do list[#list + 1] = { x + 0, y } end
      assert.are.equal(6, #list)
      for k, b in ipairs(list) do same(b[1], set.tensors[1]:narrow(1, 4 * k - 3, 4)) end
      loader:iter()() -- a pass that is left
      if seed < 4 then
        local n = 0
        for x, y in prepared(data.DataLoader(set, { batch_size = 4, num_workers = 2 })):iter() do
          same(x, set.tensors[1]:narrow(1, y:select(1, 1):item() + 1, 4))
          n = n + 1
        end
        assert.are.equal(6, n)
      end
    end)
  end)

  it("sends what workers read from the memory that it came in, and they wait until it was read", function()
    tensor.manual_seed(4)
    local set = data.TensorDataset(tensor.randn(96, 5000), tensor.arange(96)) -- 80 kB a batch
    local DRIVER = { "cudaHostAlloc", "cudaHostRegister" }
    under(function(seed)
      local before = emulator and emulator.calls(DRIVER)
      local batches = prepared(data.DataLoader(set, { batch_size = 4, num_workers = 2 })):iter()
      local kept = {}
      for x, y in batches do kept[#kept + 1] = { x * 2, y } end
      for k, b in ipairs(kept) do
        same(b[1], set.tensors[1]:narrow(1, 4 * k - 3, 4) * 2)
        same(b[2], set.tensors[2]:narrow(1, 4 * k - 3, 4))
      end
      if not emulator then return end
      local after = emulator.calls(DRIVER)
      assert.is_true(after.cudaHostRegister > before.cudaHostRegister)
      if seed == 0 then -- copies are done at once, so a worker needs one or two more than it reads ahead
        assert.is_true(after.cudaHostRegister - before.cudaHostRegister <= 8)
        assert.are.equal(before.cudaHostAlloc, after.cudaHostAlloc)
      end
    end)
    if not emulator then return end
    collectgarbage()
    collectgarbage()
    local ends = emulator.calls { "cudaHostRegister", "cudaHostUnregister" }
    assert.are.equal(ends.cudaHostRegister, ends.cudaHostUnregister)
  end)

  it("copies them first where the driver does not pin pages of others", function()
    if not emulator then return pending("the emulated device can be told to refuse") end
    gpu_ranks.on(1, [[
      local data, tensor = require "accelerate.data", require "accelerate.tensor"
      local accelerator = require("accelerate").Accelerator()
      local set = data.TensorDataset(tensor.arange(60000):view(12, 5000))
      local loader = accelerator:prepare(data.DataLoader(set, { batch_size = 4, num_workers = 1 }))
      local total = 0
      for x in loader:iter() do total = total + x:sum():item() end
      assert(total == 60000 * 59999 / 2, total)
    ]], { env = { ACCEL_EMULATED_REGISTER = "0" } })
  end)

  it("tells an error of the next step in its turn when one rank reads for all", function()
    local set = { len = function() return 8 end, get = function(_, i)
      if i > 4 then error("sample " .. i .. " is bad", 0) end
      return tensor.full({ 3 }, i)
    end }
    local loader, n = prepared(data.DataLoader(set, { batch_size = 1 }), { dispatch_batches = true }), 0
    local ok, message = pcall(function()
      for _ in loader:iter() do n = n + 1 end
    end)
    assert.is_false(ok)
    assert.is_truthy(message:find("sample 5 is bad", 1, true), message)
    assert.is_true(n >= 3)
  end)
end)

describe("a steady training step", function()
  local WATCHED = { "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cudaEventCreateWithFlags",
    "cudaStreamCreateWithFlags", "cudaStreamSynchronize",
    "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpyAsync of pageable memory",
    "cudaMemcpyAsync to pageable memory" }

  it("asks the driver for nothing, and waits for nothing", function()
    if not emulator then return pending("the emulated device counts the runtime's calls") end
    if emulator.uncached then return pending(emulator.uncached) end
    emulator.under({ 0, 1, 5 }, function()
      local loader, accelerator = prepared(data.DataLoader(dataset(240), { batch_size = 8, shuffle = true }))
      local model = nn.Sequential(nn.Linear(100, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
      local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3, foreach = nil })
      model, optimizer = accelerator:prepare(model, optimizer)
      local step, before = 0, nil
      local loss
      for x, y in loader:iter() do
        step = step + 1
        if step == 15 then before = emulator.calls(WATCHED) end
        loss = nn.functional.cross_entropy(model(x), y:remainder(10))
        accelerator:backward(loss)
        accelerator:clip_grad_norm_(model:parameters(), 1.0)
        optimizer:step()
        optimizer:zero_grad()
        if step == 28 then assert.are.same(before, emulator.calls(WATCHED)) end
      end
      assert.are.equal(30, step)
      assert.is_true(loss:item() < 4)
    end)
  end)
end)
