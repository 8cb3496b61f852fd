--- How a loader reads batches without worker processes: in this process, or with the thread that
--- copies the next batch while a batch is in use.
local core = require "accelerate.core"
local dataset_module = require "accelerate.data.dataset"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"
local seeding = require "accelerate.data.seeding"

local fail = options.fail

local M = {}

-- Returns a function that returns the tasks of a pass one by one, and nil at its end.
function M.tasks_of(source, skip)
  local nexts, state, control
  if source.seekable then
    nexts, state, control = source:iter(skip)
    skip = 0
  else
    nexts, state, control = options.iterator("DataLoader: the sampler", source:iter())
  end
  return function()
    if not nexts then return nil end
    repeat
      control = nexts(state, control)
      if control == nil then
        nexts = nil
        return nil
      end
      skip = skip - 1
    until skip < 0
    return control
  end
end

-- Returns a function that reads batches in this process.
function M.plain_reader(self, tasks, seed, number)
  local seeded = not self._pure
  return function()
    local task = tasks()
    if task == nil then return nil end
    number = number + 1
    if seeded then return scope.pack(seeding.run(seed, number, self._fetch, self, task)) end
    return scope.pack(self:_fetch(task))
  end
end

local TRIAL, AGAIN = 16, 4096 -- batches timed with and without the thread; batches until the next timing

-- Decides by timing whether the thread copies: it does not pay when all cores are busy. `always`:
-- the script set background = true. The batches are equal either way.
local function stopwatch(always)
  if always then return function() return true end, function() end end
  local ahead, plain, seen, pays = 0, 0, 0, true
  return function() -- may the next batch be started ahead?
    if seen < TRIAL then return true end
    if seen < 2 * TRIAL then return false end
    return pays
  end, function(seconds)
    seen = seen + 1
    if seen <= TRIAL then
      ahead = ahead + seconds
    elseif seen <= 2 * TRIAL then
      plain = plain + seconds
      pays = ahead < plain
    elseif seen == AGAIN then
      ahead, plain, seen = 0, 0, 0
    end
  end
end

-- The thread copies the next batch while this one is in use. An error in the next batch is raised
-- when that batch is due.
function M.background_reader(tasks, gatherer, to_rows, always)
  local state = "idle" -- or "started", "failed", "over"
  local problem
  local may_start, timed = stopwatch(always)
  local function begin(ahead)
    local task = tasks()
    if task == nil then return "over" end
    gatherer:start(to_rows(task), ahead)
    return "started"
  end
  return function()
    local since = core._monotonic()
    if state == "idle" then state = begin(false) end
    if state == "over" then return nil end
    if state == "failed" then
      state = "over"
      error(problem, 0)
    end
    local batch = scope.pack(gatherer:take())
    state = "idle"
    if may_start() then
      local ok, result = pcall(begin, true)
      state = ok and result or "failed"
      if not ok then problem = result end
    end
    timed(core._monotonic() - since)
    return batch
  end
end

local SMALL_BATCH = 64 * 1024 -- bytes; waking the thread for less costs as much as copying

-- Returns whether the thread would have a free core and enough to copy. A script's own sampler may
-- depend on the outcome of a step, so only our samplers are read one batch early.
local function background_pays(self, source, tensors)
  if not source.seekable or not self.batch_size then return false end
  local bytes = 0
  for _, t in ipairs(tensors) do
    bytes = bytes + t:numel() / math.max(1, t:size(1)) * t:element_size() * self.batch_size
  end
  return bytes >= SMALL_BATCH and core._cores() > core.get_num_threads() * core.dist.local_world_size()
end

function M.gatherer_for(self, source)
  if self.background == false or self.collate_fn or not self.batch_sampler or core._worker_inside() then
    return nil
  end
  local tensors, to_rows = dataset_module.rows_of(self.dataset)
  if not tensors then return nil end
  if self.background == nil and not background_pays(self, source, tensors) then return nil end
  local gatherer, why = core._gather(tensors)
  if not gatherer and self.background then
    fail("DataLoader: option 'background' cannot be had for this dataset: %s", why)
  end
  return gatherer, to_rows
end

return M
