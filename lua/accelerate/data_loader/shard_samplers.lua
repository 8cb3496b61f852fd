--- Decides which rank gets which samples: pure arithmetic over batch samplers and streams, as in
--- Accelerate.
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local enumerable = require "accelerate.utils.enumerable"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

--- Returns the length of a sampler, a data set or a list; nil when unknown.
local function length_of(object)
  if type(object) == "table" and type(object.len) == "function" then return object:len() end
end

--- Returns a function that steps through `object:iter(...)`.
local function stepper(object, ...)
  local nexts, state, control = object:iter(...)
  return function()
    control = nexts(state, control)
    return control
  end
end

--- Starts a pass of a (batch) sampler, without its first `skip` items.
---@param inner table with iter()
---@param skip integer
---@param head_size integer how many of the first items to return as `head`
---@return fun(): any next_item
---@return any[]? head the first items; nil when nothing is skipped, because next_item returns them
local function start(inner, skip, head_size)
  if skip == 0 then return stepper(inner), nil end
  local at = require("accelerate.data.sampler").access(inner)
  local head = {}
  if at then
    for i = 1, math.min(head_size, skip) do head[i] = at(i) end
    local i = skip
    return function()
      i = i + 1
      return at(i)
    end, head
  end
  if head_size == 0 and inner.seekable then return stepper(inner, skip), head end
  local next_item = stepper(inner)  -- positions are read and dropped; no sample is
  for i = 1, skip do
    local item = next_item()
    if item == nil then return function() end, head end
    if i <= head_size then head[i] = item end
  end
  return next_item, head
end
M.start = start

local function check_iter(where, what, object)
  if type(object) ~= "table" or type(object.iter) ~= "function" then
    fail("%s: expected %s with iter(), got %s", where, what, options.show(object))
  end
end

local function check_index(where, o)
  if o.process_index >= o.num_processes then
    fail("%s: option 'process_index' must be 0 to %d, got %d", where, o.num_processes - 1, o.process_index)
  end
end

local function append(list, other, from, to)
  for i = from or 1, to or #other do list[#list + 1] = other[i] end
end

local function slice(list, from, to)
  local part = {}
  for i = from, math.min(to, #list) do part[#part + 1] = list[i] end
  return part
end

--- Repeats `list` until it has at least `count` entries.
local function repeated(list, count)
  local long = slice(list, 1, #list)
  while #long < count do append(long, long, 1, #long) end
  return long
end

-- ---- batches of a map-style data set

--- Gives one rank's batches.
---
--- Whole batches are dealt to the ranks in rounds. An incomplete last round is filled with samples
--- from the START of the sampler, so that all ranks get the same number of full batches. With
--- even_batches = false it is not filled; with drop_last it is dropped.
---
--- With split_batches every batch is cut into one piece for each rank instead, and a short last
--- batch is filled from the first one.
---@class accelerate.BatchSamplerShard
---@field batch_sampler table with iter(), which yields lists of indices, and len()
---@field batch_size integer? nil: lists of any length, dealt whole
---@field drop_last boolean
---@field num_processes integer
---@field process_index integer
---@field split_batches boolean
---@field even_batches boolean may be assigned
---@field real_items integer? number of items in the last round before it was filled; nil until a
---  pass has filled one
local Shard = class("BatchSamplerShard")
class.optional(Shard, "batch_size real_items")
enumerable.of_iter(Shard)
Shard.seekable = true  -- iter takes a number of batches to skip

local SHARD = {
  num_processes = { "integer", default = 1, min = 1 },
  process_index = { "integer", default = 0, min = 0 },
  split_batches = { "boolean", default = false },
  even_batches = { "boolean|function", default = true },
}

---@param batch_sampler table
---@param opts? { num_processes: integer?, process_index: integer?, split_batches: boolean?,
---  even_batches: (boolean|fun(): boolean)? }
function Shard:init(batch_sampler, opts)
  check_iter("BatchSamplerShard", "a batch sampler", batch_sampler)
  local o = options.check("BatchSamplerShard", opts, SHARD)
  check_index("BatchSamplerShard", o)
  if type(batch_sampler) ~= "table" then
    fail("BatchSamplerShard: batch_sampler must be a batch sampler, got %s", options.show(batch_sampler))
  end
  self.batch_sampler = batch_sampler
  self.batch_size = batch_sampler.batch_size
  self.drop_last = batch_sampler.drop_last or false
  self.num_processes, self.process_index = o.num_processes, o.process_index
  self.split_batches, self.even_batches = o.split_batches, o.even_batches
  if self.split_batches and (not self.batch_size or self.batch_size % self.num_processes ~= 0) then
    fail("BatchSamplerShard: split_batches needs a batch size that is a multiple of the %d processes, got %s",
      self.num_processes,
      tostring(self.batch_size))
  end
end

-- even_batches reads as true or false, also when a function decides it.
function Shard.__index(self, key)
  if key ~= "even_batches" then return Shard[key] end
  local even = rawget(self, "_even_batches")
  if type(even) == "function" then return even() end
  return even
end

function Shard.__newindex(self, key, value)
  rawset(self, key == "even_batches" and "_even_batches" or key, value)
end

-- Returns whether an incomplete last round is filled from the start.
function Shard:_fills() return not self.drop_last and self.even_batches end

--- Returns the number of batches for this rank.
function Shard:len()
  local count, ranks = length_of(self.batch_sampler), self.num_processes
  if not count then fail("BatchSamplerShard: the batch sampler has no len method") end
  if self.split_batches or count % ranks == 0 then return self.split_batches and count or count / ranks end
  local rounds = math.floor(count / ranks)
  if self.drop_last then return rounds end
  if self.even_batches then return rounds + 1 end
  return self.process_index < count % ranks and rounds + 1 or rounds
end

--- Returns this rank's batch of an incomplete last round.
---@param round any[][] the round's batches: at most one for each rank; the last may be short
---@param first any[][] the first round
local function fill_round(self, round, first)
  local size, ranks = self.batch_size, self.num_processes
  if not size then  -- lists of any length: the first ones are repeated
    if round[self.process_index + 1] then return round[self.process_index + 1] end
    return repeated(first, ranks)[self.process_index - #round + 1]
  end
  local fill = {}
  for _, batch in ipairs(first) do append(fill, batch) end
  if #fill == 0 then return nil end
  fill = repeated(fill, ranks * size)
  local at, batch = 0, nil
  for index = 0, self.process_index do  -- ranks take consecutive items of `fill`
    batch = slice(round[index + 1] or {}, 1, size)
    local wanted = size - #batch
    append(batch, fill, at + 1, at + wanted)
    at = at + wanted
  end
  return batch
end

local function items_in(round)
  local count = 0
  for _, batch in ipairs(round) do count = count + (type(batch) == "table" and #batch or 1) end
  return count
end

local function iter_whole(self, skip)
  local ranks, size = self.num_processes, self.batch_size
  local next_batch, first = start(self.batch_sampler, skip * ranks, self:_fills() and ranks or 0)
  local ahead, ended
  local function pull()
    if ahead then
      local batch = ahead
      ahead = nil
      return batch
    end
    return next_batch()
  end
  return function()
    if ended then return nil end
    local round = {}
    for i = 1, ranks do
      round[i] = pull()
      if round[i] == nil then break end
    end
    first = first or round
    local full = #round == ranks and (size == nil or #round[ranks] == size)
    if #round == ranks and not full then
      ahead = next_batch()  -- a short batch is the last one, except with a script's own samplers
      full = ahead ~= nil
    end
    if full then return round[self.process_index + 1] end
    ended = true
    if self.drop_last or #round == 0 then return nil end
    if self.even_batches then
      self.real_items = items_in(round)
      return fill_round(self, round, first)
    end
    local mine = round[self.process_index + 1]
    if type(mine) == "table" and #mine == 0 then return nil end
    return mine
  end
end

local function iter_split(self, skip)
  local size = self.batch_size
  local next_batch, head = start(self.batch_sampler, skip, self:_fills() and 1 or 0)
  local piece = size / self.num_processes
  local from = piece * self.process_index
  local first = head and head[1]
  return function()
    local batch = next_batch()
    if batch == nil then return nil end
    first = first or batch
    if #batch < size then
      if self.drop_last or #batch == 0 then return nil end
      if self.even_batches then
        self.real_items = #batch
        local filled = slice(batch, 1, #batch)
        append(filled, repeated(first, size))
        batch = filled
      elseif #batch <= from then
        return nil
      end
    end
    return slice(batch, from + 1, from + piece)
  end
end

--- Returns an iterator over lists of positions.
---@param skip integer? number of this rank's batches to skip
function Shard:iter(skip)
  self.real_items = nil
  if self.split_batches then return iter_split(self, skip or 0) end
  return iter_whole(self, skip or 0)
end

--- Passes the epoch on to the batch sampler and the samplers inside it.
---@param epoch integer from 0
function Shard:set_epoch(epoch) M.set_epoch(self.batch_sampler, epoch) end

M.BatchSamplerShard = Shard

--- Calls set_epoch of `object`, or of the sampler inside it. Objects without set_epoch are ignored.
function M.set_epoch(object, epoch)
  while type(object) == "table" do
    if type(object.set_epoch) == "function" then return object:set_epoch(epoch) end
    object = object.sampler or object.batch_sampler
  end
end

-- ---- streams

--- Gives one rank's items of a data set that has iter() but no get(i). Every rank reads the whole
--- stream and keeps its slice of each round. An incomplete last round is filled from the first one,
--- or dropped with drop_last.
---@class accelerate.IterableDatasetShard
local Stream = class("IterableDatasetShard")
enumerable.of_iter(Stream)

local STREAM = {
  batch_size = { "integer", default = 1, min = 1 },
  drop_last = { "boolean", default = false },
  num_processes = { "integer", default = 1, min = 1 },
  process_index = { "integer", default = 0, min = 0 },
  split_batches = { "boolean", default = false },
}

---@param dataset table with iter()
---@param opts? { batch_size: integer?, drop_last: boolean?, num_processes: integer?, process_index:
---  integer?, split_batches: boolean? }
function Stream:init(dataset, opts)
  check_iter("IterableDatasetShard", "a data set", dataset)
  local o = options.check("IterableDatasetShard", opts, STREAM)
  check_index("IterableDatasetShard", o)
  self.dataset = dataset
  for name, value in pairs(o) do self[name] = value end
  if o.split_batches and o.batch_size % o.num_processes ~= 0 then
    fail("IterableDatasetShard: split_batches needs a batch size that is a multiple of the %d " ..
      "processes, got %d", o.num_processes,
      o.batch_size)
  end
end

--- Passes the epoch on to the data set.
---@param epoch integer from 0
function Stream:set_epoch(epoch) M.set_epoch(self.dataset, epoch) end

--- Returns the number of items for this rank, in whole rounds over all ranks (as in Accelerate,
--- also with split_batches).
---@return integer
function Stream:len()
  local count = length_of(self.dataset)
  if not count then fail("IterableDatasetShard: the data set has no len method") end
  local rounds = count / (self.batch_size * self.num_processes)
  return (self.drop_last and math.floor(rounds) or math.ceil(rounds)) * self.batch_size
end

--- Returns an iterator over items; items of several values stay several values.
function Stream:iter()
  local nexts, state, control = options.iterator("IterableDatasetShard: the data set", self.dataset:iter())
  local round_size = self.split_batches and self.batch_size or self.batch_size * self.num_processes
  local mine = self.split_batches and math.floor(self.batch_size / self.num_processes) or self.batch_size
  local from = self.process_index * mine
  local first, round, at = nil, nil, mine  -- at: number of this round's items already returned
  self.real_items = round_size  -- of the last round that was read

  local function next_item()
    local item = scope.pack(nexts(state, control))
    control = item[1]
    if control ~= nil then return item end
  end

  -- Returns the next round, filled if it is incomplete; nil at the end.
  local function read_round()
    local items = {}
    for i = 1, round_size do
      items[i] = next_item()
      if items[i] == nil then break end
    end
    if #items == 0 then return nil end
    if #items < round_size then
      if self.drop_last then return nil end
      self.real_items = #items
      local filling = first or slice(items, 1, #items)
      while #items < round_size do append(items, filling, 1, #filling) end
    end
    first = first or items
    return items
  end

  return function()
    if at >= mine then
      round, at = read_round(), 0
      if not round then
        at, nexts = mine, function() end
        return nil
      end
    end
    at = at + 1
    local item = round[from + at]
    return unpack(item, 1, item.n)
  end
end

M.IterableDatasetShard = Stream

-- ---- skipping the beginning

--- A batch sampler without its first `skip_batches` batches.
---@class accelerate.SkipBatchSampler
---@field batch_sampler table
---@field skip_batches integer
local Skip = class("SkipBatchSampler")
enumerable.of_iter(Skip)
Skip.seekable = true

---@param batch_sampler table with iter()
---@param skip_batches integer? default 0
function Skip:init(batch_sampler, skip_batches)
  check_iter("SkipBatchSampler", "a batch sampler", batch_sampler)
  self.batch_sampler = batch_sampler
  self.skip_batches = options.value("SkipBatchSampler", "skip_batches", skip_batches,
    { "integer", default = 0, min = 0 })
  self.batch_size, self.drop_last = batch_sampler.batch_size, batch_sampler.drop_last
  self.split_batches, self.num_processes = batch_sampler.split_batches, batch_sampler.num_processes
  self.total_length = length_of(batch_sampler) -- nil when unknown
  self.sampler = batch_sampler.sampler
end

--- Returns the batch sampler's length less skip_batches.
function Skip:len()
  local whole = length_of(self.batch_sampler)
  if not whole then fail("SkipBatchSampler: the batch sampler has no len method") end
  return math.max(0, whole - self.skip_batches)
end
function Skip:set_epoch(epoch) M.set_epoch(self.batch_sampler, epoch) end

function Skip:iter(skip) return (start(self.batch_sampler, self.skip_batches + (skip or 0), 0)) end

M.SkipBatchSampler = Skip

return M
