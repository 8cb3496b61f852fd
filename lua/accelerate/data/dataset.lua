--- Datasets: the source of a loader's samples.
---
--- `get(i)` returns sample i, from 1: several values (its parts) or one table. `len()` returns the
--- number of samples. A dataset may also have `get_batch(positions)`, which takes a list of
--- positions and returns the parts of the whole batch, collated; a loader without a collate_fn
--- calls it instead of `get`.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local by_position = require "accelerate.utils.positions"
local enumerable = require "accelerate.utils.enumerable"

local fail, show = options.fail, options.show

local M = {}

--- Base class of datasets: `dataset[1]` is sample 1 (a list of its parts when it has several),
--- `#dataset` is the number of samples, and `for i, x, y in ipairs(dataset) do` iterates over them.
--- `first + second` is a ConcatDataset.
--- A loader takes any table with `get` and `len`; the class adds Hugging Face's methods that derive
--- datasets (dataset_methods.lua) and constructors: from_list, from_table, from_csv, from_json,
--- from_generator.
---@class accelerate.Dataset
---@field get fun(self, i: integer): any, ...
---@field len fun(self): integer
local Dataset = class("Dataset")
enumerable.of_get(Dataset)
M.Dataset = Dataset

-- first + second: the samples of both, as PyTorch has it.
function Dataset.__add(first, second)
  return require("accelerate.data.combine").ConcatDataset { first, second }
end

local METHODS = { "map", "filter", "select", "shuffle", "take", "skip", "shard", "train_test_split",
  "with_transform" }
for _, name in ipairs(METHODS) do
  Dataset[name] = function(self, ...) return require("accelerate.data.dataset_methods")[name](self, ...) end
end
for _, name in ipairs { "from_list", "from_table", "from_csv", "from_json", "from_generator" } do
  Dataset[name] = function(...) return require("accelerate.data.table")[name](...) end
end
--- Makes a TableDataset from columns, { name = list }.
Dataset.from_dict = Dataset.from_table -- Hugging Face's name

--- Base class of streams, which also iterate with `for i, x, y in ipairs(stream) do`. `first +
--- second` is a ChainDataset. `iter()`
--- returns an iterator over samples (several values each, or one table); `len()` is optional.
---@class accelerate.IterableDataset
---@field iter fun(self): function
local IterableDataset = class("IterableDataset")
enumerable.of_iter(IterableDataset)
M.IterableDataset = IterableDataset

function IterableDataset.__add(first, second)
  return require("accelerate.data.combine").ChainDataset { first, second }
end

for _, name in ipairs { "map", "filter", "shuffle", "take", "skip" } do
  IterableDataset[name] = function(self, ...) return require("accelerate.data.streams")[name](self, ...) end
end

--- Makes a class of datasets: `local Words = data.class("Words")`, `function Words:get(i) … end`,
--- `function Words:len() … end`.
---@param name string
---@param base? table default data.Dataset
---@return table
function M.class(name, base) return class.open(name, base or M.Dataset) end

--- Returns whether `dataset` has get(i) and len().
function M.is_map(dataset)
  return type(dataset) == "table" and type(dataset.get) == "function" and type(dataset.len) == "function"
end

--- Returns whether `dataset` has iter() and no get(i).
function M.is_stream(dataset)
  return type(dataset) == "table" and type(dataset.get) ~= "function" and type(dataset.iter) == "function"
end

-- A plain list as a dataset: item i is sample i. An item that is a list itself has its entries as
-- parts, as a tuple has in PyTorch.
local List = class("List", Dataset)
function List:init(items) self.items = items end
function List:len() return #self.items end
function List:get(i)
  local item = self.items[i]
  if type(item) == "table" and getmetatable(item) == nil and #item > 0 then return unpack(item) end
  return item
end

local function check_position(where, i, n)
  if type(i) ~= "number" or i % 1 ~= 0 or i < 1 or i > n then
    fail("%s: expected a position from 1 to %d, got %s", where, n, show(i))
  end
end
M.check_position = check_position

--- Returns a list of positions, from 1, that is given as one, or as a tensor, which counts from 0.
---@param where string start of messages
---@param given integer[]|accelerate.Tensor
---@return integer[]
function M.positions(where, given)
  if core.is_tensor(given) then
    if given.ndim ~= 1 or core._is_float(given) or given.dtype == "bool" then
      fail("%s: a tensor of positions must have integers and one dim, got %s", where, show(given))
    end
    return given:add(1):tolist()
  end
  if type(given) ~= "table" or getmetatable(given) then
    fail("%s: expected a list of positions, got %s", where, show(given))
  end
  local fault = lists.fault(given)
  if fault then fail("%s: expected a list of positions, but it has %s", where, fault) end
  return given
end

--- Returns positions as an int64 tensor, from 0, as kernels need them. Release it after use.
---@param where string start of messages
---@param positions integer[] from 1
---@param n integer size of the dataset
local function to_indices(where, positions, n)
  local count = #positions
  local indices = core.empty(count, { dtype = "int64" })
  local p = indices:data_ptr()
  for j = 1, count do
    local i = positions[j]
    if type(i) ~= "number" or not (i >= 1 and i <= n) or i % 1 ~= 0 then check_position(where, i, n) end
    p[j - 1] = i - 1
  end
  return indices
end

--- Samples stored in tensors: sample i is position i of dim 1 of each.
---@class accelerate.TensorDataset: accelerate.Dataset
---@field tensors accelerate.Tensor[]
local TensorDataset = class("TensorDataset", M.Dataset)
M.TensorDataset = TensorDataset

---@param ... accelerate.Tensor at least one; the sizes of dim 1 must agree
function TensorDataset:init(...)
  local n = select("#", ...)
  if n == 0 then fail("TensorDataset: expected at least one tensor, got none") end
  self.tensors = { ... }
  for k = 1, n do
    local t = self.tensors[k]
    if not core.is_tensor(t) then fail("TensorDataset: argument %d must be a tensor, got %s", k, show(t)) end
    if t.ndim == 0 then
      fail("TensorDataset: argument %d has no dims; its dim 1 must count the samples", k)
    end
    if t:size(1) ~= self.tensors[1]:size(1) then
      fail("TensorDataset: sizes of dim 1 must agree; argument 1 has %d, argument %d has %d",
        self.tensors[1]:size(1), k, t:size(1))
    end
  end
end

function TensorDataset:len() return self.tensors[1]:size(1) end

--- Returns sample i: a view of each tensor, without dim 1.
---@param i integer
function TensorDataset:get(i)
  check_position(self.__name .. ":get", i, self:len())
  local tensors = self.tensors
  if #tensors == 2 then return tensors[1]:select(1, i), tensors[2]:select(1, i) end
  local parts = {}
  for k, t in ipairs(tensors) do parts[k] = t:select(1, i) end
  return unpack(parts)
end

--- Returns the batch of these samples, with one call into C for each tensor.
---@param positions integer[]
---@return accelerate.Tensor ...
function TensorDataset:get_batch(positions)
  local tensors = self.tensors
  local indices = to_indices(self.__name, positions, self:len())
  local parts = {}
  for k = 1, #tensors do parts[k] = tensors[k]:index_select(1, indices) end
  core.release(indices)
  return unpack(parts)
end

--- Returns the dataset itself, or a dataset of the items where a plain list is given, of the rows
--- where a tensor is.
---@param where string the function that was called
---@param dataset any
---@return any
function M.of(where, dataset)
  if core.is_tensor(dataset) and dataset.ndim > 0 then return TensorDataset(dataset) end
  local plain = type(dataset) == "table" and getmetatable(dataset) == nil and #dataset > 0
    and dataset.get == nil and dataset.iter == nil
  if not plain then return dataset end
  local fault = lists.fault(dataset)
  if fault then fail("%s: expected a list of samples, but it has %s", where, fault) end
  return List(dataset)
end

--- Samples of another dataset at given positions, in that order.
---@class accelerate.Subset: accelerate.Dataset
---@field dataset table
---@field indices integer[] positions in `dataset`, from 1
local Subset = class("Subset", M.Dataset)
M.Subset = Subset

---@param dataset any a table with get(i) and len(), a plain list of samples, or a tensor of them
---@param indices integer[]|accelerate.Tensor positions, from 1; may repeat; a tensor counts from 0
function Subset:init(dataset, indices)
  dataset = M.of("Subset", dataset)
  if not M.is_map(dataset) then
    fail("Subset: expected a dataset with get(i) and len(), got %s", show(dataset))
  end
  indices = M.positions("Subset", indices)
  local n = dataset:len()
  for j = 1, #indices do check_position(("Subset: entry %d of the list"):format(j), indices[j], n) end
  self.dataset, self.indices = dataset, indices
end

function Subset:len() return #self.indices end

function Subset:get(i)
  check_position("Subset:get", i, #self.indices)
  return self.dataset:get(self.indices[i])
end

-- Converts positions to those in the inner dataset.
function Subset:_mapped(positions)
  local mapped, indices, n = {}, self.indices, #self.indices
  for j = 1, #positions do
    check_position("Subset", positions[j], n)
    mapped[j] = indices[positions[j]]
  end
  return mapped
end

function Subset:get_batch(positions) return self.dataset:get_batch(self:_mapped(positions)) end

--- Returns the dataset's get_batch if it agrees with its get: a subclass that overrides only get
--- must not be bypassed.
---@return function? get_batch
function M.batch_reader(dataset)
  local get_batch = dataset.get_batch
  if type(get_batch) ~= "function" then return nil end
  if type(dataset.can_get_batch) == "function" and not dataset:can_get_batch() then return nil end
  if get_batch == TensorDataset.get_batch and dataset.get ~= TensorDataset.get then return nil end
  if get_batch == Subset.get_batch and (dataset.get ~= Subset.get or not M.batch_reader(dataset.dataset)) then
    return nil
  end
  return get_batch
end

--- Returns the tensors whose rows are the dataset's samples, and a function that converts positions
--- to rows (from 1); nil when samples are not plain rows of tensors.
---@return accelerate.Tensor[]? tensors
---@return (fun(positions: integer[]): integer[])? to_rows
function M.rows_of(dataset)
  local get_batch = M.batch_reader(dataset)
  if get_batch == TensorDataset.get_batch then
    return dataset.tensors, function(positions) return positions end
  end
  if get_batch ~= Subset.get_batch then return nil end
  local tensors, inner = M.rows_of(dataset.dataset)
  if not tensors then return nil end
  return tensors, function(positions) return inner(dataset:_mapped(positions)) end
end

-- Converts lengths to counts. Fractions (below 1, with sum 1) are shares, rounded down; the first
-- parts get the samples that are left.
local function to_counts(lengths, n)
  local sum = 0
  for k, length in ipairs(lengths) do
    if type(length) ~= "number" or length ~= length or length < 0 then
      fail("random_split: length %d must be 0 or more, got %s", k, show(length))
    end
    sum = sum + length
  end
  if math.abs(sum - 1) > 1e-9 or n == 1 then
    if sum ~= n then
      fail("random_split: the lengths must add up to the %d samples (or, as fractions, to 1), got %g", n, sum)
    end
    return lengths
  end
  local counts, left = {}, n
  for k, length in ipairs(lengths) do
    counts[k] = math.floor(length * n + 1e-9)
    left = left - counts[k]
  end
  for k = 1, left do counts[(k - 1) % #counts + 1] = counts[(k - 1) % #counts + 1] + 1 end
  return counts
end

--- Splits a dataset at random into parts that do not overlap.
---@param dataset any a table with get(i) and len(), a plain list of samples, or a tensor of them
---@param lengths number[] counts with sum dataset:len(), or fractions with sum 1
---@param ... any generator, or a table with it
---@return accelerate.Subset ... one for each length
function M.random_split(dataset, lengths, ...)
  local opts = options.read("random_split", { "generator" },
    { generator = { "Generator", optional = true } }, ...)
  dataset = M.of("random_split", dataset)
  if not M.is_map(dataset) then
    fail("random_split: expected a dataset with get(i) and len(), got %s", show(dataset))
  end
  if type(lengths) ~= "table" or #lengths == 0 then
    fail("random_split: expected a list of lengths, got %s", show(lengths))
  end
  local fault = lists.fault(lengths)
  if fault then fail("random_split: expected a list of lengths, but it has %s", fault) end
  local n = dataset:len()
  local counts = to_counts(lengths, n)
  local order = core.randperm(n, { generator = opts.generator or core._common_generator() }):totable()
  local parts, at = {}, 0
  for k, count in ipairs(counts) do
    if count % 1 ~= 0 then
      fail("random_split: length %d must be a whole number or a fraction, got %g", k, count)
    end
    local indices = {}
    for j = 1, count do indices[j] = order[at + j] + 1 end
    at = at + count
    parts[k] = Subset(dataset, indices)
  end
  return unpack(parts)
end

by_position.constructors(M, { Subset = "dataset indices" })
by_position.functions(M, { random_split = "dataset lengths ..." })

return M
