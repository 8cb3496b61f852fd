--- Values written by a pattern: Python's `pattern % values` and `pattern.format(values)`.
local buffer = require "string.buffer"
local numbers = require "accelerate.tokenizers.chat.numbers"
local run = require "accelerate.tokenizers.chat.run"
local texts = require "accelerate.tokenizers.chat.texts"
local values = require "accelerate.tokenizers.chat.values"

local fail = run.fail

local M = {}

local MOST_DIGITS = 90 -- of a float behind the point, as C's printf has it

-- A text with blanks to its width. align: "<", ">", "^" or "=" (between the sign and the digits).
local function padded(text, width, align, fill)
  local gap = width - texts.length(text)
  if gap <= 0 then return text end
  run.made(#text + gap * #fill)
  if align == "<" then return text .. fill:rep(gap) end
  if align == ">" then return fill:rep(gap) .. text end
  if align == "^" then
    return fill:rep(math.floor(gap / 2)) .. text .. fill:rep(math.ceil(gap / 2))
  end
  local sign, digits = text:match "^([-+ ]?0?[xob]?)(.*)$"
  if not text:find "^[-+ ]?0[xob]" then sign, digits = text:match "^([-+ ]?)(.*)$" end
  return sign .. fill:rep(gap) .. digits
end
M.padded = padded

local function base_digits(value, base)
  if value == 0 then return "0" end
  local out = {}
  while value > 0 do
    local digit = value % base
    table.insert(out, 1, ("0123456789abcdef"):sub(digit + 1, digit + 1))
    value = (value - digit) / base
  end
  return table.concat(out)
end

local BASES = { d = 10, i = 10, u = 10, x = 16, X = 16, o = 8, b = 2 }

local function grouped(digits, separator)
  local whole, rest = digits:match "^(%d+)(.*)$"
  if not whole then return digits end
  whole = whole:reverse():gsub("%d%d%d", "%0" .. separator):reverse()
  return whole:gsub("^%D", "") .. rest
end

-- The digits of a number without its sign, by the letter of a format.
local function digits_of(what, value, float, letter, precision, alternate)
  if BASES[letter] then
    local digits = BASES[letter] == 10 and ("%.0f"):format(value) or base_digits(value, BASES[letter])
    if precision then digits = texts.rep("0", precision - #digits) .. digits end
    if alternate and BASES[letter] ~= 10 then digits = "0" .. letter:lower() .. digits end
    return letter == "X" and digits:upper() or digits
  end
  if precision and precision > MOST_DIGITS then
    fail("%s: a precision above %d is not supported", what, MOST_DIGITS)
  end
  if value ~= value or value == math.huge then
    local word = value == value and "inf" or "nan"
    return letter:find "%u" and word:upper() or word
  end
  if letter == "%" then return numbers.format("f", precision or 6, value * 100) .. "%" end
  if letter == "" then
    if not precision then return float and numbers.float_text(value) or ("%.0f"):format(value) end
    local text = numbers.format("g", math.max(precision, 1), value)
    return text:find "[.e]" and text or text .. (float and ".0" or "")
  end
  local flag = alternate and "#" or ""
  if letter == "g" or letter == "G" then precision = math.max(precision or 6, 1) end
  return numbers.format(letter, precision or 6, value, flag)
end

local function sign_of(value, shown)
  if value < 0 or value == 0 and 1 / value < 0 then return "-" end
  return shown == "-" and "" or shown or ""
end

-- ---- pattern % values

-- The values of a pattern, taken one after the other.
local Given = {}
Given.__index = Given

local function given_of(value)
  local tuple = values.kind(value) == "tuple"
  return setmetatable({ list = tuple and value or { value }, at = 0, tuple = tuple,
    map = values.kind(value) == "map" and value or nil }, Given)
end

function Given:next()
  self.at = self.at + 1
  local value = self.list[self.at]
  if value == nil then fail("'%%' of a text: there are fewer values than places") end
  return value
end

function Given:named(name)
  if not self.map then fail("'%%' of a text: the place '%s' needs a map", name) end
  local value = values.get(self.map, name)
  if value == nil then fail("'%%' of a text: there is no '%s'", name) end
  self.at = 1
  return value
end

-- As in Python, one value that has entries may be left over.
local LEFT_OVER = { list = true, map = true, range = true, undefined = true }

function Given:finish()
  local may_stay = self.at == 0 and not self.tuple and LEFT_OVER[values.kind(self.list[1])]
  if self.at < #self.list and not may_stay then
    fail("'%%' of a text: there are more values than places")
  end
end

-- A width or precision: digits, or '*' for one of the values.
local function amount(word, given)
  if word == "*" then
    local number = numbers.of(given:next())
    return number or fail("'%%' of a text: '*' needs an integer")
  end
  return tonumber(word)
end

local CONVERSIONS = {
  s = values.text,
  r = values.repr,
  a = function() fail "'%%' of a text: the conversion 'a' is not supported" end,
  c = function(value)
    if type(value) == "number" then return texts.char(value) end
    local text = values.text_of(value)
    if not text or texts.length(text) ~= 1 then fail "'%%c' needs a character or an integer" end
    return text
  end,
}

local function percent_number(value, letter, flags, precision)
  local number, float = numbers.of(values.defined(value))
  if not number or float and (letter == "x" or letter == "X" or letter == "o") then
    fail("'%%%s' needs %s, got %s", letter, number and "an integer" or "a number", values.shown(value))
  end
  if BASES[letter] then
    if number ~= number or math.abs(number) == math.huge then
      fail("'%%%s' of a number that is not finite", letter)
    end
    number = number < 0 and math.ceil(number) or math.floor(number)
  end
  local shown = flags:find("+", 1, true) and "+" or flags:find(" ", 1, true) and " " or nil
  local alternate = flags:find("#", 1, true)
  local digits = digits_of("'%' of a text", math.abs(number), float, letter, precision, alternate)
  return sign_of(number, shown) .. digits
end

local function conversion(value, letter, flags, width, precision)
  local convert, text = CONVERSIONS[letter], nil
  local left, zero = flags:find("-", 1, true), flags:find("0", 1, true)
  if convert then
    text, zero = convert(value), nil
    if precision and letter ~= "c" then text = texts.sub(text, 1, math.min(precision, texts.length(text))) end
  elseif BASES[letter] and letter ~= "b" or letter:find "^[eEfFgG]$" then
    text = percent_number(value, letter, flags, precision)
  else
    fail("'%%' of a text: the conversion '%s' is not supported", letter)
  end
  if width and width < 0 then left, width = true, -width end
  return padded(text, width or 0, left and "<" or zero and "=" or ">", not left and zero and "0" or " ")
end

--- Returns `pattern % value`.
---@param pattern string
---@param value any a tuple holds several values, a map those for "%(name)s"
---@return string
function M.percent(pattern, value)
  local out, given, at = buffer.new(), given_of(value), 1
  while true do
    local from = pattern:find("%", at, true)
    if not from then break end
    run.step()
    out:put(pattern:sub(at, from - 1))
    local name, behind = pattern:match("^%(([^)]*)%)()", from + 1)
    local flags, width, rest = pattern:match("^([-+ #0]*)(%*?%d*)()", behind or from + 1)
    local dot, digits, stop = pattern:match("^(%.?)(%*?%d*)()", rest)
    if dot == "" then digits, stop = "", rest end
    local _, letter, to = pattern:match("^([hlL]?)([%z\1-\127\194-\244][\128-\191]*)()", stop)
    if not letter then fail("'%%' of a text: a place without its letter") end
    if letter == "%" then
      out:put "%"
    else
      width = amount(width, given)
      local precision = dot == "." and (amount(digits, given) or 0) or nil
      local text = conversion(name and given:named(name) or given:next(), letter, flags, width, precision)
      run.made(#text)
      out:put(text)
    end
    at = to
  end
  given:finish()
  out:put(pattern:sub(at))
  return out:get()
end

-- ---- pattern.format(values)

local function format_text(text, spec)
  if spec.sign or spec.alternate or spec.align == "=" or spec.zero and not spec.align then
    fail("format: a sign, '#', '=' and '0' are for numbers")
  end
  if spec.letter ~= "" and spec.letter ~= "s" then
    fail("format: '%s' is for numbers, got a text", spec.letter)
  end
  if spec.precision then text = texts.sub(text, 1, math.min(spec.precision, texts.length(text))) end
  return padded(text, spec.width, spec.align or "<", spec.fill)
end

local function format_number(value, number, float, spec)
  local letter = spec.letter
  if BASES[letter] and (float or spec.precision) or letter == "i" or letter == "u" then
    fail("format: '%s' does not fit %s", letter, values.shown(value))
  end
  if letter == "c" or letter == "n" or not (letter == "" or BASES[letter] or letter:find "^[eEfFgG%%]$") then
    fail("format: '%s' of %s is not supported", letter, values.shown(value))
  end
  local digits = digits_of("format", math.abs(number), float, letter, spec.precision, spec.alternate)
  if spec.group ~= "" then
    if spec.zero then fail "format: '0' and a separator of thousands are not supported together" end
    digits = grouped(digits, spec.group)
  end
  local align, fill = spec.align or spec.zero and "=" or ">", spec.fill
  if spec.zero and not spec.filled then fill = "0" end
  return padded(sign_of(number, spec.sign) .. digits, spec.width, align, fill)
end

local function parse_spec(text)
  local fill, align, rest = text:match "^([%z\1-\127\194-\244][\128-\191]*)([<>=^])(.*)$"
  if not fill then align, rest = text:match "^([<>=^]?)(.*)$" end
  local sign, alternate, zero, width, group, tail = rest:match "^([-+ ]?)(#?)(0?)(%d*)([,_]?)(.*)$"
  local precision, letter = tail:match "^%.(%d+)([%a%%]?)$"
  if not precision then letter = tail:match "^([%a%%]?)$" end
  if not letter then fail("format: '%s' is not understood", text) end
  return { fill = fill or " ", filled = fill ~= nil, align = align ~= "" and align or nil,
    sign = sign ~= "" and sign or nil, alternate = alternate ~= "", zero = zero ~= "",
    width = tonumber(width) or 0, group = group, precision = tonumber(precision), letter = letter }
end

local function formatted(value, text)
  values.defined(value)
  local number, float = numbers.of(value)
  if text == "" then return values.text(value) end
  local spec = parse_spec(text)
  if type(value) == "boolean" and spec.letter == "" then
    fail("format: '%s' of a boolean is not supported", text)
  end
  if number then return format_number(value, number, float, spec) end
  local plain = values.text_of(value)
  if not plain then fail("format: '%s' does not fit %s", text, values.shown(value)) end
  return format_text(plain, spec)
end

-- Follows ".name" and "[key]" behind a place's first name.
local function follow(value, path, access)
  while path ~= "" do
    local name, rest = path:match "^%.([^.%[]+)(.*)$"
    local key, behind = path:match "^%[([^%]]+)%](.*)$"
    if name then
      value, path = access.attribute(value, name), rest
    elseif key then
      value, path = access.index(value, tonumber(key:match "^%d+$") or key), behind
    else
      fail("format: '%s' is not understood", path)
    end
  end
  return value
end

-- The value of a place, whose name is empty, a number or a name.
local function place_value(place, args, named, state, access)
  local first, path = place:match "^([^.%[]*)(.*)$"
  local index = tonumber(first:match "^%d+$")
  if first == "" or index then
    local automatic = first == ""
    if state.automatic ~= nil and state.automatic ~= automatic then
      fail("format: '{}' and '{0}' do not go together")
    end
    state.automatic = automatic
    if automatic then index, state.at = state.at, state.at + 1 end
    if args[index + 1] == nil then fail("format: there is no value %d", index) end
    return follow(args[index + 1], path, access)
  end
  local value = values.get(named, first)
  if value == nil then fail("format: there is no '%s'", first) end
  return follow(value, path, access)
end

local SHOW = { s = values.text, r = values.repr }

--- Returns `pattern.format(...)`.
---@param pattern string
---@param args any[]
---@param named table a map
---@param access { attribute: function, index: function } how names behind '.' and in '[]' are found
---@return string
function M.braces(pattern, args, named, access)
  local out, at, state = buffer.new(), 1, { at = 0 }
  while true do
    local from = pattern:find("[{}]", at)
    if not from then break end
    run.step()
    out:put(pattern:sub(at, from - 1))
    local c = pattern:sub(from, from)
    if pattern:sub(from + 1, from + 1) == c then
      out:put(c)
      at = from + 2
    else
      local inner, to = pattern:match("^{([^{}]*)}()", from)
      if not inner then fail("format: '%s' at place %d is not understood", c, from) end
      local place, spec = inner:match "^([^:]*):?(.*)$"
      local show
      place, show = place:match "^([^!]*)!?(.*)$"
      local value = place_value(place, args, named, state, access)
      if show ~= "" then value = (SHOW[show] or fail("format: '!%s' is not supported", show))(value) end
      local text = formatted(value, spec)
      run.made(#text)
      out:put(text)
      at = to
    end
  end
  out:put(pattern:sub(at))
  return out:get()
end

return M
