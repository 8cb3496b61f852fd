--- `accel-run kernel`: a kernel for Jupyter: install it, and start it as Jupyter does.
local commands = require "accelerate.commands"
local ffi = require "ffi"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"

ffi.cdef [[
char *realpath(const char *path, char *resolved);
]]

local M = {}

local PORTS = { "shell_port", "control_port", "stdin_port", "iopub_port", "hb_port" }

local USAGE = {
  usage = "kernel install [--user | --prefix FOLDER] [--name NAME] [--display_name TEXT]",
  summary = "Makes accel a kernel of Jupyter: notebooks then have Lua cells. Jupyter starts it with\n" ..
    "accel-run kernel start -f FILE.",
  options = {
    user = { kind = "switch", help = "for this user (the default): ~/.local/share/jupyter, or where " ..
      "JUPYTER_DATA_DIR or XDG_DATA_HOME say" },
    prefix = { argument = "FOLDER", help = "into FOLDER/share/jupyter: a virtual environment, /usr/local" },
    name = { argument = "NAME", help = "the kernel's folder and name (default accel)" },
    display_name = { argument = "TEXT", help = "what notebooks call it (default Lua (accel))" },
  },
  positions = { "install" },
}

local function executable()
  local path = ffi.new("char[4097]")
  if ffi.C.realpath("/proc/self/exe", path) == nil then
    commands.fail("the path of accel-run is not known")
  end
  return ffi.string(path)
end

local function user_folder()
  local folder, home = os.getenv("JUPYTER_DATA_DIR"), require("accelerate.host").home()
  if folder and folder ~= "" then return folder end
  folder = os.getenv("XDG_DATA_HOME")
  if folder and folder ~= "" then return folder .. "/jupyter" end
  if not home then commands.fail("you have no home folder; give --prefix FOLDER") end
  return home .. "/.local/share/jupyter"
end

local function install(words)
  local found = commands.arguments(words, USAGE)
  if not found then return end
  if found.user and found.prefix then commands.usage("--user and --prefix are two places; give one") end
  local name = found.name or "accel"
  if not name:find("^[%w._-]+$") then
    commands.usage("--name: expected letters, digits, '.', '_' and '-', got '%s'", name)
  end
  local folder = (found.prefix and found.prefix .. "/share/jupyter" or user_folder()) .. "/kernels/" .. name
  local made, why = fs.make_dirs(folder)
  if not made then commands.fail("%s", why) end
  local path = folder .. "/kernel.json"
  local file, problem = io.open(path, "wb")
  if not file then commands.fail("%s", problem) end
  file:write(json.encode({ argv = { executable(), "kernel", "start", "-f", "{connection_file}" },
    display_name = found.display_name or "Lua (accel)", language = "lua", interrupt_mode = "message" }, 2),
    "\n")
  file:close()
  commands.say("accel-run: the kernel is in %s", folder)
  local opened, missing = require("accelerate.jupyter.zmq").open()
  if not opened then
    commands.say("accel-run: it finds libzmq in pip's pyzmq once Jupyter starts it; here %s", missing)
  end
end

-- The connection file, checked.
local function read_connection(path)
  local file, problem = io.open(path, "rb")
  if not file then commands.fail("%s", problem) end
  local info, why = json.decode(file:read("*a"))
  file:close()
  if type(info) ~= "table" then commands.fail("%s: %s", path, why or "expected an object") end
  for _, name in ipairs(PORTS) do
    if type(info[name]) ~= "number" then commands.fail("%s: %s is missing, or no number", path, name) end
  end
  if info.key ~= nil and type(info.key) ~= "string" then commands.fail("%s: key: expected a text", path) end
  if (info.key or "") ~= "" and info.signature_scheme ~= nil and info.signature_scheme ~= "hmac-sha256" then
    commands.fail("%s: signature_scheme: only hmac-sha256 is known, got '%s'", path,
      tostring(info.signature_scheme))
  end
  return info
end

local function start(words)
  local name = words[2] and (words[2]:match("^%-f(.+)$") or words[2]:match("^%-%-connection_file=(.+)$"))
  if words[2] == "-f" or words[2] == "--connection_file" then name = words[3] end
  if not name then commands.usage("start needs Jupyter's connection file: accel-run kernel start -f FILE") end
  local opened, missing = require("accelerate.jupyter.zmq").open()
  if not opened then commands.fail("%s", missing) end
  os.exit(require("accelerate.jupyter").run(read_connection(name)))
end

--- Runs the command.
---@param words string[]
function M.run(words)
  if words[1] == "start" then return start(words) end
  if words[1] and words[1] ~= "install" and words[1]:sub(1, 1) ~= "-" then
    commands.usage("'%s' is no action of kernel; there are install and start", words[1])
  end
  install(words)
end

return M
