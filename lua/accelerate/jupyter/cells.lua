--- The process that runs cells: it reads requests, runs them as the prompt runs chunks, and sends
--- what they gave. What cells print goes into pipes that the other process reads.
local commands = require "accelerate.prompt.commands"
local globals = require "accelerate.prompt.globals"
local host = require "accelerate.host"
local input = require "accelerate.jupyter.input"
local json = require "accelerate.utils.json"
local pipe = require "accelerate.jupyter.pipe"
local results = require "accelerate.prompt.results"
local text = require "accelerate.jupyter.text"

local M = {}

local socket
local handlers = {}

-- What was printed before the message comes before it.
local function send(message)
  pipe.flush()
  pipe.send(socket, text.valid(message))
end

-- What is printed from now on comes after the message.
local function send_at_once(message)
  send(message)
  pipe.receive(socket)
end

-- ---- what cells call

--- Shows a value as a cell's last one is shown.
---@param value any
local function display(value)
  send_at_once { kind = "display", data = require("accelerate.jupyter.display").bundle(value) }
end

--- Empties the cell's output. wait: when the next output comes.
---@param wait boolean?
local function clear_output(wait) send_at_once { kind = "clear", wait = wait == true } end

-- A line that the user types; nil and why there is none.
local function ask_line()
  send { kind = "input" }
  local answer
  repeat answer = pipe.receive(socket) until not answer or answer.kind == "input"
  if answer and answer.value then return answer.value end
  return nil, answer and answer.problem or "there is no front end any more"
end

-- ---- running

local function failure(message)
  local lines = {}
  for line in (message .. "\n"):gmatch("(.-)\n") do lines[#lines + 1] = line end
  local first = lines[1]
  lines[1] = ("\27[31m%s\27[0m"):format(first)
  return { ename = "Error", evalue = first, traceback = lines }
end

local function compile(code, name)
  if not code:find("%S") then return { run = function() end } end
  local chunk, problem = commands.compile(code, name)
  if problem == true then
    local _, message = loadstring(code, name)
    problem = message
  end
  return chunk, problem
end

-- Runs a text. Returns what it gave, or nil and the error.
local function run(code, name)
  local chunk, problem = compile(code, name)
  if not chunk then return nil, problem end
  local fine, message = host.call(chunk.run)
  if not fine then return nil, message or name:sub(2) .. ": error() without a message" end
  return chunk
end

local function bundle_of(given)
  if given.n == 1 then return require("accelerate.jupyter.display").bundle(given[1]) end
  return { ["text/plain"] = results.text(given, {}) }
end

local function evaluate(expressions)
  local answers = {}
  for name, expression in next, expressions do
    local chunk, message = run("return " .. tostring(expression), "=(" .. name .. ")")
    if chunk and chunk.results then
      answers[name] = { status = "ok", data = bundle_of(chunk.results), metadata = {} }
    else
      answers[name] = failure(message or "it has no value")
      answers[name].status = "error"
    end
  end
  return answers
end

function handlers.execute(request)
  local chunk, message = run(request.code, ("=[%d]"):format(request.number))
  if not chunk then return send { kind = "done", error = failure(message) } end
  local given, data = chunk.results, nil
  if given and given.n > 0 and not (given.n == 1 and given[1] == nil) then
    results.keep(given)
    if not chunk.silent and not request.silent then data = bundle_of(given) end
  end
  send { kind = "done", data = data, expressions = evaluate(request.expressions or {}) }
end

function handlers.complete(request)
  local list, prefix = require("accelerate.prompt.complete").candidates(request.before)
  send { kind = "done", matches = json.list(list), prefix = prefix }
end

-- The name around the cursor: "nn.Linear" in `nn.Lin|ear(2, 3)`.
local function name_at(request)
  local before = request.before:gsub("%(%s*[^()]*$", "")
  local left, right = before:match("[%a_][%w_.:]*$"), ""
  if before == request.before then right = request.after:match("^[%w_]*") end
  return left and (left .. right):gsub("[.:]+$", "")
end

function handlers.inspect(request)
  local name = name_at(request)
  local fine, found = pcall(require("accelerate.prompt.help").text, name)
  if not name or not fine or found:find("^help: ") then return send { kind = "done" } end
  send { kind = "done", text = found }
end

--- Serves requests until the other process is gone.
---@param fd integer
function M.serve(fd)
  socket = fd
  globals.install()
  host.keep_errors()
  rawset(_G, "display", display)
  rawset(_G, "clear_output", clear_output)
  io.read = input.reader(ask_line) -- luacheck: ignore 122
  require("accelerate.utils.terminal").notebook = true
  io.stdout:setvbuf("line")
  while true do
    local request = pipe.receive(socket)
    if not request then return end
    local handle = handlers[request.kind] -- none: the answer to a message whose sender was interrupted
    local fine, message = pcall(handle or function() end, request)
    if not fine then send { kind = "done", error = failure(tostring(message)) } end
  end
end

return M
