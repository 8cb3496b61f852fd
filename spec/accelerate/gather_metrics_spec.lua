-- gather_for_metrics: every sample once, however many ranks there are; split_between_processes.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

-- In the ranks: loader(n, options) gives the numbers 1..n; seen(data of a pass by a function of the
-- batch) as text.
local PRELUDE = [[
local data = accelerate.data
local accelerator = accelerate.Accelerator { dataloader_config = accelerate.DataLoaderConfiguration(CONFIG) }
local function loader(n, opts)
  local values = core.arange(1, n + 1)
  return accelerator:prepare(data.DataLoader(data.TensorDataset(values), opts))
end
local function numbers(n)
  local list = {}
  for i = 1, n do list[i] = i end
  return table.concat(list, " ")
end
local function sorted(list)
  table.sort(list)
  return table.concat(list, " ")
end
]]
local function script(config, body) return PRELUDE:gsub("CONFIG", config) .. body end

describe("gather_for_metrics", function()
  after_each(function() state.reset() end)

  it("gives every sample of a data set once, as tensors and as objects, on one to four ranks", function()
    for n = 1, 4 do
      for _, config in ipairs { "{}", "{ split_batches = true }" } do
        ranks.ok(n, script(config, [[
          for _, length in ipairs { 24, 25, 31, 3 } do
            local tensors, strings, tables, asked, sizes = {}, {}, {}, {}, {}
            for x in loader(length, { batch_size = 12, shuffle = true }):iter() do
              local words, rows = {}, {}
              for i, v in ipairs(x:totable()) do
                words[i], rows[i] = ("%03d"):format(v), { v = v, t = x[i] }
              end
              local all = accelerator:gather_for_metrics { t = { x } }
              for _, v in ipairs(all.t[1]:totable()) do tensors[#tensors + 1] = v end
              for _, v in ipairs(accelerator:gather_for_metrics(words)) do
                strings[#strings + 1] = tonumber(v)
              end
              for _, row in ipairs(accelerator:gather_for_metrics(rows)) do
                check(row.t:item() == row.v)
                tables[#tables + 1] = row.v
              end
              local parts = {}
              -- of different shapes, which gather refuses
              for i = 1, x:size(1) do parts[i] = x:narrow(1, 1, i) end
              for _, t in ipairs(accelerator:gather_for_metrics(parts, { use_gather_object = true })) do
                asked[#asked + 1] = t
              end
            end
            check(sorted(tensors) == numbers(length), "tensors: " .. table.concat(tensors, " "))
            check(sorted(strings) == numbers(length) and sorted(tables) == numbers(length))
            check(#asked == length)
          end
        ]]))
      end
    end
  end)

  it("cuts nothing before the last batch, nor outside a pass", function()
    ranks.ok(2, script("{}", [[
      local counts = {}
      for x in loader(10, { batch_size = 4 }):iter() do
        counts[#counts + 1] = accelerator:gather_for_metrics(x):size(1)
        check(accelerator.gradient_state.remainder == 2)
        check(accelerator:gather_for_metrics(core.tensor(5)):numel() == 2,
          "fewer items than the remainder stay")
      end
      check(table.concat(counts, " ") == "8 2", table.concat(counts, " "))
      check(accelerator.gradient_state.remainder == -1)
      check(#accelerator:gather_for_metrics({ 1, 2, "x" }) == 6)
      check(accelerator:gather_for_metrics(core.ones(5)):size(1) == 10)
    ]]))
  end)

  it("takes the remainder of the pass in use: none where all are real, -1 with drop_last", function()
    ranks.ok(2, script("{}", [[
      local state = accelerator.gradient_state
      for _ in loader(16, { batch_size = 4 }):iter() do check(state.remainder == 0) end
      for x in loader(11, { batch_size = 4, drop_last = true }):iter() do
        check(state.remainder == -1 and accelerator:gather_for_metrics(x):size(1) == 8)
      end
      local evaluation = loader(3, { batch_size = 1 })
      for x in loader(9, { batch_size = 4 }):iter() do
        for y in evaluation:iter() do check(state.remainder == 1 and y:size(1) == 1) end
        check(state.remainder == 1 and accelerator:gather_for_metrics(x):size(1) == (state.end_of_dataloader
          and 1 or 8))
      end
    ]]))
  end)

  it("counts the items of a stream once its end is known", function()
    local body = [[
      local Stream = data.class("Stream", data.IterableDataset)
      function Stream:iter()
        local i = 0
        return function()
          i = i + 1
          if i <= 11 then return i end
        end
      end
      local all = {}
      for x in accelerator:prepare(data.DataLoader(Stream(), { batch_size = 2 })):iter() do
        for _, v in ipairs(accelerator:gather_for_metrics(x):totable()) do all[#all + 1] = v end
      end
      check(table.concat(all, " ") == numbers(11), table.concat(all, " "))
    ]]
    ranks.ok(1, script("{}", body))
    ranks.ok(2, script("{}", body))
  end)

  it("cuts lists of columns inside, as tensors and as objects", function()
    for n = 1, 3 do
      for _, config in ipairs { "{}", "{ split_batches = true }", "{ dispatch_batches = true }" } do
        ranks.ok(n, script(config, [[
          for _, length in ipairs { 24, 25, 29, 31 } do
            local words, tensors = {}, {}
            for x in loader(length, { batch_size = 12 }):iter() do
              local column = {}
              for i, v in ipairs(x:totable()) do column[i] = ("%03d"):format(v) end
              local all = accelerator:gather_for_metrics({ column, x }, { use_gather_object = true })
              check(#all == 2 * ranks)
              for k = 1, #all, 2 do
                for _, word in ipairs(all[k]) do words[#words + 1] = tonumber(word) end
                for _, v in ipairs(all[k + 1]:totable()) do tensors[#tensors + 1] = v end
              end
            end
            check(sorted(words) == numbers(length), sorted(words))
            check(sorted(tensors) == numbers(length), sorted(tensors))
          end
        ]]))
      end
    end
  end)

  it("names the list that takes several values", function()
    local accelerator = accelerate.Accelerator()
    for _, name in ipairs { "gather_for_metrics", "gather" } do
      assert.error_matches(function() accelerator[name](accelerator, core.ones(2), core.ones(2)) end,
        name .. ": takes one value, .*p, y = unpack%(accelerator:" .. name .. " { p, y }%)")
      assert.error_matches(function() accelerator[name](accelerator, { 1 }, { 2 }) end, "takes one value")
    end
  end)

  it("says, when asked for such lines, that a length is not known", function()
    local body = script("{}", [[
      for x in loader(5, { batch_size = 2, drop_last = true }):iter() do accelerator:gather_for_metrics(x) end
    ]])
    local _, err = ranks.ok(1, body, { env = { ACCELERATE_LOG_LEVEL = "info" } })
    assert.matches("gather_for_metrics: the loader's length is not known, nothing is cut", err)
    _, err = ranks.ok(1, body)
    assert.are.equal("", err)
  end)

  it("refuses a map with leaves that are no tensors, and unknown options", function()
    local accelerator = accelerate.Accelerator()
    assert.error_matches(function() accelerator:gather_for_metrics { text = "x", t = core.ones(1) } end,
      "gather_for_metrics: .*got a map with other values than tensors in it; " ..
      "gather each of its entries by itself")
    assert.error_matches(function() accelerator:gather_for_metrics("text") end,
      "gather_for_metrics: .* got 'text'")
    assert.error_matches(function() accelerator:gather_for_metrics() end, "gather_for_metrics: .* got nil")
    assert.error_matches(function() accelerator:gather_for_metrics({}, { use_gather_objects = true }) end,
      "did you mean 'use_gather_object'")
  end)
end)

describe("split_between_processes", function()
  after_each(function() state.reset() end)

  it("gives one process its inputs untouched, also with padding", function()
    local accelerator = accelerate.Accelerator()
    for _, inputs in ipairs { { 1, 2, 3 }, core.arange(3), { a = { 1 }, b = core.ones(1) }, {} } do
      for _, object in ipairs { accelerator, accelerator.state, accelerate.PartialState() } do
        local same, second = object:split_between_processes(inputs, { apply_padding = true },
          function(part) return part == inputs, "second" end)
        assert.is_true(same)
        assert.are.equal("second", second)
      end
    end
  end)

  it("gives the first ranks one more, and pads with the last item of the whole input", function()
    for n = 2, 4 do
      ranks.ok(n, [[
        local accelerator = accelerate.Accelerator()
        local data = accelerate.data
        local Words = data.class("Words")
        function Words:len() return self.n end
        function Words:get(i) return "w" .. i end
        for length = 0, 9 do
          local list = {}
          for i = 1, length do list[i] = "w" .. i end
          local words = Words.__new(Words)
          words.n = length
          local tensor = length == 0 and core.empty({ 0, 2 })
            or core.arange(1, 2 * length + 1):reshape(length, 2)
          local want, at = {}, 0
          for r = 0, ranks - 1 do
            local count = math.floor(length / ranks) + (r < length % ranks and 1 or 0)
            if r == rank then for i = at + 1, at + count do want[#want + 1] = "w" .. i end end
            at = at + count
          end
          for _, padded in ipairs { false, true } do
            if padded and length > 0 then
              while #want < math.ceil(length / ranks) do want[#want + 1] = "w" .. length end
            end
            local expected = table.concat(want, " ")
            local inputs = { list = list, words = words, tensor = tensor }
            local got = accelerator:split_between_processes(inputs, { apply_padding = padded },
              function(part) return part end)
            check(table.concat(got.list, " ") == expected, table.concat(got.list, " "))
            check(got.words:len() == #want and got.tensor:size(1) == #want and got.tensor:size(2) == 2)
            for i, word in ipairs(want) do
              check(got.words:get(i) == word and got.tensor[i][1]:item() == 2 * tonumber(word:sub(2)) - 1)
            end
            check(inputs.list == list and #list == length, "the script's own map is left alone")
            local alone = accelerate.PartialState():split_between_processes(list, { apply_padding = padded },
              function(part) return part end)
            check(table.concat(alone, " ") == expected)
          end
        end
        local rows = data.Dataset.from_list { { x = 1 }, { x = 2 }, { x = 3 }, { x = 4 }, { x = 5 } }
        accelerator.state:split_between_processes(rows, function(part)
          check(part:get(1).x == rank * math.floor(5 / ranks) + math.min(rank, 5 % ranks) + 1)
        end)
        local results = accelerate.utils.gather_object(accelerator:split_between_processes({ "a", "b", "c",
          "d", "e" }, function(part) return part end))
        check(table.concat(results) == "abcde")
      ]])
    end
  end)

  it("refuses what cannot be split, by name, on one process and on several", function()
    local body = [[
      local accelerator = accelerate.Accelerator()
      local function fails(pattern, ...)
        local ok, message = pcall(accelerator.split_between_processes, accelerator, ...)
        check(not ok and message:find("split_between_processes: " .. pattern), tostring(message))
      end
      local function body() return 1 end
      fails("inputs is missing", nil, body)
      fails("expected a list, a tensor, a data set, or a map of them, got 'text'", "text", body)
      fails("expected a list, .* got 3 at 'b'", { a = {}, b = 3 }, body)
      fails("a tensor without dims cannot be split", core.tensor(1), body)
      fails("all values of the map must have the same length: 'a' has 1, 'b' has 2",
        { a = { 1 }, b = { 1, 2 } }, body)
      fails("fn is missing", { 1 })
      fails("fn must be a function, got 3", { 1 }, {}, 3)
      fails("unknown option 'padding'", { 1 }, { padding = true }, body)
      fails("option 'apply_padding' must be true or false, got 1", { 1 }, { apply_padding = 1 }, body)
      local ok, message = pcall(accelerator.split_between_processes, accelerator, { 1 },
        function() error("inside") end)
      check(not ok and message:find("inside"))
    ]]
    ranks.ok(1, body)
    ranks.ok(2, body)
  end)
end)
