--- The prompt: reads a chunk, runs it, shows what its last statement gave. The host
--- (host/script/repl.c) owns the terminal and the loop: `next` gives it a function to run, then it
--- calls `done` or
--- `failed`.
local chunks = require "accelerate.prompt.chunk"
local globals = require "accelerate.prompt.globals"
local history = require "accelerate.prompt.history"
local terminal = require "accelerate.utils.terminal"

local M = {}

local editor
local number = 0      -- of the chunk being read or run
local pending = ""    -- its lines so far
local running         -- the chunk whose results `done` shows
local ranks           -- the module, where this is rank 0 of several

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

-- ---- reading

--- Called once, with the functions of the host's line editor.
---@param given { read: (fun(prompt: string): string|false|nil), add: fun(text: string),
---  on_complete: fun(fn: function),
---  on_first: fun(fn: function), edits: boolean, version: string,
---  ranks: accelerate.prompt.Session? }
function M.start(given)
  editor = given
  globals.install()
  if given.ranks then
    ranks = require "accelerate.prompt.ranks"
    ranks.start(given.ranks)
  end
  if not editor.edits then return end
  print(("accel %s (%s)%s; :help shows what there is, Ctrl-D leaves"):format(given.version, jit.version,
    ranks and (", %d ranks"):format(given.ranks.size) or ""))
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

local WORDS = { exit = true, quit = true, help = true }

-- Most chunks are no commands, and need not load them.
local function compile(text, name)
  if text:find("^%s*[:?]") or text:find("%?%s*$") or WORDS[text:match("^%s*(%l+)")] then
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
    local line = editor.read(prompt_text(first and ("[%d]>"):format(number) or (" "):rep(#tostring(number)) ..
      ">>"))
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

-- Whether the chunk runs: the other ranks run it too, unless it is rank 0's alone.
local function share(chunk)
  if not ranks or chunk.alone then return true end
  return ranks.send(number, chunk.ranks and "ranks" or "run", chunk.text)
end

--- Returns the function of the next chunk; nil at the end of input, and when a rank is gone.
---@return function?
function M.next()
  number = number + 1
  running = nil
  while not (ranks and ranks.gone) do
    local chunk, problem = read_chunk()
    if chunk == "end" then return nil end
    if chunk and share(chunk) then
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

local function print_results(given)
  local options = { colours = terminal.has_colours(terminal.STDOUT) }
  io.stdout:write(require("accelerate.prompt.results").text(given, options), "\n")
end

-- Shows what the last chunk gave in this rank.
local function show_results()
  local given = running and running.results
  if not given or given.n == 0 then return end
  require("accelerate.prompt.results").keep(given)
  if not (running.silent or running.ranks) then print_results(given) end
end

local function show_all_results(outcomes)
  for _, group in ipairs(ranks.grouped(outcomes, "text")) do
    local wide = group.text:find("\n", 1, true)
    io.stdout:write(group.ranks, wide and ":\n" or ": ", group.text, "\n")
  end
end

-- How a chunk ended in all ranks.
local function show_outcomes(own)
  local outcomes = ranks.collect(own)
  if not own.error then show_results() end
  if running and running.ranks then show_all_results(outcomes) end
  local first, caused = ranks.causes(outcomes)
  for _, group in ipairs(ranks.grouped(first, "error")) do write_error(group.ranks .. ": " .. group.text) end
  for _, outcome in ipairs(caused) do outcome.error = outcome.error:match("^[^\n]*") end
  for _, group in ipairs(ranks.grouped(caused, "error")) do write_error(group.ranks .. ": " .. group.text) end
  if ranks.gone then write_error(("rank %d has ended, and the session with it"):format(ranks.gone)) end
end

local function is_shared() return ranks and not (running and running.alone) end

-- A step that has not ended does not go on in the next chunk.
local function leave_debugger()
  local debugger = package.loaded["accelerate.prompt.debugger"]
  if debugger then debugger.leave() end
end

local told -- of :debug

local function write_hint()
  if told or not editor.edits then return end
  local frames = package.loaded["accelerate.prompt.frames"]
  if not (frames and frames.last) then return end
  told = true
  io.stderr:write(painted(":debug looks at the functions where this was raised", "2", terminal.STDERR), "\n")
end

--- Shows what the last chunk gave.
function M.done()
  leave_debugger()
  if not is_shared() then return show_results() end
  local given = running and running.ranks and running.results
  show_outcomes { text = given and require("accelerate.prompt.results").text(given, {}) or "" }
end

--- Shows the error that ended a chunk.
---@param text string?
function M.failed(text)
  leave_debugger()
  text = text or ("[%d]: error() without a message"):format(number)
  if is_shared() then show_outcomes { error = text } else write_error(text) end
  write_hint()
end

return M
