--- Contexts as functions: `scope.run(enter, leave, body, ...)`.

local scope = {}

--- The message with the stack of the place that raised added once, however deep scopes nest. Values
--- that are not text pass.
---@param err any
---@return any
function scope.traced(err)
  if type(err) ~= "string" or err:find("\nstack traceback:\n", 1, true) then return err end
  return debug.traceback(err, 2)
end
local traced = scope.traced

local function finish(leave, ok, ...)
  if ok then
    leave()
    return ...
  end
  pcall(leave)  -- the first error is the one to tell; a second one out of the cleaning up would hide it
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

return scope
