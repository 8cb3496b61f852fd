local core = require "accelerate.core"
local data = require "accelerate.data"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local raises = require("spec.support.messages").raises

local function drain(set)
  local list = {}
  for sample in set:iter() do list[#list + 1] = sample end
  return list
end

local function words()
  return data.Dataset.from_table { text = { "a", "bb", "ccc", "dddd", "eeeee" }, label = { 1, 0, 1, 0, 1 } }
end

-- Stands in for a tokenizer: one id for each letter.
local function letters(texts)
  local ids = {}
  for i, text in ipairs(texts) do ids[i] = { text:byte(1, -1) } end
  return ids
end

describe("a table", function()
  it("is made of columns or of rows", function()
    local set = words()
    assert.equal(5, set:len())
    assert.same({ "label", "text" }, set.column_names)
    assert.same({ text = "bb", label = 0 }, set:get(2))
    assert.equal("Dataset(columns: label, text; rows: 5)", tostring(set))
    local rows = data.Dataset.from_list { { a = 1, b = "x" }, { a = 2, b = "y" } }
    assert.same({ { a = 1, b = "x" }, { a = 2, b = "y" } }, rows:to_list())
    assert.same({ 1, 2 }, rows:column "a")
    local made = data.Dataset.from_generator(function() return coroutine.wrap(function()
      for i = 1, 3 do coroutine.yield { square = i * i } end
    end) end)
    assert.same({ 1, 4, 9 }, made:column "square")
    local tensors = data.Dataset.from_table { x = core.arange(6):view(3, 2),
      y = core.tensor { 0.5, 1.5, 2.5 } }
    assert.same({ 2, 3 }, tensors:get(2).x:totable())
    assert.equal(1.5, tensors:get(2).y)
    assert.same({ "b", "a" },
      data.Dataset.from_table({ a = { 1 }, b = { 2 } }, { column_names = { "b", "a" } }).column_names)
  end)

  it("refuses what is no table", function()
    raises("columns must be equally long; 'a' has 2 rows, 'b' has 1", data.Dataset.from_table,
      { a = { 1, 2 }, b = { 1 } })
    raises("column 'a' must be a list of values or a tensor, got 5", data.Dataset.from_table, { a = 5 })
    raises("from_list: row 2 has no 'b', but row 1 has", data.Dataset.from_list,
      { { a = 1, b = 2 }, { a = 1 } })
    raises("from_list: row 2 has 2 fields, row 1 has 1", data.Dataset.from_list,
      { { a = 1 }, { a = 1, b = 2 } })
    raises("expected a position from 1 to 5, got 6", words().get, words(), 6)
    raises("there is no column 'txt'; did you mean 'text'?", words().column, words(), "txt")
  end)

  it("runs the migration script's lines", function()
    local dataset = data.DatasetDict { train = words(), validation = words() }
    local tokenized = dataset:map(function(examples) return { input_ids = letters(examples.text) } end,
      { batched = true })
    local train = tokenized["train"]:shuffle { seed = 42 }:remove_columns { "text" }
    train:set_format "torch"
    local loader = data.DataLoader(train, { batch_size = 2, shuffle = true, collate_fn = data.collate.pad() })
    local seen = 0
    for batch in loader:iter() do
      assert.equal("int64", batch.input_ids.dtype)
      assert.same(batch.input_ids.shape, batch.attention_mask.shape)
      seen = seen + batch.label:numel()
    end
    assert.equal(5, seen)
    assert.same({ train = 5, validation = 5 }, tokenized:num_rows())
  end)

  it("maps rows, and batches to batches", function()
    local set = words():map(function(row) return { size = #row.text, label = row.label * 10 } end)
    assert.same({ "label", "text", "size" }, set.column_names)
    assert.same({ 10, 0, 10, 0, 10 }, set:column "label")
    assert.same({ 1, 2, 3, 4, 5 }, set:column "size")
    local sizes = {}
    set = words():map(function(batch, positions)
      sizes[#sizes + 1] = #positions
      return { at = positions }
    end, { batched = true, batch_size = 2, with_indices = true, remove_columns = "label" })
    assert.same({ 2, 2, 1 }, sizes)
    assert.same({ "text", "at" }, set.column_names)
    assert.same({ 1, 2, 3, 4, 5 }, set:column "at")
    set = words():map(function(text, label) return { both = text .. label } end,
      { input_columns = { "text", "label" } })
    assert.same({ "a1", "bb0" }, { unpack(set:column "both", 1, 2) })
    local doubled = words():map(function(batch)
      local out = {}
      for _, text in ipairs(batch.text) do
        out[#out + 1] = text
        out[#out + 1] = text:upper()
      end
      return { word = out }
    end, { batched = true, batch_size = 2, remove_columns = { "text", "label" } })
    assert.equal(10, doubled:len())
    assert.equal("BB", doubled:get(4).word)
    local seen = 0
    local same = words()
    assert.equal(same, same:map(function() seen = seen + 1 end))
    assert.equal(5, seen)
    for _, batched in ipairs { true, false } do
      local kept = same:map(function() return {} end, { batched = batched, remove_columns = "label" })
      assert.same({ 5, { "text" } }, { kept:len(), kept.column_names })
    end
    local embedded = words():map(function(batch) return { v = core.ones(#batch.text, 3) } end,
      { batched = true, batch_size = 2 })
    assert.same({ 1, 1, 1 }, embedded:get(5).v:totable())
  end)

  it("says what map's function did wrong", function()
    raises("must give a table of columns, or nil, got 5 for row 1", words().map, words(),
      function() return 5 end)
    raises("gave 1 rows for 5, but column 'label' stays", words().map, words(),
      function() return { x = { 1 } } end, { batched = true })
    raises("column 'x' must be a list or a tensor, got 1", words().map, words(),
      function() return { x = 1 } end, { batched = true })
    raises("gave the columns b for row 2, and a before", words().map, words(), function(row)
      return row.text == "a" and { a = 1 } or { b = 1 }
    end)
    raises("map: unknown option 'batchd'; did you mean 'batched'?", words().map, words(), print,
      { batchd = true })
    raises("there is no column 'x'", words().map, words(), print, { remove_columns = "x" })
  end)

  it("filters, selects, sorts, splits", function()
    local set = words()
    assert.same({ "a", "ccc", "eeeee" }, set:filter(function(row) return row.label == 1 end):column "text")
    assert.same({ "a", "bb" },
      set:filter(function(_, i) return i < 3 end, { with_indices = true }):column "text")
    assert.same({ "bb", "dddd" }, set:filter(function(batch)
      local keep = {}
      for i, label in ipairs(batch.label) do keep[i] = label == 0 end
      return keep
    end, { batched = true, batch_size = 3 }):column "text")
    assert.same({ "eeeee", "a" }, set:select { 5, 1 }:column "text")
    assert.same({ "a" }, set:select({ 5, 1 }):select({ 2 }):column "text")
    assert.same({ "bb", "dddd", "a", "ccc", "eeeee" }, set:sort "label":column "text")
    assert.same({ "a", "ccc", "eeeee", "bb", "dddd" }, set:sort("label", { reverse = true }):column "text")
    assert.same({ "a", "bb" }, set:take(2):column "text")
    assert.same({ "dddd", "eeeee" }, set:skip(3):column "text")
    assert.same({ 3, 2 },
      { set:shard { num_shards = 2, index = 0 }:len(), set:shard { num_shards = 2, index = 1 }:len() })
    assert.same({ "bb", "dddd" }, set:shard { num_shards = 2, index = 1, contiguous = false }:column "text")
    assert.same({ 1, 0 }, set:unique "label")
    local split = set:train_test_split { test_size = 2, seed = 3 }
    assert.same({ test = 2, train = 3 }, split:num_rows())
    local seen = {}
    for _, part in ipairs { split.train, split.test } do
      for _, text in ipairs(part:column "text") do seen[#seen + 1] = text end
    end
    table.sort(seen)
    assert.same(set:column "text", seen)
    split = set:train_test_split { test_size = 0.4, shuffle = false }
    assert.same({ "dddd", "eeeee" }, split.test:column "text")
    assert.equal(1, set:train_test_split { test_size = 1, train_size = 1 }.train:len())
    raises("5 samples to train on and 1 to test with cannot be had from 5", set.train_test_split, set,
      { test_size = 1, train_size = 5 })
  end)

  it("shuffles the same way for the same seed", function()
    local a, b = words():shuffle { seed = 42 }, words():shuffle { seed = 42 }
    assert.same(a:column "text", b:column "text")
    assert.not_same(words():column "text", words():shuffle { seed = 1 }:column "text")
    assert.same(a:column "text", words():shuffle { generator = core.Generator(42) }:column "text")
  end)

  it("renames, adds, removes and joins columns", function()
    local set = words():rename_column("text", "sentence"):add_column("id", { 1, 2, 3, 4, 5 })
    assert.same({ "label", "sentence", "id" }, set.column_names)
    assert.same({ "id" }, set:remove_columns { "label", "sentence" }.column_names)
    assert.same({ "id", "label" }, set:select_columns { "id", "label" }.column_names)
    local shuffled = words():shuffle { seed = 1 }
    assert.equal(shuffled:get(1).text, shuffled:add_column("id", { 5, 4, 3, 2, 1 }):get(1).text)
    raises("there would be two columns 'text'", words().rename_column, words(), "label", "text")
    raises("there are 5 rows, got 1 values", words().add_column, words(), "x", { 1 })
    raises("no column would be left", words().remove_columns, words(), { "label", "text" })
    local both = data.concatenate_datasets { words(), words():take(1) }
    assert.equal(6, both:len())
    assert.equal("a", both:get(6).text)
    raises("all must have the same columns", data.concatenate_datasets,
      { words(), words():remove_columns "text" })
  end)

  it("gives tensors in format torch, of one dtype for the whole column", function()
    local set = data.Dataset.from_table { x = { 1, 2.5, 3 }, n = { 1, 2, 3 },
      ids = { { 1, 2 }, { 3, 4 }, { 5, 6 } },
      ragged = { { 1 }, { 2, 3 }, {} }, name = { "a", "b", "c" }, flag = { true, false, true } }
    set:set_format "torch"
    local row = set:get(2)
    assert.same({ "float32", "int64", "int64", "int64", "bool" },
      { row.x.dtype, row.n.dtype, row.ids.dtype, row.ragged.dtype, row.flag.dtype })
    assert.equal("b", row.name)
    assert.same({ 0, 2 }, { row.x.ndim, row.ragged:size(1) })
    assert.is_false(set:can_get_batch())
    local fast = set:remove_columns "ragged"
    assert.is_true(fast:can_get_batch())
    for _, workers in ipairs { 0, 1 } do
      local batch = data.DataLoader(fast:select { 3, 1, 2 },
        { batch_size = 2, num_workers = workers }):iter()()
      assert.same({ 3, 1 }, batch.x:totable())
      assert.equal("float32", batch.x.dtype)
      assert.same({ { 5, 6 }, { 1, 2 } }, batch.ids:totable())
      assert.same({ "c", "a" }, batch.name)
      assert.same({ true, true }, batch.flag:totable())
    end
    local some = set:with_format("torch", { columns = { "n" } })
    assert.same({ n = 2 }, { n = some:get(2).n:item(), name = some:get(2).name })
    some = set:with_format("torch", { columns = { "n" }, output_all_columns = true })
    assert.equal("b", some:get(2).name)
    assert.equal(2.5, some:get(2).x)
    set:reset_format()
    assert.same({ 2, 3 }, set:get(2).ragged)
    raises("the format must be one of torch, got 'numpy'", set.set_format, set, "numpy")
  end)
end)

describe("any dataset", function()
  local set = data.TensorDataset(core.arange(10, { dtype = "float32" }), core.arange(10))

  it("can be mapped, filtered, shuffled and cut", function()
    local x, y = set:map(function(a, b) return a * 2, b + 1 end):get(4)
    assert.same({ 6, 4 }, { x:item(), y:item() })
    assert.equal(5, set:filter(function(_, b) return b:item() % 2 == 0 end):len())
    assert.equal(3, set:filter(function(_, _, i) return i > 7 end, { with_indices = true }):len())
    assert.equal(7, select(2, set:skip(5):take(3):get(3)):item())
    local split = set:train_test_split { seed = 1 }
    assert.same({ test = 3, train = 7 }, split:num_rows())
    assert.same(set:shuffle({ seed = 2 }).indices, set:shuffle({ seed = 2 }).indices)
    local sum = 0
    for a in data.DataLoader(set:shuffle { seed = 2 }, { batch_size = 4 }):iter() do
      sum = sum + a:sum():item()
    end
    assert.equal(45, sum)
    raises("the function gave nothing for sample 1", set.map, set, function() end)
  end)

  it("can be transformed as it is read", function()
    local calls = 0
    local seen = set:with_transform(function(a, b)
      calls = calls + 1
      return a + 100, b
    end)
    assert.equal(0, calls)
    assert.equal(100, seen:get(1):item())
    assert.equal(100 * 10 + 45, data.DataLoader(seen, { batch_size = 10 }):iter()():sum():item())
  end)

  it("can be one of several", function()
    local joined = data.ConcatDataset { set, data.Subset(set, { 1 }), set }
    assert.same({ 10, 11, 21 }, joined.cumulative_sizes)
    assert.equal(21, joined:len())
    for i, expected in pairs { [1] = 0, [10] = 9, [11] = 0, [12] = 0, [21] = 9 } do
      assert.equal(expected, joined:get(i):item())
    end
    raises("expected a position from 1 to 21, got 22", joined.get, joined, 22)
    raises("ConcatDataset: expected a list of datasets, but it has no entry 2", data.ConcatDataset,
      { set, nil, set })
    raises("Subset: expected a list of positions, but it has no entry 2", data.Subset, set, { 1, nil, 1 })
    raises("random_split: expected a list of lengths, but it has no entry 2", data.random_split, set,
      { 5, nil, 5 })
    raises("random_split: expected a list of lengths, but it has the key 'generator'", data.random_split, set,
      { 5, 5, generator = 1 })
    raises("WeightedRandomSampler: expected a list of weights, but it has no entry 2",
      data.WeightedRandomSampler, { 1, nil, 2 }, 3)
    raises("entry 2 of the list must be a dataset with get(i) and len(), got 5", data.ConcatDataset,
      { set, 5 })
    assert.equal(105 - 15, data.DataLoader(joined, { batch_size = 21 }):iter()():sum():item())
  end)

  it("keeps these methods in classes made from it", function()
    local Squares = data.class("Squares")
    function Squares:len() return 5 end
    function Squares:get(i) return i * i end
    assert.equal(25, Squares():filter(function(v) return v > 10 end):get(2))
  end)
end)

describe("a stream", function()
  local Count = data.class("Count", data.IterableDataset)
  function Count:init(n) self.n = n end
  function Count:len() return self.n end
  function Count:iter()
    local i = 0
    return function()
      i = i + 1
      if i <= self.n then return i end
    end
  end

  it("is mapped, filtered and cut as it is read", function()
    local stream = Count(10):map(function(i) return i * 10 end):filter(function(i) return i % 20 == 0 end)
    assert.same({ 20, 40, 60, 80, 100 }, drain(stream))
    assert.same({ 20, 40, 60, 80, 100 }, drain(stream))
    assert.same({ 4, 5, 6 }, drain(Count(10):skip(3):take(3)))
    assert.equal(3, Count(10):skip(3):take(3):len())
    assert.same({}, drain(Count(2):skip(5)))
    assert.is_nil(stream.len)
    assert.same({ { 20, 40 }, { 60, 80 }, { 100 } }, (function()
      local batches = {}
      for x in data.DataLoader(stream, { batch_size = 2 }):iter() do batches[#batches + 1] = x:totable() end
      return batches
    end)())
  end)

  it("is shuffled within a buffer, another way in each pass", function()
    local stream = Count(20):shuffle { buffer_size = 5, seed = 3 }
    local first, second = drain(stream), drain(stream)
    assert.not_same(first, second)
    assert.is_true(first[1] <= 5 and first[2] <= 6)
    stream:set_epoch(0)
    assert.same(first, drain(stream))
    table.sort(first)
    assert.same(drain(Count(20)), first)
  end)

  it("is chained", function()
    local chain = data.ChainDataset { Count(2), Count(0), Count(3) }
    assert.same({ 1, 2, 1, 2, 3 }, drain(chain))
    assert.equal(5, chain:len())
    raises("entry 1 of the list must be a stream with iter(), got 5", data.ChainDataset, { 5 })
    assert.same({}, drain(data.ChainDataset { Count(0) }))
  end)
end)

describe("padding", function()
  it("makes one tensor of sequences that differ in length", function()
    assert.same({ { 1, 2, 3 }, { 4, 0, 0 } }, data.pad_sequence({ { 1, 2, 3 }, { 4 } }):totable())
    assert.same({ { 1, 2 }, { 9, 4 } },
      data.pad_sequence({ { 1, 2 }, { 4 } }, { padding_value = 9, padding_side = "left" }):totable())
    assert.same({ { 1, 4 }, { 2, 0 } }, data.pad_sequence({ core.tensor { 1, 2 }, core.tensor { 4 } },
      { batch_first = false }):totable())
    assert.equal("float32", data.pad_sequence({ { 1, 2.5 } }).dtype)
    assert.equal("int64", data.pad_sequence({ { 1, 2 } }).dtype)
    assert.same({ 2, 4, 2 }, data.pad_sequence({ core.ones(3, 2), core.ones(4, 2) }).shape)
    assert.same({ 1, 5 }, data.pad_sequence({ { 1 } }, { length = 5 }).shape)
    assert.same({ 2, 0 }, data.pad_sequence({ {}, {} }).shape)
    raises("sequence 2 must be a list of numbers, got 5", data.pad_sequence, { { 1 }, 5 })
    raises("sequences must agree in dtype and in all sizes but that of dim 1", data.pad_sequence,
      { core.ones(2, 3), core.ones(2, 4) })
    raises("sequence 1 has 3 entries, more than length = 2", data.pad_sequence, { { 1, 2, 3 } },
      { length = 2 })
    raises("entry 2 of sequence 1 must be a number, got 'x'", data.pad_sequence, { { 1, "x" } })
  end)

  it("collates with what a tokenizer pads with", function()
    local tokenizer = require "accelerate.tokenizers".train_bpe({ "a b" }, { vocab_size = 257 })
    raises("the tokenizer has no pad_token; set tokenizer.pad_token_id", data.DataCollatorWithPadding,
      tokenizer)
    raises("tokenizer must be a tokenizer, got 3", data.DataCollatorWithPadding, { tokenizer = 3 })
    tokenizer.pad_token_id, tokenizer.padding_side = 9, "left"
    local samples = { { input_ids = { 1, 2 } }, { input_ids = { 3 } } }
    local batch = data.DataCollatorWithPadding(tokenizer)(samples)
    assert.same({ { 1, 2 }, { 9, 3 } }, batch.input_ids:totable())
    assert.same({ { 1, 1 }, { 0, 1 } }, batch.attention_mask:totable())
    batch = data.DataCollatorWithPadding { tokenizer = tokenizer, padding_side = "right", max_length = 3 } (
      samples)
    assert.same({ { 1, 2, 9 }, { 3, 9, 9 } }, batch.input_ids:totable())
  end)

  it("calls a field label, or label_ids, labels, as Transformers' models do", function()
    local tokenizer = require "accelerate.tokenizers".train_bpe({ "a b" }, { vocab_size = 257 })
    tokenizer.pad_token_id = 9
    local collate = data.DataCollatorWithPadding(tokenizer)
    local batch = collate { { input_ids = { 1, 2 }, label = 3 }, { input_ids = { 4 }, label = 5 } }
    assert.same({ 3, 5 }, batch.labels:totable())
    assert.is_nil(batch.label)
    batch = collate { { input_ids = { 1, 2 }, label_ids = { 3, 4 } },
      { input_ids = { 4 }, label_ids = { 5 } } }
    assert.same({ { 3, 4 }, { 5, -100 } }, batch.labels:totable())
    assert.is_nil(batch.label_ids)
  end)

  it("collates samples of tables", function()
    local collate = data.DataCollatorWithPadding { padding_value = 7, pad_to_multiple_of = 4 }
    local batch = collate { { input_ids = { 1, 2, 3, 4, 5 }, labels = { 1, 1 }, y = 3, name = "a" },
      { input_ids = { 6 }, labels = { 2 }, y = 4, name = "b" } }
    assert.same({ { 1, 2, 3, 4, 5, 7, 7, 7 }, { 6, 7, 7, 7, 7, 7, 7, 7 } }, batch.input_ids:totable())
    assert.same({ { 1, 1, 1, 1, 1, 0, 0, 0 }, { 1, 0, 0, 0, 0, 0, 0, 0 } }, batch.attention_mask:totable())
    assert.same({ { 1, 1, -100, -100 }, { 2, -100, -100, -100 } }, batch.labels:totable())
    assert.same({ 3, 4 }, batch.y:totable())
    assert.same({ "a", "b" }, batch.name)
    batch = data.collate.pad { attention_mask = false, padding_values = { b = 5 }, max_length = 2,
      padding_side = "left" } {
      { a = { 1 }, b = { 1 } }, { a = { 1, 2 }, b = {} } }
    assert.same({ a = { { 0, 1 }, { 1, 2 } }, b = { { 5, 1 }, { 5, 5 } } },
      { a = batch.a:totable(), b = batch.b:totable() })
    assert.is_nil(batch.attention_mask)
    raises("'a' has a sequence of 3 entries, more than max_length = 2",
      data.collate.pad { max_length = 2 }, { { a = { 1, 2, 3 } } })
    raises("'a' of sample 2 must be a list of numbers or a tensor, got 5", data.collate.pad(),
      { { a = { 1 } }, { a = 5 } })
    raises("expected samples that are tables, got 5", data.collate.pad(), { 5 })
  end)
end)

describe("a plain list", function()
  it("is a dataset of its items", function()
    local seen = {}
    for batch in data.DataLoader({ 4, 5, 6 }, { batch_size = 2 }):iter() do
      seen[#seen + 1] = batch:totable()
    end
    assert.same({ { 4, 5 }, { 6 } }, seen)
    local pairs_of = { { core.ones(2), 0 }, { core.zeros(2), 1 }, { core.ones(2), 2 } }
    local loader = data.DataLoader(pairs_of, { batch_size = 3, num_workers = 1 })
    for x, y in loader:iter() do
      assert.same({ { { 1, 1 }, { 0, 0 }, { 1, 1 } }, { 0, 1, 2 } }, { x:totable(), y:totable() })
    end
    for batch in data.DataLoader({ { a = 1, b = "x" }, { a = 2, b = "y" } }, { batch_size = 2 }):iter() do
      assert.same({ { 1, 2 }, { "x", "y" } }, { batch.a:totable(), batch.b })
    end
    assert.equal(3, #loader.dataset)
  end)

  it("is divided, and drawn from", function()
    local first, second = data.random_split({ 1, 2, 3, 4, 5 }, { 3, 2 })
    assert.same({ 3, 2 }, { #first, #second })
    assert.equal(7, data.Subset({ 5, 6, 7 }, { 3 })[1])
    assert.equal(3, data.RandomSampler({ 5, 6, 7 }):len())
    local joined = data.ConcatDataset { { 1, 2 }, data.Subset({ 5, 6, 7 }, { 3 }) }
    assert.same({ 3, 2, 7 }, { #joined, joined[2], joined[3] })
    raises("DataLoader: expected a dataset with get(i) and len(), or with iter(), got a table",
      data.DataLoader, {})
    raises("got a table", data.DataLoader, { x = 1 })
  end)
end)

describe("a tensor", function()
  it("is a dataset of its rows", function()
    local x = core.arange(10):view(5, 2)
    local seen = {}
    for batch in data.DataLoader(x, { batch_size = 3 }):iter() do seen[#seen + 1] = batch:totable() end
    assert.same({ { { 0, 1 }, { 2, 3 }, { 4, 5 } }, { { 6, 7 }, { 8, 9 } } }, seen)
    local rows
    local loader = data.DataLoader(x, { batch_size = 2, sampler = data.SequentialSampler(x),
      collate_fn = function(batch)
        rows = batch
        return core.stack(batch)
      end })
    assert.same({ { 0, 1 }, { 2, 3 } }, loader:iter()():totable())
    assert.same({ { 0, 1 }, { 2, 3 } }, { rows[1]:totable(), rows[2]:totable() })
    assert.same({ 4, 5 }, data.Subset(x, { 3, 1 })[1]:totable())
    local first, second = data.random_split(x, { 3, 2 })
    assert.same({ 3, 2, 5 }, { #first, #second, data.RandomSampler(x):len() })
    assert.same({ 2, 3 }, data.ConcatDataset({ x, { 7 } })[2]:totable())
    raises("expected a dataset with get(i) and len(), or with iter(), got a float32 tensor", data.DataLoader,
      core.tensor(5))
  end)
end)

describe("first + second", function()

  it("has the samples of both", function()
    local Squares = data.class("Squares")
    function Squares:init(n) self.n = n end
    function Squares:len() return self.n end
    function Squares:get(i) return i * i, self.n end -- luacheck: ignore 212
    local both = Squares(3) + Squares(4) + data.TensorDataset(require("accelerate.core").arange(2))
    assert.equal(9, #both)
    assert.same({ 4, 4 }, { both:get(5) })
    assert.equal("ConcatDataset", both.__name)
    local Count = data.class("Count", data.IterableDataset)
    function Count:iter()
      local i = 0
      return function()
        i = i + 1
        if i <= 2 then return i end
      end
    end
    local seen = {}
    for i in (Count() + Count()):iter() do seen[#seen + 1] = i end
    assert.same({ 1, 2, 1, 2 }, seen)
  end)
end)

describe("a column of a table", function()
  it("is a tensor where its values are numbers, and a list of the rest", function()
    local set = words()
    assert.same({ "a", "bb", "ccc", "dddd", "eeeee" }, set.text)
    assert.equal("int64", set["label"].dtype)
    assert.same({ 1, 0, 1, 0, 1 }, set.label:tolist())
    local some = set:select { 5, 2 }
    assert.same({ "eeeee", "bb" }, some.text)
    assert.same({ 1, 0 }, some.label:tolist())
    assert.is_nil(set.lable)
  end)

  it("stands behind a method or a field of its name", function()
    local set = data.Dataset.from_table { len = { 1, 2 }, num_rows = { 5, 6 }, x = { 0.5, 1 } }
    assert.equal(2, set:len())
    assert.equal(2, set.num_rows)
    assert.equal(0.5, set.x[1]:item())
  end)

  it("is there in what read_csv gives", function()
    host.in_folder(function(folder)
      disk.write(folder .. "/t.csv", "name,price\nx,1.5\ny,2.5\n")
      local set = data.read_csv(folder .. "/t.csv")
      assert.same({ "x", "y" }, set.name)
      assert.equal(4, set["price"]:sum():item())
    end)
  end)
end)
