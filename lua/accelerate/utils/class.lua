--- Classes: `local Cat = class("Cat", Animal)`; `function Cat:init(name) … end`; `local tom =
--- Cat("Tom")`. Inheritance is single. Metamethods (`__call`, `__tostring`, …) are taken over
--- from the base when the class is made.
--- `class.is(value, Class)` is true for instances of Class and of classes made from it.
---
--- A class's `__made(object)` is called after init; it is inherited like a metamethod. So is
--- `__exact`, a set of names of methods: those that a class of the library defines raise when they
--- are called with more arguments than they have.
---
--- Public methods (functions whose first parameter is `self` and whose name does not begin with
--- '_') refuse to be called with '.' in place of ':'. Classes of scripts, made by `class.open`,
--- take their methods as they are.
local methods = require "accelerate.messages.methods"
local strictness = require "accelerate.messages.strictness"

local class = {}

--- Metamethods that describe the class itself and are never inherited by copying.
local OWN = { __index = true, __name = true, __base = true, __new = true }

-- Names that other class libraries give the constructor. A method of this name would never run.
local function refuse_constructor(Class)
  for _, name in ipairs { "__init", "__init__", "_init" } do
    if rawget(Class, name) ~= nil then
      error(("%s: %s is never called; the constructor of a class is its method 'init'"):format(Class.__name,
        name), 3)
    end
  end
end

local function construct(Class, ...)
  if not rawget(Class, "init") then refuse_constructor(Class) end
  local object = Class.__new(Class)
  local init = Class.init
  if init then
    init(object, ...)
  elseif select("#", ...) > 0 then
    local n = select("#", ...)
    error(("%s: got %d argument%s, but the class has no init method to take %s"):format(
      Class.__name, n, n == 1 and "" or "s", n == 1 and "it" or "them"), 2)
  end
  local made = Class.__made
  if made then made(object) end
  return object
end

local function new(Class)
  return setmetatable({}, Class)
end

local function describe(Class)
  return "class " .. Class.__name
end

-- What messages call an object of a class that says nothing itself: of the class, or of one of its
-- bases.
local NOUNS = { Module = "model", Optimizer = "optimizer", LRScheduler = "scheduler", DataLoader = "loader",
  Dataset = "dataset",
  IterableDataset = "dataset", Metric = "metric", GeneralTracker = "tracker" }

local function noun_of(Class)
  local at = Class
  while at do
    if NOUNS[at.__name] then return NOUNS[at.__name] end
    at = rawget(at, "__base")
  end
  return Class.__name:lower()
end

-- Assignment of a method to a class of the library.
local function define(Class, key, value)
  if type(key) == "string" and key ~= "init" and key:sub(1, 1) ~= "_" then
    local method = methods.plain(value)
    if methods.takes_self(method) then
      value = methods.guard(Class, Class.__name, noun_of(Class), key, method,
        Class.__exact and Class.__exact[key] and methods.most(method))
    end
  end
  rawset(Class, key, value)
end

-- Where a name is in no class. The last one has the names of all that derive from it.
local function lacks(Class, key)
  local optional = rawget(Class, "_optional")
  if not (optional and optional[key]) then strictness.missed_field(Class, key) end
end

local function make_class(name, base, on_assign)
  if type(name) ~= "string" or name == "" then
    error(("class: the name must be a string that is not empty, got %s"):format(tostring(name)), 3)
  end
  if base ~= nil and not class.itself(base) then
    error(("class %s: the base must be a class, got %s"):format(name, type(base)), 3)
  end
  local Class = { __name = name, __base = base, __new = base and base.__new or new }
  Class.__index = Class
  if base then
    for key, value in next, base do  -- order does not matter: keys are distinct
      if type(key) == "string" and key:sub(1, 2) == "__" and not OWN[key] then Class[key] = value end
    end
    if base.__index ~= base then Class.__index = base.__index end  -- a base that looks attributes up itself
  end
  return setmetatable(Class, { __index = base or lacks, __newindex = on_assign, __call = construct,
    __tostring = describe })
end

--- Makes a class. Calling it makes an instance: `__new(Class)` gives the empty object, then
--- `init(object, ...)` fills it.
---@param name string what messages call it
---@param base? table a class made by this function
---@return table Class
local function make(_, name, base)
  local Class = make_class(name, base, define)  -- no tail call: errors count frames
  return Class
end

--- Makes a class of a script's own, whose methods are left as they are.
---@param name string
---@param base? table
---@return table Class
function class.open(name, base)
  local Class = make_class(name, base, nil)
  return Class
end

--- Says which fields of a class's objects may be nil: reading them there is no mistake.
---@param Class table
---@param names string with spaces between
function class.optional(Class, names)
  while rawget(Class, "__base") do Class = Class.__base end
  local optional = rawget(Class, "_optional") or {}
  rawset(Class, "_optional", optional)
  for name in names:gmatch "%S+" do optional[name] = true end
end

--- A `__deepcopy` of classes whose objects are copied field by field; see utils.deepcopy.
---@param object table
---@param copy fun(value: any, seen: table): any
---@param seen table<any, any> originals and their copies
---@return table
function class.copied(object, copy, seen)
  local made = setmetatable({}, getmetatable(object))
  seen[object] = made
  for key, value in next, object do rawset(made, key, copy(value, seen)) end
  return made
end

--- Returns whether `value` is an instance of `Class`, or of a class derived from it.
---@param value any
---@param Class table
---@return boolean
function class.is(value, Class)
  local meta = type(value) == "table" and getmetatable(value)
  while type(meta) == "table" do
    if meta == Class then return true end
    meta = rawget(meta, "__base")
  end
  return false
end

--- Returns whether `Class` is `Base` or derived from it.
---@param Class any
---@param Base table
---@return boolean
function class.derives(Class, Base)
  while type(Class) == "table" do
    if Class == Base then return true end
    Class = rawget(Class, "__base")
  end
  return false
end

--- Returns the class of an object: its metatable, if that is named as classes are; or nil.
---@param value any
---@return table?
function class.of(value)
  local meta = type(value) == "table" and getmetatable(value)
  return type(meta) == "table" and type(rawget(meta, "__name")) == "string" and meta or nil
end

--- Returns the class that `value` is, or nil.
---@param value any
---@return table?
function class.itself(value)
  return type(value) == "table" and type(rawget(value, "__name")) == "string" and value or nil
end

return setmetatable(class, { __call = make })
