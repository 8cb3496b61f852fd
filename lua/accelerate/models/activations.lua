--- Activation functions by the names that configurations give them.

local core = require "accelerate.core"
local ordered = require "accelerate.utils.ordered"

local gelu, sigmoid, silu = core.gelu, core.sigmoid, core.silu

local function tanh_gelu(x) return gelu(x, "tanh") end

local FUNCTIONS = {
  gelu = function(x) return gelu(x) end,
  gelu_new = tanh_gelu,
  gelu_fast = tanh_gelu,
  gelu_pytorch_tanh = tanh_gelu,
  quick_gelu = function(x) return x * sigmoid(x * 1.702) end,
  relu = core.relu,
  relu6 = core.relu6,
  silu = silu,
  swish = silu,
  mish = core.mish,
  tanh = core.tanh,
  sigmoid = sigmoid,
  linear = function(x) return x end,
}

local M = { functions = FUNCTIONS, names = ordered.sorted_keys(FUNCTIONS) }

--- Returns a schema's entry for an activation.
---@param default string
---@return table
function M.entry(default) return { "string", default = default, one_of = M.names } end

--- Returns whether a name means gelu in its tanh form, which linear_gelu computes.
---@param name string
---@return boolean
function M.is_tanh_gelu(name) return FUNCTIONS[name] == tanh_gelu end

return M
