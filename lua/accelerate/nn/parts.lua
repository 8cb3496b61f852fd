--- Complex parameters as the real tensors of their parts: what steps of optimizers and the clipping
--- of gradients work on, as PyTorch's do.
local core = require "accelerate.core"

local M = {}

-- complex parameter -> a real leaf over its memory, with 2 in the last dim
local real = setmetatable({}, { __mode = "k" })

local function is_complex(p) return core.is_tensor(p) and p:is_complex() end

--- Returns the real tensor of a complex parameter; any other tensor as it is.
---@param p accelerate.Tensor
---@return accelerate.Tensor
function M.of(p)
  if not is_complex(p) then return p end
  local leaf = real[p]
  if not leaf or leaf:_address() ~= p:_address() then
    leaf = p:detach():view_as_real()
    real[p] = leaf
  end
  return leaf
end

--- Returns the list with real tensors in place of complex ones: the list itself where there are
--- none.
---@param params accelerate.Tensor[]
---@return accelerate.Tensor[]
function M.list(params)
  local any = false
  for _, p in ipairs(params) do any = any or is_complex(p) end
  if not any then return params end
  local list = {}
  for i, p in ipairs(params) do list[i] = M.of(p) end
  return list
end

--- Calls fn with the list of real tensors, which have the gradients of the complex ones meanwhile.
---@param params accelerate.Tensor[]
---@param fn fun(list: accelerate.Tensor[]): any
---@return any
function M.lend(params, fn)
  local list = M.list(params)
  if rawequal(list, params) then return fn(params) end
  for i, p in ipairs(params) do
    if list[i] ~= p then list[i].grad = p.grad and p.grad:detach():view_as_real() or nil end
  end
  local result = fn(list)
  for i, p in ipairs(params) do
    if list[i] ~= p then list[i].grad = nil end
  end
  return result
end

--- Returns the entries of a state with complex tensors for the parts of each: what is saved.
---@param state table
---@return table
function M.joined(state)
  local out = {}
  for name, value in next, state do
    out[name] = core.is_tensor(value) and value.ndim > 0 and value:view_as_complex() or value
  end
  return out
end

--- Returns the entries of a saved state with the parts of complex tensors.
---@param state table
---@return table
function M.split(state)
  local out = {}
  for name, value in next, state do out[name] = is_complex(value) and value:view_as_real() or value end
  return out
end

return M
