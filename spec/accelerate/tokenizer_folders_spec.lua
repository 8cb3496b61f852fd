-- Folders of tokenizers beside Transformers' (spec/generators/gen_tokenizer_folders.py): tokens
-- that tokenizer.json does not list, and texts that are given as lists of words.
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local processes = require "spec.support.processes"
local raises = require("spec.support.messages").raises
local tokenizers = require "accelerate.tokenizers"

local FOLDER = "spec/reference/tokenizers/"
local reference = assert(json.decode(disk.read(FOLDER .. "folders.json")))

-- Calls fn(t) with the tokenizer of a folder that has tokenizer.json of a kind, and other files.
local function with(kind, files, fn)
  host.in_folder(function(folder)
    disk.write(folder .. "/tokenizer.json", disk.read(FOLDER .. kind .. ".json"))
    for name, value in pairs(files) do
      disk.write(folder .. "/" .. name, type(value) == "string" and value or json.encode(value))
    end
    fn(tokenizers.from_pretrained(folder), folder)
  end)
end

local function same_list(wanted, got, what)
  assert.equal(json.encode(wanted), json.encode(got), what)
end

local function check(case, t, what)
  assert.equal(case.length, t:len(), what)
  for id, token in pairs(case.added) do
    assert.equal(token.content, t:convert_ids_to_tokens(tonumber(id)), what)
  end
  for role, value in pairs(case.roles) do
    same_list(value, { t[role], t[role .. "_id"] }, what .. " " .. role)
  end
  same_list(case.ids, t:encode(reference.text), what)
  assert.equal(case.plain, t:decode(case.ids, { skip_special_tokens = case.kind ~= "fallback" }), what)
end

describe("a tokenizer of a folder", function()
  for number, case in ipairs(reference.folders) do
    it("has Transformers' tokens, " .. number .. " (" .. case.kind .. "), also when it is saved", function()
      local what = json.encode(case.files)
      with(case.kind, case.files, function(t, folder)
        check(case, t, what)
        t:save_pretrained(folder .. "/saved")
        check(case, tokenizers.from_pretrained(folder .. "/saved"), what .. ", saved")
      end)
    end)
  end
end)

-- The ids beside the cases are Transformers 5.24's, from GPT2Tokenizer over these two files.
describe("a folder with vocab.json and merges.txt", function()
  local function load(settings, fn)
    host.in_folder(function(folder)
      disk.write(folder .. "/vocab.json", '{"<|endoftext|>": 0, "</s>": 1, "h": 2, "e": 3, "he": 4, "l": 5}')
      disk.write(folder .. "/merges.txt", "#version: 0.2\nh e\n")
      disk.write(folder .. "/tokenizer_config.json", json.encode(settings))
      fn(tokenizers.from_pretrained(folder), folder)
    end)
  end

  it("adds the tokens that add_bos_token and add_eos_token name, also when it is saved", function()
    for _, case in ipairs {
      { {}, { 4, 5 }, { 4, 5, 2 } },
      { { add_bos_token = false }, { 4, 5 }, { 4, 5, 2 } },
      { { add_bos_token = true }, { 0, 4, 5 }, { 0, 4, 5, 0, 2 } },
      { { add_eos_token = true }, { 4, 5, 0 }, { 4, 5, 0, 2, 0 } },
      { { add_bos_token = true, add_eos_token = true, bos_token = "</s>" }, { 1, 4, 5, 0 },
        { 1, 4, 5, 0, 1, 2, 0 } },
    } do
      load(case[1], function(t, folder)
        t:save_pretrained(folder .. "/saved")
        for _, each in ipairs { t, tokenizers.from_pretrained(folder .. "/saved") } do
          same_list(case[2], each("hel").input_ids)
          same_list(case[3], each("hel", "h").input_ids)
          same_list({ 4, 5 }, each("hel", { add_special_tokens = false }).input_ids)
        end
      end)
    end
  end)

  it("names a token to add that there is not, and an assignment that would change nothing", function()
    raises("vocab.json' has, and bos_token is '<s>'", load, { add_bos_token = true, bos_token = "<s>" },
      print)
    load({}, function(t)
      raises("tokenizer.add_bos_token cannot be changed: the post_processor of", function()
        t.add_bos_token = true
      end)
    end)
  end)
end)

describe("special tokens of a folder", function()
  local function case(files, fn) with("gpt2", files, fn) end

  it("of special_tokens_map.json take the place of tokenizer_config.json's, unless that has ids", function()
    local files = { ["tokenizer_config.json"] = { pad_token = "<a>" },
      ["special_tokens_map.json"] = { pad_token = "<b>" } }
    case(files, function(t) assert.equal("<b>", t.pad_token) end)
    files["tokenizer_config.json"].added_tokens_decoder = { ["420"] = { content = "<a>", special = true } }
    case(files, function(t) assert.equal("<a>", t.pad_token) end)
  end)

  it("of a model's own kinds have their names and ids", function()
    case({ ["tokenizer_config.json"] = { extra_special_tokens = { image_token = "<image>" } } }, function(t)
      assert.equal("<image>", t.image_token)
      assert.equal(t:len() - 1, t.image_token_id)
      assert.same({ t.image_token_id }, t:encode "<image>")
      assert.is_nil(t.audio_token)
    end)
  end)

  it("are read with what is wrong about them", function()
    for text, why in pairs {
      ['{"pad_token": 5}'] = "pad_token: expected a token or an object with its content, got 5",
      ['{"extra_special_tokens": [1]}'] = "extra_special_tokens[1]: expected a token",
      ['{"extra_special_tokens": "x"}'] = "extra_special_tokens must be a list",
      ['{"added_tokens_decoder": {"x": {"content": "a"}}}'] = "added_tokens_decoder: 'x' is no id",
      ['{"added_tokens_decoder": {"5": {"content": "a", "lstrip": 3}}}'] = "lstrip must be a boolean, got 3",
      ["[1]"] = "expected an object",
    } do
      raises(why, case, { ["tokenizer_config.json"] = text })
    end
    raises("added_tokens.json: 'x' is no id", case, { ["added_tokens.json"] = '{"a": "x"}' })
    raises("special_tokens_map.json': expected an object", case, { ["special_tokens_map.json"] = '["a"]' })
    case({ ["tokenizer_config.json"] = '{"pad_token": ""}' }, function(t) assert.equal("", t.pad_token) end)
  end)
end)

describe("added tokens", function()
  local CHECK = "fo\196\141" -- the letter stands for a byte in the byte-level alphabet

  for _, kind in ipairs { "gpt2", "llama3", "unigram", "fallback", "bert" } do
    it("are decoded as they are written: " .. kind, function()
      for _, token in ipairs { CHECK, "<0x41>", "##zz", "\226\150\129x", "</w>", "\196\160y" } do
        local t = tokenizers.from_file(FOLDER .. kind .. ".json")
        local is_new = t:add_tokens({ token }, true) == 1
        if kind == "gpt2" or kind == "llama3" then -- others put spaces around it
          local text = ("a %s b"):format(token)
          assert.equal(text, t:decode(t:encode(text, nil, { add_special_tokens = false })))
        end
        if is_new then assert.equal(token, t:decode { t:len() - 1 }) end
      end
    end)
  end

  it("that are the model's own are decoded as those are, unless they are special", function()
    local t = tokenizers.from_file(FOLDER .. "fallback.json")
    t:add_tokens { "\226\150\129\226\150\129", "<0x41>" } -- marks of two spaces, and of a byte
    assert.equal("a  A", t:decode(t:convert_tokens_to_ids { "a", "\226\150\129\226\150\129", "<0x41>" }))
  end)

  it("are decoded as the normalizer leaves them where it changes them, as Transformers does", function()
    local t = tokenizers.from_file(FOLDER .. "fallback.json")
    t:add_tokens { "Foo" }
    assert.equal("a Foo b", t:decode(t:encode("a Foo b", nil, { add_special_tokens = false })))
    t = tokenizers.from_file(FOLDER .. "bert.json")
    t:add_tokens { "F\195\152\195\150" }
    assert.equal("f\195\184o", t:decode { t:len() - 1 })
  end)
end)

describe("padding to a length that a row is beyond", function()
  local t = tokenizers.from_file(FOLDER .. "bert.json")
  t:add_special_tokens { pad_token = "[PAD]" }
  local long = ("word "):rep(30)

  it("leaves that row as it is, and pads the others to the length", function()
    local out = t({ long, "short" }, { padding = "max_length", max_length = 20 })
    local alone = t(long).input_ids
    same_list(alone, out.input_ids[1])
    assert.equal(20, #out.input_ids[2])
    assert.equal(20, #out.attention_mask[2])
    assert.is_true(#alone > 20)
    assert.equal(#alone, #t(long, { padding = "max_length", max_length = 20 }).input_ids)
  end)

  it("makes no tensor of rows of several lengths", function()
    local o = { padding = "max_length", max_length = 20, return_tensors = "pt" }
    local n = #t(long).input_ids
    raises(("rows of 20 and %d tokens make no tensor"):format(n), t.__call, t, { "short", long }, nil, o)
    assert.same({ 2, n }, t({ long, long }, o).input_ids.shape)
    assert.same({ 1, 20 }, t({ "short" }, o).input_ids.shape)
    local rows = { t(long), t "short" }
    raises(("pad: rows of 20 and %d tokens make no tensor"):format(n), t.pad, t, rows,
      { padding = "max_length", max_length = 20 })
    assert.same({ 2, n },
      t:pad({ rows[1], rows[1] }, { padding = "max_length", max_length = 20 }).input_ids.shape)
  end)
end)

describe("texts that are lists of words", function()
  local function options_of(case)
    local o = { is_split_into_words = true, return_word_ids = true, return_offsets_mapping = true }
    for key, value in pairs(case.options or {}) do o[key] = value end
    return o
  end

  -- Numbers of words as Python has them.
  local function numbers(list)
    local got = {}
    for i, word in ipairs(list) do got[i] = word and word - 1 or -1 end
    return got
  end

  local function check_words(t, case, what)
    local out = t(case.batch or case.text, case.pair, options_of(case))
    same_list(case.ids, out.input_ids, what)
    local words = case.batch and {} or numbers(out.word_ids)
    for i, list in ipairs(case.batch and out.word_ids or {}) do words[i] = numbers(list) end
    same_list(case.words, words, what)
    if case.offsets then same_list(case.offsets, out.offset_mapping, what) end
  end

  for number, case in ipairs(reference.words) do
    it("have Transformers' ids, words and offsets, " .. number .. " (" .. case.kind .. ")", function()
      with(case.kind,
        { ["tokenizer_config.json"] = { pad_token = case.kind == "bert" and "[PAD]" or "<pad>" } },
        function(t) check_words(t, case, json.encode(case)) end)
    end)
  end

  it("are encoded by all calls, and what is none is named", function()
    local t = tokenizers.from_file(FOLDER .. "bert.json")
    local o = { is_split_into_words = true }
    local ids = t({ "Hello", "world" }, o).input_ids
    assert.same(ids, t:encode({ "Hello", "world" }, o))
    assert.same({ ids, ids }, t:encode_batch({ { "Hello", "world" }, { "Hello", "world" } }, nil,
      o).input_ids)
    raises("text must be a list of words or a list of such lists, got 'Hello'", t.__call, t, "Hello", nil, o)
    raises("text[2][1] must be a string, got 5", t.__call, t, { { "a" }, { 5 } }, nil, o)
    raises("text is one list of words, and pair is a list of texts", t.__call, t, { "a" }, { { "a" } }, o)
    raises("text must be a list, got 'a'", t.encode, t, "a", nil, o)
  end)
end)

describe("a tokenizer.json whose steps make much of little", function()
  local function made(normalizer, pre_tokenizer)
    local path = os.tmpname()
    disk.write(path, json.encode { version = "1.0", normalizer = normalizer, pre_tokenizer = pre_tokenizer,
      model = { type = "WordLevel", vocab = { a = 0, u = 1 }, unk_token = "u" } })
    local t = tokenizers.from_file(path)
    os.remove(path)
    return t
  end
  local function sequence(count, part)
    local list = {}
    for i = 1, count do list[i] = part end
    return { type = "Sequence", normalizers = list }
  end
  local SAYS = "more than 1048704 bytes of a text; it may become 64 times as long and 1048576 bytes"

  for what, normalizer in pairs {
    ["replacements"] = sequence(12,
      { type = "Replace", pattern = { String = "a" }, content = ("a"):rep(10) }),
    ["texts in front"] = sequence(400, { type = "Prepend", prepend = ("c"):rep(10000) }),
    ["spaces"] = sequence(30, { type = "Replace", pattern = { Regex = " +" }, content = "  " }),
  } do
    it("is bounded: " .. what, function()
      local t = made(normalizer)
      if what == "spaces" then return assert.equal(1, #t:encode "a ") end
      raises(SAYS, t.encode, t, "ab")
      raises(SAYS, t.normalize, t, "ab")
    end)
  end

  it("is ended by Ctrl-C between two steps", function()
    host.in_folder(function(folder)
      local list = {}
      for i = 1, 2000 do
        list[i] = { type = "Replace", pattern = { String = i % 2 == 1 and "a" or "b" }, content = i % 2 == 1
          and "b"
          or "a" }
      end
      disk.write(folder .. "/tokenizer.json", json.encode { version = "1.0",
        normalizer = { type = "Sequence", normalizers = list },
        model = { type = "WordLevel", vocab = { a = 0, u = 1 }, unk_token = "u" } })
      disk.write(folder .. "/run.lua", ("local t = require('accelerate.tokenizers').from_pretrained(%q)\n" ..
        "local text = ('a'):rep(1e6)\nprint 'ready' io.flush() t:encode(text)\n"):format(folder))
      local run = processes.start { folder .. "/run.lua" }
      run:expect("ready", 20)
      processes.let_compute(run.pid, 0.1)
      run:signal(processes.SIGINT)
      local status, _, err = run:wait(10)
      run:forget()
      assert.equal(130, status)
      assert(err:find(":3: tokenizer: interrupted", 1, true), err)
    end)
  end)

  it("is bounded in the parts between added tokens together", function()
    local t = made({ type = "Prepend", prepend = ("c"):rep(1000) })
    t:add_tokens({ "zz" }, true)
    raises("more than 1560576 bytes of a text", t.encode, t, ("bbzz"):rep(2000))
    assert.equal(20, #t:encode(("bbzz"):rep(10)))
  end)

  it("is bounded in its pre-tokenizer and its added tokens", function()
    local t = made(nil, { type = "Metaspace", replacement = ("c"):rep(65536), prepend_scheme = "always" })
    raises("bytes of a text", t.encode, t, ("b "):rep(100))
    t = made { type = "Prepend", prepend = ("c"):rep(65536) }
    local tokens = {}
    for i = 1, 100 do tokens[i] = "t" .. i end
    t:add_tokens(tokens)
    raises("bytes of a text", t.encode, t, "a")
  end)
end)

describe("many added tokens", function()
  -- The longest token at each place, from left to right, in plain Lua.
  local function cut(text, tokens)
    local longest, is_token, parts, at, plain = 0, {}, {}, 1, ""
    for _, token in ipairs(tokens) do is_token[token], longest = true, math.max(longest, #token) end
    while at <= #text do
      local n = math.min(longest, #text - at + 1)
      while n > 0 and not is_token[text:sub(at, at + n - 1)] do n = n - 1 end
      if n > 0 then
        if plain ~= "" then parts[#parts + 1] = "?" end
        parts[#parts + 1], plain = text:sub(at, at + n - 1), ""
      else plain = plain .. text:sub(at, at) end
      at = at + math.max(n, 1)
    end
    if plain ~= "" then parts[#parts + 1] = "?" end
    return parts
  end

  it("are found as the definition says, short and long ones", function()
    local random = math.random
    for round = 1, 60 do
      math.randomseed(round)
      local tokens, text = {}, {}
      for i = 1, 30 do
        local piece = {}
        for k = 1, random(1, round % 2 == 0 and 60 or 6) do piece[k] = random() < 0.8 and "Q" or "Z" end
        tokens[i] = table.concat(piece)
      end
      for i = 1, 400 do text[i] = random() < 0.8 and "Q" or random() < 0.7 and "Z" or "c" end
      text = table.concat(text) .. tokens[1] .. tokens[2]
      local t = tokenizers.from_file(FOLDER .. "bert.json")
      local got, plain, first = {}, false, t:len()
      t:add_tokens(tokens, true)
      for _, id in ipairs(t:encode(text, nil, { add_special_tokens = false })) do
        local added = id >= first -- all of them are new
        if added then got[#got + 1] = t:convert_ids_to_tokens(id)
        elseif not plain then got[#got + 1] = "?" end
        plain = not added
      end
      same_list(cut(text, tokens), got, "round " .. round)
    end
  end)

  it("are found in time in proportion to the text", function()
    local t = tokenizers.from_file(FOLDER .. "gpt2.json")
    local tokens = {}
    for i = 1, 5000 do tokens[i] = ("a"):rep(i % 1000) .. "b" .. i end
    t:add_tokens(tokens)
    t:encode "a"
    local began = os.clock()
    t:encode(("a"):rep(2e6))
    local seconds = os.clock() - began -- more than 20 when each place is looked at by itself
    assert(seconds < 5, seconds)
  end)
end)

describe("vocab_size", function()
  it("is a field: the tokens of the model's vocabulary, without added ones", function()
    for _, kind in ipairs { "bert", "gpt2", "unigram" } do
      local t = tokenizers.from_file(FOLDER .. kind .. ".json")
      local before = t.vocab_size
      assert.equal(kind == "bert" and 500 or 420, before)
      t:add_tokens { "<new one>" }
      assert.equal(before, t.vocab_size)
    end
  end)
end)
