--- DataLoaderDispatcher: rank 0 reads for all ranks.
---
--- In each step rank 0 joins the batches of all ranks (with split_batches it takes one batch),
--- evens out the last one, sends one message that describes the step, and then sends its tensors.
--- Every rank takes its slice. Rank 0 reads one step ahead before it sends, so a message says
--- whether its step is the last one. An error on rank 0 is sent in the message, and all ranks raise
--- it.
local batches = require "accelerate.data_loader.batches"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local operations = require "accelerate.collectives.operations"
local options = require "accelerate.utils.options"
local passes = require "accelerate.data_loader.pass"
local prepared = require "accelerate.data_loader.prepared"
local scope = require "accelerate.utils.scope"
local seeding = require "accelerate.data.seeding"
local sharding = require "accelerate.data_loader.shard_samplers"
local signals = require "accelerate.utils.signals"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

local M = {}

--- Gives this rank its slice of the batches that rank 0 reads. Its fields and its other methods are
--- DataLoaderShard's.
---@class accelerate.DataLoaderDispatcher: accelerate.PreparedLoader
local Dispatcher = {}

--- Returns how many batches of the base loader make a step.
local function batches_in_step(self) return self._split_batches and 1 or self._num_processes end

-- ---- rank 0

---@class accelerate.DispatchedStep
---@field value any all items
---@field n integer parts of the batch
---@field items integer
---@field whole table? which fields do not count items, where that is known (see batches.whole_of)

--- Joins batches that were read in a row into one step.
---@param fields table what the pass's batches have shown about their fields
---@return accelerate.DispatchedStep
local function joined(self, list, fields)
  local values, counts, n = {}, {}, list[1].n
  for i, batch in ipairs(list) do
    if batch.n ~= n then fail("dispatch_batches: one batch has %d parts, another one %d", n, batch.n) end
    values[i] = batches.value(batch)
    counts[i] = batches.count(values[i], n)
    if not counts[i] then
      if self._num_processes == 1 then return { value = values[1], n = n, items = 1 } end
      fail("dispatch_batches: the batch has no tensor with dims and no list, so there are no items to " ..
        "share out; " ..
        "pass dispatch_batches = false, so that every process reads its own")
    end
  end
  local items = 0
  for _, count in ipairs(counts) do items = items + count end
  batches.weigh(fields, values, counts, n)
  -- what is joined must be cut alike; one batch alone may wait for what the next one shows
  local whole = #list > 1 and batches.whole_of(fields) or nil
  return { value = batches.join(values, counts, whole), n = n, items = items, whole = whole }
end

-- The first items of a step, one for each rank.
local function first_of(self, made, whole)
  local count = math.min(self._num_processes, made.items)
  return { value = batches.slice(made.value, 1, count, made.items, made.whole or whole), items = count }
end

--- Returns a function for the steps of a pass, and one for the first items of its first step.
local function reader(self, pass, fields)
  local base, per_step = self._base, batches_in_step(self)
  local source, skip, head = self._batch_sampler or self._sampler, pass.taken * per_step, nil
  local seed = pass:draw_seed(self._process_index)
  local start = { skip = skip, epoch = pass.iteration, rank = self._process_index, seed = seed }
  if source then
    local want = self._drop_last and 0 or per_step
    start.source = { seekable = true, iter = function(_, late)
      local nexts
      nexts, head = sharding.start(source, late, want)
      return nexts
    end }
  else
    start.skip = 0 -- a stream's first step is read, because its items may be needed
  end
  local next_batch = base:_start(start)

  local first
  local function step()
    local list = {}
    while #list < per_step do
      local batch = next_batch()
      if not batch then break end
      list[#list + 1] = batch
    end
    if #list == 0 or self._drop_last and #list < per_step then return nil end
    local made = joined(self, list, fields)
    if not first and not self._drop_last then first = made end
    return made
  end

  if not source then
    for _ = 1, pass.taken do
      if not step() then break end
    end
  end
  return step, function(whole)
    if first and (not head or skip == 0) then return first_of(self, first, whole) end
    -- The pass began in the middle. Its first items are read now, with the random numbers that they
    -- had.
    local list = {}
    for i, task in ipairs(head) do
      local number = i + (base._skipped or 0)
      list[i] = scope.pack(seeding.run(seed, number,
        base._fetch, base, task))
    end
    return first_of(self, joined(self, list, fields), whole)
  end
end

--- Makes the number of items in the last step divisible by the ranks: drop_last drops the surplus;
--- otherwise the first items of the pass are repeated.
---@return accelerate.DispatchedStep
local function evened(self, step, first_items)
  local ranks = self._num_processes
  local over = step.items % ranks
  if over == 0 then return step end
  if self._drop_last then
    local count = step.items - over
    return { value = batches.slice(step.value, 1, count, step.items, step.whole), n = step.n, items = count,
      whole = step.whole }
  end
  local first, missing = first_items(step.whole), ranks - over
  local values, counts, have = { step.value }, { step.items }, 0
  while have < missing do
    local count = math.min(first.items, missing - have)
    values[#values + 1], counts[#counts + 1] = batches.slice(first.value, 1, count, first.items, step.whole),
      count
    have = have + count
  end
  return { value = batches.join(values, counts, step.whole), n = step.n, items = step.items + missing,
    whole = step.whole }
end

--- Returns rank 0's side of a pass: a function that returns the next message and its tensors.
local function producer(self, pass)
  local ranks = self._num_processes
  local next_step, first_items, ahead, number
  local fields = { alone = batches_in_step(self) == 1 }
  return function()
    if not next_step then
      next_step, first_items = reader(self, pass, fields)
      ahead, number = next_step(), pass.taken
    end
    local step = ahead
    if not step then return { over = true }, {} end
    ahead, number = next_step(), number + 1
    local items, is_last = step.items, ahead == nil
    step.whole = step.whole or batches.whole_of(fields)
    if is_last then
      step = evened(self, step, first_items)
    elseif items % ranks ~= 0 then
      fail("dispatch_batches: step %d has %d items for %d processes, and only the last step may be " ..
        "uneven; use batches of one size%s",
        number, items, ranks, self._split_batches and "" or ", or pass dispatch_batches = false")
    end
    if step.items == 0 then return { over = true }, {} end
    local skeleton, tensors, orders = batches.unpack_tensors(step.value)
    local forms = {}
    for i, t in ipairs(tensors) do forms[i] = { t.dtype, t.shape } end
    return { is_last = is_last, real = items, items = step.items, n = step.n, batch = skeleton, forms = forms,
      orders = orders, whole = step.whole }, tensors
  end
end

-- ---- all ranks

--- Returns the next message and its tensors on every rank. Raises rank 0's error on all ranks.
local function exchange(self, produce)
  local here, alone = self._process_index == 0, self._num_processes == 1
  local ok, message, tensors, text
  if here then
    if alone then return produce() end
    ok, message, tensors = pcall(produce)
    if ok then ok, text = pcall(operations.serialize, message, "the step") end
    if not ok then
      local problem = text or message
      core.dist.broadcast_bytes(operations.serialize { error = tostring(problem) }, 0)
      error(problem, 0)
    end
  end
  text = core.dist.broadcast_bytes(text, 0)
  if not here then
    message, tensors = operations.deserialize(text), {}
    if message.error then error("DataLoader: on rank 0, which reads for all: " .. message.error, 0) end
    for i, form in ipairs(message.forms or {}) do tensors[i] = core.empty(form[2], { dtype = form[1] }) end
  end
  for _, t in ipairs(tensors) do
    if t:numel() > 0 then core.dist.broadcast(t, 0) end
  end
  return message, tensors
end

--- Returns this rank's part of a step.
local function part_of(self, message, tensors)
  local value = batches.pack_tensors(message.batch, tensors, message.orders)
  if self._num_processes == 1 and not self._slice_fn then return batches.parts(value, message.n) end
  local each = message.items / self._num_processes
  local first, last = self._process_index * each + 1, (self._process_index + 1) * each
  if self._slice_fn then
    value = self._slice_fn(value, { first, last }, self._process_index, self._num_processes)
    if value == nil then fail("slice_fn_for_dispatch: returned nothing for items %d to %d", first, last) end
  else
    value = batches.slice(value, first, last, message.items, message.whole)
  end
  return batches.parts(value, message.n)
end

--- Starts a pass: `for x, y in loader:iter() do ... end`. All ranks must run the loop, because each
--- step is sent to all of them.
---@return function
function Dispatcher:iter()
  local pass = passes.start(self)
  if self._process_index ~= 0 and class.is(self._sampler, require("accelerate.data").DrawnSampler) then
    self._sampler:pass_over() -- as if this rank had read it
  end
  local produce = self._process_index == 0 and producer(self, pass) or nil
  self:begin()
  local over, ended, ahead = false, false, nil
  local function fetch()
    local message, tensors = exchange(self, produce)
    return { message = message, batch = not message.over and pass:send(part_of(self, message, tensors))
      or nil }
  end
  -- With a GPU the next step is exchanged and sent before this one is returned, at one point on all
  -- ranks. An error in it is raised when that step is due.
  local travels = self._device and self._device ~= "cpu"
  local function take()
    local step = ahead
    ahead = nil
    if not step then return fetch() end
    if step.problem then error(step.problem, 0) end
    return step
  end
  return function()
    if over then return nil end
    signals.check_signal()
    gradient_state:_enter(self)
    local step = not ended and take()
    if ended or step.message.over then
      over = true
      pass:finish(ended)
      return nil
    end
    local message = step.message
    ended = message.is_last
    if travels and not ended then
      local ok, result = pcall(fetch)
      ahead = ok and result or { problem = result }
    end
    pass:give(ended, self._drop_last and message.items or message.real)
    local batch = pass:place(step.batch)
    return unpack(batch, 1, batch.n)
  end
end

--- Returns the number of steps.
---@return integer
function Dispatcher:len()
  local whole = self._base:len()
  if not self._split_batches then
    whole = (self._drop_last and math.floor or math.ceil)(whole / self._num_processes)
  end
  return math.max(0, whole - self._skip)
end

M.Class = prepared.define("DataLoaderDispatcher", Dispatcher)

-- Makes a DataLoaderDispatcher from a loader.
--@param loader accelerate.DataLoader
--@param o table see prepare_data_loader
function M.make(loader, o)
  local self = M.Class.new()
  prepared.fill(self, loader, o)
  self._slice_fn = o.slice_fn_for_dispatch
  self._shares_seed = true
  return self
end

M.is = function(value) return type(value) == "table" and getmetatable(value) == M.Class end

return M
