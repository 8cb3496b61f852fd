--- Tokenizers from files, from the local cache, and from texts.
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"
local specials = require "accelerate.tokenizers.specials"

local fail = options.fail

local M = {}

-- The value of a JSON file, which must be an object; and its text.
local function read_json(where, path)
  local text, why = fs.read(path)
  if not text then fail("%s: %s", where, why) end
  local value
  value, why = json.decode(text)
  if type(value) ~= "table" or value[1] ~= nil then
    fail("%s: '%s': %s", where, path, why or "expected an object, got " .. options.show(value))
  end
  return value, text
end

-- Makes a tokenizer; errors of the C part get the file's name.
local function make(file, config, settings, text, added)
  local Tokenizer = require "accelerate.tokenizers.tokenizer"
  local ok, result = pcall(Tokenizer, file, config, settings, text, added)
  if ok then return result end
  result = tostring(result)
  if result:find("tokenizers: '" .. file, 1, true) then error(result, 0) end
  result = result:gsub("^[^\n]-%f[%w]tokenizer: ", "", 1) -- the C part says where the script is, too
  fail("tokenizers: '%s': %s", file, result)
end

--- Reads a tokenizer.json.
---@param path string
---@return accelerate.Tokenizer
function M.from_file(path)
  options.value("from_file", "path", path, { "string" })
  local config, text = read_json("from_file", path)
  return make(path, config, nil, text)
end

local TEMPLATES = "additional_chat_templates"

local function read_template(name, path)
  local text, why = fs.read(path)
  return { name = name, template = text or fail("from_pretrained: %s", why) }
end

-- The chat templates that stand in files of their own, or nil: one text, or a list with names.
local function templates_of(folder)
  local list, path = {}, fs.join(folder, "chat_template.jinja")
  if fs.exists(path) then list[1] = read_template("default", path) end
  local more = fs.join(folder, TEMPLATES)
  for _, name in ipairs(fs.is_dir(more) and fs.list(more) or {}) do
    local stem = name:match "^(.*)%.jinja$"
    if stem then list[#list + 1] = read_template(stem, fs.join(more, name)) end
  end
  if #list == 1 and list[1].name == "default" then return list[1].template end
  return #list > 0 and list or nil
end

local FIND = { revision = { "string", default = "main" }, cache_dir = { "string", optional = true },
  gguf_file = { "string", optional = true } }

-- The tokenizer of a GGUF file.
local function of_gguf(path)
  local file = require "accelerate.models.gguf.file"("from_pretrained", path)
  local config, settings = require("accelerate.tokenizers.gguf").of(file)
  return make(path, config, settings, json.encode(config))
end

--- Reads the tokenizer of a folder: tokenizer.json, or BERT's vocab.txt, or GPT-2's vocab.json with
--- merges.txt; and tokenizer_config.json, special_tokens_map.json, added_tokens.json,
--- chat_template.jinja and additional_chat_templates/NAME.jinja where they are. Tokens that these
--- name and the vocabulary lacks get the next free ids.
---@param name string the folder, or a name in the local Hugging Face cache (nothing is downloaded);
---  or the path of a GGUF file, whose settings hold a tokenizer
---@param opts { revision: string?, cache_dir: string?, gguf_file: string? }? gguf_file: the name of
---  a GGUF file in the folder
---@return accelerate.Tokenizer
function M.from_pretrained(name, opts)
  options.value("from_pretrained", "name", name, { "string" })
  local o = options.check("from_pretrained", opts, FIND)
  local folders = require "accelerate.models.folder"
  local path = folders.gguf("from_pretrained", name, o)
  if path then return of_gguf(path) end
  local folder = folders.find("from_pretrained", name, o)
  local function path_of(file) return fs.join(folder, file) end
  local function read_if_there(file)
    return fs.exists(path_of(file)) and read_json("from_pretrained", path_of(file)) or nil
  end
  local settings, added = read_if_there "tokenizer_config.json" or {}, read_if_there "added_tokens.json"
  specials.merge(settings, read_if_there "special_tokens_map.json")
  settings.chat_template = templates_of(folder) or settings.chat_template
  path = path_of "tokenizer.json"
  if fs.exists(path) then
    local config, text = read_json("from_pretrained", path)
    return make(path, config, settings, text, added)
  end
  local vocabulary = require "accelerate.tokenizers.vocabulary"
  local config
  path, config = vocabulary.read("from_pretrained", folder, settings)
  return make(path, config, settings, json.encode(config), added)
end

--- Trains a byte-level BPE: the merges that Hugging Face's trainer finds in the same texts.
---@param texts string[]|fun(): string? the texts, or a function that returns the next one, and nil
---  at the end
---@param opts { vocab_size: integer?, min_frequency: integer?, special_tokens: string[]?,
---  add_prefix_space: boolean?, pattern: "gpt2"|"llama3"|nil, eos_token: string? }? vocab_size
---  (default 30000) counts special tokens and the 256 bytes; pairs that come less often than
---  min_frequency (default 2) are not merged; special_tokens get the first ids
---@return accelerate.Tokenizer
function M.train_bpe(texts, opts)
  local config, text, settings = require("accelerate.tokenizers.train").bpe(texts, opts)
  return make("trained", config, settings, text)
end

return M
