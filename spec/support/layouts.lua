--- Flat layouts of parameters, as accelerator:prepare makes them, for specs of one part alone.
local core = require "accelerate.core"

local M = {}

local kept = setmetatable({}, { __mode = "k" })

--- Lays parameters out. The layout lives as long as they do.
---@param params accelerate.Tensor[]
---@param buffers { grads: boolean?, work: string? } work: the type of the working copies
---@return table layout
---@return integer[] offsets of the parameters in every buffer, in elements, counted from 0
function M.of(params, buffers)
  local layout, _, offsets = core.flat(params)
  if buffers.grads then layout:give_grads() end
  if buffers.work then layout:give_work(buffers.work) end
  for _, p in ipairs(params) do kept[p] = layout end
  return layout, offsets
end

--- Gives each of the parameters a place for its gradient, in a buffer of its own.
---@param params accelerate.Tensor[]
function M.give_slots(params)
  for _, p in ipairs(params) do M.of({ p }, { grads = true }) end
end

return M
