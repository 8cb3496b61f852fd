--- Runs a function on several ranks from a prompt or a script of one process.
---
---   local results = accelerate.notebook_launcher(train, { 1e-3, 10 }, { num_processes = 4 })
---
--- The ranks are forks of this process, so the function may be any, with its upvalues; what it
--- changes stays in its rank. Rank 0's results travel back as nested values, tensors too. With
--- num_nodes, as many machines call it, each with its node_rank, and meet at master_addr.
local core = require "accelerate.core"
local ffi = require "ffi"
local launch_options = require "accelerate.launchers.options"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail = options.fail

ffi.cdef [[
int usleep(unsigned microseconds);
int setenv(const char *name, const char *value, int overwrite);
void *dlopen(const char *path, int flags);
void *dlsym(void *library, const char *name);
]]

local M = {}

local RESULT, FAILED = 0, 1
local PATIENCE = 5  -- seconds for the other ranks to end when one has failed

-- Threads of OpenMP do not survive a fork: they end before it, and each rank starts its own.
local function pause_threads()
  local RTLD_LAZY, RTLD_NOLOAD = 1, 4
  local library = ffi.C.dlopen("libgomp.so.1", RTLD_LAZY + RTLD_NOLOAD)
  local pause = library ~= nil and ffi.C.dlsym(library, "omp_pause_resource_all")
  if pause and pause ~= nil then ffi.cast("int (*)(int)", pause)(1) end
end

-- ---- in a rank

local function set_environment(rank, job)
  local o = job.options
  local values = { RANK = job.first + rank, LOCAL_RANK = rank, ACCEL_RUN_RANK = job.first + rank,
    WORLD_SIZE = job.count * o.num_nodes, LOCAL_WORLD_SIZE = job.count, GROUP_RANK = o.node_rank,
    MASTER_ADDR = o.master_addr, MASTER_PORT = o.use_port, TORCHELASTIC_RUN_ID = o.rdzv_id,
    ACCELERATE_MIXED_PRECISION = o.mixed_precision, ACCELERATE_RESTART_COUNT = job.attempt,
    FORK_LAUNCHED = 1 }
  for name, value in pairs(values) do ffi.C.setenv(name, tostring(value), 1) end -- each by itself
end

local function name_of(job, rank)
  if not job.machines then return ("rank %d"):format(rank) end
  return ("rank %d (machine %d)"):format(job.first + rank, job.options.node_rank)
end

local function serve(job, rank, channel)
  job.ranks:join(rank, not job.cpu)
  if job.machines then job.machines:join(rank) end
  os.exit = core._worker_exit -- luacheck: ignore 122 (the parent's would run its exit handlers)
  set_environment(rank, job)
  core.set_num_threads(math.max(1, math.floor(core._cores() / job.count)))
  local results = scope.pack(xpcall(job.fn, scope.traced, unpack(job.args, 1, job.args.n)))
  local fine, text = results[1], results[2]
  if fine and job.first + rank == 0 then
    fine, text = pcall(channel.reply, channel, 0, RESULT, unpack(results, 2, results.n))
  elseif fine then
    channel:reply(0, RESULT)
  end
  if fine then
    if job.machines then job.machines:finished() end
    return job.ranks:finished(rank)
  end
  text = type(text) == "string" and text or require("accelerate.messages.explain").value(text)
  job.ranks:abort(rank, ("%s failed: %s"):format(name_of(job, rank), text:match("^[^\n]*")))
  channel:reply(0, FAILED, text)
end

-- ---- in this process

-- Looks at one rank that has not replied yet.
local function look(job, rank)
  local answer = scope.pack(core._worker_wait({ job.workers[rank] }, 1, job.look))
  if answer[1] ~= nil then
    job.answers[rank] = { kind = answer[2], n = answer.n - 2, unpack(answer, 3, answer.n) }
  elseif answer[2] == "died" then
    local text = ("its process ended: %s"):format(answer[4])
    job.ranks:abort(rank, ("%s failed: %s"):format(name_of(job, rank), text))
    job.answers[rank] = { kind = FAILED, text, n = 1 }
  end
end

-- Whether ranks that have not replied are still awaited.
local function awaits(job)
  if not job.ranks:failed() then return true end
  job.failed_at = job.failed_at or core._monotonic()
  return core._monotonic() - job.failed_at < PATIENCE
end

-- Waits for the ranks of this machine; on machine 0, for those of the others too.
local function gather(job)
  local left, others = job.count, job.machines ~= nil
  while left > 0 and awaits(job) do
    left = 0
    for rank = 0, job.count - 1 do
      if not job.answers[rank] then look(job, rank) end
      if not job.answers[rank] then left = left + 1 end
    end
    if job.machines then others = job.machines:watch() end
  end
  while others and not job.ranks:failed() do
    ffi.C.usleep(math.min(1e6, job.options.monitor_interval * 1e6))
    others = job.machines:watch()
  end
end

local function start(job)
  pause_threads()
  for rank = 0, job.count - 1 do
    job.workers[rank] = core._worker_start(function(channel) serve(job, rank, channel) end)
  end
  if job.machines then job.machines:forked() end
end

-- Meets the other machines. Machine 0 counts the starts.
local function meet(job)
  local o = job.options
  if o.num_nodes == 1 then return end
  local fine, machines = pcall(core._machines_meet, job.ranks, launch_options.meeting(o), job.attempt)
  if not fine then error(launch_options.translated(machines), 0) end
  job.machines, job.attempt = machines, machines:attempt()
end

-- Starts the ranks once. Returns the job with their answers.
local function attempt(fn, args, o, cpu, number)
  local cores, count = core._cores(), o.num_processes
  local job = { fn = fn, args = args, options = o, cpu = cpu, count = count, workers = {},
    answers = {}, attempt = number, look = o.monitor_interval / count, first = o.node_rank * count,
    ranks = core._ranks_create(count, o.timeout, count <= cores) }
  meet(job)
  local fine, problem = xpcall(function()
    start(job)
    gather(job)
  end, scope.traced)
  -- each by itself
  for _, worker in pairs(job.workers) do worker:close(fine and not job.failed_at and 1 or 0.1) end
  if job.machines then
    local _, reason = job.ranks:failed()
    job.machines:tell(reason or not fine and ("machine %d was interrupted"):format(o.node_rank) or nil)
    if not fine then job.machines:close() end
  end
  if not fine then error(problem, 0) end
  return job
end

-- What ended a job that failed.
local function failure(job)
  local rank, reason = job.ranks:failed()
  local answer = job.answers[rank]
  return answer and ("%s failed: %s"):format(name_of(job, rank), tostring(answer[1])) or reason
end

-- Whether the ranks start again: machine 0 decides.
local function starts_again(job)
  local o = job.options
  local again = job.attempt < o.max_restarts
  if not job.machines then return again end
  if o.node_rank > 0 and o.max_restarts == 0 then return false end
  return job.machines:again(again, o.timeout)
end

local function launch(where, fn, args, o, cpu)
  local number, again = 0, true
  while again do
    local job = attempt(fn, args, o, cpu, number)
    if not job.ranks:failed() then
      if job.machines then job.machines:close() end
      return unpack(job.answers[0], 1, job.answers[0].n)
    end
    local text = failure(job)
    again, number = starts_again(job), job.attempt + 1
    if job.machines then job.machines:close() end
    if not again then error(where .. ": " .. text, 0) end
    notice.here("%s: %s; restart %d of %d", where, text:match "^[^\n]*", number, o.max_restarts)
  end
end

local function check(where, fn, args, o)
  if not options.callable(fn) then
    fail("%s: argument 1 (fn): expected a function, got %s", where, options.show(fn))
  end
  if args ~= nil and type(args) ~= "table" then
    fail("%s: argument 2 (args): expected a list of the function's arguments, got %s", where,
      options.show(args))
  end
  if core.dist.world_size() > 1 then
    fail("%s: this process is one of %d ranks already; call the function itself", where,
      core.dist.world_size())
  end
  local state = package.loaded["accelerate.state"]
  if o.num_processes * o.num_nodes > 1 and state and state.initialized() then
    fail("%s: an Accelerator (or PartialState) was made in this process; make it inside the function, " ..
      "or call " ..
      "PartialState._reset_state() before", where)
  end
end

-- A list of arguments with its length; n= gives that of a list that ends with nil.
local function packed(args)
  local n = args and (args.n or #args) or 0
  return { n = n, unpack(args or {}, 1, n) }
end

--- Runs fn(unpack(args)) on num_processes ranks, which are forks of this process, and returns what
--- rank 0 returns. With one, fn runs in this process. An error names the rank that failed first;
--- the other ranks end. GPUs can be used unless this process has used one.
---
--- With num_nodes, each machine calls it, with its node_rank and the same other options. All ranks
--- are one world; on the machines other than 0 it returns nothing. Machine 0 decides about
--- restarts, and counts them. A secret in ACCELERATE_SECRET keeps strangers out.
---@param fn function
---@param args any[]? its arguments
---@param opts { num_processes: integer, mixed_precision: string?, timeout: number?, max_restarts:
---  integer?, monitor_interval: number?, num_nodes: integer?, node_rank: integer?, master_addr:
---  string?, use_port: string|integer?, rdzv_id: string?, rdzv_endpoint: string?, rdzv_backend:
---  string?, rdzv_conf: table? } num_processes: of each machine; timeout: seconds that a rank waits
---  in a collective, default 1800; max_restarts: how often all ranks start again when one has
---  failed, default 0 (a rank reads ACCELERATE_RESTART_COUNT); monitor_interval: seconds in which
---  all ranks are looked at once, default 0.05; num_nodes: machines, default 1; node_rank: the
---  number of this one, from 0; master_addr and use_port: where machine 0 listens, default
---  127.0.0.1 and 29500, or rdzv_endpoint "host:port"; rdzv_id: machines with different ones do not
---  meet, default "none"; rdzv_backend: "static"; rdzv_conf: timeout, seconds of the meeting,
---  default that of collectives
---@return any ... nested values of tensors, numbers, strings and booleans
function M.notebook_launcher(fn, args, opts)
  local o = launch_options.check("notebook_launcher", opts)
  if not o.num_processes then
    fail("notebook_launcher: option 'num_processes' is missing: write { num_processes = 2 }")
  end
  check("notebook_launcher", fn, args, o)
  local given = packed(args)
  if o.num_processes * o.num_nodes == 1 then return fn(unpack(given, 1, given.n)) end
  return launch("notebook_launcher", fn, given, o, false)
end

--- Runs fn(unpack(args)) on ranks of the CPU, two by default, as notebook_launcher does.
---@param fn function
---@param args any[]? its arguments
---@param opts { num_processes: integer?, timeout: number?, max_restarts: integer?,
---  monitor_interval: number? }?
---@return any ...
function M.debug_launcher(fn, args, opts)
  local o = launch_options.check("debug_launcher", opts)
  if o.num_nodes > 1 then
    fail("debug_launcher: its ranks are on one machine; notebook_launcher takes num_nodes")
  end
  o.num_processes = o.num_processes or 2
  check("debug_launcher", fn, args, o)
  return launch("debug_launcher", fn, packed(args), o, true)
end

return M
