-- TensorDataset, subsets, samplers and the DataLoader in one process.
local core = require "accelerate.core"
local data = require "accelerate.data"
local messages = require "spec.support.messages"
local samples = require "spec.support.samples"

local message, raises, plain = messages.message, messages.raises, samples.plain

local function all(iterable)
  local list = {}
  for value in iterable:iter() do list[#list + 1] = type(value) == "table" and value or core.is_tensor(value)
    and value:totable() or value end
  return list
end

describe("TensorDataset", function()
  local x, y = core.arange(12, { dtype = "float32" }):view(4, 3), core.tensor({ 3, 2, 1, 0 },
    { dtype = "int64" })

  it("gives the parts of a sample, counted from 1", function()
    local set = data.TensorDataset(x, y)
    assert.equal(4, set:len())
    local a, b = set:get(2)
    assert.same({ 3, 4, 5 }, a:totable())
    assert.equal(2, b:item())
  end)

  it("takes one tensor or many", function()
    assert.equal(1, select("#", data.TensorDataset(x):get(1)))
    assert.equal(5, select("#", data.TensorDataset(x, y, x, y, x):get(1)))
    assert.equal(3, select("#", data.TensorDataset(x, y, x):get_batch { 1, 2 }))
  end)

  it("reads a batch in any order", function()
    local a, b = data.TensorDataset(x, y):get_batch { 4, 1, 4 }
    assert.same({ { 9, 10, 11 }, { 0, 1, 2 }, { 9, 10, 11 } }, a:totable())
    assert.same({ 0, 3, 0 }, b:totable())
  end)

  it("copies: writing into a batch leaves the data alone", function()
    local a = data.TensorDataset(x):get_batch { 1, 2 }
    a:zero_()
    assert.equal(1, x[{ 1, 2 }]:item())
  end)

  it("refuses what does not fit", function()
    raises("TensorDataset: expected at least one tensor, got none", data.TensorDataset)
    raises("argument 2 must be a tensor, got a table", data.TensorDataset, x, {})
    raises("argument 1 has no dims", data.TensorDataset, core.tensor(1))
    raises("argument 1 has 4, argument 2 has 3", data.TensorDataset, x, core.zeros(3))
    local set = data.TensorDataset(x)
    for _, i in ipairs { 0, 5, 1.5, -1, 0 / 0 } do
      raises("expected a position from 1 to 4", set.get, set, i)
    end
    raises("expected a position from 1 to 4, got 5", set.get_batch, set, { 1, 5 })
    raises("expected a position from 1 to 4, got 'a'", set.get_batch, set, { 1, "a" })
  end)
end)

describe("Subset and random_split", function()
  local set = data.TensorDataset(core.arange(10))

  it("maps positions", function()
    local part = data.Subset(set, { 10, 1, 10 })
    assert.equal(3, part:len())
    assert.equal(9, part:get(1):item())
    assert.same({ 9, 0 }, part:get_batch({ 3, 2 }):totable())
    assert.same({ { 9, 0 }, { 9 } }, all(data.DataLoader(part, { batch_size = 2 })))
    assert.same({ { 9, 9 } }, all(data.DataLoader(data.Subset(part, { 3, 1 }), { batch_size = 2 })))
  end)

  it("takes users' datasets, which have no get_batch", function()
    local part = data.Subset(plain(5, function(i) return i * 10 end), { 5, 2 })
    assert.same({ { 50, 20 } }, all(data.DataLoader(part, { batch_size = 2 })))
  end)

  it("refuses positions outside", function()
    raises("Subset: entry 2 of the list: expected a position from 1 to 10, got 11", data.Subset, set,
      { 1, 11 })
    raises("expected a list of positions, got 5", data.Subset, set, 5)
  end)

  it("cuts a dataset into parts that do not overlap, the same for the same generator", function()
    local a, b = data.random_split(set, { 7, 3 }, { generator = core.Generator(5) })
    local c = data.random_split(set, { 7, 3 }, { generator = core.Generator(5) })
    assert.same(a.indices, c.indices)
    local seen = {}
    for _, part in ipairs { a, b } do
      for i = 1, part:len() do seen[#seen + 1] = part:get(i):item() end
    end
    table.sort(seen)
    assert.same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }, seen)
    local parts = { data.random_split(set, { 0.5, 0.25, 0.25 }) }
    assert.same({ 6, 2, 2 }, { parts[1]:len(), parts[2]:len(), parts[3]:len() })
    raises("must add up to the 10 samples", data.random_split, set, { 5, 6 })
    raises("random_split: unknown option 'generater'; did you mean 'generator'?", data.random_split, set,
      { 10 },
      { generater = 1 })
  end)
end)

describe("samplers", function()
  it("count from 1", function()
    assert.same({ 1, 2, 3 }, all(data.SequentialSampler(3)))
    assert.same({}, all(data.SequentialSampler(0)))
    local order = all(data.RandomSampler(100, { seed = 3 }))
    assert.equal(100, #order)
    table.sort(order)
    for i = 1, 100 do assert.equal(i, order[i]) end
  end)

  it("give another order in each pass, the same for the same seed", function()
    local a, b = data.RandomSampler(50, { seed = 3 }), data.RandomSampler(50,
      { generator = core.Generator(3) })
    local first, second = all(a), all(a)
    assert.not_same(first, second)
    assert.same(first, all(b))
    assert.same(second, all(b))
    assert.not_same(first, all(data.RandomSampler(50, { seed = 4 })))
  end)

  it("are a function of seed, epoch and position", function()
    local sampler = data.RandomSampler(50, { seed = 3 })
    local epochs = { all(sampler), all(sampler), all(sampler) }
    sampler:set_epoch(1)
    assert.same(epochs[2], all(sampler))
    assert.same(epochs[3], all(sampler)) -- counts on
    sampler:set_epoch(2)
    local rest = {}
    for position in sampler:iter(47) do rest[#rest + 1] = position end
    assert.same({ unpack(epochs[3], 48) }, rest)
  end)

  it("follow the generator: reseeding it starts again", function()
    local generator = core.Generator(9)
    local sampler = data.RandomSampler(50, { generator = generator })
    local first = all(sampler)
    generator:manual_seed(9)
    assert.same(first, all(sampler))
  end)

  it("follow manual_seed when they have neither seed nor generator, and differ from each other", function()
    core.manual_seed(1)
    local a, b = all(data.RandomSampler(50)), all(data.RandomSampler(50))
    core.manual_seed(1)
    assert.same(a, all(data.RandomSampler(50)))
    assert.not_same(a, b)
  end)

  it("make lists of positions; the last may be short", function()
    local sampler = data.BatchSampler(data.SequentialSampler(5), { batch_size = 2 })
    assert.same({ { 1, 2 }, { 3, 4 }, { 5 } }, all(sampler))
    assert.equal(3, sampler:len())
    sampler = data.BatchSampler(data.SequentialSampler(5), { batch_size = 2, drop_last = true })
    assert.same({ { 1, 2 }, { 3, 4 } }, all(sampler))
    assert.equal(2, sampler:len())
    assert.same({ { 1, 2 }, { 3, 4 } }, all(data.BatchSampler(data.SequentialSampler(4), { batch_size = 2 })))
  end)

  it("go on saying that they are at their end", function()
    for _, sampler in ipairs { data.SequentialSampler(4), data.RandomSampler(4),
      data.BatchSampler(data.SequentialSampler(4), { batch_size = 2 }) } do
      local nexts = sampler:iter()
      for _ = 1, 10 do nexts() end
      assert.is_nil(nexts())
    end
  end)

  it("skip batches, seeking where the sampler can", function()
    local own = { iter = function() return ipairs { 1, 2, 3, 4, 5 } end, len = function() return 5 end }
    for _, sampler in ipairs { own, data.SequentialSampler(5) } do
      local batches = data.BatchSampler(sampler, { batch_size = 2 })
      for skip, expected in pairs { [0] = { { 1, 2 }, { 3, 4 }, { 5 } }, { { 3, 4 }, { 5 } }, { { 5 } }, {},
        {} } do
        local got = {}
        for batch in batches:iter(skip) do got[#got + 1] = batch end
        assert.same(expected, got)
      end
    end
  end)

  it("refuse what they cannot take", function()
    raises("BatchSampler: option 'batch_size' is missing", data.BatchSampler, data.SequentialSampler(3))
    raises("BatchSampler: expected a sampler with iter(), got 5", data.BatchSampler, 5,
      { batch_size = 1 })
    raises("RandomSampler: give a generator or a seed, not both", data.RandomSampler, 3,
      { seed = 1, generator = core.Generator(1) })
    raises("RandomSampler: expected a dataset with len(), or a number of positions, got -1",
      data.RandomSampler, -1)
    raises("expected an integer of 0 or more, got 1.5", data.RandomSampler(3).set_epoch,
      data.RandomSampler(3), 1.5)
  end)
end)

describe("DataLoader", function()
  local set = data.TensorDataset(core.arange(20, { dtype = "float32" }):view(10, 2), core.arange(10))

  it("gives the parts of a batch as values", function()
    local loader = data.DataLoader(set, { batch_size = 4 })
    assert.equal(3, loader:len())
    local shapes, labels = {}, {}
    for x, y in loader:iter() do
      shapes[#shapes + 1] = x.shape
      labels[#labels + 1] = y:totable()
    end
    assert.same({ { 4, 2 }, { 4, 2 }, { 2, 2 } }, shapes)
    assert.same({ { 0, 1, 2, 3 }, { 4, 5, 6, 7 }, { 8, 9 } }, labels)
  end)

  it("reads the same batches with and without the batch reader", function()
    local one_by_one = plain(10, function(i) return set:get(i) end)
    for _, drop_last in ipairs { true, false } do
      local a = data.DataLoader(set, { batch_size = 3, shuffle = true, drop_last = drop_last,
        generator = core.Generator(1) })
      local b = data.DataLoader(one_by_one,
        { batch_size = 3, shuffle = true, drop_last = drop_last, generator = core.Generator(1) })
      assert.equal(drop_last and 3 or 4, a:len())
      local next_a, next_b, count = a:iter(), b:iter(), 0
      for x, y in next_a do
        local u, v = next_b()
        assert.same(x:totable(), u:totable())
        assert.same(y:totable(), v:totable())
        assert.equal(x.dtype .. y.dtype, u.dtype .. v.dtype)
        count = count + 1
      end
      assert.is_nil(next_b())
      assert.equal(a:len(), count)
    end
  end)

  it("does not read around a get that a class made from ours overrides", function()
    local Twice = data.class("Twice", data.TensorDataset)
    function Twice:get(i) return (data.TensorDataset.get(self, i)) * 2 end
    assert.same({ { 0, 2 }, { 4 } }, all(data.DataLoader(Twice(core.arange(3)), { batch_size = 2 })))
    assert.same({ { 4, 0 } },
      all(data.DataLoader(data.Subset(Twice(core.arange(3)), { 3, 1 }), { batch_size = 2 })))
  end)

  it("shuffles: every sample once in a pass, another order in the next", function()
    local loader = data.DataLoader(data.TensorDataset(core.arange(30)), { batch_size = 30, shuffle = true })
    local first, second = all(loader)[1], all(loader)[1]
    assert.not_same(first, second)
    table.sort(first)
    table.sort(second)
    assert.same(first, second)
    assert.equal(29, first[30])
  end)

  it("repeats an epoch on request", function()
    local loader = data.DataLoader(data.TensorDataset(core.arange(30)), { batch_size = 30, shuffle = true })
    loader:set_epoch(4)
    local fourth = all(loader)
    assert.not_same(fourth, all(loader))
    loader:set_epoch(4)
    assert.same(fourth, all(loader))
  end)

  it("has one short batch for a dataset shorter than a batch, none with drop_last, and none for an empty one",
    function()
    assert.same({ { 0, 1 } }, all(data.DataLoader(data.TensorDataset(core.arange(2)), { batch_size = 64 })))
    local loader = data.DataLoader(data.TensorDataset(core.arange(2)), { batch_size = 64, drop_last = true })
    assert.same({}, all(loader))
    assert.equal(0, loader:len())
    for _, shuffle in ipairs { true, false } do
      loader = data.DataLoader(data.TensorDataset(core.zeros(0, 3)), { batch_size = 4, shuffle = shuffle })
      assert.same({}, all(loader))
      assert.equal(0, loader:len())
    end
  end)

  it("may be walked inside its own loop, and again after a break", function()
    local loader, pairs_seen = data.DataLoader(data.TensorDataset(core.arange(3))), {}
    for a in loader:iter() do
      for b in loader:iter() do
        pairs_seen[#pairs_seen + 1] = a:item() * 10 + b:item()
        if b:item() == 1 then break end
      end
    end
    assert.same({ 0, 1, 10, 11, 20, 21 }, pairs_seen)
    local left, right = loader:iter(), loader:iter() -- two passes side by side
    for i = 0, 2 do
      assert.equal(i, left():item())
      assert.equal(i, right():item())
    end
    assert.is_nil(left())
    assert.is_nil(left())
    assert.is_nil(right())
  end)

  it("takes users' samplers and batch samplers", function()
    local sampler = { iter = function() return ipairs { 3, 1, 2 } end, len = function() return 3 end }
    sampler.iter = function()
      local i = 0
      return function()
        i = i + 1
        return ({ 3, 1, 2 })[i]
      end
    end
    local loader = data.DataLoader(set, { batch_size = 2, sampler = sampler })
    local labels = {}
    for _, y in loader:iter() do labels[#labels + 1] = y:totable() end
    assert.same({ { 2, 0 }, { 1 } }, labels)
    assert.equal(2, loader:len())
    -- yields keys instead of lists
    local batches = { iter = function() return next, { { 5, 5, 6 } } end }
    raises("a batch sampler must give lists of at least one position, got 1",
      function() all(data.DataLoader(set, { batch_sampler = batches })) end)
    local given
    batches.iter = function()
      given = { { 5, 5, 6 }, { 1 } }
      return function() return table.remove(given, 1) end
    end
    loader, labels = data.DataLoader(set, { batch_sampler = batches }), {}
    for _, y in loader:iter() do labels[#labels + 1] = y:totable() end
    assert.same({ { 4, 4, 5 }, { 0 } }, labels)
    raises("DataLoader:len: the length is not known, because the batch sampler has no len()", loader.len,
      loader)
    batches.iter = function() return function() return {} end end
    raises("got an empty list", function() all(loader) end)
    batches.iter = function() return function() return { 11 } end end
    raises("expected a position from 1 to 10, got 11", function() all(loader) end)
  end)

  it("gives samples as they are without batches", function()
    local loader = data.DataLoader(plain(3, function(i) return "s" .. i, i end), { batch_size = false })
    local got = {}
    for s, i in loader:iter() do got[#got + 1] = s .. i end
    assert.same({ "s11", "s22", "s33" }, got)
    assert.equal(3, loader:len())
  end)

  it("reads streams", function()
    local Count = data.class("Count", data.IterableDataset)
    function Count:iter()
      local i = 0
      return function()
        i = i + 1
        if i <= 5 then return i, i % 2 == 0 end
      end
    end
    local loader = data.DataLoader(Count(), { batch_size = 2 })
    local got = {}
    for i, even in loader:iter() do got[#got + 1] = { i:totable(), even:totable() } end
    assert.same({ { { 1, 2 }, { false, true } }, { { 3, 4 }, { false, true } }, { { 5 }, { false } } }, got)
    assert.equal(2, #all(data.DataLoader(Count(), { batch_size = 2, drop_last = true })))
    assert.same({ 1, 2, 3, 4, 5 }, all(data.DataLoader(Count(), { batch_size = false })))
    raises("the length is not known, because the stream has no len()", loader.len, loader)
    function Count:len() return 5 end
    assert.equal(3, loader:len())
    raises("option 'shuffle' has no place here: the dataset is a stream", data.DataLoader, Count(),
      { shuffle = true })
  end)

  it("says what a data set gave that cannot be read", function()
    local Stream = data.class("Stream", data.IterableDataset)
    function Stream:iter() return { 1, 2 } end -- luacheck: ignore self
    assert.error_matches(function() data.DataLoader(Stream(), { batch_size = 2 }):iter()() end,
      "the dataset: iter%(%) must return a function .* got a list of 2")
    local Holes = data.class("Holes")
    function Holes:len() return 2 end -- luacheck: ignore self
    function Holes:get(i) return i == 1 and 1 or nil end -- luacheck: ignore self
    assert.error_matches(function() data.DataLoader(Holes(), { batch_size = 2 }):iter()() end,
      "part 1 of sample 2 is nil; expected a tensor")
  end)

  it("names what is wrong with its options", function()
    raises("DataLoader: unknown option 'batchsize'; did you mean 'batch_size'?", data.DataLoader, set,
      { batchsize = 3 })
    raises("option 'batch_size' must be at least 1, got 0", data.DataLoader, set, { batch_size = 0 })
    raises("option 'num_workers' must be at least 0 and at most 128, got 129", data.DataLoader, set,
      { num_workers = 129 })
    raises("'prefetch_factor' is about worker processes; num_workers is 0", data.DataLoader, set,
      { prefetch_factor = 3 })
    raises("'background' is for reading without worker processes", data.DataLoader, set,
      { background = true, num_workers = 1 })
    raises("option 'shuffle' has no place here: the sampler decides", data.DataLoader, set,
      { shuffle = true, sampler = data.SequentialSampler(3) })
    raises("option 'batch_size' has no place here: the batch_sampler decides", data.DataLoader, set,
      { batch_size = 2, batch_sampler = data.BatchSampler(data.SequentialSampler(3), { batch_size = 2 }) })
    raises("option 'sampler' must be an object with iter()", data.DataLoader, set, { sampler = {} })
    raises("expected a dataset with get(i) and len(), or with iter(), got a table", data.DataLoader, {})
    raises("expected a dataset with get(i) and len(), or with iter(), got nil", data.DataLoader)
    raises("data_spec.lua:", function() data.DataLoader(set, { num_workers = -1 }) end) -- the caller's line
  end)

  it("says which sample failed", function()
    local loader = data.DataLoader(plain(9, function(i)
      if i == 7 then error("no such file") end
      return i
    end), { batch_size = 4 })
    local err = message(all, loader)
    assert.truthy(err:find("DataLoader: sample 7: ", 1, true), err)
    assert.truthy(err:find("no such file", 1, true), err)
    local own = {}
    loader = data.DataLoader(plain(9, function() error(own) end))
    assert.equal(own, message(all, loader)) -- errors that are not text come as they are
    raises("part 2 of sample 1 is nil", all, data.DataLoader(plain(2, function(i) return i, nil, i end)))
    raises("the dataset gave nothing for sample 1", all, data.DataLoader(plain(2, function() end)))
    raises("sample 1 has 1 parts, sample 2 has 2", all,
      data.DataLoader(plain(2, function(i) return unpack({ 1, 2 }, 1, i) end), { batch_size = 2 }))
  end)

  it("holds memory flat over passes left by break", function()
    local loader = data.DataLoader(set, { batch_size = 2, shuffle = true })
    local function use()
      for _ = 1, 200 do
        for x in loader:iter() do
          if x then break end
        end
      end
      collectgarbage()
      collectgarbage()
      return core.memory_stats().live_bytes
    end
    local before = use()
    assert.equal(before, use())
  end)
end)
