--- Methods that refuse a call with '.' in place of ':', which would take the first argument for the
--- object:
---
---   parameters: expected the Linear before its arguments, got nil; write object:parameters(...),
---     with a colon: did you mean
---   model:parameters()?
local source = require "accelerate.messages.source"

local M = {}

-- guarded method -> the method itself, for tools that read its source
local plain = setmetatable({}, { __mode = "k" })

--- The method inside a guarded one; any other value as it is.
---@generic T
---@param method T
---@return T
function M.plain(method) return plain[method] or method end

--- Notes that `outer` stands for `method`, for tools that read its source.
---@param outer function
---@param method function
function M.stands_for(outer, method) plain[outer] = plain[method] or method end

--- Returns whether `value` is a function whose first parameter is called self.
---@param value any
---@return boolean
function M.takes_self(value)
  return type(value) == "function" and debug.getlocal(value, 1) == "self"
end

-- What the script wrote before ".name(" on the line of the call, as in "model"; nil where its
-- source cannot be read.
local function object_written(name, level)
  local info = debug.getinfo(level + 1, "Sl")
  local line = info and source.line(info.source:sub(2), info.currentline)
  return line and line:match("([%a_][%w_%.%[%]]*)%." .. name .. "%s*[%(%{\"']")
end

--- "model:parameters()": how the call should have been written.
---@param noun string what to call the object where the script's own name for it is not known
---@param name string
---@param bare boolean whether the call had no arguments
---@param level integer of the caller, as error() counts it in the calling function
function M.advice(noun, name, bare, level)
  local written = level > 0 and object_written(name, level + 1) or noun
  return ("write object:%s(...), with a colon: did you mean %s:%s(%s)?"):format(name, written, name, bare
    and "" or "...")
end

--- Raises: `name` was called with `self` in place of its object.
---@param what string the class
---@param noun string
---@param name string
---@param self any
function M.refuse(what, noun, name, self, bare)
  local options = require "accelerate.utils.options"
  local level = options.caller_level()
  error(("%s: expected the %s before its arguments, got %s; %s"):format(name, what, options.show(self),
    M.advice(noun, name, bare, level)), level)
end

--- Returns how many arguments a method takes after self; nil: any number, or none.
---@param method function
---@return integer?
function M.most(method)
  local info = debug.getinfo(method, "u")
  return not info.isvararg and info.nparams > 1 and info.nparams - 1 or nil
end

-- Raises when more than `most` arguments were given, nils at the end not counted.
local function refuse_more(what, most, ...)
  local n = select("#", ...)
  while n > most and select(n, ...) == nil do n = n - 1 end
  if n > most then
    local Module = package.loaded["accelerate.nn.module"]
    local owner = Module and Module._is_module((...)) and (...)
    require("accelerate.utils.options").fail("%s: %d argument%s expected, got %d%s", what, most, most == 1
      and "" or "s", n, owner
      and (", the first of them a %s; a module that an object has is " ..
        "called with a dot: self.name(x)"):format(owner.__name) or "")
  end
end

--- `method`, refusing every `self` that is not an instance of `Class`. The call of the method is a
--- tail call: it adds no frame.
---@param Class table the metatable of its objects, or one of their metatable's bases (`__base`)
---@param what string how messages call the class
---@param noun string how messages call an object of it: "model"
---@param name string
---@param method function
---@param most? integer how many arguments after self are not too many; nil: any number
---@return function
function M.guard(Class, what, noun, name, method, most)
  local function guarded(self, ...)
    if type(self) == "table" then
      local meta = getmetatable(self)
      while meta ~= Class and type(meta) == "table" do meta = rawget(meta, "__base") end
      if meta == Class then
        if most and select("#", ...) > most then refuse_more(getmetatable(self).__name, most, ...) end
        return method(self, ...)
      end
    end
    return M.refuse(what, noun, name, self, self == nil and select("#", ...) == 0)
  end
  plain[guarded] = plain[method] or method
  return guarded
end

return M
