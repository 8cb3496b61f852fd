--- Contexts as functions: `scope.run(enter, leave, body, ...)`.
---
--- A context is called with its subject, at most one table of options, the function, and what the
--- function gets. Whatever can be called is a function: a module, too.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local scope = {}

scope.callable = options.callable

--- Raises that a context got `value` in place of its function.
---@param where string the context
---@param what string? what is wrong: "argument 1 (fn)"
---@param value any
function scope.refuse(where, what, value)
  if what then
    options.fail("%s: %s: expected a function, got %s", where, what, value == nil and "nil"
      or options.show(value))
  end
  options.fail("%s: expected a function as the last argument, got %s", where, options.show(value))
end

-- Whether a value is a plain table of nothing but options.
local function is_options(value, names)
  if type(value) ~= "table" or getmetatable(value) ~= nil or next(value) == nil then return false end
  for name in pairs(value) do
    if names[name] == nil then return false end
  end
  return true
end

--- The arguments `[opts,] fn, ...` of a context as opts (nil where they were left out), fn, ...
--- A table of options that is all that follows fn raises: fn would get it, and the context none.
---@param where string
---@param names table<string, any> the options by name
---@return any opts
---@return function fn
---@return any ...
function scope.arguments(where, names, ...)
  local opts, fn = ...
  if options.callable(opts) then
    if select("#", ...) == 2 and is_options(fn, names) then
      options.fail("%s: the options come before the function: { %s = ... }, fn", where,
        ordered.sorted_keys(fn)[1])
    end
    return nil, ...
  end
  if not options.callable(fn) then
    scope.refuse(where, nil, fn == nil and type(opts) ~= "table" and opts or fn)
  end
  return ...
end

--- The argument `fn` of a context or a decorator, checked.
---@param where string
---@param fn any
---@return function fn
function scope.body(where, fn)
  if not options.callable(fn) then scope.refuse(where, nil, fn) end
  return fn
end

--- The message with the stack of the place that raised, where that shows lines of the script's:
--- once, however deep scopes nest. Values that are not text pass. A message handler for xpcall.
---@param err any
---@return any
scope.traced = core._traced
local traced = scope.traced

local function finish(leave, ok, ...)
  if ok then
    leave()
    return ...
  end
  pcall(leave)  -- the first error is raised; a second one out of the cleaning up would hide it
  error((...), 0)
end

--- Calls enter(), then body(...), then leave(); leave runs however the body ends. Returns what the
--- body returns. An error of the body is raised again with the traceback of its origin. When enter
--- itself raises, leave is not called.
---@param enter fun()|nil
---@param leave fun()
---@param body function
---@return any ...
function scope.run(enter, leave, body, ...)
  if enter then enter() end
  return finish(leave, xpcall(body, traced, ...))
end

--- Sets object[key] to `value` while body(...) runs, and puts the former value back.
---@param object table
---@param key any
---@param value any
---@param body function
---@return any ...
function scope.with(object, key, value, body, ...)
  local former = object[key]
  object[key] = value
  return finish(function() object[key] = former end, xpcall(body, traced, ...))
end

--- Its arguments as a list that knows how many they are: some may be nil.
---@param ... any
---@return { n: integer, [integer]: any }
function scope.pack(...) return { n = select("#", ...), ... } end

return scope
