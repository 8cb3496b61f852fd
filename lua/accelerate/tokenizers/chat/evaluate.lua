--- Evaluates the expressions of a chat template. A scope is { names, parent }.
local calls = require "accelerate.tokenizers.chat.calls"
local filters = require "accelerate.tokenizers.chat.filters"
local format = require "accelerate.tokenizers.chat.format"
local methods = require "accelerate.tokenizers.chat.methods"
local numbers = require "accelerate.tokenizers.chat.numbers"
local run = require "accelerate.tokenizers.chat.run"
local sequences = require "accelerate.tokenizers.chat.sequences"
local tests = require "accelerate.tokenizers.chat.tests"
local texts = require "accelerate.tokenizers.chat.texts"
local values = require "accelerate.tokenizers.chat.values"

local fail = run.fail
local truth = values.truth

local M = {}

local EVALUATE = {}

--- Returns the value of an expression.
---@param scope table
---@param node table
local function evaluate(scope, node)
  run.step()
  run.line = node.line
  return EVALUATE[node.kind](scope, node)
end
M.evaluate = evaluate

--- Adds a kind of expression: `function(scope, node)`.
function M.define(kind, fn) EVALUATE[kind] = fn end

--- Returns the value of a name; undefined where there is none.
function M.lookup(scope, name)
  while scope do
    local value = scope.names[name]
    if value ~= nil then return value end
    scope = scope.parent
  end
  return values.undefined("'%s' is undefined", name)
end

-- ---- operators

local function repeated(a, b)
  local text, list = values.text_of(a), values.kind(a)
  local n, float = numbers.of(b)
  if not n or float then return nil end
  if text then
    local made = texts.rep(text, n)
    return type(a) == "string" and made or values.markup(made)
  end
  if list ~= "list" and list ~= "tuple" then return nil end
  local out, size = {}, #a
  run.step(math.max(0, n) * size)
  for i = 1, n * size do out[i] = a[(i - 1) % size + 1] end
  return values.list(out, list)
end

local SPECIAL = {
  ["+"] = sequences.add,
  ["*"] = function(a, b)
    local made = repeated(a, b)
    if made == nil then made = repeated(b, a) end
    return made
  end,
  ["%"] = function(a, b) return type(a) == "string" and format.percent(a, b) or nil end,
}

local function compute(sign, a, b)
  local value = numbers.compute(sign, a, b)
  if value == nil and SPECIAL[sign] then
    if sign ~= "%" then values.defined(b) end
    value = SPECIAL[sign](values.defined(a), b)
  end
  if value ~= nil then return value end
  fail("'%s' of %s and %s", sign, values.shown(values.defined(a)), values.shown(values.defined(b)))
end

local COMPARE = {
  ["=="] = values.equal,
  ["!="] = function(a, b) return not values.equal(a, b) end,
  ["<"] = function(a, b) return values.less(a, b, "<") end,
  [">"] = function(a, b) return values.less(b, a, ">") end,
  ["<="] = function(a, b) return values.less(a, b, "<=") or values.equal(a, b) end,
  [">="] = function(a, b) return values.less(b, a, ">=") or values.equal(a, b) end,
  ["in"] = function(a, b) return values.contains(b, a) end,
  ["not in"] = function(a, b) return not values.contains(b, a) end,
}

local function signed(sign)
  return function(scope, node)
    local value = evaluate(scope, node.of)
    local number, float = numbers.of(values.defined(value))
    if not number then fail("'%s' of %s", sign, values.shown(value)) end
    number = sign == "-" and -number or number
    return float and numbers.float(number) or numbers.integer(number)
  end
end

-- ---- calls

local function list_of(scope, nodes)
  local list = {}
  for i = 1, #nodes do list[i] = evaluate(scope, nodes[i]) end
  return list
end

-- The arguments with names of a call, as a map.
local function named_of(scope, node)
  if #node.named == 0 and not node.map then return calls.NONE_NAMED end
  local named = values.map()
  for _, entry in ipairs(node.named) do
    if values.get(named, entry[1]) ~= nil then fail("the argument '%s' is given twice", entry[1]) end
    values.put(named, entry[1], evaluate(scope, entry[2]))
  end
  if not node.map then return named end
  local more = evaluate(scope, node.map)
  if values.kind(more) ~= "map" then fail("'**' needs a map, got %s", values.shown(more)) end
  for key, value in values.each(more) do
    if type(key) ~= "string" or values.get(named, key) ~= nil then
      fail("the argument %s is given twice or is no name", values.repr(key))
    end
    values.put(named, key, value)
  end
  return named
end

--- Returns the arguments of a call: a list, and a map of those with names.
---@return any[] args
---@return table named
local function arguments(scope, node)
  local args = list_of(scope, node)
  if node.list then
    for _, value in ipairs(values.walk("'*'", evaluate(scope, node.list))) do args[#args + 1] = value end
  end
  return args, named_of(scope, node)
end
M.arguments = arguments

--- Calls a value.
function M.call(value, args, named)
  values.defined(value)
  local kind = values.kind(value)
  if kind == "loop" then return value.recurse(args, named) end
  if kind ~= "callable" then fail("%s cannot be called", values.shown(value)) end
  return value.call(args, named)
end

-- ---- kinds of expressions

EVALUATE.value = function(_, node) return node.value end
EVALUATE.none = function() return values.NONE end
EVALUATE.integer = function(_, node) return numbers.integer(node.value) end
EVALUATE.float = function(_, node) return numbers.float(node.value) end
EVALUATE.name = function(scope, node) return M.lookup(scope, node.name) end
EVALUATE.minus, EVALUATE.plus = signed "-", signed "+"
EVALUATE["not"] = function(scope, node) return not truth(evaluate(scope, node.of)) end

EVALUATE["and"] = function(scope, node)
  local left = evaluate(scope, node.left)
  if not truth(left) then return left end
  return evaluate(scope, node.right)
end

EVALUATE["or"] = function(scope, node)
  local left = evaluate(scope, node.left)
  if truth(left) then return left end
  return evaluate(scope, node.right)
end

EVALUATE.choice = function(scope, node)
  if truth(evaluate(scope, node.condition)) then return evaluate(scope, node.yes) end
  if node.no then return evaluate(scope, node.no) end
  return values.undefined "an 'if' without an 'else' gave nothing"
end

EVALUATE.binary = function(scope, node)
  local left, right = evaluate(scope, node.left), evaluate(scope, node.right)
  run.line = node.line
  return compute(node.sign, left, right)
end

EVALUATE.joined = function(scope, node)
  local parts = list_of(scope, node.parts)
  for i = 1, #parts do parts[i] = values.text(parts[i]) end
  return texts.join(parts, "")
end

EVALUATE.compare = function(scope, node)
  local left = evaluate(scope, node.of)
  for _, link in ipairs(node.links) do
    local right = evaluate(scope, link.of)
    run.line = node.line
    if not COMPARE[link.sign](left, right) then return false end
    left = right
  end
  return true
end

EVALUATE.list = function(scope, node)
  return values.list(list_of(scope, node.entries), node.tuple and "tuple" or "list")
end

EVALUATE.map = function(scope, node)
  local map = values.map()
  for _, entry in ipairs(node.entries) do
    local key = evaluate(scope, entry[1])
    values.put(map, key, evaluate(scope, entry[2]))
  end
  return map
end

EVALUATE.attribute = function(scope, node) return methods.attribute(evaluate(scope, node.of), node.name) end

EVALUATE.index = function(scope, node)
  local of = evaluate(scope, node.of)
  return methods.index(of, evaluate(scope, node.index))
end

EVALUATE.slice = function(scope, node)
  local of = evaluate(scope, node.of)
  local function bound(part) return part and evaluate(scope, part) or values.NONE end
  return methods.slice(of, bound(node.from), bound(node.to), bound(node.step))
end

EVALUATE.call = function(scope, node)
  local of = evaluate(scope, node.of)
  local args, named = arguments(scope, node.arguments)
  run.line = node.line
  return M.call(of, args, named)
end

EVALUATE.filter = function(scope, node)
  local of = evaluate(scope, node.of)
  local args, named = arguments(scope, node.arguments)
  run.line = node.line
  return filters.apply(node.name, of, args, named)
end

EVALUATE.test = function(scope, node)
  local of = evaluate(scope, node.of)
  local args, named = arguments(scope, node.arguments)
  run.line = node.line
  return tests.holds(node.name, of, args, named)
end

return M
