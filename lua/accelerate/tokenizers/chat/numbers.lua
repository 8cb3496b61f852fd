--- Python's numbers: integers are Lua numbers, floats are boxes, so that 6 / 3 stays 2.0.
local run = require "accelerate.tokenizers.chat.run"
local texts = require "accelerate.tokenizers.chat.texts"

local fail = run.fail

local M = {}

local MOST = 2 ^ 53  -- Lua's numbers hold integers up to here

local Float = { kind = "float" }

--- Returns a float.
---@param value number
function M.float(value) return setmetatable({ value = value }, Float) end

--- Returns an integer, which must be small enough to be exact.
---@param value number
---@return number
function M.integer(value)
  if value >= MOST or value <= -MOST then fail("an integer beyond 2^53 is not supported") end
  return value + 0 -- not -0
end

--- Returns the number behind a value and whether it is a float; True and False count as 1 and 0.
---@return number? value nil where the value is no number
---@return boolean float
function M.of(value)
  if type(value) == "number" then return value, false end
  if type(value) == "boolean" then return value and 1 or 0, false end
  if getmetatable(value) == Float then return value.value, true end
  return nil, false
end

local function rounded(value, float) return float and M.float(value) or M.integer(value) end

-- The remainder with the sign of the divisor.
local function remainder(a, b)
  local rest = math.fmod(a, b)
  if rest == 0 then return b < 0 and -0.0 or 0 end
  if (rest < 0) ~= (b < 0) then rest = rest + b end
  return rest
end

local function floor_division(a, b, float)
  local value = (a - remainder(a, b)) / b
  if not float then return M.integer(value) end
  value = math.floor(value + 0.5)
  local quotient = a / b
  if value == 0 then value = (quotient < 0 or 1 / quotient < 0) and -0.0 or 0 end
  return M.float(value)
end

local function power(a, b, float)
  if a == 0 and b < 0 then fail("0 to the power of a negative number") end
  if a < 0 and b % 1 ~= 0 then fail("'**' of a negative number and a fraction gives a complex number") end
  local value = a ^ b
  if float and (value == math.huge or value == -math.huge) and math.abs(a) ~= math.huge
    and math.abs(b) ~= math.huge then
    fail("'**' gives a number that is too large")
  end
  return rounded(value, float or b < 0)
end

-- function(a, b, whether one of them is a float)
local ARITHMETIC = {
  ["+"] = function(a, b, float) return rounded(a + b, float) end,
  ["-"] = function(a, b, float) return rounded(a - b, float) end,
  ["*"] = function(a, b, float) return rounded(a * b, float) end,
  ["/"] = function(a, b) return M.float(a / b) end,
  ["//"] = floor_division,
  ["%"] = function(a, b, float) return rounded(remainder(a, b), float) end,
  ["**"] = power,
}
local DIVIDES = { ["/"] = true, ["//"] = true, ["%"] = true }

--- Returns the result of an operator, or nil where one of the values is no number.
---@param sign string
function M.compute(sign, left, right)
  local a, float_a = M.of(left)
  local b, float_b = M.of(right)
  if not a or not b then return nil end
  if b == 0 and DIVIDES[sign] then fail("'%s' by 0", sign) end
  return ARITHMETIC[sign](a, b, float_a or float_b)
end

-- The fewest digits that read back as the same number, and its power of ten.
local function shortest(value)
  for digits = 1, 17 do
    local text = ("%." .. digits - 1 .. "e"):format(value)
    if tonumber(text) == value or digits == 17 then
      local whole, rest, exponent = text:match("^(%d)%.?(%d*)e([-+]%d+)$")
      return whole .. rest, tonumber(exponent)
    end
  end
end

--- Returns Python's text of a float.
---@param value number
---@return string
function M.float_text(value)
  if value ~= value then return "nan" end
  if value == math.huge or value == -math.huge then return value > 0 and "inf" or "-inf" end
  local sign = (value < 0 or 1 / value < 0) and "-" or ""
  local digits, exponent = shortest(math.abs(value))
  if exponent < -4 or exponent >= 16 then
    local rest = #digits > 1 and "." .. digits:sub(2) or ""
    return ("%s%s%se%s%02d"):format(sign, digits:sub(1, 1), rest, exponent < 0 and "-" or "+",
      math.abs(exponent))
  end
  if exponent < 0 then return sign .. "0." .. ("0"):rep(-exponent - 1) .. digits end
  digits = digits .. ("0"):rep(exponent + 2 - #digits)
  return sign .. digits:sub(1, exponent + 1) .. "." .. digits:sub(exponent + 2)
end

--- Returns the text of a number: an integer's digits, or a float's.
---@return string
function M.text(value)
  if type(value) == "number" then return ("%.0f"):format(value) end
  return M.float_text(value.value)
end

-- A number whose rounding at k digits behind the point is half-way goes to the even neighbour;
-- LuaJIT's format takes the one that is larger.
local function settled(value, k)
  if k < 0 then
    local unit = 10 ^ -k
    local low = value - unit / 2
    local half = value < MOST and math.fmod(value, unit) == unit / 2
    return half and low / unit % 2 == 0 and low or value
  end
  if value * 2 ^ (k + 1) % 2 ~= 1 then return value end
  local cut = ("%." .. k + 1 .. "f"):format(value):sub(1, -2)
  return cut:find "[02468]%.?$" and tonumber(cut) or value
end

--- Returns a number that is not negative as C's printf writes it, half to even.
---@param letter "f"|"F"|"e"|"E"|"g"|"G"
---@param precision integer
---@param flag string? "#"
---@return string
function M.format(letter, precision, value, flag)
  local k = precision
  if not letter:find "[fF]" then
    local digits = letter:find "[eE]" and precision or math.max(precision, 1) - 1
    local exponent = ("%." .. digits + 1 .. "e"):format(value):match "e([-+]%d+)$"
    k = digits - tonumber(exponent)
  end
  if k < 1000 then value = settled(value, k) end
  return ("%" .. (flag or "") .. "." .. precision .. letter):format(value)
end

local PREFIXES = { [2] = "0[bB]", [8] = "0[oO]", [16] = "0[xX]" }

--- Returns the integer that a text spells, or nil.
---@param text string
---@param base integer 0: as its prefix says
---@return number?
function M.parse_integer(text, base)
  local sign, digits = texts.strip(text, nil, true, true):match "^([-+]?)(.*)$"
  for prefixed, prefix in pairs(PREFIXES) do
    if (base == prefixed or base == 0) and digits:find("^" .. prefix .. "_?%w") then
      digits, base = digits:gsub("^" .. prefix .. "_?", ""), prefixed
      break
    end
  end
  if base == 0 then base = 10 end
  if #digits > 64 and not digits:find "%D" then M.integer(math.huge) end
  if not digits:find "^%w[%w_]*$" or digits:find "__" or digits:find "_$" then return nil end
  digits = digits:gsub("_", "")
  for digit in digits:gmatch "." do
    if tonumber(digit, 36) >= base then return nil end
  end
  local value = tonumber(digits, base)
  return value and M.integer(sign == "-" and -value or value)
end

local WORDS = { inf = math.huge, infinity = math.huge, nan = 0 / 0 }

--- Returns the number that a text spells as Python's float reads it, or nil.
---@param text string
---@return number?
function M.parse_float(text)
  local sign, rest = texts.strip(text, nil, true, true):match "^([-+]?)(.*)$"
  local value = WORDS[rest:lower()]
  if not value and rest:find "^[%d.]" and not rest:find "^0[xXbB]" and not rest:find "[^%d]_"
    and not rest:find "_[^%d]" and not rest:find "_$" then
    local digits = rest:gsub("_", "")
    value = digits:find "^[%d.]+[eE]?[-+]?%d*$" and tonumber(digits)
  end
  return value and (sign == "-" and -value or value)
end

return M
