--- Lines of what the script was compiled from, for messages.
local M = {}

-- What the prompt and the scripts that it follows were made of: name in messages -> text; false
-- for one that is a file.
local texts = {}

--- Adds a chunk that was compiled inside a function, "=[3]" or "@train.lua".
---@param name string the chunk's name
---@param text string its lines, kept for the first kind
function M.keep(name, text) texts[name:sub(2)] = name:sub(1, 1) == "=" and text end

local function ends_with(path, tail) return type(path) == "string" and path:sub(-#tail) == tail end

-- The whole path of a name that Lua has shortened to "..." and its end: the script's or a chunk's.
local function whole(name)
  local tail = name:match("^%.%.%.(.*)")
  if not tail then return name end
  if arg and ends_with(arg[0], tail) then return arg[0] end
  for path in next, texts do
    if ends_with(path, tail) then return path end
  end
  return name
end

--- Returns whether `keep` was called for the name, which is written without its first character.
---@param name string
---@return boolean
function M.is_chunk(name) return texts[whole(name)] ~= nil end

local function nth(lines, number)
  for line in lines do
    number = number - 1
    if number == 0 then return line end
  end
end

--- Returns a line. nil where the name is neither a regular file nor a chunk that is kept: opening a
--- pipe would wait for its writer.
---@param name string as debug.getinfo(level, "S").source has it behind its first character, or as
---  messages shorten it
---@param number integer from 1
---@return string?
function M.line(name, number)
  name = whole(name)
  local text = texts[name]
  if not text and not name:find("^%.%.%.") and not name:find("^[%(%[]") then
    text = require("accelerate.core")._read_file(name)
  end
  return text and nth((text .. "\n"):gmatch("(.-)\n"), number)
end

return M
