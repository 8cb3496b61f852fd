--- The debugger: a prompt within a function that is under way, at `accelerate.breakpoint()`, or
--- after an error of a session, at `:debug`.
---
--- Steps are Lua's line hook. Compiled code calls no hooks, so the compiler is off, and what it has
--- compiled dropped, until the script goes on. The library's own lines are passed over.
local frames = require "accelerate.prompt.frames"
local host = require "accelerate.host"
local source = require "accelerate.messages.source"
local terminal = require "accelerate.utils.terminal"

local M = {}

local pack = require("accelerate.utils.scope").pack

local AROUND = 5 -- lines that `list` shows before and after the one where the script is

local HELP = [[
  w  where          the functions under way, innermost first
  u  up [n]         go to the caller; d, down [n]: back; f, frame n: to one of `where`
  l  list [line]    the lines around; again: those that follow
  a  locals         the locals of the function, and its upvalues
  p  print value    a value; or just type it: x.shape, loss:item(), x = 3 (locals are set too)
  n  next           go on to the next line of this function
  s  step           go on to the next line, also of a function that is called
  r  finish         go on until this function has returned
  c  continue       go on
  q  quit           end the run; at a prompt: the chunk
  h  help

!text is Lua also where it begins as a command does. An empty line is the last command again.]]

-- What the debugger looks at: frames, the number of the selected one, whether they are `live`, the
-- editor and `next_line` of `list`.
local now

-- Where a step ends: in which thread, how high in the stack at most; `began`: the functions where
-- it began, by height. nil: nothing steps.
local target
local last_line -- the last command, which an empty line repeats
local compiles -- whether the compiler is to be turned on again

-- ---- writing

local function write(text) now.editor.write(text) end

local function painted(text, code)
  if not now.coloured then return text end
  return ("\27[%sm%s\27[0m"):format(code, text)
end

local function frame() return now.frames[now.at] end

local function line_text(path, number, mark)
  local text = source.line(path, number)
  return text and ("%s%5d  %s\n"):format(mark and "->" or "  ", number, text)
end

local function write_place()
  local f = frame()
  local head = ("%s%s: in %s"):format(now.rank and ("rank %d: "):format(now.rank) or "", f.place, f.label)
  write(painted(head, "1") .. "\n" .. (line_text(f.path, f.line, true) or ""))
end

local function one_line(value)
  local text = require("accelerate.utils.show").pformat(value, { width = 200, depth = 2, count = 6 })
  local first = text:match("^[^\n]*")
  return #first < #text and first .. " ..." or text
end

local function write_variables(title, list)
  if #list == 0 then return end
  write(title .. "\n")
  for i, one in ipairs(list) do
    local hidden = false
    for k = i + 1, #list do hidden = hidden or list[k].name == one.name end
    if not hidden then write(("  %s = %s\n"):format(one.name, one_line(one.value))) end
  end
end

-- ---- evaluating

local function compile(text)
  local fn = loadstring("return " .. text, "=(debug)")
  if fn then return fn end
  return loadstring(text, "=(debug)")
end

local function evaluate(text)
  local fn, problem = compile(text)
  if not fn then
    return write(("*** %s\n"):format(require("accelerate.messages.hints").add(problem, true)))
  end
  local f = frame()
  setfenv(fn, f:environment())
  local extra = f:arguments()
  local fine, shown = host.evaluate(function()
    local given = pack(fn(unpack(extra, 1, extra.n)))
    if given.n == 0 then return "" end
    return require("accelerate.prompt.results").text(given, { colours = now.coloured }) .. "\n"
  end)
  if fine then return write(shown) end
  shown = type(shown) == "string" and shown or require("accelerate.messages.explain").value(shown)
  write(("*** %s\n"):format(require("accelerate.messages.hints").add(shown)))
end

-- ---- commands

-- name -> function(argument): returns how the script goes on, or nil to stay.
local commands = {}

local function move(by)
  local to = now.at + by
  if to < 1 or to > #now.frames then
    return write(by > 0 and "*** this is the outermost function\n" or "*** this is the innermost function\n")
  end
  now.at, now.next_line = to, nil
  write_place()
end

local function number_of(text, default)
  if text == "" then return default end
  local n = tonumber(text)
  if n and n % 1 == 0 and n >= 1 then return n end
  write(("*** expected a whole number, got '%s'\n"):format(text))
end

function commands.where()
  for i, f in ipairs(now.frames) do
    write(("%s%3d  %s: in %s\n"):format(i == now.at and ">" or " ", i, f.place, f.label))
  end
end

function commands.up(text)
  local n = number_of(text, 1)
  if n then move(n) end
end

function commands.down(text)
  local n = number_of(text, 1)
  if n then move(-n) end
end

function commands.frame(text)
  local n = number_of(text, now.at)
  if not n then return end
  if n > #now.frames then return write(("*** there are %d functions: see where\n"):format(#now.frames)) end
  move(n - now.at)
end

function commands.list(text)
  local f = frame()
  local middle = number_of(text, now.next_line and now.next_line + AROUND or f.line)
  if not middle then return end
  local first = math.max(1, middle - AROUND)
  local last
  for number = first, first + 2 * AROUND do
    local shown = line_text(f.path, number, number == f.line)
    if not shown then break end
    write(shown)
    last = number
  end
  if not last then
    local text_of = now.next_line and "the file ends there" or ("there are no lines of %s"):format(f.path)
    return write(("*** %s\n"):format(text_of))
  end
  now.next_line = last + 1
end

function commands.locals()
  local f = frame()
  local extra, list = f:arguments(), f:locals()
  write_variables("locals", list)
  for i = 1, extra.n do write(("  ... [%d] = %s\n"):format(i, one_line(extra[i]))) end
  local upvalues = f:upvalues()
  write_variables("upvalues", upvalues)
  if #list + #upvalues + extra.n == 0 then write("there are none\n") end
end

function commands.print(text)
  if text == "" then return write("*** print needs a value: print x\n") end
  evaluate(text)
end

function commands.help() write(HELP .. "\n") end

for _, name in ipairs { "next", "step", "finish", "continue" } do
  commands[name] = function()
    if now.live then return name end
    write(("*** the error has ended this: there is no %s; quit leaves the debugger\n"):format(name))
  end
end

function commands.quit() return "quit" end

local ALIASES = { w = "where", bt = "where", u = "up", d = "down", f = "frame", l = "list", a = "locals",
  p = "print", h = "help", n = "next", s = "step", r = "finish", c = "continue", cont = "continue",
  q = "quit",
  exit = "quit" }
local TAKES_TEXT = { up = "^%d*$", down = "^%d*$", frame = "^%d*$", list = "^%d*$", print = "^[^=]" }

-- The command that a line is, and its argument; nil: the line is Lua.
local function command_of(line)
  local word, rest = line:match("^%s*(%a+)%s*(.-)%s*$")
  local name = word and (ALIASES[word] or word)
  if not commands[name] then return nil end
  local pattern = TAKES_TEXT[name]
  if rest == "" or rest == "()" and not pattern or pattern and rest:find(pattern) then
    return commands[name], rest == "()" and not pattern and "" or rest
  end
end

-- ---- reading

-- Adds lines until the text is complete; nil when it was dropped.
local function read_rest(text)
  local parser = require "accelerate.prompt.parser"
  while true do
    local statements, incomplete = parser.parse(text)
    if statements or not incomplete then return text end
    local line = now.editor.read("   >> ")
    if not line then return nil end
    text = text .. "\n" .. line
  end
end

-- At the end of input: a person has left; a file that commands came from has no more of them.
local function at_end()
  if now.editor.terminal then return "quit" end
  require("accelerate.utils.options").fail(
    "breakpoint: stdin has ended, which is no terminal: commands come from it. " ..
    "ACCELERATE_BREAKPOINT=0 passes over breakpoints")
end

-- Reads and does one line. Returns how the script goes on, or nil.
local function interact()
  local line = now.editor.read(now.prompt)
  if line == false then return nil end
  if line == nil then return at_end() end
  if not line:find("%S") then line = last_line or "" end
  if not line:find("%S") then return nil end
  if now.editor.edits then now.editor.add(line) end
  local command, argument = command_of(line)
  last_line = command and line or nil
  if command then return command(argument) end
  local text = read_rest((line:gsub("^%s*!%s*", "", 1):gsub("^%s*=", "", 1)))
  if text then evaluate(text) end
end

-- In a notebook's cell the front end gives a line.
local function notebook_editor()
  local function put(text) io.stdout:write(text) end
  return { edits = false, terminal = true, write = put, read = function(prompt)
    put(prompt)
    return io.read("*l")
  end }
end

local function complete(before)
  return require("accelerate.prompt.complete").complete(before)
end

-- Reads lines until one says how to go on.
local function converse()
  local editor, names = now.editor, require "accelerate.prompt.names"
  local former = editor.edits and editor.on_complete(complete)
  names.frame = frame
  local fine, action = pcall(function()
    local how
    repeat how = interact() until how
    return how
  end)
  names.frame = nil
  if editor.edits then editor.on_complete(former) end
  if not fine then error(action, 0) end
  return action
end

-- Makes `now` for a list of frames.
local function look_at(list, live)
  local editor = terminal.notebook and notebook_editor() or host.editor()
  local core = package.loaded["accelerate.core"]
  local dist = core and core.dist
  local rank = dist and dist.world_size() > 1 and dist.rank() or nil
  local prompt = rank and ("(debug, rank %d) "):format(rank) or "(debug) "
  now = { frames = list, at = 1, live = live, editor = editor, rank = rank,
    prompt = (editor.terminal or terminal.notebook) and prompt or "",
    coloured = editor.edits and terminal.has_colours(terminal.STDOUT) }
end

-- ---- going on

local function forget_target()
  target = nil
  debug.sethook()
end

local own = {} -- source -> whether it is the script's

-- Whether a line is the rest of one that the step began in: a call in it has returned.
local function goes_on(info, height)
  local f = target.began[height]
  return f and f.line == info.currentline and f.fn == info.func
end

-- Whether a line is the end of the function that a chunk was made into.
local function is_added(info)
  local path = info.source:sub(2)
  return source.is_chunk(path) and not (source.line(path, info.currentline) or ""):find("%S")
end

local function on_line()
  local info = debug.getinfo(2, "Slf")
  if own[info.source] == nil then own[info.source] = not frames.in_library(info.source) end
  if not own[info.source] or is_added(info) then return end
  local same = coroutine.running() == target.thread
  if same then
    if target.height and debug.getinfo(2 + target.height, "l") then return end -- a function that was called
    if goes_on(info, frames.height() - 1) then return end
  elseif target.height and coroutine.status(target.thread) ~= "dead" then
    return
  end
  M.stop(2)
end

-- Goes on to where a step ends.
local function step(kind)
  local f, began = frame(), {}
  for _, one in ipairs(now.frames) do began[one.height] = one end
  target = { thread = f.thread, began = began }
  if kind == "next" then target.height = f.height
  elseif kind == "finish" then target.height = f.height - 1 end
  if jit.status() then
    compiles = true
    jit.off()
    jit.flush()
  end
  debug.sethook(on_line, "l")
end

--- Ends stepping: what runs from here on is not looked at.
function M.leave()
  if not target and not compiles then return end
  forget_target()
  host.let_go(false)
  if compiles then jit.on() end
  compiles = nil
end

-- Ends the run; at a prompt, and in a notebook, what was typed.
local function quit(place)
  M.leave()
  if host.is_interactive() then error(frames.LEFT, 0) end
  io.stderr:write(("accel-run: the run was ended in the debugger, at %s\n"):format(place))
  os.exit(1)
end

--- Stops the script and reads commands.
---@param level integer the function to stop in, as the one that calls this one counts
function M.stop(level)
  local list = frames.live(level + 1)
  if now or #list == 0 then return end
  debug.sethook()
  host.hold()
  look_at(list, true)
  write_place()
  local fine, action = pcall(converse)
  local stepping = fine and action ~= "continue" and action ~= "quit"
  local place = frame().place
  if stepping then step(action) end
  now = nil
  host.let_go(stepping)
  if not stepping then M.leave() end
  if not fine then error(action, 0) end
  if action == "quit" then quit(place) end
end

-- ---- what scripts and the prompt call

local OPTIONS = { rank = { "integer", min = 0, optional = true } }

local function refuse_worker()
  local workers = package.loaded["accelerate.data.workers"]
  local info = workers and workers.get_worker_info()
  if not info then return end
  require("accelerate.utils.options").fail(
    "breakpoint: this is worker %d of a loader, which has no terminal: " ..
    "make the loader with num_workers = 0", info.id)
end

--- Stops the script where it is called, for a person at the terminal to look at it and to go on
--- from there: see the guide on the prompt. Of several ranks each one stops that gets here, one at
--- a time; the others wait in their next collective, whose time limit does not run meanwhile. Where
--- stdin is no terminal, commands are read from it, and at its end this raises.
--- ACCELERATE_BREAKPOINT=0 in the environment makes it do nothing. Raises in a worker of a loader.
---@param opts? { rank?: integer } rank: only this one stops; default all
function M.breakpoint(opts)
  if os.getenv("ACCELERATE_BREAKPOINT") == "0" then return end
  local o = require("accelerate.utils.options").check("breakpoint", opts, OPTIONS)
  if o.rank and o.rank ~= require("accelerate.core").dist.rank() then return end
  refuse_worker()
  M.stop(2)
end

-- The rank whose error is looked at: the one requested, else the first that has one.
local function rank_of_error(rank)
  local dist = require("accelerate.core").dist
  if rank or dist.world_size() == 1 then return rank or 0, dist.rank() end
  local has = dist.all_gather_bytes(frames.last and "yes" or "")
  for i, text in ipairs(has) do
    if text == "yes" then return i - 1, dist.rank() end
  end
  return dist.rank(), dist.rank()
end

--- Looks at the last error of the session, in the functions where it was raised.
---@param rank? integer of several ranks, whose; default the first that has one
function M.look_back(rank)
  local chosen, own_rank = rank_of_error(rank)
  if chosen ~= own_rank then return end
  local last = frames.last
  if not last then
    io.stdout:write(":debug: there is no error whose functions are kept\n")
    return
  end
  host.hold()
  look_at(last.frames, false)
  write(last.message:match("^[^\n]*") .. "\n")
  write_place()
  local fine, problem = pcall(converse)
  now = nil
  host.let_go(false)
  frames.last = last
  if not fine then error(problem, 0) end
end

return M
