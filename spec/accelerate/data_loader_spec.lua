-- luacheck: ignore 512 (loops that are left by break are what some tests are about)
-- Prepared loaders: shares of ranks, look-ahead, remainders, passes inside passes.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local ranks = require "spec.support.ranks"
local samples = require "spec.support.samples"
local state = require "accelerate.state"

local batches, loader_of = samples.batches, samples.loader_of

describe("a prepared loader on one process", function()
  local accelerator, gradient
  before_each(function()
    state.reset()
    accelerator, gradient = accelerate.Accelerator(), state.GradientState()
  end)
  after_each(function() state.reset() end)

  it("leaves the sampling alone: the short last batch stays short", function()
    local loader = accelerator:prepare(loader_of(7, { batch_size = 3 }))
    assert.are.equal("0,1,2 3,4,5 6", batches(loader))
    assert.are.equal(3, loader:len())
    assert.are.equal(3, loader.total_batch_size)
    assert.are.equal(7, loader.total_dataset_length)
    assert.are.equal(loader, accelerator:prepare(loader))
  end)

  it("gives several values for samples of several parts, and tables for tables", function()
    local pairs_loader = accelerator:prepare(data.DataLoader(data.TensorDataset(core.arange(4),
      core.ones(4, 2)), { batch_size = 2 }))
    for x, y in pairs_loader:iter() do
      assert.are.same({ 2 }, x.shape)
      assert.are.same({ 2, 2 }, y.shape)
    end
    local Maps = data.class("Maps")
    function Maps:get(i) return { x = i, inner = { y = { i, i } } } end
    function Maps:len() return 4 end
    for batch in accelerator:prepare(data.DataLoader(Maps(), { batch_size = 2 })):iter() do
      assert.are.same({ 2 }, batch.x.shape)
      assert.are.same({ 2 }, batch.inner.y[2].shape)
    end
  end)

  it("knows the last batch while it is in use", function()
    local loader = accelerator:prepare(loader_of(5, { batch_size = 2 }))
    local ends = {}
    for _ in loader:iter() do
      assert.are.equal(loader, gradient.active_dataloader)
      ends[#ends + 1] = tostring(loader.end_of_dataloader) .. tostring(gradient.end_of_dataloader)
      assert.are.equal(1, gradient.remainder)
    end
    assert.are.same({ "falsefalse", "falsefalse", "truetrue" }, ends)
    assert.is_false(gradient.in_dataloader)
    assert.are.equal(-1, gradient.remainder)
  end)

  it("knows the last batch of a stream", function()
    local stream = { iter = function()
      local i = 0
      return function()
        i = i + 1
        return i <= 5 and i or nil
      end
    end }
    local ends = {}
    local loader = accelerator:prepare(data.DataLoader(stream, { batch_size = 2 }))
    for x in loader:iter() do
      ends[#ends + 1] = x:numel() .. tostring(loader.end_of_dataloader) .. loader.remainder
    end
    assert.are.same({ "2false-1", "2false-1", "1true1" }, ends)
  end)

  it("ends at once when there is nothing", function()
    local loader = accelerator:prepare(loader_of(2, { batch_size = 3, drop_last = true }))
    assert.are.equal("", batches(loader))
    assert.is_false(gradient.in_dataloader)
  end)

  it("gives the outer loader's flags back after an inner pass", function()
    local outer = accelerator:prepare(loader_of(2, { batch_size = 1 }))
    local inner = accelerator:prepare(loader_of(6, { batch_size = 4 }))
    for _ in outer:iter() do
      for _ in inner:iter() do
        assert.are.equal(inner, gradient.active_dataloader)
        assert.are.equal(2, gradient.remainder)
      end
      assert.are.equal(outer, gradient.active_dataloader)
      assert.are.equal(0, gradient.remainder)
    end
  end)

  it("ends inner passes that were left by break when the outer one goes on, ends, or starts again", function()
    local outer = accelerator:prepare(loader_of(2, { batch_size = 1 }))
    local inner = accelerator:prepare(loader_of(6, { batch_size = 4 }))
    local seen = 0
    for _ in outer:iter() do
      assert.are.equal(outer, gradient.active_dataloader)
      for _ in inner:iter() do break end
      assert.are.equal(inner, gradient.active_dataloader)  -- until something else goes on
      seen = seen + 1
    end
    assert.are.equal(2, seen)
    assert.is_false(gradient.in_dataloader)
    for _ in outer:iter() do
      for _ in inner:iter() do break end
      break
    end
    for _ in outer:iter() do
      assert.are.equal(outer, gradient.active_dataloader)
      assert.are.equal(1, #gradient.dataloader_references)
    end
  end)

  it("can be walked inside its own loop", function()
    local loader, count = accelerator:prepare(loader_of(3, { batch_size = 1 })), 0
    for _ in loader:iter() do
      for _ in loader:iter() do count = count + 1 end
      count = count + 10
    end
    assert.are.equal(39, count)
    assert.is_false(gradient.in_dataloader)
  end)

  it("shuffles anew in each pass, also after a break", function()
    core.manual_seed(3)
    local loader = accelerator:prepare(loader_of(50, { batch_size = 50, shuffle = true }))
    local first, second = batches(loader), batches(loader)
    assert.are_not.equal(first, second)
    for _ in loader:iter() do break end
    core.manual_seed(3)
    local again = accelerator:prepare(loader_of(50, { batch_size = 50, shuffle = true }))
    assert.are.equal(first, batches(again))
    assert.are.equal(second, batches(again))
    assert.are_not.equal(batches(loader), batches(again))
  end)

  it("with use_seedable_sampler repeats a pass by its number", function()
    local other = accelerate.Accelerator { dataloader_config = accelerate.DataLoaderConfiguration {
      use_seedable_sampler = true, data_seed = 7 } }
    local a = other:prepare(loader_of(50, { batch_size = 50, shuffle = true }))
    core.manual_seed(99)
    local b = other:prepare(loader_of(50, { batch_size = 50, shuffle = true }))
    local first, second = batches(a), batches(a)
    b:set_epoch(1)
    assert.are.equal(second, batches(b))
    b:set_epoch(0)
    assert.are.equal(first, batches(b))
  end)

  it("tells samplers and data sets of the script's own which pass comes", function()
    local heard = {}
    local set = { get = function(_, i) return i end, len = function() return 2 end,
      set_epoch = function(_, epoch) heard[#heard + 1] = epoch end }
    local loader = accelerator:prepare(data.DataLoader(set, { batch_size = 2 }))
    batches(loader)
    batches(loader)
    loader:set_epoch(7)
    batches(loader)
    assert.are.same({ 0, 1, 7, 7 }, heard)
  end)

  it("skip_first_batches leaves the original alone", function()
    local loader = accelerator:prepare(loader_of(7, { batch_size = 2 }))
    local rest = accelerator:skip_first_batches(loader, 2)
    assert.are.equal("4,5 6", batches(rest))
    assert.are.equal(2, rest:len())
    assert.are.equal("0,1 2,3 4,5 6", batches(loader))
    assert.are.equal("6", batches(accelerate.skip_first_batches(loader_of(7, { batch_size = 2 }), 3)))
    assert.are.equal("", batches(accelerator:skip_first_batches(loader, 9)))
    assert.are.equal("6", batches(accelerator:skip_first_batches(loader, { num_batches = 3 })))
    assert.are.equal("6", batches(accelerate.skip_first_batches(loader_of(7, { batch_size = 2 }),
      { num_batches = 3 })))
    assert.error_matches(function() accelerator:skip_first_batches(loader, { batches = 3 }) end,
      "skip_first_batches: unknown option 'batches'")
    local stream = data.DataLoader({ iter = function()
      local i = 0
      return function()
        i = i + 1
        return i <= 5 and i or nil
      end
    end }, { batch_size = 2 })
    assert.are.equal("5", batches(accelerate.skip_first_batches(stream, 2)))
    assert.are.equal("3,4 5", batches(accelerator:skip_first_batches(accelerator:prepare(stream), 1)))
    assert.error_matches(function() accelerator:skip_first_batches(loader, -1) end, "at least 0")
  end)

  it("reads no sample of what it skips", function()
    local read = 0
    local set = { len = function() return 100 end, get = function(_, i)
      read = read + 1
      return i
    end }
    local loader = accelerator:prepare(data.DataLoader(set, { batch_size = 10, shuffle = true }))
    for _ in accelerator:skip_first_batches(loader, 8):iter() do end
    assert.are.equal(20, read)
  end)

  it("names the nearest field for one that it lacks", function()
    local loader = accelerator:prepare(loader_of(7, { batch_size = 2 }))
    assert.error_matches(function() return loader.end_of_loader end, "did you mean 'end_of_dataloader'")
  end)
end)

describe("a prepared loader on ranks", function()
  local SCRIPT = [[
    local data = require "accelerate.data"
    local accelerator = accelerate.Accelerator()
    local samples = require "spec.support.samples"
    local batches, loader_of = samples.batches, samples.loader_of
    local function gathered(loader)
      local all = {}
      for x in loader:iter() do
        for _, v in ipairs(accelerator:gather_for_metrics(x):totable()) do all[#all + 1] = v end
      end
      return all
    end
  ]]

  it("gives each rank its batches and fills the last ones from the start", function()
    ranks.ok(2, SCRIPT .. [[
      local loader = accelerator:prepare(loader_of(21, { batch_size = 3 }))
      local want = { [0] = "0,1,2 6,7,8 12,13,14 18,19,20", "3,4,5 9,10,11 15,16,17 0,1,2" }
      check(batches(loader) == want[rank], batches(loader))
      check(loader:len() == 4 and loader.total_batch_size == 6)
      accelerator.even_batches = false   -- read live
      want = { [0] = want[0], "3,4,5 9,10,11 15,16,17" }
      check(batches(loader) == want[rank], batches(loader))
      check(loader:len() == 4 - rank)
    ]])
  end)

  it("gathers every sample exactly once for metrics", function()
    for n = 2, 4 do
      ranks.ok(n, SCRIPT .. [[
        for _, n in ipairs { 1, 5, 12, 21, 24, 25 } do
          for _, opts in ipairs { { batch_size = 3 }, { batch_size = 12 },
            { batch_size = 4, shuffle = true } } do
            local all = gathered(accelerator:prepare(loader_of(n, opts)))
            check(#all == n, ("%d items of %d, batch %d"):format(#all, n, opts.batch_size))
            table.sort(all)
            for i = 1, n do check(all[i] == i - 1) end
          end
        end
        local list = {}
        for x in accelerator:prepare(loader_of(7, { batch_size = 2 })):iter() do
          local words = {}
          for i, v in ipairs(x:totable()) do words[i] = "w" .. v end
          for _, w in ipairs(accelerator:gather_for_metrics(words)) do list[#list + 1] = w end
        end
        check(table.concat(list, " ") == "w0 w1 w2 w3 w4 w5 w6", table.concat(list, " "))
      ]])
    end
  end)

  it("cuts batches with split_batches, which must fit the ranks", function()
    ranks.ok(2, SCRIPT .. [[
      local split = accelerate.Accelerator { split_batches = true }
      check(split.split_batches)
      local loader = split:prepare(loader_of(10, { batch_size = 4 }))
      local want = { [0] = "0,1 4,5 8,9", "2,3 6,7 0,1" }
      check(batches(loader) == want[rank], batches(loader))
      check(loader:len() == 3 and loader.total_batch_size == 4)
      local ok, message = pcall(split.prepare, split, loader_of(10, { batch_size = 3 }))
      check(not ok and message:find("multiple of the 2 processes, got 3", 1, true), message)
    ]])
  end)

  it("uses rank 0's order on all ranks, whatever each was seeded with", function()
    ranks.ok(3, SCRIPT .. [[
      core.manual_seed(100 + rank)
      local loader = accelerator:prepare(loader_of(60, { batch_size = 5, shuffle = true }))
      for _ = 1, 3 do
        local all = gathered(loader)
        table.sort(all)
        check(#all == 60)
        for i = 1, 60 do check(all[i] == i - 1) end
      end
    ]])
  end)

  it("gives the same order on any number of ranks", function()
    local orders = {}
    for n = 1, 3 do
      orders[n] = ranks.ok(n, SCRIPT .. [[
        accelerate.utils.set_seed(5)
        local loader = accelerator:prepare(loader_of(36, { batch_size = 12 / ranks, shuffle = true }))
        for _ = 1, 2 do
          local all = gathered(loader)
          accelerator:print(table.concat(all, " "))
        end
      ]])
    end
    assert.are.equal(orders[1], orders[2])
    assert.are.equal(orders[1], orders[3])
  end)

  it("shares out a stream and knows its end", function()
    ranks.ok(3, SCRIPT .. [[
      local stream = {
        iter = function() local i = 0 return function() i = i + 1 if i <= 14 then return i, -i end end end }
      local loader = accelerator:prepare(data.DataLoader(stream, { batch_size = 2 }))
      local all = {}
      for x, y in loader:iter() do
        check((x + y):abs():sum():item() == 0)
        for _, v in ipairs(accelerator:gather_for_metrics(x):totable()) do all[#all + 1] = v end
      end
      check(#all == 14, #all .. " items")
      for i = 1, 14 do check(all[i] == i) end
    ]])
  end)

  it("skips this rank's batches", function()
    ranks.ok(2, SCRIPT .. [[
      for _, even in ipairs { true, false } do
        accelerator.even_batches = even
        local loader = accelerator:prepare(loader_of(21, { batch_size = 3 }))
        local want = { [0] = "12,13,14 18,19,20", "15,16,17" .. (even and " 0,1,2" or "") }
        local rest = accelerator:skip_first_batches(loader, 2)
        check(batches(rest) == want[rank], batches(rest))
        check(rest:len() == (even and 2 or 2 - rank))
      end
    ]])
  end)
end)
