local core = require "accelerate.core"
local data = require "accelerate.data"
local raises = require("spec.support.messages").raises

local function all(sampler, skip)
  local list = {}
  for position in sampler:iter(skip) do list[#list + 1] = position end
  return list
end

local function counts(list)
  local n = {}
  for _, position in ipairs(list) do n[position] = (n[position] or 0) + 1 end
  return n
end

-- Every pass is a function of (seed, epoch, position), and passes differ.
local function check_pure(make)
  local sampler = make()
  local epochs = { all(sampler), all(sampler), all(sampler) }
  assert.equal(sampler:len(), #epochs[1])
  assert.not_same(epochs[1], epochs[2])
  local other = make()
  other:set_epoch(1)
  assert.same(epochs[2], all(other))
  assert.same(epochs[3], all(other))
  other:set_epoch(2)
  local rest = all(other, #epochs[3] - 3)
  assert.same({ unpack(epochs[3], #epochs[3] - 2) }, rest)
end

describe("RandomSampler", function()
  it("draws with replacement, and as many as asked for", function()
    check_pure(function() return data.RandomSampler(10, { seed = 5, replacement = true }) end)
    check_pure(function()
      return data.RandomSampler(10, { seed = 5, replacement = true, num_samples = 33 })
    end)
    check_pure(function() return data.RandomSampler(10, { seed = 5, num_samples = 25 }) end)
    check_pure(function() return data.RandomSampler(10, { seed = 5, num_samples = 6 }) end)
    local drawn = counts(all(data.RandomSampler(4, { seed = 1, replacement = true, num_samples = 4000 })))
    for i = 1, 4 do assert.is_true(drawn[i] > 850 and drawn[i] < 1150, drawn[i]) end
  end)

  it("without replacement has every position as often as fits", function()
    local list = all(data.RandomSampler(10, { seed = 5, num_samples = 25 }))
    assert.equal(25, #list)
    for k = 0, 1 do
      local part = counts { unpack(list, 10 * k + 1, 10 * k + 10) }
      for i = 1, 10 do assert.equal(1, part[i]) end
    end
    for _, n in pairs(counts { unpack(list, 21) }) do assert.equal(1, n) end
    assert.same(all(data.RandomSampler(10, { seed = 5 })), { unpack(list, 1, 10) })
    assert.same({}, all(data.RandomSampler(0, { num_samples = 3, replacement = true })))
  end)
end)

describe("WeightedRandomSampler", function()
  it("draws in proportion to the weights", function()
    check_pure(function() return data.WeightedRandomSampler({ 1, 2, 3, 4 }, 20, { seed = 9 }) end)
    local drawn = counts(all(data.WeightedRandomSampler(core.tensor { 1, 0, 3, 6 }, 10000, { seed = 2 })))
    assert.is_nil(drawn[2])
    for i, share in pairs { [1] = 0.1, [3] = 0.3, [4] = 0.6 } do
      assert.near(share, drawn[i] / 10000, 0.02)
    end
  end)

  it("draws without replacement", function()
    check_pure(function()
      return data.WeightedRandomSampler({ 5, 1, 1, 1, 1, 1, 1, 1 }, 6, { seed = 9, replacement = false })
    end)
    local sampler = data.WeightedRandomSampler({ 10, 1, 0, 1 }, 3, { seed = 9, replacement = false })
    local first = 0
    for _ = 1, 300 do
      local list = all(sampler)
      local n = counts(list)
      assert.same({ 1, 1, 1 }, { n[1], n[2], n[4] })
      if list[1] == 1 then first = first + 1 end
    end
    assert.near(10 / 12, first / 300, 0.07)
  end)

  it("refuses weights that are none", function()
    raises("weight 2 must be a number of 0 or more, got -1", data.WeightedRandomSampler, { 1, -1 }, 3)
    raises("must be a number of 0 or more, got nan", data.WeightedRandomSampler, { 0 / 0 }, 3)
    raises("must have a sum above 0, got 0", data.WeightedRandomSampler, { 0, 0 }, 3)
    raises("num_samples must be at least 1, got 0", data.WeightedRandomSampler, { 1 }, 0)
    raises("only 1 weights are above 0", data.WeightedRandomSampler, { 1, 0 }, 2, { replacement = false })
    raises("expected a list of weights or a tensor, got 5", data.WeightedRandomSampler, 5, 2)
  end)
end)

describe("SubsetRandomSampler", function()
  it("orders given positions", function()
    check_pure(function() return data.SubsetRandomSampler({ 3, 30, 300, 4, 40, 400 }, { seed = 1 }) end)
    local list = all(data.SubsetRandomSampler({ 7, 9, 9 }, { seed = 1 }))
    assert.same({ [7] = 1, [9] = 2 }, counts(list))
    assert.same({}, all(data.SubsetRandomSampler {}))
  end)

  it("works in a loader", function()
    local set = data.TensorDataset(core.arange(100))
    local loader = data.DataLoader(set,
      { batch_size = 2, sampler = data.SubsetRandomSampler({ 11, 21, 31 }, { seed = 3 }) })
    local seen = {}
    for x in loader:iter() do
      for _, v in ipairs(x:totable()) do seen[#seen + 1] = v end
    end
    table.sort(seen)
    assert.same({ 10, 20, 30 }, seen)
    assert.equal(2, loader:len())
  end)
end)

describe("DistributedSampler", function()
  it("is refused by prepare on several ranks, which would share its share out", function()
    require("spec.support.ranks").ok(2, [[
      local data = require "accelerate.data"
      local accelerator = accelerate.Accelerator()
      local function refused(sampler, opts)
        local set = data.TensorDataset(core.arange(10))
        opts = opts or { batch_size = 2, sampler = sampler }
        local ok, why = pcall(accelerator.prepare, accelerator, data.DataLoader(set, opts))
        return not ok and why
      end
      local sampler = data.DistributedSampler(10, { shuffle = false })
      local why = refused(sampler)
      check(why and why:find("every rank would see 1 of 4 samples", 1, true), tostring(why))
      check(why:find("shuffle = false", 1, true), why)
      check(refused(nil, { batch_sampler = data.BatchSampler(sampler, 2, false) }))
      check(not refused(data.DistributedSampler(10, { num_replicas = 1, rank = 0 })), "the whole order")
    ]])
  end)

  it("shares positions out, equally many for each rank", function()
    for _, case in ipairs { { 10, false, 4 }, { 10, true, 3 }, { 12, false, 4 }, { 2, false, 1 } } do
      local n, drop_last, share = unpack(case)
      local seen = {}
      for rank = 0, 2 do
        local sampler = data.DistributedSampler(n, { num_replicas = 3, rank = rank, drop_last = drop_last,
          seed = 5 })
        assert.equal(share, sampler:len())
        local list = all(sampler)
        assert.equal(share, #list)
        assert.same({ unpack(list, 2) }, all(sampler, 1))
        for _, position in ipairs(list) do seen[#seen + 1] = position end
      end
      local distinct = 0
      for _ in pairs(counts(seen)) do distinct = distinct + 1 end
      assert.equal(math.min(n, 3 * share), distinct)
    end
    assert.same({ 2, 5, 8, 1 },
      all(data.DistributedSampler(10, { num_replicas = 3, rank = 1, shuffle = false })))
  end)

  it("keeps its order until it is told the next epoch", function()
    local sampler = data.DistributedSampler(20, { num_replicas = 2, rank = 0 })
    local first = all(sampler)
    assert.same(first, all(sampler))
    sampler:set_epoch(1)
    assert.not_same(first, all(sampler))
    raises("rank must be 0 to 1, got 2", data.DistributedSampler, 20, { num_replicas = 2, rank = 2 })
  end)
end)
