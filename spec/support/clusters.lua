-- Other launchers that start ranks: mpirun, torchrun, and a Slurm of this one machine. Each is the
-- real program; where it is not there, `why` says so.
local host = require "spec.support.host"
local machines = require "spec.support.machines"
local processes = require "spec.support.processes"

local M = {}

local output = processes.output

local function program(name) return output("PATH=$PATH:/usr/sbin:/sbin; command -v " .. name) end

-- ---- mpirun and torchrun

local mpirun = program "mpirun.openmpi"
local python = program(os.getenv "PYTHON" or "python3")

--- Why there is no such launcher here, or nil.
M.why = {
  mpirun = mpirun == "" and "needs mpirun (package openmpi-bin)" or nil,
  torchrun = output((python ~= "" and python or "false") .. " -c 'import torch.distributed.run; print(1)'")
      ~= "1" and "needs PyTorch: PYTHON names an interpreter that has it" or nil,
}

local MPI_ENV = { OMPI_ALLOW_RUN_AS_ROOT = "1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = "1",
  OMPI_MCA_btl_base_warn_component_unused = "0",
  -- Open MPI leaves memory of its own behind
  ASAN_OPTIONS = os.getenv "ASAN_OPTIONS" and os.getenv "ASAN_OPTIONS" .. ":detect_leaks=0" or nil }

local function merged(a, b)
  local all = {}
  for name, value in pairs(a) do all[name] = value end
  for name, value in pairs(b or {}) do all[name] = value end
  return all
end

local function joined(words, script, opts)
  for _, word in ipairs(opts.launch or {}) do words[#words + 1] = word end
  words[#words + 1] = script
  for _, word in ipairs(opts.arguments or {}) do words[#words + 1] = word end
  return words
end

--- The words that start `n` processes of accel-run, and the program that they are for.
---@param kind "mpirun"|"torchrun"|"srun"
---@param n integer processes
---@param script string path
---@param opts { launch: string[]?, arguments: string[]?, extra: string[]? }
---@return string path
---@return string[] words
---@return table<string, string> env
function M.command(kind, n, script, opts)
  local words = {}
  for _, word in ipairs(opts.extra or {}) do words[#words + 1] = word end
  if kind == "mpirun" then
    for _, word in ipairs { "--oversubscribe", "--bind-to", "none", "-n", tostring(n), host.path } do
      words[#words + 1] = word
    end
    return mpirun, joined(words, script, opts), merged(MPI_ENV, opts.env)
  elseif kind == "torchrun" then
    for i, word in ipairs { "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", tostring(n),
      "--master-port", tostring(machines.free_port()) } do
      table.insert(words, i, word)
    end
    words[#words + 1] = host.path
    return python, joined(words, script, opts), merged({ OMP_NUM_THREADS = "1" }, opts.env)
  end
  for _, word in ipairs { "--overcommit", "-n", tostring(n), host.path } do words[#words + 1] = word end
  return program "srun", joined(words, script, opts), merged(MPI_ENV, merged({ SLURM_CONF = M.slurm() },
    opts.env))
end

--- Runs a script under the launcher and waits for its end.
---@return integer status
---@return string out
---@return string err
function M.run(kind, n, script, opts)
  opts = opts or {}
  local path, words, env = M.command(kind, n, processes.script(script), opts)
  return host.run(words, { path = path, env = env, seconds = opts.seconds or 60 })
end

--- The same, in the background.
function M.start(kind, n, script, opts)
  opts = opts or {}
  local path, words, env = M.command(kind, n, processes.script(script), opts)
  return processes.start(words, { path = path, env = env })
end

-- ---- Slurm

local CONFIGURATION = [[
ClusterName=spec
SlurmctldHost=%s(127.0.0.1)
SlurmctldPort=%d
SlurmdPort=%d
AuthType=auth/munge
AuthInfo=socket=%s/munge.sock
CredType=cred/munge
SlurmUser=root
StateSaveLocation=%s/state
SlurmdSpoolDir=%s/spool
SlurmctldPidFile=%s/slurmctld.pid
SlurmdPidFile=%s/slurmd.pid
SlurmctldLogFile=%s/slurmctld.log
SlurmdLogFile=%s/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=5
NodeName=%s NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
]]

for _, name in ipairs { "munged", "slurmctld", "slurmd", "srun", "sbatch" } do
  if program(name) == "" then
    M.why.srun = ("needs %s (packages slurm-wlm and munge)"):format(name)
    break
  end
end
if not M.why.srun and output "id -u" ~= "0" then M.why.srun = "needs root, which slurmd runs as" end

local folder, configuration

local function end_daemon(name)
  local f = io.open(("%s/%s.pid"):format(folder, name))
  local pid = f and f:read "*n"
  if f then f:close() end
  if pid and pid > 1 then
    processes.kill(pid, processes.SIGTERM)
    processes.wait_until(5, function() return not processes.alive(pid) end)
  end
end

--- Starts a Slurm of this machine, once; returns its configuration file.
---@return string path
function M.slurm()
  if configuration then return configuration end
  local name = output "hostname -s"
  folder = host.plain_path()
  assert(os.execute(("mkdir -p %s/state %s/spool && mkdir -m 700 %s/munge && chmod 755 %s && " ..
    "head -c 1024 /dev/urandom >%s/munge/key && chmod 400 %s/munge/key"):format(folder, folder, folder,
    folder, folder, folder)))
  local path = folder .. "/slurm.conf"
  local f = assert(io.open(path, "w"))
  local at = folder
  f:write(CONFIGURATION:format(name, machines.free_port(), machines.free_port(), at, at, at, at, at, at, at,
    name))
  f:close()
  local function daemon(command)
    os.execute("PATH=$PATH:/usr/sbin:/sbin; " .. command .. (" >>%s/out 2>&1"):format(at))
  end
  local function says(command, text)
    return function() return output(("SLURM_CONF=%s %s"):format(path, command)):find(text) end
  end
  daemon(("munged --force --num-threads=1 --key-file=%s/munge/key --socket=%s/munge.sock " ..
    "--pid-file=%s/munged.pid --log-file=%s/munged.log --seed-file=%s/munge.seed"):format(at, at, at, at, at))
  daemon(("SLURM_CONF=%s slurmctld -c"):format(path))
  -- slurmd registers once and then waits, each time for twice as long as before: the controller
  -- comes first, and a slurmd that it has not heard starts anew
  assert(processes.wait_until(30, says("scontrol ping", " UP")), "slurmctld did not start")
  for _ = 1, 5 do
    daemon(("SLURM_CONF=%s slurmd -c"):format(path))
    if processes.wait_until(10, says("sinfo -h -o %T", "idle")) then break end
    end_daemon "slurmd"
  end
  assert(says("sinfo -h -o %T", "idle")(), "Slurm did not start")
  configuration = path
  return path
end

--- Ends what M.slurm() started.
function M.end_slurm()
  if not folder then return end
  for _, name in ipairs { "slurmd", "slurmctld", "munged" } do end_daemon(name) end
  os.execute("rm -rf " .. folder)
  folder, configuration = nil, nil
end

return M
