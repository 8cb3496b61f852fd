-- Folders of tokenizers beside Transformers' (spec/support/gen_tokenizer_folders.py): tokens that
-- tokenizer.json does not list, and texts that are given as lists of words.
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local raises = require("spec.support.messages").raises
local tokenizers = require "accelerate.tokenizers"

local FOLDER = "spec/support/tokenizers/"
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
