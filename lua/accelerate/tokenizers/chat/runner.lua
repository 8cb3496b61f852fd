--- Runs the tree of a chat template.
local lexer = require "accelerate.tokenizers.chat.lexer"
local values = require "accelerate.tokenizers.chat.values"

local fail, NONE = lexer.fail, values.NONE

local M = {}

local MOST_STEPS = 1e6  -- of loops: a template does not run for ever
local MOST_TEXT = 2 ^ 28

local evaluate, execute

local FUNCTIONS = {
  raise_exception = function(state, line, message) fail(line, "%s", values.text(message, line)) end,
  namespace = function(_, _, _, named)
    local copy = {}
    for name, value in pairs(named) do copy[name] = value end
    return copy
  end,
  range = function(state, line, from, named, to, step)
    if to == nil then from, to = 0, from end
    for _, bound in pairs { from, to, step } do
      if type(bound) ~= "number" then fail(line, "range needs numbers, got %s", values.kind(bound)) end
    end
    step = step or 1
    if step == 0 or math.abs((to - from) / step) > MOST_STEPS then
      fail(line, "a range of too many numbers")
    end
    local list = {}
    for i = from, to - (step > 0 and 1 or -1), step do list[#list + 1] = i end
    return list
  end,
}

local function lookup(scope, name)
  while scope do
    local value = scope.names[name]
    if value ~= nil then return value end
    scope = scope.parent
  end
end

local function numbers(node, left, right)
  if type(left) ~= "number" or type(right) ~= "number" then
    fail(node.line, "'%s' of %s and %s", node.sign, values.kind(left), values.kind(right))
  end
  return left, right
end

local function nonzero(node, left, right)
  left, right = numbers(node, left, right)
  if right == 0 then fail(node.line, "'%s' by 0", node.sign) end
  return left, right
end

local function ordered(node, left, right)
  if type(left) ~= type(right) or type(left) ~= "number" and type(left) ~= "string" then
    fail(node.line, "'%s' of %s and %s", node.sign, values.kind(left), values.kind(right))
  end
  return left, right
end

local BINARY = {
  ["=="] = function(_, a, b) return values.equal(a, b) end,
  ["!="] = function(_, a, b) return not values.equal(a, b) end,
  ["<"] = function(node, a, b) a, b = ordered(node, a, b) return a < b end,
  [">"] = function(node, a, b) a, b = ordered(node, a, b) return a > b end,
  ["<="] = function(node, a, b) a, b = ordered(node, a, b) return a <= b end,
  [">="] = function(node, a, b) a, b = ordered(node, a, b) return a >= b end,
  ["in"] = function(node, a, b) return values.contains(b, a, node.line) end,
  ["~"] = function(node, a, b) return values.text(a, node.line) .. values.text(b, node.line) end,
  ["-"] = function(node, a, b) a, b = numbers(node, a, b) return a - b end,
  ["/"] = function(node, a, b) a, b = nonzero(node, a, b) return a / b end,
  ["//"] = function(node, a, b) a, b = nonzero(node, a, b) return math.floor(a / b) end,
  ["%"] = function(node, a, b) a, b = nonzero(node, a, b) return a % b end,
  ["*"] = function(node, a, b) a, b = numbers(node, a, b) return a * b end,
  ["+"] = function(node, a, b)
    if type(a) == "string" and type(b) == "string" then return a .. b end
    if type(a) == "table" and type(b) == "table" and a ~= NONE and b ~= NONE then
      local both = {}
      for _, list in ipairs { a, b } do
        for _, value in ipairs(list) do both[#both + 1] = value end
      end
      return both
    end
    a, b = numbers(node, a, b)
    return a + b
  end,
}

local function evaluated(state, scope, nodes, named)
  local list, by_name = {}, {}
  for i, node in ipairs(nodes) do
    list[i] = evaluate(state, scope, node)
    if list[i] == nil then list[i] = NONE end
  end
  for name, node in pairs(named) do by_name[name] = evaluate(state, scope, node) end
  return list, by_name
end

local EVALUATE = {
  value = function(_, _, node) return node.value end,
  none = function() return NONE end,
  name = function(_, scope, node) return lookup(scope, node.name) end,
  ["not"] = function(state, scope, node) return not values.truth(evaluate(state, scope, node.of)) end,
  ["and"] = function(state, scope, node)
    local left = evaluate(state, scope, node.left)
    if not values.truth(left) then return left end
    return evaluate(state, scope, node.right)
  end,
  ["or"] = function(state, scope, node)
    local left = evaluate(state, scope, node.left)
    if values.truth(left) then return left end
    return evaluate(state, scope, node.right)
  end,
  choice = function(state, scope, node)
    if values.truth(evaluate(state, scope, node.condition)) then return evaluate(state, scope, node.yes) end
    return node.no and evaluate(state, scope, node.no)
  end,
  minus = function(state, scope, node)
    local value = evaluate(state, scope, node.of)
    if type(value) ~= "number" then fail(node.line, "'-' of %s", values.kind(value)) end
    return -value
  end,
  binary = function(state, scope, node)
    return BINARY[node.sign](node, evaluate(state, scope, node.left), evaluate(state, scope, node.right))
  end,
  test = function(state, scope, node)
    local test = values.TESTS[node.name]
    if not test then fail(node.line, "the test '%s' is not supported", node.name) end
    return test(evaluate(state, scope, node.of))
  end,
  index = function(state, scope, node)
    return values.index(evaluate(state, scope, node.of), evaluate(state, scope, node.index), node.line)
  end,
  slice = function(state, scope, node)
    local function bound(part)
      local value = part and evaluate(state, scope, part)
      if value == NONE then value = nil end
      return value
    end
    return values.slice(evaluate(state, scope, node.of), bound(node.from), bound(node.to), bound(node.step),
      node.line)
  end,
  filter = function(state, scope, node)
    local filter = values.FILTERS[node.name]
    if not filter then fail(node.line, "the filter '%s' is not supported", node.name) end
    local list, named = evaluated(state, scope, node.arguments, node.named)
    for name, value in pairs(named) do
      if name ~= "indent" and name ~= "ensure_ascii" then
        fail(node.line, "the filter '%s' has no argument '%s' here", node.name, name)
      end
      if name == "indent" then list[1] = value end
    end
    return filter(evaluate(state, scope, node.of), node.line, unpack(list))
  end,
  call = function(state, scope, node)
    local list, named = evaluated(state, scope, node.arguments, node.named)
    if node.of.kind == "name" then
      local fn = FUNCTIONS[node.of.name]
      if not fn then fail(node.line, "the function '%s' is not supported", node.of.name) end
      return fn(state, node.line, list[1], named, list[2], list[3])
    end
    local name = node.of.kind == "index" and node.of.index.kind == "value" and node.of.index.value
    local method = values.METHODS[name]
    if not method then fail(node.line, "the method '%s' is not supported", tostring(name)) end
    return method(evaluate(state, scope, node.of.of), node.line, unpack(list))
  end,
  list = function(state, scope, node) return (evaluated(state, scope, node.entries, {})) end,
  map = function(state, scope, node)
    local map = {}
    for _, entry in ipairs(node.entries) do
      local key = evaluate(state, scope, entry[1])
      if type(key) ~= "string" then fail(node.line, "a map's keys are texts, got %s", values.kind(key)) end
      map[key] = evaluate(state, scope, entry[2])
    end
    return map
  end,
}

function evaluate(state, scope, node) return EVALUATE[node.kind](state, scope, node) end

-- ---- statements: each returns "break" or "continue", or nothing

local function put(state, text, line)
  state.out[#state.out + 1] = text
  state.bytes = state.bytes + #text
  if state.bytes > MOST_TEXT then fail(line, "the text is too long") end
end

local function body(state, scope, nodes)
  for _, node in ipairs(nodes) do
    local signal = execute(state, scope, node)
    if signal then return signal end
  end
end

-- The entries that a loop goes over.
local function entries_of(state, scope, node)
  local over = evaluate(state, scope, node.over)
  if type(over) == "string" then over = values.FILTERS.list(over, node.line) end
  if type(over) ~= "table" or over == NONE then fail(node.line, "'for' over %s", values.kind(over)) end
  if over[1] == nil and next(over) ~= nil then over = values.METHODS.keys(over, node.line) end
  return over
end

local function bind(node, inner, entry)
  if #node.names == 1 then
    inner[node.names[1]] = entry
    return
  end
  for i, name in ipairs(node.names) do inner[name] = values.index(entry, i - 1, node.line) end
end

local function kept(state, scope, node, list)
  if not node.only then return list end
  local only = {}
  for _, entry in ipairs(list) do
    local inner = { names = {}, parent = scope }
    bind(node, inner.names, entry)
    if values.truth(evaluate(state, inner, node.only)) then only[#only + 1] = entry end
  end
  return only
end

local EXECUTE = {
  text = function(state, _, node) put(state, node.text, node.line) end,
  print = function(state, scope, node)
    put(state, values.text(evaluate(state, scope, node.of), node.line), node.line)
  end,
  ["break"] = function() return "break" end,
  ["continue"] = function() return "continue" end,
  set = function(state, scope, node)
    local value = evaluate(state, scope, node.value)
    if value == nil then value = NONE end
    if not node.member then
      scope.names[node.name] = value
      return
    end
    local holder = lookup(scope, node.name)
    if type(holder) ~= "table" or holder == NONE then
      fail(node.line, "'%s' is %s, not a namespace", node.name, values.kind(holder))
    end
    holder[node.member] = value
  end,
  ["if"] = function(state, scope, node)
    for _, branch in ipairs(node.branches) do
      if not branch.condition or values.truth(evaluate(state, scope, branch.condition)) then
        return body(state, scope, branch.body)
      end
    end
  end,
  ["for"] = function(state, scope, node)
    local list = kept(state, scope, node, entries_of(state, scope, node))
    for i = 1, #list do
      state.steps = state.steps + 1
      if state.steps > MOST_STEPS then fail(node.line, "the loops take too long") end
      local names = { loop = { index = i, index0 = i - 1, first = i == 1, last = i == #list, length = #list,
        revindex = #list - i + 1, revindex0 = #list - i, previtem = list[i - 1], nextitem = list[i + 1] } }
      bind(node, names, list[i])
      if body(state, { names = names, parent = scope }, node.body) == "break" then return end
    end
  end,
}

function execute(state, scope, node) return EXECUTE[node.kind](state, scope, node) end

--- Returns the text that nodes make of variables.
---@param nodes table[]
---@param variables table<string, any>
---@return string
function M.run(nodes, variables)
  local state = { out = {}, bytes = 0, steps = 0 }
  body(state, { names = {}, parent = { names = variables } }, nodes)
  return table.concat(state.out)
end

return M
