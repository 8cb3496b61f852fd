--- Arguments of loaders, samplers and data sets: by position in PyTorch's order, or by name.
local data = require "accelerate.data"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local five = data.TensorDataset(tensor.arange(5))

local function batches(loader)
  local list = {}
  for x in loader:iter() do list[#list + 1] = x:tolist() end
  return list
end

local function all(sampler)
  local list = {}
  for item in sampler:iter() do list[#list + 1] = item end
  return list
end

describe("arguments of DataLoader", function()
  it("go by position in PyTorch's order, or by name", function()
    assert.same({ { 0, 1 }, { 2, 3 }, { 4 } }, batches(data.DataLoader(five, 2)))
    assert.same({ { 0, 1 }, { 2, 3 }, { 4 } }, batches(data.DataLoader { dataset = five, batch_size = 2 }))
    assert.same({ { 0 }, { 1 }, { 2 }, { 3 }, { 4 } }, batches(data.DataLoader { dataset = five }))
    local a = batches(data.DataLoader(five, 2, true, { generator = tensor.Generator(5) }))
    local b = batches(data.DataLoader(five,
      { batch_size = 2, shuffle = true, generator = tensor.Generator(5) }))
    assert.same(b, a)
    assert.same({ { 0, 1 }, { 2, 3 } },
      batches(data.DataLoader(five, 2, false, nil, nil, 0, nil, false, true)))
    local function sum(samples)
      local total = samples[1]
      for i = 2, #samples do total = total + samples[i] end
      return total
    end
    assert.same({ 1, 5, 4 }, batches(data.DataLoader(five, 2, nil, nil, nil, 0, sum)))
    local loader = data.DataLoader(five, 2, true, nil, nil, 1, nil, true, true, 7, print, "fork",
      tensor.Generator(5))
    assert.same({ 2, 1, true, true, 7, print }, { loader.batch_size, loader.num_workers, loader.pin_memory,
      loader.drop_last, loader.timeout, loader.worker_init_fn })
    assert.equal(5, loader.generator:initial_seed())
    assert.is_false(data.DataLoader(five, false).batch_size)
  end)

  it("may be plain tables with methods", function()
    local odd = { iter = function()
      local i = -1
      return function()
        i = i + 2
        return i <= 5 and i or nil
      end
    end }
    assert.same({ { 0, 2 }, { 4 } }, batches(data.DataLoader(five, 2, nil, odd)))
    local set = { dataset = five, get = function(_, i) return i end, len = function() return 3 end }
    assert.same({ { 1, 2, 3 } }, batches(data.DataLoader(set, 3)))
    assert.same({ { 1 }, { 2 }, { 3 } }, batches(data.DataLoader(set)))
  end)

  it("may be lists and tensors in place of samplers", function()
    assert.same({ { 2, 0 }, { 4 } }, batches(data.DataLoader(five, 2, nil, { 3, 1, 5 })))
    assert.same({ { 2, 0 }, { 4 } },
      batches(data.DataLoader(five, { batch_size = 2, sampler = { 3, 1, 5 } })))
    -- integers in tensors count from 0
    assert.same({ { 2, 0 }, { 4 } }, batches(data.DataLoader(five, 2, nil, tensor { 2, 0, 4 }:long())))
    assert.same({ { 2, 0 }, { 4 } },
      batches(data.DataLoader(five, { batch_sampler = { { 3, 1 }, { 5 } } })))
    assert.same({ { 2, 0 }, { 4 } },
      batches(data.DataLoader(five, nil, nil, nil, { { 3, 1 }, { 5 } })))
    assert.same({ { 2, 0 }, { 4, 1 } },
      batches(data.DataLoader(five, { batch_sampler = tensor { { 2, 0 }, { 4, 1 } }:long() })))
    assert.equal(2, data.DataLoader(five, 2, nil, { 3, 1, 5 }):len())
    assert.equal(2, data.DataLoader(five, nil, nil, nil, { { 3, 1 }, { 5 } }):len())
    raises("DataLoader: option 'sampler' must be an object with iter(), or a list, got a table",
      data.DataLoader, five, { sampler = {} })
    raises("DataLoader: option 'sampler' must be an object with iter(), or a list, got a table",
      data.DataLoader, five, { sampler = { a = 1 } })
    raises("a tensor of positions must have integers and one dim, or two for batches, got a float32 tensor",
      data.DataLoader, five, { sampler = tensor { 1.5 } })
  end)

  it("are checked", function()
    raises("DataLoader: an argument too many: 'junk'", data.DataLoader, five, 2, true, nil, nil, 0, nil,
      false,
      false, 0, nil, nil, nil, "junk")
    raises("DataLoader: option 'shuffle' must be true or false, got 'yes'", data.DataLoader, five, 2, "yes")
    raises("DataLoader: batch_size is given twice, by position and by name", data.DataLoader, five, 2,
      { batch_size = 3 })
    raises("DataLoader: option 'batch_size' must be an integer, got a table", data.DataLoader, five, {}, 3)
    raises("DataLoader: option 'multiprocessing_context' must be one of fork, got 'spawn'", data.DataLoader,
      five, { multiprocessing_context = "spawn" })
    raises("DataLoader: expected a dataset with get(i) and len(), or with iter(), got nil", data.DataLoader)
  end)
end)

describe("arguments of samplers", function()
  it("go by position in PyTorch's order, or by name", function()
    local one_two = data.SequentialSampler(5)
    for _, sampler in ipairs {
      data.BatchSampler(one_two, 2, false), data.BatchSampler(one_two, 2),
      data.BatchSampler { sampler = one_two, batch_size = 2 }, data.BatchSampler({ 1, 2, 3, 4, 5 }, 2, false),
      data.BatchSampler(tensor.arange(5), 2),
    } do
      assert.same({ { 1, 2 }, { 3, 4 }, { 5 } }, all(sampler))
    end
    assert.same({ { 1, 2 }, { 3, 4 } }, all(data.BatchSampler(one_two, 2, true)))

    local function seeded() return tensor.Generator(9) end
    for _, pair in ipairs {
      { data.RandomSampler(five, true, 8, seeded()),
        data.RandomSampler { data_source = five, replacement = true, num_samples = 8,
        generator = seeded() } },
      { data.RandomSampler(five, nil, nil, seeded()), data.RandomSampler(five, { generator = seeded() }) },
      { data.WeightedRandomSampler({ 1, 2, 0 }, 6, true, seeded()),
        data.WeightedRandomSampler { weights = { 1, 2, 0 }, num_samples = 6, generator = seeded() } },
      { data.WeightedRandomSampler({ 1, 2, 1 }, 3, false, seeded()),
        data.WeightedRandomSampler({ 1, 2, 1 },
        { num_samples = 3, replacement = false, generator = seeded() }) },
      { data.SubsetRandomSampler({ 2, 5, 3 }, seeded()),
        data.SubsetRandomSampler(tensor { 1, 4, 2 }:long(), { generator = seeded() }) },
      { data.DistributedSampler(five, 2, 1, true, 3, true),
        data.DistributedSampler { dataset = five, num_replicas = 2, rank = 1, seed = 3, drop_last = true } },
    } do
      assert.same(all(pair[2]), all(pair[1]))
    end
    assert.equal(8, #all(data.RandomSampler(five, true, 8)))
    assert.same({ 1, 2, 3 }, all(data.SequentialSampler { data_source = 3 }))
  end)

  it("are checked", function()
    raises("RandomSampler: option 'replacement' must be true or false, got 8", data.RandomSampler, five, 8)
    raises("RandomSampler: an argument too many: 1", data.RandomSampler, five, true, 8, nil, 1)
    raises("BatchSampler: an argument too many: 'junk'", data.BatchSampler, five, 2, true, "junk")
    raises("WeightedRandomSampler: num_samples is missing", data.WeightedRandomSampler, { 1, 2 })
    raises("SubsetRandomSampler: a tensor of positions must have integers and one dim, got a float32 tensor",
      data.SubsetRandomSampler, tensor { 1.5 })
  end)
end)

describe("arguments of data sets", function()
  it("are positions in a list, or in a tensor that counts from 0", function()
    local set = data.Subset(five, tensor { 4, 0 }:long())
    assert.same({ 4, 0 }, { set:get(1):item(), set:get(2):item() })
    raises("Subset: entry 1 of the list: expected a position from 1 to 5, got 6", data.Subset, five,
      tensor { 5 }:long())
  end)

  it("of random_split", function()
    local a = data.random_split(five, { 3, 2 }, tensor.Generator(4))
    local b = data.random_split(five, { 3, 2 }, { generator = tensor.Generator(4) })
    assert.same(b.indices, a.indices)
    raises("random_split: an argument too many: 'junk'", data.random_split, five, { 3, 2 },
      tensor.Generator(4), "junk")
    raises("random_split: option 'generator' must be a Generator, got 3", data.random_split, five,
      { 3, 2 }, 3)
  end)
end)

describe("StackDataset", function()
  local texts = { "a", "b", "c", "d", "e" }

  it("gives a sample of each, as parts", function()
    local set = data.StackDataset(five, texts)
    assert.equal(5, #set)
    local x, text = set:get(2)
    assert.same({ 1, "b" }, { x:item(), text })
    local seen = {}
    for xs, names in data.DataLoader(set, 3):iter() do seen[#seen + 1] = { xs:tolist(), names } end
    assert.same({ { { 0, 1, 2 }, { "a", "b", "c" } }, { { 3, 4 }, { "d", "e" } } }, seen)
    local pairs_of = data.StackDataset(data.TensorDataset(tensor.arange(2), tensor.ones(2)), { 7, 8 })
    local both, number = pairs_of:get(2)
    assert.same({ 1, 1, 8 }, { both[1]:item(), both[2]:item(), number })
  end)

  it("gives them under their names", function()
    local set = data.StackDataset { x = five, text = texts }
    local sample = set:get(5)
    assert.same({ 4, "e" }, { sample.x:item(), sample.text })
    for batch in data.DataLoader(set, 5):iter() do
      assert.same({ { 0, 1, 2, 3, 4 }, texts }, { batch.x:tolist(), batch.text })
    end
  end)

  it("checks them", function()
    raises("StackDataset: expected at least one dataset, got none", data.StackDataset)
    raises("StackDataset: the datasets must have one length; 1 has 5, 2 has 1", data.StackDataset, five,
      { 1 })
    raises("StackDataset: the datasets must have one length; text has 1, x has 5", data.StackDataset,
      { x = five, text = { "a" } })
    raises("StackDataset: argument 2 must be a dataset with get(i) and len(), got 5", data.StackDataset,
      five, 5)
    raises("StackDataset:get: expected a position from 1 to 5, got 6", data.StackDataset(five).get,
      data.StackDataset(five), 6)
  end)
end)
