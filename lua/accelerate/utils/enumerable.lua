--- What `#`, `ipairs` and `pairs` mean for objects that have the methods `len` and `iter`, or `len`
--- and `get`: loaders, samplers, data sets, streams.
---
---   #object                            object:len()
---   for i, … in ipairs(object) do      item i and its parts, i from 1; `pairs` is the same
---
--- Classes get it before others are derived from them, for these take metamethods over when they
--- are made.

local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local function name_of(object) return getmetatable(object).__name end

-- The object whose length is being found: a len() written as `return #self` means the table's own.
local measured

local function finish(outer, ok, ...)
  measured = outer
  if not ok then error((...), 0) end
  return ...
end

local function length(object)
  if rawequal(object, measured) then return rawlen(object) end
  local len = object.len
  if type(len) ~= "function" then
    fail("#: the length of this %s is not known, for it has no len()", name_of(object))
  end
  local outer = measured
  measured = object
  return finish(outer, pcall(len, object))
end

--- Counts what an iterator gives: 1 and the first item's values, 2 and the second's.
---@param nexts function
---@param state any
---@param control any
---@return fun(): integer?, any, ...
function M.enumerate(nexts, state, control)
  local i = 0
  local function numbered(...)
    control = ...
    if control == nil then return nil end
    i = i + 1
    return i, ...
  end
  return function() return numbered(nexts(state, control)) end
end

local function enumerate_iter(object) return M.enumerate(object:iter()) end

-- Positions 1..len and what get gives for each.
local function enumerate_get(object)
  local n, i = object:len(), 0
  return function()
    i = i + 1
    if i <= n then return i, object:get(i) end
  end
end

local function one_value(...)
  if select("#", ...) > 1 then return { ... } end
  return (...)
end

-- object[i]: item i; a list of its parts when it has several. -1 is the last; nil behind it, where
-- a loop over 1, 2, … ends.
local function item(object, i)
  local n = object:len()
  if i == n + 1 then return nil end
  local at = i < 0 and n + 1 + i or i
  if at % 1 ~= 0 or at < 1 or at > n then
    fail("%s: position %s is out of range: it has %d items", name_of(object), tostring(i), n)
  end
  return one_value(object:get(at))
end

--- For classes whose objects have iter(), and perhaps len().
---@param Class table
function M.of_iter(Class)
  Class.__len, Class.__ipairs, Class.__pairs = length, enumerate_iter, enumerate_iter
end

--- For classes whose objects have get(i) and len(); `object[i]` works too.
---@param Class table
function M.of_get(Class)
  Class.__len, Class.__ipairs, Class.__pairs = length, enumerate_get, enumerate_get
  function Class.__index(self, key)
    if type(key) == "number" then return item(self, key) end
    return getmetatable(self)[key]
  end
end

return M
