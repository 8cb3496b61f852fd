-- How samples become a batch.
local core = require "accelerate.core"
local data = require "accelerate.data"
local messages = require "spec.support.messages"
local plain = require("spec.support.samples").plain

local message, raises = messages.message, messages.raises

describe("collate", function()
  local function batch_of(...)
    local samples = { ... }
    return data.DataLoader(plain(#samples, function(i) return samples[i] end),
      { batch_size = #samples }):iter()()
  end

  it("makes int64 of integral numbers and float32 of others", function()
    local b = batch_of(1, -2, 2 ^ 52)
    assert.equal("int64", b.dtype)
    assert.same({ 1, -2, 2 ^ 52 }, b:totable())
    assert.equal("float32", batch_of(1, 2.5).dtype)
    assert.equal("float32", batch_of(1, math.huge).dtype)
    assert.equal("float32", batch_of(1, 0 / 0).dtype)
    assert.equal("float32", batch_of(1, 2 ^ 60).dtype)
    assert.same({ 5, 6 }, batch_of(5LL, 6LL):totable())
  end)

  it("makes bool of booleans, stacks tensors and leaves strings in a list", function()
    local b = batch_of(true, false)
    assert.equal("bool", b.dtype)
    assert.same({ true, false }, b:totable())
    assert.same({ { 0, 1 }, { 0, 1 }, { 0, 1 } },
      batch_of(core.arange(2), core.arange(2), core.arange(2)):totable())
    assert.same({ "a", "b" }, batch_of("a", "b"))
  end)

  it("makes one table of tables, key by key", function()
    local b = batch_of({ x = core.ones(2), meta = { id = 1, tags = { "a", true } } },
      { x = core.zeros(2), meta = { id = 2, tags = { "b", false } } })
    assert.same({ { 1, 1 }, { 0, 0 } }, b.x:totable())
    assert.same({ 1, 2 }, b.meta.id:totable())
    assert.same({ "a", "b" }, b.meta.tags[1])
    assert.same({ true, false }, b.meta.tags[2]:totable())
  end)

  it("says which samples do not fit together", function()
    raises("sample 1 is [2], sample 3 is [3]", batch_of, core.ones(2), core.ones(2), core.ones(3))
    raises("'x' of sample 1 is [2], 'x' of sample 2 is [2, 1]", batch_of, { x = core.ones(2) },
      { x = core.ones(2, 1) })
    raises("sample 1 is a number, sample 2 a string", batch_of, 1, "1")
    raises("'a[2]' of sample 1 is a number, 'a[2]' of sample 2 a boolean", batch_of, { a = { 1, 1 } },
      { a = { 1, true } })
    raises("sample 2 has no 'y', but sample 1 has", batch_of, { x = 1, y = 1 }, { x = 1 })
    raises("sample 2 has 2 keys, sample 1 has 1", batch_of, { x = 1 }, { x = 1, y = 1 })
    raises("sample 1 is a function, which cannot be put into a batch", batch_of, print)
    raises("sample 1 is a Count, which cannot be put into a batch", batch_of, data.class("Count")())
  end)

  it("refuses a field that changes kind between batches, and says how to mend it", function()
    local loader = data.DataLoader(plain(4, function(i) return core.ones(1), { target = i / 2 } end),
      { batch_size = 1, sampler = {
      iter = function()
        local i = 0
        return function()
          i = i + 1
          return ({ 2, 4, 1 })[i]
        end
      end } })
    local nexts = loader:iter()
    nexts()
    nexts()
    local err = message(nexts)
    assert.truthy(err:find("'part 2.target' was int64 in the batches before and is " ..
      "float32 in the one of sample 1", 1, true),
      err)
    assert.truthy(err:find("dtype = 'float32'", 1, true), err)
  end)

  it("hands samples to a collate_fn as they are", function()
    local seen
    local loader = data.DataLoader(plain(3, function(i) return i, "s" .. i end),
      { batch_size = 3, collate_fn = function(samples)
      seen = samples
      return core.ones(2), "x", 5
    end })
    local a, b, c = loader:iter()()
    assert.same({ { 1, "s1" }, { 2, "s2" }, { 3, "s3" } }, seen)
    assert.same({ 1, 1 }, a:totable())
    assert.equal("x", b)
    assert.equal(5, c)
    loader = data.DataLoader(data.TensorDataset(core.arange(3)),
      { batch_size = 3, collate_fn = function(samples) return #samples end })
    assert.equal(3, loader:iter()())
    local x, y = unpack(data.default_collate { { 1, true }, { 2, false } })
    assert.same({ 1, 2 }, x:totable())
    assert.same({ true, false }, y:totable())
    raises("default_collate: expected a list of at least one sample", data.default_collate, {})
  end)
end)
