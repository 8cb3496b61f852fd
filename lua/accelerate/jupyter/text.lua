--- UTF-8 for the Jupyter protocol: positions count characters, and JSON holds no other bytes.
local M = {}

local REPLACEMENT = "\239\191\189"

-- Whether a sequence of a lead byte and its rest is a character.
local function is_character(sequence)
  local a, b = sequence:byte(1, 2)
  local n = #sequence
  if a < 0x80 then return n == 1 end
  if a < 0xe0 then return a >= 0xc2 and n == 2 end
  if a < 0xf0 then return n == 3 and not (a == 0xe0 and b < 0xa0) and not (a == 0xed and b > 0x9f) end
  return a <= 0xf4 and n == 4 and not (a == 0xf0 and b < 0x90) and not (a == 0xf4 and b > 0x8f)
end

--- Returns the text with what is no UTF-8 replaced.
---@param bytes string
---@return string
function M.utf8(bytes)
  if not bytes:find("[\128-\255]") then return bytes end
  return (bytes:gsub("[\128-\191]*[\192-\255]?[\128-\191]*", function(run)
    if run == "" then return nil end
    local stray, rest = run:match("^([\128-\191]*)(.*)$")
    local out = REPLACEMENT:rep(#stray)
    if rest == "" then return out end
    local length = rest:byte() >= 0xf0 and 4 or rest:byte() >= 0xe0 and 3 or 2
    local sequence, more = rest:sub(1, length), rest:sub(length + 1)
    return out .. (is_character(sequence) and sequence or REPLACEMENT) .. REPLACEMENT:rep(#more)
  end))
end

--- Returns a value with all its texts made UTF-8. Tables are copied.
---@param value any
---@return any
function M.valid(value)
  if type(value) == "string" then return M.utf8(value) end
  if type(value) ~= "table" then return value end
  local copy = setmetatable({}, getmetatable(value))
  for key, inner in next, value do copy[key] = M.valid(inner) end
  return copy
end

--- Returns how many bytes at the end of a text are the beginning of a character.
---@param bytes string
---@return integer
function M.unfinished(bytes)
  local tail = bytes:match("[\192-\247][\128-\191]*$")
  if not tail then return 0 end
  local lead = tail:byte()
  local length = lead >= 0xf0 and 4 or lead >= 0xe0 and 3 or 2
  return #tail < length and #tail or 0
end

--- Returns the number of bytes before character `position`, counted from 0.
---@param text string
---@param position integer
---@return integer
function M.bytes_before(text, position)
  local count = 0
  for at in text:gmatch("()[%z\1-\127\192-\255][\128-\191]*") do
    if count >= position then return at - 1 end
    count = count + 1
  end
  return #text
end

--- Returns the number of characters.
---@param text string
---@return integer
function M.characters(text)
  local _, n = text:gsub("[%z\1-\127\192-\255]", "")
  return n
end

return M
