-- Starts the host in the background, to watch it, signal it and see what it leaves behind.
local ffi = require "ffi"
local C = require "spec.support.posix"
local host = require "spec.support.host"
local pauses = require "spec.support.pauses"

local WNOHANG = 1

local M = { SIGINT = 2, SIGKILL = 9, SIGTERM = 15, SIGCONT = 18, SIGSTOP = 19 }

function M.own_pid() return C.getpid() end

function M.now()
  local t = ffi.new("spec_time")
  C.clock_gettime(1, t)
  return tonumber(t.seconds) + tonumber(t.nanoseconds) * 1e-9
end

--- Sleeps in short pieces: of a machine that stands still meanwhile, one piece is lost, and not
--- what others were to do in this time.
function M.sleep(seconds)
  local pieces = math.max(1, math.ceil(seconds / 0.01))
  for _ = 1, pieces do C.usleep(seconds / pieces * 1e6) end
end

--- Sends a signal to a process, or (negative) to a group.  Never to everything: -1 is what a failed
--- fork returns.
function M.kill(pid, sig)
  assert(pid > 1 or pid < -1, "no process to signal")
  return C.kill(pid, sig)
end

local function read(path)
  local f = io.open(path, "rb")
  if not f then return "" end
  local text = f:read("*a")
  f:close()
  return text
end

local written = {} -- temporary files

--- Writes a script to a temporary file; M.clean() removes all of them.
---@param text string
---@param path string? the file
---@return string path
function M.script(text, path)
  path = path or os.tmpname()
  written[#written + 1] = path
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
  return path
end

--- Returns functions that run a text on n ranks, behind `head`: run(n, text, options) gives what
--- host.run does; works(n, text) raises unless all ranks come to the text's end, and returns what
--- they printed. `head` has the variable `rank`.
---@param head string
---@return fun(n: integer, text: string, options?: string[]): integer, string, string run
---@return fun(n: integer, text: string): string works
function M.on_ranks(head)
  local function run(n, text, options)
    local arguments = { "--num_processes", tostring(n), M.script(head .. text) }
    for i, word in ipairs(options or {}) do table.insert(arguments, i, word) end
    return host.run(arguments, { seconds = 120 })
  end
  return run, function(n, text)
    local status, out, err = run(n, text .. "\nio.write('done ' .. rank .. '\\n')\n")
    assert(status == 0, err)
    for r = 0, n - 1 do assert(out:find("done " .. r .. "\n", 1, true), out .. err) end
    return out
  end
end

function M.clean()
  for _, path in ipairs(written) do os.remove(path) end
  written = {}
end

--- Whether the process runs (one that waits to be reaped does not).
function M.alive(pid)
  local state = read(("/proc/%d/stat"):format(pid)):match("%) (%a) ")
  return state ~= nil and state ~= "Z" and state ~= "X"
end

--- What a shell command prints, without the last line break.
function M.output(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe:read("*a")
  pipe:close()
  return (text:gsub("%s+$", ""))
end

-- Seconds that a process has computed.
local function computed(pid)
  local user, system = read(("/proc/%d/stat"):format(pid)):match("%) %a " .. ("%S+ "):rep(10) ..
    "(%d+) (%d+)")
  return user and (user + system) / 100
end

--- Waits until a process has computed for `seconds` more, or has ended: what it had begun is going
--- on by then, however long a busy machine lets it wait.
---@param pid integer
---@param seconds number
function M.let_compute(pid, seconds)
  local from = computed(pid)
  M.wait_until(20, function()
    local now = computed(pid)
    return not now or now - from >= seconds
  end, { pid })
end

--- Starts a clock; what it returns gives the seconds since, as a free machine would have taken
--- them.
---@return fun(): number
function M.stopwatch()
  local lost, began, stretch = pauses.lost(), M.now(), host.stretch()
  return function()
    local seconds = M.now() - began - (pauses.lost() - lost)
    return seconds / math.max(stretch, host.stretch())
  end
end

--- Waits for `condition` to hold; returns whether it came to.
---@param seconds number of a free machine
---@param condition fun(): any
---@param own? integer[] processes that are waited for
---@param over? fun(): any whether it cannot come to hold any more
function M.wait_until(seconds, condition, own, over)
  local lost, began, stretch, polls = pauses.lost(), M.now(), 1, 0
  repeat
    if condition() then return true end
    if over and over() then break end
    M.sleep(0.002)
    polls = polls + 1
    local passed = M.now() - began - (pauses.lost() - lost)
    if polls % 50 == 0 or passed > seconds * stretch then stretch = math.max(stretch, host.stretch(own)) end
  until passed > seconds * stretch
  return condition()
end

local Run = {}
Run.__index = Run

-- In the child: stdout becomes a pipe that nobody reads.
local function close_stdout()
  local ends = ffi.new "int[2]"
  C.pipe(ends)
  C.close(ends[0])
  C.dup2(ends[1], 1)
  C.close(ends[1])
end

--- Starts the host with a list of arguments.  Its output goes to files.
---@param arguments string[]
---@param options? { env?: table<string, string>, closed_stdout?: boolean, path?: string } path:
---  another program
function M.start(arguments, options)
  local base = os.tmpname()
  local run = setmetatable({ out_path = base .. ".out", err_path = base .. ".err" }, Run)
  for _, path in ipairs { base, run.out_path, run.err_path } do written[#written + 1] = path end
  local argv = ffi.new("const char *[?]", #arguments + 2)
  local program = options and options.path or host.path
  argv[0] = program
  for i, word in ipairs(arguments) do argv[i] = word end
  io.stdout:flush()
  local pid = C.fork()
  if pid == 0 then -- nothing here may raise: this is a copy of the whole test run
    C.setpgid(0, 0)
    C.signal(M.SIGINT, nil) -- shells start background jobs with it ignored
    for name, value in pairs(options and options.env or {}) do C.setenv(name, value, 1) end
    C.dup2(C.open("/dev/null", 0), 0)
    C.dup2(C.open(run.out_path, 577, ffi.cast("int", 384)), 1) -- O_WRONLY | O_CREAT | O_TRUNC, 0600
    if options and options.closed_stdout then close_stdout() end
    C.dup2(C.open(run.err_path, 577, ffi.cast("int", 384)), 2)
    C.execv(program, ffi.cast("char *const *", argv))
    C._exit(127)
  end
  assert(pid > 0, "fork failed")
  run.pid = pid
  return run
end

function Run:stdout() return read(self.out_path) end
function Run:stderr() return read(self.err_path) end
function Run:signal(sig) return M.kill(self.pid, sig) end

--- Waits until the run's output has `pattern` in it; a run that has ended without it raises at
--- once.
function Run:expect(pattern, seconds)
  if not M.wait_until(seconds,
    function() return self:stdout():find(pattern) or self:stderr():find(pattern) end, self.rank_pids,
    function() return not M.alive(self.pid) end) then
    self:destroy()
    error(("%q did not appear; stdout: %s\nstderr: %s"):format(pattern, self:stdout(), self:stderr()), 2)
  end
end

--- Process ids of the ranks, by rank, as M.PRELUDE prints them.
function Run:ranks(n)
  local pids = {}
  if not M.wait_until(20, function()
    for rank, pid in self:stdout():gmatch("pid (%d+) (%d+)\n") do pids[tonumber(rank)] = tonumber(pid) end
    for rank = 0, n - 1 do
      if not pids[rank] then return false end
    end
    return true
  end) then
    self:destroy()
    error("the ranks did not all start; stderr: " .. self:stderr(), 2)
  end
  self.rank_pids = pids
  return pids
end

function Run:destroy()
  M.kill(self.pid, M.SIGKILL)
  C.waitpid(self.pid, ffi.new("int[1]"), 0)
end

-- As the shell gives it: 128 + signal when it was killed.
local function exit_status(status)
  local sig = bit.band(status, 127)
  return sig ~= 0 and 128 + sig or bit.band(bit.rshift(status, 8), 255)
end

--- Waits for the end; raises (and ends the run) when it takes longer than `seconds`.
---@return integer status 128 + signal when it was killed
---@return string stdout
---@return string stderr
function Run:wait(seconds)
  local status = ffi.new("int[1]")
  if not M.wait_until(seconds, function() return C.waitpid(self.pid, status, WNOHANG) == self.pid end,
    self.rank_pids) then
    self:destroy()
    error(("still running after %g s\nstdout: %s\nstderr: %s"):format(seconds, self:stdout(),
      self:stderr()), 2)
  end
  return exit_status(status[0]), self:stdout(), self:stderr()
end

--- The status when the run has ended (128 + signal when it was killed), else nil.
---@return integer?
function Run:ended()
  local status = ffi.new("int[1]")
  if C.waitpid(self.pid, status, WNOHANG) ~= self.pid then return nil end
  return exit_status(status[0])
end

--- Removes the files of a run that has ended.
function Run:forget()
  os.remove(self.out_path)
  os.remove(self.err_path)
  os.remove((self.out_path:gsub("%.out$", "")))
end

--- Whether every rank found by Run:ranks is gone within `seconds`.
function Run:nothing_left(seconds)
  return M.wait_until(seconds, function()
    for _, pid in pairs(self.rank_pids) do
      if M.alive(pid) then return false end
    end
    return true
  end, self.rank_pids)
end

--- Goes in front of a script: prints the process id of each rank.
M.PRELUDE = [[
local core = require "accelerate.core"
local dist = core.dist
local ffi = require "ffi"
ffi.cdef "int getpid(void); int kill(int pid, int sig);"
io.stdout:setvbuf("no")
io.write(("pid %d %d\n"):format(dist.rank(), ffi.C.getpid()))
]]

return M
