--- The arguments of filters, tests, methods and functions, taken as Python takes them.
local numbers = require "accelerate.tokenizers.chat.numbers"
local run = require "accelerate.tokenizers.chat.run"
local values = require "accelerate.tokenizers.chat.values"

local fail = run.fail

local M = {}

-- The arguments that have names, where a call has none.
M.NONE_NAMED = values.map()

local parsed = {}

-- A signature "/old new count?": '/' at the front: names cannot be given; '?': may be left out.
local function parse(signature)
  if parsed[signature] then return parsed[signature] end
  local s = { names = {}, place = {}, required = 0, positional = signature:find "^/" ~= nil }
  for name, optional in signature:gmatch "([%w_]+)(%??)" do
    s.names[#s.names + 1] = name
    s.place[name] = #s.names
    if optional == "" then s.required = #s.names end
  end
  parsed[signature] = s
  return s
end

--- Returns the arguments in the order of a signature, nil for those left out. Raises for those that
--- it does not take.
---@param what string for messages: "the filter 'replace'"
---@param signature string names; "name?" may be left out; "/" at the front: no names in calls
---@param args any[]
---@param named table a map
function M.take(what, signature, args, named)
  local s, out = parse(signature), {}
  if #args > #s.names then
    fail("%s takes at most %d argument%s, got %d", what, #s.names, #s.names == 1 and "" or "s", #args)
  end
  for i = 1, #args do out[i] = args[i] end
  for _, key in ipairs(named.keys) do
    local at = not s.positional and s.place[key]
    if not at then fail("%s has no argument '%s'", what, key) end
    if out[at] ~= nil then fail("%s got the argument '%s' twice", what, key) end
    out[at] = named.values[key]
  end
  for i = 1, s.required do
    if out[i] == nil then fail("%s needs the argument '%s'", what, s.names[i]) end
  end
  return unpack(out, 1, #s.names)
end

--- Returns a text, or raises.
---@param what string for messages: "the filter 'replace'"
function M.text(what, value)
  return values.text_of(values.defined(value)) or fail("%s needs a text, got %s", what, values.shown(value))
end

--- Returns an integer, or raises; `default` where there is no value.
---@param default integer?
function M.integer(what, value, default)
  if value == nil and default then return default end
  local number, float = numbers.of(values.defined(value))
  if not number or float then fail("%s needs an integer, got %s", what, values.shown(value)) end
  return number
end

--- Returns an optional text: nil where it is left out or none.
function M.optional_text(what, value)
  if value == nil or value == values.NONE then return nil end
  return M.text(what, value)
end

--- Returns the truth of an optional value.
function M.flag(value, default)
  if value == nil then return default end
  return values.truth(value)
end

return M
