--- HfDeepSpeedConfig: a DeepSpeed configuration, and questions about it. Keys of nested maps are
--- written with dots: "zero_optimization.offload_param.device".
local base64 = require "accelerate.utils.base64"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local yaml = require "accelerate.utils.yaml"

local fail = options.fail

local M = {}

-- Takes JSON's null out: an absent key and null are one in Python's config.get, too.
local function without_null(value)
  if type(value) ~= "table" then return value end
  for key, item in pairs(value) do
    if item == yaml.null then value[key] = nil else without_null(item) end
  end
  return value
end

-- The map in a JSON text, and the lines of its entries.
local function parse(text, name)
  local fine, value, lines = pcall(yaml.decode, text, name, true)
  if not fine then return nil, value end
  if type(value) ~= "table" or value == yaml.null or value[1] ~= nil then
    return nil, name .. ": expected a map in braces"
  end
  return without_null(value), lines
end

local function read_file(path)
  local text, why = fs.read(path)
  if not text then fail("HfDeepSpeedConfig: %s", why) end
  local config, lines = parse(text, path)
  if not config then fail("HfDeepSpeedConfig: %s", lines) end
  return config, path, lines
end

-- A text that is no file's name: JSON, or JSON in base64.
local function read_text(text)
  local decoded = text:find "^%s*{" and text
    or base64.decode((text:gsub("-", "+"):gsub("_", "/"))) or ""
  if not decoded:find "^%s*{" then
    fail("HfDeepSpeedConfig: expected a DeepSpeed configuration as a table, a file that exists, JSON, or " ..
      "JSON in base64; got %s", options.show(text))
  end
  local config, lines = parse(decoded, "hf_ds_config")
  if not config then fail("HfDeepSpeedConfig: %s", lines) end
  return config, "hf_ds_config", lines
end

local DEEPEST = 20

local function copied(value, depth)
  if type(value) ~= "table" then return value end
  if depth > DEEPEST then fail("HfDeepSpeedConfig: the table is nested deeper than %d maps", DEEPEST) end
  local copy = {}
  for key, item in next, value do copy[key] = copied(item, depth + 1) end
  return copy
end

local function read(given)
  if type(given) == "string" then
    if fs.is_file(given) then return read_file(given) end
    return read_text(given)
  end
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    fail("HfDeepSpeedConfig: expected a table or the name of a JSON file, got %s", options.show(given))
  end
  return copied(given, 1), "hf_ds_config", {} -- 'auto' is replaced in the copy
end

---@class accelerate.HfDeepSpeedConfig
---@field config table the configuration
local methods = {}

--- Returns the map that holds a key, or nil where there is none, and the last part of the key.
---@param ds_key_long string
---@return table? node
---@return string key
function methods:find_config_node(ds_key_long)
  options.value("find_config_node", "ds_key_long", ds_key_long, { "string" })
  local node = self.config
  for part in ds_key_long:gmatch "([^.]*)%." do
    node = node[part]
    if type(node) ~= "table" then return nil, ds_key_long:match "[^.]*$" end
  end
  return node, ds_key_long:match "[^.]*$"
end

--- Returns the value of a key, or `default` where it has none.
---@param ds_key_long string
---@param default any
---@return any
function methods:get_value(ds_key_long, default)
  local node, key = self:find_config_node(ds_key_long)
  local value = node and node[key]
  if value == nil then return default end
  return value
end

--- Takes a key out with all that is below it.
---@param ds_key_long string
---@param opts { must_exist: boolean? }|boolean|nil must_exist: raise where the key is not there
function methods:del_config_sub_tree(ds_key_long, opts)
  local must = opts
  if type(opts) ~= "boolean" then
    must = options.check("del_config_sub_tree", opts, { must_exist = { "boolean", default = false } })
      .must_exist
  end
  local node, key = self:find_config_node(ds_key_long)
  if node and node[key] ~= nil then
    node[key] = nil
  elseif must then
    fail("del_config_sub_tree: %s has no entry %s", self._name, ds_key_long)
  end
end

-- Python's truth: 0 and empty texts and maps are false.
local function truth(value)
  if type(value) == "table" then return next(value) ~= nil end
  return value ~= false and value ~= 0 and value ~= ""
end

--- Returns whether a key has a value, and that is true.
---@param ds_key_long string
---@return boolean
function methods:is_true(ds_key_long)
  local value = self:get_value(ds_key_long)
  return value ~= nil and truth(value)
end

--- Returns whether a key has a value, and that is false.
---@param ds_key_long string
---@return boolean
function methods:is_false(ds_key_long)
  local value = self:get_value(ds_key_long)
  return value ~= nil and not truth(value)
end

--- Reads the stage and whether anything is offloaded again, after `config` was changed.
function methods:set_stage_and_offload()
  self._stage = self:get_value("zero_optimization.stage", -1)
  self._offload = false
  if not (self:is_zero2() or self:is_zero3()) then return end
  for _, block in ipairs { "offload_optimizer", "offload_param" } do
    local device = self:get_value("zero_optimization." .. block .. ".device")
    self._offload = self._offload or device == "cpu" or device == "nvme"
  end
end

--- Returns whether the stage is 2.
---@return boolean
function methods:is_zero2() return self._stage == 2 end
--- Returns whether the stage is 3.
---@return boolean
function methods:is_zero3() return self._stage == 3 end
--- Returns whether stage 2 or 3 offloads states or values.
---@return boolean
function methods:is_offload() return self._offload end

-- Where the value of a key is written: "ds.json:12".
function methods:_where(ds_key_long)
  local node, key = self:find_config_node(ds_key_long)
  local line = node and self._lines[node] and self._lines[node][key]
  return line and ("%s:%d"):format(self._name, line) or self._name
end

local Class = properties.define("HfDeepSpeedConfig", {
  get = { config = function(self) return self._config end },
  methods = methods,
  tostring = function(self) return ("HfDeepSpeedConfig(%s)"):format(self._name) end,
})

--- Returns whether `value` is an HfDeepSpeedConfig.
---@param value any
---@return boolean
function M.is(value) return type(value) == "table" and getmetatable(value) == Class end

--- Reads a DeepSpeed configuration. A table is copied, and the caller's stays as it is.
---@param config_file_or_dict string|table a table, the name of a JSON file, JSON, or JSON in base64
---@return accelerate.HfDeepSpeedConfig
M.HfDeepSpeedConfig = properties.callable("HfDeepSpeedConfig", function(config_file_or_dict)
  local self = Class.new()
  self._config, self._name, self._lines = read(config_file_or_dict)
  self:set_stage_and_offload()
  return self
end, { _class = Class })

return M
