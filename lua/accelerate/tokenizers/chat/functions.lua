--- The functions that templates find, beside what the caller gives: Jinja's and Transformers'.
local calls = require "accelerate.tokenizers.chat.calls"
local core = require "accelerate.core"
local run = require "accelerate.tokenizers.chat.run"
local values = require "accelerate.tokenizers.chat.values"

local fail = run.fail

local M = {}

local MOST_RANGE = 100000 -- of Jinja's sandbox

local function range(args, named)
  local what = "the function 'range'"
  local from, to, step = calls.take(what, "/start stop? step?", args, named)
  from, step = calls.integer(what, from), calls.integer(what, step, 1)
  if to == nil then from, to = 0, from else to = calls.integer(what, to) end
  if step == 0 then fail("%s: the step is 0", what) end
  if math.abs(to - from) / math.abs(step) > MOST_RANGE then
    fail("%s: a range of more than %d numbers", what, MOST_RANGE)
  end
  local list = {}
  for i = from, to - (step > 0 and 1 or -1), step do list[#list + 1] = i end
  run.step(#list)
  list = values.list(list, "range")
  list.from, list.to, list.step = from, to, step
  return list
end

-- Fills a map from a map or a list of pairs, and from arguments with names.
local function filled(map, what, args, named)
  local given = calls.take(what, "/mapping?", args, calls.NONE_NAMED)
  if given ~= nil and values.kind(given) == "map" then
    for key, value in values.each(given) do values.put(map, key, value) end
  elseif given ~= nil then
    for _, pair in ipairs(values.walk(what, given)) do
      if not values.is_sequence(pair) or #pair ~= 2 then
        fail("%s needs a map or pairs, got %s", what, values.shown(pair))
      end
      values.put(map, pair[1], pair[2])
    end
  end
  for key, value in values.each(named) do values.put(map, key, value) end
  return map
end

local function dict(args, named) return filled(values.map(), "the function 'dict'", args, named) end

--- Raises for a name that a namespace does not take.
function M.check_member(name)
  if type(name) == "string" and name:find "^_" then
    fail("a namespace takes no names that begin with '_', got '%s'", name)
  end
end

local function namespace(args, named)
  local made = filled(values.namespace(), "the function 'namespace'", args, named)
  for _, key in ipairs(made.keys) do M.check_member(key) end
  return made
end

local function raise_exception(args, named)
  fail("%s", values.text((calls.take("the function 'raise_exception'", "message", args, named))))
end

-- Python's own letters of strftime; the others are C's. A time without a zone has no zone's name.
local OWN = {
  f = function(now) return ("%06d"):format(math.floor(now % 1 * 1e6)) end,
  z = function() return "" end,
  Z = function() return "" end,
}

--- Returns the local time as a format of Python's strftime says.
---@param pattern string
---@param now number seconds since 1970
---@return string
function M.strftime(pattern, now)
  run.made(#pattern * 32)
  return (pattern:gsub("%%(:?[-_0^#]?%d*[%a%%])", function(letter)
    run.step()
    local own = OWN[letter]
    if own then return own(now) end
    if letter == "%" then return "%" end
    if not letter:find "^[-_0^#]?%a$" then fail("strftime_now: '%%%s' is not supported", letter) end
    return os.date("%" .. letter, math.floor(now))
  end))
end

local function strftime_now(args, named)
  local what = "the function 'strftime_now'"
  local pattern = calls.text(what, (calls.take(what, "format", args, named)))
  return M.strftime(pattern, core._wall())
end

-- An object of Jinja's that gives its values one after the other.
local function cycler(args, named)
  if #args == 0 then fail "the function 'cycler' needs a value" end
  calls.take("the function 'cycler'", "", {}, named)
  local at = 1
  local made = values.callable("a cycler", function() fail "a cycler is no function; call its next()" end)
  local function current() return args[at] end
  made.fields = {
    current = current,
    next = values.callable("the method 'next' of a cycler", function()
      local value = current()
      at = at % #args + 1
      return value
    end),
    reset = values.callable("the method 'reset' of a cycler", function()
      at = 1
      return values.NONE
    end),
  }
  return made
end

local function joiner(args, named)
  local separator = calls.take("the function 'joiner'", "sep?", args, named)
  local used = false
  return values.callable("a joiner", function()
    if not used then
      used = true
      return ""
    end
    return separator == nil and ", " or separator
  end)
end

--- Returns the functions by name.
---@return table<string, table>
function M.all()
  local map = {}
  for name, fn in pairs { range = range, dict = dict, namespace = namespace, cycler = cycler, joiner = joiner,
    raise_exception = raise_exception, strftime_now = strftime_now,
    lipsum = function() fail "the function 'lipsum' is not supported" end } do
    map[name] = values.callable(("the function '%s'"):format(name), fn)
  end
  return map
end

return M
