-- Runs the host under test in a process of its own: for what only shows from outside (exit status,
-- stderr, ranks, crashes).
local disk = require "spec.support.disk"
local M = {}

--- The binary that this very process runs: what is tested is what is started.
M.path = (function()
  local pipe = io.popen("readlink /proc/$PPID/exe")
  local path = pipe:read("*l")
  pipe:close()
  return path or os.getenv("ACCEL_RUN") -- a bare root may have no /proc mounted
end)()

local function quote(word)
  return "'" .. tostring(word):gsub("'", [['\'']]) .. "'"
end

local processors = (function()
  local pipe = io.popen("nproc")
  local n = pipe:read("*n")
  pipe:close()
  return n or 1
end)()

local function first_line(path)
  local f = io.open(path)
  local line = f and f:read("*l")
  if f then f:close() end
  return line or ""
end

--- How many times longer than on a free machine things may take now: 1 while there is a processor
--- for everything that runs besides this process and the processes `own`; else four times the
--- number of what runs by processor.
---@param own? integer[] what is waited for: its own use of processors is no excuse
---@return number
function M.stretch(own)
  local others = tonumber(first_line("/proc/loadavg"):match("(%d+)/%d+") or 1) - 1
  for _, pid in pairs(own or {}) do
    if first_line(("/proc/%d/stat"):format(pid)):match("%) (%a) ") == "R" then others = others - 1 end
  end
  return others < processors and 1 or 4 * (others + 1) / processors
end

--- Returns a time limit of a run that a busy machine keeps, up to five times `seconds`, as the
--- launch options take it.
---@param seconds number of a free machine
---@return string
function M.limit(seconds) return ("%g"):format(seconds * math.min(M.stretch(), 5)) end

--- Runs the host with a list of arguments and waits for its end.
--- Raises when it takes longer than twice `seconds` of a free machine.
---@param arguments string[]
---@param options? { stdin?: string, env?: table<string, string>, unset?: string[], seconds?:
---  number, folder?: string } unset: names of environment variables to leave out
---@return integer status as the shell gives it: 128 + signal when it was killed
---@return string stdout
---@return string stderr
function M.run(arguments, options)
  options = options or {}
  local seconds = (options.seconds or 60) * math.max(2, M.stretch()) -- a machine may get busy meanwhile
  local base = os.tmpname()
  local words = {}
  for name, value in pairs(options.env or {}) do words[#words + 1] = name .. "=" .. quote(value) end
  table.sort(words)
  for _, name in ipairs(options.unset or {}) do table.insert(words, 1, "-u " .. name) end
  table.insert(words, 1, options.folder and ("cd %s && env"):format(quote(options.folder)) or "env")
  words[#words + 1] = ("timeout -k 5 %g %s"):format(seconds, quote(options.path or M.path))
  for _, word in ipairs(arguments) do words[#words + 1] = quote(word) end
  if options.stdin then
    local f = assert(io.open(base .. ".in", "wb"))
    f:write(options.stdin)
    f:close()
  end
  local pipe = io.popen(("{ %s; } <%s >%s 2>%s; echo $?"):format(table.concat(words, " "),
    options.stdin and quote(base .. ".in") or "/dev/null", quote(base .. ".out"), quote(base .. ".err")))
  local status = tonumber(pipe:read("*a"))
  pipe:close()
  local out, err = disk.read(base .. ".out"), disk.read(base .. ".err")
  for _, suffix in ipairs { "", ".in", ".out", ".err" } do os.remove(base .. suffix) end
  if status == 124 then
    error(("accel-run %s: still running after %g s\nstdout: %s\nstderr: %s"):format(table.concat(arguments,
      " "), seconds, out, err), 2)
  end
  return status, out, err
end

--- Returns a path in TMPDIR at which there is nothing.
---@param suffix string? what the path ends in
---@return string
function M.free_path(suffix)
  local path = os.tmpname() -- makes a file
  os.remove(path)
  return path .. (suffix or "")
end

--- Returns a short path without spaces at which there is nothing: for other programs whose settings
--- take no other.
---@return string
function M.plain_path()
  local path = M.free_path()
  return #path < 60 and not path:find "%s" and path or "/tmp/" .. path:match "[^/]*$"
end

--- Returns a path as Lua's messages show it: the end of a long one.
---@param path string
---@return string
function M.shown_path(path) return debug.getinfo(loadstring("", "@" .. path), "S").short_src end

--- Calls `body(folder)` with a fresh folder, which is removed afterwards, also when body raises.
function M.in_folder(body)
  local folder = M.free_path()
  os.execute("mkdir -p " .. quote(folder))
  local ok, message = xpcall(body, function(m) return type(m) == "string" and debug.traceback(m, 2) or m end,
    folder)
  os.execute("rm -rf " .. quote(folder))
  if not ok then error(message, 0) end
end

--- Runs the host with the kernels of a processor level. Returns what it prints, or nil where this
--- processor has no such level.
---@param level "v2"|"v3"|"v4"
---@param arguments string[]
---@return string?
function M.at_level(level, arguments)
  local status, out, err = M.run(arguments, { env = { ACCEL_CPU_LEVEL = level } })
  if status ~= 0 and err:find("this processor runs", 1, true) then return nil end
  if status ~= 0 then error(("level %s: status %d\n%s"):format(level, status, err), 2) end
  return out
end

return M
