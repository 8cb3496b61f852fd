--- Datasets that combine other datasets.
local class = require "accelerate.utils.class"
local dataset = require "accelerate.data.dataset"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local positions = require "accelerate.utils.positions"

local fail, show = options.fail, options.show

local M = {}

local function check_list(where, list, test, what)
  if type(list) ~= "table" or getmetatable(list) or #list == 0 then
    fail("%s: expected a list of at least one dataset, got %s", where, show(list))
  end
  local fault = lists.fault(list)
  if fault then fail("%s: expected a list of datasets, but it has %s", where, fault) end
  for k, part in ipairs(list) do
    if not test(part) then fail("%s: entry %d of the list must be %s, got %s", where, k, what, show(part)) end
  end
end

-- The list with plain lists and tensors in it made datasets; anything else as it is.
local function each_of(datasets)
  if type(datasets) ~= "table" or getmetatable(datasets) then return datasets end
  local list = {}
  for k, part in next, datasets do list[k] = dataset.of("ConcatDataset", part) end
  return list
end

--- Concatenates datasets.
---@class accelerate.ConcatDataset: accelerate.Dataset
---@field datasets table[]
---@field cumulative_sizes integer[] number of samples in the first k datasets
local ConcatDataset = class("ConcatDataset", dataset.Dataset)
M.ConcatDataset = ConcatDataset

---@param datasets any[] tables with get(i) and len(), plain lists of samples, or tensors of them
function ConcatDataset:init(datasets)
  datasets = each_of(datasets)
  check_list("ConcatDataset", datasets, dataset.is_map, "a dataset with get(i) and len()")
  self.datasets, self.cumulative_sizes = datasets, {}
  local sum = 0
  for k, part in ipairs(datasets) do
    sum = sum + part:len()
    self.cumulative_sizes[k] = sum
  end
end

function ConcatDataset:len() return self.cumulative_sizes[#self.cumulative_sizes] end

--- Sets the epoch of all parts that have a set_epoch.
local function set_epoch(self, epoch)
  for _, part in ipairs(self.datasets) do
    if type(part.set_epoch) == "function" then part:set_epoch(epoch) end
  end
end
ConcatDataset.set_epoch = set_epoch

function ConcatDataset:get(i)
  dataset.check_position("ConcatDataset:get", i, self:len())
  local sizes = self.cumulative_sizes
  local lo, hi = 1, #sizes
  while lo < hi do
    local middle = math.floor((lo + hi) / 2)
    if sizes[middle] >= i then hi = middle else lo = middle + 1 end
  end
  return self.datasets[lo]:get(i - (sizes[lo - 1] or 0))
end

--- Stacks datasets of one length: sample i is sample i of each of them, as parts, or under their
--- names: `StackDataset(images, texts)`, `StackDataset { image = images, text = texts }`. A part of
--- several values is a list of them.
---@class accelerate.StackDataset: accelerate.Dataset
---@field datasets table<integer|string, table>
local StackDataset = class("StackDataset", dataset.Dataset)
M.StackDataset = StackDataset

-- Whether the only argument names the datasets.
local function names_datasets(given)
  return type(given) == "table" and getmetatable(given) == nil and given[1] == nil and next(given) ~= nil
    and type(given.get) ~= "function"
end

---@param ... any tables with get(i) and len(), plain lists of samples, or tensors of them; or one
---  table of them by name
function StackDataset:init(...)
  local named = select("#", ...) == 1 and names_datasets((...))
  local given = named and (...) or { ... }
  self.datasets, self._names = {}, {}
  for k = 1, named and 0 or select("#", ...) do self._names[k] = k end
  if named then self._names = ordered.sorted_keys(given) end
  if #self._names == 0 then fail("StackDataset: expected at least one dataset, got none") end
  local first, n
  for _, name in ipairs(self._names) do
    local part = dataset.of("StackDataset", given[name])
    if not dataset.is_map(part) then
      fail("StackDataset: %s must be a dataset with get(i) and len(), got %s",
        named and ("'%s'"):format(tostring(name)) or "argument " .. name, show(part))
    end
    first, n = first or name, n or part:len()
    if part:len() ~= n then
      fail("StackDataset: the datasets must have one length; %s has %d, %s has %d", tostring(first), n,
        tostring(name), part:len())
    end
    self.datasets[name] = part
  end
  self._named, self._length = named, n
end

function StackDataset:len() return self._length end

StackDataset.set_epoch = function(self, epoch)
  for _, name in ipairs(self._names) do
    local part = self.datasets[name]
    if type(part.set_epoch) == "function" then part:set_epoch(epoch) end
  end
end

local function one_value(...)
  if select("#", ...) == 1 then return (...) end
  return { ... }
end

function StackDataset:get(i)
  dataset.check_position("StackDataset:get", i, self._length)
  local sample = {}
  for _, name in ipairs(self._names) do sample[name] = one_value(self.datasets[name]:get(i)) end
  if self._named then return sample end
  return unpack(sample, 1, #self._names)
end

--- Concatenates streams.
---@class accelerate.ChainDataset: accelerate.IterableDataset
---@field datasets table[]
---@field num_shards integer number of streams, which ranks can take whole (see shard)
local ChainDataset = class("ChainDataset", dataset.IterableDataset)
M.ChainDataset = ChainDataset

---@param datasets table[] with iter()
function ChainDataset:init(datasets)
  check_list("ChainDataset", datasets,
    function(part) return type(part) == "table" and type(part.iter) == "function" end,
    "a stream with iter()")
  self.datasets, self.num_shards = datasets, #datasets
end

local SHARD = { num_shards = { "integer", min = 1 }, index = { "integer", min = 0 } }

--- Returns part `index` (from 0) of num_shards parts: every num_shards-th stream.
---@param opts { num_shards: integer, index: integer } num_shards: at most the number of streams
---@return accelerate.ChainDataset
function ChainDataset:shard(opts)
  local o = options.check("ChainDataset:shard", opts, SHARD)
  if o.index >= o.num_shards or o.num_shards > #self.datasets then
    fail("ChainDataset:shard: part %d of %d cannot be had of %d streams", o.index, o.num_shards,
      #self.datasets)
  end
  local part = {}
  for i = o.index + 1, #self.datasets, o.num_shards do part[#part + 1] = self.datasets[i] end
  return ChainDataset(part)
end

--- Returns the sum of the lengths. Raises if one is not known.
function ChainDataset:len()
  local sum = 0
  for k, part in ipairs(self.datasets) do
    if type(part.len) ~= "function" then fail("ChainDataset:len: dataset %d has no len()", k) end
    sum = sum + part:len()
  end
  return sum
end

ChainDataset.set_epoch = set_epoch

function ChainDataset:iter()
  local k, nexts, state, control = 0, nil, nil, nil
  local function later(...)
    control = ...
    return ...
  end
  local function step()
    if nexts then return later(nexts(state, control)) end
  end
  local again
  local function check(...)
    if (...) ~= nil then return ... end
    k = k + 1
    if not self.datasets[k] then
      nexts = nil
      return nil
    end
    nexts, state, control = self.datasets[k]:iter()
    return again()
  end
  function again() return check(step()) end
  return again
end

positions.constructors(M, { ConcatDataset = "datasets", ChainDataset = "datasets" })

return M
