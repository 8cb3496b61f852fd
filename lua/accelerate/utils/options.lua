--- Checked options. A schema names every option with its type; a key that is not in it is an error
--- that names the nearest one.
---
---   local OPTIONS = {
---     momentum  = { "number", default = 0, min = 0 },
---     reduction = { "string", default = "mean", one_of = { "mean", "sum", "none" } },
---     generator = { "Generator", optional = true },
---   }
---   local o = options.check("SGD", given, OPTIONS)     -- a fresh table with the defaults filled
---     in
---
--- Entries: a type ("string" "number" "integer" "boolean" "function" "table" "list" "tensor" "any",
--- or several as "number|string"; other words are names of classes), and default=, optional= (may
--- be absent; without a default it is then nil), one_of= {...}, min=, max= (allowed ends), above=,
--- below= (not allowed ends), class= (a class from utils.class). Errors carry the position of the
--- caller's script: the innermost frame outside this library.

local class = require "accelerate.utils.class"
local lists = require "accelerate.utils.lists"
local ordered = require "accelerate.utils.ordered"

local options = {}

-- "@…/lua/accelerate/": what the sources of this library begin with.
local LIBRARY = debug.getinfo(1, "S").source:match("^(.*[/\\])utils[/\\]options%.lua$")

--- The stack level, as error() counts it in the function that calls this one, of the innermost Lua
--- function outside this library. 0 (no position) when there is none.
---@return integer
function options.caller_level()
  local level = 2  -- 1 is the caller, which is in the library or about to raise for its own caller
  while true do
    local info = debug.getinfo(level + 1, "S")
    if not info then return 0 end
    if info.what ~= "C" and not (LIBRARY and info.source:sub(1, #LIBRARY) == LIBRARY) then return level end
    level = level + 1
  end
end

--- Returns the text with question marks for control characters other than line ends and tabs: a
--- quoted file, name or variable may hold what moves a terminal's cursor, or worse.
---@param text string
---@return string
function options.clean(text) return (text:gsub("[%z\1-\8\11-\31\127]", "?")) end

-- The message by the name of the function that the script called, where it begins with that of one
-- inside.
local function by_called_name(message)
  local core = package.loaded["accelerate.core"]
  local inner = type(core) == "table" and message:match("^([%w_%.]+): ")
  local called = inner and core._called(inner)
  return called and called .. message:sub(#inner + 1) or message
end

--- Raises `message` (a format with its arguments) with the position of the innermost caller outside
--- this library, without control characters.
---@param message string
function options.fail(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  local level = options.caller_level()
  error(options.clean(by_called_name(message)), level)
end
local fail = options.fail

-- "lr" of "learning_rate"; nil of one word.
local function initials(name)
  local first = name:gsub("(%a)[^_]*_?", "%1")
  return #first > 1 and first or nil
end

--- The word of `known` that `word` is a misspelling or an abbreviation of, or nil (more than about
--- a third of the letters differ).
---@param word string
---@param known string[]
---@return string?
function options.misspelt(word, known)
  local near = require("accelerate.core")._nearest(word, known)
  if near then return near end
  for _, candidate in ipairs(known) do  -- "lr" for "learning_rate", "weight_decay" for "wd"
    if initials(word) == candidate or initials(candidate) == word then return candidate end
  end
end

--- The word of `known` that is nearest to `word`, or nil when none is near.
---@param word string
---@param known string[]
---@return string?
function options.nearest(word, known)
  local near = options.misspelt(word, known)
  if near then return near end
  local lower = word:lower()
  for _, candidate in ipairs(known) do  -- a part of the name, or the name with more around it
    local c = candidate:lower()
    if #lower >= 3 and #c >= 3 and (c:find(lower, 1, true) or lower:find(c, 1, true)) then
      return candidate
    end
  end
end

--- "; did you mean 'x'?" or, when no word is near, "; known: a, b, c".
---@param word any
---@param known string[]
---@return string
function options.hint(word, known)
  local near = type(word) == "string" and options.nearest(word, known)
  if near then return ("; did you mean '%s'?"):format(near) end
  if #known == 0 then return "; none are known" end
  return "; known: " .. table.concat(known, ", ")
end

--- Returns a value as messages show it: text in quotes, numbers as they are, tensors with their
--- shape.
---@param value any
---@return string
function options.show(value)
  local kind = type(value)
  if kind == "string" then
    if #value > 40 then value = value:sub(1, 37) .. "..." end
    return ("'%s'"):format(value)
  elseif kind == "nil" then
    return "nil"
  elseif kind == "number" or kind == "boolean" then
    return tostring(value)
  end
  local core = package.loaded["accelerate.core"]
  if core and core.is_tensor(value) then
    local article = value.dtype:find "^int" and "an" or "a"
    return ("%s %s tensor of shape [%s]"):format(article, value.dtype, table.concat(value.shape, ", "))
  end
  local Class = class.of(value)
  if Class then return "a " .. Class.__name end
  if kind == "table" and getmetatable(value) == nil and #value > 0 then
    local fault = lists.fault(value)
    return fault and "a list with " .. fault or "a list of " .. #value
  end
  return "a " .. kind
end

local ARTICLE = {
  string = "a string", number = "a number", integer = "an integer", boolean = "true or false",
  ["function"] = "a function",
  table = "a table", list = "a list", tensor = "a tensor", any = "a value",
}

--- Returns whether `value` can be called: a function, a module, any object with __call.
---@param value any
---@return boolean
function options.callable(value)
  if type(value) == "function" then return true end
  local meta = (type(value) == "table" or type(value) == "userdata") and getmetatable(value)
  return type(meta) == "table" and meta.__call ~= nil
end
local callable = options.callable

--- Returns the three values that a script's own iter() returned, or raises when a `for` cannot walk
--- them.
---@param what string whose iter it was
---@return function nexts, any state, any control
function options.iterator(what, nexts, state, control)
  if not callable(nexts) then
    fail("%s: iter() must return a function that gives the next value at each call, " ..
      "and nil at the end; got %s", what, options.show(nexts))
  end
  return nexts, state, control
end

local fits = {
  string = function(v) return type(v) == "string" end,
  number = function(v) return type(v) == "number" end,
  -- false for inf and NaN
  integer = function(v) return type(v) == "number" and v % 1 == 0 and v >= -2 ^ 53 and v <= 2 ^ 53 end,
  boolean = function(v) return type(v) == "boolean" end,
  ["function"] = callable,
  table = function(v) return type(v) == "table" end,
  list = function(v) return type(v) == "table" and getmetatable(v) == nil and ordered.is_list(v) end,
  tensor = function(v)
    local core = package.loaded["accelerate.core"]
    return core ~= nil and core.is_tensor(v)
  end,
  any = function(v) return v ~= nil end,
}

-- A type word that is no Lua type is a class of the C module, known by the name in its metatable.
local function is_a(word, value)
  local fit = fits[word]
  if fit then return fit(value) end
  local Class = class.of(value)
  if Class then return Class.__name == word end
  local meta = type(value) == "userdata" and getmetatable(value)
  if type(meta) == "string" then return meta == word:lower() end -- "tensor", "generator": the C module's own
  if type(meta) ~= "table" then return type(value) == "userdata" end
  local name = rawget(meta, "__name")
  return name == nil or name:match("[^.]*$") == word
end

local function type_fits(entry, value)
  local words = entry[1] or "any"
  if entry.class and class.is(value, entry.class) then return true end
  for word in words:gmatch("[^|]+") do
    if is_a(word, value) then return true end
  end
  return false
end

local function expected(entry)
  local names = {}
  if entry.class then names[1] = "a " .. entry.class.__name end
  for word in (entry[1] or "any"):gmatch("[^|]+") do
    if not (entry.class and word == entry.class.__name) then
      names[#names + 1] = ARTICLE[word] or "a " .. word
    end
  end
  return table.concat(names, " or ")
end

local function limits(entry, value)
  if type(value) ~= "number" then return nil end
  local low, high = entry.min or entry.above, entry.max or entry.below
  local bad = value ~= value and (low or high)
    or entry.min and value < entry.min or entry.above and value <= entry.above
    or entry.max and value > entry.max or entry.below and value >= entry.below
  if not bad then return nil end
  local text = {}
  if entry.min then text[#text + 1] = ("at least %.14g"):format(entry.min) end
  if entry.above then text[#text + 1] = ("above %.14g"):format(entry.above) end
  if entry.max then text[#text + 1] = ("at most %.14g"):format(entry.max) end
  if entry.below then text[#text + 1] = ("below %.14g"):format(entry.below) end
  return table.concat(text, " and ")
end

local function one_of(entry, value)
  for _, allowed in ipairs(entry.one_of) do
    if value == allowed then return true end
  end
  return false
end

--- Checks one value against a schema entry; returns it, or the entry's default when it is nil.
---@param where string what the message begins with: "Linear"
---@param what string what the value is called: "in_features"
---@param value any
---@param entry table
---@return any
function options.value(where, what, value, entry)
  if value == nil then
    if entry.default ~= nil then
      if type(entry.default) ~= "table" or getmetatable(entry.default) then return entry.default end
      local copy = {}  -- lists of defaults are the caller's to change
      for i, item in ipairs(entry.default) do copy[i] = item end
      return copy
    end
    if entry.optional then return nil end
    fail("%s: %s is missing (expected %s)", where, what, expected(entry))
  end
  if not type_fits(entry, value) then
    fail("%s: %s must be %s, got %s", where, what, expected(entry), options.show(value))
  end
  local wrong = limits(entry, value)
  if wrong then fail("%s: %s must be %s, got %s", where, what, wrong, options.show(value)) end
  if entry.one_of and not one_of(entry, value) then
    local words = {}
    for i, allowed in ipairs(entry.one_of) do words[i] = tostring(allowed) end
    fail("%s: %s must be one of %s, got %s%s", where, what, table.concat(words, ", "), options.show(value),
      type(value) == "string" and options.nearest(value, words) and options.hint(value, words) or "")
  end
  return value
end

-- What PyTorch calls options in a second way.
local ALIASES = { axis = "dim", keepdims = "keepdim" }

-- What is written in place of an option that functions of PyTorch's have, and none here; nil for
-- other names. Options of classes, whose names begin with a capital, are none of these.
local function instead_of(where, key)
  return not where:find "^%u" and require("accelerate.messages.elsewhere").OPTIONS[key] or nil
end

-- The options with their names in the schema. Raises for those that are not in it.
local function settled(where, given, schema)
  local known = {}
  for _, key in ipairs(ordered.sorted_keys(given)) do
    local name = schema[key] and key or ALIASES[key]
    if not schema[name] then
      local instead = instead_of(where, key)
      fail("%s: unknown option '%s'%s", where, key, instead and "; " .. instead
        or options.hint(key, ordered.sorted_keys(schema)))
    end
    if name ~= key and given[name] ~= nil then
      fail('%s: %s is given twice, as "%s" and as "%s"', where, name, name, key)
    end
    known[name] = given[key]
  end
  return known
end

--- Checks a table of options against a schema. Returns a fresh table with every option that has a
--- value, defaults included. `axis` is another name of dim, and `keepdims` of keepdim.
---@param where string what messages begin with: the function or class that takes the options
---@param given table|nil the options as the caller gave them
---@param schema table<string, table>
---@return table
function options.check(where, given, schema)
  if given == nil then given = {} end
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    fail("%s: options must be a table, got %s", where, type(given) == "table" and "an object"
      or options.show(given))
  end
  local names = ordered.sorted_keys(schema)
  for key in next, given do  -- any one unknown key will do; with several, the first in order is named
    if type(key) ~= "string" then
      fail("%s: options are given by name, got a value at position %s%s", where, tostring(key),
        options.hint(nil, names))
    end
  end
  for key in next, given do
    if not schema[key] then
      given = settled(where, given, schema)
      break
    end
  end
  local result = {}
  for _, name in ipairs(names) do
    result[name] = options.value(where, ("option '%s'"):format(name), given[name], schema[name])
  end
  return result
end

-- A table of options, and not a list or an object; a sampler or a stream may be a plain table.
local function is_named(value)
  return type(value) == "table" and getmetatable(value) == nil and value[1] == nil
    and type(value.iter) ~= "function"
end

--- Optional arguments by name: those given by position, named in order by `names`, and those of a
--- plain table at the end.
---
---   options.gather("MaxPool2d", { "stride", "padding" }, 2, { padding = 1 })     -- { stride = 2,
---     padding = 1 }
---@param where string what messages begin with
---@param names string[] of the positions, in order
---@param ... any positions, then at most one table of options
---@return table<string, any> not yet checked against a schema
function options.gather(where, names, ...)
  local given, n, found = { ... }, select("#", ...), {}
  while n > 0 and given[n] == nil do n = n - 1 end
  if is_named(given[n]) then
    for name, value in next, given[n] do found[name] = value end
    n = n - 1
  end
  for i = 1, n do
    local name, value = names[i], given[i]
    if value ~= nil then
      if not name then
        fail("%s: an argument too many: %s; after %s come options in a table", where, options.show(value),
          names[#names])
      end
      if found[name] ~= nil then fail("%s: %s is given twice, by position and by name", where, name) end
      found[name] = value
    end
  end
  return found
end

--- Arguments by position, then by name, checked: what `gather` gives, through `check`.
---
---   local o = options.read("load_state_dict", { "strict", "assign" }, LOAD, ...)
---@param where string what messages begin with
---@param names string[] of the positions, in order
---@param schema table<string, table>
---@param ... any positions, then at most one table of options
---@return table
function options.read(where, names, schema, ...)
  return options.check(where, options.gather(where, names, ...), schema)
end

-- The comment that a script opens with, or nil.
local function opening_comment(path)
  local file, lines = path and io.open(path), {}
  if not file then return nil end
  for line in file:lines() do
    local text = line:match("^%-%- ?(.*)$")
    if not text then break end
    lines[#lines + 1] = text
  end
  file:close()
  return lines[1] and table.concat(lines, "\n") or nil
end

-- What --help prints, on rank 0: the script's opening comment, or the names of its options.
local function print_help(where, schema)
  local text = opening_comment(arg and arg[0])
    or where .. ": --" .. table.concat(ordered.sorted_keys(schema), " --")
  if require("accelerate.core").dist.rank() == 0 then print(text) end
  os.exit(0)
end

--- Reads a script's arguments, `--name value` or `--name=value` (dashes in names count as
--- underscores), and checks them against a schema. A boolean option may stand alone. `--help`
--- prints the comment that the script opens with, and ends the script.
---
---   local options = utils.options.arguments("train.lua", arg, { epochs = { "integer", default = 3,
---     min = 1 } })
---@param where string what messages begin with: the script's name
---@param given string[] the arguments
---@param schema table<string, table>
---@return table
function options.arguments(where, given, schema)
  local found, i = {}, 1
  while given[i] do
    if given[i] == "--help" and not schema.help then print_help(where, schema) end
    local name, equals, value = given[i]:match("^%-%-([%w_%-]+)(=?)(.*)$")
    if not name then
      fail("%s: expected an option such as --%s, got '%s'", where, ordered.sorted_keys(schema)[1] or "name",
        given[i])
    end
    name = name:gsub("%-", "_")
    local kind = schema[name] and schema[name][1]
    local next_one = given[i + 1]
    if equals == "" then
      if kind == "boolean" and (next_one == nil or next_one:sub(1, 2) == "--") then value = "true"
      else
        i = i + 1
        value = next_one
      end
    end
    if value == nil then fail("%s: option --%s needs a value", where, name) end
    if kind == "boolean" then
      if value == "true" then value = true elseif value == "false" then value = false end
    elseif kind and kind ~= "string" then
      local number = tonumber(value)
      if number then value = number end
    end
    found[name] = value
    i = i + 1
  end
  return options.check(where, found, schema)
end

--- Returns whether `value` is a plain table, not empty, whose keys are all options of the schema
--- (how `prepare` distinguishes options from objects).
---@param value any
---@param schema table<string, table>
---@return boolean
function options.is_options(value, schema)
  if type(value) ~= "table" or getmetatable(value) ~= nil or next(value) == nil then return false end
  for key in next, value do
    if type(key) ~= "string" or not schema[key] then return false end
  end
  return true
end

return options
