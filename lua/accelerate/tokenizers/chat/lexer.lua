--- Cuts a Jinja template into texts and words, with trim_blocks and lstrip_blocks on.
---
--- A token is { kind, value, line }. The kinds are "text", "open" and "close" (value "{{" or "{%"),
--- "name", "string", "integer", "float" and "sign".
local run = require "accelerate.tokenizers.chat.run"
local texts = require "accelerate.tokenizers.chat.texts"

local fail_at = run.fail_at

local M = {}

local OPEN = { ["{{"] = "}}", ["{%"] = "%}", ["{#"] = "#}" }

local MOST_DEPTH = 100 -- of brackets

local Lexer = {}
Lexer.__index = Lexer

function Lexer:add(kind, value)
  self.list[#self.list + 1] = { kind = kind, value = value, line = self.line }
end

-- Moves on to a place, and counts the lines on the way.
function Lexer:move(to)
  while self.newline < to do
    self.line = self.line + 1
    self.newline = self.text:find("\n", self.newline + 1, true) or math.huge
  end
  self.at = to
end

-- The first place of a block at or behind the place, its kind, and the sign behind its begin.
function Lexer:next_open()
  local at = self.text:find("{[{%%#]", self.at)
  if at then return at, self.text:sub(at, at + 1), self.text:match("^[-+]", at + 2) end
end

-- A text before a block, without the blanks that the block takes.
function Lexer:plain(open, sign, strips)
  local plain = self.text:sub(self.at, open - 1)
  if sign == "-" then return texts.strip(plain, nil, false, true) end
  if sign == "+" or not strips then return plain end
  local kept = plain:match "^(.*\n)[^\n]*$" or ""
  local begins = kept ~= "" or self.at == 1 or self.text:sub(self.at - 1, self.at - 1) == "\n"
  if begins and texts.skip_space(plain, #kept + 1) > #plain then return kept end
  return plain
end

-- Moves behind the end of a block and the blanks that it takes.
function Lexer:leave(last, length, sign, trims)
  local at = last + length
  if sign == "-" then
    at = texts.skip_space(self.text, at)
  elseif trims and sign ~= "+" and self.text:sub(at, at) == "\n" then
    at = at + 1
  end
  self:move(at)
end

function Lexer:comment(sign)
  local stop = self.text:find("#}", self.at + 2 + (sign and 1 or 0), true)
  if not stop then fail_at(self.line, "a comment without its end, '#}'") end
  self:leave(stop, 2, self.text:match("^[-+]", stop - 1), true)
end

-- `{% raw %}`: all up to `{% endraw %}` is text.
function Lexer:raw(at, sign)
  self:leave(at - 2, 2, sign, false)
  local stop = self.at
  while true do
    stop = self.text:find("{%", stop, true)
    if not stop then fail_at(self.line, "'raw' without its end, 'endraw'") end
    local before, behind, to = self.text:match("^([-+]?)%s*endraw%s*([-+]?)%%}()", stop + 2)
    if to then
      local plain = self:plain(stop, before ~= "" and before or nil, true)
      if plain ~= "" then self:add("text", plain) end
      return self:leave(to - 2, 2, behind, true)
    end
    stop = stop + 2
  end
end

-- ---- words

local ESCAPES = { n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v", ["\\"] = "\\",
  ["'"] = "'", ['"'] = '"', ["\n"] = "" }
local HEX = { x = 2, u = 4, U = 8 }

-- The character that an escape at the place of its letter stands for, and how long the escape is.
function Lexer:escape(at)
  local c = self.text:match("^[%z\1-\127\194-\244][\128-\191]*", at)
  if ESCAPES[c] then return ESCAPES[c], 1 end
  local octal = self.text:match("^[0-7][0-7]?[0-7]?", at)
  if octal then return texts.char(tonumber(octal, 8)), #octal end
  if c == "N" then fail_at(self.line, "the escape \\N is not supported") end
  if not HEX[c] then return "\\" .. c, #c end
  local digits = self.text:match("^" .. ("%x"):rep(HEX[c]), at + 1)
  local code = digits and tonumber(digits, 16)
  if not code or code > 0x10FFFF or code >= 0xD800 and code < 0xE000 then
    fail_at(self.line, "a bad escape \\%s", c)
  end
  return texts.char(code), 1 + #digits
end

function Lexer:string(quote)
  local parts, from = {}, self.at + 1
  while true do
    local stop = self.text:find("[\\" .. quote .. "]", from)
    if not stop then fail_at(self.line, "a text without its end, %s", quote) end
    parts[#parts + 1] = self.text:sub(from, stop - 1)
    if self.text:sub(stop, stop) == quote then
      self:add("string", table.concat(parts))
      return self:move(stop + 1)
    end
    if stop == #self.text then fail_at(self.line, "a text without its end, %s", quote) end
    local char, length = self:escape(stop + 1)
    parts[#parts + 1] = char
    from = stop + 1 + length
  end
end

local PREFIXES = { { "^0[xX][%x_]+", 16 }, { "^0[bB][01_]+", 2 }, { "^0[oO][0-7_]+", 8 } }

function Lexer:number()
  local word
  for _, prefix in ipairs(PREFIXES) do
    word = self.text:match(prefix[1], self.at)
    if word then
      self:add("integer", tonumber((word:sub(3):gsub("_", "")), prefix[2]))
      return self:move(self.at + #word)
    end
  end
  local whole = self.text:match("^%d[%d_]*", self.at)
  local behind = self.at + #whole
  local fraction = self.text:match("^%.%d[%d_]*", behind) or ""
  local power = self.text:match("^[eE][-+]?%d[%d_]*", behind + #fraction) or ""
  word = whole .. fraction .. power
  if whole:find "^0[0_]*[1-9]" and word == whole then
    fail_at(self.line, "the number '%s' begins with 0", whole)
  end
  self:add(word == whole and "integer" or "float", tonumber((word:gsub("_", ""))))
  self:move(self.at + #word)
end

local SIGNS = {}
for sign in ("== != <= >= // ** + - / * % ~ [ ] ( ) { } < > = . : | , ;"):gmatch "%S+" do
  SIGNS[sign] = true
end
local CLOSING = { [")"] = "(", ["]"] = "[", ["}"] = "{" }

function Lexer:sign(open)
  local sign = self.text:sub(self.at, self.at + 1)
  if not SIGNS[sign] then sign = sign:sub(1, 1) end
  if not SIGNS[sign] then
    fail_at(self.line, "'%s' is not understood", self.text:match("^.[\128-\191]*", self.at))
  end
  if sign == "(" or sign == "[" or sign == "{" then
    open[#open + 1] = sign
    if #open > MOST_DEPTH then fail_at(self.line, "an expression is nested too deep") end
  elseif CLOSING[sign] and table.remove(open) ~= CLOSING[sign] then
    fail_at(self.line, "'%s' without '%s' before it", sign, CLOSING[sign])
  end
  self:add("sign", sign)
  self:move(self.at + #sign)
end

-- Whether the block ends at the place, and with which sign.
function Lexer:closes(kind)
  local sign = self.text:match(kind == "{%" and "^([-+]?)%%}" or "^(%-?)}}", self.at)
  return sign ~= nil, sign
end

-- The words of a block, up to its end.
function Lexer:words(kind)
  local open, line = {}, self.line
  while true do
    self:move(texts.skip_space(self.text, self.at))
    local c = self.text:sub(self.at, self.at)
    if c == "" then fail_at(line, "a block without its end, '%s'", OPEN[kind]) end
    local closes, sign = self:closes(kind)
    if closes and #open == 0 then
      self:add("close", kind)
      return self:leave(self.at + #sign, 2, sign, kind == "{%")
    end
    if c:find "[%a_\194-\244]" then
      local name = self.text:match("^[%w_\128-\255]+", self.at)
      self:add("name", name)
      self:move(self.at + #name)
    elseif c:find "%d" then
      self:number()
    elseif c == "'" or c == '"' then
      self:string(c)
    else
      self:sign(open)
    end
  end
end

--- Returns the tokens of a template.
---@param text string well-formed UTF-8
---@return table[]
function M.tokens(text)
  text = text:gsub("\r\n?", "\n"):gsub("\n$", "", 1)
  local newline = text:find("\n", 1, true) or math.huge -- the first one at or behind the place
  local lexer = setmetatable({ text = text, at = 1, line = 1, newline = newline, list = {} }, Lexer)
  while lexer.at <= #text do
    local open, kind, sign = lexer:next_open()
    local plain = open and lexer:plain(open, sign, kind ~= "{{") or text:sub(lexer.at)
    if plain ~= "" then lexer:add("text", plain) end
    if not open then break end
    lexer:move(open)
    local raw, last = text:match("^{%%[-+]?%s*raw%s*(%-?)%%}()", open)
    if raw then
      lexer:raw(last, raw)
    elseif kind == "{#" then
      lexer:comment(sign)
    else
      lexer:add("open", kind)
      lexer:move(open + 2 + (sign and 1 or 0))
      lexer:words(kind)
    end
  end
  return lexer.list
end

return M
