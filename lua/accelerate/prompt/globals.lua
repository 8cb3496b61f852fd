--- Names that are there without require, at a prompt and in a notebook: each module is loaded when
--- it is first named.
local M = {}

local MODULES = { "accelerate", "tensor", "nn", "optim", "data", "metrics", "models", "tokenizers",
  "distributed", "distributions", "tracking" }

local function is_module(name)
  for _, module in ipairs(MODULES) do
    if module == name then
      local path = name == "accelerate" and name or "accelerate." .. name
      return package.searchpath(path, package.path) and path
    end
  end
end

local function lazy_global(globals, name)
  local value
  if name == "help" then
    value = require("accelerate.prompt.help").show
  else
    local module = type(name) == "string" and is_module(name)
    if not module then return require("accelerate.utils.strictness").missed_global(name) end
    value = require(module)
  end
  rawset(globals, name, value)
  return value
end

--- Makes them globals.
function M.install()
  local meta = debug.getmetatable(_G) or {}
  meta.__index = lazy_global
  debug.setmetatable(_G, meta)
end

--- Returns the names of modules that become globals when they are used, and of the prompt's own
--- functions.
---@return string[]
function M.names()
  local list = { "help" }
  for _, name in ipairs(MODULES) do
    if is_module(name) then list[#list + 1] = name end
  end
  return list
end

return M
