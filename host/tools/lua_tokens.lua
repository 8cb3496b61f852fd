-- Lua text as a list of tokens, for the tools that break lines and that look at their layout.

local M = {}

local OPERATORS = { "...", "..", "==", "~=", "<=", ">=", "::" }

-- Reads the token at `i`: its kind and the position after it.
local function token_at(text, i)
  local c = text:sub(i, i)
  if text:find("^%-%-%[=*%[", i) or text:find("^%[=*%[", i) then
    local comment = c == "-"
    local level = text:match("^%[(=*)%[", comment and i + 2 or i)
    local _, e = text:find("]" .. level .. "]", i, true)
    return comment and "comment" or "long", (e or #text) + 1
  elseif text:find("^%-%-", i) then
    return "comment", text:find("\n", i, true) or #text + 1
  elseif c == '"' or c == "'" then
    local at = i + 1
    while text:sub(at, at) ~= c do at = at + (text:sub(at, at) == "\\" and 2 or 1) end
    return "string", at + 1
  elseif c:find("[%a_]") then
    return "name", select(2, text:find("^[%w_]+", i)) + 1
  elseif c:find("%d") or text:find("^%.%d", i) then
    return "number", select(2, text:find("^[%w%.]+", i)) + 1
  end
  for _, operator in ipairs(OPERATORS) do
    if text:sub(i, i + #operator - 1) == operator then return operator, i + #operator end
  end
  return c, i + 1
end

--- Returns the tokens of a text, comments among them.  A token's kind is "comment", "string",
--- "long" (a long string), "name" (keywords, too), "number", or the operator itself.
---@param text string
---@return { kind: string, text: string, first: integer, last: integer }[] tokens first and last:
---  where the token stands in the text, in bytes
function M.of(text)
  local list, i = {}, 1
  while true do
    i = text:find("%S", i)
    if not i then return list end
    local kind, after = token_at(text, i)
    list[#list + 1] = { kind = kind, text = text:sub(i, after - 1), first = i, last = after - 1 }
    i = after
  end
end

local OPENS = { ["("] = true, ["{"] = true, ["["] = true }
local CLOSES = { [")"] = true, ["}"] = true, ["]"] = true }
local BLOCK = { ["function"] = true, ["if"] = true, ["do"] = true, ["repeat"] = true }
local BLOCK_END = { ["end"] = true, ["until"] = true }

--- Gives each token its `line` and `column`, both from 1, `leads` (it is the first of its line)
--- and `around`: the token that opens the innermost bracket or block around it, or nil.
---@param text string
---@param list table[] its tokens, without comments or with them
function M.place(text, list)
  local open, line, start, at = {}, 1, 1, 1
  for _, t in ipairs(list) do
    for newline in text:sub(at, t.first - 1):gmatch "()\n" do line, start = line + 1, at + newline end
    t.line, t.column = line, t.first - start + 1
    t.leads = not text:sub(start, t.first - 1):find "%S"
    for newline in t.text:gmatch "()\n" do line, start = line + 1, t.first + newline end
    at = t.last + 1
    local word = t.kind == "name" and t.text
    if CLOSES[t.kind] or BLOCK_END[word] then open[#open] = nil end
    t.around = open[#open]
    if OPENS[t.kind] or BLOCK[word] then open[#open + 1] = t end
  end
end

--- Returns whether token `t`, which has its place, begins an item of the bracket around it.
---@param t table
---@param before table? the token before it that is no comment
---@return boolean
function M.begins_item(t, before)
  local bracket = t.around
  return bracket ~= nil and OPENS[bracket.kind] == true
    and (before == bracket or before.kind == "," or before.kind == ";")
end

return M
