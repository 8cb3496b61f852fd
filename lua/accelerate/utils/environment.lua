--- Reading environment variables.
local M = {}

local TRUE = { y = true, yes = true, t = true, ["true"] = true, on = true, ["1"] = true }
local FALSE = { n = true, no = true, f = true, ["false"] = true, off = true, ["0"] = true }

--- "yes", "on", "1"... as a boolean; other text is an error.
---@param text string
---@param what string? named in the message
---@return boolean
function M.str_to_bool(text, what)
  local word = tostring(text):lower()
  if TRUE[word] then return true end
  if FALSE[word] then return false end
  error(("%s: expected one of y yes t true on 1, n no f false off 0, got '%s'"):format(what or "str_to_bool", tostring(text)), 2)
end

--- A variable that is set and not empty, else `default`.
---@return string?
function M.text(name, default)
  local value = os.getenv(name)
  if value == nil or value == "" then return default end
  return value
end

---@return boolean
function M.flag(name, default)
  local value = M.text(name)
  if value == nil then return default or false end
  return M.str_to_bool(value, name)
end

--- A whole number of at least `min`, else an error that names the variable.
---@return integer?
function M.integer(name, min)
  local value = M.text(name)
  if value == nil then return nil end
  local number = tonumber(value)
  if not number or number % 1 ~= 0 or number < min then
    error(("%s: expected a whole number of at least %d, got '%s'"):format(name, min, value), 2)
  end
  return number
end

return M
