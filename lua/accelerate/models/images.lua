--- What models of images have in common: inputs, and the forward of a classifier.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local pretrained = require "accelerate.models.pretrained"

local M = {}

M.INPUTS = {
  pixel_values = { "tensor" },
  output_hidden_states = { "boolean", default = false },
}
local WITH_LABELS = { labels = { "tensor", optional = true } }
for name, entry in next, M.INPUTS do WITH_LABELS[name] = entry end

--- Raises unless x is a batch of images.
---@param where string
---@param x accelerate.Tensor
---@param channels integer
---@param size integer? their height and width; nil: any
function M.check(where, x, channels, size)
  local ok = x:dim() == 4 and x:size(2) == channels and core._is_float(x)
    and (not size or x:size(3) == size and x:size(4) == size)
  if not ok then
    options.fail("%s: pixel_values must be a floating tensor (batch, %d, %s), got %s", where, channels,
      size and ("%d, %d"):format(size, size) or "height, width", options.show(x))
  end
end

--- Gives a class the forward of a classifier: scores(self, inputs) gives logits and the hidden
--- states.
---@param Class table
---@param scores function
function M.classifier(Class, scores)
  --- `model { pixel_values = ..., labels = ... }`.
  ---@return { loss: accelerate.Tensor?, logits: accelerate.Tensor, hidden_states:
  ---  accelerate.Tensor[]? } logits: (batch, num_labels)
  function Class:forward(inputs, opts)
    local o = pretrained.inputs(self, inputs, opts, WITH_LABELS, "pixel_values")
    return core.scope(function()
      local logits, all = scores(self, o)
      local loss = o.labels and pretrained.class_loss(self.config, logits, o.labels)
      return { loss = loss, logits = logits, hidden_states = all }
    end)
  end
end

return M
