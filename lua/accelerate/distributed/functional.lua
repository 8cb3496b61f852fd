--- Collectives with gradients. Each one's gradient is the collective that is its transpose, so that
--- a loss computed on every rank, and summed over them, has the right gradient on each; gradients
--- of gradients likewise. Every rank of the group must run backward through the same ones in the
--- same order.
local core = require "accelerate.core"
local collectives = require "accelerate.distributed.collectives"
local groups = require "accelerate.distributed.group"
local options = require "accelerate.utils.options"

local M = {}

local GROUP = { group = { "any", optional = true } }
local REDUCED = { group = GROUP.group, op = { "string", default = "sum", one_of = { "sum", "mean" } } }
local SPLITS = {
  group = GROUP.group, input_split_sizes = { "list", optional = true },
  output_split_sizes = { "list", optional = true },
}

-- A differentiable function of a tensor and options: forward(x, opts), backward(g, opts).
local function with_gradient(name, forward, backward)
  return core.Function {
    name = name,
    forward = function(ctx, x, opts)
      ctx.opts = opts
      return forward(x, opts)
    end,
    backward = function(ctx, g) return backward(g, ctx.opts) end,
  }
end

local function sum_up(x, o) return collectives.all_reduce(x:detach():clone(), o) end
local all_reduce = with_gradient("AllReduce", sum_up, function(g, o) return M.all_reduce(g, o) end)

--- Returns the sum or mean of x over the ranks. The gradient is the sum (mean) of the ranks'
--- gradients.
---@param x accelerate.Tensor
---@param opts { op: ("sum"|"mean")?, group: accelerate.ProcessGroup? }?
---@return accelerate.Tensor
function M.all_reduce(x, opts) return all_reduce(x, options.check("functional.all_reduce", opts, REDUCED)) end

local function scatter_back(g, o) return M.reduce_scatter(g, o) end
local all_gather = with_gradient("AllGather", collectives.all_gather, scatter_back)

--- Joins the ranks' tensors along dim 1. The gradient of a rank's part is the sum of what all ranks
--- have for it.
---@param x accelerate.Tensor at least one dim
---@param opts { group: accelerate.ProcessGroup? }?
---@return accelerate.Tensor
function M.all_gather(x, opts)
  if x:dim() == 0 then options.fail("functional.all_gather: x has no dim to join along: x:reshape(1)") end
  return all_gather(x, options.check("functional.all_gather", opts, GROUP))
end

local function gather_back(g, o)
  local whole = M.all_gather(g, { group = o.group })
  if o.op ~= "mean" then return whole end
  return whole / select(2, groups.handle_of("functional.reduce_scatter", o.group)).size
end
local reduce_scatter = with_gradient("ReduceScatter", collectives.reduce_scatter, gather_back)

--- Returns this rank's part of dim 1 of the sum or mean over the ranks. The gradient is that of all
--- parts, joined.
---@param x accelerate.Tensor
---@param opts { op: ("sum"|"mean")?, group: accelerate.ProcessGroup? }?
---@return accelerate.Tensor
function M.reduce_scatter(x, opts)
  return reduce_scatter(x, options.check("functional.reduce_scatter", opts, REDUCED))
end

local function send_back(g, o)
  return M.all_to_all(g, {
    group = o.group, input_split_sizes = o.output_split_sizes, output_split_sizes = o.input_split_sizes,
  })
end
local all_to_all = with_gradient("AllToAll", collectives.all_to_all, send_back)

--- Sends part k of dim 1 to rank k and returns the parts that came. The gradient goes back the same
--- way.
---@param x accelerate.Tensor
---@param opts { input_split_sizes: integer[]?, output_split_sizes: integer[]?, group:
---  accelerate.ProcessGroup? }?
---@return accelerate.Tensor
function M.all_to_all(x, opts) return all_to_all(x, options.check("functional.all_to_all", opts, SPLITS)) end

return M
