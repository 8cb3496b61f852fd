-- The thread that gathers batches in the background.
local core = require "accelerate.core"
local data = require "accelerate.data"
local ffi = require "ffi"
local fuzz = require "spec.support.fuzz_files"
local raises = require("spec.support.messages").raises
local samples = require "spec.support.samples"

local plain = samples.plain

ffi.cdef "int getpid(void);"

describe("the background thread", function()
  local x, y = core.arange(4000, { dtype = "float32" }):view(100, 40), core.arange(100)
  local set = data.TensorDataset(x, y)

  local function read(dataset, background, opts)
    opts = opts or {}
    opts.batch_size, opts.background = opts.batch_size or 7, background
    local sums = {}
    for a, b in data.DataLoader(dataset, opts):iter() do sums[#sums + 1] = { a:sum():item(), b:totable() } end
    return sums
  end

  it("gives the same batches", function()
    assert.same(read(set, false), read(set, true))
    assert.same(read(set, false, { shuffle = true, generator = core.Generator(2) }),
      read(set, true, { shuffle = true, generator = core.Generator(2) }))
    local part = data.Subset(data.Subset(set, { 100, 3, 50, 7, 7 }), { 5, 1, 2 })
    assert.same(read(part, false, { batch_size = 2 }), read(part, true, { batch_size = 2 }))
    local wide = data.TensorDataset(core.rand(300, 3000), core.arange(300)) -- more than one unit of work
    assert.same(read(wide, false, { batch_size = 250 }), read(wide, true, { batch_size = 250 }))
    for _, dtype in ipairs { "float64", "bfloat16", "int32", "uint8", "bool" } do
      local other = data.TensorDataset(x:to(dtype), y)
      assert.same(read(other, false), read(other, true))
    end
    assert.same({}, read(data.TensorDataset(core.empty(0, 3), core.empty(0)), true))
    assert.same(read(data.TensorDataset(core.empty(5, 0), core.arange(5)), false),
      read(data.TensorDataset(core.empty(5, 0), core.arange(5)), true))
  end)

  it("sees a dataset that is edited during the pass as if it were read batch by batch", function()
    local function edited(background)
      local t = core.zeros(12, 3)
      local got = {}
      for b in data.DataLoader(data.TensorDataset(t), { batch_size = 4, background = background }):iter() do
        got[#got + 1] = b:sum():item()
        t:add_(1)
      end
      return got
    end
    assert.same({ 0, 12, 24 }, edited(true))
    assert.same(edited(false), edited(true))
  end)

  it("raises when a source is given data that it cannot copy rows from", function()
    local t, rows = core.zeros(100000, 64), 0
    local ok, err = pcall(function()
      for b in data.DataLoader(data.TensorDataset(t), { batch_size = 1000, background = true }):iter() do
        rows = rows + b:size(1)
        t.data = core.ones(1, 64):expand(100000, 64)
      end
    end)
    assert.is_false(ok)
    assert.is_truthy(err:find("tensor 1 must be contiguous", 1, true), err)
    assert.equal(1000, rows)
  end)

  it("raises at the batch that is wrong, not before", function()
    local lists = { { 1, 2 }, { 3, 101 }, { 4 } }
    for _, background in ipairs { false, true } do
      local got = 0
      local ok, err = pcall(function()
        for _ in data.DataLoader(set, { batch_sampler = { iter = function() return ipairs(lists) end },
          background = background }):iter() do
          got = got + 1
        end
      end)
      assert.is_false(ok)
      assert.is_true(got <= 1, err)
    end
    local function samplers()
      local k = 0
      return { iter = function()
        return function()
          k = k + 1
          return lists[k]
        end
      end }
    end
    for _, background in ipairs { false, true } do
      local got = 0
      raises("expected a position from 1 to 100, got 101", function()
        for _ in data.DataLoader(set, { batch_sampler = samplers(), background = background }):iter() do
          got = got + 1
        end
      end)
      assert.equal(1, got)
    end
  end)

  it("is refused where it cannot be had, and not tried there by itself", function()
    local needs = "needs a TensorDataset, or parts of one, read in batches and without a collate_fn"
    raises(needs, data.DataLoader, plain(3, function(i) return i end), { background = true })
    raises(needs, data.DataLoader, set, { background = true, collate_fn = print })
    raises(needs, data.DataLoader, set, { background = true, batch_size = false })
    local strided = data.TensorDataset(core.rand(4, 6):transpose(1, 2))
    raises("'background' cannot be had for this dataset: tensor 1 must be contiguous", function()
      data.DataLoader(strided, { background = true }):iter()
    end)
    assert.same(read(data.TensorDataset(x:transpose(1, 2), core.arange(40)), false),
      read(data.TensorDataset(x:transpose(1, 2), core.arange(40)), nil))
  end)

  it("gives the same batches when it decides by itself whether to work", function()
    local threads = core.get_num_threads()
    core.set_num_threads(1)
    local wide = data.TensorDataset(core.rand(700, 9000), core.arange(700))
    assert.same(read(wide, false), read(wide, nil)) -- 100 batches: beyond the timing of both ways
    core.set_num_threads(threads)
  end)

  it("is there only while it is needed, and never in a process that was forked", function()
    local function threads()
      local n = 0
      for _ in io.popen("ls /proc/" .. ffi.C.getpid() .. "/task"):lines() do n = n + 1 end
      return n
    end
    jit.flush() -- traces keep what they met
    collectgarbage()
    collectgarbage()
    local before = threads()
    local next_batch = data.DataLoader(set, { batch_size = 7, background = true }):iter()
    next_batch()
    assert.equal(before + 1, threads())
    next_batch = nil -- luacheck: ignore
    jit.flush()
    collectgarbage()
    collectgarbage()
    assert.equal(before, threads())
  end)

  it("leaks nothing when a pass is left, or memory runs out", function()
    jit.off()
    local function pass() data.DataLoader(set, { batch_size = 7, background = true }):iter()() end
    pass()
    local bytes, structs = fuzz.held()
    for n = 1, 12 do
      core.debug_fail_alloc(n)
      pcall(pass)
      core.debug_fail_alloc(0)
    end
    pass()
    local bytes_after, structs_after = fuzz.held()
    jit.on()
    assert.equal(bytes, bytes_after)
    assert.equal(structs, structs_after)
  end)
end)
