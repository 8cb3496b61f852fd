-- luacheck: ignore 512 (loops that are left by break are what some tests are about)
-- Prepared loaders against Accelerate's own, and the loader whose rank 0 reads for all ranks.
local accelerate = require "accelerate"
local batches = require "accelerate.data_loader.batches"
local core = require "accelerate.core"
local data = require "accelerate.data"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

local REFERENCE = debug.getinfo(1, "S").source:match("^@(.*)accelerate/[^/]*$") ..
  "reference/loader_reference.txt"

local SCRIPT = [[
  local data = require "accelerate.data"
  local function stream_of(n)
    return { iter = function() local i = -1 return function() i = i + 1 if i < n then return i end end end }
  end
  local function make(kind, n, size, drop)
    local set = kind == "map" and data.TensorDataset(core.arange(n)) or stream_of(n)
    return data.DataLoader(set, { batch_size = size, drop_last = drop })
  end
  local batches = require("spec.support.samples").batches
  local function accelerator(config)
    return accelerate.Accelerator { dataloader_config = accelerate.DataLoaderConfiguration(config) }
  end
]]

describe("a prepared loader, as in Accelerate,", function()
  local function compare(kind, body)
    for n = 2, 3 do
      local out = ranks.ok(n, SCRIPT .. [[
        local count = 0
        for line in io.lines(arg[1]) do
          local head, rest = line:match("^(.-) |(.*)$")
          local words, fields = {}, {}
          for word in head:gmatch("%S+") do words[#words + 1] = tonumber(word) or word end
          if words[1] == "]] .. kind .. [[" and words[5] == ranks then
            for field in (rest .. " |"):gmatch("%s?(.-)%s?|") do fields[#fields + 1] = field end
            local expected = {}
            for part in (fields[#fields] .. ";"):gmatch("(.-);") do expected[#expected + 1] = part end
            local _, set, n, size, _, a, b, c = unpack(words)
            local function same(what, wanted, got)
              check(wanted == got, ("%s: %s is '%s', expected '%s'"):format(head, what, tostring(got),
                tostring(wanted)))
            end
            ;(function() ]] .. body .. [[ end)()
            count = count + 1
          end
        end
        accelerator {}:print(count)
      ]], { arguments = { REFERENCE } })
      assert.is_true(tonumber(out) > 3, out)
    end
  end

  it("dispatches the same batches, with the same lengths and remainders", function()
    compare("dispatch", [[
      local loader, remainder = accelerator { dispatch_batches = true,
        split_batches = a == 1 }:prepare(make(set, n, size, b == 1)), -2
      same("batches", expected[rank + 1], batches(loader, function()
        remainder = loader.remainder
        check(loader.end_of_dataloader or remainder == -1)
      end))
      same("remainder", tonumber(fields[2]), remainder)
      if set == "map" then same("length", tonumber(fields[1]), loader:len()) end
      check(not pcall(loader.len, loader) == (set == "stream"))
    ]])
  end)

  it("shares out the same batches, with the same lengths and remainders", function()
    compare("shard", [[
      local config = accelerator { dispatch_batches = false, split_batches = a == 1, even_batches = c == 1 }
      local loader, remainders = config:prepare(make(set, n, size, b == 1)), {}
      same("batches", expected[rank + 1],
        batches(loader, function() remainders[#remainders + 1] = loader.remainder end))
      if set == "map" then
        if rank == 0 then
          same("remainders", fields[2], #remainders > 0 and remainders[1] .. " " .. remainders[#remainders]
            or "-")
          same("length", tonumber(fields[1]), loader:len())
        end
      -- upstream never learns what is real of a stream that every rank reads; we know it in the
      -- last batch
      elseif b == 0 then
        local total = loader.total_batch_size
        same("remainder", n % total, remainders[#remainders])
      end
    ]])
  end)

  it("gives the same items to metrics", function()
    compare("metrics", [[
      local config, items = accelerator { dispatch_batches = a == 1 }, {}
      batches(config:prepare(make(set, n, size)), function(x)
        for _, v in ipairs(config:gather_for_metrics(x):totable()) do items[#items + 1] = v end
      end)
      same("items", expected[1], table.concat(items, ","))
    ]])
  end)

  it("goes on after a state was loaded, while any batch was in use", function()
    compare("resume", [[
      local config = accelerator { dispatch_batches = a == 1, use_stateful_dataloader = true }
      local loader, states, found = config:prepare(make(set, n, size)), {}, {}
      batches(loader, function() states[#states + 1] = loader:state_dict() end)
      for _, at in ipairs(states) do
        local again = config:prepare(make(set, n, size))
        again:load_state_dict(at)
        found[#found + 1] = batches(again)
        found[#found + 1] = batches(again)
      end
      same("batches", expected[rank + 1], table.concat(found, "/"))
    ]])
  end)
end)

describe("a dispatching loader", function()
  it("gives tensors, strings, tables and numbers their slices, in any nesting", function()
    ranks.ok(2, SCRIPT .. [[
      local Rich = data.class("Rich")
      function Rich:get(i)
        return { x = core.full({ 2 }, i), word = "w" .. i,
          inner = { flag = i % 2 == 0, y = core.tensor(i, { dtype = "bfloat16" }) } }
      end
      function Rich:len() return 5 end
      local words, flags, ids, count = {}, {}, {}, 0
      local config = accelerator { dispatch_batches = true }
      local function with_lists(samples)
        local batch = data.default_collate(samples)
        batch.lists, batch.kind, batch.none = {}, "train", {}
        for i, s in ipairs(samples) do batch.lists[i] = { s.word, length = #s.word } end
        return batch
      end
      for batch in config:prepare(data.DataLoader(Rich(),
        { batch_size = 2, collate_fn = with_lists })):iter() do
        count = count + 1
        check(batch.x:size(1) == #batch.word and #batch.lists == #batch.word
          and batch.inner.flag:size(1) == #batch.word)
        check(batch.inner.y.dtype == "bfloat16" and batch.kind == "train" and next(batch.none) == nil)
        for i, word in ipairs(batch.word) do
          check(batch.lists[i][1] == word and batch.lists[i].length == 2)
          check(batch.x:select(1, i):totable()[1] == tonumber(word:sub(2))
            and batch.inner.y:totable()[i] == tonumber(word:sub(2)))
          words[#words + 1] = word
        end
      end
      local want = { [0] = "w1 w2 w5", "w3 w4 w1" }
      check(count == 2 and table.concat(words, " ") == want[rank], table.concat(words, " "))
      -- only strings; and several parts
      local Words = data.class("Words")
      function Words:get(i) return "s" .. i, i end
      function Words:len() return 6 end
      local seen = {}
      for s, n in config:prepare(data.DataLoader(Words(), { batch_size = 3 })):iter() do
        check(#s == 3 and n:numel() == 3)
        seen[#seen + 1] = table.concat(s, " ")
      end
      check(seen[1] == (rank == 0 and "s1 s2 s3" or "s4 s5 s6") and #seen == 1)
      seen = {}
      for s in config:prepare(data.DataLoader(Words(), { batch_size = 3, collate_fn = function(list)
        for i, sample in ipairs(list) do list[i] = sample[1] end
        return list
      end })):iter() do seen[#seen + 1] = table.concat(s, " ") end
      check(seen[1] == (rank == 0 and "s1 s2 s3" or "s4 s5 s6"), seen[1])
    ]])
  end)

  it("reads on rank 0 alone", function()
    ranks.ok(3, SCRIPT .. [[
      local read = 0
      local set = { len = function() return 12 end, get = function(_, i) read = read + 1 return i end }
      local loader = accelerator { dispatch_batches = true }:prepare(data.DataLoader(set,
        { batch_size = 2, shuffle = true }))
      check(tostring(loader) == "DataLoaderDispatcher")
      batches(loader)
      check(read == (rank == 0 and 12 or 0), read .. " read")
      local started = 0
      local stream = {
        iter = function()
          started = started + 1
          local i = 0
          return function() i = i + 1 if i < 8 then return i end end
        end }
      check(#batches(accelerate.Accelerator():prepare(data.DataLoader(stream, { batch_size = 1 }))) > 0)
      -- the default for streams whose batches are placed on the device
      check(started == (rank == 0 and 1 or 0))
      local own = accelerate.Accelerator { device_placement = false }:prepare(data.DataLoader(stream,
        { batch_size = 1 }))
      check(tostring(own) == "DataLoaderShard")
    ]])
  end)

  it("cuts by a function of one's own", function()
    ranks.ok(2, SCRIPT .. [[
      local calls = 0
      local function mine(batch, slice, index, count)
        calls = calls + 1
        check(index == rank and count == ranks and slice[2] - slice[1] == 1)
        return { batch[1][{ slice }], "rank " .. index }
      end
      local config = accelerator { dispatch_batches = true }
      local set = data.TensorDataset(core.arange(8), core.arange(8) * 10)
      local loader = config:prepare_data_loader(data.DataLoader(set, { batch_size = 2 }),
        { slice_fn_for_dispatch = mine })
      local list = {}
      for x, who in loader:iter() do
        check(who == "rank " .. rank)
        list[#list + 1] = table.concat(x:totable(), ",")
      end
      check(table.concat(list, " ") == (rank == 0 and "0,1 4,5" or "2,3 6,7"), table.concat(list, " "))
      check(calls == 2)
    ]])
  end)

  it("cuts by utils.slice_tensors", function()
    ranks.ok(2, SCRIPT .. [[
      local set = data.TensorDataset(core.arange(8))
      local loader = accelerator { dispatch_batches = true }:prepare_data_loader(
        data.DataLoader(set, { batch_size = 2 }),
        { slice_fn_for_dispatch = accelerate.utils.slice_tensors })
      local list = {}
      for x in loader:iter() do list[#list + 1] = table.concat(x:totable(), ",") end
      check(table.concat(list, " ") == (rank == 0 and "0,1 4,5" or "2,3 6,7"), table.concat(list, " "))
    ]])
  end)

  -- Batches of 2 of the numbers 1 to 5; names and weights have any number of entries.
  local CONSTANTS = SCRIPT .. [[
    local function loader_of(config, extra)
      return config:prepare(data.DataLoader(stream_of(5), { batch_size = 2, collate_fn = function(list)
        local batch = extra(list)
        batch.column, batch.x = {}, core.tensor(list)
        for i, v in ipairs(list) do batch.column[i] = "item " .. v end
        return batch
      end }))
    end
    local function check_column(batch)
      check(#batch.column == batch.x:size(1))
      for i, v in ipairs(batch.x:totable()) do check(batch.column[i] == "item " .. v) end
    end
  ]]

  it("gives each rank all of a list or tensor that is equal in all batches, whatever its length", function()
    for n = 2, 3 do
      ranks.ok(n, CONSTANTS .. [[
        for count = 1, 6 do
          local names = {}
          for k = 1, count do names[k] = "c" .. k end
          local function extra()
            return { names = { unpack(names) }, y = { z = core.arange(count) },
              deep = { a = { names, names } } }
          end
          for batch in loader_of(accelerator { dispatch_batches = true }, extra):iter() do
            check(table.concat(batch.names) == table.concat(names), ("%d names"):format(count))
            check(batch.y.z:size(1) == count)
            check(#batch.deep.a == 2 and #batch.deep.a[2] == count)
            check_column(batch)
          end
        end
      ]])
    end
  end)

  it("does so where one batch is cut for all, and says where that turns out wrong", function()
    ranks.ok(2, CONSTANTS .. [[
      local config = accelerator { dispatch_batches = true, split_batches = true }
      for count = 1, 5 do
        local names = {}
        for k = 1, count do names[k] = "c" .. k end
        for batch in loader_of(config, function() return { names = { unpack(names) } } end):iter() do
          check(table.concat(batch.names) == table.concat(names), ("%d names"):format(count))
          check_column(batch)
        end
      end
      local function run(loader)
        for _ in loader:iter() do end
      end
      local made = 0
      local function late()
        made = made + 1
        return { names = made < 3 and { "a", "b" } or { "c" } }
      end
      local ok, why = pcall(run, loader_of(config, late))
      check(not ok and why:find("the batch.names was equal in the batches before", 1, true), tostring(why))
      ok, why = pcall(run, loader_of(config, function() return { flags = { "same", "same" } } end))
      check(not ok and why:find("the batch.flags had as many entries as there are items", 1, true),
        tostring(why))
    ]])
  end)

  it("takes columns that are equal in some batches for columns", function()
    ranks.ok(2, SCRIPT .. [[
      local words = { "p", "q", "p", "q", "p", "p", "q", "q", "q" }
      local set = { len = function() return #words end,
        get = function(_, i) return { w = words[i], i = i } end }
      local config = accelerator { dispatch_batches = true }
      for batch in config:prepare(data.DataLoader(set, { batch_size = 2 })):iter() do
        check(#batch.w == batch.i:size(1))
        for k, i in ipairs(batch.i:totable()) do check(batch.w[k] == words[i]) end
      end
    ]])
  end)

  it("says on every rank what cannot be joined, with advice", function()
    ranks.ok(2, SCRIPT .. [[
      local config = accelerator { dispatch_batches = true }
      local function message_of(get, opts)
        opts = opts or {}
        opts.batch_size = 2
        local set = { len = function() return 8 end, get = function(_, i) return get(i) end }
        local ok, message = pcall(batches, config:prepare(data.DataLoader(set, opts)))
        check(not ok)
        return message
      end
      local function expect(text, ...)
        for _, part in ipairs { ... } do check(text:find(part, 1, true), text) end
        check(rank == 0 or text:find("on rank 0, which reads for all", 1, true), text)
      end
      expect(message_of(function(i) return core.ones(i < 3 and 4 or 5) end),
        "batches of different sizes cannot be joined", "[2, 4] and [2, 5]",
        "pass dispatch_batches = false", "split_batches = true")
      local function with(value)
        return function(samples) return { x = data.default_collate(samples), v = value(samples[1]) } end
      end
      expect(message_of(function(i) return i end, { collate_fn = with(function(i) return "part " .. i end) }),
        "the batch.v", "'part 1'", "'part 3'")
      expect(message_of(function(i) return i end,
        { collate_fn = with(function(i) return core.tensor(i) end) }), "must count the 2 items")
      expect(message_of(function(i) return i end,
        { collate_fn = with(function(i) return i == 1 and {} or nil end) }), "the batch")
      expect(message_of(function(i) return i end, { collate_fn = with(function() return print end) }),
        "the step.batch.v is a function")
      expect(message_of(function(i) if i == 5 then error "no such file" end return i end), "sample 5",
        "no such file")
      expect(message_of(function(i) return i end, { collate_fn = function() return 7 end }),
        "no items to share out")
      local stream = {
        iter = function()
          local i = 0
          return function() i = i + 1 if i <= 4 then return core.zeros(i) end end
        end }
      local ok, message = pcall(function()
        for _ in config:prepare(data.DataLoader(stream, { batch_size = false })):iter() do end
      end)
      check(not ok)
      expect(message, "step 1 has 3 items for 2 processes", "only the last step may be uneven")
      -- and the ranks are still together
      check(batches(config:prepare(make("map", 4, 2))) == (rank == 0 and "0,1" or "2,3"))
    ]])
  end)

  it("with fewer items than ranks repeats them", function()
    ranks.ok(4, SCRIPT .. [[
      for _, kind in ipairs { "map", "stream" } do
        local config = accelerator { dispatch_batches = true }
        local loader, items = config:prepare(make(kind, 1, 2)), {}
        check(batches(loader, function(x) items = config:gather_for_metrics(x):totable() end) == "0")
        check(#items == 1 and loader.remainder == 1)
        check(batches(config:prepare(make(kind, 0, 2))) == "")
        check(batches(config:prepare(make(kind, 3, 2, true))) == "")
      end
    ]])
  end)

  it("can be left by break, walked again, and walked inside another's pass", function()
    ranks.ok(2, SCRIPT .. [[
      local config = accelerator { dispatch_batches = true }
      local gradient = config.gradient_state
      local loader, inner = config:prepare(make("map", 8, 1)), config:prepare(make("stream", 4, 1))
      for _ in loader:iter() do
        check(gradient.active_dataloader == loader)
        for _ in inner:iter() do break end
        check(batches(inner) == (rank == 0 and "0 2" or "1 3") and gradient.active_dataloader == loader)
        if loader.end_of_dataloader then break end
      end
      check(batches(loader) == (rank == 0 and "0 2 4 6" or "1 3 5 7"))
      check(not gradient.in_dataloader)
    ]])
  end)

  it("shuffles alike on all ranks' counts, and anew in each pass", function()
    ranks.ok(2, SCRIPT .. [[
      core.manual_seed(50 + rank)
      local config = accelerator { dispatch_batches = true }
      local loader = config:prepare(data.DataLoader(data.TensorDataset(core.arange(20)),
        { batch_size = 5, shuffle = true }))
      local plain = config:prepare_data_loader(data.DataLoader(data.TensorDataset(core.arange(20)),
        { batch_size = 5,
        sampler = data.RandomSampler(20, { generator = loader.sampler.generator }) }))
      local first, second = batches(loader), batches(loader)
      check(first ~= second)
      local states = accelerate.utils.gather_object { loader.sampler.generator:get_state() }
      check(states[1] == states[2])
      check(batches(plain) ~= second)
    ]])
  end)

  it("gives tables that remember their order as such", function()
    for n = 1, 2 do
      ranks.ok(n, SCRIPT .. [[
        local ordered = require "accelerate.utils.ordered"
        local function collate(list)
          local map = ordered.new()
          map.z = core.tensor(list)
          map.names = { "n" .. list[1], "n" .. list[2] }
          local inner = ordered.new()
          inner.y, map.inner = map.z:neg(), inner
          inner.b = map.z:add(100)
          map.a = map.z:mul(2)
          return map
        end
        local stream = {
          iter = function() local i = 0 return function() i = i + 1 if i <= 8 then return i end end end }
        for _, split in ipairs { false, true } do
          local loader = accelerator { dispatch_batches = true, split_batches = split }:prepare(
            data.DataLoader(stream, { batch_size = 2, collate_fn = collate }))
          local count = 0
          for batch in loader:iter() do
            check(table.concat(ordered.keys(batch), " ") == "z names inner a",
              table.concat(ordered.keys(batch), " "))
            check(table.concat(ordered.keys(batch.inner), " ") == "y b")
            local items = batch.z:totable()
            check(#items == (split and 2 / ranks or 2) and #batch.names == #items)
            for i, item in ipairs(items) do
              check(batch.names[i] == "n" .. item and batch.inner.y:totable()[i] == -item)
              check(batch.inner.b:totable()[i] == item + 100 and batch.a:totable()[i] == 2 * item)
              count = count + 1
            end
          end
          check(count == 8 / ranks, count)
        end
      ]])
    end
  end)

  it("reads with worker processes on rank 0", function()
    ranks.ok(2, SCRIPT .. [[
      local Pids = data.class("Pids")
      function Pids:get(i) return i, data.get_worker_info() and data.get_worker_info().num_workers or 0 end
      function Pids:len() return 9 end
      local list = {}
      for x, workers in accelerator { dispatch_batches = true }:prepare(data.DataLoader(Pids(),
        { batch_size = 2, num_workers = 2 })):iter() do
        list[#list + 1] = table.concat(x:totable(), ",")
        check(workers:totable()[1] == 2)
      end
      check(table.concat(list, " ") == (rank == 0 and "1,2 5,6 9" or "3,4 7,8 1"), table.concat(list, " "))
    ]])
  end)
end)

describe("dispatch_batches", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("needs device placement", function()
    local accelerator = accelerate.Accelerator { dispatch_batches = true, device_placement = false }
    local loader = data.DataLoader(data.TensorDataset(core.arange(4)), { batch_size = 2 })
    assert.error_matches(function() accelerator:prepare(loader) end,
      "dispatch_batches = true .* device placement off")
  end)

  it("is for one process, too", function()
    local accelerator = accelerate.Accelerator { dispatch_batches = true }
    local loader = accelerator:prepare(data.DataLoader(data.TensorDataset(core.arange(5)),
      { batch_size = 2 }))
    assert.are.equal("DataLoaderDispatcher", tostring(loader))
    local list = {}
    for x in loader:iter() do
      list[#list + 1] = table.concat(x:totable(), ",") .. (loader.end_of_dataloader and "." or "")
    end
    assert.are.same({ "0,1", "2,3", "4." }, list)
    local objects = {}
    local Objects = data.class("Objects")
    function Objects:get(i) return function() return i end end -- luacheck: ignore 212
    function Objects:len() return 2 end -- luacheck: ignore 212
    for f in accelerator:prepare(data.DataLoader(Objects(),
      { batch_size = 2, collate_fn = function(s) return s end })):iter() do
      objects[#objects + 1] = f[1]() + f[2]()
    end
    assert.are.same({ 3 }, objects)
  end)

  it("blames sizes only where they differ", function()
    local list = { core.ones(1, 2), core.ones(2, 2) }
    core.debug_fail_alloc(1)
    local ok, why = pcall(batches.join, list, { 1, 2 })
    core.debug_fail_alloc(0)
    assert.is_false(ok)
    assert.is_truthy(why:find("cat: out of memory", 1, true), why)
  end)

  it("tells items by dim 1 of tensors and by lists without tensors", function()
    assert.are.equal(3, batches.count({ a = "x", b = { core.ones(3, 2) } }, 1))
    assert.are.equal(2, batches.count({ { "a", "b" }, { 1, 2 } }, 2))
    assert.are.equal(2, batches.count({ k = { "a", "b" } }, 1))
    assert.is_nil(batches.count({ k = 3 }, 1))
    assert.is_nil(batches.count(core.tensor(3), 1))
    local joined = batches.join({ { x = core.ones(1, 2), s = { "a" } },
      { x = core.zeros(2, 2), s = { "b", "c" } } }, { 1, 2 })
    assert.are.same({ 3, 2 }, joined.x.shape)
    assert.are.same({ "a", "b", "c" }, joined.s)
    local part = batches.slice(joined, 2, 3, 3)
    assert.are.same({ { 0, 0 }, { 0, 0 } }, part.x:totable())
    assert.are.same({ "b", "c" }, part.s)
  end)
end)
