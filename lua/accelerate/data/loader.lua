--- The loader: reads samples in a sampler's order and gives batches.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local collate = require "accelerate.data.collate"
local dataset_module = require "accelerate.data.dataset"
local options = require "accelerate.utils.options"
local sampler_module = require "accelerate.data.sampler"
local scope = require "accelerate.utils.scope"

local fail, show = options.fail, options.show

local OPTIONS = {
  batch_size = { "integer", optional = true, min = 1 },
  shuffle = { "boolean", optional = true },
  sampler = { "table", optional = true },
  batch_sampler = { "table", optional = true },
  drop_last = { "boolean", optional = true },
  collate_fn = { "function", optional = true },
  generator = { "Generator", optional = true },
  num_workers = { "integer", default = 0, min = 0 },
}

--- Passes are independent of each other: the same loader may be walked inside its own loop, and a pass that was left by
--- `break` needs no closing. The fields may be read by whoever makes another loader of this one; they are not to be set.
---@class accelerate.DataLoader
---@field dataset table
---@field batch_size integer|false|nil false: no batches; nil: the batch sampler decides
---@field drop_last boolean
---@field sampler table? nil for streams, and for batch samplers that have none
---@field batch_sampler table? nil for streams, and without batches
---@field collate_fn function? nil: ours
---@field generator accelerate.Generator? as given; the sampler's own is loader.sampler.generator
local DataLoader = class("DataLoader")

local function refuse(given, names, because)
  for _, name in ipairs(names) do
    if given[name] then fail("DataLoader: option '%s' has no place here: %s", name, because) end
  end
end

local function check_iter(object, name)
  if type(object.iter) ~= "function" then
    fail("DataLoader: option '%s' must be an object with iter(), got %s", name, show(object))
  end
end

-- Fills in sampler and batch_sampler for a dataset with get and len.
local function choose_samplers(self, o)
  if o.batch_sampler then
    refuse(o, { "batch_size", "shuffle", "sampler", "drop_last" }, "the batch_sampler decides it")
    check_iter(o.batch_sampler, "batch_sampler")
    self.batch_sampler, self.sampler = o.batch_sampler, o.batch_sampler.sampler
    self.drop_last = false
    return
  end
  if o.sampler then
    refuse(o, { "shuffle" }, "the sampler decides the order")
    check_iter(o.sampler, "sampler")
    self.sampler = o.sampler
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

--- batch_size (default 1; false: samples one by one, as they are), shuffle, sampler, batch_sampler, drop_last (leave
--- out the short last batch), collate_fn, generator (of the shuffling). collate_fn gets a list of samples (a sample of
--- several parts is a list of them) and may return several values.
---@param dataset table with get(i) and len(), or a stream with iter()
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
  if o.num_workers ~= 0 then
    fail("DataLoader: worker processes are not there yet: num_workers must be 0, got %d", o.num_workers)
  end
  self.dataset = dataset
  self.collate_fn, self.generator = o.collate_fn, o.generator
  self.drop_last = o.drop_last or false
  if not o.batch_sampler then self.batch_size = not unbatched and (o.batch_size or 1) end
  if unbatched and (o.drop_last or o.collate_fn or o.batch_sampler) then
    fail("DataLoader: batch_size = false takes no %s: there are no batches",
      o.drop_last and "drop_last" or o.collate_fn and "collate_fn" or "batch_sampler")
  end
  if dataset_module.is_map(dataset) then
    choose_samplers(self, o)
    if not self.collate_fn then self._read_batch = dataset_module.batch_reader(dataset) end
  elseif dataset_module.is_stream(dataset) then
    refuse(o, { "shuffle", "sampler", "batch_sampler" },
      "the dataset is a stream (it has iter() and no get(i)) with an order of its own")
  else
    fail("DataLoader: expected a dataset with get(i) and len(), or with iter(), got %s", show(dataset))
  end
  self._fields = collate.new_fields()
end

-- Puts the parts of a sample at samples[j]: one value as it is, several as a list. Returns their number.
local function keep(samples, j, where, ...)
  local n = select("#", ...)
  if n == 1 then
    samples[j] = (...)
  else
    samples[j] = { ... }
  end
  for k = 1, n do
    if (select(k, ...)) == nil then fail("DataLoader: part %d of sample %s is nil", k, tostring(where)) end
  end
  if n == 0 then fail("DataLoader: the dataset gave nothing for sample %s", tostring(where)) end
  return n
end

local reading -- the position that get was called with; for the message when it raises

-- Adds which sample it was. The stack is taken here, while it still shows the dataset's own lines.
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
      fail("DataLoader: sample %s has %d parts, sample %s has %d", tostring(positions[1]), parts, tostring(reading), n)
    end
    parts = n
  end
  return parts
end

-- Makes the batch of `samples`, which have `parts` parts each.
local function assemble(self, samples, parts, positions)
  if self.collate_fn then return self.collate_fn(samples) end
  if parts == 1 then return collate.values(samples, self._fields, positions) end
  return collate.parts(samples, parts, self._fields, positions)
end

--- The batch of the samples at these positions, as iter() gives it.
---@param positions integer[] counted from 1
---@return any ... the parts of the batch, or one table
function DataLoader:read(positions)
  if type(positions) ~= "table" or getmetatable(positions) or #positions == 0 then
    fail("DataLoader: a batch sampler must give lists of at least one position, got %s",
      type(positions) == "table" and not getmetatable(positions) and "an empty list" or show(positions))
  end
  if self._read_batch then return self._read_batch(self.dataset, positions) end
  local samples = {}
  local ok, parts = xpcall(read_samples, in_sample, self.dataset, positions, samples)
  if not ok then error(parts, 0) end
  return assemble(self, samples, parts, positions)
end

local function batches(self)
  local nexts, state, positions = self.batch_sampler:iter()
  return function()
    if not nexts then return nil end
    positions = nexts(state, positions)
    if positions == nil then
      nexts = nil
      return nil
    end
    return self:read(positions)
  end
end

local function single_samples(self)
  local nexts, state, position = self.sampler:iter()
  return function()
    if not nexts then return nil end
    position = nexts(state, position)
    if position == nil then
      nexts = nil
      return nil
    end
    return self.dataset:get(position)
  end
end

-- Keeps the first value, which is the control variable of the stream's iterator, beside the sample.
local function take(samples, j, where, ...)
  if (...) == nil then return nil end
  return (...), keep(samples, j, where, ...)
end

local function stream(self)
  local nexts, state, control = self.dataset:iter()
  if self.batch_size == false then return nexts, state, control end
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

-- Training on nothing is never what was meant, but PyTorch's loader allows it: said once, on the main process.
local function warn_empty(self)
  if self._warned or not self.drop_last or type(self.sampler.len) ~= "function" then return end
  local n = self.sampler:len()
  if n > 0 and n < self.batch_size and core.dist.rank() == 0 then
    self._warned = true
    io.stderr:write(("DataLoader: there are %d samples, fewer than batch_size %d, and drop_last leaves no batch of them\n"):format(
      n, self.batch_size))
  end
end

--- Starts a pass: `for images, labels in loader:iter() do … end`. Gives the batch's parts as several values, or one
--- table when the samples are tables. Warns when there are samples, but drop_last leaves not one
--- batch of them.
---@return function
function DataLoader:iter()
  if self.batch_sampler then
    warn_empty(self)
    return batches(self)
  end
  if self.sampler then return single_samples(self) end
  return stream(self)
end

--- The number of batches of a pass. Raises when it is not known: a sampler or a stream without len().
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

--- Says that the next pass is epoch `epoch`, to the batch sampler, the sampler and the dataset, as far as they want to know.
---@param epoch integer from 0
function DataLoader:set_epoch(epoch)
  if type(epoch) ~= "number" or epoch % 1 ~= 0 or epoch < 0 then
    fail("set_epoch: expected an integer of 0 or more, got %s", show(epoch))
  end
  for _, part in ipairs { self.batch_sampler or false, self.sampler or false, self.dataset } do
    if part and type(part.set_epoch) == "function" then part:set_epoch(epoch) end
  end
end

return DataLoader
