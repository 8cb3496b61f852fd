--- Sizes as modules take and show them: an integer for all dims, or a list of one for each.

local options = require "accelerate.utils.options"

local sizes = {}

-- What a schema says of sizes, which kernels and libraries multiply as integers of 32 bits, and of
-- how many modules are made.
sizes.MOST = 2 ^ 31 - 1
sizes.LAYERS = { "integer", min = 1, max = 65536 }

--- `value` as a list of `dims` integers of at least `min`. Raises naming `where` and `name`.
---@param where string
---@param name string
---@param value integer|integer[]
---@param dims integer
---@param min integer
---@return integer[]
function sizes.tuple(where, name, value, dims, min)
  local list = type(value) == "table" and value or {}
  if type(value) ~= "table" then
    for d = 1, dims do list[d] = value end
  end
  if #list ~= dims then
    options.fail("%s: %s: expected an integer%s, got %s", where, name, dims > 1 and " or a list of " .. dims
      or "", options.show(value))
  end
  local checked = {}
  for d = 1, dims do
    checked[d] = options.value(where, name, list[d], { "integer", min = min, max = sizes.MOST })
  end
  return checked
end

---@param list integer[]
---@return string "3" or "{3, 5}"
function sizes.text(list)
  return #list == 1 and tostring(list[1]) or "{" .. table.concat(list, ", ") .. "}"
end

return sizes
