--- accelerate.tokenizers beside what Hugging Face's tokenizers and Transformers gave
--- (spec/generators/gen_tokenizers_reference.py).
local accelerate = require "accelerate"
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local tokenizers = accelerate.tokenizers

-- Compares lists as JSON, whose differences are short to read.
local function same_list(wanted, got, what)
  assert.equal(json.encode(wanted), json.encode(got), what)
end

local FOLDER = "spec/reference/tokenizers/"
local KINDS = { "bert", "gpt2", "llama3", "roberta", "unigram", "fallback", "pieces" }

local function reference(name) return assert(json.decode(disk.read(FOLDER .. name .. ".json"))) end
local others = reference "others"

-- A tokenizer of a kind with the roles that the reference gave its special tokens.
local function make(kind)
  local wanted = reference(kind .. ".reference")
  local t = tokenizers.from_file(FOLDER .. kind .. ".json")
  for role, token in pairs(wanted.settings) do
    if role ~= "padding_side" then t:add_special_tokens { [role] = token } else t.padding_side = token end
  end
  return t, wanted
end

describe("a tokenizer", function()
  for _, kind in ipairs(KINDS) do
    it("of the kind " .. kind .. " has the ids, offsets, words and texts of the reference", function()
      local t = tokenizers.from_file(FOLDER .. kind .. ".json")
      for i, row in ipairs(reference(kind .. ".reference").rows) do
        local text = others.texts[i]
        local got = t(text, { return_offsets_mapping = true, return_word_ids = true })
        local what = ("text %d, %q"):format(i, text)
        same_list(row.ids, got.input_ids, what)
        same_list(row.ids, t:encode(text), what)
        same_list(row.offsets, got.offset_mapping, what)
        for k, word in ipairs(got.word_ids) do got.word_ids[k] = word and word - 1 or -1 end
        same_list(row.words, got.word_ids, what)
        assert.equal(row.decoded, t:decode(row.ids, { skip_special_tokens = true }), what)
      end
    end)
  end

  for _, kind in ipairs { "bert", "gpt2", "llama3", "roberta", "unigram" } do
    it("of the kind " .. kind .. " pads and cuts batches and pairs as Transformers does", function()
      local t, wanted = make(kind)
      for _, call in ipairs(wanted.calls) do
        local o, texts, seconds = {}, {}, {}
        for name, value in pairs(call.options) do o[name] = value end
        for i = 1, 6 do texts[i], seconds[i] = others.texts[10 + i], others.texts[16 + i] end
        t.truncation_side = o.truncation_side or "right"
        local pairs_given = o.pair and seconds or nil
        o.truncation_side, o.pair = nil, nil
        o.return_special_tokens_mask, o.return_token_type_ids = true, true
        local got = t:encode_batch(texts, pairs_given, o)
        for name, rows in pairs(call.result) do
          same_list(rows, got[name], name .. " of " .. json.encode(call.options))
        end
        o.return_tensors = "pt"
        local tensors = t:encode_batch(texts, pairs_given, o)
        same_list(call.result.input_ids, tensors.input_ids:tolist())
        assert.equal("int64", tensors.attention_mask.dtype)
      end
    end)
  end

  it("makes rows of what is cut off, as Transformers does", function()
    local made = {}
    for _, call in ipairs(reference "windows") do
      local t = made[call.kind] or make(call.kind)
      made[call.kind], t.truncation_side = t, call.side
      local o = { return_overflowing_tokens = true, return_offsets_mapping = true,
        return_special_tokens_mask = true, return_token_type_ids = true }
      for name, value in pairs(call.options) do o[name] = value end
      local got = t(call.texts, call.seconds or nil, o)
      local what = (" of %s, %s, %s"):format(call.kind, call.side, json.encode(call.options))
      for i, sample in ipairs(got.overflow_to_sample_mapping) do
        got.overflow_to_sample_mapping[i] = sample - 1
      end
      for name, rows in pairs(call.result) do same_list(rows, got[name], name .. what) end
    end
  end)

  it("makes a list of rows of one text, and tensors, when what is cut off is wanted", function()
    local t = make "bert"
    local text, all = "one two three four five six", { truncation = true, max_length = 6, stride = 1,
      return_overflowing_tokens = true }
    local got = t(text, all)
    assert.is_true(#got.input_ids > 1)
    assert.same(got.input_ids, t:encode(text, all))
    for i, row in ipairs(got.input_ids) do
      assert.equal(1, got.overflow_to_sample_mapping[i])
      if i > 1 then assert.equal(got.input_ids[i - 1][5], row[2]) end
    end
    all.padding, all.return_tensors = true, "pt"
    local batch = t({ text, "one" }, all)
    assert.same({ #batch.overflow_to_sample_mapping, 6 }, batch.input_ids.shape)
    assert.equal(2, batch.overflow_to_sample_mapping[#batch.overflow_to_sample_mapping])
    assert.same({ 1 }, t("one", { return_overflowing_tokens = true }).overflow_to_sample_mapping)
  end)

  it("refuses a stride that leaves nothing new in a row", function()
    local t = make "bert"
    raises("stride is 4, but max_length 6 leaves 4 tokens beside special ones", t, "one two three four",
      { truncation = true, max_length = 6, stride = 4 })
    raises("stride is 5, but a row has only 3 tokens of the text", t, "one two three four",
      "one two three four", { truncation = true, max_length = 10, stride = 5,
        return_overflowing_tokens = true })
    raises("stride", t, "one", { stride = -1 })
  end)

  it("takes one text, or a list, with or without options", function()
    local t = make "bert"
    local ids = t:encode "a line"
    assert.same(ids, t("a line").input_ids)
    assert.same({ ids }, t({ "a line" }).input_ids)
    assert.same({ 1, #ids }, t("a line", { return_tensors = true }).input_ids.shape)
    assert.same(t:encode("a", "b"), t("a", "b").input_ids)
    assert.same(ids, t:encode("a line", { truncation = true }))
    assert.same({ "a", "line" },
      { t:tokenize "a line"[1], t:decode(t:convert_tokens_to_ids(t:tokenize "line")) })
    assert.equal(t:decode(ids), t:decode(tensor.tensor(ids)))
    assert.same({ t:decode(ids) }, t:batch_decode { ids })
  end)

  it("gives offsets that cut the text", function()
    local t, text = make "gpt2", "Ein schöner Tag — 人人 🎉"
    local got = t(text, { return_offsets_mapping = true })
    for i, at in ipairs(got.offset_mapping) do
      local token = t:decode(got.input_ids[i])
      if not token:find "\239\191\189" then assert.equal(token:gsub("^ ", ""), text:sub(at[1] + 1, at[2])) end
    end
  end)

  it("joins what it encoded one by one to tensors", function()
    local t = make "bert"
    local a, b = t "a line of text", t "two"
    a.labels, b.labels = { 1, 2, 3 }, { 4 }
    a.weight, b.weight = 0.5, 2
    local batch = t:pad({ a, b }, { pad_to_multiple_of = 4 })
    assert.equal(0, batch.input_ids.shape[2] % 4)
    assert.same({ 4, -100, -100 }, batch.labels[2]:narrow(1, 1, 3):tolist())
    assert.same({ 0.5, 2 }, batch.weight:tolist())
    assert.equal(#b.input_ids, batch.attention_mask[2]:sum():item())
  end)

  it("takes added tokens, keeps them in its folder, and is read again", function()
    local t, folder = make "bert", os.tmpname()
    os.remove(folder)
    local n = t:len()
    assert.equal(2, t:add_tokens { "newword", "[X]" })
    assert.equal(0, t:add_tokens { "newword" })
    assert.equal(n + 2, t:len())
    assert.same({ n }, t:encode("newword", { add_special_tokens = false }))
    assert.equal(1, t:add_special_tokens { additional_special_tokens = { "<ent>" } })
    t:save_pretrained(folder)
    local again = tokenizers.from_pretrained(folder)
    for _, text in ipairs { "newword [X] <ent> line", "plain text" } do
      assert.same(t:encode(text), again:encode(text))
    end
    assert.equal("", again:decode({ n + 2 }, { skip_special_tokens = true }))
    assert.equal("[PAD]", again.pad_token)
    assert.equal(t.pad_token_id, again.pad_token_id)
    os.execute(("rm -r '%s'"):format(folder))
  end)

  it("cuts texts as the patterns of o200k and CLIP do", function()
    local f = assert(io.open "spec/reference/tokenizers/patterns.json")
    local cases = assert(require("accelerate.utils.json").decode(f:read "*a"))
    f:close()
    assert.equal(2, #cases)
    for _, case in ipairs(cases) do
      local path = os.tmpname()
      f = assert(io.open(path, "w"))
      f:write(case.config)
      f:close()
      local t = tokenizers.from_file(path)
      os.remove(path)
      for i, text in ipairs(case.texts) do
        local words = case.words[i]
        for k = 1, #words do words[k] = words[k] + 1 end
        assert.same(words, t(text, { return_word_ids = true }).word_ids, text)
      end
    end
  end)

  it("takes a role by assignment, as a token of the vocabulary or as its id", function()
    local t = tokenizers.train_bpe({ "a text" }, { vocab_size = 260, special_tokens = { "<pad>", "<end>" } })
    assert.is_nil(t.pad_token)
    t.pad_token, t.eos_token_id = "<pad>", 1
    assert.same({ "<pad>", 0, "<end>", 1 }, { t.pad_token, t.pad_token_id, t.eos_token, t.eos_token_id })
    assert.equal(0, t({ "a", "ab" }, { padding = true }).input_ids[1][2])
    t.pad_token = t.eos_token
    assert.equal(1, t.pad_token_id)
    t.pad_token = nil
    assert.is_nil(t.pad_token_id)
    for words, bad in pairs { ["no token '<no>'"] = { "pad_token", "<no>" },
      ["no id 900"] = { "pad_token_id",
      900 }, ["a string"] = { "pad_token", 5 } } do
      local ok, why = pcall(function() t[bad[1]] = bad[2] end)
      assert.is_false(ok)
      assert.is_truthy(tostring(why):find(words, 1, true), why)
    end
    assert.equal(t:len(), #t)
  end)

  it("reads BERT's vocab.txt and GPT-2's pair of files", function()
    local folder = os.tmpname()
    os.remove(folder)
    os.execute(("mkdir '%s'"):format(folder))
    local config = assert(json.decode(disk.read(FOLDER .. "bert.json")))
    local list = {}
    for token, id in pairs(config.model.vocab) do list[id + 1] = token end
    disk.write(folder .. "/vocab.txt", table.concat(list, "\n") .. "\n")
    local t, wanted = tokenizers.from_pretrained(folder), reference "bert.reference"
    for i, row in ipairs(wanted.rows) do same_list(row.ids, t:encode(others.texts[i])) end
    assert.equal(0, t.pad_token_id)
    os.remove(folder .. "/vocab.txt")
    config = assert(json.decode(disk.read(FOLDER .. "gpt2.json")))
    for i, merge in ipairs(config.model.merges) do list[i] = table.concat(merge, " ") end
    disk.write(folder .. "/vocab.json", json.encode(config.model.vocab))
    disk.write(folder .. "/merges.txt", "#version: 0.2\n" ..
      table.concat(list, "\n", 1, #config.model.merges) ..
      "\n")
    t, wanted = tokenizers.from_pretrained(folder), reference "gpt2.reference"
    for i = 1, 20 do assert.same(wanted.rows[i].ids, t:encode(others.texts[i])) end
    os.execute(("rm -r '%s'"):format(folder))
  end)

  it("takes any bytes: what is not UTF-8 counts as U+FFFD", function()
    for _, kind in ipairs(KINDS) do
      local t = tokenizers.from_file(FOLDER .. kind .. ".json")
      for _, bytes in ipairs { "a\255b", "\192\175", "\237\160\128", "\244\144\128\128", "\240\159\142",
        "\0" } do
        local fixed = core._utf8_repair("x" .. bytes .. " y")
        assert.same(t:encode(fixed), t:encode("x" .. bytes .. " y"))
        local at = t("x" .. bytes .. " y", { return_offsets_mapping = true }).offset_mapping
        assert.is_true(at[#at][2] <= 3 + #bytes)
      end
    end
    assert.equal("a\239\191\189b", core._utf8_repair "a\255b")
    assert.equal("\239\191\189\239\191\189\239\191\189", core._utf8_repair "\237\160\128")
    assert.equal("\239\191\189x", core._utf8_repair "\240\159\142x")
  end)

  it("encodes long pieces without their square in time", function()
    for _, kind in ipairs { "gpt2", "fallback", "unigram", "bert" } do
      local t, began = tokenizers.from_file(FOLDER .. kind .. ".json"), os.clock()
      for _, unit in ipairs { "a", "ab", "e\204\129" } do
        assert.is_true(#t:encode((unit):rep(100000)) >= 1)
      end
      assert.is_true(os.clock() - began < 20, kind)
    end
  end)

  it("leaves nothing behind when memory runs out in any allocation", function()
    local function live()
      collectgarbage()
      core.is_released(core.zeros(0))
      collectgarbage()
      core.is_released(core.zeros(0))
      return core.memory_stats().structs
    end
    local text = "Ça va? ﬁ x\204\129\204\163y 人人 <s> word " .. ("abcdefgh"):rep(20)
    for _, kind in ipairs { "bert", "roberta", "unigram" } do
      local config = assert(json.decode(disk.read(FOLDER .. kind .. ".json")))
      local function step()
        local t = accelerate.tokenizers.Tokenizer("memory", config)
        t({ text, "b" }, { return_offsets_mapping = true })
      end
      step()
      local before, n, ok, why = live(), 0
      repeat
        n = n + 1
        core.debug_fail_alloc(n)
        ok, why = pcall(step)
        core.debug_fail_alloc(0)
        assert.equal(before, live(), ("%s, allocation %d"):format(kind, n))
        if not ok then assert.matches("out of memory", why) end
      until ok
      assert.is_true(n > 20)
    end
  end)

  -- The values are those of Hugging Face's tokenizers; a whole text is one word here.
  it("replaces runs of spaces as the patterns of Replace say", function()
    local wide, line = "\227\128\128\194\160", "\226\128\168" -- two wide spaces; a line separator
    local texts = { "a  b", " a b ", "a\t\n b" .. wide .. "c", "a\194\133b", line, "   ", "ab", "é  \t é" }
    local expected = {
      [" +"] = { "a_b", "_a_b_", "a\t\n_b" .. wide .. "c", "a\194\133b", line, "_", "ab", "é_\t_é" },
      ["\\s+"] = { "a_b", "_a_b_", "a_b_c", "a_b", "_", "_", "ab", "é_é" },
      [" {2,}"] = { "a_b", " a b ", "a\t\n b" .. wide .. "c", "a\194\133b", line, "_", "ab", "é_\t é" },
      ["\\s{2,}"] = { "a_b", " a b ", "a_b_c", "a\194\133b", line, "_", "ab", "é_é" },
    }
    for pattern, words in pairs(expected) do
      local vocab, size = { ["?"] = 0 }, 1
      for _, word in ipairs(words) do
        if not vocab[word] then vocab[word], size = size, size + 1 end
      end
      local t = accelerate.tokenizers.Tokenizer("memory", {
        model = { type = "WordLevel", vocab = vocab, unk_token = "?" },
        normalizer = { type = "Replace", pattern = { Regex = pattern }, content = "_" },
      })
      for i, text in ipairs(texts) do
        assert.same({ words[i] }, t:convert_ids_to_tokens(t:encode(text)), pattern .. " " .. i)
      end
    end
  end)

  it("names what a file has that it does not understand", function()
    local path = os.tmpname()
    local function refused(change, ...)
      local config = assert(json.decode(disk.read(FOLDER .. "bert.json")))
      change(config)
      disk.write(path, json.encode(config))
      for _, words in ipairs { path, ... } do raises(words, tokenizers.from_file, path) end
    end
    refused(function(c) c.normalizer = { type = "Precompile" } end, "normalizer", "'Precompile'",
      "Precompiled")
    refused(function(c)
      c.pre_tokenizer = { type = "Split", pattern = { Regex = "\\w+" }, behavior = "Isolated" }
    end,
      "pre_tokenizer", "\\w+", "Llama 3")
    refused(function(c) c.model.type = "Magic" end, "model", "'Magic'")
    refused(function(c) c.decoder = { type = "CTC" } end, "decoder", "'CTC'")
    refused(function(c) c.post_processor.single[1].SpecialToken.id = "[NO]" end, "post_processor.single",
      "[NO]")
    refused(function(c) c.model.vocab["[UNK]"] = 1.5 end, "[UNK]", "1.5")
    refused(function(c) c.model = { type = "BPE", vocab = { a = 0, b = 1 }, merges = { "a b" } } end,
      "merge 1", "'ab'")
    local _, why = pcall(tokenizers.from_file, path)
    assert.is_nil(why:match "'.-':.*_spec") -- where the script is comes first, if at all
    disk.write(path, "{")
    raises(path, tokenizers.from_file, path)
    os.remove(path)
    raises("no tokenizer", tokenizers.from_pretrained, "spec")
    raises("hf download", tokenizers.from_pretrained, "nobody/nothing")
    host.in_folder(function(folder)
      disk.write(folder .. "/tokenizer.model", "")
      raises("; tokenizer.model is not read: ", tokenizers.from_pretrained, folder)
    end)
  end)

  it("says what was wrong in a call", function()
    local t = tokenizers.from_file(FOLDER .. "fallback.json")
    raises("pad_token", t.__call, t, { "a", "bb" }, nil, { padding = true })
    raises("padding", t.__call, t, "a", nil, { paddings = true })
    raises("text[2]", t.__call, t, { "a", 1 })
    raises("1 texts, but 2", t.__call, t, { "a" }, { "a", "b" })
    raises("make no tensor", t.__call, t, { "a", "the long one" }, nil, { return_tensors = true })
    raises("no id 99999", t.convert_ids_to_tokens, t, { 99999 })
    raises("no chat template", t.apply_chat_template, t, {})
  end)
end)

describe("training a byte-level BPE", function()
  it("finds the merges that Hugging Face's trainer finds", function()
    for _, wanted in ipairs(others.trained) do
      local t = tokenizers.train_bpe(others.training, { vocab_size = wanted.vocab_size,
        min_frequency = wanted.min_frequency, pattern = wanted.pattern,
        special_tokens = { "<|end|>", "<pad>" } })
      local folder = os.tmpname()
      os.remove(folder)
      t:save_pretrained(folder)
      local merges = assert(json.decode(disk.read(folder .. "/tokenizer.json"))).model.merges
      for i, merge in ipairs(merges) do merges[i] = table.concat(merge, " ") end
      assert.equal(wanted.size, t:len())
      assert.same(wanted.merges, merges)
      local again = tokenizers.from_pretrained(folder)
      for _, text in ipairs(others.texts) do
        assert.same(t:encode(text), again:encode(text))
        if core._utf8_repair(text) == text then assert.equal(text, t:decode(t:encode(text))) end
      end
      os.execute(("rm -r '%s'"):format(folder))
    end
  end)

  it("takes a function of texts, and refuses what is none", function()
    local i = 0
    local t = tokenizers.train_bpe(function()
      i = i + 1
      return others.training[i]
    end, { vocab_size = 300 })
    assert.equal(300, t:len())
    raises("texts must be", tokenizers.train_bpe, 5)
    raises("texts[1]", tokenizers.train_bpe, { {} })
  end)
end)

describe("a chat template", function()
  local t = tokenizers.from_file(FOLDER .. "gpt2.json")

  it("gives the text that Jinja gives", function()
    for _, chat in ipairs(others.chats) do
      assert.equal(chat.text, t:apply_chat_template(chat.messages, { chat_template = chat.template,
        tokenize = false, add_generation_prompt = chat.prompt }), chat.name)
    end
  end)

  it("refuses what it does not understand by name and line", function()
    for template, words in pairs {
      ["a\n{% include 'f' %}"] = "line 2: the statement 'include'",
      ["{{ messages | pprint }}"] = "line 1: the filter 'pprint'",
      ["{{ messages.pop() }}"] = "the method 'pop'",
      ["{{ lipsum() }}"] = "the function 'lipsum'",
      ["\n\n{% if x %}"] = "line 3: 'if' without its end",
      ["{{ x is divisibleby }}"] = "the test 'divisibleby'",
      ["{{ 'a"] = "without its end",
      ["{{ a b }}"] = "'b' is not understood",
      ["{{ raise_exception('no roles') }}"] = "no roles",
      ["{% for i in range(1000) %}{% for j in range(1000) %}{% for k in range(9) " ..
        "%}{% endfor %}{% endfor %}{% endfor %}"]
        = "too long",
      ["{{ messages | map('string') }}"] = "use the filter list",
      ["{{ " .. ("("):rep(500) .. " }}"] = "too deep",
    } do
      raises(words, t.apply_chat_template, t, { { role = "user", content = "a" } },
        { chat_template = template, tokenize = false })
    end
  end)
end)

describe("TextStreamer", function()
  for _, kind in ipairs(KINDS) do
    it("writes piece by piece what decode makes of all tokens: " .. kind, function()
      local t = make(kind)
      for _, skip in ipairs { true, false } do
        for _, text in ipairs(others.texts) do
          local ids, pieces, ends = t(text).input_ids, {}, 0
          local stream = tokenizers.TextStreamer(t,
            { skip_special_tokens = skip, write = function(piece, ended)
            pieces[#pieces + 1] = piece
            if ended then ends = ends + 1 end
          end })
          for _, id in ipairs(ids) do stream { id } end
          stream:finish()
          assert.equal(t:decode(ids, { skip_special_tokens = skip }), table.concat(pieces))
          assert.equal(1, ends)
        end
      end
    end)
  end

  it("keeps a character of several tokens until it is whole", function()
    local t, pieces = make "gpt2", {}
    local stream = tokenizers.TextStreamer(t, { write = function(piece) pieces[#pieces + 1] = piece end })
    for _, id in ipairs(t("\240\159\166\156!").input_ids) do stream { id } end
    for _, piece in ipairs(pieces) do assert.is_nil(piece:find "\239\191\189") end
    assert.equal("\240\159\166\156!", table.concat(pieces))
  end)

  it("is ended by generate, and takes one row", function()
    local t, pieces, ended = make "gpt2", {}, false
    local models = accelerate.models
    local model = models.GPT2LMHeadModel { n_layer = 1, n_embd = 8, n_head = 1, vocab_size = 200,
      n_positions = 16 }
    local stream = tokenizers.TextStreamer(t, { write = function(piece, last)
      pieces[#pieces + 1], ended = piece, last
    end })
    local out = model:generate(tensor { { 5 } }:long(),
      { max_new_tokens = 6, eos_token_id = -1, stream = stream })
    assert.is_true(ended)
    assert.equal(t:decode(out[1]:narrow(1, 2, 6)), table.concat(pieces))
    raises("TextStreamer: one row of tokens is written, got 2 rows", model.generate, model,
      tensor { { 5 }, { 6 } }:long(), { max_new_tokens = 2, stream = stream })
  end)
end)
