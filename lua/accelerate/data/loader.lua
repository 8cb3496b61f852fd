--- The loader: reads samples in a sampler's order and makes batches.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local collate = require "accelerate.data.collate"
local dataset_module = require "accelerate.data.dataset"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local enumerable = require "accelerate.utils.enumerable"
local fetch = require "accelerate.data.fetch"
local by_position = require "accelerate.utils.positions"
local sampler_module = require "accelerate.data.sampler"
local scope = require "accelerate.utils.scope"
local seeding = require "accelerate.data.seeding"
local transfer = require "accelerate.data.transfer"
local workers = require "accelerate.data.workers"

local fail, show = options.fail, options.show

local OPTIONS = {
  batch_size = { "integer", optional = true, min = 1 },
  shuffle = { "boolean", optional = true },
  sampler = { "table|tensor", optional = true },
  batch_sampler = { "table|tensor", optional = true },
  drop_last = { "boolean", optional = true },
  collate_fn = { "function", optional = true },
  generator = { "Generator", optional = true },
  num_workers = { "integer", default = 0, min = 0, max = 128 },
  -- so many unread messages fit into a socket
  prefetch_factor = { "integer", optional = true, min = 1, max = 64 },
  persistent_workers = { "boolean", optional = true },
  worker_init_fn = { "function", optional = true },
  timeout = { "number", default = 0, min = 0 },
  background = { "boolean", optional = true },
  pin_memory = { "boolean", default = false },
  multiprocessing_context = { "string", optional = true, one_of = { "fork" } },
}
local ORDER = "dataset [batch_size] [shuffle] [sampler] [batch_sampler] [num_workers] [collate_fn] " ..
  "[pin_memory] " ..
  "[drop_last] [timeout] [worker_init_fn] [multiprocessing_context] [generator]"
-- Options that a derived loader takes over, besides the dataset and the order.
local CARRIED = { "collate_fn", "num_workers", "prefetch_factor", "persistent_workers", "worker_init_fn",
  "timeout", "background",
  "pin_memory" }

--- Passes are independent of each other: a loader may be iterated inside its own loop, and a pass
--- that ended with `break` needs no closing. The fields are for reading only.
---@class accelerate.DataLoader
---@field dataset table
---@field batch_size integer|false|nil false: no batches; nil: the batch sampler decides
---@field drop_last boolean
---@field sampler table? nil for streams, and for batch samplers without one
---@field batch_sampler table? nil for streams, and without batches
---@field collate_fn function? nil: the default one
---@field generator accelerate.Generator? the option; the sampler's own is loader.sampler.generator
---@field num_workers integer
---@field prefetch_factor integer? number of batches that each worker reads ahead
---@field persistent_workers boolean
---@field worker_init_fn function?
---@field timeout number seconds; 0: none
---@field background boolean? nil: when it pays
---@field pin_memory boolean
local DataLoader = class("DataLoader")
class.optional(DataLoader,
  "batch_size sampler batch_sampler collate_fn generator prefetch_factor worker_init_fn background")
enumerable.of_iter(DataLoader)

local function refuse(given, names, because)
  for _, name in ipairs(names) do
    if given[name] then fail("DataLoader: option '%s' has no place here: %s", name, because) end
  end
end

local function check_iter(given, name)
  local object = sampler_module.of(given)
  if type(object) ~= "table" or type(object.iter) ~= "function" then
    fail("DataLoader: option '%s' must be an object with iter(), or a list, got %s", name, show(given))
  end
  return object
end

-- Sets sampler and batch_sampler for a dataset with get and len.
local function choose_samplers(self, o)
  if o.batch_sampler then
    refuse(o, { "batch_size", "shuffle", "sampler", "drop_last" }, "the batch_sampler decides it")
    self.batch_sampler = check_iter(o.batch_sampler, "batch_sampler")
    self.sampler = self.batch_sampler.sampler
    self.drop_last = false
    return
  end
  if o.sampler then
    refuse(o, { "shuffle" }, "the sampler decides the order")
    self.sampler = check_iter(o.sampler, "sampler")
  elseif o.shuffle then
    self.sampler = sampler_module.RandomSampler(self.dataset, { generator = o.generator })
  else
    self.sampler = sampler_module.SequentialSampler(self.dataset)
  end
  if self.batch_size then
    self.batch_sampler = sampler_module.BatchSampler(self.sampler,
      { batch_size = self.batch_size, drop_last = self.drop_last })
  end
end

--- Options: batch_size (default 1; false: single samples, without batches), shuffle, sampler (a
--- list of positions will do, or a tensor of them, which counts from 0), batch_sampler (also a list
--- of lists), drop_last (drop the short last batch), collate_fn, generator (for shuffling).
--- collate_fn gets a list of samples and may return several values. A sample of several parts is a
--- list of them.
---
--- num_workers is the number of processes that read batches ahead (each prefetch_factor of them,
--- default 2). Batches and their order do not depend on the number of workers. Workers are forked
--- when a pass starts. They end with the pass, or with persistent_workers when the loader ends.
--- worker_init_fn(id) runs in each, id from 0. A batch that does not arrive within timeout seconds
--- is an error. data.get_worker_info() describes the worker that the code runs in.
---
--- background: a thread copies tensors' rows one batch ahead, while the step runs. It works for a
--- TensorDataset (and parts of one) without collate_fn. By default it is used if a core is free and
--- timing the first batches shows that it gains.
---
--- pin_memory copies the tensors of a batch (at any depth) into pinned memory, which a GPU reads by
--- itself: x:to("cuda", { non_blocking = true }) then waits for nothing. Without a GPU it has no
--- effect, as in PyTorch. A prepared loader sends its batches ahead with or without it.
---@param dataset any a table with get(i) and len(), a stream with iter(), a plain list of samples
---  (a sample that is a list has its entries as parts), or a tensor, whose rows are the samples
---@param opts? table
function DataLoader:init(dataset, opts)
  local unbatched = type(opts) == "table" and opts.batch_size == false
  if unbatched then
    local copy = {}
    for key, value in next, opts do copy[key] = value end
    copy.batch_size = nil
    opts = copy
  end
  local o = options.check("DataLoader", opts, OPTIONS)
  if o.num_workers == 0 then
    for _, name in ipairs { "prefetch_factor", "persistent_workers" } do
      if o[name] then fail("DataLoader: option '%s' is about worker processes; num_workers is 0", name) end
    end
    if o.timeout > 0 then fail("DataLoader: option 'timeout' is about worker processes; num_workers is 0") end
  elseif o.background then
    fail("DataLoader: option 'background' is for reading without worker processes; num_workers is %d",
      o.num_workers)
  end
  dataset = dataset_module.of("DataLoader", dataset)
  self.dataset = dataset
  self.generator = o.generator
  for _, name in ipairs(CARRIED) do self[name] = o[name] end
  self.persistent_workers = o.persistent_workers or false
  if o.num_workers > 0 then self.prefetch_factor = o.prefetch_factor or 2 end
  self._epoch = 0
  self.drop_last = o.drop_last or false
  if not o.batch_sampler then self.batch_size = not unbatched and (o.batch_size or 1) end
  if unbatched and (o.drop_last or o.collate_fn or o.batch_sampler) then
    fail("DataLoader: batch_size = false takes no %s: there are no batches",
      o.drop_last and "drop_last" or o.collate_fn and "collate_fn" or "batch_sampler")
  end
  if dataset_module.is_map(dataset) then
    choose_samplers(self, o)
    if not self.collate_fn then
      self._read_batch = dataset_module.batch_reader(dataset)
      -- copies rows, draws no random numbers
      self._pure = self._read_batch ~= nil and dataset_module.rows_of(dataset) ~= nil
    end
  elseif dataset_module.is_stream(dataset) then
    refuse(o, { "shuffle", "sampler", "batch_sampler" },
      "the dataset is a stream (it has iter() and no get(i)) with an order of its own")
  else
    fail("DataLoader: expected a dataset with get(i) and len(), or with iter(), got %s", show(dataset))
  end
  if o.background and (o.collate_fn or not self.batch_sampler or not dataset_module.rows_of(dataset)) then
    fail("DataLoader: option 'background' needs a TensorDataset, or parts of one, read in batches and " ..
      "without a collate_fn")
  end
  self._fields = collate.new_fields()
end

-- Stores a sample in samples[j]: one value as it is, several parts as a list. Returns the number of
-- parts.
local function keep(samples, j, where, ...)
  local n = select("#", ...)
  if n == 1 then
    samples[j] = (...)
  else
    samples[j] = { ... }
  end
  for k = 1, n do
    if (select(k, ...)) == nil then
      fail("DataLoader: part %d of sample %s is nil; expected a tensor, number, boolean, string or " ..
        "table, or one that collate_fn takes", k, tostring(where))
    end
  end
  if n == 0 then fail("DataLoader: the dataset gave nothing for sample %s", tostring(where)) end
  return n
end

local reading -- the position passed to get, for the message when it raises

-- Adds the sample's position to an error. The traceback is taken here, while it still shows the
-- dataset's own lines.
local function in_sample(err)
  if type(err) == "string" then err = ("DataLoader: sample %s: %s"):format(tostring(reading), err) end
  return scope.traced(err)
end

local function read_samples(dataset, positions, samples)
  local parts
  for j = 1, #positions do
    reading = positions[j]
    local n = keep(samples, j, reading, dataset:get(reading))
    if n ~= (parts or n) then
      fail("DataLoader: sample %s has %d parts, sample %s has %d", tostring(positions[1]), parts,
        tostring(reading), n)
    end
    parts = n
  end
  return parts
end

-- Makes a batch from `samples` of `parts` parts each.
local function assemble(self, samples, parts, positions)
  if self.collate_fn then return self.collate_fn(samples) end
  if parts == 1 then return collate.values(samples, self._fields, positions) end
  return collate.parts(samples, parts, self._fields, positions)
end

local function check_task(positions)
  if type(positions) ~= "table" or getmetatable(positions) or #positions == 0 then
    fail("DataLoader: a batch sampler must give lists of at least one position, got %s",
      type(positions) == "table" and not getmetatable(positions) and "an empty list" or show(positions))
  end
  return positions
end

--- Returns the batch of the samples at these positions, as in iter().
---@param positions integer[] from 1
---@return any ... the parts of the batch, or one table
function DataLoader:read(positions)
  check_task(positions)
  if self._read_batch then return self._read_batch(self.dataset, positions) end
  local samples = {}
  local ok, parts = xpcall(read_samples, in_sample, self.dataset, positions, samples)
  if not ok then error(parts, 0) end
  return assemble(self, samples, parts, positions)
end

--- Reads one task: a list of positions. Without batches a task is the sampler's item: a position,
--- or with a batch sampler as the sampler a list of positions, for which the dataset returns a
--- batch.
function DataLoader:_fetch(task)
  if self.batch_sampler then return self:read(task) end
  if type(task) == "table" and self._read_batch then
    return self._read_batch(self.dataset, check_task(task))
  end
  return self.dataset:get(task)
end

-- Stores a sample, and keeps its first value, which is the iterator's control variable.
local function take(samples, j, where, ...)
  if (...) == nil then return nil end
  return (...), keep(samples, j, where, ...)
end

--- Returns a function that reads the stream's batches: it returns the parts of the next batch, and
--- nothing at the end.
function DataLoader:_stream()
  local nexts, state, control = options.iterator("DataLoader: the dataset", self.dataset:iter())
  if self.batch_size == false then
    local function later(...)
      control = ...
      return ...
    end
    return function() return later(nexts(state, control)) end
  end
  local size, drop_last, count = self.batch_size, self.drop_last, 0
  return function()
    if not nexts then return nil end
    local samples, positions, parts = {}, {}, nil
    for j = 1, size do
      local n
      control, n = take(samples, j, count + 1, nexts(state, control))
      if control == nil then
        nexts = nil
        if j == 1 or drop_last then return nil end
        break
      end
      count = count + 1
      positions[j] = count
      if n ~= (parts or n) then
        fail("DataLoader: sample %d has %d parts, sample %d has %d", positions[1], parts, count, n)
      end
      parts = n
    end
    return assemble(self, samples, parts, positions)
  end
end

local function stream_reader(self, seed, skip)
  local nexts = seeding.run(seed, 0, self._stream, self)
  local number = 0
  local function one()
    number = number + 1
    local batch = scope.pack(seeding.run(seed, number, nexts))
    if batch[1] ~= nil then return batch end
  end
  return function()
    while skip > 0 do
      skip = skip - 1
      if one() == nil then skip = 0 end
    end
    return one()
  end
end

--- Starts a pass: returns a function that returns the next batch as { n = number of parts, … },
--- and nil at the end.
---@param opts? { source: table?, skip: integer?, epoch: integer?, rank: integer?, seed: integer? }
---  source: replaces the positions of the loader's (batch) sampler; skip: number of batches to
---  skip; epoch: number of the pass; seed: seed of its random numbers
---@return fun(): table?
---@return fun()? close ends the pass and its worker processes early; nil when there is nothing to
---  end
function DataLoader:_start(opts)
  if not self.pin_memory or core._worker_inside() or core.device_count("cuda") == 0 then
    return self:_start_reading(opts)
  end
  local next_batch, close = self:_start_reading(opts)
  return function()
    local batch = next_batch()
    return batch and transfer.pin(batch)
  end, close
end

function DataLoader:_start_reading(opts)
  opts = opts or {}
  local skip, epoch = opts.skip or 0, opts.epoch
  local announced = epoch ~= nil or self._announced ~= nil
  if not epoch then
    epoch = self._epoch
    self._epoch = epoch + 1
  end
  local seed = opts.seed or seeding.pass(epoch, opts.rank or core.dist.rank())
  local source = opts.source or self.batch_sampler or self.sampler
  if not source then
    if self.num_workers > 0 then return workers.read(self, nil, seed, epoch, skip, announced) end
    return stream_reader(self, seed, skip)
  end
  local before = skip + (self._skipped or 0) -- number of batches before the first one read here
  if self.num_workers > 0 then
    return workers.read(self, fetch.tasks_of(source, skip), seed, epoch, before, announced)
  end
  local gatherer, to_rows = fetch.gatherer_for(self, source)
  if gatherer then
    return fetch.background_reader(fetch.tasks_of(source, skip), gatherer,
      function(task) return to_rows(check_task(task)) end, self.background)
  end
  return fetch.plain_reader(self, fetch.tasks_of(source, skip), seed, before)
end

--- Returns the options that a loader over other positions, or another dataset, takes over.
---@return table
function DataLoader:_carried()
  local opts = {}
  for _, name in ipairs(CARRIED) do opts[name] = self[name] end
  if not self.persistent_workers then opts.persistent_workers = nil end
  return opts
end

-- Warns once, on the main process, that a pass has no batches. PyTorch's loader allows it, but
-- training on nothing is never meant.
local function warn_empty(self)
  if not self.drop_last or type(self.sampler.len) ~= "function" then return end
  local n = self.sampler:len()
  if n > 0 and n < self.batch_size then
    notice.main_once("DataLoader: there are %d samples, fewer than batch_size %d, and drop_last leaves " ..
      "no batch of them", n, self.batch_size)
  end
end

-- Warns about a pass over the loader that was passed to `prepare`, when it differs from a pass over
-- the prepared one.
local function warn_prepared(self)
  local gradient_state = require("accelerate.state").GradientState()
  if core.dist.world_size() == 1 and gradient_state.num_steps == 1 and self._prepared == "cpu" then return end
  notice.trap("loader given to prepare", "a pass over the loader that was given to prepare, not over the " ..
    "one that it returned: its batches are not shared out over ranks and not moved to the device; use " ..
    "the results: loader = accelerator:prepare(loader)")
end

--- Raises an error that names `loader:iter()`, for `for x, y in loader do` as in Python.
function DataLoader:__call()
  fail("%s: a loader is walked by its iter: for x, y in loader:iter() do ... end", class.of(self).__name)
end

--- Starts a pass: `for images, labels in loader:iter() do … end`, or with batch numbers from 1,
--- like Python's enumerate, `for i, images, labels in ipairs(loader) do … end`. Yields a batch's
--- parts as several values, or one table when the samples are tables. Warns when drop_last leaves
--- no batch.
---@return function
function DataLoader:iter()
  if self.batch_sampler then warn_empty(self) end
  if self._prepared then warn_prepared(self) end
  local next_batch = self:_start()
  return function()
    local batch = next_batch()
    if batch then return unpack(batch, 1, batch.n) end
  end
end

--- Ends the worker processes at once, including those of passes that ended with `break` (otherwise
--- the collector ends them). The loader stays usable.
function DataLoader:close() workers.close(self) end

--- Returns the number of batches of a pass, as `#loader` does. Raises when a sampler or a stream
--- without len() leaves it unknown.
---@return integer
function DataLoader:len()
  local counted = self.batch_sampler or self.sampler or self.dataset
  if type(counted.len) ~= "function" then
    fail("DataLoader:len: the length is not known, because the %s has no len()",
      self.batch_sampler and "batch sampler" or self.sampler and "sampler" or "stream")
  end
  local n = counted:len()
  if self.batch_sampler or not self.batch_size then return n end
  return (self.drop_last and math.floor or math.ceil)(n / self.batch_size)
end

--- Sets the number of the next pass in the batch sampler, the sampler and the dataset, where they
--- have set_epoch.
---@param epoch integer from 0
function DataLoader:set_epoch(epoch)
  if type(epoch) ~= "number" or epoch % 1 ~= 0 or epoch < 0 then
    fail("set_epoch: expected an integer of 0 or more, got %s", show(epoch))
  end
  self._epoch, self._announced = epoch, epoch
  for _, part in ipairs { self.batch_sampler or false, self.sampler or false, self.dataset } do
    if part and type(part.set_epoch) == "function" then part:set_epoch(epoch) end
  end
end

DataLoader.init = by_position.arrange("DataLoader", ORDER, DataLoader.init, true)

return DataLoader
