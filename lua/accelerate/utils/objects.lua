--- Helpers for plain values: names for messages, nested tables, numbers of bytes.
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

--- A name for messages: that of a class, of an object's class, where a function is defined, or the
--- value as text.
---@param value any
---@return string
function M.get_pretty_name(value)
  local Class = class.itself(value) or class.of(value)
  if Class then return Class.__name end
  if type(value) == "function" then
    local info = debug.getinfo(value, "S")
    return info.what == "C" and "function" or ("function at %s:%d"):format(info.short_src, info.linedefined)
  end
  return tostring(value)
end

--- Merges `source` into `destination`, tables inside as well, and returns `destination`.
---@param source table
---@param destination table changed
---@return table
function M.merge_dicts(source, destination)
  options.value("merge_dicts", "source", source, { "table" })
  options.value("merge_dicts", "destination", destination, { "table" })
  local function merge(from, to, depth)
    if depth > 200 then fail("merge_dicts: tables are nested more than 200 deep (or one holds itself)") end
    for key, value in ordered.pairs(from) do
      if type(value) == "table" and getmetatable(value) == nil then
        if to[key] == nil then to[key] = {} end
        if type(to[key]) ~= "table" then
          fail("merge_dicts: '%s' is a table in the source, %s in the destination", tostring(key),
            options.show(to[key]))
        end
        merge(value, to[key], depth + 1)
      else
        to[key] = value
      end
    end
  end
  merge(source, destination, 1)
  return destination
end

--- Returns a number of bytes as Accelerate's convert_bytes writes it: "1.5 KB" are 1536 bytes,
--- because its units go by 1024. Messages of accel use decimal units.
---@param size number
---@return string
function M.convert_bytes(size)
  options.value("convert_bytes", "size", size, { "number", min = 0 })
  local function text(value, unit)
    local digits = ("%.2f"):format(value):gsub("0$", "")  -- one digit stays
    if unit == "bytes" and value % 1 == 0 then digits = ("%.0f"):format(value) end
    return digits .. " " .. unit
  end
  for _, unit in ipairs { "bytes", "KB", "MB", "GB", "TB" } do
    if size < 1024 then return text(size, unit) end
    size = size / 1024
  end
  return text(size, "PB")
end

--- Returns whether an object or a module table has a value under a name, also where reading a name
--- that is not there is an error:
--- `if utils.hasattr(nn, "Conv3d") then`.
---@param object any
---@param name string
---@return boolean
function M.hasattr(object, name)
  local ok, value = pcall(function() return object[name] end)
  return ok and value ~= nil
end

--- Returns whether a value is an object of a class, of one derived from it, or of one of a list of
--- classes: `if utils.isinstance(layer, nn.Linear) then`.
---@param value any
---@param Class table a class, or a list of classes
---@return boolean
function M.isinstance(value, Class, ...)
  if select("#", ...) > 0 then
    fail("isinstance: expected a value and a class; write several classes as a list: isinstance(x, { A, B })")
  end
  local list = class.itself(Class) and { Class } or Class
  options.value("isinstance", "Class", list, { "list" })
  local found = false
  for i, one in ipairs(list) do
    if not class.itself(one) then
      fail("isinstance: entry %d: expected a class, got %s", i, options.show(one))
    end
    found = found or class.is(value, one)
  end
  return found
end

--- `recursive_getattr(model, "encoder.1.weight")`: fields of fields.  Words of digits are tried as
--- positions as well.
---@param object any
---@param path string
---@return any
function M.recursive_getattr(object, path)
  options.value("recursive_getattr", "object", object, { "any" })
  options.value("recursive_getattr", "path", path, { "string" })
  if path == "" then fail("recursive_getattr: path is empty") end
  local value, walked = object, {}
  for name in path:gmatch("[^%.]+") do
    local kind = type(value)
    if kind ~= "table" and kind ~= "userdata" then
      fail("recursive_getattr: %s is %s, which has no fields (looking for '%s' of '%s')",
        #walked == 0 and "the object" or "'" .. table.concat(walked, ".") .. "'", options.show(value), name,
        path)
    end
    local holder = value
    local ok, found = pcall(function() return holder[name] end)
    if (not ok or found == nil) and tonumber(name) then
      ok, found = pcall(function() return holder[tonumber(name)] end)
    end
    if not ok or found == nil then
      fail("recursive_getattr: %s has no '%s'", #walked == 0 and "the object" or "'" ..
        table.concat(walked, ".") .. "'", name)
    end
    value = found
    walked[#walked + 1] = name
  end
  return value
end

return M
