--- Reading environment variables, and setting them for the time of a call.
local notice = require "accelerate.messages.notice"
local ffi = require "ffi"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local scope = require "accelerate.utils.scope"

ffi.cdef [[
int setenv(const char *name, const char *value, int overwrite);
int unsetenv(const char *name);
extern char **environ;
]]
local C = ffi.C

local fail = options.fail

local M = {}

local TRUE = { y = true, yes = true, t = true, ["true"] = true, on = true, ["1"] = true }
local FALSE = { n = true, no = true, f = true, ["false"] = true, off = true, ["0"] = true }

--- Returns "yes", "on", "1"... as a boolean. Raises for other text.
---@param text string
---@param name string? name of the setting, for the message
---@return boolean
function M.str_to_bool(text, name)
  local word = tostring(text):lower()
  if TRUE[word] then return true end
  if FALSE[word] then return false end
  fail("%s: expected one of y yes t true on 1, n no f false off 0, got '%s'", name or "str_to_bool",
    tostring(text))
end

--- Returns a variable that is set and not empty, else `default`.
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

--- Returns a whole number of at least `min`. Otherwise raises an error that names the variable.
---@return integer?
function M.integer(name, min)
  local value = M.text(name)
  if value == nil then return nil end
  local number = tonumber(value)
  if not number or number % 1 ~= 0 or number < min then
    fail("%s: expected a whole number of at least %d, got '%s'", name, min, value)
  end
  return number
end

--- Returns where a variable's value came from: the option or the line of a configuration file that
--- the launcher made the variable of, "default" for a default of the launcher, else the variable
--- itself.
---@param name string
---@return string
function M.origin(name)
  for variable, origin in M.text("ACCEL_SETTING_ORIGINS", ""):gmatch "([^\t\n]+)\t([^\n]+)\n" do
    if variable == name then return origin end
  end
  return name
end

-- ---- reading, under upstream's names

--- Returns the first of several variables that holds a whole number of at least 0, else `default`.
---@param names string[]
---@param default integer
---@return integer
function M.get_int_from_env(names, default)
  options.value("get_int_from_env", "names", names, { "list" })
  for i, name in ipairs(names) do
    options.value("get_int_from_env", ("names[%d]"):format(i), name, { "string" })
    local text = M.text(name)
    local number = text and tonumber(text)
    if text and (not number or number % 1 ~= 0) then
      fail("get_int_from_env: %s must hold a whole number, got '%s'", name, text)
    end
    if number and number >= 0 then return number end
  end
  return default
end

--- Returns a variable as a boolean (see str_to_bool), else `default`.
---@param name string
---@param default boolean? default false
---@return boolean
function M.parse_flag_from_env(name, default)
  options.value("parse_flag_from_env", "name", name, { "string" })
  return M.flag(name, options.value("parse_flag_from_env", "default", default,
    { "boolean", default = false }))
end

--- Returns a variable's text, else `default`.
---@param name string
---@param default string? default "no"
---@return string
function M.parse_choice_from_env(name, default)
  options.value("parse_choice_from_env", "name", name, { "string" })
  return os.getenv(name) or options.value("parse_choice_from_env", "default", default,
    { "string", default = "no" })
end

--- Lines "NAME=value\n" for what takes its environment as such a list, sorted by name.  Entries
--- with a blank, a newline, ';', '<' or '>' in them, or with nothing on either side, are left out
--- and named on stderr.
---@param variables table<string, string>
---@return string[]
function M.convert_dict_to_env_variables(variables)
  options.value("convert_dict_to_env_variables", "variables", variables, { "table" })
  local lines = {}
  for name, value in ordered.pairs(variables) do
    options.value("convert_dict_to_env_variables", "a name", name, { "string" })
    options.value("convert_dict_to_env_variables", ("the value of %s"):format(name), value, { "string" })
    if name == "" or value == "" or (name .. value):find("[;\n<> ]") then
      notice.here("convert_dict_to_env_variables: %s=%s is left out: a part is empty, or has one of ; < " ..
        "> blank newline in it", name, value)
    else
      lines[#lines + 1] = ("%s=%s\n"):format(name, value)
    end
  end
  return lines
end

-- ---- setting

local function set(name, value)
  if C.setenv(name, value, 1) ~= 0 then fail("cannot set the environment variable '%s'", name) end
end

--- Returns all variables, as a map.
---@return table<string, string>
function M.snapshot()
  local map, i = {}, 0
  if C.environ == nil then return map end
  while C.environ[i] ~= nil do
    local name, value = ffi.string(C.environ[i]):match("^(.-)=(.*)$")
    if name and name ~= "" then map[name] = value end
    i = i + 1
  end
  return map
end

--- Makes the variables whose names `test` takes what `wanted` has of them.
local function restore(wanted, test)
  for name, value in pairs(M.snapshot()) do  -- any order will do
    if test(name) and wanted[name] ~= value then C.unsetenv(name) end
  end
  for name, value in pairs(wanted) do
    if test(name) and os.getenv(name) ~= value then set(name, value) end
  end
end

local function all() return true end

local function value_text(name, value)
  if type(value) == "number" and value % 1 == 0 and math.abs(value) < 2 ^ 53 then
    return ("%.0f"):format(value)
  end
  options.value("patch_environment", ("the value of %s"):format(name), value, { "string|number|boolean" })
  local text = tostring(value)
  if text:find("\0", 1, true) then fail("patch_environment: the value of %s has a zero byte in it", name) end
  return text
end

--- Sets environment variables while `fn` runs, and restores them afterwards, also after an error.
--- Names become upper case, values become text.
---@param variables table<string, string|number|boolean>
---@param fn function
---@return any ... what fn returns
function M.patch_environment(variables, fn, ...)
  options.value("patch_environment", "variables", variables, { "table" })
  options.value("patch_environment", "fn", fn, { "function" })
  local wanted, former = {}, {}
  for name, value in ordered.pairs(variables) do
    options.value("patch_environment", "a name", name, { "string" })
    if name == "" or name:find("[=%z]") then
      fail("patch_environment: '%s' cannot be a variable's name", name)
    end
    wanted[name:upper()] = value_text(name, value)
  end
  for name in pairs(wanted) do former[name] = os.getenv(name) end
  return scope.run(function()
    for name, value in pairs(wanted) do set(name, value) end
  end, function()
    for name in pairs(wanted) do
      if former[name] then set(name, former[name]) else C.unsetenv(name) end
    end
  end, fn, ...)
end

--- Runs `fn` with no environment variables, and restores them afterwards, also after an error.
---@param fn function
---@return any ... what fn returns
function M.clear_environment(fn, ...)
  options.value("clear_environment", "fn", fn, { "function" })
  local former = M.snapshot()
  return scope.run(function() restore({}, all) end, function() restore(former, all) end, fn, ...)
end

--- Returns a function that calls `fn` and then restores the ACCELERATE_ variables, also after an
--- error.
---@param fn function
---@return function
function M.purge_accelerate_environment(fn)
  options.value("purge_accelerate_environment", "fn", fn, { "function" })
  local function ours(name) return name:sub(1, 11) == "ACCELERATE_" end
  return function(...)
    local former = M.snapshot()
    return scope.run(nil, function() restore(former, ours) end, fn, ...)
  end
end

--- Sets a variable of this process, or removes it (nil).
---@param name string
---@param value string?
function M.set(name, value)
  options.value("environment.set", "name", name, { "string" })
  if value == nil then
    C.unsetenv(name)
  else
    set(name, options.value("environment.set", "value", value, { "string" }))
  end
end

return M
