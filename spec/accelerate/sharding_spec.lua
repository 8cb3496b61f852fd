-- Which rank gets which samples, against tables made with Accelerate.
local reference = require "spec.reference.sharding_reference"
local sharding = require "accelerate.data_loader.shard_samplers"

local function sampler(n, size, drop_last)
  return {
    batch_size = size, drop_last = drop_last,
    len = function() return drop_last and math.floor(n / size) or math.ceil(n / size) end,
    iter = function()
      local at = 0
      return function()
        if at >= n or (drop_last and at + size > n) then return nil end
        local batch = {}
        for i = at, math.min(at + size, n) - 1 do batch[#batch + 1] = i end
        at = at + size
        return batch
      end
    end,
  }
end

local function all(object)
  local list = {}
  for item in object:iter() do list[#list + 1] = item end
  return list
end

local function lists(batches)
  local inner = { len = function() return #batches end }
  function inner.iter()
    local i = 0
    return function()
      i = i + 1
      return batches[i]
    end
  end
  return inner
end

local function shard(inner, ranks, rank, opts)
  opts = opts or {}
  opts.num_processes, opts.process_index = ranks, rank
  return sharding.BatchSamplerShard(inner, opts)
end

describe("BatchSamplerShard", function()
  it("gives every rank the batches and lengths that Accelerate gives", function()
    local cases = reference.cases("batches")
    assert.is_true(#cases > 300)
    for _, case in ipairs(cases) do
      local n, size, ranks, split, even, drop = unpack(case.arguments)
      local lengths, expected = case.fields[1], reference.ranks(case.fields[2])
      local found = {}
      for rank = 0, ranks - 1 do
        local s = shard(sampler(n, size, drop == 1), ranks, rank,
          { split_batches = split == 1, even_batches = even == 1 })
        assert.are.equal(expected[rank + 1], reference.text(all(s)), case.name .. " rank " .. rank)
        found[#found + 1] = s:len()
      end
      assert.are.equal(lengths, table.concat(found, " "), case.name)
    end
  end)

  it("hands lists of any length round whole, and repeats the first ones", function()
    local batches = { { 1 }, { 2, 3 }, { 4, 5, 6 }, { 7 }, { 8, 9 } }
    assert.are.equal("1 4,5,6 8,9", reference.text(all(shard(lists(batches), 2, 0))))
    assert.are.equal("2,3 7 1", reference.text(all(shard(lists(batches), 2, 1))))
    assert.are.equal("1 7", reference.text(all(shard(lists(batches), 3, 0))))
    assert.are.equal("4,5,6 1", reference.text(all(shard(lists(batches), 3, 2))))
  end)

  it("loses nothing of a sampler whose short batch is not its last", function()
    local inner = lists { { 1, 2 }, { 3 }, { 4, 5 }, { 6, 7 } }
    inner.batch_size = 2
    assert.are.equal("1,2 4,5", reference.text(all(shard(inner, 2, 0))))
    assert.are.equal("3 6,7", reference.text(all(shard(inner, 2, 1))))
  end)

  it("refuses to split a batch that the processes do not divide", function()
    assert.error_matches(function() shard(sampler(8, 3), 2, 0, { split_batches = true }) end,
      "multiple of the 2 processes, got 3")
    assert.error_matches(function() shard(lists {}, 2, 0, { split_batches = true }) end, "got nil")
  end)

  it("refuses what is no batch sampler, and ranks that there are not", function()
    assert.error_matches(function() sharding.BatchSamplerShard() end,
      "BatchSamplerShard: expected a batch sampler with iter%(%), got nil")
    assert.error_matches(function() shard(sampler(8, 2), 2, 2) end,
      "option 'process_index' must be 0 to 1, got 2")
    assert.error_matches(function() sharding.IterableDatasetShard {} end,
      "IterableDatasetShard: expected a data set with iter%(%)")
    assert.error_matches(function() sharding.SkipBatchSampler(lists {}, "x") end,
      "skip_batches must be an integer, got 'x'")
  end)
end)

describe("IterableDatasetShard", function()
  it("gives every rank the items that Accelerate gives", function()
    for _, case in ipairs(reference.cases("stream")) do
      local n, size, ranks, split, drop = unpack(case.arguments)
      local expected = reference.ranks(case.fields[1])
      for rank = 0, ranks - 1 do
        local stream = {}
        function stream.iter()
          local i = -1
          return function()
            i = i + 1
            return i < n and i or nil
          end
        end
        local s = sharding.IterableDatasetShard(stream,
          { batch_size = size, drop_last = drop == 1, num_processes = ranks, process_index = rank,
          split_batches = split == 1 })
        assert.are.equal(expected[rank + 1], table.concat(all(s), ","), case.name .. " rank " .. rank)
      end
    end
  end)
end)

describe("SkipBatchSampler", function()
  it("leaves out the first batches, also more than there are", function()
    assert.are.equal("4,5 6", reference.text(all(sharding.SkipBatchSampler(sampler(7, 2), 2))))
    assert.are.equal(2, sharding.SkipBatchSampler(sampler(7, 2), 2):len())
    assert.are.equal(0, #all(sharding.SkipBatchSampler(sampler(7, 2), 9)))
    assert.are.equal(0, sharding.SkipBatchSampler(sampler(7, 2), 9):len())
  end)
end)
