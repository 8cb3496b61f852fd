--- Tokenizers of GGUF files (spec/reference/gguf/generate_tokenizers.py): the ids and texts of
--- Transformers, and what is refused.
local disk = require "spec.support.disk"
local fs = require "accelerate.utils.fs"
local gguf = require "spec.support.gguf"
local json = require "accelerate.utils.json"
local tokenizers = require "accelerate.tokenizers"

local FOLDER = "spec/reference/gguf"
local expected = json.decode((assert(fs.read(FOLDER .. "/tokenizers.json"))))

local names = {}
for name in pairs(expected) do names[#names + 1] = name end
table.sort(names)

describe("the tokenizer of a GGUF file", function()
  for _, name in ipairs(names) do
    it("has Transformers' ids and texts: " .. name, function()
      local t, wanted = tokenizers.from_pretrained(("%s/%s.gguf"):format(FOLDER, name)), expected[name]
      for _, case in ipairs(wanted.texts) do
        assert.are.same(case.ids, t:encode(case.text), case.text)
        assert.are.equal(case.back, t:decode(case.ids))
        assert.are.equal(case.bare, t:decode(case.ids, { skip_special_tokens = true }))
      end
      assert.are.same({ wanted.bos_token, wanted.eos_token }, { t.bos_token, t.eos_token })
      if wanted.chat then
        assert.are.equal(wanted.chat,
          t:apply_chat_template({ { role = "user", content = "hi" } }, { tokenize = false }))
      end
    end)
  end

  it("is found in a folder by gguf_file, and is written as any", function()
    local t = tokenizers.from_pretrained(FOLDER, { gguf_file = "tok_llama.gguf" })
    local folder = os.tmpname()
    os.remove(folder)
    t:save_pretrained(folder)
    local again = tokenizers.from_pretrained(folder)
    assert.are.same(t:encode "Hello world <|user|>", again:encode "Hello world <|user|>")
    assert.are.equal(t.chat_template, again.chat_template)
    fs.remove_tree(folder)
  end)
end)

-- The settings of a small tokenizer, with changes; false takes one out.
local function settings_with(changes)
  local all = { ["general.architecture"] = { "text", "llama" },
    ["tokenizer.ggml.model"] = { "text", "llama" },
    ["tokenizer.ggml.tokens"] = { "list", { "<unk>", "<s>", "a", "b", "ab" }, "text" },
    ["tokenizer.ggml.scores"] = { "list", { 0, 0, -1, -2, -3 }, "f32" },
    ["tokenizer.ggml.token_type"] = { "list", { 2, 3, 1, 1, 1 }, "i32" },
    ["tokenizer.ggml.bos_token_id"] = { "u32", 1 } }
  for key, entry in pairs(changes) do all[key] = entry or nil end
  local list = {}
  for key, entry in pairs(all) do
    list[#list + 1] = { key, kind = entry[1], value = entry[2], of = entry[3] }
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

local REFUSED = {
  { "no tokenizer", { ["tokenizer.ggml.model"] = false },
    "there is no tokenizer in it (tokenizer.ggml.model)" },
  { "a kind that is not there", { ["tokenizer.ggml.model"] = { "text", "rwkv" } },
    "tokenizer.ggml.model 'rwkv' is not there; known are gpt2 and llama" },
  { "a splitter that is not there",
    { ["tokenizer.ggml.model"] = { "text", "gpt2" }, ["tokenizer.ggml.pre"] = { "text", "tekken" },
      ["tokenizer.ggml.merges"] = { "list", { "a b" }, "text" } },
    "tokenizer.ggml.pre 'tekken' is not there; known" },
  { "no tokens", { ["tokenizer.ggml.tokens"] = false }, "the setting tokenizer.ggml.tokens is missing" },
  { "tokens that are no texts", { ["tokenizer.ggml.tokens"] = { "list", { 1, 2 }, "f32" } },
    "the setting tokenizer.ggml.tokens must be a list of strings, got 1" },
  { "tokens that are no list", { ["tokenizer.ggml.tokens"] = { "u32", 7 } },
    "the setting tokenizer.ggml.tokens must be a list, got 7" },
  { "fewer scores than tokens", { ["tokenizer.ggml.scores"] = { "list", { 0 }, "f32" } },
    "tokenizer.ggml.scores must have 5 entries, one for each token, got 1" },
  { "neither scores nor merges", { ["tokenizer.ggml.scores"] = false },
    "the setting tokenizer.ggml.scores is missing" },
  { "no merges", { ["tokenizer.ggml.model"] = { "text", "gpt2" } },
    "the setting tokenizer.ggml.merges is missing" },
  { "a special token outside", { ["tokenizer.ggml.bos_token_id"] = { "u32", 5 } },
    "tokenizer.ggml.bos_token_id is 5; ids are 0 to 4" },
}

describe("the tokenizer of a GGUF file is refused by name:", function()
  local base = os.tmpname()
  local path = base .. ".gguf"
  teardown(function()
    os.remove(base)
    os.remove(path)
  end)

  local function read(changes)
    disk.write(path, gguf.bytes { settings = settings_with(changes) })
    return tokenizers.from_pretrained(path)
  end

  it("(as it is, it is read)", function() assert.are.same({ 1, 0, 4, 2 }, read({}):encode "aba") end)

  for _, case in ipairs(REFUSED) do
    it(case[1], function()
      local ok, message = pcall(read, case[2])
      assert.is_false(ok)
      assert.is_truthy(message:find(path, 1, true), message)
      assert.is_truthy(message:find(case[3], 1, true), message)
    end)
  end
end)
