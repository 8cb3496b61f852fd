--- The statements of a chunk: where each begins and ends, and which locals it makes. Expressions
--- are walked, not kept: LuaJIT compiles the chunk afterwards, and its messages are those that a
--- user sees.
local lexer = require "accelerate.prompt.lexer"

local M = {}

---@class accelerate.prompt.Statement
---@field kind "local"|"call"|"values"|"return"|"other" values: expressions that are no statement
---@field first integer
---@field last integer of its last word
---@field names string[]? of a local statement
---@field closed boolean? a ";" follows

local Parser = {}
Parser.__index = Parser

function Parser:next() self.at = self.at + 1 end

function Parser:token() return self.list[self.at] end

function Parser:is(text)
  local t = self.list[self.at]
  return t.text == text and (t.kind == "op" or t.kind == "keyword")
end

function Parser:fail() error({ at_end = self:token().kind == "end" or self:token().kind == "open" }, 0) end

function Parser:accept(text)
  if not self:is(text) then return false end
  self:next()
  return true
end

function Parser:expect(text)
  if not self:accept(text) then self:fail() end
end

function Parser:name()
  local t = self:token()
  if t.kind ~= "name" then self:fail() end
  self:next()
  return t.text
end

-- ---- expressions

local UNARY = { ["not"] = true, ["-"] = true, ["#"] = true }
local BINARY = {}
for op in ("+ - * / % ^ .. == ~= < <= > >= and or"):gmatch("%S+") do BINARY[op] = true end
local SIMPLE = { ["nil"] = true, ["true"] = true, ["false"] = true, ["..."] = true }

function Parser:arguments()
  if self:accept("(") then
    if not self:is(")") then self:expressions() end
    self:expect(")")
  elseif self:is("{") then
    self:table()
  else
    self:next() -- a string
  end
end

function Parser:table()
  self:expect("{")
  while not self:is("}") do
    if self:accept("[") then
      self:expression()
      self:expect("]")
      self:expect("=")
    elseif self:token().kind == "name" and self.list[self.at + 1].text == "=" then
      self:next()
      self:next()
    end
    self:expression()
    if not (self:accept(",") or self:accept(";")) then break end
  end
  self:expect("}")
end

-- A name or (…), and what follows it; returns "call", "place" (it can be assigned) or "value".
function Parser:suffixed()
  local what = "value"
  if self:accept("(") then
    self:expression()
    self:expect(")")
  else
    self:name()
    what = "place"
  end
  while true do
    if self:accept(".") then
      self:name()
      what = "place"
    elseif self:accept("[") then
      self:expression()
      self:expect("]")
      what = "place"
    elseif self:accept(":") then
      self:name()
      if not (self:is("(") or self:is("{") or self:token().kind == "string") then self:fail() end
      self:arguments()
      what = "call"
    elseif self:is("(") or self:is("{") or self:token().kind == "string" then
      self:arguments()
      what = "call"
    else
      return what
    end
  end
end

function Parser:operand()
  local t = self:token()
  while (t.kind == "op" or t.kind == "keyword") and UNARY[t.text] do
    self:next()
    t = self:token()
  end
  if t.kind == "number" or t.kind == "string" or (t.kind ~= "name" and SIMPLE[t.text]) then
    self:next()
  elseif self:is("{") then
    self:table()
  elseif self:accept("function") then
    self:body()
  else
    self:suffixed()
  end
end

function Parser:expression()
  self:operand()
  while BINARY[self:token().text] and self:token().kind ~= "string" do
    self:next()
    self:operand()
  end
end

function Parser:expressions()
  repeat self:expression() until not self:accept(",")
end

-- ---- statements

function Parser:body()
  self:expect("(")
  while not self:is(")") do
    if not self:accept("...") then self:name() end
    if not self:accept(",") then break end
  end
  self:expect(")")
  self:block()
  self:expect("end")
end

function Parser:block()
  while not (self:is("end") or self:is("else") or self:is("elseif") or self:is("until")) do
    if self:token().kind == "end" then self:fail() end
    if self:statement() == "return" then break end
  end
end

local STATEMENTS = {}

STATEMENTS["if"] = function(p)
  p:expression()
  p:expect("then")
  p:block()
  while p:accept("elseif") do
    p:expression()
    p:expect("then")
    p:block()
  end
  if p:accept("else") then p:block() end
  p:expect("end")
end

STATEMENTS["while"] = function(p)
  p:expression()
  p:expect("do")
  p:block()
  p:expect("end")
end

STATEMENTS["do"] = function(p)
  p:block()
  p:expect("end")
end

STATEMENTS["for"] = function(p)
  p:name()
  if p:accept("=") then
    p:expressions()
  else
    while p:accept(",") do p:name() end
    p:expect("in")
    p:expressions()
  end
  p:expect("do")
  p:block()
  p:expect("end")
end

STATEMENTS["repeat"] = function(p)
  p:block()
  p:expect("until")
  p:expression()
end

STATEMENTS["function"] = function(p)
  p:name()
  while p:accept(".") do p:name() end
  if p:accept(":") then p:name() end
  p:body()
end

STATEMENTS["local"] = function(p)
  if p:accept("function") then
    local name = p:name()
    p:body()
    return "local", { name }
  end
  local names = {}
  repeat names[#names + 1] = p:name() until not p:accept(",")
  if p:accept("=") then p:expressions() end
  return "local", names
end

STATEMENTS["return"] = function(p)
  local t = p:token()
  local ends = t.kind == "end" or p:is(";") or p:is("end") or p:is("else") or p:is("elseif") or p:is("until")
  if not ends then p:expressions() end
  return "return"
end

STATEMENTS["break"] = function() end

STATEMENTS["::"] = function(p)
  p:name()
  p:expect("::")
end

-- Anything but a name and a parenthesis begins no statement; `goto` may be a name.
local function begins(p)
  local t = p:token()
  if t.kind ~= "keyword" and t.text ~= "::" then return nil end
  if t.text == "function" and p.list[p.at + 1].kind ~= "name" then return nil end
  return STATEMENTS[t.text]
end

local function assignment(p)
  while p:accept(",") do
    if p:suffixed() ~= "place" then p:fail() end
  end
  p:expect("=")
  p:expressions()
  return "other"
end

--- Reads one statement and the ";" behind it. Returns its kind, and the names that it declares.
function Parser:statement()
  if self:accept(";") then return "other" end
  if self:is("goto") and self.list[self.at + 1].kind == "name" then
    self:next()
    self:next()
    return "other"
  end
  local rule = begins(self)
  local kind, names
  if rule then
    self:next()
    kind, names = rule(self)
    kind = kind or "other"
  else
    local what = self:suffixed()
    if what == "place" and (self:is("=") or self:is(",")) then kind = assignment(self)
    elseif what == "call" then kind = "call"
    else self:fail() end
  end
  return kind, names
end

-- The statement at the place of `p`; else expressions that end the text.
local function statement_or_values(p)
  local from = p.at
  local fine, kind, names = pcall(p.statement, p)
  local after = fine and p:token()
  local goes_on = fine and kind == "call" and after.kind == "op" and (BINARY[after.text] or after.text == ",")
  if fine and not goes_on then return kind, names end
  local problem, reached = kind, p.at
  p.at = from
  local again, error_2 = pcall(p.expressions, p)
  if again then
    local t = p:token()
    if t.kind == "end" or p:is(";") and p.list[p.at + 1].kind == "end" then return "values" end
    if fine then p:fail() end
  end
  if not fine and (again or reached > p.at) then error(problem, 0) end
  error(error_2, 0)
end

--- Returns the statements of `text`, or nil and whether more text could make it complete.
---@param text string
---@return accelerate.prompt.Statement[]? statements
---@return boolean? incomplete
function M.parse(text)
  local p = setmetatable({ list = lexer.tokens(text), at = 1 }, Parser)
  local statements = {}
  local fine, problem = pcall(function()
    while p:token().kind ~= "end" do
      local first = p:token().first
      local kind, names = statement_or_values(p)
      local entry = { kind = kind, first = first, last = p.list[p.at - 1].last, names = names }
      entry.closed = kind ~= "other" and p:accept(";") or nil
      statements[#statements + 1] = entry
      if (kind == "return" or kind == "values") and p:token().kind ~= "end" then p:fail() end
    end
  end)
  if fine then return statements end
  if type(problem) ~= "table" then return nil, false end
  -- a string in quotes ends with its line; long ones, and comments, go on
  local last = p.list[#p.list - 1]
  local in_quotes = last and last.kind == "open" and last.text:find("^[\"']") and not last.text:find("\\$")
  return nil, problem.at_end and not in_quotes
end

return M
