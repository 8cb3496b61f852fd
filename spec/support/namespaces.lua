-- Machines with a network of their own: network namespaces on a bridge, as root. Each has an
-- address, 10.77.0.1 for machine 0 and so on, a host name, and nothing else in common with the
-- others' networks but the bridge.
local host = require "spec.support.host"
local processes = require "spec.support.processes"

local M = {}

local function shell(command)
  return (os.execute(("PATH=$PATH:/usr/sbin:/sbin; { %s\n} >/dev/null 2>&1"):format(command)))
end

-- Names of this process alone: other specs may run beside it.
local mark = tostring(processes.own_pid())
local BRIDGE = "axb" .. mark
local function name(i) return ("ax%s-%d"):format(mark, i) end
local function cable(i) return ("axc%s.%d"):format(mark, i) end

local ip = processes.output "PATH=$PATH:/usr/sbin:/sbin; command -v ip"

--- The address of a machine.
---@param i integer from 0
function M.address(i) return ("10.77.0.%d"):format(i + 1) end

--- Makes `n` machines.
function M.make(n)
  assert(shell(("ip link add %s type bridge && ip link set %s up"):format(BRIDGE, BRIDGE)))
  for i = 0, n - 1 do
    assert(shell(([[ip netns add NAME && ip link add CABLE type veth peer name eth0 netns NAME &&
      ip link set CABLE master BRIDGE up && ip -n NAME addr add ADDRESS/24 dev eth0 &&
      ip -n NAME link set eth0 up && ip -n NAME link set lo up]]):gsub("%u%u+",
      { NAME = name(i), CABLE = cable(i), BRIDGE = BRIDGE, ADDRESS = M.address(i) })))
  end
end

--- Removes `n` machines.
function M.remove(n)
  for i = 0, n - 1 do shell(("ip link del %s; ip netns del %s"):format(cable(i), name(i))) end
  shell("ip link del " .. BRIDGE)
end

--- Why there can be none here, or nil.
---@return string?
function M.why()
  if ip == "" then return "needs ip (package iproute2)" end
  local made = pcall(M.make, 2)
  -- a port that nobody listens at refuses at once, unless something drops what the bridge carries
  local met = made
    and shell(("ip netns exec %s timeout 2 bash -c '</dev/tcp/%s/9'; test $? != 124"):format(name(1),
    M.address(0)))
  M.remove(2)
  if not made then return "needs root and network namespaces" end
  if not met then return "needs a bridge whose frames are not filtered" end
end

--- Cuts a machine's cable.
function M.cut(i) assert(shell(("ip link set %s down"):format(cable(i)))) end

local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

--- Starts a program on machine `i`.
---@param words string[] the program and its arguments
---@return table run see processes.start
function M.start(i, words)
  local list = {}
  for k, word in ipairs(words) do list[k] = quoted(word) end
  return processes.start({ "netns", "exec", name(i), "unshare", "--uts", "sh", "-c",
    ("hostname box%d; exec %s"):format(i, table.concat(list, " ")) }, { path = ip })
end

--- Starts a script with mpirun on machine 0, `ranks` of them on each of `n` machines.
---@param words string[] the launcher's options, the script, and its arguments
function M.mpirun(n, ranks, words)
  local agent = processes.script(([[#!/bin/sh
host=$1; shift
exec ip netns exec ax%s-$((${host##*.} - 1)) unshare --uts sh -c "hostname box$((${host##*.} - 1)); $*"
]]):format(mark), host.plain_path())
  assert(shell("chmod +x " .. agent))
  local hosts = {}
  for i = 0, n - 1 do hosts[i + 1] = M.address(i) .. ":" .. ranks end
  local all = { "env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun.openmpi",
    "--mca", "plm_rsh_agent", agent, "--mca", "btl_tcp_if_include", "10.77.0.0/24", "--mca",
    "oob_tcp_if_include", "10.77.0.0/24", "--mca", "btl", "self,tcp", "--host", table.concat(hosts, ","),
    "-n", tostring(n * ranks), "--bind-to", "none", host.path }
  for _, word in ipairs(words) do all[#all + 1] = word end
  return M.start(0, all)
end

return M
