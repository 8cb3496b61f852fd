--- Makes a tree of a Jinja template. A node is a table with `kind`, `line` and what its kind needs.
local lexer = require "accelerate.tokenizers.chat.lexer"

local fail = lexer.fail

local M = {}

local MOST_DEPTH = 100

-- ---- expressions, by falling depth of binding

local Words = {}
Words.__index = Words

local function words_of(block)
  return setmetatable({ list = lexer.words(block), at = 1, line = block.line, depth = 0 }, Words)
end

function Words:peek(value)
  local word = self.list[self.at]
  if not word or word.kind == "string" then return nil end
  if value == nil then return word end
  return word.value == value and word or nil
end

function Words:accept(value)
  local word = self:peek(value)
  if word then self.at = self.at + 1 end
  return word
end

function Words:where()
  local word = self.list[self.at] or self.list[#self.list]
  return word and word.line or self.line
end

function Words:shown()
  local word = self.list[self.at]
  return word and ("'%s'"):format(tostring(word.value):sub(1, 40)) or "the end of the block"
end

function Words:expect(value)
  return self:accept(value) or fail(self:where(), "expected '%s', got %s", value, self:shown())
end

function Words:name()
  local word = self.list[self.at]
  if not word or word.kind ~= "name" then fail(self:where(), "expected a name, got %s", self:shown()) end
  self.at = self.at + 1
  return word.value
end

function Words:finish()
  if self.list[self.at] then fail(self:where(), "%s is not understood here", self:shown()) end
end

local expression

local LITERALS = { ["true"] = { true }, ["True"] = { true }, ["false"] = { false }, ["False"] = { false },
  ["none"] = {}, ["None"] = {} }

-- Entries up to `close`; map: pairs of a key and a value.
local function entries(w, close, map)
  local list = {}
  while not w:accept(close) do
    local entry = expression(w)
    if map then
      w:expect ":"
      entry = { entry, expression(w) }
    end
    list[#list + 1] = entry
    if not w:peek(close) then w:expect "," end
  end
  return list
end

local function primary(w)
  local word, line = w.list[w.at], w:where()
  if not word then fail(line, "an expression ends too early") end
  w.at = w.at + 1
  if word.kind == "string" or word.kind == "number" then
    return { kind = "value", value = word.value, line = line }
  end
  if word.kind == "name" then
    local literal = LITERALS[word.value]
    if literal then
      return { kind = literal[1] == nil and "none" or "value", value = literal[1], line = line }
    end
    return { kind = "name", name = word.value, line = line }
  end
  if word.value == "(" then
    local inner = expression(w)
    w:expect ")"
    return inner
  elseif word.value == "[" then
    return { kind = "list", entries = entries(w, "]"), line = line }
  elseif word.value == "{" then
    return { kind = "map", entries = entries(w, "}", true), line = line }
  end
  w.at = w.at - 1
  fail(line, "%s is not understood in an expression", w:shown())
end

-- Arguments up to ")"; names with a value go to `named`.
local function arguments(w)
  local list, named = {}, {}
  while not w:accept ")" do
    local after = w.list[w.at + 1]
    if w:peek() and w:peek().kind == "name" and after and after.kind == "sign" and after.value == "=" then
      local name = w:name()
      w:expect "="
      named[name] = expression(w)
    else
      list[#list + 1] = expression(w)
    end
    if not w:peek ")" then w:expect "," end
  end
  return list, named
end

-- What stands in brackets behind a value: an index or a slice.
local function subscript(w, of, line)
  local from
  if not w:peek ":" then from = expression(w) end
  if w:accept "]" then return { kind = "index", of = of, index = from, line = line } end
  w:expect ":"
  local to, step
  if not w:peek "]" and not w:peek ":" then to = expression(w) end
  if w:accept ":" and not w:peek "]" then step = expression(w) end
  w:expect "]"
  return { kind = "slice", of = of, from = from, to = to, step = step, line = line }
end

local function postfix(w)
  local node = primary(w)
  while true do
    local line = w:where()
    if w:accept "." then
      node = { kind = "index", of = node, index = { kind = "value", value = w:name(), line = line },
        line = line }
    elseif w:accept "[" then
      node = subscript(w, node, line)
    elseif w:accept "(" then
      local list, named = arguments(w)
      node = { kind = "call", of = node, arguments = list, named = named, line = line }
    elseif w:accept "|" then
      local name, list, named = w:name(), {}, {}
      if w:accept "(" then list, named = arguments(w) end
      node = { kind = "filter", of = node, name = name, arguments = list, named = named, line = line }
    else
      return node
    end
  end
end

local function unary(w)
  local line = w:where()
  if w:accept "-" then return { kind = "minus", of = unary(w), line = line } end
  return postfix(w)
end

-- Operators of one level, from left to right.
local function level(next_level, signs)
  return function(w)
    local node = next_level(w)
    while true do
      local word = w:peek()
      if not word or word.kind ~= "sign" or not signs[word.value] then return node end
      w.at = w.at + 1
      node = { kind = "binary", sign = word.value, left = node, right = next_level(w), line = word.line }
    end
  end
end

local product = level(unary, { ["*"] = true, ["/"] = true, ["//"] = true, ["%"] = true })
local sum = level(product, { ["+"] = true, ["-"] = true })
local joined = level(sum, { ["~"] = true })

local COMPARISONS = { ["=="] = true, ["!="] = true, ["<"] = true, [">"] = true, ["<="] = true, [">="] = true,
  ["in"] = true }

local function comparison(w)
  local node = joined(w)
  while true do
    local word = w:peek()
    local after = w.list[w.at + 1]
    if not word then return node end
    if word.value == "is" then
      w.at = w.at + 1
      local negated = w:accept "not" ~= nil
      node = { kind = "test", of = node, name = w:name(), line = word.line }
      if negated then node = { kind = "not", of = node, line = word.line } end
    elseif COMPARISONS[word.value] then
      w.at = w.at + 1
      node = { kind = "binary", sign = word.value, left = node, right = joined(w), line = word.line }
    elseif word.value == "not" and after and after.value == "in" then
      w.at = w.at + 2
      node = { kind = "not", line = word.line,
        of = { kind = "binary", sign = "in", left = node, right = joined(w), line = word.line } }
    else
      return node
    end
  end
end

local function negation(w)
  local line = w:where()
  if w:accept "not" then return { kind = "not", of = negation(w), line = line } end
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

local conjunction = connected(negation, "and")
local disjunction = connected(conjunction, "or")

function expression(w)
  w.depth = w.depth + 1
  if w.depth > MOST_DEPTH then fail(w:where(), "an expression is nested too deep") end
  local node = disjunction(w)
  local found = w:accept "if"
  if found then
    local condition = disjunction(w)
    local otherwise
    if w:accept "else" then otherwise = expression(w) end
    node = { kind = "choice", condition = condition, yes = node, no = otherwise, line = found.line }
  end
  w.depth = w.depth - 1
  return node
end

-- ---- statements

local Reader = {}
Reader.__index = Reader

local STATEMENTS = {}

-- Nodes up to a statement whose name is in `ends`; returns them and its words.
function Reader:body(ends, opener)
  local nodes = {}
  self.depth = self.depth + 1
  if self.depth > MOST_DEPTH then fail(opener and opener.line or 1, "blocks are nested too deep") end
  while true do
    local block = self.list[self.at]
    if not block then
      if opener then fail(opener.line, "'%s' without its end", opener.name) end
      break
    end
    self.at = self.at + 1
    if block.kind == "text" then
      nodes[#nodes + 1] = block
    else
      local w = words_of(block)
      if block.kind == "{{" then
        nodes[#nodes + 1] = { kind = "print", of = expression(w), line = block.line }
        w:finish()
      else
        local name = w:name()
        if ends and ends[name] then
          self.depth = self.depth - 1
          return nodes, name, w
        end
        local statement = STATEMENTS[name]
        if not statement then fail(block.line, "the statement '%s' is not supported", name) end
        nodes[#nodes + 1] = statement(self, w, block.line)
      end
    end
  end
  self.depth = self.depth - 1
  return nodes
end

STATEMENTS["if"] = function(reader, w, line)
  local node, opener = { kind = "if", branches = {}, line = line }, { name = "if", line = line }
  local condition = expression(w)
  w:finish()
  while true do
    local nodes, name, words = reader:body({ ["elif"] = true, ["else"] = true, ["endif"] = true }, opener)
    node.branches[#node.branches + 1] = { condition = condition, body = nodes }
    if name == "endif" then
      words:finish()
      return node
    end
    if node.ended then fail(words:where(), "'%s' behind 'else'", name) end
    condition = nil
    if name == "elif" then condition = expression(words) else node.ended = true end
    words:finish()
  end
end

STATEMENTS["for"] = function(reader, w, line)
  local names = { w:name() }
  while w:accept "," do names[#names + 1] = w:name() end
  w:expect "in"
  local over, only = disjunction(w), nil
  if w:accept "if" then only = expression(w) end
  w:finish()
  local body, name, words = reader:body({ ["endfor"] = true, ["else"] = true }, { name = "for", line = line })
  if name == "else" then fail(words:where(), "'else' of a 'for' is not supported") end
  words:finish()
  return { kind = "for", names = names, over = over, only = only, body = body, line = line }
end

STATEMENTS["set"] = function(_, w, line)
  local name, member = w:name(), nil
  if w:accept "." then member = w:name() end
  if not w:peek "=" then fail(line, "'set' without a value (a block) is not supported") end
  w:expect "="
  local value = expression(w)
  w:finish()
  return { kind = "set", name = name, member = member, value = value, line = line }
end

STATEMENTS["break"] = function(_, w, line)
  w:finish()
  return { kind = "break", line = line }
end

STATEMENTS["continue"] = function(_, w, line)
  w:finish()
  return { kind = "continue", line = line }
end

--- Returns the nodes of a template.
---@param template string
---@return table[]
function M.parse(template)
  return (setmetatable({ list = lexer.blocks(template), at = 1, depth = 0 }, Reader):body())
end

return M
