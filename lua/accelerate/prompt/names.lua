--- What names stand for at the prompt, without running a user's code: locals that stay, globals,
--- modules that are loaded when they are named, and the names within a value.
local chunks = require "accelerate.prompt.chunk"

local M = {}

local function index(value, name)
  local fine, found = pcall(function() return value[name] end)
  if fine then return found end
end

--- Gives the function that the debugger looks at; nil: none is.
---@type (fun(): accelerate.prompt.Frame)?
M.frame = nil

-- Whether a local has this name, and its value.
local function local_value(name)
  if M.frame then return M.frame():get(name) end
  return chunks.value(name)
end

--- The value of "model.fc.weight"; nil where there is none.
---@param path (string|number)[] { "model", 1, "weight" }: of model[1].weight
---@return any
function M.value(path)
  local here, value = local_value(path[1])
  if not here then value = index(_G, path[1]) end
  for i = 2, #path do
    if value == nil then return nil end
    value = index(value, path[i])
  end
  return value
end

local function add(set, map)
  for name in next, map do
    if type(name) == "string" then set[name] = true end
  end
end

-- The fields and methods of a tensor.
local function names_of_tensor()
  require "accelerate.tensor.composed"
  return require("accelerate.core")._tensor_names()
end

-- The names of a table, its class and what that is derived from.
local function names_of_table(set, value)
  add(set, value)
  if value == package.loaded["accelerate.tensor"] then
    add(set, require("accelerate.tensor.composed").functions)
  end
  local values = rawget(value, "_values")
  if type(values) == "table" then add(set, values) end
  local meta, depth = debug.getmetatable(value), 0
  while type(meta) == "table" and depth < 20 do
    local properties = require "accelerate.utils.properties"
    local made = properties.defined[rawget(meta, "__name")]
    if made then
      add(set, made.get)
      add(set, made.methods)
    end
    if type(rawget(meta, "__index")) == "table" then add(set, rawget(meta, "__index")) end
    if rawget(meta, "__base") or rawget(meta, "__name") then add(set, meta) end
    meta, depth = rawget(meta, "__base"), depth + 1
  end
  for _, name in ipairs(require("accelerate.utils.show").members(value)) do set[name] = true end
end

--- The names within a value: a set.
---@param value any
---@return table<string, true>
function M.within(value)
  local core = package.loaded["accelerate.core"]
  if core and core.is_tensor(value) then return names_of_tensor() end
  local set = {}
  if type(value) == "table" then names_of_table(set, value)
  elseif type(value) == "string" then add(set, string)
  else
    local meta = debug.getmetatable(value)
    local inner = type(meta) == "table" and rawget(meta, "__index")
    if type(inner) == "table" then add(set, inner) end
  end
  return set
end

--- The names that an expression may begin with: a set.
---@return table<string, true>
function M.roots()
  local set = {}
  add(set, _G)
  for _, name in ipairs(M.frame and {} or chunks.names()) do set[name] = true end
  for _, list in ipairs(M.frame and { M.frame():upvalues(), M.frame():locals() } or {}) do
    for _, one in ipairs(list) do set[one.name] = true end
  end
  for _, name in ipairs(require("accelerate.prompt.globals").names()) do set[name] = true end
  for word in next, require("accelerate.prompt.lexer").KEYWORDS do set[word] = true end
  return set
end

--- Returns whether a member can be called.
---@param value any
---@param name string
---@return boolean
function M.is_method(value, name) return require("accelerate.utils.options").callable(index(value, name)) end

return M
