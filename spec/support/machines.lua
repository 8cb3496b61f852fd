-- Several machines on this host: one launch for each, side by side, that meet at a free port of
-- 127.0.0.1.
local ffi = require "ffi"
local processes = require "spec.support.processes"

ffi.cdef [[
  typedef struct { uint16_t family, port; uint32_t address; char rest[8]; } spec_address;
  int socket(int domain, int type, int protocol);
  int bind(int fd, const void *address, unsigned size);
  int listen(int fd, int backlog);
  int connect(int fd, const void *address, unsigned size);
  long send(int fd, const void *text, size_t size, int flags);
  int getsockname(int fd, void *address, unsigned *size);
]]
local C = ffi.C

local M = {}

-- A port with its bytes in the network's order, or back.
local function swapped(port)
  return ffi.abi "le" and bit.bor(bit.lshift(bit.band(port, 255), 8), bit.rshift(port, 8)) or port
end

-- 127.0.0.1 and a port; 0: the kernel chooses.
local function internet(port)
  local address = ffi.new "spec_address"
  address.family, address.address = 2, ffi.abi "le" and 0x0100007f or 0x7f000001
  address.port = swapped(port)
  return address
end

M.internet = internet

--- Listens at a port that the kernel chose; returns it, and a function that ends that.
function M.listen()
  local fd, address, size = C.socket(2, 1, 0), internet(0), ffi.new("unsigned[1]", 16)
  assert(fd >= 0 and C.bind(fd, address, 16) == 0 and C.listen(fd, 4) == 0
    and C.getsockname(fd, address, size) == 0, "no port")
  local port = swapped(address.port)
  return port, function() C.close(fd) end
end

--- Connects to `port` as soon as a process listens there, sends `text` and closes. Returns whether
--- it could.
function M.send(port, text)
  local address = internet(port)
  return processes.wait_until(5, function()
    local fd = C.socket(2, 1, 0)
    local sent = C.connect(fd, address, 16) == 0 and C.send(fd, text, #text, 0) == #text
    C.close(fd)
    return sent
  end)
end

--- Whether anybody is connected to `port` of this host.
function M.connected(port)
  local held = (": %08X:%04X %08X:%%x+ 01 "):format(0x0100007f, port, 0x0100007f)
  for line in io.lines "/proc/net/tcp" do
    if line:find(held) then return true end
  end
  return false
end

-- Below the ports that the kernel gives to connections.
local FIRST, PORTS = 20600, 8000
local CLOSE_ON_EXEC = 524288
local tried = processes.own_pid() * 37

-- Whether no other spec has this port: the one that has it holds a socket named after it until it
-- ends.
local function reserve(port)
  local name = "\1\0\0accel-spec-port-" .. port -- AF_UNIX, and a name that is no file's
  local fd = C.socket(1, 1 + CLOSE_ON_EXEC, 0)
  if fd >= 0 and C.bind(fd, name, #name) == 0 then return true end
  C.close(fd)
  return false
end

--- A port of 127.0.0.1 that nobody listens at, and that no other spec gets while this one runs.
---@return integer
function M.free_port()
  for _ = 1, PORTS do
    tried = tried + 1
    local port = FIRST + tried % PORTS
    local fd = C.socket(2, 1 + CLOSE_ON_EXEC, 0)
    local free = C.bind(fd, internet(port), 16) == 0
    C.close(fd)
    if free and reserve(port) then return port end
  end
  error "no free port"
end

--- Starts machine `rank` of `opts.machines` (2), with `opts.ranks` (4) ranks on all of them.
--- opts.addresses: machine 0's address as machine 0 and as the others know it; opts.started_by:
--- variables of a launcher that started the machines, instead of --machine_rank.
---@return table run see processes.start
function M.start(rank, port, path, opts)
  opts = opts or {}
  local address = opts.addresses and opts.addresses[rank == 0 and 1 or 2] or "127.0.0.1"
  local words = { "--num_machines", tostring(opts.machines or 2), "--main_process_ip", address,
    "--main_process_port", tostring(port), "--num_processes", tostring(opts.ranks or 4),
    "--num_cpu_threads_per_process", "1",
    "--timeout", tostring(opts.timeout or 20) }
  local env = opts.env
  if opts.started_by then
    env = opts.started_by(rank)
  else
    words[#words + 1], words[#words + 2] = "--machine_rank", tostring(rank)
  end
  for _, word in ipairs(opts.launch or {}) do words[#words + 1] = word end
  words[#words + 1] = path
  for _, word in ipairs(opts.arguments or {}) do words[#words + 1] = word end
  return processes.start(words, { env = env })
end

--- Runs `script` on all machines, the last one first, and waits for their ends.
---@return { status: integer, out: string, err: string }[] ended by number of the machine, from 0
function M.run(script, opts)
  opts = opts or {}
  local port, path, runs, ended = M.free_port(), processes.script(script), {}, {}
  for rank = (opts.machines or 2) - 1, 0, -1 do runs[rank] = M.start(rank, port, path, opts) end
  for rank = 0, (opts.machines or 2) - 1 do
    local status, out, err = runs[rank]:wait(opts.seconds or 20)
    ended[rank] = { status = status, out = out, err = err }
  end
  return ended
end

--- The same; raises unless all end well.  Returns what they printed, together.
function M.ok(script, opts)
  local all = {}
  local ended = M.run(script, opts)
  for rank = 0, #ended do
    local e = ended[rank]
    if e.status ~= 0 then error(("machine %d: status %d\n%s\n%s"):format(rank, e.status, e.out, e.err), 2) end
    all[#all + 1] = e.out
  end
  return table.concat(all)
end

return M
