--- One rule for the arguments of constructors and functions, whatever reads them behind it:
---
---   Arguments go by position, in PyTorch's order; the last argument may be a table that gives any
---   of the others by name.
---
--- An order is a text: "in_features out_features [bias]". `init` gets the words at its beginning by
--- position and those in brackets in a table of options; `+word` is required, too, but read from
--- the table. An order that ends with "..." passes on what follows as it came.
---
---   Linear.init = positions.arrange("Linear", "in_features out_features [bias]", Linear.init,
---     true)
local methods = require "accelerate.messages.methods"
local options = require "accelerate.utils.options"

local M = {}

-- function -> its order, what is behind it, and how many arguments stand before, for the reference
local orders = setmetatable({}, { __mode = "k" })

-- How many arguments a function takes; nil: any number.
local function most_of(fn)
  local info = debug.getinfo(methods.plain(fn), "u")
  return not info.isvararg and info.nparams or nil
end

--- Returns the arguments of a function that was arranged, or nil: "in_features, out_features,
--- [bias], [opts]".
---@param fn any
---@return string?
function M.shown(fn)
  local known = orders[fn]
  if not known then return nil end
  local order = known.order
  local all = not order:find "[%[+.]" and most_of(known.fn) == known.first + select(2, order:gsub("%S+", ""))
  if not all and not order:find("...", 1, true) then order = order .. " [opts]" end
  return (order:gsub("%+", ""):gsub("%s+", ", "))
end

local function parse(order)
  local required, named, open = {}, {}, false
  for word in order:gmatch("%S+") do
    if word == "..." then open = true
    elseif word:find("^[%[%+]") then named[#named + 1] = word:match("[%w_]+")
    else required[#required + 1] = word end
  end
  return required, named, open
end

-- A table of options, and not a list, an object, or a data set or a sampler that is a plain table.
local function is_named(value)
  return type(value) == "table" and getmetatable(value) == nil and value[1] == nil
    and type(value.iter) ~= "function" and type(value.get) ~= "function"
end

-- What the table calls the argument: x is also called input.
local function called(list, name)
  if name == "x" and list.x == nil and list.input ~= nil then return "input" end
  return name
end

-- Whether a table at the place of a required argument gives it, or one behind it, by name.
local function names_one(list, required, from)
  for i = from, #required do
    if list[called(list, required[i])] ~= nil then return true end
  end
  return false
end

-- Raises where there are options, and the function behind takes none.
local function refuse_options(title, opts, required)
  local key = next(opts)
  if key ~= nil then
    options.fail("%s: unknown option '%s'%s", title, tostring(key), options.hint(key, required))
  end
end

-- Raises for a key that is none of the names.
local function refuse_unknown(title, list, names)
  for key in next, list do
    local known = key == "input" and names[1] == "x"
    for _, name in ipairs(names) do known = known or key == name end
    if not known then refuse_options(title, { [key] = true }, names) end
  end
end

-- The arguments as fn has them: `first` of them stand before the order (self).
local function arranged(title, required, named, open, first, ...)
  local given, n = { ... }, select("#", ...)
  while n > first and given[n] == nil do n = n - 1 end
  local opts
  if n > first and is_named(given[n])
    and (n > first + #required or names_one(given[n], required, n - first)) then
    opts = {}
    for key, value in next, given[n] do opts[key] = value end
    given[n] = nil
    n = n - 1
  end
  local by_name = false
  for i, name in ipairs(opts and required or {}) do
    local key = called(opts, name)
    if opts[key] ~= nil then
      if first + i <= n then
        options.fail("%s: %s is given twice, by position and by name", title, key)
      end
      given[first + i], opts[key], by_name = opts[key], nil, true
    end
  end
  local behind = first + #required
  if open then
    for i, name in ipairs(by_name and required or {}) do
      if given[first + i] == nil then options.fail("%s: %s is missing", title, name) end
    end
    n = math.max(n, behind)
    return n + 1, given, opts
  end
  for i = behind + 1, n do
    local name, value = named[i - behind], given[i]
    if not name then
      options.fail("%s: an argument too many: %s; there are %s", title, options.show(value),
        table.concat(required, ", ") .. (#required > 0 and #named > 0 and ", " or "") ..
          table.concat(named, ", "))
    end
    if value ~= nil then
      opts = opts or {}
      if opts[name] ~= nil then
        options.fail("%s: %s is given twice, by position and by name", title, name)
      end
      opts[name] = value
    end
    given[i] = nil
  end
  return behind + 1, given, opts
end

--- Returns fn, called by the rule.
---@param title string what messages begin with
---@param order string
---@param fn function gets the required arguments, then a table of options (or nil)
---@param method? boolean fn's first argument is self
---@return function
function M.arrange(title, order, fn, method)
  local first = method and 1 or 0
  local required, named, open, usual, most
  local function call(...)
    if not required then -- at the first call: a script uses few of the classes
      required, named, open = parse(order)
      usual, most = first + #required, most_of(fn) or math.huge
    end
    local n = select("#", ...)
    local at_end = n > 0 and (select(n, ...)) or nil
    if n == usual and not is_named(at_end) then return fn(...) end
    if n == usual + 1 and n <= most and is_named(at_end) and not names_one(at_end, required, 1) then
      return fn(...)
    end
    local last, given, opts = arranged(title, required, named, open, first, ...)
    if opts and not open and last > most then refuse_options(title, opts, required) end
    if opts and next(opts) ~= nil then given[last] = opts else last = last - 1 end
    return fn(unpack(given, 1, last))
  end
  orders[call] = { order = order, fn = fn, first = first }
  methods.stands_for(call, fn)
  return call
end

--- Arranges the forward of a class: what it is called with may be given by name. An empty table at
--- the end, as `{ hx = state }` is where there is no state yet, gives nothing.
---@param title string what messages begin with
---@param Class table
---@param order string the names, PyTorch's
function M.forward(title, Class, order)
  local plain, names = Class.forward, nil
  local function call(self, ...)
    local n = select("#", ...)
    local last = n > 0 and (select(n, ...)) or nil
    if not is_named(last) then return plain(self, ...) end
    local given = { ... }
    given[n] = nil
    names = names or parse(order)
    local left = 0
    for _ in next, last do left = left + 1 end
    for i, name in ipairs(names) do
      local key = called(last, name)
      if last[key] ~= nil then
        if i < n then options.fail("%s: %s is given twice, by position and by name", title, key) end
        given[i], left = last[key], left - 1
      end
    end
    if left > 0 then refuse_unknown(title, last, names) end
    return plain(self, unpack(given, 1, math.max(#names, n - 1)))
  end
  methods.stands_for(call, plain)
  rawset(Class, "forward", call)
end

--- Arranges the constructors of classes: a map of names to orders.
---@param classes table<string, table>
---@param list table<string, string>
function M.constructors(classes, list)
  for name, order in next, list do
    local Class = classes[name]
    rawset(Class, "init", M.arrange(name, order, Class.init, true))
  end
end

--- Arranges functions of a module: a map of names to orders.
---@param module table<string, function>
---@param list table<string, string>
function M.functions(module, list)
  for name, order in next, list do module[name] = M.arrange(name, order, module[name]) end
end

--- Arranges methods of a class: a map of names to orders. It stands behind their definitions.
---@param Class table
---@param list table<string, string>
function M.methods(Class, list)
  for name, order in next, list do rawset(Class, name, M.arrange(name, order, Class[name], true)) end
end

return M
