--- Samplers: the order in which a loader reads a dataset.
---
--- `iter()` yields positions, from 1; a batch sampler's `iter()` yields lists of them. `#sampler`
--- is its len(), and `for i, position in ipairs(sampler) do` counts the items. The samplers below
--- also take `iter(skip)`, which starts `skip` items later without computing the ones before.
---
--- The order of a random pass is a pure function of (seed, epoch, position): it is `randperm` at
--- draw number `epoch` of a generator with that seed. Each pass consumes one draw of the sampler's
--- generator, so the passes of a new one are epochs 0, 1, 2 …; set_epoch(e) makes the next pass
--- epoch e whatever was drawn before. Ranks with equal generator states (16 bytes,
--- `generator:get_state()`), or equal (seed, epoch), have equal orders.
---
--- A sampler without a generator or seed follows `tensor.manual_seed`: it reads the seed when a
--- pass begins, and the first pass after a seeding is epoch 0. Other draws, before or after, change
--- nothing. Such samplers have different orders: each gets a number when it first reads the seed.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local enumerable = require "accelerate.utils.enumerable"
local dataset = require "accelerate.data.dataset"
local positions = require "accelerate.utils.positions"
local seeding = require "accelerate.data.seeding"

local fail, show = options.fail, options.show

local M = {}

local function check_source(where, source)
  if type(source) == "number" and source % 1 == 0 and source >= 0 then return source end
  source = dataset.of(where, source)
  if type(source) == "table" and type(source.len) == "function" then return source end
  fail("%s: expected a dataset with len(), or a number of positions, got %s", where, show(source))
end

local function count(source) return type(source) == "number" and source or source:len() end

local function check_skip(where, skip)
  if skip == nil then return 0 end
  if type(skip) ~= "number" or skip % 1 ~= 0 or skip < 0 then
    fail("%s: skip must be an integer of 0 or more, got %s", where, show(skip))
  end
  return skip
end

--- Yields 1, 2, … n.
---@class accelerate.SequentialSampler
local SequentialSampler = class("SequentialSampler")
enumerable.of_iter(SequentialSampler)
SequentialSampler.seekable = true
M.SequentialSampler = SequentialSampler

---@param source table|integer a dataset, or the number of positions
function SequentialSampler:init(source) self.data_source = check_source("SequentialSampler", source) end

function SequentialSampler:len() return count(self.data_source) end

-- Random access to a pass, by the class's iter method: a function that makes `at(i)`, which returns
-- item i (from 1) of the pass that begins now, or nil past its end. A class with an iter of its own
-- is not listed; it is read from the start.
local access_of = {}

--- Returns random access to the pass of `sampler` that begins now; nil when it can only be read in
--- order.
---@param sampler table
---@return (fun(i: integer): any)?
function M.access(sampler)
  local make = access_of[sampler.iter]
  return make and make(sampler)
end

-- Returns an iterator over an at-function's items, after the first `skip`.
local function walk(at, skip)
  local i = skip
  return function()
    if not at then return nil end
    i = i + 1
    local item = at(i)
    if item == nil then at = nil end -- frees the memory of the order
    return item
  end
end

local function sequence(self)
  local n = self:len()
  return function(i) return i <= n and i or nil end
end

function SequentialSampler:iter(skip)
  return walk(sequence(self), check_skip("SequentialSampler:iter", skip))
end
access_of[SequentialSampler.iter] = sequence

local function check_epoch(epoch)
  if type(epoch) ~= "number" or epoch % 1 ~= 0 or epoch < 0 then
    fail("set_epoch: expected an integer of 0 or more, got %s", show(epoch))
  end
  return epoch
end

-- Returns a generator with an equal seed whose next draw is number `draw`.
local function wound(generator, draw)
  local bytes = {}
  for i = 1, 8 do
    bytes[i] = string.char(draw % 256)
    draw = math.floor(draw / 256)
  end
  local copy = core.Generator()
  copy:set_state(generator:get_state():sub(1, 8) .. table.concat(bytes))
  return copy
end

-- Returns the number of the generator's next draw.
local function draw_number(generator)
  local state, draw = generator:get_state(), 0
  for i = 16, 9, -1 do draw = draw * 256 + state:byte(i) end
  return draw
end

-- offset of further draws of a pass, far beyond the draws of other passes
local FURTHER = 2 ^ 40

--- Base of samplers that draw an order for each pass. A subclass defines `_order(generator)`, which
--- returns an int64 tensor of positions, from 0, by one draw of the generator.
---@class accelerate.DrawnSampler
---@field generator accelerate.Generator never nil; ranks must agree on its state
---@field epoch integer? epoch of the next pass, once set_epoch was called
local DrawnSampler = class("DrawnSampler")
class.optional(DrawnSampler, "epoch")
enumerable.of_iter(DrawnSampler)
DrawnSampler.seekable = true
M.DrawnSampler = DrawnSampler

--- Gives a sampler its generator: the one given, one of the given seed, or one that follows
--- tensor.manual_seed.
---@param self accelerate.DrawnSampler
---@param where string the sampler's name in messages
---@param opts { generator: accelerate.Generator?, seed: integer? }
function M.take_generator(self, where, opts)
  if opts.generator and opts.seed then fail("%s: give a generator or a seed, not both", where) end
  self._follows = not (opts.generator or opts.seed)
  self.generator = opts.generator or core.Generator(opts.seed)
end

--- Reads the seed for the next pass, if the sampler follows `tensor.manual_seed` and that was
--- called since the last reading.
function DrawnSampler:read_seed()
  if not self._follows then return end
  local current = seeding.current()
  if self._seeding == current then return end
  local loaded = self._loaded
  self._seeding, self._loaded = current, nil
  if not loaded then self.generator:manual_seed(seeding.sampler(current.samplers)) end
  current.samplers = current.samplers + 1
end

--- Moves the sampler to its position in an earlier run. Its next pass does not read the seed.
---@param state string state of the generator
---@param epoch integer?
function DrawnSampler:load_place(state, epoch)
  self.generator:set_state(state)
  self.epoch = epoch
  self._seeding, self._loaded = nil, true
end

function DrawnSampler:len() return self.num_samples end

--- Makes the next pass epoch `epoch`. Later passes count on from there.
---@param epoch integer from 0
function DrawnSampler:set_epoch(epoch) self.epoch = check_epoch(epoch) end

--- Returns the order of the pass that begins now: int64, from 0.
---@return accelerate.Tensor
function DrawnSampler:order()
  self:read_seed()
  local generator = self.generator
  if self.epoch then
    generator = wound(generator, self.epoch)
    self.epoch = self.epoch + 1
  end
  return self:_order(generator)
end

--- Skips a pass without drawing its order.
function DrawnSampler:pass_over()
  self:read_seed()
  if self.epoch then
    self.epoch = self.epoch + 1
  else
    self.generator:set_state(wound(self.generator, draw_number(self.generator) + 1):get_state())
  end
end

local function drawn(self)
  local order = { self:order() } -- a table, so that the closure keeps p's memory alive
  local n = order[1]:numel()
  local p = n > 0 and order[1]:data_ptr()
  return function(i) return order[1] and i <= n and tonumber(p[i - 1]) + 1 or nil end
end

function DrawnSampler:iter(skip)
  skip = check_skip(self.__name .. ":iter", skip)
  return walk(drawn(self), skip)
end
access_of[DrawnSampler.iter] = drawn

--- Yields 1 to n in random order, anew in each pass; or positions drawn with replacement.
---@class accelerate.RandomSampler: accelerate.DrawnSampler
---@field replacement boolean
local RandomSampler = class("RandomSampler", DrawnSampler)
M.RandomSampler = RandomSampler

local RANDOM_OPTIONS = {
  generator = { "Generator", optional = true }, seed = { "integer", optional = true },
  replacement = { "boolean", default = false }, num_samples = { "integer", optional = true, min = 1 },
}

--- Without generator and seed the sampler follows `tensor.manual_seed`, with a generator of its
--- own. With replacement every position is drawn from all of them. num_samples is the number of
--- positions in a pass (default: all). A pass with more positions than the dataset is several
--- orders in a row.
---@param source table|integer a dataset, or the number of positions
---@param opts? { generator: accelerate.Generator?, seed: integer?, replacement: boolean?,
---  num_samples: integer? }
function RandomSampler:init(source, opts)
  opts = options.check("RandomSampler", opts, RANDOM_OPTIONS)
  self.data_source = check_source("RandomSampler", source)
  self.replacement, self._num_samples = opts.replacement, opts.num_samples
  M.take_generator(self, "RandomSampler", opts)
end

function RandomSampler:len()
  if not self._num_samples then return count(self.data_source) end
  return count(self.data_source) > 0 and self._num_samples or 0
end

function RandomSampler:_order(generator)
  local n, wanted = count(self.data_source), self:len()
  if self.replacement and n > 0 then return core.randint(0, n, { wanted }, { generator = generator }) end
  if wanted == n then return core.randperm(n, { generator = generator }) end
  local first = draw_number(generator)
  local order = core.empty({ wanted }, { dtype = "int64" })
  local p, at, k = order:data_ptr(), 0, 0
  while at < wanted do
    local part = core.randperm(n,
      { generator = k == 0 and generator or wound(generator, first + k * FURTHER) })
    local q = part:data_ptr()
    for i = 0, math.min(n, wanted - at) - 1 do p[at + i] = q[i] end
    at, k = at + n, k + 1
  end
  return order
end

--- A RandomSampler whose order depends on a seed and the epoch only, whatever was drawn before.
--- Each complete pass increments the epoch; set_epoch sets it. With use_seedable_sampler the
--- Accelerator replaces RandomSamplers by it.
---@class accelerate.SeedableRandomSampler: accelerate.RandomSampler
---@field initial_seed integer
---@field epoch integer epoch of the next pass
local SeedableRandomSampler = class("SeedableRandomSampler", RandomSampler)
M.SeedableRandomSampler = SeedableRandomSampler

local SEEDABLE_OPTIONS = {
  data_seed = { "integer", optional = true, min = 0 }, replacement = { "boolean", default = false },
  num_samples = { "integer", optional = true, min = 1 }, generator = { "Generator", optional = true },
}

--- data_seed defaults to the default generator's seed (`tensor.manual_seed`). A generator becomes
--- the sampler's own, and its seed becomes data_seed.
---@param source table|integer a dataset, or the number of positions
---@param opts? { data_seed: integer?, replacement: boolean?, num_samples: integer?, generator:
---  accelerate.Generator? }
function SeedableRandomSampler:init(source, opts)
  opts = options.check("SeedableRandomSampler", opts, SEEDABLE_OPTIONS)
  self.initial_seed = opts.data_seed or core.default_generator():initial_seed()
  self.generator = opts.generator or core.Generator()
  self.generator:manual_seed(self.initial_seed)
  self.data_source = check_source("SeedableRandomSampler", source)
  self.replacement, self._num_samples = opts.replacement, opts.num_samples
  self.epoch = 0
end

function SeedableRandomSampler:order()
  return self:_order(wound(self.generator, self.epoch))
end

local function seeded(self)
  local at, epoch = drawn(self), self.epoch
  return function(i)
    local position = at(i)
    if position == nil and self.epoch == epoch then self.epoch = epoch + 1 end
    return position
  end
end

function SeedableRandomSampler:iter(skip)
  return walk(seeded(self), check_skip("SeedableRandomSampler:iter", skip))
end
access_of[SeedableRandomSampler.iter] = seeded

--- Yields given positions in random order.
---@class accelerate.SubsetRandomSampler: accelerate.DrawnSampler
---@field indices integer[] positions, from 1
local SubsetRandomSampler = class("SubsetRandomSampler", DrawnSampler)
M.SubsetRandomSampler = SubsetRandomSampler

---@param indices integer[]|accelerate.Tensor positions, from 1; a tensor counts from 0
---@param opts? { generator: accelerate.Generator?, seed: integer? }
function SubsetRandomSampler:init(indices, opts)
  opts = options.check("SubsetRandomSampler", opts,
    { generator = { "Generator", optional = true }, seed = { "integer", optional = true } })
  self.indices = dataset.positions("SubsetRandomSampler", indices)
  M.take_generator(self, "SubsetRandomSampler", opts)
end

function SubsetRandomSampler:len() return #self.indices end

function SubsetRandomSampler:_order(generator)
  local order = core.randperm(#self.indices, { generator = generator })
  if #self.indices == 0 then return order end
  local p = order:data_ptr()
  for k = 0, #self.indices - 1 do p[k] = self.indices[tonumber(p[k]) + 1] - 1 end
  return order
end

--- Yields one rank's share of the positions, for scripts that do not prepare their loaders
--- (prepared loaders are sharded already). All ranks get the same number: the last ones are filled
--- from the start, or dropped with drop_last.
---@class accelerate.DistributedSampler
---@field epoch integer epoch of all passes until set_epoch is called again
local DistributedSampler = class("DistributedSampler")
enumerable.of_iter(DistributedSampler)
DistributedSampler.seekable = true
M.DistributedSampler = DistributedSampler

local DISTRIBUTED_OPTIONS = {
  num_replicas = { "integer", optional = true, min = 1 }, rank = { "integer", optional = true, min = 0 },
  shuffle = { "boolean", default = true }, seed = { "integer", default = 0 },
  drop_last = { "boolean", default = false },
}

---@param source table|integer a dataset, or the number of positions
---@param opts? { num_replicas: integer?, rank: integer?, shuffle: boolean?, seed: integer?,
---  drop_last: boolean? } default: the number of ranks, this rank, true, 0, false
function DistributedSampler:init(source, opts)
  local o = options.check("DistributedSampler", opts, DISTRIBUTED_OPTIONS)
  self.data_source = check_source("DistributedSampler", source)
  self.num_replicas, self.rank = o.num_replicas or core.dist.world_size(), o.rank or core.dist.rank()
  if self.rank >= self.num_replicas then
    fail("DistributedSampler: rank must be 0 to %d, got %d", self.num_replicas - 1, self.rank)
  end
  self.shuffle, self.seed, self.drop_last, self.epoch = o.shuffle, o.seed, o.drop_last, 0
end

function DistributedSampler:len()
  return (self.drop_last and math.floor or math.ceil)(count(self.data_source) / self.num_replicas)
end

function DistributedSampler:set_epoch(epoch) self.epoch = check_epoch(epoch) end

local function share_of(self)
  local n, share = count(self.data_source), self:len()
  local order = self.shuffle
    and { core.randperm(n, { generator = wound(core.Generator(self.seed), self.epoch) }) } or {}
  local p = order[1] and n > 0 and order[1]:data_ptr()
  return function(i)
    if i > share then return nil end
    local at = ((i - 1) * self.num_replicas + self.rank) % n
    return p and order[1] and tonumber(p[at]) + 1 or at + 1
  end
end

function DistributedSampler:iter(skip)
  return walk(share_of(self), check_skip("DistributedSampler:iter", skip))
end
access_of[DistributedSampler.iter] = share_of

-- Yields what is in a list.
local Listed = class("ListSampler")
enumerable.of_iter(Listed)
Listed.seekable = true

function Listed:init(items) self.items = items end

function Listed:len() return #self.items end

local function items_of(self)
  return function(i) return self.items[i] end
end

function Listed:iter(skip) return walk(items_of(self), check_skip("ListSampler:iter", skip)) end
access_of[Listed.iter] = items_of

--- Returns a sampler of what is in a plain list, or in a tensor of integers, which counts from 0;
--- anything else as it is. A list of lists, or the rows of a tensor, are batches.
---@param given any
---@return any
function M.of(given)
  if core.is_tensor(given) then
    if given.ndim < 1 or given.ndim > 2 or core._is_float(given) or given.dtype == "bool" then
      fail("a tensor of positions must have integers and one dim, or two for batches, got %s", show(given))
    end
    return Listed(given:add(1):tolist())
  end
  local plain = type(given) == "table" and getmetatable(given) == nil and given[1] ~= nil
  return plain and given.iter == nil and Listed(given) or given
end

--- Yields lists of `batch_size` positions from a sampler. The last list may be shorter, unless
--- drop_last.
---@class accelerate.BatchSampler
---@field sampler table
---@field batch_size integer
---@field drop_last boolean
local BatchSampler = class("BatchSampler")
enumerable.of_iter(BatchSampler)
M.BatchSampler = BatchSampler

local BATCH_OPTIONS = { batch_size = { "integer", min = 1 }, drop_last = { "boolean", default = false } }

---@param sampler table|accelerate.Tensor anything with iter(), or what M.of takes
---@param opts { batch_size: integer, drop_last: boolean? }
function BatchSampler:init(sampler, opts)
  opts = options.check("BatchSampler", opts, BATCH_OPTIONS)
  sampler = M.of(sampler)
  if type(sampler) ~= "table" or type(sampler.iter) ~= "function" then
    fail("BatchSampler: expected a sampler with iter(), got %s", show(sampler))
  end
  self.sampler, self.batch_size, self.drop_last = sampler, opts.batch_size, opts.drop_last
  self.seekable = sampler.seekable == true
end

function BatchSampler:len()
  if type(self.sampler.len) ~= "function" then fail("BatchSampler:len: the sampler has no len()") end
  local n = self.sampler:len()
  return (self.drop_last and math.floor or math.ceil)(n / self.batch_size)
end

function BatchSampler:set_epoch(epoch)
  if self.sampler.set_epoch then self.sampler:set_epoch(epoch) end
end

local function batches_of(self)
  local at = M.access(self.sampler)
  if not at then return nil end
  local size, drop_last = self.batch_size, self.drop_last
  return function(k)
    local batch, before = {}, (k - 1) * size
    for j = 1, size do
      local position = at(before + j)
      if position == nil then
        if j == 1 or drop_last then return nil end
        break
      end
      batch[j] = position
    end
    return batch
  end
end

--- Reads and drops the first batches if the sampler cannot seek.
---@param skip? integer number of batches to skip
function BatchSampler:iter(skip)
  skip = check_skip("BatchSampler:iter", skip)
  local at = batches_of(self)
  if at then return walk(at, skip) end
  skip = skip * self.batch_size
  local size, drop_last, over = self.batch_size, self.drop_last, false
  local nexts, state, position
  if self.seekable then
    nexts, state, position = self.sampler:iter(skip)
  else
    nexts, state, position = self.sampler:iter()
    for _ = 1, skip do
      position = nexts(state, position)
      if position == nil then return function() end end
    end
  end
  return function()
    if over then return nil end
    local batch = {}
    for j = 1, size do
      position = nexts(state, position)
      if position == nil then
        over = true
        if j == 1 or drop_last then return nil end
        return batch
      end
      batch[j] = position
    end
    return batch
  end
end
access_of[BatchSampler.iter] = batches_of

positions.constructors(M, {
  SequentialSampler = "data_source",
  RandomSampler = "data_source [replacement] [num_samples] [generator]",
  SeedableRandomSampler = "data_source [replacement] [num_samples] [generator] [data_seed]",
  SubsetRandomSampler = "indices [generator]",
  DistributedSampler = "dataset [num_replicas] [rank] [shuffle] [seed] [drop_last]",
  BatchSampler = "sampler +batch_size [drop_last]",
})

return M
