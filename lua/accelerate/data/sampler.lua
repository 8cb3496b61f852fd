--- Samplers: the order in which a loader reads a dataset.
---
--- `iter()` gives positions counted from 1; a batch sampler's `iter()` gives lists of them. Those below also take
--- `iter(skip)`, which starts `skip` positions (batches) later without looking at the ones before.
---
--- The order of a random pass is a pure function of (seed, epoch, position): it is `randperm` at draw number `epoch` of
--- a generator with that seed. Each pass uses up one draw of the sampler's generator, so that, from a fresh one, passes
--- are epochs 0, 1, 2 …; set_epoch(e) says that the next pass is epoch e whatever was drawn before. Ranks that agree on
--- the generator's state (16 bytes, `generator:get_state()`) or on (seed, epoch) agree on the order.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

local function check_source(where, source)
  if type(source) == "number" and source % 1 == 0 and source >= 0 then return source end
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

--- 1, 2, … n.
---@class accelerate.SequentialSampler
local SequentialSampler = class("SequentialSampler")
SequentialSampler.seekable = true
M.SequentialSampler = SequentialSampler

---@param source table|integer a dataset, or how many positions there are
function SequentialSampler:init(source) self.data_source = check_source("SequentialSampler", source) end

function SequentialSampler:len() return count(self.data_source) end

function SequentialSampler:iter(skip)
  local i, n = check_skip("SequentialSampler:iter", skip), self:len()
  return function()
    if i >= n then return nil end
    i = i + 1
    return i
  end
end

--- 1 to n in random order, another one in each pass.
---@class accelerate.RandomSampler
---@field generator accelerate.Generator always there; what ranks have to agree on
---@field epoch integer? of the next pass, once set_epoch was called
local RandomSampler = class("RandomSampler")
RandomSampler.seekable = true
M.RandomSampler = RandomSampler

local RANDOM_OPTIONS = { generator = { "Generator", optional = true }, seed = { "integer", optional = true } }

--- Without generator and seed it gets a generator of its own, seeded by a draw from the default one (`tensor.manual_seed`).
---@param source table|integer a dataset, or how many positions there are
---@param opts? { generator: accelerate.Generator?, seed: integer? } at most one of them
function RandomSampler:init(source, opts)
  opts = options.check("RandomSampler", opts, RANDOM_OPTIONS)
  if opts.generator and opts.seed then fail("RandomSampler: give a generator or a seed, not both") end
  self.data_source = check_source("RandomSampler", source)
  self.generator = opts.generator or core.Generator(opts.seed or core.randint(0, 2 ^ 53, { 1 }):item())
end

function RandomSampler:len() return count(self.data_source) end

--- The next pass is that of epoch `epoch`; the ones after it count on from there.
---@param epoch integer from 0
function RandomSampler:set_epoch(epoch)
  if type(epoch) ~= "number" or epoch % 1 ~= 0 or epoch < 0 then
    fail("set_epoch: expected an integer of 0 or more, got %s", show(epoch))
  end
  self.epoch = epoch
end

-- A generator with the same seed whose next draw is number `epoch`.
local function wound(generator, epoch)
  local bytes = {}
  for i = 1, 8 do
    bytes[i] = string.char(epoch % 256)
    epoch = math.floor(epoch / 256)
  end
  local copy = core.Generator()
  copy:set_state(generator:get_state():sub(1, 8) .. table.concat(bytes))
  return copy
end

--- The order of the pass that begins now: int64, counted from 0.
---@return accelerate.Tensor
function RandomSampler:permutation()
  local generator = self.generator
  if self.epoch then
    generator = wound(generator, self.epoch)
    self.epoch = self.epoch + 1
  end
  return core.randperm(self:len(), { generator = generator })
end

function RandomSampler:iter(skip)
  local i, n = check_skip("RandomSampler:iter", skip), self:len()
  local order = { self:permutation() } -- named in the closure, which must keep the memory that p points to
  local p = order[1]:data_ptr()
  return function()
    if i >= n then
      order[1] = nil
      return nil
    end
    i = i + 1
    return tonumber(p[i - 1]) + 1
  end
end

--- Lists of `batch_size` positions from a sampler; the last one may be shorter, unless drop_last.
---@class accelerate.BatchSampler
---@field sampler table
---@field batch_size integer
---@field drop_last boolean
local BatchSampler = class("BatchSampler")
M.BatchSampler = BatchSampler

local BATCH_OPTIONS = { batch_size = { "integer", min = 1 }, drop_last = { "boolean", default = false } }

---@param sampler table anything with iter()
---@param opts { batch_size: integer, drop_last: boolean? }
function BatchSampler:init(sampler, opts)
  opts = options.check("BatchSampler", opts, BATCH_OPTIONS)
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

--- Reads and drops when the sampler cannot seek.
---@param skip? integer batches to leave out
function BatchSampler:iter(skip)
  skip = check_skip("BatchSampler:iter", skip) * self.batch_size
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

return M
