-- luacheck: ignore 512 (loops that are left by break are what some tests are about) Loaders of
-- every kind, prepared: samplers of one's own, streams in shards, settings that are taken over,
-- loaders of one's own.
local accelerate = require "accelerate"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local data = require "accelerate.data"
local data_loader = require "accelerate.data_loader"
local ranks = require "spec.support.ranks"
local batches = require("spec.support.samples").batches
local state = require "accelerate.state"

local function set_of(n) return data.TensorDataset(core.arange(n)) end

local HELPERS = [[
  local data = accelerate.data
  local batches = require("spec.support.samples").batches
  local function expect(loader, ...)
    local found, wanted = batches(loader), (select(rank + 1, ...))
    check(found == wanted, ("got '%s', expected '%s'"):format(found, wanted))
  end
  local function listed(batches, fields)
    local own = fields or {}
    own.iter = function()
      local k = 0
      return function()
        k = k + 1
        return batches[k]
      end
    end
    own.len = function() return #batches end
    return own
  end
]]

describe("a prepared loader with", function()
  local accelerator
  before_each(function()
    state.reset()
    core.manual_seed(0)
    accelerator = accelerate.Accelerator()
  end)
  after_each(function() state.reset() end)

  it("batch samplers of one's own hands their lists round", function()
    ranks.ok(2, HELPERS .. [[
      local accelerator = accelerate.Accelerator()
      local set = data.TensorDataset(core.arange(9))
      local lists = { { 1 }, { 2, 3 }, { 4, 5, 6 }, { 7, 8 }, { 9 } }
      local loader = accelerator:prepare(data.DataLoader(set, { batch_sampler = listed(lists) }))
      expect(loader, "0 3,4,5 8", "1,2 6,7 0")
      check(loader:len() == 3 and loader.total_batch_size == nil and loader.total_dataset_length == 9)
      -- what was added at the end is cut where batches are gathered as objects, too
      local all = {}
      for x in loader:iter() do
        for _, v in ipairs(accelerator:gather_for_metrics(x:totable(), { use_gather_object = true })) do
          all[#all + 1] = v
        end
      end
      check(table.concat(all, " ") == "0 1 2 3 4 5 6 7 8", table.concat(all, " "))
      local even = listed({ { 1, 2 }, { 3, 4 }, { 5 } }, { batch_size = 2 })
      expect(accelerator:prepare(data.DataLoader(set, { batch_sampler = even })), "0,1 4,0", "2,3 1,2")
      local split = accelerate.Accelerator { split_batches = true }
      expect(split:prepare(data.DataLoader(set, { batch_sampler = even })), "0 2 4", "1 3 0")
      local ok, message = pcall(split.prepare, split, data.DataLoader(set, { batch_sampler = listed(lists) }))
      check(not ok and message:find("split_batches needs a loader, or a batch sampler, that has a batch_size",
        1, true), message)
    ]])
  end)

  it("a sampler that is a batch sampler, and without batches", function()
    local set = set_of(5)
    local function batched()
      return data.DataLoader(set,
        { sampler = data.BatchSampler(data.SequentialSampler(5), { batch_size = 2 }), batch_size = false })
    end
    assert.are.equal("0,1 2,3 4", batches(batched()))
    local loader = accelerator:prepare(batched())
    assert.are.equal("0,1 2,3 4", batches(loader))
    assert.are.equal(2, loader.total_batch_size)
    local asked = {}
    local own = { len = function() return 4 end, get = function(_, positions)
      asked[#asked + 1] = #positions
      return core.tensor(positions)
    end }
    assert.are.equal("1,2,3 4", batches(accelerator:prepare(data.DataLoader(own, { batch_size = false,
      sampler = data.BatchSampler(data.SequentialSampler(4), { batch_size = 3 }) }))))
    assert.are.same({ 3, 1 }, asked)
    ranks.ok(2, HELPERS .. [[
      local accelerator = accelerate.Accelerator()
      local set = data.TensorDataset(core.arange(5))
      local batched = data.BatchSampler(data.SequentialSampler(5), { batch_size = 2 })
      expect(accelerator:prepare(data.DataLoader(set, { sampler = batched, batch_size = false })), "0,1 4,0",
        "2,3 1,2")
      local split = accelerate.Accelerator { split_batches = true }
      expect(split:prepare(data.DataLoader(set, { sampler = batched, batch_size = false })), "0 2 4", "1 3 0")
      expect(accelerator:prepare(data.DataLoader(data.TensorDataset(core.arange(5):view(5, 1)),
        { batch_size = false })), "0 2 4", "1 3 0")
      local ok, message = pcall(split.prepare, split, data.DataLoader(set, { batch_size = false }))
      check(not ok and message:find("has a batch_size", 1, true), message)
      -- a stream that gives batches as they are
      local stream = {
        iter = function()
          local i = 0
          return function() i = i + 1 if i <= 5 then return core.tensor({ i, -i }) end end
        end }
      for _, dispatch in ipairs { false, true } do
        local own = accelerate.Accelerator { dispatch_batches = dispatch }
        local loader = own:prepare(data.DataLoader(stream, { batch_size = false }))
        if dispatch then
          expect(loader, "1,-1 3,-3 5", "2,-2 4,-4 -5")
        else
          expect(loader, "1,-1 3,-3 5,-5", "2,-2 4,-4 1,-1")
        end
      end
    ]])
  end)

  it("streams in shards gives every rank whole ones", function()
    ranks.ok(2, HELPERS .. [[
      local function part(from, to)
        return { len = function() return to - from + 1 end, iter = function()
          local i = from - 1
          return function() i = i + 1 if i <= to then return i end end
        end }
      end
      local function chain() return data.ChainDataset { part(1, 3), part(11, 14), part(21, 22) } end
      local each = accelerate.Accelerator { dispatch_batches = false }
      local loader = each:prepare(data.DataLoader(chain(), { batch_size = 2 }))
      expect(loader, "1,2 3,21 22", "11,12 13,14")
      check(loader:len() == (rank == 0 and 3 or 2) and loader.remainder == -1)
      -- with fewer shards than ranks, or batches to cut: rounds, as with any stream
      local short = data.ChainDataset { part(1, 5) }
      expect(each:prepare(data.DataLoader(short, { batch_size = 2 })), "1,2 5,1", "3,4 2,3")
      local split = accelerate.Accelerator { dispatch_batches = false, split_batches = true }
      expect(split:prepare(data.DataLoader(chain(), { batch_size = 4 })), "1,2 12,13 22,1", "3,11 14,21 2,3")
      -- a stream of one's own that can be asked for a part
      local asked
      local own = part(1, 4)
      own.n_shards, own.shard = 4,
        function(_, opts) asked = opts return part(opts.index * 10, opts.index * 10 + 1) end
      expect(each:prepare(data.DataLoader(own, { batch_size = 2 })), "0,1", "10,11")
      check(asked.num_shards == 2 and asked.index == rank)
      check(not pcall(chain().shard, chain(), { num_shards = 4, index = 0 }))
    ]])
  end)

  it("is refused with split_batches where a batch cannot be cut for all ranks", function()
    local script = HELPERS .. [[
      local stream = {
        iter = function() local i = 0 return function() i = i + 1 if i <= 6 then return i end end end }
      for _, source in ipairs { stream, data.ChainDataset { stream }, data.TensorDataset(core.arange(6)) } do
        local split = accelerate.Accelerator { dispatch_batches = false, split_batches = true }
        for size = 1, 6 do
          local ok, message = pcall(split.prepare, split, data.DataLoader(source, { batch_size = size }))
          check(ok == (size % ranks == 0), "batch_size " .. size)
          check(ok or message:find(("multiple of the %d processes, got %d"):format(ranks, size), 1, true),
            message)
        end
      end
      -- rank 0 of a dispatched loader cuts what collate_fn makes of one sample
      local split = accelerate.Accelerator { dispatch_batches = true, split_batches = true }
      local function many(list) return core.arange(ranks):add(10 * list[1]) end
      for x in split:prepare(data.DataLoader(stream, { batch_size = 1, collate_fn = many })):iter() do
        check(x:item() % 10 == rank)
      end
      if ranks > 1 then
        check(not pcall(split.prepare, split, data.DataLoader(stream, { batch_size = ranks + 1 })))
      end
    ]]
    for n = 1, 3 do ranks.ok(n, script) end
  end)

  it("streams of known length counts its batches", function()
    ranks.ok(3, HELPERS .. [[
      local stream = { len = function() return 14 end,
        iter = function() local i = 0 return function() i = i + 1 if i <= 14 then return i end end end }
      for _, case in ipairs { { false, false, 2 }, { true, false, 3 }, { true, true, 2 },
        { false, true, 1 } } do
        local accelerator = accelerate.Accelerator { dispatch_batches = false, split_batches = case[1] }
        local loader = accelerator:prepare(data.DataLoader(stream,
          { batch_size = case[1] and 6 or 4, drop_last = case[2] }))
        local count = 0
        for _ in loader:iter() do count = count + 1 end
        check(count == case[3] and loader:len() == count, count .. " batches, len " .. loader:len())
      end
    ]])
  end)

  it("its sizes tells them", function()
    ranks.ok(2, HELPERS .. [[
      for _, split in ipairs { false, true } do
        for _, dispatch in ipairs { false, true } do
          local accelerator = accelerate.Accelerator { split_batches = split, dispatch_batches = dispatch }
          local loader = accelerator:prepare(data.DataLoader(data.TensorDataset(core.arange(21)),
            { batch_size = 4 }))
          check(loader.total_batch_size == (split and 4 or 8) and loader.total_dataset_length == 21
            and loader.batch_size == 4)
          check(loader:len() == (split and 6 or 3), loader:len())
        end
      end
      local some = data.RandomSampler(21, { num_samples = 6 })
      local loader = accelerate.Accelerator():prepare(data.DataLoader(data.TensorDataset(core.arange(21)),
        { batch_size = 2, sampler = some }))
      check(loader.total_dataset_length == 21 and loader:len() == 2)
      for _ in loader:iter() do check(loader.remainder == 2) end -- of the pass, not of the data set
    ]])
  end)

  it("worker settings takes them over", function()
    local ids = {}
    local function init(id) ids[#ids + 1] = id end
    local function collate(samples) return core.tensor(samples) end
    local own = { len = function() return 8 end, get = function(_, i) return i end }
    local raw = data.DataLoader(own, { batch_size = 2, num_workers = 2, prefetch_factor = 3,
      persistent_workers = true, timeout = 50,
      worker_init_fn = init, collate_fn = collate, pin_memory = true })
    for _, loader in ipairs { accelerator:prepare(raw), data_loader.skip_first_batches(raw, 1) } do
      for name, value in pairs { num_workers = 2, prefetch_factor = 3, persistent_workers = true,
        timeout = 50, worker_init_fn = init,
        collate_fn = collate, pin_memory = true } do
        assert.are.equal(value, loader[name], name)
      end
    end
    ranks.ok(2, HELPERS .. [[
      local stream = {
        iter = function()
          local i = 0
          return function() i = i + 1 if i <= 8 then return i, data.get_worker_info().num_workers end end
        end }
      local accelerator = accelerate.Accelerator { dispatch_batches = false }
      local loader = accelerator:prepare(data.DataLoader(stream,
        { batch_size = 2, num_workers = 1, prefetch_factor = 1 }))
      for _, workers in loader:iter() do check(workers:totable()[1] == 1) end
      check(loader.num_workers == 1 and loader.prefetch_factor == 1)
    ]])
  end)

  it("pin_memory and non_blocking gives the same batches on the CPU", function()
    local config = accelerate.DataLoaderConfiguration { non_blocking = true }
    local loader = accelerate.Accelerator { dataloader_config = config }:prepare(data.DataLoader(set_of(5),
      { batch_size = 2, pin_memory = true }))
    assert.are.equal("0,1 2,3 4", batches(loader))
    assert.is_true(loader.non_blocking)
    assert.is_true(loader.pin_memory)
    for x in loader:iter() do assert.are.equal("cpu", x.device) end
    assert.error_matches(function() data.DataLoader(set_of(5), { pin_memory = 1 }) end,
      "option 'pin_memory' must be true or false, got 1")
  end)

  it("leaves that are no tensors leaves them as they are", function()
    local marker = function() end
    local loader = accelerator:prepare(data.DataLoader(set_of(2),
      { batch_size = 2, collate_fn = function(samples)
      return { x = core.stack(samples), name = "train", fn = marker, list = { 1, "two" } }
    end }))
    for batch in loader:iter() do
      assert.are.same({ 0, 1 }, batch.x:totable())
      assert.are.equal("train", batch.name)
      assert.are.equal(marker, batch.fn)
      assert.are.same({ 1, "two" }, batch.list)
    end
  end)

  it("set_epoch tells everybody who wants to know", function()
    local heard = {}
    local function listener(name, fields)
      fields.set_epoch = function(_, epoch) heard[#heard + 1] = name .. epoch end
      return fields
    end
    local function once() return function() end end
    local set = listener("set", { len = function() return 1 end, get = function() return 1 end })
    local sampler = listener("sampler", { iter = once, len = function() return 0 end })
    local batch_sampler = listener("batches",
      { iter = once, len = function() return 0 end, sampler = sampler })
    local loader = accelerator:prepare(data.DataLoader(set, { batch_sampler = batch_sampler }))
    loader:set_epoch(4)
    table.sort(heard)
    assert.are.same({ "batches4", "sampler4", "set4" }, heard)
    assert.are.equal(4, loader.iteration)
    heard = {}
    batches(loader)
    table.sort(heard)
    assert.are.same({ "batches4", "sampler4", "set4" }, heard)
    assert.error_matches(function() loader:set_epoch(-1) end, "set_epoch: epoch must be at least 0, got %-1")
    assert.error_matches(function() loader:set_epoch() end, "set_epoch: epoch is missing")
    local shuffled = accelerator:prepare(data.DataLoader(set_of(30), { batch_size = 30, shuffle = true }))
    shuffled:set_epoch(5)
    local first = batches(shuffled)
    assert.are_not.equal(first, batches(shuffled))
    shuffled:set_epoch(5)
    assert.are.equal(first, batches(shuffled))
    local stream = listener("stream", { iter = once })
    heard = {}
    loader = accelerate.Accelerator { dispatch_batches = true }:prepare(data.DataLoader(stream, {}))
    loader:set_epoch(2)
    batches(loader)
    assert.are.same({ "stream2", "stream2" }, heard)
  end)

  it("use_seedable_sampler has an order of the seed and the pass alone", function()
    local function prepared(config, opts)
      opts = opts or { batch_size = 40, shuffle = true }
      config.use_seedable_sampler = true
      return accelerate.Accelerator { dataloader_config = accelerate.DataLoaderConfiguration(
        config) }:prepare(data.DataLoader(set_of(40), opts))
    end
    local loader = prepared { data_seed = 7 }
    assert.are.equal("SeedableRandomSampler", class.of(loader.sampler).__name)
    local first, second = batches(loader), batches(loader)
    assert.are_not.equal(first, second)
    core.manual_seed(123)
    local again = prepared { data_seed = 7 }
    for _ in again:iter() do break end -- a pass that was not walked to its end is repeated
    assert.are.equal(first, batches(again))
    assert.are.equal(second, batches(again))
    assert.are_not.equal(first, batches(prepared { data_seed = 8 }))
    local by_seed = batches(prepared {})
    core.rand(5)
    assert.are.equal(by_seed, batches(prepared {})) -- of manual_seed, whatever was drawn since
    core.manual_seed(124)
    assert.are_not.equal(by_seed, batches(prepared {}))
    -- what the sampler was like is kept; other samplers are left alone
    local drawn = prepared({ data_seed = 1 },
      { batch_size = 3, sampler = data.RandomSampler(40, { replacement = true, num_samples = 6 }) })
    assert.is_true(drawn.sampler.replacement)
    assert.are.equal(2, drawn:len())
    local weighted = data.WeightedRandomSampler({ 1, 2 }, 4)
    assert.are.equal(weighted, prepared({}, { batch_size = 2, sampler = weighted }).sampler)
    assert.are.equal("0,1,2",
      batches(prepared({},
      { batch_sampler = data.BatchSampler(data.SequentialSampler(3), { batch_size = 3 }) })))
  end)

  it("a SeedableRandomSampler by itself counts the passes that are walked to their end", function()
    local sampler = data.SeedableRandomSampler(20, { data_seed = 3 })
    local function order()
      local list = {}
      for i in sampler:iter() do list[#list + 1] = i end
      return table.concat(list, " ")
    end
    local first = order()
    assert.are.equal(1, sampler.epoch)
    assert.are_not.equal(first, order())
    sampler:set_epoch(0)
    for _ in sampler:iter() do break end
    assert.are.equal(0, sampler.epoch)
    assert.are.equal(first, order())
    assert.are.equal(data_loader.SeedableRandomSampler, data.SeedableRandomSampler)
    assert.error_matches(function() data.SeedableRandomSampler(20, { data_sead = 3 }) end,
      "did you mean 'data_seed'")
  end)
end)

describe("DataLoaderStateMixin", function()
  after_each(function() state.reset() end)

  it("makes a loader of one's own the active one", function()
    state.reset()
    local gradient = accelerate.Accelerator().gradient_state
    local Mine = class("Mine", data_loader.DataLoaderStateMixin)
    function Mine:init(n) self.dataset, self.total_batch_size = set_of(n), 4 end
    function Mine:iter()
      self:begin()
      local i = 0
      return function()
        i = i + 1
        if i > 2 then return self:finish() end
        self.end_of_dataloader = i == 2
        return i
      end
    end
    local mine = Mine(7)
    local seen = {}
    for i in mine:iter() do
      seen[i] = { gradient.active_dataloader == mine, gradient.end_of_dataloader, gradient.remainder }
    end
    assert.are.same({ { true, false, 3 }, { true, true, 3 } }, seen)
    assert.is_false(gradient.in_dataloader)
    mine:reset()
    assert.is_false(mine.end_of_dataloader)
    assert.are.equal(-1, mine.remainder)
    mine.drop_last = true
    mine:begin()
    assert.are.equal(-1, gradient.remainder)
    mine:finish()
  end)

  it("is what prepared loaders do", function()
    state.reset()
    local accelerator = accelerate.Accelerator()
    local loader = accelerator:prepare(data.DataLoader(set_of(7), { batch_size = 4 }))
    loader:begin()
    assert.are.equal(loader, accelerator.gradient_state.active_dataloader)
    assert.are.equal(3, loader.remainder)
    loader:finish()
    assert.is_false(accelerator.gradient_state.in_dataloader)
    loader:reset()
    assert.are.equal(-1, loader.remainder)
  end)
end)

describe("prepare_data_loader", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("can be called by itself, for ranks that are not there, too", function()
    local function raw() return data.DataLoader(set_of(7), { batch_size = 2 }) end
    local found = {}
    for rank = 0, 2 do
      found[rank + 1] = batches(data_loader.prepare_data_loader(raw(),
        { num_processes = 3, process_index = rank }))
    end
    assert.are.same({ "0,1 6,0", "2,3 1,2", "4,5 3,4" }, found)
    assert.are.equal("4,5",
      batches(data_loader.prepare_data_loader(raw(),
      { num_processes = 3, process_index = 2, even_batches = false })))
    assert.error_matches(function()
      data_loader.prepare_data_loader(raw(), { num_processes = 3, process_index = 3 })
    end,
      "option 'process_index' must be 0 to 2, got 3")
    assert.error_matches(function() data_loader.prepare_data_loader(raw(),
      { num_processes = 2, process_index = 0, dispatch_batches = true,
      put_on_device = true }) end, "dispatch_batches needs all 1 processes")
    assert.error_matches(function() data_loader.prepare_data_loader(7) end, "expected a loader, got 7")
    assert.error_matches(function() data_loader.prepare_data_loader(raw(), { split_batch = true }) end,
      "did you mean 'split_batches'")
    local loader = data_loader.prepare_data_loader(raw())
    assert.are.equal(loader, data_loader.prepare_data_loader(loader))
  end)

  it("is what DataLoaderShard and DataLoaderDispatcher call", function()
    local function raw() return data.DataLoader(set_of(5), { batch_size = 2 }) end
    local loader = data_loader.DataLoaderShard(raw(), { num_processes = 2, process_index = 1 })
    assert.are.equal("DataLoaderShard", tostring(loader))
    assert.are.equal("2,3 1,2", batches(loader))
    loader = data_loader.DataLoaderDispatcher(raw())
    assert.are.equal("DataLoaderDispatcher", tostring(loader))
    assert.are.equal("0,1 2,3 4", batches(loader))
    assert.error_matches(function() data_loader.DataLoaderShard(raw(), { process = 1 }) end,
      "unknown option 'process'")
    assert.error_matches(function() data_loader.DataLoaderDispatcher(raw(), 3) end,
      "options must be a table, got 3")
    local config = accelerate.DataLoaderConfiguration { dispatch_batches = false }
    assert.error_matches(function() data_loader.DataLoaderDispatcher(raw(), { config = config }) end,
      "dispatch_batches = false")
  end)

  it("says that meshes and XLA's loader are not there", function()
    local raw = data.DataLoader(set_of(7), { batch_size = 2 })
    assert.error_matches(function() data_loader.prepare_data_loader(raw, { torch_device_mesh = {} }) end,
      "torch_device_mesh: tensor, context and sequence parallelism are not there yet")
    assert.error_matches(function() return data_loader.MpDeviceLoaderWrapper end,
      "MpDeviceLoaderWrapper is not there yet: it is for XLA devices")
    assert.error_matches(function() accelerate.Accelerator { rng_types = { "xla" } } end,
      "'xla' generators are not there yet")
  end)
end)
