--- The prompt: reads a chunk, runs it, shows what its last statement gave. The host (host/repl.c)
--- owns the terminal and the loop: `next` gives it a function to run, then it calls `done` or
--- `failed`.
local chunks = require "accelerate.prompt.chunk"
local history = require "accelerate.prompt.history"
local terminal = require "accelerate.utils.terminal"

local M = {}

local MODULES = { "accelerate", "tensor", "nn", "optim", "data", "metrics", "models", "tokenizers",
  "distributions", "tracking" }

local editor
local number = 0      -- of the chunk being read or run
local pending = ""    -- its lines so far
local running         -- the chunk whose results `done` shows
local last_results = 0

-- ---- colours

local function painted(text, code, fd)
  if not terminal.has_colours(fd or terminal.STDOUT) then return text end
  return ("\27[%sm%s\27[0m"):format(code, text)
end

-- What does not take a column stands between bytes 1, for the line editor, which writes it with the
-- character that follows.
local function prompt_text(text)
  if not (editor.edits and terminal.has_colours(terminal.STDOUT)) then return text .. " " end
  return ("\1\27[1;32m\1%s\1\27[0m\1 "):format(text)
end

-- ---- names that are there without require

local function is_module(name)
  for _, module in ipairs(MODULES) do
    if module == name then
      local path = name == "accelerate" and name or "accelerate." .. name
      return package.searchpath(path, package.path) and path
    end
  end
end

local function lazy_global(globals, name)
  local value
  if name == "help" then
    value = require("accelerate.prompt.help").show
  else
    local module = type(name) == "string" and is_module(name)
    if not module then return nil end
    value = require(module)
  end
  rawset(globals, name, value)
  return value
end

--- Returns the names of modules that become globals when they are used, and of the prompt's own
--- functions.
---@return string[]
function M.lazy_names()
  local list = { "help" }
  for _, name in ipairs(MODULES) do
    if is_module(name) then list[#list + 1] = name end
  end
  return list
end

-- ---- reading

--- Called once, with the functions of the host's line editor.
---@param given { read: (fun(prompt: string): string|false|nil), add: fun(text: string),
---  on_complete: fun(fn: function),
---  on_first: fun(fn: function), edits: boolean }
function M.start(given)
  editor = given
  local meta = debug.getmetatable(_G) or {}
  meta.__index = lazy_global
  debug.setmetatable(_G, meta)
  if not editor.edits then return end
  local core = require "accelerate.core"
  print(("accel %s (%s); :help shows what there is, Ctrl-D leaves"):format(core.version, jit.version))
  editor.on_complete(function(before)
    local text = pending == "" and before or pending .. "\n" .. before
    return require("accelerate.prompt.complete").complete(text)
  end)
  editor.on_first(function()
    for _, entry in ipairs(history.load()) do editor.add(entry) end
  end)
end

local function remember(text)
  if not (editor.edits and text:find("%S")) then return end
  editor.add(text)
  history.add(text)
end

-- Most chunks are no commands, and need not load them.
local function compile(text, name)
  if text:find("^%s*[:?]") or text:find("%?%s*$") then
    return require("accelerate.prompt.commands").compile(text, name)
  end
  return chunks.compile(text, name)
end

-- Reads lines until they are a chunk. Returns it, or nil and the message; false after Ctrl-C, "end"
-- at the end of input.
local function read_chunk()
  pending = ""
  local name = ("=[%d]"):format(number)
  while true do
    local first = pending == ""
    local line = editor.read(prompt_text(first and ("[%d]>"):format(number) or (" "):rep(#tostring(number))
      .. ">>"))
    if line == false then return false end
    if line == nil and first then return "end" end
    if line then pending = first and line or pending .. "\n" .. line end
    if pending:find("%S") then
      local chunk, problem = compile(pending, name)
      if problem ~= true or not line then
        remember(pending)
        if problem == true then
          local _, message = loadstring(pending, name)
          problem = message
        end
        return chunk, problem
      end
    elseif not line then
      return "end"
    else
      pending = ""
    end
  end
end

local function write_error(text)
  io.stdout:flush()
  local first, rest = text:match("^([^\n]*)(.*)$")
  io.stderr:write(painted("accel-run: " .. first, "31", terminal.STDERR), rest, "\n")
end

--- Returns the function of the next chunk; nil at the end of input.
---@return function?
function M.next()
  number = number + 1
  running = nil
  while true do
    local chunk, problem = read_chunk()
    if chunk == "end" then return nil end
    if chunk then
      running = chunk
      return chunk.run
    end
    if problem then
      write_error(problem)
      number = number + 1
    end
  end
end

-- ---- showing

local function set_results(results)
  rawset(_G, "_", results[1])
  for i = 1, math.max(results.n, last_results) do rawset(_G, "_" .. i, results[i]) end
  last_results = results.n
end

local function print_results(results)
  local format, texts, wide = require("accelerate.utils.show").pformat, {}, false
  local options = { colours = terminal.has_colours(terminal.STDOUT) }
  for i = 1, results.n do
    texts[i] = format(results[i], options)
    wide = wide or texts[i]:find("\n", 1, true) ~= nil
  end
  io.stdout:write(table.concat(texts, wide and "\n" or "\t"), "\n")
end

--- Shows what the last chunk gave.
function M.done()
  local results = running and running.results
  if not results or results.n == 0 then return end
  if results.n > 1 or results[1] ~= nil then set_results(results) end
  if not running.silent then print_results(results) end
end

--- Shows the error that ended a chunk.
---@param text string?
function M.failed(text) write_error(text or ("[%d]: error() without a message"):format(number)) end

return M
