--- The tests of Jinja: `value is NAME(arguments)`.
local calls = require "accelerate.tokenizers.chat.calls"
local methods = require "accelerate.tokenizers.chat.methods"
local numbers = require "accelerate.tokenizers.chat.numbers"
local run = require "accelerate.tokenizers.chat.run"
local values = require "accelerate.tokenizers.chat.values"

local kind_of = values.kind

local M = {}

-- A test without arguments.
local function simple(fn) return { signature = "/", fn = fn } end
local function against(fn) return { signature = "/other", fn = fn } end

local function of_kind(...)
  local kinds = {}
  for _, kind in ipairs { ... } do kinds[kind] = true end
  return simple(function(value) return kinds[kind_of(value)] == true end)
end

local function remainder(value, divisor)
  local rest = numbers.compute("%", values.defined(value), values.defined(divisor))
  if rest == nil then run.fail("a test for division needs numbers, got %s", values.shown(value)) end
  return (numbers.of(rest))
end

local equal = against(values.equal)
local differs = against(function(a, b) return not values.equal(a, b) end)
local less = against(values.less)
local more = against(function(a, b) return values.less(b, a, ">") end)

local function at_most(a, b) return values.less(a, b, "<=") or values.equal(a, b) end
local least = against(function(a, b) return at_most(b, a) end)

-- Whether two values are one: None, booleans, texts and integers are what they equal.
local function same(a, b)
  return rawequal(a, b)
end

local TESTS = {
  defined = simple(function(v) return kind_of(v) ~= "undefined" end),
  undefined = of_kind "undefined",
  none = of_kind "none",
  string = of_kind("text", "markup"),
  number = of_kind("integer", "float", "boolean"),
  integer = of_kind "integer",
  float = of_kind "float",
  boolean = of_kind "boolean",
  mapping = of_kind "map",
  sequence = of_kind("text", "markup", "list", "tuple", "range", "map", "undefined"),
  iterable = simple(function(v) return kind_of(v) == "loop" or kind_of(v) == "iterator"
    or values.length(v) ~= nil end),
  callable = simple(function(v) return kind_of(v) == "callable" or kind_of(v) == "loop"
    or kind_of(v) == "undefined" end),
  escaped = of_kind "markup",
  ["true"] = simple(function(v) return v == true end),
  ["false"] = simple(function(v) return v == false end),
  even = simple(function(v) return remainder(v, 2) == 0 end),
  odd = simple(function(v) return remainder(v, 2) == 1 end),
  divisibleby = { signature = "/num", fn = function(v, by) return remainder(v, by) == 0 end },
  lower = simple(function(v) return methods.is_lower(values.text(v)) end),
  upper = simple(function(v) return methods.is_upper(values.text(v)) end),
  sameas = against(same),
  ["in"] = against(function(value, holder) return values.contains(holder, value) end),
  eq = equal, equalto = equal, ["=="] = equal, ne = differs, ["!="] = differs,
  lt = less, lessthan = less, ["<"] = less, gt = more, greaterthan = more, [">"] = more,
  le = against(at_most), ["<="] = against(at_most), ge = least, [">="] = least,
}
local filter_names

TESTS.test = simple(function(v) return TESTS[v] ~= nil end)
TESTS.filter = simple(function(v)
  filter_names = filter_names or require("accelerate.tokenizers.chat.filters").FILTERS
  return filter_names[v] ~= nil
end)

--- Returns whether a test holds.
---@param name string
---@param value any
---@param args any[]
---@param named table a map
---@return boolean
function M.holds(name, value, args, named)
  local test = TESTS[name]
  if not test then run.fail("the test '%s' is not supported", name) end
  return test.fn(value, calls.take(("the test '%s'"):format(name), test.signature, args, named))
end

return M
