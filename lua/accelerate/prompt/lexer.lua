--- The words of a piece of Lua, with their places. Text that is not finished, or is no Lua, gives
--- words too: completion reads lines that are being typed.
local M = {}

local KEYWORDS = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat
  return then true until while]]):gmatch("%S+") do
  KEYWORDS[word] = true
end
M.KEYWORDS = KEYWORDS

---@class accelerate.prompt.Token
---@field kind "name"|"keyword"|"number"|"string"|"op"|"open"|"end" open: a string or a comment
---  without its end
---@field text string
---@field first integer
---@field last integer

-- The end of a string in quotes that begins at `at`; nil where the line ends before.
local function quoted_end(text, at)
  local quote, i = text:sub(at, at), at + 1
  while true do
    local c = text:sub(i, i)
    if c == quote then return i end
    if c == "" or c == "\n" then return nil end
    if c == "\\" then
      local skipped = text:match("^z%s*()", i + 1)
      i = skipped or i + 2
    else
      i = i + 1
    end
  end
end

-- The end of [[...]] or [=[...]=] at `at`; false where it has none, nil where none begins.
local function long_end(text, at)
  local level = text:match("^%[(=*)%[", at)
  if not level then return nil end
  local _, last = text:find("]" .. level .. "]", at, true)
  return last or false
end

local function number_end(text, at)
  local last = at
  local hex = text:find("^0[xX]", at)
  while true do
    local c = text:sub(last + 1, last + 1)
    local exponent = text:sub(last, last):find(hex and "[pP]" or "[eE]")
    if c:find("[%w_.]") and text:sub(last + 1, last + 2) ~= ".." or (c:find("[+-]") and exponent) then
      last = last + 1
    else
      return last
    end
  end
end

local LONG_OPS = { ["..."] = true, [".."] = true, ["=="] = true, ["~="] = true, ["<="] = true, [">="] = true,
  ["::"] = true }

local function op_end(text, at)
  if LONG_OPS[text:sub(at, at + 2)] then return at + 2 end
  if LONG_OPS[text:sub(at, at + 1)] then return at + 1 end
  return at
end

-- The kind of the word at `at`, and its end.
local function word(text, at)
  local c = text:sub(at, at)
  local _, last = text:find("^[%a_\128-\255][%w_\128-\255]*", at)
  if last then return KEYWORDS[text:sub(at, last)] and "keyword" or "name", last end
  if c:find("%d") or text:find("^%.%d", at) then return "number", number_end(text, at) end
  if c == '"' or c == "'" then
    last = quoted_end(text, at)
    return last and "string" or "open", last or #text
  end
  last = long_end(text, at)
  if last ~= nil then return last and "string" or "open", last or #text end
  return "op", op_end(text, at)
end

-- Where the comment at `at` ends; false: nowhere.
local function comment_end(text, at)
  local last = long_end(text, at + 2)
  if last ~= nil then return last end
  return (text:find("\n", at, true) or #text + 1) - 1
end

--- Returns the words of `text`, the last of kind "end".
---@param text string
---@return accelerate.prompt.Token[]
function M.tokens(text)
  local list, at = {}, 1
  while true do
    at = text:find("%S", at)
    if not at then break end
    local kind, last
    if text:sub(at, at + 1) == "--" then
      last = comment_end(text, at)
      if not last then kind, last = "open", #text end
    else
      kind, last = word(text, at)
    end
    if kind then list[#list + 1] = { kind = kind, text = text:sub(at, last), first = at, last = last } end
    at = last + 1
  end
  list[#list + 1] = { kind = "end", text = "", first = #text + 1, last = #text }
  return list
end

return M
