--- A rank other than 0 of a prompt of several ranks: receives chunks, runs them, answers how they
--- ended. It has the functions that the host's loop calls, as the prompt itself has.
local chunks = require "accelerate.prompt.chunk"
local globals = require "accelerate.prompt.globals"
local results = require "accelerate.prompt.results"

local M = {}

local ranks
local number, kind = "0", "run" -- of the chunk that runs; 0: the script
local running

--- Called once, with the functions of the host.
---@param given { ranks: accelerate.prompt.Session }
function M.start(given)
  ranks = given.ranks
  globals.install()
end

local function answer(outcome, text)
  ranks.send(0, number, outcome, ranks.broken() and "broken" or "", text)
end

local function refuse(problem)
  return function() error(problem, 0) end
end

--- Returns the function of the next chunk; nil when rank 0 is gone.
---@return function?
function M.next()
  local afresh, text
  number, kind, afresh, text = ranks.receive(0)
  if not number then return nil end
  ranks.begin(afresh == "afresh")
  local problem
  running, problem = chunks.compile(text, ("=[%s]"):format(number))
  return running and running.run or refuse(problem)
end

-- A step that has not ended does not go on in the next chunk.
local function leave_debugger()
  local debugger = package.loaded["accelerate.prompt.debugger"]
  if debugger then debugger.leave() end
end

--- Answers that the chunk has ended.
function M.done()
  leave_debugger()
  local given = running and running.results
  if given then results.keep(given) end
  io.stdout:flush()
  answer("done", kind == "ranks" and given and results.text(given, {}) or "")
end

--- Answers with the error that ended the chunk.
---@param text string?
function M.failed(text)
  leave_debugger()
  io.stdout:flush()
  answer("failed", text or ("[%s]: error() without a message"):format(number))
end

return M
