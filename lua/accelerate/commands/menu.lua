--- Questions on a terminal (a menu, by arrow keys) and in a pipe (by number or text).
local ffi = require "ffi"

ffi.cdef "int isatty(int fd);"

local M = {}

local function on_terminal() return ffi.C.isatty(0) == 1 and ffi.C.isatty(1) == 1 end

local function stty(words)
  local pipe = io.popen("stty " .. words .. " 2>/dev/null </dev/tty")
  local text = pipe:read "*a"
  pipe:close()
  return (text:gsub("%s+$", ""))
end

-- A key: "up", "down", "enter", or the character.
local function read_key()
  local c = io.read(1)
  if c == nil then return "enter" end
  if c == "\n" or c == "\r" then return "enter" end
  if c ~= "\27" then return c == "k" and "up" or c == "j" and "down" or c end
  local bracket = io.read(1)
  local letter = (bracket == "[" or bracket == "O") and io.read(1)
  return letter == "A" and "up" or letter == "B" and "down" or "escape"
end

local function draw(choices, at)
  for i, choice in ipairs(choices) do
    io.write(i == at and "\27[36m > " or "   ", choice, i == at and "\27[0m" or "", "\27[K\n")
  end
  io.flush()
end

local function walk(choices, at)
  draw(choices, at)
  while true do
    local key = read_key()
    if key == "enter" then return at end
    if key == "up" then at = (at - 2) % #choices + 1 elseif key == "down" then at = at % #choices + 1 end
    local number = tonumber(key)
    if number and number >= 1 and number <= #choices then at = number end
    io.write(("\27[%dA"):format(#choices))
    draw(choices, at)
  end
end

local function by_arrows(question, choices, at)
  print(question .. "  (arrow keys or a number, then Enter)")
  local former = stty "-g"
  stty "-icanon -echo min 1 time 0"
  local ok, chosen = pcall(walk, choices, at)
  stty(former)
  if not ok then error(chosen, 0) end
  return chosen
end

-- What a line of a pipe chooses: a number from 1, or the choice's text.
local function of_line(line, choices)
  local number = tonumber(line)
  if number and choices[number] then return number end
  for i, choice in ipairs(choices) do
    if choice:lower() == line:lower() then return i end
  end
end

-- A line without blanks at its ends; nil at the end of the input.
local function read_line()
  local line = io.read "*l"
  return line and line:match "^%s*(.-)%s*$"
end

local function by_line(question, choices, at)
  print(question)
  for i, choice in ipairs(choices) do
    print(("  %d. %s%s"):format(i, choice, i == at and "  (default)" or ""))
  end
  while true do
    io.write(("[%d]: "):format(at))
    io.flush()
    local line = read_line()
    if line == nil or line == "" then
      print()
      return at
    end
    local chosen = of_line(line, choices)
    if chosen then return chosen end
    print(("'%s' is none of them: expected 1 to %d, or the text"):format(line, #choices))
  end
end

--- Offers several choices and returns the position of the chosen one. The end of the input chooses
--- the default.
---@param question string
---@param choices string[]
---@param default integer? position, default 1
---@return integer
function M.choose(question, choices, default)
  return (on_terminal() and by_arrows or by_line)(question, choices, default or 1)
end

--- Prints a question and returns the text that is typed. Repeats it while `convert` returns nil and
--- what was expected.
---@param question string
---@param default any what an empty line means; nil: a text is needed
---@param convert (fun(text: string): any, string?)? default: the text itself
---@return any
function M.ask(question, default, convert)
  while true do
    io.write(question, default ~= nil and (" [%s]: "):format(tostring(default)) or ": ")
    io.flush()
    local line = read_line()
    if line == nil or line == "" then
      if not on_terminal() then print() end
      if default ~= nil then return default end
      if line == nil then
        require("accelerate.commands").fail("the input ends before an answer to: %s", question)
      end
    elseif convert == nil then
      return line
    else
      local value, expected = convert(line)
      if value ~= nil then return value end
      print(("expected %s, got '%s'"):format(expected, line))
    end
  end
end

--- Prints a question and returns true for yes, false for no.
---@param question string
---@param default boolean
---@return boolean
function M.confirm(question, default)
  local answer = M.ask(question .. (default and " (YES/no)" or " (yes/NO)"), default and "yes" or "no",
    function(text)
    local word = text:lower()
    if word == "yes" or word == "y" then return "yes" elseif word == "no" or word == "n" then return "no" end
    return nil, "yes or no"
  end)
  return answer == "yes"
end

--- A whole number within bounds, for ask.
---@param least integer
---@param most integer
function M.integer(least, most)
  return function(text)
    local number = tonumber(text)
    if number and number % 1 == 0 and number >= least and number <= most then return number end
    return nil, ("a whole number from %d to %d"):format(least, most)
  end
end

return M
