--- `accel-run env`: describes this machine, for reports and for finding out why a GPU is not used.
local core = require "accelerate.core"
local env = require "accelerate.utils.environment"
local ffi = require "ffi"
local fs = require "accelerate.utils.fs"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local sizes = require "accelerate.utils.sizes"

ffi.cdef [[
char *realpath(const char *path, char *resolved);
]]

local M = {}

local function first_line(path)
  local f = io.open(path)
  if not f then return nil end
  local line = f:read("*l")
  f:close()
  return line
end

local function field_of(path, pattern)
  local f = io.open(path)
  if not f then return nil end
  local found
  for line in f:lines() do
    found = found or line:match(pattern)
  end
  f:close()
  return found
end

-- ---- this machine

local function executable()
  local path = ffi.new("char[4097]")
  return ffi.C.realpath("/proc/self/exe", path) ~= nil and ffi.string(path) or "unknown"
end

local function platform()
  local parts = {}
  for _, name in ipairs { "ostype", "osrelease", "arch" } do
    parts[#parts + 1] = first_line("/proc/sys/kernel/" .. name)
  end
  parts[#parts + 1] = parts[3] == nil and jit.arch or nil
  local libc = field_of("/etc/os-release", '^PRETTY_NAME="?([^"]*)')
  return table.concat(parts, "-") .. (libc and (" (%s)"):format(libc) or "")
end

local function memory()
  local lines, total = {}, tonumber(field_of("/proc/meminfo", "^MemTotal:%s*(%d+)"))
  local available = tonumber(field_of("/proc/meminfo", "^MemAvailable:%s*(%d+)"))
  lines[#lines + 1] = { "System memory", total and ("%s, %s available"):format(sizes.text(total * 1024),
    sizes.text((available or 0) * 1024)) or "unknown" }
  local limit = first_line("/sys/fs/cgroup/memory.max")
    or first_line("/sys/fs/cgroup/memory/memory.limit_in_bytes")
  local bytes = limit and tonumber(limit)
  if bytes and bytes < 2 ^ 60 then
    lines[#lines + 1] = { "Control group's memory limit", sizes.text(bytes) }
  end
  lines[#lines + 1] = { "Memory for tensors of a process", sizes.text(core.memory_stats().limit_bytes) }
  return lines
end

local function cpu()
  local ok, info = pcall(core.backend_info)
  local model = field_of("/proc/cpuinfo", "^model name%s*:%s*(.*)") or jit.arch
  local lines = { { "CPU", ("%s, %d cores for us"):format(model, core._cores()) } }
  if not ok then
    lines[#lines + 1] = { "CPU backend", "cannot be used: " .. tostring(info) }
    return lines
  end
  lines[#lines + 1] = { "CPU backend", ("%s, %s"):format(info.level, info.description) }
  lines[#lines + 1] = { "Threads", tostring(core.get_num_threads()) }
  return lines
end

-- ---- CUDA

--- Returns the CUDA plugin's report on this machine, and its file; nil when there is no plugin, or
--- it is too old to report.
local function plugin_report()
  local path, report = core._cuda_environment()
  if not report then return nil end
  local found = { device = {}, library = {}, path = path }
  for line in report:gmatch("[^\n]+") do
    local fields = lists.fields(line)
    if found[fields[1]] then table.insert(found[fields[1]], fields) else found[fields[1]] = fields[2] end
  end
  return found
end

local function indented(text) return (text:gsub("\n%s*", "\n    ")) end

local function cuda()
  local count, reason = core.device_count("cuda")
  local report, lines = plugin_report(), {}
  local function add(name, value) lines[#lines + 1] = { name, value } end
  add("CUDA", count > 0 and ("%d device%s"):format(count, count == 1 and "" or "s") or "not used: " ..
    indented(reason))
  local visible = os.getenv("CUDA_VISIBLE_DEVICES")
  if visible then add("CUDA_VISIBLE_DEVICES", ('"%s"'):format(visible)) end
  if os.getenv "ACCEL_SHARE_GPU" == "1" then
    add("ACCEL_SHARE_GPU", "1: ranks may share a GPU, which is for tests: times mean nothing")
  end
  if not report then return lines end
  add("CUDA backend", report.path)
  add("CUDA runtime, of this build", report.runtime .. ", machine code for " .. report.build:gsub(":", ", "))
  add("CUDA of the driver", report.driver == "0.0" and "no driver" or report.driver .. (function()
    local version = field_of("/proc/driver/nvidia/version", "Kernel Module%s+[^%d]*([%d%.]+)")
    return version and (" (driver %s)"):format(version) or ""
  end)())
  for _, d in ipairs(report.device) do
    add("cuda:" .. d[2], ("%s, %s, %s, %s multiprocessors"):format(d[3], d[4], sizes.text(tonumber(d[5])),
      d[6]) .. (d[7] ~= "" and "; " .. d[7] or ""))
  end
  for index = 0, count - 1 do
    local place, why = require("accelerate.machine.system").gpu_place(index)
    add(("Near cuda:%d"):format(index), place
      and ("processors %s, NUMA node %s, PCI bus %s"):format(place.cpus, place.node or "unknown", place.bus)
      or "not known: " .. why)
  end
  for _, l in ipairs(report.library) do
    add(l[2], l[6] ~= "" and "not found: " .. l[6]
      or ("%s, %s"):format(l[5] ~= "" and l[5] or "version unknown", l[4]))
  end
  return lines
end

-- ---- all of it

local function configuration()
  local path = env.text("ACCELERATE_CONFIG_FILE") or require("accelerate.machine").default_config_file()
  if not path then return { { "Default config", "none: you have no home folder" } } end
  local text = fs.read(path)
  if not text then return { { "Default config", "not found: " .. path } } end
  local lines = { { "Default config", path } }
  for line in text:gmatch "[^\n]+" do lines[#lines + 1] = { nil, "  " .. line } end
  return lines
end

--- Returns what `accel-run env` prints, as a list of { name, value }. A line without a name belongs
--- to the one before it.
---@return { [1]: string?, [2]: string }[]
function M.collect()
  local lines = {
    { "accel version", core.version }, { "Platform", platform() }, { "accel-run", executable() },
    { "LuaJIT", ("%s, %s, compiler %s"):format(jit.version, jit.arch, jit.status() and "on" or "off") },
  }
  for _, part in ipairs { cpu, memory, cuda, configuration } do
    for _, line in ipairs(part()) do lines[#lines + 1] = line end
  end
  return lines
end

--- Prints the report.
function M.run()
  for _, line in ipairs(M.collect()) do
    print(options.clean(line[1] and ("- %s: %s"):format(line[1], line[2]) or line[2]))
  end
end

return M
