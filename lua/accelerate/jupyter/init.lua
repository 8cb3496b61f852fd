--- A kernel for Jupyter: the process that speaks its protocol over ZeroMQ.
---
--- Cells run in another process, a fork that is made first (jupyter/cells.lua). So the sockets are
--- served while a cell runs: heartbeats, interrupts and the end reach the kernel at any time, and
--- output that C libraries print is the cell's too.
local core = require "accelerate.core"
local ffi = require "ffi"
local glob = require "accelerate.jupyter.glob"
local history = require "accelerate.prompt.history"
local json = require "accelerate.utils.json"
local parser = require "accelerate.prompt.parser"
local pipe = require "accelerate.jupyter.pipe"
local text = require "accelerate.jupyter.text"
local wire = require "accelerate.jupyter.wire"
local zmq = require "accelerate.jupyter.zmq"

ffi.cdef [[
int kill(int pid, int signal);
int setpgid(int pid, int group);
int sigemptyset(void *set);
int sigaddset(void *set, int signal);
int sigprocmask(int how, const void *set, void *former);
int signalfd(int fd, const void *set, int flags);
]]

local M = {}

local SIGINT = 2
local SIG_BLOCK, SIG_SETMASK, SFD_CLOEXEC, SFD_NONBLOCK = 0, 2, 524288, 2048
local STDOUT, STDERR = 1, 2
local UNDER_WAY_MS = 20
local INPUT_TRIES, INPUT_AGAIN_MS = 100, 20
local REPLY_BYTES = 4 * 2 ^ 20 -- of the cells in a reply with the history
local PATIENCE = 1 -- seconds for a cell to end with the kernel

local sockets, connection   -- by name; the wire's keys
local worker                -- { handle, socket, out, err }
local queue, current = {}, nil
local count = 0             -- of the executions that are in the history
local session = {}          -- what was executed: list of { number, code }
local ended                 -- the exit status, when it is to end

-- ---- messages

local function broadcast(kind, content, parent)
  zmq.send(sockets.iopub, wire.write(connection, { kind }, kind, content, parent))
end

local function reply(request, kind, content)
  zmq.send(request.socket, wire.write(connection, request.ids, kind, content, request))
end

local function status(state, parent) broadcast("status", { execution_state = state }, parent) end

-- ---- what cells print

local held = {} -- name of the stream -> the beginning of a character

local function publish_stream(name, bytes)
  bytes = (held[name] or "") .. bytes
  local keep = text.unfinished(bytes)
  held[name] = bytes:sub(#bytes - keep + 1)
  bytes = bytes:sub(1, #bytes - keep)
  if bytes ~= "" and not (current and current.content.silent) then
    broadcast("stream", { name = name, text = bytes }, current)
  end
end

local function take_output()
  for name, fd in pairs { stdout = worker.out, stderr = worker.err } do -- each by itself
    local piece = pipe.take(fd)
    while piece do
      publish_stream(name, piece)
      piece = pipe.take(fd)
    end
  end
end

-- ---- requests

local shell, control = {}, {} -- by the message's type

local function finish(request, kind, content)
  if kind then reply(request, kind, content) end
  status("idle", request)
  if current == request then current = nil end
end

local function kernel_info(request)
  finish(request, "kernel_info_reply", { status = "ok", protocol_version = wire.PROTOCOL,
    implementation = "accel", implementation_version = core.version,
    language_info = { name = "lua", version = "5.1", mimetype = "text/x-lua", file_extension = ".lua",
      pygments_lexer = "lua", codemirror_mode = "lua" },
    banner = ("accel %s (%s)"):format(core.version, jit.version), help_links = json.list() })
end
shell.kernel_info_request, control.kernel_info_request = kernel_info, kernel_info

function shell.comm_info_request(request)
  finish(request, "comm_info_reply", { status = "ok", comms = {} })
end

local function shutdown(request)
  local content = { status = "ok", restart = request.content.restart == true }
  reply(request, "shutdown_reply", content)
  broadcast("shutdown_reply", content, request)
  status("idle", request)
  ended = 0
end
shell.shutdown_request, control.shutdown_request = shutdown, shutdown

local asked -- the request whose cell waits for a line of input

-- Ends the wait of a cell for input.
local function give_input(content)
  asked, content.kind = nil, "input"
  pipe.send(worker.socket, content)
end

local function interrupt()
  ffi.C.kill(worker.handle:pid(), SIGINT)
  if asked then give_input { problem = "interrupted" } end
end

function control.interrupt_request(request)
  interrupt()
  finish(request, "interrupt_reply", { status = "ok" })
end

function shell.is_complete_request(request)
  local code = tostring(request.content.code or "")
  local plain = code:find("^%s*[:?]") or code:find("%?%s*$")
  local statements, incomplete = nil, false
  if not plain then statements, incomplete = parser.parse((code:gsub("^%s*=", "return ", 1))) end
  local state = (plain or statements) and "complete" or incomplete and "incomplete" or "invalid"
  finish(request, "is_complete_reply", { status = state, indent = incomplete and "  " or "" })
end

-- Entries of former sessions count as session 1, this one's as session 2.
local function past()
  local list = {}
  for i, code in ipairs(history.load()) do list[i] = { 1, i, code } end
  local from = #list - #session
  for i, entry in ipairs(session) do list[math.max(from, 0) + i] = { 2, entry[1], entry[2] } end
  return list
end

-- The last n entries, and of these the last ones whose texts fit into a reply.
local function limited(list, n)
  local out, from, bytes = {}, #list + 1, 0
  local first = math.max(1, #list - (tonumber(n) or #list) + 1)
  while from > first and bytes + #list[from - 1][3] <= REPLY_BYTES do
    from = from - 1
    bytes = bytes + #list[from][3]
  end
  for i = from, #list do out[#out + 1] = list[i] end
  return out
end

local function history_of(content)
  local out, kind = {}, content.hist_access_type
  local number = tonumber(content.session) or 0
  local start, stop = tonumber(content.start) or 0, tonumber(content.stop) or math.huge
  local fits = kind == "search" and glob.matcher(tostring(content.pattern or "*"))
  for _, entry in ipairs(past()) do
    if kind == "range" then
      local mine = (number == 0 or number == 2) and entry[1] == 2 or (number == -1 or number == 1)
        and entry[1] == 1
      if mine and entry[2] >= start and entry[2] < stop then out[#out + 1] = entry end
    elseif not fits or fits(entry[3]) then
      out[#out + 1] = entry
    end
  end
  return limited(out, kind ~= "range" and content.n)
end

function shell.history_request(request)
  local list = json.list()
  if #tostring(request.content.pattern or "") > glob.LONGEST then
    return finish(request, "history_reply", { status = "error", ename = "PatternTooLong", history = list,
      evalue = ("a pattern has at most %d bytes"):format(glob.LONGEST), traceback = list })
  end
  for i, entry in ipairs(history_of(request.content)) do
    list[i] = request.content.output and { entry[1], entry[2], json.list { entry[3] } } or entry
  end
  finish(request, "history_reply", { status = "ok", history = list })
end

-- ---- what comes

local function describe(kind, why)
  io.stderr:write(("accel-run kernel: a message on %s was dropped: %s\n"):format(kind, why))
end

-- The next message of a socket, nil when none is there; what cannot be read is dropped.
local function next_message(name)
  while true do
    local frames = zmq.receive(sockets[name])
    if not frames then return nil end
    local request, why = wire.read(connection, frames)
    if request then
      request.socket = sockets[name]
      return request
    end
    describe(name, why)
  end
end

-- Reads the requests that have come; they wait in the queue.
local function read_shell()
  local request = next_message("shell")
  while request do
    queue[#queue + 1] = request
    request = next_message("shell")
  end
end

-- Requests that are under way were made before the client knows of an error.
local function read_until_quiet()
  while zmq.poll({ sockets.shell }, UNDER_WAY_MS)[sockets.shell] do read_shell() end
end

-- ---- requests that the other process answers

function shell.execute_request(request)
  local content = request.content
  local code = tostring(content.code or "")
  request.stores = not content.silent and content.store_history ~= false and code:find("%S") ~= nil
  request.number = count + (request.stores and 1 or 0)
  if request.stores then
    count = request.number
    if history.keeps(code) then session[#session + 1] = { count, code } end
    history.add(code)
  end
  if not content.silent then
    broadcast("execute_input", { code = code, execution_count = request.number }, request)
  end
  local expressions, given = {}, content.user_expressions
  for name, expression in pairs(type(given) == "table" and given or {}) do -- each by itself
    expressions[tostring(name)] = tostring(expression)
  end
  pipe.send(worker.socket, { kind = "execute", code = code, number = request.number,
    silent = content.silent == true,
    expressions = expressions })
end

local function abort_queue()
  local left = {}
  for _, request in ipairs(queue) do
    if request.kind == "execute_request" then
      status("busy", request)
      finish(request, "execute_reply", { status = "aborted", execution_count = count })
    else
      left[#left + 1] = request
    end
  end
  queue = left
end

local answers = {} -- what the other process answers, by the request's type

local function failed(request, failure)
  local content = { ename = failure.ename, evalue = failure.evalue, traceback = json.list(failure.traceback) }
  if not request.content.silent then broadcast("error", content, request) end
  content.status, content.execution_count = "error", request.number
  local stops = request.content.stop_on_error ~= false
  if stops then read_until_quiet() end
  finish(request, "execute_reply", content)
  if stops then abort_queue() end
end

function answers.execute_request(request, answer)
  if answer.error then return failed(request, answer.error) end
  if answer.data then
    broadcast("execute_result", { execution_count = request.number, data = answer.data, metadata = {} },
      request)
  end
  for _, value in pairs(answer.expressions) do -- each by itself; what is empty has lost that it is a list
    if value.traceback then json.list(value.traceback) end
  end
  finish(request, "execute_reply", { status = "ok", execution_count = request.number, payload = json.list(),
    user_expressions = answer.expressions })
end

-- The text up to the cursor and after it.
local function at_cursor(content)
  local code = tostring(content.code or "")
  local at = text.bytes_before(code, tonumber(content.cursor_pos) or #code)
  return code:sub(1, at), code:sub(at + 1)
end

function shell.complete_request(request)
  request.before = at_cursor(request.content)
  pipe.send(worker.socket, { kind = "complete", before = request.before })
end

function answers.complete_request(request, answer)
  local stop = text.characters(request.before)
  local prefix = answer.prefix or ""
  finish(request, "complete_reply", { status = "ok", matches = json.list(answer.matches), metadata = {},
    cursor_start = stop - text.characters(prefix), cursor_end = stop })
end

function shell.inspect_request(request)
  local before, after = at_cursor(request.content)
  pipe.send(worker.socket, { kind = "inspect", before = before, after = after })
end

function answers.inspect_request(request, answer)
  local data = answer.text and { ["text/plain"] = answer.text } or {}
  finish(request, "inspect_reply", { status = "ok", found = answer.text ~= nil, data = data, metadata = {} })
end

-- ---- the loop

-- Handles a request. One whose content is wrong is dropped.
local function handle(handlers, request)
  status("busy", request)
  local fine, why = pcall(handlers[request.kind], request)
  if fine then return end
  describe(request.kind, why)
  finish(request)
end

local function read_control()
  local request = next_message("control")
  while request do
    if control[request.kind] then handle(control, request) end
    request = next_message("control")
  end
end

local function start_next()
  while not current and queue[1] and not ended do
    local request = table.remove(queue, 1)
    if shell[request.kind] then
      current = request
      handle(shell, request)
    end
  end
end

-- Sends the front end a request for a line; false where it has no connection for that, also after
-- a while: its connections come up one by one.
local function send_input_request()
  local frames = wire.write(connection, current.ids, "input_request", { prompt = "", password = false },
    current)
  for _ = 1, INPUT_TRIES do
    if zmq.send(sockets.stdin, frames) then return true end
    zmq.poll({}, INPUT_AGAIN_MS)
  end
  return false
end

local function ask_for_input()
  if not current or current.content.allow_stdin == false or not send_input_request() then
    return give_input { problem = "this front end takes no input" }
  end
  asked = current
end

local function read_stdin()
  local typed = next_message("stdin")
  while typed do
    if asked and typed.kind == "input_reply" then
      give_input { value = tostring(typed.content.value or "") }
    end
    typed = next_message("stdin")
  end
end

local function worker_is_gone()
  take_output()
  if current and answers[current.kind] then
    failed(current, { ename = "Died", evalue = "the process that runs cells has ended",
      traceback = { "the process that runs cells has ended" } })
  end
  ended = ended or 1
end

local function read_worker()
  local message = pipe.receive(worker.socket)
  if not message then return worker_is_gone() end
  take_output()
  if message.kind == "display" then
    broadcast("display_data", { data = message.data, metadata = {}, transient = {} }, current)
    pipe.send(worker.socket, { kind = "shown" })
  elseif message.kind == "clear" then
    broadcast("clear_output", { wait = message.wait }, current)
    pipe.send(worker.socket, { kind = "shown" })
  elseif message.kind == "input" then
    ask_for_input()
  elseif current then
    for name, bytes in pairs(held) do -- each by itself
      if bytes ~= "" then publish_stream(name, "\0") end
    end
    answers[current.kind](current, message)
  end
end

local function beat()
  local frames = zmq.receive(sockets.hb)
  while frames do
    zmq.send(sockets.hb, frames)
    frames = zmq.receive(sockets.hb)
  end
end

-- A file that can be read when the process that started the kernel has ended; nil: none is named.
local function client()
  local pid = tonumber(os.getenv "JPY_PARENT_PID")
  return pid and pid > 1 and pipe.process(pid) or nil
end

local function loop(signals)
  local ends = client()
  local list = { sockets.shell, sockets.control, sockets.stdin, sockets.hb, worker.socket, worker.out,
    worker.err, signals, ends }
  while not ended do
    local ready = zmq.poll(list, -1)
    if ready[sockets.hb] then beat() end
    if ready[signals] and pipe.take(signals) then interrupt() end
    if ready[ends] then ended = 0 end
    if ready[sockets.control] then read_control() end
    if ready[sockets.stdin] then read_stdin() end
    if ready[sockets.shell] then read_shell() end
    if ready[worker.out] or ready[worker.err] then take_output() end
    if ready[worker.socket] and not ended then read_worker() end
    start_next()
  end
end

-- ---- starting

-- SIGINT is read from a file, so that none is lost. Returns that file.
local function block_interrupts()
  local set = ffi.new("unsigned long[16]")
  ffi.C.sigemptyset(set)
  ffi.C.sigaddset(set, SIGINT)
  ffi.C.sigprocmask(SIG_BLOCK, set, nil)
  return ffi.C.signalfd(-1, set, SFD_CLOEXEC + SFD_NONBLOCK)
end

-- In the fork: cells may use GPUs, start workers of loaders and ranks.
local function become_worker(mine, out, err, ranks)
  local none = ffi.new("unsigned long[16]")
  ranks:join(0, true)
  ffi.C.sigprocmask(SIG_SETMASK, none, nil)
  ffi.C.setpgid(0, 0) -- what interrupts the kernel's group interrupts it once, through the kernel
  pipe.redirect(out, STDOUT)
  pipe.redirect(err, STDERR)
  os.exit = core._worker_exit -- luacheck: ignore 122
  require("accelerate.jupyter.cells").serve(mine)
end

local function start_worker()
  local front, mine = pipe.sockets()
  local out, out_end = pipe.pipe()
  local err, err_end = pipe.pipe()
  local ranks = core._ranks_create(1, 1800, true)
  worker = { socket = front, out = out, err = err, ranks = ranks }
  worker.handle = core._worker_start(function()
    for _, fd in ipairs { front, out, err } do pipe.close(fd) end
    become_worker(mine, out_end, err_end, ranks)
  end)
  for _, fd in ipairs { mine, out_end, err_end } do pipe.close(fd) end
end

local function address(info, port)
  local separator = info.transport == "ipc" and "-" or ":"
  return ("%s://%s%s%d"):format(info.transport or "tcp", info.ip or "127.0.0.1", separator, port)
end

local function bind(info)
  sockets = {}
  for name, kind in pairs { shell = zmq.ROUTER, control = zmq.ROUTER, stdin = zmq.ROUTER, iopub = zmq.PUB,
    hb = zmq.REP } do -- each by itself
    sockets[name] = zmq.socket(kind)
    if name == "stdin" then zmq.know_peers(sockets[name]) end
    zmq.bind(sockets[name], address(info, info[name .. "_port"]))
  end
end

--- Runs a kernel until it is to end, and returns the exit status.
---@param info table the connection file: ip, transport, key, shell_port and the other ports
---@return integer
function M.run(info)
  local signals = block_interrupts()
  start_worker()
  bind(info)
  connection = wire.new(info.key or "", ("%08x%08x"):format(os.time() % 2 ^ 32, worker.handle:pid()))
  status("starting")
  loop(signals)
  pipe.close(worker.socket) -- an idle one ends, and writes out what files hold
  worker.handle:close(PATIENCE)
  zmq.close(sockets)
  return ended
end

return M
