-- luacheck: ignore 512 (loops that are left by break are what some tests are about) Where a
-- prepared loader is, and going on from there: state_dict, load_state_dict, skip_first_batches,
-- seeds, epochs.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local data_loader = require "accelerate.data_loader"
local ranks = require "spec.support.ranks"
local samples = require "spec.support.samples"
local sharding = require "accelerate.data_loader.shard_samplers"
local state = require "accelerate.state"

local loader_of = samples.loader_of

-- The batches of a pass, or its first `stop` ones.
local function walk(loader, stop) return samples.batches(loader, function(_, i) return i == stop end) end

-- The last `count` words.
local function tail(text, count)
  local words = {}
  for word in text:gmatch("%S+") do words[#words + 1] = word end
  return table.concat(words, " ", #words - count + 1)
end

describe("the state of a prepared loader", function()
  local accelerator
  before_each(function()
    state.reset()
    core.manual_seed(0)
    accelerator = accelerate.Accelerator { dataloader_config = accelerate.DataLoaderConfiguration {
      use_stateful_dataloader = true } }
  end)
  after_each(function() state.reset() end)

  -- A data set whose samples draw numbers, so that a batch depends on its place in the run.
  local Noisy = data.class("Noisy")
  function Noisy:get(i) return i * 1000 + core.randint(0, 1000, { 1 }):item() end
  function Noisy:len() return 14 end
  local function noisy_stream()
    return { iter = function()
      local i = 0
      return function()
        i = i + 1
        if i <= 14 then return i * 1000 + core.randint(0, 1000, { 1 }):item() end
      end
    end }
  end
  local function marked()
    local epoch, heard = 0, {}
    return { len = function() return 9 end, get = function(_, i) return epoch * 100 + i end, heard = heard,
      set_epoch = function(_, e)
      epoch = e
      heard[#heard + 1] = e
    end }
  end

  local KINDS = {
    { "in order", function() return loader_of(14, { batch_size = 3 }) end },
    { "shuffled", function() return loader_of(14, { batch_size = 3, shuffle = true }) end },
    { "weighted", function()
      return loader_of(14,
        { batch_size = 3, sampler = data.WeightedRandomSampler({ 1, 2, 3, 4, 5, 6, 7 }, 14) })
    end },
    { "augmented", function() return data.DataLoader(Noisy(), { batch_size = 3, shuffle = true }) end },
    { "augmented, with worker processes",
      function() return data.DataLoader(Noisy(), { batch_size = 3, shuffle = true, num_workers = 2 }) end },
    { "without batches", function()
      return data.DataLoader(data.TensorDataset(core.arange(14):view(14, 1)),
        { batch_size = false, shuffle = true })
    end },
    { "of epochs", function() return data.DataLoader(marked(), { batch_size = 2 }) end },
    { "a stream", function() return data.DataLoader(noisy_stream(), { batch_size = 3 }) end },
    { "a stream with a worker process",
      function() return data.DataLoader(noisy_stream(), { batch_size = 3, num_workers = 1 }) end },
    { "a shuffled stream", function()
      return data.DataLoader(data.ChainDataset { noisy_stream() }:shuffle { buffer_size = 5, seed = 3 },
        { batch_size = 3 })
    end },
    { "dispatched", function() return data.DataLoader(Noisy(), { batch_size = 3, shuffle = true }) end,
      { dispatch_batches = true } },
    { "seedable", function() return loader_of(14, { batch_size = 3, shuffle = true }) end,
      { use_seedable_sampler = true, data_seed = 4 } },
  }

  for _, kind in ipairs(KINDS) do
    it(("goes on in the same pass: %s"):format(kind[1]), function()
      local function prepared()
        return accelerate.Accelerator { dataloader_config = accelerate.DataLoaderConfiguration(kind[3]
          or {}) }:prepare((kind[2]()))
      end
      core.manual_seed(11)
      local loader = prepared()
      local states, passes = {}, {}
      for pass = 1, 3 do
        states[pass] = { [0] = loader:state_dict() }
        local list = {}
        for x in loader:iter() do
          list[#list + 1] = table.concat(x:totable(), ",")
          states[pass][#list] = loader:state_dict()
        end
        passes[pass] = table.concat(list, " ")
        states[pass].count = #list
      end
      for pass = 1, 2 do
        for k = 0, states[pass].count do
          core.manual_seed(11) -- the script is the same, and gets to its loaders by the same draws
          local again = prepared()
          again:load_state_dict(states[pass][k])
          local at = ("pass %d, batch %d"):format(pass, k)
          if k < states[pass].count then
            assert.are.equal(tail(passes[pass], states[pass].count - k), walk(again), at)
          end
          assert.are.equal(passes[pass + 1], walk(again), at)
        end
      end
    end)
  end

  it("does not depend on the seed of the process that loads it", function()
    local function prepared()
      return accelerator:prepare(data.DataLoader(Noisy(), { batch_size = 3, shuffle = true }))
    end
    core.manual_seed(5)
    local loader = prepared()
    walk(loader)
    local found
    local list = {}
    for x in loader:iter() do
      list[#list + 1] = table.concat(x:totable(), ",")
      if #list == 2 then found = loader:state_dict() end
    end
    core.manual_seed(99)
    local again = prepared()
    again:load_state_dict(found)
    assert.are.equal(table.concat(list, " ", 3), walk(again))
  end)

  it("is of the pass that was left by break, of the next one in its last batch, " ..
    "and is given back until it is used", function()
    local loader = accelerator:prepare(loader_of(6, { batch_size = 2 }))
    walk(loader, 2)
    local found = loader:state_dict()
    assert.are.equal(2, found.batches)
    assert.are.equal(0, found.iteration)
    loader:load_state_dict(found)
    assert.are.same(found, loader:state_dict())
    for x in loader:iter() do
      assert.are.equal("4,5", table.concat(x:totable(), ","))
      assert.is_true(loader.end_of_dataloader)
      assert.are.equal(1, loader:state_dict().iteration)
      assert.are.equal(0, loader:state_dict().batches)
    end
    assert.are.equal(1, loader:state_dict().iteration)
    assert.are.equal("0,1 2,3 4,5", walk(loader))
    assert.are.equal(3, loader:len())
  end)

  it("reads nothing of what comes before", function()
    local read = 0
    local set = { len = function() return 1000 end, get = function(_, i)
      read = read + 1
      return i
    end }
    local loader = accelerator:prepare(data.DataLoader(set, { batch_size = 10, shuffle = true }))
    local found
    for _ in loader:iter() do found = found or loader:state_dict() end
    found.batches, read = 98, 0
    loader:load_state_dict(found)
    walk(loader)
    assert.are.equal(20, read)
  end)

  it("asks samplers and data sets that keep a state of their own", function()
    local Stateful = data.class("Stateful", data.IterableDataset)
    function Stateful:iter()
      local i = self.from or 0
      return function()
        i = i + 1
        if i <= (self.from or 0) + 4 then return i end
      end
    end
    function Stateful:state_dict() return { from = self.from or 0 } end
    function Stateful:load_state_dict(found) self.from = found.from end
    local stream = Stateful()
    stream.from = 40
    local loader = accelerator:prepare(data.DataLoader(stream, { batch_size = 1 }))
    walk(loader, 2)
    local found = loader:state_dict()
    local again = accelerator:prepare(data.DataLoader(Stateful(), { batch_size = 1 }))
    again:load_state_dict(found)
    assert.are.equal("43 44", walk(again))
  end)

  it("fits another batch size where the place is a batch there, too", function()
    local loader = accelerator:prepare(loader_of(12, { batch_size = 3 }))
    walk(loader, 2)
    local found = loader:state_dict()
    local again = accelerator:prepare(loader_of(12, { batch_size = 2 }))
    again:load_state_dict(found)
    assert.are.equal("6,7 8,9 10,11", walk(again))
    local other = accelerator:prepare(loader_of(12, { batch_size = 4 }))
    assert.error_matches(function() other:load_state_dict(found) end,
      "3 items in a batch .*2 of whose batches.* this loader has 4")
  end)

  it("refuses what is no state", function()
    local loader = accelerator:prepare(loader_of(12, { batch_size = 3 }))
    assert.error_matches(function() loader:load_state_dict() end,
      "load_state_dict: expected what state_dict%(%) gave, got nil")
    assert.error_matches(function() loader:load_state_dict { batches = 1 } end,
      "option 'iteration' is missing")
    local found = loader:state_dict()
    found.batches = -1
    assert.error_matches(function() loader:load_state_dict(found) end,
      "option 'batches' must be at least 0, got %-1")
    for _, damaged in ipairs { 5, { generator = "zz" }, { generator = 3 } } do
      found = loader:state_dict()
      found.parts.sampler = damaged
      assert.error_matches(function() loader:load_state_dict(found) end,
        "what the state says of 'sampler' is damaged")
    end
    found = loader:state_dict()
    found.position = 3
    assert.error_matches(function() loader:load_state_dict(found) end, "unknown option 'position'")
  end)

  it("survives being written and read", function()
    local loader = accelerator:prepare(loader_of(12, { batch_size = 3, shuffle = true }))
    walk(loader, 2)
    local found = loader:state_dict()
    local operations = require "accelerate.collectives.operations"
    local json = require "accelerate.utils.json"
    assert.are.same(found, operations.deserialize(operations.serialize(found)))
    assert.are.same(found, json.decode(json.encode(found)))
  end)

  it("is that of set_epoch's pass", function()
    local loader = accelerator:prepare(loader_of(20, { batch_size = 5, shuffle = true }))
    loader:set_epoch(3)
    local whole = walk(loader)
    loader:set_epoch(3)
    walk(loader, 1)
    local found = loader:state_dict()
    loader:load_state_dict(found)
    loader:set_epoch(3)
    assert.are.equal(tail(whole, 3), walk(loader))
    loader:load_state_dict(found)
    loader:set_epoch(4)
    assert.are.equal(4, select(2, walk(loader):gsub("%S+", ""))) -- set_epoch chose another pass: it is whole
  end)
end)

describe("leaving out the beginning", function()
  local accelerator
  before_each(function()
    state.reset()
    core.manual_seed(0)
    accelerator = accelerate.Accelerator()
  end)
  after_each(function() state.reset() end)

  it("by hand after a state was loaded skips from the beginning of that pass, once", function()
    local function shuffled()
      core.manual_seed(8)
      return accelerator:prepare(loader_of(12, { batch_size = 3, shuffle = true }))
    end
    local loader = shuffled()
    local whole = walk(loader)
    local second = walk(loader)
    loader = shuffled()
    walk(loader, 2)
    local found = loader:state_dict()
    loader = shuffled()
    loader:load_state_dict(found)
    local rest = accelerator:skip_first_batches(loader, 2)
    assert.are.equal(tail(whole, 2), walk(rest))
    assert.are.equal(second, walk(loader))
  end)

  it("of a pass knows where it is", function()
    local loader = accelerator:prepare(loader_of(12, { batch_size = 2 }))
    local rest = accelerator:skip_first_batches(loader, 2)
    walk(rest, 1)
    local found = rest:state_dict()
    assert.are.equal(3, found.batches)
    loader:load_state_dict(found)
    assert.are.equal("6,7 8,9 10,11", walk(loader))
    assert.are.equal("6,7 8,9 10,11", walk(accelerator:skip_first_batches(rest, 1)))
    assert.are.equal(2, rest.skip_batches)
  end)

  it("is O(1) with samplers that can seek, also where the first batches may be needed to fill", function()
    local positions = 0
    local counting = { len = function() return 10 ^ 9 end }
    local sampler = data.SequentialSampler(counting)
    local shard = sharding.BatchSamplerShard(data.BatchSampler(sampler, { batch_size = 4 }),
      { num_processes = 2, process_index = 1 })
    local nexts = shard:iter(10 ^ 8)
    assert.are.same({ 8 * 10 ^ 8 + 5, 8 * 10 ^ 8 + 6, 8 * 10 ^ 8 + 7, 8 * 10 ^ 8 + 8 }, nexts())
    local own = { batch_size = 1, len = function() return 100 end, iter = function()
      return function()
        positions = positions + 1
        if positions <= 100 then return { positions } end
      end
    end }
    nexts = sharding.BatchSamplerShard(own, { num_processes = 2, process_index = 0 }):iter(30)
    assert.are.same({ 61 }, nexts()) -- a sampler of one's own is walked
  end)

  it("with SkipBatchSampler and SkipDataLoader shortens what they count", function()
    local inner = data.BatchSampler(data.SequentialSampler(10), { batch_size = 3 })
    local skip = data_loader.SkipBatchSampler(inner, 2)
    assert.are.equal(2, skip:len())
    assert.are.equal(4, skip.total_length)
    assert.error_matches(function() data_loader.SkipBatchSampler(3) end,
      "expected a batch sampler with iter%(%), got 3")
    assert.error_matches(function() data_loader.SkipBatchSampler(inner, -1) end,
      "skip_batches must be at least 0")
    local set = data.TensorDataset(core.arange(10))
    local loader = data_loader.SkipDataLoader(set, { batch_size = 3, skip_batches = 2 })
    assert.are.equal(2, loader:len())
    assert.are.equal("6,7,8 9", walk(loader))
    assert.are.equal("6,7,8 9", walk(accelerator:prepare(loader)))
    assert.are.equal("9", walk(data_loader.skip_first_batches(loader, 1)))
    local stream = { len = function() return 10 end, iter = function()
      local i = 0
      return function()
        i = i + 1
        return i <= 10 and i or nil
      end
    end }
    loader = data_loader.SkipDataLoader(stream, { batch_size = 3, skip_batches = 1 })
    assert.are.equal(3, loader:len())
    assert.are.equal("4,5,6 7,8,9 10", walk(loader))
    assert.are.equal("7,8,9 10", walk(data_loader.skip_first_batches(loader, 1)))
    assert.are.equal("7,8,9 10", walk(accelerator:prepare(data_loader.skip_first_batches(loader, 1))))
    assert.error_matches(function() data_loader.SkipDataLoader(set, { skip_batchs = 1 }) end,
      "unknown option 'skip_batchs'")
  end)

  it("keeps the order and the random numbers of the whole pass", function()
    local Noisy = data.class("Noisy")
    function Noisy:get(i) return i * 1000 + core.randint(0, 1000, { 1 }):item() end -- luacheck: ignore 212
    function Noisy:len() return 12 end -- luacheck: ignore 212
    local function fresh()
      core.manual_seed(6)
      return data.DataLoader(Noisy(), { batch_size = 3, shuffle = true })
    end
    local whole = walk(fresh())
    assert.are.equal(tail(whole, 2), walk(data_loader.skip_first_batches(fresh(), 2)))
    assert.are.equal(whole, walk(accelerator:prepare(fresh())))
    assert.are.equal(tail(whole, 1), walk(accelerator:skip_first_batches(accelerator:prepare(fresh()), 3)))
  end)

  it("of a dispatched loader leaves out whole steps, and fills from the first one", function()
    ranks.ok(2, [[
      local data = accelerate.data
      local walk = require("spec.support.samples").batches
      local accelerator = accelerate.Accelerator { dispatch_batches = true }
      local stream = {
        iter = function() local i = -1 return function() i = i + 1 if i < 13 then return i end end end }
      for _, set in ipairs { data.TensorDataset(core.arange(13)), stream } do
        local loader = accelerator:prepare(data.DataLoader(set, { batch_size = 2 }))
        check(walk(loader) == (rank == 0 and "0,1 4,5 8,9 12" or "2,3 6,7 10,11 0"))
        local rest = accelerator:skip_first_batches(loader, 2)
        check(walk(rest) == (rank == 0 and "8,9 12" or "10,11 0"), walk(rest))
        check(set == stream or rest:len() == 2)
        check(walk(accelerator:skip_first_batches(loader, 9)) == "")
      end
    ]])
  end)
end)

describe("the state of a prepared loader on ranks", function()
  it("of any rank serves all, with every way of sharing out", function()
    ranks.ok(3, [[
      local data = accelerate.data
      local Noisy = data.class("Noisy")
      function Noisy:get(i) return i * 1000 + core.randint(0, 1000, { 1 }):item() end
      function Noisy:len() return 22 end
      local stream = { iter = function()
        local i = 0
        return function()
          i = i + 1
          if i <= 22 then return i * 1000 + core.randint(0, 1000, { 1 }):item() end
        end
      end }
      local function make(kind)
        core.manual_seed(2)
        local accelerator = accelerate.Accelerator { split_batches = kind.split,
          dispatch_batches = kind.dispatch or false }
        return accelerator:prepare(data.DataLoader(kind.stream and stream or Noisy(),
          { batch_size = kind.split and 6 or 2, shuffle = not kind.stream or nil,
          num_workers = kind.workers }))
      end
      local function walk(loader, each)
        local list = {}
        for x in loader:iter() do
          list[#list + 1] = table.concat(x:totable(), ",")
          if each then each(#list) end
        end
        return list
      end
      for _, kind in ipairs { {}, { split = true }, { dispatch = true }, { dispatch = true, split = true },
        { stream = true },
        { stream = true, dispatch = true }, { workers = 1 }, { dispatch = true, workers = 1 },
        { stream = true, workers = 1 } } do
        local loader, states = make(kind), {}
        walk(loader)
        local whole = walk(loader, function(k) states[k] = loader:state_dict() end)
        for k = 1, #whole, 2 do
          local from = accelerate.utils.gather_object { states[k] }
          check(#from == 3)
          for r = 1, 3, 2 do
            local again = make(kind)
            again:load_state_dict(from[kind.workers and rank + 1 or r == 1 and 1 or rank + 1])
            if k < #whole then
              local rest = table.concat(walk(again), " ")
              local same = r == 1 and not kind.stream and not kind.dispatch and rank ~= 0
              -- another rank's state has the place and the order; the numbers that augmentation
              -- draws are this rank's own
              if same then rest = rest:gsub("%d%d%d%f[%D]", "") end
              local expected = table.concat(whole, " ", k + 1)
              if same then expected = expected:gsub("%d%d%d%f[%D]", "") end
              check(rest == expected, ("batch %d: %s, expected %s"):format(k, rest, expected))
            end
          end
        end
      end
    ]])
  end)
end)
