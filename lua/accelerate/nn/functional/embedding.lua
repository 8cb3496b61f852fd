--- nn.functional: rows of a table by number, and bags of such rows, built from ops.

local core = require "accelerate.core"
local gradients = require "accelerate.sparse.gradients"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local M = {}

local SHARED = {
  padding_idx = { "integer", optional = true },
  max_norm = { "number", optional = true, above = 0 },
  norm_type = { "number", default = 2 },
  scale_grad_by_freq = { "boolean", default = false },
  sparse = { "boolean", default = false },
}

local function check(where, input, weight)
  if not core.is_tensor(input) or input.dtype ~= "int64" and input.dtype ~= "int32" then
    options.fail("%s: input: expected int64 or int32 numbers of rows, got %s", where, options.show(input))
  end
  if not core.is_tensor(weight) or weight.ndim ~= 2 or not core._is_float(weight) then
    options.fail("%s: weight: expected a floating-point tensor (count, size), got %s", where,
      options.show(weight))
  end
end

-- Scales the rows that input names to a norm of at most max_norm, in place.
local function renorm(weight, input, o)
  core.no_grad(function()
    local rows = input:reshape(-1):unique()
    local chosen = weight:index_select(1, rows)
    local norm = core.norm(chosen, o.norm_type, 2, true)
    weight:index_copy_(1, rows, chosen * core.where(norm:gt(o.max_norm), o.max_norm / (norm + 1e-7), 1))
  end)
end

-- y itself, whose gradients are divided by how often their rows occur in input.
local function by_frequency(y, input, count)
  local flat = input:reshape(-1)
  local often = flat:bincount { minlength = count }:index_select(1, flat):view(input.shape):unsqueeze(-1)
  local fixed = y:detach()
  return fixed + (y - fixed) / often:to(y.dtype)
end

local function rows_of(where, input, weight, padding_idx, o)
  if o.max_norm then renorm(weight, input, o) end
  if o.sparse then
    if o.scale_grad_by_freq then
      options.fail("%s: scale_grad_by_freq does not go with sparse gradients", where)
    end
    return gradients.embedding(input, weight, padding_idx)
  end
  local y = core.embedding(input, weight, padding_idx)
  return o.scale_grad_by_freq and y.requires_grad and by_frequency(y, input, weight.shape[1]) or y
end

local ORDER = { "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse" }

--- Returns the row of weight for each number in input: the op, and three options. max_norm: rows
--- that are read and whose norm_type-norm is larger are scaled down to it, in place.
--- scale_grad_by_freq: a row's gradient is divided by how often its number occurs in input. sparse:
--- the weight's gradient is a sparse tensor with the rows that were read; see nn.Embedding.
---@param input accelerate.Tensor int64, from 0
---@param weight accelerate.Tensor (count, size)
---@param ... any padding_idx (its row gets no gradient), max_norm, norm_type = 2,
---  scale_grad_by_freq = false, sparse = false, or a table of them
---@return accelerate.Tensor input's shape and size
function M.embedding(input, weight, ...)
  local o = options.check("embedding", options.gather("embedding", ORDER, ...), SHARED)
  if o.max_norm or o.scale_grad_by_freq or o.sparse then
    check("embedding", input, weight)
    input = input:long()
  end
  local padding = o.padding_idx
  if padding and padding < 0 and core.is_tensor(weight) then padding = padding + weight.shape[1] end
  return rows_of("embedding", input, weight, padding, o)
end

-- ---- bags

local BAG_ORDER = { "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
  "per_sample_weights", "include_last_offset", "padding_idx" }
local BAG = {
  offsets = { "tensor", optional = true },
  mode = { "string", default = "mean", one_of = { "sum", "mean", "max" } },
  per_sample_weights = { "tensor", optional = true },
  include_last_offset = { "boolean", default = false },
}
for name, entry in next, SHARED do BAG[name] = entry end

local function check_bags(input, weight, o)
  check("embedding_bag", input, weight)
  local offsets, factors = o.offsets, o.per_sample_weights
  if input.ndim == 2 and (offsets or o.include_last_offset) then
    options.fail("embedding_bag: each row of an input of 2 dims is a bag: give no offsets")
  elseif input.ndim == 1 and not (offsets and offsets.ndim == 1 and offsets.dtype == "int64") then
    options.fail("embedding_bag: an input of one dim needs offsets, int64 of one dim, got %s",
      options.show(offsets))
  elseif input.ndim ~= 1 and input.ndim ~= 2 then
    options.fail("embedding_bag: input: expected one or two dims, got %s", options.show(input))
  end
  if o.sparse and o.mode == "max" then
    options.fail("embedding_bag: sparse gradients go with sum and mean, not with max")
  end
  if o.scale_grad_by_freq and o.mode == "max" then
    options.fail("embedding_bag: scale_grad_by_freq goes with sum and mean, not with max")
  end
  if not factors then return end
  if o.mode ~= "sum" then
    options.fail("embedding_bag: per_sample_weights goes with mode = \"sum\", got %q", o.mode)
  end
  if not lists.same(factors.shape, input.shape) or factors.dtype ~= weight.dtype then
    options.fail("embedding_bag: per_sample_weights: expected %s of input's shape %s, got %s", weight.dtype,
      lists.shape_text(input), options.show(factors))
  end
end

-- The number of each element's bag, from 0, and how many bags there are.
local function bags_of(input, o)
  local starts, n = o.offsets, input:numel()
  local list = starts:totable()
  local count = #list
  if o.include_last_offset then
    if count == 0 then options.fail("embedding_bag: include_last_offset needs at least one offset") end
    count = count - 1
    if list[count + 1] ~= n then
      options.fail("embedding_bag: include_last_offset: the last offset must be %d, " ..
        "the input's length, got %d",
        n, list[count + 1])
    end
  end
  if count > 0 and list[1] ~= 0 then
    options.fail("embedding_bag: the first offset must be 0, got %d", list[1])
  end
  for i = 2, count do
    if list[i] < list[i - 1] then
      options.fail("embedding_bag: offsets must not fall: %d comes after %d", list[i], list[i - 1])
    end
  end
  if count > 0 and list[count] > n then
    options.fail("embedding_bag: offsets must be at most %d, the input's length, got %d", n, list[count])
  end
  if count == 0 and n > 0 then options.fail("embedding_bag: %d numbers are in no bag", n) end
  local bags = starts:narrow(1, 1, count)
  return core.searchsorted(bags, core.arange(n, { device = input.device }), true) - 1, count
end

-- The largest of each bag's rows, 0 where a bag is empty.
local function largest(rows, bag, count, kept)
  local size = rows.shape[2]
  local low = core.full({ count, size }, -math.huge, { dtype = rows.dtype, device = rows.device })
  if kept then rows = core.where(kept:unsqueeze(-1), rows, -math.huge) end
  local filled = core.zeros({ count }, { dtype = "int64", device = rows.device })
    :index_add(1, bag, kept and kept:long() or core.ones_like(bag)):gt(0)
  local top = low:scatter_reduce(1, bag:unsqueeze(-1):expand(rows.shape), rows, "amax")
  return core.where(filled:unsqueeze(-1), top, 0)
end

local product = core._row "_sparse_product"

-- The sums of all bags as the product of a sparse matrix, which has a row for each bag, with the
-- weight: no row of it is copied. Plans of the matrix: host/core/ops/sparse.def.
local function summed(flat, weight, bag, count, factors)
  if flat:numel() > 0 and (flat:amin():item() < 0 or flat:amax():item() >= weight.shape[1]) then
    core.embedding(flat, weight) -- raises, and names the number
  end
  local function plan(ordered, rows, ...)
    return core.cat({ core.searchsorted(ordered, core.arange(rows + 1)), ... }, 1)
  end
  local values = factors or core.ones({ flat:numel() }, { dtype = weight.dtype })
  local turned
  if core.is_grad_enabled() and (weight.requires_grad or values.requires_grad) then
    local ordered, order = flat:sort(1)
    turned = plan(ordered, weight.shape[1], bag:index_select(1, order), order)
  end
  return product(values, weight, plan(bag, count, flat), turned, count):to(weight.dtype)
end

--- Sums, averages or takes the largest of the rows of each bag: embedding and a reduction.
---@param input accelerate.Tensor int64: (bags, n), or all bags one after the other with offsets
---@param weight accelerate.Tensor (count, size)
---@param ... any offsets (int64: where each bag begins, from 0), max_norm, norm_type = 2,
---  scale_grad_by_freq = false, mode = "mean" ("sum", "max"), sparse = false, per_sample_weights
---  (of input's shape, for sum), include_last_offset = false (the last offset is the input's
---  length), padding_idx (is in no bag), or a table of them
---@return accelerate.Tensor (bags, size); zeros for an empty bag
function M.embedding_bag(input, weight, ...)
  local o = options.check("embedding_bag", options.gather("embedding_bag", BAG_ORDER, ...), BAG)
  check_bags(input, weight, o)
  input = input:long()
  local bag, count
  if input.ndim == 2 then
    count = input.shape[1]
    bag = core.arange(count, { device = input.device }):unsqueeze(2):expand(input.shape):reshape(-1)
  else
    bag, count = bags_of(input, o)
  end
  local padding = o.padding_idx
  if padding and padding < 0 then padding = padding + weight.shape[1] end
  local flat = input:reshape(-1)
  local kept = padding and flat:ne(padding)
  local factors = o.per_sample_weights and o.per_sample_weights:reshape(-1)
  if kept and o.mode ~= "max" then factors = (factors or 1) * kept:to(weight.dtype) end
  local sum
  if o.mode == "max" or o.sparse or o.scale_grad_by_freq or weight.device ~= "cpu" then
    local rows = rows_of("embedding_bag", flat, weight, padding, o)
    if o.mode == "max" then return largest(rows, bag, count, kept) end
    if factors then rows = rows * factors:unsqueeze(-1) end
    sum = core.zeros({ count, weight.shape[2] }, { dtype = rows.dtype, device = rows.device })
      :index_add(1, bag, rows)
  else
    if o.max_norm then renorm(weight, flat, o) end
    sum = summed(flat, weight, bag, count, factors)
  end
  if o.mode == "sum" then return sum end
  local sizes = core.zeros({ count }, { dtype = "int64", device = weight.device })
    :index_add(1, bag, kept and kept:long() or core.ones_like(bag))
  return sum / sizes:clamp { min = 1 }:to(sum.dtype):unsqueeze(-1)
end

return M
