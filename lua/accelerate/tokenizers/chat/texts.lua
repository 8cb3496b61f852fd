--- Texts as Python has them: places and lengths count characters (code points), case and white
--- space are Unicode's. Texts are well-formed UTF-8.
local buffer = require "string.buffer"
local run = require "accelerate.tokenizers.chat.run"

local fail = run.fail

local M = {}

local CHARACTER = "[%z\1-\127\194-\244][\128-\191]*"
local BEYOND = "[\194-\244][\128-\191]*"

--- Returns the UTF-8 of a code point.
---@param code integer
---@return string
function M.char(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
  local tail = string.char(0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  if code < 0x10000 then return string.char(0xE0 + math.floor(code / 4096)) .. tail end
  return string.char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64) .. tail
end

--- Returns the code point of a character.
---@param char string
---@return integer
function M.code(char)
  local a, b, c, d = char:byte(1, 4)
  if a < 0x80 then return a end
  if a < 0xE0 then return (a - 0xC0) * 64 + b - 0x80 end
  if a < 0xF0 then return (a - 0xE0) * 4096 + (b - 0x80) * 64 + c - 0x80 end
  return (a - 0xF0) * 262144 + (b - 0x80) * 4096 + (c - 0x80) * 64 + d - 0x80
end

local PIECE = 2 ^ 16 -- bytes that one call of C looks at, so that Ctrl-C is heeded between calls

--- Iterates over pieces of a text, cut between characters.
---@param text string
function M.pieces(text)
  local at = 1
  return function()
    if at > #text then return nil end
    local to = at + PIECE - 1
    while text:find("^[\128-\191]", to + 1) do to = to - 1 end
    local piece = text:sub(at, to)
    run.look(#piece)
    at = to + 1
    return piece
  end
end

--- Returns a text with the matches of a pattern replaced. A match is never longer than a character.
---@param text string
---@param pattern string
---@param by table|fun(match: string): string
---@return string
function M.gsub(text, pattern, by)
  local out = buffer.new()
  for piece in M.pieces(text) do
    local changed, n = piece:gsub(pattern, by)
    run.step(n)
    if #piece == #text then return changed end
    out:put(changed)
  end
  return out:get()
end

-- The text that was looked at last: templates walk over a text by its places.
local seen_text, seen_ascii

local function is_ascii(text)
  if seen_text == text then return seen_ascii end
  local ascii = true
  for piece in M.pieces(text) do
    ascii = not piece:find "[\128-\255]"
    if not ascii then break end
  end
  seen_text, seen_ascii = text, ascii
  return ascii
end

-- The characters of the text that was cut up last.
local cached_text, cached_list

--- Returns the characters of a text. The list is not to be changed.
---@param text string
---@return string[]
function M.characters(text)
  if cached_text == text then return cached_list end
  run.step(#text)
  local list, n = {}, 0
  for char in text:gmatch(CHARACTER) do
    n = n + 1
    list[n] = char
  end
  if #text < 2 ^ 20 then cached_text, cached_list = text, list end
  return list
end

--- Returns the number of characters.
---@param text string
---@return integer
function M.length(text)
  if is_ascii(text) then return #text end
  if #text < 2 ^ 20 then return #M.characters(text) end
  local n = 0
  for piece in M.pieces(text) do n = n + #piece:gsub("[\128-\191]+", "") end
  return n
end

--- Returns characters `from` to `to`, which count from 1 and lie inside the text.
---@return string
function M.sub(text, from, to)
  if from > to then return "" end
  run.made(to - from + 1)
  if is_ascii(text) then return text:sub(from, to) end
  run.step(to - from + 1)
  return table.concat(M.characters(text), "", from, to)
end

-- ---- white space

local SPACES = { [" "] = true, ["\194\133"] = true, ["\194\160"] = true, ["\225\154\128"] = true,
  ["\226\128\168"] = true, ["\226\128\169"] = true, ["\226\128\175"] = true, ["\226\129\159"] = true,
  ["\227\128\128"] = true }
for code = 9, 13 do SPACES[string.char(code)] = true end
for code = 28, 31 do SPACES[string.char(code)] = true end
for code = 0x2000, 0x200A do SPACES[M.char(code)] = true end

--- Returns whether a character is white space.
function M.is_space(char) return SPACES[char] == true end

-- The first place at or behind `at` whose character is not in a set.
local function skip(text, at, set)
  while at <= #text do
    local char = text:match(CHARACTER, at)
    if not set[char] then break end
    at = at + #char
    run.step()
  end
  return at
end

-- The last place before which every character behind it is in a set.
local function skip_back(text, at, set)
  while at > 0 do
    local from = at
    while from > 1 and text:find("^[\128-\191]", from) do from = from - 1 end
    if not set[text:sub(from, at)] then break end
    at = from - 1
    run.step()
  end
  return at
end

--- Returns the first place at or behind `at` that is not white space.
---@return integer
function M.skip_space(text, at) return skip(text, at, SPACES) end

--- Removes characters at the ends: white space, or those of a text.
---@param text string
---@param chars string? nil: white space
---@param left boolean
---@param right boolean
---@return string
function M.strip(text, chars, left, right)
  local set = SPACES
  if chars then
    set = {}
    for _, char in ipairs(M.characters(chars)) do set[char] = true end
  end
  local from = left and skip(text, 1, set) or 1
  local to = right and skip_back(text, #text, set) or #text
  run.made(#text)
  return text:sub(from, to)
end

-- ---- case

local maps = {}

-- The letters beyond ASCII that have another case, and what they become.
local function map_of(name)
  if maps[name] then return maps[name] end
  local case, map = require("accelerate.tokenizers.chat.cases")[name], {}
  for _, r in ipairs(case.runs) do
    for code = r[1], r[2], r[3] do map[M.char(code)] = M.char(code + r[4]) end
  end
  for from, to in pairs(case.pairs) do map[from] = to end
  maps[name] = map
  return map
end

local ASCII = { lower = string.lower, upper = string.upper, title = string.upper }

local function changed(text, name)
  run.made(#text)
  local ascii = is_ascii(text)
  run.look(#text / 8)
  text = ASCII[name](text)
  if ascii then return text end
  return M.gsub(text, BEYOND, map_of(name))
end

--- Returns whether a character has an upper, lower or title case.
function M.is_cased(char)
  if #char == 1 then return char:find "%a" ~= nil end
  return (map_of "upper")[char] ~= nil or (map_of "lower")[char] ~= nil or (map_of "title")[char] ~= nil
end

local SIGMA, FINAL_SIGMA = "\207\131", "\207\130"

-- A sigma at the end of a word has a form of its own.
local function with_final_sigmas(text, lowered)
  local list = M.characters(lowered)
  if #list ~= M.length(text) then return lowered end
  local out = {}
  for i, char in ipairs(list) do
    local before, behind = list[i - 1], list[i + 1]
    local ends = char == SIGMA and before and M.is_cased(before) and not (behind and M.is_cased(behind))
    out[i] = ends and FINAL_SIGMA or char
  end
  return table.concat(out)
end

---@param text string
---@return string
function M.lower(text)
  local lowered = changed(text, "lower")
  if text:find("\206\163", 1, true) then return with_final_sigmas(text, lowered) end
  return lowered
end

---@param text string
---@return string
function M.upper(text) return changed(text, "upper") end

--- Returns a character's title case: what a word begins with.
function M.title_of(char)
  if #char == 1 then return char:upper() end
  return (map_of "title")[char] or char
end

local function cut_first(text)
  local first = text:match(CHARACTER) or ""
  return first, text:sub(#first + 1)
end

---@param text string
---@return string
function M.capitalize(text)
  local first, rest = cut_first(text)
  return M.title_of(first) .. M.lower(rest)
end

--- Returns the text with each word's first letter in title case, as the method `title` has it: a
--- word is a run of letters that have case.
---@param text string
---@return string
function M.title(text)
  local out, inside = buffer.new(), false
  for _, char in ipairs(M.characters(text)) do
    out:put(inside and M.lower(char) or M.title_of(char))
    inside = M.is_cased(char)
  end
  return out:get()
end

--- Returns the text with its words' first letters in upper case, as the filter `title` has it: a
--- word begins behind white space, '-' or an opening bracket.
---@param text string
---@return string
function M.title_words(text)
  local out, begins = buffer.new(), true
  for _, char in ipairs(M.characters(text)) do
    local separates = SPACES[char] or char:find "^[-({%[<]$" ~= nil
    out:put(separates and char or begins and M.upper(char) or M.lower(char))
    begins = separates
  end
  return out:get()
end

---@param text string
---@return string
function M.swapcase(text)
  local out = buffer.new()
  for _, char in ipairs(M.characters(text)) do
    local upper = M.upper(char)
    out:put(upper ~= char and upper or M.lower(char))
  end
  return out:get()
end

-- ---- searching

--- Returns the byte places of a text in another one, at or behind byte `at`.
---@return integer? from
---@return integer? to
function M.find(text, wanted, at)
  run.search(#text - at + 1, #wanted)
  return text:find(wanted, at, true)
end

--- Returns the last byte places of a text that ends at or before byte `last`.
---@return integer? from
---@return integer? to
function M.rfind(text, wanted, last)
  run.search(last, #wanted)
  for at = last - #wanted + 1, 1, -1 do
    if text:byte(at) == wanted:byte(1) and text:sub(at, at + #wanted - 1) == wanted then
      return at, at + #wanted - 1
    end
    run.step(1 / 8)
  end
end

--- Returns the text with the first `most` occurrences of `old` replaced.
---@param most integer negative: all
---@return string
function M.replace(text, old, new, most)
  if most == 0 or #old > #text then return text end
  if old == "" then return M.interleave(text, new, most) end
  local out, at, n, size = buffer.new(), 1, 0, #text
  while n ~= most do
    local from, to = text:find(old, at, true)
    if not from then break end
    if n == 0 then run.search(#text, #old) end
    run.step()
    size = size + #new - #old
    if #new > #old then run.made(#new) end
    out:put(text:sub(at, from - 1), new)
    at, n = to + 1, n + 1
  end
  if n == 0 then return text end
  run.made(size)
  out:put(text:sub(at))
  return out:get()
end

--- Returns the text with `new` before each of the first `most` characters, and at the end.
---@return string
function M.interleave(text, new, most)
  local out, list = buffer.new(), M.characters(text)
  if most < 0 or most > #list + 1 then most = #list + 1 end
  run.made(#text + most * #new)
  for i = 1, most do out:put(new, list[i] or "") end
  for i = most + 1, #list do out:put(list[i]) end
  return out:get()
end

--- Returns the text, `n` times.
---@return string
function M.rep(text, n)
  if n <= 0 then return "" end
  run.made(#text * n)
  return text:rep(n)
end

--- Returns the texts of a list, joined.
---@param list string[]
---@param separator string
---@return string
function M.join(list, separator)
  local size = #separator * math.max(0, #list - 1)
  for i = 1, #list do size = size + #list[i] end
  run.step(#list)
  run.made(size)
  return table.concat(list, separator)
end

-- ---- cutting

local function split_at_space(text, most)
  local out, at = {}, M.skip_space(text, 1)
  while at <= #text do
    if #out == most then
      out[#out + 1] = text:sub(at)
      break
    end
    local stop = at
    while stop <= #text do
      local plain = text:find("[\1-\32\127-\255]", stop) or #text + 1 -- ASCII letters cost no step each
      run.look(plain - stop)
      local char = text:match(CHARACTER, plain) or ""
      stop = plain
      if char == "" or SPACES[char] then break end
      run.step()
      stop = plain + #char
    end
    out[#out + 1] = text:sub(at, stop - 1)
    at = M.skip_space(text, stop)
  end
  return out
end

local function rsplit_at_space(text, most)
  local out, last = {}, skip_back(text, #text, SPACES)
  while last > 0 do
    if #out == most then
      out[#out + 1] = text:sub(1, last)
      break
    end
    local from = last
    while from > 0 do
      local begin = from
      while begin > 1 and text:find("^[\128-\191]", begin) do begin = begin - 1 end
      if SPACES[text:sub(begin, from)] then break end
      run.step()
      from = begin - 1
    end
    out[#out + 1] = text:sub(from + 1, last)
    last = skip_back(text, from, SPACES)
  end
  return M.reversed(out)
end

--- Returns a list from its end to its beginning.
function M.reversed(list)
  local out, n = {}, #list
  run.step(n)
  for i = 1, n do out[i] = list[n + 1 - i] end
  return out
end

--- Returns the pieces of a text between separators.
---@param separator string? nil: runs of white space
---@param most integer of cuts; negative: all
---@return string[]
function M.split(text, separator, most)
  run.made(#text)
  if not separator then return split_at_space(text, most) end
  if separator == "" then fail("split: an empty separator") end
  run.search(#text, #separator)
  local out, at = {}, 1
  while #out ~= most do
    local from, to = text:find(separator, at, true)
    if not from then break end
    run.step()
    out[#out + 1] = text:sub(at, from - 1)
    at = to + 1
  end
  out[#out + 1] = text:sub(at)
  return out
end

--- Returns the pieces of a text between separators; those at the end are cut first.
---@return string[]
function M.rsplit(text, separator, most)
  run.made(#text)
  if not separator then return rsplit_at_space(text, most) end
  if separator == "" then fail("rsplit: an empty separator") end
  if most < 0 then return M.split(text, separator, most) end
  local out, last = {}, #text
  while #out ~= most do
    local from, to = M.rfind(text, separator, last)
    if not from then break end
    out[#out + 1] = text:sub(to + 1, last)
    last = from - 1
  end
  out[#out + 1] = text:sub(1, last)
  return M.reversed(out)
end

local BREAKS = { ["\194\133"] = true, ["\226\128\168"] = true, ["\226\128\169"] = true }

--- Returns the lines of a text, at each of Python's line breaks.
---@param keep boolean whether a line keeps its break
---@return string[]
function M.lines(text, keep)
  local out, from, at = {}, 1, 1
  run.made(#text)
  run.look(#text)
  while true do
    local to = text:find("[\10-\13\28-\30\194\226]", at)
    if not to then break end
    run.step()
    local char = text:match(CHARACTER, to)
    if #char > 1 and not BREAKS[char] then
      at = to + #char
    else
      local stop = to + #char - 1
      if text:find("^\r\n", to) then stop = to + 1 end
      out[#out + 1] = text:sub(from, keep and stop or to - 1)
      from, at = stop + 1, stop + 1
    end
  end
  if from <= #text then out[#out + 1] = text:sub(from) end
  return out
end

return M
