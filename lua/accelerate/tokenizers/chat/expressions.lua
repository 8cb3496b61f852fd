--- Makes trees of the expressions of a template. A node is a table with `kind`, `line` and what its
--- kind needs.
local lexer = require "accelerate.tokenizers.chat.lexer"
local run = require "accelerate.tokenizers.chat.run"

local fail_at = run.fail_at

local MOST_DEPTH = 100

--- The words of a template one after the other.
local Words = {}
Words.__index = Words

function Words.of(template)
  return setmetatable({ list = lexer.tokens(template), at = 1, depth = 0, loops = 0, used = {} }, Words)
end

function Words:token() return self.list[self.at] end

function Words:line()
  local token = self.list[self.at] or self.list[#self.list]
  return token and token.line or 1
end

--- Returns the next token where it is a sign or a name with this value.
function Words:peek(value)
  local token = self.list[self.at]
  local fits = token and (token.kind == "sign" or token.kind == "name") and token.value == value
  return fits and token or nil
end

function Words:accept(value)
  local token = self:peek(value)
  if token then self.at = self.at + 1 end
  return token
end

function Words:accept_kind(kind)
  local token = self.list[self.at]
  if not token or token.kind ~= kind then return nil end
  self.at = self.at + 1
  return token
end

function Words:shown()
  local token = self.list[self.at]
  if not token then return "the end of the template" end
  if token.kind == "close" then return "the end of the block" end
  return ("'%s'"):format(tostring(token.value):sub(1, 40))
end

function Words:expect(value)
  return self:accept(value) or fail_at(self:line(), "expected '%s', got %s", value, self:shown())
end

function Words:name()
  local token = self:accept_kind "name"
  return token and token.value or fail_at(self:line(), "expected a name, got %s", self:shown())
end

--- Moves behind the end of a block.
function Words:finish()
  if not self:accept_kind "close" then fail_at(self:line(), "%s is not understood here", self:shown()) end
end

--- Calls fn one level deeper.
function Words:nested(fn)
  self.depth = self.depth + 1
  if self.depth > MOST_DEPTH then fail_at(self:line(), "the template is nested too deep") end
  local node = fn(self)
  self.depth = self.depth - 1
  return node
end

local M = { Words = Words }

local expression, postfix, unary

local LITERALS = { ["true"] = true, ["True"] = true, ["false"] = false, ["False"] = false }

-- Expressions up to `close`, each behind a comma.
local function items(w, close, item)
  local list = {}
  while not w:accept(close) do
    if #list > 0 then
      w:expect ","
      if w:accept(close) then break end
    end
    list[#list + 1] = item(w)
  end
  return list
end

local function pair(w)
  local key = expression(w)
  w:expect ":"
  return { key, expression(w) }
end

--- Parses expressions with commas between them, which make a tuple, or one alone.
---@param item fun(w: table): table parses one
---@param ends fun(w: table): boolean? whether the tuple ends here
---@param empty boolean? whether there may be none
function M.tuple(w, item, ends, empty)
  local list, commas, line = {}, false, w:line()
  while not ends(w) do
    list[#list + 1] = item(w)
    if not w:accept "," then break end
    commas = true
  end
  if commas or #list == 0 and empty then
    return { kind = "list", tuple = true, entries = list, line = line }
  end
  return list[1] or fail_at(line, "expected an expression, got %s", w:shown())
end

local function in_brackets(w) return w:peek ")" ~= nil end

local function constant(token) return { kind = "value", value = token.value, line = token.line } end

local PRIMARY = {
  integer = function(_, token) return { kind = "integer", value = token.value, line = token.line } end,
  float = function(_, token) return { kind = "float", value = token.value, line = token.line } end,
  string = function(w, token)
    local parts = { token.value }
    while true do
      local more = w:accept_kind "string"
      if not more then break end
      parts[#parts + 1] = more.value
    end
    return constant { value = table.concat(parts), line = token.line }
  end,
  name = function(w, token)
    w.used[token.value] = true
    if LITERALS[token.value] ~= nil then
      return constant { value = LITERALS[token.value], line = token.line }
    end
    if token.value == "none" or token.value == "None" then return { kind = "none", line = token.line } end
    return { kind = "name", name = token.value, line = token.line }
  end,
  ["("] = function(w)
    local node = M.tuple(w, expression, in_brackets, true)
    w:expect ")"
    return node
  end,
  ["["] = function(w, token)
    return { kind = "list", entries = items(w, "]", expression), line = token.line }
  end,
  ["{"] = function(w, token) return { kind = "map", entries = items(w, "}", pair), line = token.line } end,
}

--- Parses a literal, a name or what stands in brackets.
function M.primary(w)
  local token = w:token()
  local parse = token and PRIMARY[token.kind == "sign" and token.value or token.kind]
  if not parse then fail_at(w:line(), "%s is not understood in an expression", w:shown()) end
  w.at = w.at + 1
  return parse(w, token)
end

--- Parses the arguments of a call: a list with `names`, `list` and `map` where they are given.
local function arguments(w)
  local args = { named = {} }
  w:expect "("
  local first = true
  while not w:accept ")" do
    if not first then
      w:expect ","
      if w:accept ")" then break end
    end
    first = false
    local token, after = w:token(), w.list[w.at + 1]
    if w:accept "**" then
      args.map = args.map and fail_at(w:line(), "two '**' in one call") or expression(w)
    elseif args.map then
      fail_at(w:line(), "an argument behind '**'")
    elseif w:accept "*" then
      args.list = args.list and fail_at(w:line(), "two '*' in one call") or expression(w)
    elseif token and token.kind == "name" and after and after.kind == "sign" and after.value == "=" then
      w.at = w.at + 2
      args.named[#args.named + 1] = { token.value, expression(w) }
    elseif args.list or #args.named > 0 then
      fail_at(w:line(), "an argument without a name behind one with a name")
    else
      args[#args + 1] = expression(w)
    end
  end
  return args
end

local function subscript(w)
  local from
  if not w:peek ":" then from = expression(w) end
  if not w:accept ":" then return from end
  local node = { kind = "slice", from = from }
  if not w:peek "]" and not w:peek ":" and not w:peek "," then node.to = expression(w) end
  if w:accept ":" and not w:peek "]" and not w:peek "," then node.step = expression(w) end
  return node
end

local function in_index(w) return w:peek "]" ~= nil end

-- What stands in square brackets behind a value: an index or a slice.
local function index(w, of, line)
  local node = M.tuple(w, subscript, in_index)
  w:expect "]"
  for _, entry in ipairs(node.entries or {}) do
    if entry.kind == "slice" then fail_at(line, "a slice with ',' is not supported") end
  end
  if node.kind == "slice" then
    node.of, node.line = of, line
    return node
  end
  return { kind = "index", of = of, index = node, line = line }
end

local function attribute(w, of, line)
  local number = w:accept_kind "integer"
  if number then return { kind = "index", of = of, index = PRIMARY.integer(w, number), line = line } end
  return { kind = "attribute", of = of, name = w:name(), line = line }
end

local function call(w, of, line) return { kind = "call", of = of, arguments = arguments(w), line = line } end

local function calling(w, node)
  while w:peek "(" do node = call(w, node, w:line()) end
  return node
end

function postfix(w, node)
  while true do
    local line = w:line()
    if w:accept "." then node = attribute(w, node, line)
    elseif w:accept "[" then node = index(w, node, line)
    elseif w:peek "(" then node = call(w, node, line)
    else return node end
  end
end

local function dotted(w)
  local name = w:name()
  while w:accept "." do name = name .. "." .. w:name() end
  return name
end

--- Parses a filter's name and arguments.
---@param of table? the node that it filters
function M.filter(w, of)
  local line, name = w:line(), dotted(w)
  return { kind = "filter", of = of, name = name, arguments = w:peek "(" and arguments(w) or { named = {} },
    line = line }
end

local BEHIND_A_TEST = { ["else"] = true, ["or"] = true, ["and"] = true }
local STARTS = { name = true, string = true, integer = true, float = true }

-- The arguments of a test: in brackets, or one value without them.
local function test_arguments(w)
  if w:peek "(" then return arguments(w) end
  local token = w:token()
  local starts = token and (STARTS[token.kind] or w:peek "[" or w:peek "{")
  if not starts or token.kind == "name" and BEHIND_A_TEST[token.value] then return { named = {} } end
  if w:peek "is" then fail_at(w:line(), "a test behind a test") end
  return { postfix(w, M.primary(w)), named = {} }
end

local function test(w, of, line)
  local negated = w:accept "not" ~= nil
  local node = { kind = "test", of = of, name = dotted(w), line = line }
  node.arguments = test_arguments(w)
  return negated and { kind = "not", of = node, line = line } or node
end

--- Parses filters and tests behind a value.
function M.filters(w, node)
  while true do
    local line = w:line()
    if w:accept "|" then node = M.filter(w, node)
    elseif w:accept "is" then node = test(w, node, line)
    elseif w:peek "(" then node = calling(w, node)
    else return node end
  end
end

local function signed(w)
  local line = w:line()
  if w:accept "-" then return { kind = "minus", of = w:nested(signed), line = line } end
  if w:accept "+" then return { kind = "plus", of = w:nested(signed), line = line } end
  return postfix(w, M.primary(w))
end

function unary(w) return M.filters(w, postfix(w, signed(w))) end

-- Operators of one level, from left to right.
local function level(next_level, signs)
  return function(w)
    local node = next_level(w)
    while true do
      local token = w:token()
      if not token or token.kind ~= "sign" or not signs[token.value] then return node end
      w.at = w.at + 1
      node = { kind = "binary", sign = token.value, left = node, right = next_level(w), line = token.line }
    end
  end
end

local power = level(unary, { ["**"] = true })
local product = level(power, { ["*"] = true, ["/"] = true, ["//"] = true, ["%"] = true })

local function joined(w)
  local line, first = w:line(), product(w)
  if not w:peek "~" then return first end
  local parts = { first }
  while w:accept "~" do parts[#parts + 1] = product(w) end
  return { kind = "joined", parts = parts, line = line }
end

local sum = level(joined, { ["+"] = true, ["-"] = true })

local COMPARISONS = { ["=="] = true, ["!="] = true, ["<"] = true, [">"] = true, ["<="] = true, [">="] = true }

-- The next comparison's sign, or nil.
local function comparison_sign(w)
  local token, after = w:token(), w.list[w.at + 1]
  if not token then return nil end
  if token.kind == "sign" and COMPARISONS[token.value] then
    w.at = w.at + 1
    return token.value
  end
  if w:accept "in" then return "in" end
  if w:peek "not" and after and after.kind == "name" and after.value == "in" then
    w.at = w.at + 2
    return "not in"
  end
end

local function comparison(w)
  local line, first = w:line(), sum(w)
  local links = {}
  while true do
    local sign = comparison_sign(w)
    if not sign then break end
    links[#links + 1] = { sign = sign, of = sum(w) }
  end
  return #links == 0 and first or { kind = "compare", of = first, links = links, line = line }
end

local function negation(w)
  local line = w:line()
  if w:accept "not" then return { kind = "not", of = w:nested(negation), line = line } end
  return comparison(w)
end

local function connected(next_level, word)
  return function(w)
    local node = next_level(w)
    while true do
      local found = w:accept(word)
      if not found then return node end
      node = { kind = word, left = node, right = next_level(w), line = found.line }
    end
  end
end

--- Parses an expression without `a if b else c`.
M.disjunction = connected(connected(negation, "and"), "or")

local function choice(w)
  local node = M.disjunction(w)
  while true do
    local found = w:accept "if"
    if not found then return node end
    local condition, otherwise = M.disjunction(w), nil
    if w:accept "else" then otherwise = expression(w) end
    node = { kind = "choice", condition = condition, yes = node, no = otherwise, line = found.line }
  end
end

function expression(w) return w:nested(choice) end

M.expression = expression

return M
