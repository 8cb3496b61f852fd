--- The network of gen_optim_reference.py and gen_optim_steps_reference.py, whose optimizers' steps
--- PyTorch took; and parameters in flat buffers.
local core = require "accelerate.core"
local layouts = require "spec.support.layouts"
local nn = require "accelerate.nn"

local M = {}

--- Returns a tensor of small fractions that repeat.
function M.pattern(shape, a, b, dtype)
  local n, list = 1, {}
  for _, s in ipairs(shape) do n = n * s end
  for i = 0, n - 1 do list[i + 1] = ((i * a + b) % 17 - 8) / 16 end
  return core.tensor(list, { dtype = dtype }):view(shape)
end

local SHAPES = { { 4, 3 }, { 4 }, { 4, 4 }, { 4 }, { 2, 4 }, { 2 } }

local Net = nn.class("Net")
M.Net = Net

function Net:init(dtype, seed)
  self.dtype = dtype
  for k, shape in ipairs(SHAPES) do
    self["p" .. k] = nn.Parameter(M.pattern(shape, 4 + k, 3 * (k - 1) + (seed or 0), dtype))
  end
end

--- Returns the loss of step t, with the middle layer applied so many times.
function Net:forward(t, times)
  local h = core.tanh(core.linear(M.pattern({ 5, 3 }, 3, t, self.dtype), self.p1, self.p2))
  for _ = 1, times or 1 do h = core.tanh(core.linear(h, self.p3, self.p4)) end
  return (core.linear(h, self.p5, self.p6) - M.pattern({ 5, 2 }, 7, 2 * t, self.dtype)):square():mean()
end

--- Returns the parameters of several nets, in order.
function M.params_of(nets)
  local list = {}
  for _, net in ipairs(nets) do
    for _, p in ipairs(net:parameters()) do list[#list + 1] = p end
  end
  return list
end

--- Returns a weighted sum of all elements: what the references have of a step.
---@param tensors accelerate.Tensor[]
function M.weighted_sum(tensors)
  local sum, i = 0, 0
  for _, p in ipairs(tensors) do
    for _, v in ipairs(p:detach():flatten():totable()) do
      sum = sum + v * ((i * 11 + 5) % 23 + 1) / 23
      i = i + 1
    end
  end
  return sum
end

--- Returns the weighted sum of all parameters of a list of modules.
function M.digest(nets) return M.weighted_sum(M.params_of(nets)) end

-- parameter -> layout: what ends with the layout is the parameters' place in it
--- Lays parameters and gradients out in flat buffers, as accelerator:prepare does.
function M.lay_out(params)
  local reversed = {}
  for i = #params, 1, -1 do reversed[#reversed + 1] = params[i] end
  layouts.of(reversed, { grads = true })
end

return M
