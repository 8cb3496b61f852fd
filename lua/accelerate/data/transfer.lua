--- Moves batches to the device: the next batch is copied while the step uses this one.
---
--- `start` returns a batch whose tensors are being copied in the device's copy stream, with its
--- ticket. `finish` makes later work on the device wait for the copies; the script does not wait.
local core = require "accelerate.core"
local nested = require "accelerate.utils.nested"

local M = {}

local is_tensor = core.is_tensor

--- Starts copying the tensors of a batch. Tensors that cannot be sent ahead (no copy stream on the
--- device, no memory, a gradient) stay where they are until `finish`.
---@param batch table { n = count, ... }; its parts are replaced
---@param device string? nil, "cpu": nothing is copied
---@param direct boolean whether pinned tensors are read when the copy runs; otherwise `finish`
---  copies them at once
---@param own boolean? whether nobody else holds the batch's tensors: those that were sent are
---  released, so that a worker gets their memory back without the collector
---@return table batch
function M.start(batch, device, direct, own)
  if not device or device == "cpu" then return batch end
  local last
  local sent = {}
  local function walk(value, depth)
    if is_tensor(value) then
      if value.device ~= "cpu" or not direct and value:is_pinned() then return value end
      local moved, ticket = core._send(value, device)
      last = ticket or last
      if moved and own then sent[#sent + 1] = value end
      return moved or value
    end
    -- `finish` raises for deeper nesting
    if not nested.is_container(value) or depth > 200 then return value end
    local result
    for key, item in pairs(value) do -- no collective in here: the order does not matter
      local moved = walk(item, depth + 1)
      if moved ~= item then
        result = result or nested.honor_type(value, value)
        result[key] = moved
      end
    end
    return result or value
  end
  for i = 1, batch.n do batch[i] = walk(batch[i], 1) end
  for _, t in ipairs(sent) do core.release(t) end
  batch.ticket = last
  return batch
end

--- Returns the batch ready for use: the device waits for tensors that were sent ahead; the others
--- are copied.
---@param batch table
---@param device string?
---@param non_blocking boolean
---@return table batch
function M.finish(batch, device, non_blocking)
  if not device or device == "cpu" then return batch end
  if batch.ticket then core._arrive(device, batch.ticket) end
  for i = 1, batch.n do
    batch[i] = nested.send_to_device(batch[i], device, { non_blocking = non_blocking })
  end
  return batch
end

--- Returns a batch with its tensors in pinned memory.
---@param batch table
---@return table batch
function M.pin(batch)
  for i = 1, batch.n do
    batch[i] = nested.recursively_apply(function(t) return t.device == "cpu" and t:pin_memory() or t end,
      batch[i])
  end
  return batch
end

return M
