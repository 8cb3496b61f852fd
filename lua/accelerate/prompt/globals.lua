--- Names that are there without require, at a prompt and in a notebook: each module is loaded when
--- it is first named.
local M = {}

local MODULES = { "accelerate", "tensor", "nn", "F", "optim", "data", "metrics", "models", "tokenizers",
  "distributed", "distributions", "tracking" }
local PATHS = { accelerate = "accelerate", F = "accelerate.nn.functional" }

local function is_module(name)
  for _, module in ipairs(MODULES) do
    if module == name then
      local path = PATHS[name] or "accelerate." .. name
      return package.searchpath(path, package.path) and path
    end
  end
end

--- Ends the session.
---@param status? integer the exit status; default 0
local function leave(status)
  if require("accelerate.utils.terminal").notebook then
    print("the front end's menu ends the kernel")
    return
  end
  os.exit(status or 0)
end

local FUNCTIONS = { exit = leave, quit = leave, help = function(...)
  return require("accelerate.prompt.help").show(...)
end }

--- Returns the function of the prompt's own that has a name, unless the name is a variable.
---@param name string
---@return function?
function M.own(name)
  local fn, value = FUNCTIONS[name], rawget(_G, name)
  if fn and (value == nil or value == fn) and not require("accelerate.prompt.chunk").value(name) then
    return fn
  end
end

local function lazy_global(globals, name)
  local value
  if FUNCTIONS[name] then
    value = FUNCTIONS[name]
  else
    local module = type(name) == "string" and is_module(name)
    if not module then return require("accelerate.messages.strictness").missed_global(name) end
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
  local list = { "exit", "help", "quit" }
  for _, name in ipairs(MODULES) do
    if is_module(name) then list[#list + 1] = name end
  end
  return list
end

return M
