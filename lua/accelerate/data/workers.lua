--- Worker processes: forks that read batches for a loader.
---
--- Worker k mod n reads batch k of a pass, and batches are returned in that order, whichever is
--- read first. Each worker has up to prefetch_factor requests waiting. A batch depends only on its
--- positions and its number (see seeding.lua), so a request can be sent again: to new workers, or
--- after another pass has used the workers.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"
local seeding = require "accelerate.data.seeding"

local M = {}

local BATCH, FAILED, OVER = 0, 1, 2 -- kinds of replies
local NOTICE = 60 -- seconds without a batch before a notice is given

-- ---- in a worker

local info -- description of this process when it is a worker

--- Returns the worker that this code runs in: { id (from 0), num_workers, seed, dataset }, or nil
--- in the main process. A stream uses it to read a different part in each worker.
---@return { id: integer, num_workers: integer, seed: integer, dataset: table }?
function M.get_worker_info() return info end

-- Reads the batch of a request. Returns kind and parts of the reply.
local function answer(loader, state, number, task)
  if state.init_error then error(state.init_error, 0) end
  seeding.set(state.seed, number)
  if task ~= nil then return BATCH, loader:_fetch(task) end
  if not state.stream then
    seeding.set(state.seed, info.id)
    state.stream = loader:_stream()
    seeding.set(state.seed, number)
  end
  return (function(...)
    if (...) == nil then return OVER end
    -- data_loader/shard.lua reads real_items from the rank's copy, so a reply carries the worker's
    return BATCH, loader.dataset.real_items or false, ...
  end)(state.stream())
end

local function begin_pass(loader, state, seed, epoch, announced)
  state.seed, state.stream = seed, nil
  info.seed = seed + info.id
  seeding.set(seed, 0)
  if announced and type(loader.dataset.set_epoch) == "function" then loader.dataset:set_epoch(epoch) end
  if loader.worker_init_fn and not state.ready then
    local ok, err = xpcall(loader.worker_init_fn, scope.traced, info.id)
    if not ok then state.init_error = "worker_init_fn: " .. tostring(err) end
  end
  state.ready = true
end

local function serve(loader, id, count, channel)
  core.set_num_threads(1) -- the threads of the parent process do not exist in a fork
  os.exit = core._worker_exit -- luacheck: ignore 122 (the parent's would run its exit handlers)
  info = { id = id, num_workers = count, dataset = loader.dataset }
  local state = {}
  while true do
    local what, a, b, c = channel:receive()
    if what == nil then return end
    if what == "pass" then
      begin_pass(loader, state, a, b, c)
    else -- "read", ticket, number, task
      local results = scope.pack(xpcall(answer, scope.traced, loader, state, b, c))
      local ok, sent = results[1], nil
      if ok then
        ok, sent = pcall(channel.reply, channel, a, unpack(results, 2, results.n))
        if not ok then results[2] = sent end
      end
      if not ok then sent = channel:reply(a, FAILED, tostring(results[2])) end
      if not sent then return end
    end
  end
end

-- ---- in the main process

--- The processes of one pass, or of a loader with persistent workers.
local Pool = class.open("Pool")

function Pool:init() self.list, self.ticket = {}, 0 end

-- Pools that have processes, of all loaders; and how many were in use when this was last counted.
local pools, in_use = setmetatable({}, { __mode = "k" }), 0

-- Ends the processes of passes that ended with `break`. Only the collector knows that a pass is
-- unreachable, so it runs when there are more pools than were in use the last time: the new one
-- then belongs to a pass that is still running.
local function end_abandoned()
  local function live()
    local count = 0
    for _ in pairs(pools) do count = count + 1 end
    return count
  end
  if live() > in_use then collectgarbage() end
  in_use = live()
end

local function new_pool(loader)
  end_abandoned()
  local pool = Pool()
  pools[pool] = true
  core.get_num_threads() -- loads the kernels once, here, instead of in each worker
  for id = 0, loader.num_workers - 1 do
    pool.list[id + 1] = core._worker_start(function(channel)
      serve(loader, id, loader.num_workers, channel)
    end)
  end
  loader._pools = loader._pools or setmetatable({}, { __mode = "k" })
  loader._pools[pool] = true
  return pool
end

--- Ends the processes. Those that are still reading get a moment to finish.
function Pool:close()
  local list = self.list
  self.list, self.closed = {}, true
  pools[self] = nil
  for _, worker in ipairs(list) do worker:hang_up() end
  for _, worker in ipairs(list) do worker:close(0.5) end
end

local function name_of(worker, which) return ("worker %d (process %d)"):format(which - 1, worker:pid()) end

--- Ends the worker processes of all passes of a loader.
function M.close(loader)
  for pool in pairs(loader._pools or {}) do pool:close() end
  loader._pools, loader._pool = nil, nil
end

-- A pass over a loader's batches.
local Pass = class.open("Pass")

function Pass:init(fields)
  for name, value in next, fields do self[name] = value end
  self.issued, self.taken, self.turn, self.queue, self.ended = 0, 0, 0, {}, {}
end

-- Makes the pool this pass's own: sends the workers its seed, and repeats its open requests.
function Pass:claim()
  local loader, pool = self.loader, self.pool
  if self.stream and self.issued > 0 then
    self.done = true
    options.fail("DataLoader: this pass over a stream cannot go on: its worker processes were ended or " ..
      "serve another pass")
  end
  if not pool or pool.closed then
    pool = loader.persistent_workers and loader._pool or nil
    if not pool or pool.closed then pool = new_pool(loader) end
    if loader.persistent_workers then loader._pool = pool end
    self.pool = pool
  end
  pool.owner = self
  for _, worker in ipairs(pool.list) do worker:send("pass", self.seed, self.epoch, self.announced) end
  for at = self.taken + 1, self.issued do self:request(self.queue[at]) end
end

function Pass:request(entry)
  local pool = self.pool
  pool.ticket = pool.ticket + 1
  entry.ticket = pool.ticket
  pool.list[entry.worker]:send("read", entry.ticket, entry.number, entry.task)
end

-- Sends requests until enough are open.
function Pass:fill()
  local count = self.loader.num_workers
  local most = count * self.loader.prefetch_factor
  while not self.over and self.issued - self.taken < most do
    local task
    if self.tasks then
      task = self.tasks()
      if task == nil then
        self.over = true
        return
      end
      self.turn = self.turn % count + 1
    else
      for _ = 1, count do -- the next worker whose stream goes on
        self.turn = self.turn % count + 1
        if not self.ended[self.turn] then break end
      end
      if self.ended[self.turn] then
        self.over = true
        return
      end
    end
    self.issued = self.issued + 1
    local entry = { worker = self.turn, number = self.first + self.issued, task = task }
    self.queue[self.issued] = entry
    self:request(entry)
  end
end

-- Returns the reply to the oldest request.
function Pass:await(entry)
  local pool, timeout = self.pool, self.loader.timeout
  local started, announced = core._monotonic(), false
  while true do
    local left = timeout > 0 and math.max(0, timeout - (core._monotonic() - started))
      or announced and -1 or NOTICE
    local reply = scope.pack(core._worker_wait(pool.list, entry.worker, left))
    if reply[1] == entry.ticket then return reply end
    if reply[1] == nil and reply[2] == "died" then
      self:finish(true)
      error(("DataLoader: worker %d ended before its time: %s, " ..
        "while the batches from %d on were being read"):format(
        reply[3] - 1, reply[4], entry.number), 0)
    elseif reply[1] == nil and reply[2] == "stopped" then
      notice.here("DataLoader: worker %d: %s; batch %d comes when it goes on", entry.worker - 1, reply[3],
        entry.number)
    elseif reply[1] == nil and timeout > 0 then
      local name = name_of(pool.list[entry.worker], entry.worker)
      self:finish(true)
      error(("DataLoader: %s gave no batch %d in %g s (timeout)"):format(name, entry.number, timeout), 0)
    elseif reply[1] == nil then
      announced = true
      notice.here("DataLoader: still waiting for batch %d from %s after %d s", entry.number,
        name_of(pool.list[entry.worker], entry.worker), NOTICE)
    end -- else: a reply for a pass that was given up
  end
end

-- Ends the pass. `broken`: its processes cannot be used again.
function Pass:finish(broken)
  local pool = self.pool
  self.done = true
  if not pool then return end
  if pool.owner == self then pool.owner = nil end
  self.pool = nil
  if broken or not self.loader.persistent_workers then pool:close() end
end

function Pass:next()
  while not self.done do
    if not self.pool or self.pool.closed or self.pool.owner ~= self then self:claim() end
    self:fill()
    local entry = self.queue[self.taken + 1]
    if not entry then
      self:finish()
      break
    end
    local reply = self:await(entry)
    self.queue[self.taken + 1] = nil
    self.taken = self.taken + 1
    if reply[2] == FAILED then
      local name = name_of(self.pool.list[entry.worker], entry.worker)
      self:finish()
      error(("DataLoader: %s, batch %d: %s"):format(name, entry.number, reply[3]), 0)
    elseif reply[2] == OVER then
      self.ended[entry.worker] = true
    else
      self:fill() -- the worker should not wait until the step is over
      if not self.stream then return { n = reply.n - 2, unpack(reply, 3, reply.n) } end
      if reply[3] then self.loader.dataset.real_items = reply[3] end
      return { n = reply.n - 3, unpack(reply, 4, reply.n) }
    end
  end
end

--- Starts a pass; see DataLoader:_start.
---@param tasks (fun(): any)? nil: the loader's dataset is a stream
---@param skip integer number of batches skipped before the first task (for a stream: still to be
---  skipped)
---@param announced boolean whether the data set's set_epoch is called
---@return fun(): table? next_batch
---@return fun() close ends the pass early
function M.read(loader, tasks, seed, epoch, skip, announced)
  local pass = Pass {
    loader = loader, tasks = tasks, stream = not tasks, seed = seed, epoch = epoch, announced = announced,
    first = tasks and skip or 0,
  }
  -- Earlier passes of this loader give up their processes: most of them ended with `break`, and one
  -- that continues starts new ones. A stream cannot be read from its middle, so its processes stay
  -- until the pass is unreachable.
  for pool in pairs(not loader.persistent_workers and loader._pools or {}) do
    if not (pool.owner and pool.owner.stream) then pool:close() end
  end
  local left = tasks and 0 or skip
  return function()
    while left > 0 do
      left = left - 1
      if not pass:next() then left = 0 end
    end
    return pass:next()
  end, function()
    if not pass.done then pass:finish() end
  end
end

return M
