--- Runs a function on several ranks from a prompt or a script of one process.
---
---   local results = accelerate.notebook_launcher(train, { 1e-3, 10 }, { num_processes = 4 })
---
--- The ranks are forks of this process, so the function may be any, with its upvalues; what it
--- changes stays in its rank. Rank 0's results travel back as nested values, tensors too.
local core = require "accelerate.core"
local ffi = require "ffi"
local notice = require "accelerate.utils.notice"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail = options.fail

ffi.cdef [[
int setenv(const char *name, const char *value, int overwrite);
void *dlopen(const char *path, int flags);
void *dlsym(void *library, const char *name);
]]

local M = {}

local RESULT, FAILED = 0, 1

local OPTIONS = {
  max_restarts = { "integer", default = 0, min = 0 },
  monitor_interval = { "number", default = 0.05, above = 0 },
  num_processes = { "integer", min = 1, max = 512, optional = true },
  mixed_precision = { "string", one_of = { "no", "fp16", "bf16" }, optional = true },
  timeout = { "number", above = 0, default = 1800 },
}

-- Accelerate's options about where ranks meet, and in which form they print.
local ELSEWHERE = {}
for name in ([[num_nodes node_rank master_addr use_port rdzv_backend rdzv_endpoint rdzv_conf rdzv_id
  log_line_prefix_template]]):gmatch "%S+" do
  ELSEWHERE[name] = true
end

local function refuse_elsewhere(where, opts)
  for name, value in pairs(type(opts) == "table" and opts or {}) do
    local one = name == "num_nodes" and value == 1 or name == "node_rank" and value == 0
    if ELSEWHERE[name] and not one then
      fail("%s: option '%s': the ranks are forks of this process, on one machine, and meet in its " ..
        "memory; leave it out, or start a script on several machines with accel-run --num_machines",
        where, name)
    end
  end
end

local function check_options(where, opts)
  refuse_elsewhere(where, opts)
  local kept = opts
  if type(opts) == "table" then
    kept = {}
    for name, value in pairs(opts) do
      if not ELSEWHERE[name] then kept[name] = value end
    end
  end
  return options.check(where, kept, OPTIONS)
end

-- Threads of OpenMP do not survive a fork: they end before it, and each rank starts its own.
local function pause_threads()
  local RTLD_LAZY, RTLD_NOLOAD = 1, 4
  local library = ffi.C.dlopen("libgomp.so.1", RTLD_LAZY + RTLD_NOLOAD)
  local pause = library ~= nil and ffi.C.dlsym(library, "omp_pause_resource_all")
  if pause and pause ~= nil then ffi.cast("int (*)(int)", pause)(1) end
end

-- ---- in a rank ----------------------------------------------------------------------------------

local function set_environment(rank, job)
  local values = { RANK = rank, LOCAL_RANK = rank, ACCEL_RUN_RANK = rank, WORLD_SIZE = job.count,
    LOCAL_WORLD_SIZE = job.count, ACCELERATE_MIXED_PRECISION = job.options.mixed_precision,
    ACCELERATE_RESTART_COUNT = job.attempt, FORK_LAUNCHED = 1 }
  for name, value in pairs(values) do ffi.C.setenv(name, tostring(value), 1) end -- each by itself
end

local function serve(job, rank, channel)
  job.ranks:join(rank, not job.cpu)
  os.exit = core._worker_exit -- luacheck: ignore 122 (the parent's would run its exit handlers)
  set_environment(rank, job)
  core.set_num_threads(math.max(1, math.floor(core._cores() / job.count)))
  local results = scope.pack(xpcall(job.fn, scope.traced, unpack(job.args, 1, job.args.n)))
  local fine, text = results[1], results[2]
  if fine and rank == 0 then
    fine, text = pcall(channel.reply, channel, 0, RESULT, unpack(results, 2, results.n))
  elseif fine then
    channel:reply(0, RESULT)
  end
  if fine then return job.ranks:finished(rank) end
  text = type(text) == "string" and text or require("accelerate.utils.explain").value(text)
  job.ranks:abort(rank, ("rank %d failed: %s"):format(rank, text:match("^[^\n]*")))
  channel:reply(0, FAILED, text)
end

-- ---- in this process ----------------------------------------------------------------------------

-- Looks at one rank that has not replied yet.
local function look(job, rank)
  local answer = scope.pack(core._worker_wait({ job.workers[rank] }, 1, job.look))
  if answer[1] ~= nil then
    job.answers[rank] = { kind = answer[2], n = answer.n - 2, unpack(answer, 3, answer.n) }
  elseif answer[2] == "died" then
    local text = ("its process ended: %s"):format(answer[4])
    job.ranks:abort(rank, ("rank %d failed: %s"):format(rank, text))
    job.answers[rank] = { kind = FAILED, text, n = 1 }
  end
end

local function gather(job)
  local left = job.count
  while left > 0 do
    left = 0
    for rank = 0, job.count - 1 do
      if not job.answers[rank] then look(job, rank) end
      if not job.answers[rank] then left = left + 1 end
    end
  end
end

local function start(job)
  pause_threads()
  for rank = 0, job.count - 1 do
    job.workers[rank] = core._worker_start(function(channel) serve(job, rank, channel) end)
  end
end

-- Starts the ranks once. Returns the job with their answers.
local function attempt(fn, args, o, cpu, number)
  local cores, count = core._cores(), o.num_processes
  local job = { fn = fn, args = args, options = o, cpu = cpu, count = count, workers = {},
    answers = {}, attempt = number, look = o.monitor_interval / count,
    ranks = core._ranks_create(count, o.timeout, count <= cores) }
  local fine, problem = xpcall(function()
    start(job)
    gather(job)
  end, scope.traced)
  for _, worker in pairs(job.workers) do worker:close(fine and 1 or 0.1) end -- each by itself
  if not fine then error(problem, 0) end
  return job
end

local function launch(where, fn, args, o, cpu)
  for number = 0, o.max_restarts do
    local job = attempt(fn, args, o, cpu, number)
    local failed = job.ranks:failed()
    if not failed then return unpack(job.answers[0], 1, job.answers[0].n) end
    local text = ("rank %d failed: %s"):format(failed, tostring(job.answers[failed][1]))
    if number == o.max_restarts then error(where .. ": " .. text, 0) end
    notice.here("%s: %s; restart %d of %d", where, text:match "^[^\n]*", number + 1, o.max_restarts)
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
  if o.num_processes > 1 and state and state.initialized() then
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
---@param fn function
---@param args any[]? its arguments
---@param opts { num_processes: integer, mixed_precision: string?, timeout: number?, max_restarts:
---  integer?, monitor_interval: number? } timeout: seconds that a rank waits in a collective,
---  default 1800; max_restarts: how often all ranks start again when one has failed, default 0 (a
---  rank reads ACCELERATE_RESTART_COUNT); monitor_interval: seconds in which all ranks are looked
---  at once, default 0.05
---@return any ... nested values of tensors, numbers, strings and booleans
function M.notebook_launcher(fn, args, opts)
  local o = check_options("notebook_launcher", opts)
  if not o.num_processes then
    fail("notebook_launcher: option 'num_processes' is missing: write { num_processes = 2 }")
  end
  check("notebook_launcher", fn, args, o)
  local given = packed(args)
  if o.num_processes == 1 then return fn(unpack(given, 1, given.n)) end
  return launch("notebook_launcher", fn, given, o, false)
end

--- Runs fn(unpack(args)) on ranks of the CPU, two by default, as notebook_launcher does.
---@param fn function
---@param args any[]? its arguments
---@param opts { num_processes: integer?, timeout: number?, max_restarts: integer?,
---  monitor_interval: number? }?
---@return any ...
function M.debug_launcher(fn, args, opts)
  local o = check_options("debug_launcher", opts)
  o.num_processes = o.num_processes or 2
  check("debug_launcher", fn, args, o)
  return launch("debug_launcher", fn, packed(args), o, true)
end

return M
