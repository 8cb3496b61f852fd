--- GLUE's folders, CIFAR's files, JSON Lines, token shards, batches of like lengths.
local accelerate = require "accelerate"
local data = require "accelerate.data"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

describe("load_glue", function()
  it("reads tasks with and without a line of names, and their labels", function()
    host.in_folder(function(folder)
      os.execute(("mkdir '%s/SST-2' '%s/CoLA' '%s/MNLI'"):format(folder, folder, folder))
      disk.write(folder .. "/SST-2/train.tsv", "sentence\tlabel\na \"fine\" film \t1\nbad \t0\n")
      disk.write(folder .. "/SST-2/dev.tsv", "sentence\tlabel\r\nso so\t0\r\n")
      disk.write(folder .. "/SST-2/test.tsv", "index\tsentence\n0\twho knows\n")
      local dict = data.load_glue("sst2", folder)
      assert.same({ "test", "train", "validation" }, dict:splits())
      assert.same({ sentence = "a \"fine\" film ", label = 1, idx = 0 }, dict.train:get(1))
      assert.same({ sentence = "so so", label = 0, idx = 0 }, dict.validation:get(1))
      assert.same({ sentence = "who knows", idx = 0 }, dict.test:get(1))
      disk.write(folder .. "/CoLA/train.tsv", "gj04\t1\t\tThey came.\ngj04\t0\t*\tThey came them.\n")
      local cola = data.load_glue("cola", folder .. "/CoLA", { split = "train" })
      assert.same({ 1, 0 }, { cola:get(1).label, cola:get(2).label })
      assert.equal("They came them.", cola:get(2).sentence)
      disk.write(folder .. "/MNLI/dev_matched.tsv",
        "index\tsentence1\tsentence2\tgold_label\n0\tA\tB\tcontradiction\n")
      assert.equal(2, data.load_glue("mnli", folder).validation_matched:get(1).label)
    end)
  end)

  it("names the line that is wrong", function()
    host.in_folder(function(folder)
      disk.write(folder .. "/train.tsv", "sentence\tlabel\nfine\t1\nno label\n")
      raises("line 3 has 1 fields", data.load_glue, "sst2", folder)
      disk.write(folder .. "/train.tsv", "sentence\tlabel\nfine\tgood\n")
      raises("line 2: the label 'good'", data.load_glue, "sst2", folder)
      disk.write(folder .. "/train.tsv", "text\tlabel\nfine\t1\n")
      raises("no column 'sentence'", data.load_glue, "sst2", folder)
      raises("split 'validation'", data.load_glue, "sst2", folder, { split = "validation" })
      raises("task", data.load_glue, "sst", folder)
    end)
  end)
end)

describe("CIFAR", function()
  it("is read from its binary files", function()
    host.in_folder(function(folder)
      local record = {}
      for i = 0, 3071 do record[i + 1] = string.char(i % 251) end
      local pixels = table.concat(record)
      for k = 1, 5 do disk.write(("%s/data_batch_%d.bin"):format(folder, k), string.char(k) .. pixels) end
      disk.write(folder .. "/test_batch.bin", "\9" .. pixels .. "\0" .. pixels)
      disk.write(folder .. "/batches.meta.txt", "airplane\nautomobile\n")
      local train = data.CIFAR10 { root = folder }
      assert.equal(5, train:len())
      local image, label = train:get(3)
      assert.same({ 3, 32, 32 }, image.shape)
      assert.equal(3, label:item())
      assert.equal((2 * 1024 + 5 * 32 + 7) % 251, image[{ 3, 6, 8 }]:item())
      assert.equal("automobile", train.classes[2])
      assert.same({ 9, 0 }, data.CIFAR10({ root = folder, split = "test" }).targets:tolist())
      disk.write(folder .. "/train.bin", "\3\77" .. pixels)
      local hundred = data.CIFAR100 { root = folder, transform = function(x) return x:to "float32" end }
      image, label = hundred:get(1)
      assert.same({ "float32", 77 }, { image.dtype, label:item() })
      disk.write(folder .. "/train.bin", "\3\77" .. pixels .. "x")
      raises("no whole number of records", data.CIFAR100, { root = folder })
      disk.write(folder .. "/test_batch.bin", "\10" .. pixels)
      raises("a label 10", data.CIFAR10, { root = folder, split = "test" })
    end)
  end)
end)

describe("JsonLines", function()
  it("streams the objects of files, again in each pass", function()
    host.in_folder(function(folder)
      disk.write(folder .. "/a.jsonl", '{"text": "one"}\n\n{"text": "two"}\r\n')
      disk.write(folder .. "/b.jsonl", '{"text": "three"}')
      local stream = data.JsonLines { folder .. "/a.jsonl", folder .. "/b.jsonl" }
      for _ = 1, 2 do
        local seen = {}
        for row in stream:iter() do seen[#seen + 1] = row.text end
        assert.same({ "one", "two", "three" }, seen)
      end
      local loader = data.DataLoader(stream:map(function(row) return #row.text end), { batch_size = 2 })
      local batches = {}
      for x in loader:iter() do batches[#batches + 1] = x:tolist() end
      assert.same({ { 3, 3 }, { 5 } }, batches)
      disk.write(folder .. "/b.jsonl", '{}\n{"text": }\n')
      raises("line 2", function() for _ in data.JsonLines(folder .. "/b.jsonl"):iter() do end end)
      raises("absent", function() for _ in data.JsonLines(folder .. "/absent"):iter() do end end)
    end)
  end)
end)

describe("write_token_shards", function()
  it("writes files that TokenDataset reads", function()
    host.in_folder(function(folder)
      local texts = { "the first text", "and the second one", "the third" }
      local tokenizer = accelerate.tokenizers.train_bpe(texts, { vocab_size = 270, special_tokens = { "<e>" },
        eos_token = "<e>" })
      local wanted = {}
      for _, text in ipairs(texts) do
        for _, id in ipairs(tokenizer:encode(text)) do wanted[#wanted + 1] = id end
        wanted[#wanted + 1] = tokenizer.eos_token_id
      end
      for _, dtype in ipairs { "uint16", "uint32" } do
        local paths, total = data.write_token_shards(folder .. "/" .. dtype, texts,
          { tokenizer = tokenizer, dtype = dtype, shard_tokens = 7 })
        assert.equal(#wanted, total)
        assert.equal(math.ceil(#wanted / 7), #paths)
        local x, y = data.TokenDataset(paths[1], { block_size = 6, dtype = dtype }):get(1)
        assert.same({ unpack(wanted, 1, 6) }, x:tolist())
        assert.same({ unpack(wanted, 2, 7) }, y:tolist())
      end
      local i = 0
      local _, total = data.write_token_shards(folder .. "/fn", function()
        i = i + 1
        return texts[i]
      end, { tokenizer = tokenizer })
      assert.equal(#wanted, total)
      raises("method encode", data.write_token_shards, folder .. "/x", texts, { tokenizer = 5 })
      raises("does not fit uint16", data.write_token_shards, folder .. "/x", texts,
        { tokenizer = tokenizer, eos_token_id = 70000, dtype = "uint16" })
    end)
  end)
end)

describe("LengthGroupedSampler", function()
  it("yields every position once, neighbours of like length, the longest first", function()
    tensor.manual_seed(1)
    local lengths = {}
    for i = 1, 1000 do lengths[i] = (i * 7919) % 503 end
    local sampler = data.LengthGroupedSampler(lengths, { batch_size = 8, mega_batches = 10 })
    assert.equal(1000, sampler:len())
    local passes = {}
    for pass = 1, 2 do
      local seen, order = {}, {}
      for position in sampler:iter() do
        assert.is_nil(seen[position])
        seen[position] = true
        order[#order + 1] = position
      end
      assert.equal(1000, #order)
      assert.equal(502, lengths[order[1]])
      local waste, random = 0, 0
      for at = 1, 1000, 8 do
        local longest, sum = 0, 0
        for k = at, at + 7 do longest, sum = math.max(longest, lengths[order[k]]), sum + lengths[order[k]] end
        waste = waste + 8 * longest - sum
        longest, sum = 0, 0
        for k = at, at + 7 do longest, sum = math.max(longest, lengths[k]), sum + lengths[k] end
        random = random + 8 * longest - sum
      end
      assert.is_true(waste < random / 4)
      passes[pass] = table.concat(order, " ")
    end
    assert.is_true(passes[1] ~= passes[2])
    local loader = data.DataLoader({ get = function(_, i) return lengths[i] end,
      len = function() return 1000 end },
      { batch_size = 8, sampler = sampler })
    local n = 0
    for x in loader:iter() do n = n + #x end
    assert.equal(1000, n)
    raises("lengths[2]", data.LengthGroupedSampler, { 1, "a" }, { batch_size = 1 })
    assert.equal(0, data.LengthGroupedSampler({}, { batch_size = 1 }):len())
  end)
end)

describe("load_dataset", function()
  it("reads a task of GLUE from a folder, and says where the folder goes", function()
    host.in_folder(function(folder)
      os.execute(("mkdir '%s/SST-2'"):format(folder))
      disk.write(folder .. "/SST-2/train.tsv", "sentence\tlabel\nfine\t1\n")
      local train = data.load_dataset("glue", "sst2", { data_dir = folder, split = "train" })
      assert.same({ sentence = "fine", label = 1, idx = 0 }, train:get(1))
    end)
    raises("unpack SST-2.zip of gluebenchmark.com/tasks into FOLDER, so that FOLDER/SST-2/train.tsv is there",
      data.load_dataset, "glue", "sst2")
    raises('data.CIFAR10 { root = "FOLDER" }', data.load_dataset, "cifar10")
    raises('to_json("train.jsonl") writes a file', data.load_dataset, "wikitext", "wikitext-2-v1")
    raises('write load_dataset("json", { data_files = "a.json" })', data.load_dataset, "json", "a.json")
  end)

  it("says what to do with parquet files", function()
    raises("parquet files are not supported", data.load_dataset, "parquet", { data_files = "a.parquet" })
  end)
end)
