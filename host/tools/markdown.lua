-- Lines of Markdown no wider than 110 columns: for the pages that `make docs` writes, and for lint.
local M = { WIDTH = 110 }

local utf8 = "[\128-\191]" -- bytes that continue a character have no column

--- Returns the columns of a line.
---@param line string
---@return integer
function M.columns(line) return #line - select(2, line:gsub(utf8, "")) end

-- Patterns of text that stays on one line: code, links.
local WHOLE = { "^`[^`]+`", "^!?%[[^%]]*%]%b()" }
local LONGEST = 90 -- code that is longer is broken, too

-- Words that would begin something of their own at the beginning of a line.
local function begins_block(word)
  return word:find "^[-+*]$" or word:find "^[>#|=]" or word:find "^%d+[.)]$" or word:find "^%-%-%-"
end

-- The end of what must stand on one line from position `i` on: a word, or several of code.
local function word_end(line, i, first)
  while i <= #line and not line:find("^%s", i) do
    local stop
    for _, pattern in ipairs(WHOLE) do
      local from, to = line:find(pattern, i)
      if from and (first or to - from < LONGEST) then stop = to end
    end
    i = (stop or i) + 1
  end
  return i - 1
end

local function words_of(line)
  local list, i = {}, 1
  while true do
    i = line:find("%S", i)
    if not i then return list end
    local stop = word_end(line, i, #list == 0)
    local word = line:sub(i, stop)
    if begins_block(word) and #list > 0 then list[#list] = list[#list] .. " " .. word
    else list[#list + 1] = word end
    i = stop + 1
  end
end

--- Returns whether the line stands as it is, whatever its width: a heading, a row of a table, code
--- by its depth.
---@param line string
---@return boolean
function M.fixed(line)
  return line:find "^#" ~= nil or line:find "^%s*|" ~= nil or line:find "^    %s*%S" ~= nil
end

--- Returns the pieces of a line, as many as its width needs; a list's item goes on below its text.
---@param line string no heading, table or code
---@return string[]
function M.wrap(line)
  if M.columns(line) <= M.WIDTH then return { line } end
  local first, text, hard = line:match "^(%s*)(.-)(%s*)$"
  local bullet = text:match "^[-+*] +" or text:match "^%d+[.)] +" or ""
  first, text = first .. bullet, text:sub(#bullet + 1)
  local out, at, empty = {}, first, true
  for _, word in ipairs(words_of(text)) do
    if not empty and M.columns(at) + 1 + M.columns(word) > M.WIDTH then
      out[#out + 1] = at
      at, empty = (" "):rep(#first), true
    end
    at, empty = at .. (empty and "" or " ") .. word, false
  end
  out[#out + 1] = at .. hard
  return out
end

--- Returns a page whose lines are broken where they are too wide; code between fences stays.
---@param text string
---@return string
function M.fill(text)
  local out, code = {}, false
  for line in (text .. "\n"):gmatch "([^\n]*)\n" do
    local fence = line:find "^%s*```" ~= nil
    if code or fence or M.fixed(line) then out[#out + 1] = line
    else
      for _, piece in ipairs(M.wrap(line)) do out[#out + 1] = piece end
    end
    if fence then code = not code end
  end
  return table.concat(out, "\n")
end

return M
