--- Gradients that are kept by row: those of an Embedding { sparse = true }.
---
--- The table itself takes no part in the graph. Its rows that a batch names become a leaf of their
--- own, and a hook of that leaf adds the rows' gradient to what is kept of the table here. So a
--- step costs what its rows cost, however large the table is. `weight.grad` is then a sparse
--- tensor.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

-- parameter -> list of { rows =, values = }, one for each backward pass through a lookup
local kept = setmetatable({}, { __mode = "k" })
local any = false

--- Returns whether there may be such gradients. Each step calls it, so it is cheap.
---@return boolean
function M.any() return any end

--- The gradient of a parameter that is kept here, not coalesced; or nil.
---@param p accelerate.Tensor
---@return accelerate.sparse.SparseTensor?
function M.of(p)
  local parts = kept[p]
  if not parts then return nil end
  local rows, values = {}, {}
  for i, part in ipairs(parts) do rows[i], values[i] = part.rows, part.values end
  local places = #rows == 1 and rows[1] or core.cat(rows, 1)
  local data = #rows == 1 and values[1] or core.cat(values, 1)
  return require("accelerate.sparse.coo")._make(places:unsqueeze(1), data, p.shape, #rows == 1)
end

--- Forgets the gradients of these parameters.
---@param params accelerate.Tensor[]
function M.drop(params)
  for i = 1, #params do kept[params[i]] = nil end
  any = next(kept) ~= nil
end

-- What p.grad reads, and p.grad = nil forgets, where the tensor itself holds no gradient.
core._row_gradients(function(p, forget)
  if not any then return nil end
  if forget then return M.drop { p } end
  return M.of(p)
end)

local function add(p, rows, values)
  kept[p] = kept[p] or {}
  table.insert(kept[p], { rows = core.keep(rows), values = core.keep(values) })
  any = true
end

--- Raises where one of the parameters has such a gradient.
---@param where string
---@param params accelerate.Tensor[]
function M.refuse(where, params)
  if not any then return end
  for i, p in ipairs(params) do
    if kept[p] then
      fail("%s: parameter %d has a sparse gradient, of Embedding { sparse = true }: leave sparse out, or " ..
        "optimize it with SparseAdam, or with plain SGD or Adagrad", where, i)
    end
  end
end

--- Returns the rows of weight that input names, as embedding does. Their gradient is kept here.
---@param input accelerate.Tensor int64
---@param weight accelerate.Tensor (count, size), a leaf
---@param padding_idx integer? from 0: its row gets no gradient
---@return accelerate.Tensor
function M.embedding(input, weight, padding_idx)
  if not core.is_grad_enabled() or not weight.requires_grad then return core.embedding(input, weight) end
  if not weight.is_leaf then
    fail("embedding: sparse = true: the weight must be a leaf, got the result of %s",
      tostring(weight.grad_fn))
  end
  local rows, places = input:reshape(-1):unique { return_inverse = true }
  local leaf = weight:detach():index_select(1, rows):requires_grad_()
  leaf:register_hook(function(g)
    local named, values = rows, g:detach()
    if padding_idx then
      local others = core.nonzero(rows:ne(padding_idx)):reshape(-1)
      named, values = rows:index_select(1, others), values:index_select(1, others)
    end
    add(weight, named, values:clone())
  end)
  return core.embedding(places:view(input.shape), leaf)
end

return M
