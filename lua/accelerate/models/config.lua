--- Configurations of models: what config.json holds, checked against an architecture's schema.
---
--- A schema (accelerate.utils.options) lists the keys that change what a model computes, with
--- Transformers' defaults; `one_of` lists the values that are implemented, and any other value
--- raises. Keys that no schema lists are kept and written back.

local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local notice = require "accelerate.messages.notice"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

-- What every architecture has.
local COMMON = {
  num_labels = { "integer", optional = true, min = 1 },
  id2label = { "table", optional = true },
  label2id = { "table", optional = true },
  problem_type = { "string", optional = true,
    one_of = { "regression", "single_label_classification", "multi_label_classification" } },
  architectures = { "list", optional = true },
  model_type = { "string", optional = true },
}

-- The number of classes: that of the labels' names, or 2.
local function set_labels(config)
  local named = config.id2label and ordered.count(config.id2label)
  config.num_labels = config.num_labels or named or 2
  if named and named == config.num_labels then return end
  config.id2label, config.label2id = {}, {}
  for i = 0, config.num_labels - 1 do
    config.id2label[tostring(i)] = "LABEL_" .. i
    config.label2id["LABEL_" .. i] = i
  end
end

--- Returns a copy of a configuration with defaults filled in. Raises for values that the
--- architecture does not implement, naming the key.
---@param where string what messages begin with
---@param given table
---@param schema table<string, table>
---@return table
function M.check(where, given, schema)
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    fail("%s: the configuration must be a table, got %s", where, options.show(given))
  end
  local config = lists.copied(given)
  for _, entries in ipairs { COMMON, schema } do
    for _, key in ipairs(ordered.sorted_keys(entries)) do
      local name, entry = ("config.%s"):format(key), entries[key]
      config[key] = options.value(where, name, config[key], entry)
      if entry.null and config[key] == true then
        fail("%s: %s must be a number, or false for none, got true", where, name)
      end
    end
  end
  set_labels(config)
  return config
end

--- Says which keys that a script gave are nearly those of a schema: a misspelt one is kept like any
--- that does not concern the model, and the default is used.
---@param where string
---@param given table
---@param schema table<string, table>
function M.note_misspelt(where, given, schema)
  local known = ordered.sorted_keys(schema)
  for _, key in ipairs(ordered.sorted_keys(given)) do
    local near = type(key) == "string" and not schema[key] and not COMMON[key] and options.nearest(key, known)
    if near and given[near] == nil then
      notice.main_once("%s: config.%s does not concern the model; did you mean '%s'?", where, key, near)
    end
  end
end

-- Keys that Transformers wants as floats, which Lua does not distinguish from integers.
local FLOATS = { rope_theta = true, factor = true, low_freq_factor = true, high_freq_factor = true,
  llm_int8_threshold = true }

--- Returns the table of a JSON file, the keys whose numbers are written as floats, and those whose
--- value is null; or raises, naming the file.
---@param where string
---@param path string
---@return table
---@return table<string, boolean>
---@return table<string, boolean>
function M.read(where, path)
  local text, why = fs.read(path)
  if not text then fail("%s: %s", where, why) end
  local value, problem = json.decode(text)
  if type(value) ~= "table" or value[1] ~= nil then
    fail("%s: %s: %s", where, path, problem or "expected an object")
  end
  local floats = {}
  for key in text:gmatch('"([%w_]+)"%s*:%s*%-?%d+[%.eE]') do floats[key] = true end
  local nulls = {}
  for key in text:gmatch('"([%w_]+)"%s*:%s*null') do nulls[key] = value[key] == nil or nil end
  return value, floats, nulls
end

--- Puts false where a file says null and the schema has an entry for "none", so that the default
--- does not take its place.
---@param given table
---@param nulls table<string, boolean>
---@param schema table<string, table>
function M.keep_nulls(given, nulls, schema)
  for key in next, nulls do
    if schema[key] and schema[key].null and given[key] == nil then given[key] = false end
  end
end

--- Returns a table as JSON with a line for each key. Python keeps floats and integers apart:
--- numbers of the schema's type "number" and under the keys in `floats` are written as floats;
--- false is null where the schema says so.
---@param value table
---@param schema table<string, table>
---@param floats table<string, boolean>?
---@return string
function M.text(value, schema, floats)
  local text = json.encode(value, 2):gsub('"([%w_]+)": (%-?%d+)([,\n])', function(key, number, rest)
    local entry = schema[key]
    if FLOATS[key] or floats and floats[key] or entry and entry[1] == "number" then
      return ('"%s": %s.0%s'):format(key, number, rest)
    end
  end)
  text = text:gsub('"([%w_]+)": false([,\n])', function(key, rest)
    if schema[key] and schema[key].null then return ('"%s": null%s'):format(key, rest) end
  end)
  return text .. "\n"
end

--- Writes what `text` returns.
---@param where string
---@param path string
---@param value table
---@param schema table<string, table>
---@param floats table<string, boolean>?
function M.write(where, path, value, schema, floats)
  local ok, why = fs.write(path, M.text(value, schema, floats), true)
  if not ok then fail("%s: %s", where, tostring(why)) end
end

return M
