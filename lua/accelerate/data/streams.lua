--- Streams derived from other streams, computed while they are read.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local dataset = require "accelerate.data.dataset"
local derive = require "accelerate.data.dataset_methods"
local options = require "accelerate.utils.options"

local M = {}

--- A stream whose iter() is `make(base)`.
local Derived = class("IterableDataset", dataset.IterableDataset)

function Derived:init(base, make, length) self.dataset, self._make, self._length = base, make, length end
function Derived:iter() return self._make(self.dataset, self) end
function Derived:set_epoch(epoch)
  self.epoch = epoch
  if type(self.dataset.set_epoch) == "function" then self.dataset:set_epoch(epoch) end
end

-- Gives a stream a len method if its base has one.
local function with_length(stream, base, length)
  if type(base.len) == "function" then stream.len = function() return length(base:len()) end end
  return stream
end

local function same(n) return n end

-- Returns a function that returns the next sample of `base` as several values.
local function stepper(base)
  local nexts, state, control = base:iter()
  local function later(...)
    control = ...
    return ...
  end
  return function() return later(nexts(state, control)) end
end

--- Returns a stream of fn(sample…) for each sample.
---@param fn function
function M.map(self, fn)
  derive.check_function("map", fn)
  return with_length(Derived(self, function(base)
    local step = stepper(base)
    local function mapped(...)
      if (...) == nil then return nil end
      return fn(...)
    end
    return function() return mapped(step()) end
  end), self, same)
end

--- Returns the samples for which fn(sample…) is true.
---@param fn function
function M.filter(self, fn)
  derive.check_function("filter", fn)
  return Derived(self, function(base)
    local step = stepper(base)
    local again
    local function check(...)
      if (...) == nil or fn(...) then return ... end
      return again()
    end
    function again() return check(step()) end
    return again
  end)
end

local function check_count(where, n) return options.value(where, "argument 1", n, { "integer", min = 0 }) end

--- Returns the first n samples.
function M.take(self, n)
  check_count("take", n)
  return with_length(Derived(self, function(base)
    local step, left = stepper(base), n
    return function()
      if left == 0 then return nil end
      left = left - 1
      return step()
    end
  end), self, function(length) return math.min(n, length) end)
end

--- Returns the samples after the first n.
function M.skip(self, n)
  check_count("skip", n)
  return with_length(Derived(self, function(base)
    local step, left = stepper(base), n
    return function()
      while left > 0 do
        left = left - 1
        if step() == nil then
          left = 0
          return nil
        end
      end
      return step()
    end
  end), self, function(length) return math.max(0, length - n) end)
end

local SHUFFLE = { buffer_size = { "integer", default = 1000, min = 1 },
  seed = { "integer", optional = true } }

--- Shuffles within a buffer: each sample is drawn from the next buffer_size ones. With a seed the
--- order depends on the seed and the epoch (from set_epoch, or the number of passes so far);
--- without one the default generator draws it.
---@param opts? { buffer_size: integer?, seed: integer? } default 1000
function M.shuffle(self, opts)
  local o = options.check("shuffle", opts, SHUFFLE)
  return with_length(Derived(self, function(base, stream)
    local step, buffer, drained = stepper(base), {}, false
    local generator = core._common_generator()
    if o.seed then
      local epoch = stream.epoch or 0
      stream.epoch = epoch + 1
      generator = core.Generator((o.seed + epoch * 1000003) % 2 ^ 53)
    end
    local function packed(...) return (...) ~= nil and { n = select("#", ...), ... } or nil end
    return function()
      while not drained and #buffer < o.buffer_size do
        local sample = packed(step())
        drained = sample == nil
        buffer[#buffer + 1] = sample
      end
      if #buffer == 0 then return nil end
      local drawn = core.randint(0, #buffer, { 1 }, { generator = generator })
      local at = drawn:item() + 1
      core.release(drawn)
      local sample = buffer[at]
      buffer[at] = buffer[#buffer]
      buffer[#buffer] = nil
      return unpack(sample, 1, sample.n)
    end
  end), self, same)
end

return M
