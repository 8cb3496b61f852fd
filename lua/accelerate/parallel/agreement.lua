--- Checks that a model that is being prepared is alike on all ranks.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local function describe(model)
  local lines = {}
  for name, p in model:named_parameters() do
    lines[#lines + 1] = ("%s %s [%s]%s"):format(name, p.dtype, table.concat(p.shape, ", "), p.requires_grad
      and "" or " (frozen)")
  end
  for name, b in model:named_buffers() do
    lines[#lines + 1] = ("%s %s [%s] (buffer)"):format(name, b.dtype, table.concat(b.shape, ", "))
  end
  return lines
end

-- Collectives take real tensors.
local function check_types(model)
  for name, p in model:named_parameters() do
    if p.requires_grad and p:is_complex() then
      fail("prepare: parameter '%s' is %s, and gradients of complex numbers are not reduced over ranks; " ..
        "keep its parts as a real parameter p, and take p:view_as_complex() in forward", name, p.dtype)
    end
  end
end

--- Raises, on the ranks that differ from rank 0, unless names, dtypes and shapes agree; and on all
--- ranks where gradients cannot be reduced.
---@param model accelerate.nn.Module
function M.check(model)
  check_types(model)
  local mine = describe(model)
  local theirs = core.dist.broadcast_bytes(state.PartialState().process_index == 0
    and table.concat(mine, "\n") or nil, 0)
  if theirs == table.concat(mine, "\n") then return end
  local i = 0
  for line in (theirs .. "\n"):gmatch("(.-)\n") do
    i = i + 1
    if line ~= mine[i] then
      fail("prepare: the model differs between ranks: entry %d is '%s' here and '%s' on rank 0", i, mine[i]
        or "nothing", line)
    end
  end
  fail("prepare: the model differs between ranks: '%s' is not on rank 0", mine[i + 1] or "an entry")
end

return M
