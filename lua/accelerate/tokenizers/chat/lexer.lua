--- Cuts a Jinja template into texts and blocks, and a block into words.
local M = {}

--- Raises an error that chat.render gives its place.
function M.fail(line, format, ...) error({ line = line, message = format:format(...) }, 0) end

local OPEN = { ["{{"] = "}}", ["{%"] = "%}", ["{#"] = "#}" }

-- Where the block that begins at `from` ends; texts in quotes may hold what ends it.
local function block_end(text, from, close, line)
  local at, quote = from, nil
  while at <= #text do
    local c = text:sub(at, at)
    if quote then
      if c == "\\" then at = at + 1 elseif c == quote then quote = nil end
    elseif close ~= "#}" and (c == "'" or c == '"') then
      quote = c
    elseif text:sub(at, at + 1) == close then
      return at
    end
    at = at + 1
  end
  M.fail(line, "a block without its end, %s", close)
end

-- The first place of a block at or behind `from`.
local function next_block(text, from)
  while true do
    local at = text:find("{", from, true)
    if not at then return nil end
    if OPEN[text:sub(at, at + 1)] then return at end
    from = at + 1
  end
end

-- The text without the blanks between the beginning of the line and `open`, where only blanks are
-- there.
local function without_indent(plain, text, open)
  local at = open - 1
  while at > 0 and text:find("^[ \t]", at) do at = at - 1 end
  if at > 0 and text:sub(at, at) ~= "\n" then return plain end
  return plain:sub(1, math.max(0, #plain - (open - 1 - at)))
end

--- Returns a list of { kind = "text" | "{{" | "{%", text, line }.
---@param text string
---@return table[]
function M.blocks(text)
  text = text:gsub("\r\n?", "\n"):gsub("\n$", "", 1)
  local list, at, line = {}, 1, 1
  while at <= #text do
    local open = next_block(text, at)
    local plain = text:sub(at, (open or #text + 1) - 1)
    local lines = select(2, plain:gsub("\n", ""))
    local kind = open and text:sub(open, open + 1)
    local sign = open and text:match("^[-+]", open + 2)
    if sign == "-" then
      plain = plain:gsub("%s+$", "")
    elseif open and kind ~= "{{" and sign ~= "+" then
      plain = without_indent(plain, text, open)
    end
    if plain ~= "" then list[#list + 1] = { kind = "text", text = plain, line = line } end
    if not open then break end
    line = line + lines
    local from = open + (sign and 3 or 2)
    local stop = block_end(text, from, OPEN[kind], line)
    local last = stop > from and text:match("^[-+]", stop - 1)
    if kind ~= "{#" then
      list[#list + 1] = { kind = kind, text = text:sub(from, stop - (last and 2 or 1)), line = line }
    end
    at = stop + 2
    if last == "-" then
      at = text:find("%S", at) or #text + 1
    elseif kind ~= "{{" and last ~= "+" and text:sub(at, at) == "\n" then
      at = at + 1
    end
    line = line + select(2, text:sub(open, at - 1):gsub("\n", ""))
  end
  return list
end

local ESCAPES = { n = "\n", t = "\t", r = "\r", ["\\"] = "\\", ["'"] = "'", ['"'] = '"' }
local TWO = { ["=="] = true, ["!="] = true, ["<="] = true, [">="] = true, ["//"] = true, ["**"] = true }

local function read_string(text, at, line)
  local quote, parts, from = text:sub(at, at), {}, at + 1
  while true do
    local stop = text:find("[\\" .. quote .. "]", from)
    if not stop then M.fail(line, "a text without its end") end
    parts[#parts + 1] = text:sub(from, stop - 1)
    if text:sub(stop, stop) == quote then return table.concat(parts), stop + 1 end
    local c = text:sub(stop + 1, stop + 1)
    parts[#parts + 1] = ESCAPES[c] or "\\" .. c
    from = stop + 2
  end
end

--- Returns the words of a block: { kind = "name" | "string" | "number" | "sign", value, line }.
---@param block table
---@return table[]
function M.words(block)
  local text, line, at, list = block.text, block.line, 1, {}
  while true do
    local from = text:find("%S", at)
    if not from then break end
    line = line + select(2, text:sub(at, from - 1):gsub("\n", ""))
    local c, word = text:sub(from, from), { line = line }
    if c:find("[%a_]") then
      word.kind, word.value = "name", text:match("^[%w_]+", from)
      at = from + #word.value
    elseif c:find("%d") then
      local digits = text:match("^%d+%.%d+", from) or text:match("^%d+", from)
      word.kind, word.value = "number", tonumber(digits)
      at = from + #digits
    elseif c == "'" or c == '"' then
      word.kind = "string"
      word.value, at = read_string(text, from, line)
    else
      local two = text:sub(from, from + 1)
      word.kind, word.value = "sign", TWO[two] and two or c
      at = from + #word.value
    end
    list[#list + 1] = word
  end
  return list
end

return M
