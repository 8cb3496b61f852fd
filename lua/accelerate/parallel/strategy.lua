--- What a strategy of training on several ranks says and does. The rest of the library asks the
--- strategy of an Accelerator (Accelerator:_strategy) or of a prepared model (its record's), and
--- knows none by name.
---
---   replicated/   each rank has the whole model; gradients are averaged
---   sharded/      values, gradients or optimizer states are cut over ranks; buffers that the plan
---                 leaves whole are replicated, so Sharded is derived from Replicated
---
--- The methods here serve a model that every rank trains by itself. A further strategy is a
--- folder beside these with a class of its own, and an entry in `parallel.TENANTS`.
---
--- A model is prepared in this order: `begin`, once; then for its parameters that are in no layout
--- yet `divided` (how they are divided into layouts), `share` (all ranks start from rank 0's
--- values) and `place` (where the new layouts rest). A pass is `begin_pass`, backward,
--- `finish_pass` (which calls `reduce` where the pass ends with a reduction) and `rest`; a step
--- `before_step`, the optimizer's, `after_step`.
local class = require "accelerate.utils.class"
local pieces = require "accelerate.parallel.pieces"
local plans = require "accelerate.parallel.plan"
local state = require "accelerate.state"
local windows = require "accelerate.parallel.windows"

---@class accelerate.Strategy
---@field plan accelerate.ShardingPlan where buffers rest; without a plugin: whole on every rank
---@field handler accelerate.DistributedDataParallelKwargs? how gradients are reduced
---@field ranks integer
---@field replicas boolean whether each rank has a whole model, which it can train by itself
local Strategy = class("Strategy")
class.optional(Strategy, "handler")

--- Returns whether this strategy can serve a plan on this run.
---@param plan accelerate.ShardingPlan? nil: every rank has the whole model
---@return boolean
function Strategy.serves(plan) return true end

-- Every rank holds all.
local function whole(ranks)
  return plans.new("NO_SHARD", { name = "none: every rank holds the whole model", replicate = ranks }, ranks)
end

function Strategy:init(plan, handler)
  self.ranks = state.PartialState().num_processes
  self.plan, self.handler = plan or whole(self.ranks), handler
  self.replicas = true
end

-- ---- of an Accelerator

--- Returns whether backward passes and steps are followed: something is exchanged in them.
---@return boolean
function Strategy:follows() return self.ranks > 1 end

--- Raises for an optimizer that cannot step what a rank has of its parameters.
---@param optimizer accelerate.optim.Optimizer
function Strategy:check_optimizer(optimizer) end

--- Returns in which files save_state has models and optimizers; nil: in those that any run has.
---@return "full"|"sharded"|"local"|nil
function Strategy:state_dict_type()
  local plan = self.plan
  return (plan.values == "cut" or plan.gradients == "cut" or plan.states == "cut") and plan.state_dict_type
    or nil
end

-- ---- preparing

--- Prepares the record of a new model. Raises for settings that do not go together.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
function Strategy:begin(record, model) end

--- Returns how a model's parameters are divided into layouts (parallel.flat); nil: by type, device
--- and kind of training alone.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
---@return table?
function Strategy:divided(record, model) end

--- Gives all ranks rank 0's values. A collective.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
---@param made accelerate.Flat[] the new layouts
function Strategy:share(record, model, made) end

--- Decides where new layouts rest.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
---@param made accelerate.Flat[]
function Strategy:place(record, model, made) end

--- Makes room for an optimizer that check_optimizer has taken and that applies gradients inside
--- backward: they have no slot in the gradient buffers.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
function Strategy:fuse(record, model) end

-- ---- a backward pass

---@class accelerate.Pass a backward pass of Accelerator:backward
---@field due boolean whether gradients are reduced in it, or after it
---@field alone boolean whether one model alone is prepared, so that all ranks take part even where
---  a rank's loss did not reach it
---@field history boolean? whether gradients get a history of their own
---@field reached boolean? at its end: whether it may have reached the model

---@param record accelerate.ModelRecord
---@param pass accelerate.Pass
function Strategy:begin_pass(record, pass) end

--- Ends a pass. Returns whether the gradients are final, so that a weighted window ends.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
---@param pass accelerate.Pass
---@return boolean
function Strategy:finish_pass(record, model, pass) return pass.due end

--- Reduces the gradients of a model over the ranks. A collective.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
function Strategy:reduce(record, model) end

--- Ends a weighted window, after the reduction.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
function Strategy:divide(record, model) windows.divide(record) end

--- Frees what a pass has gathered.
---@param record accelerate.ModelRecord
function Strategy:rest(record) end

--- Returns what a recording of a model's backward pass takes to contain its reduction
--- (accelerate.capture.model); nil where there is none. Raises where passes cannot be recorded.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
---@return table?
function Strategy:recorded_reduction(record, model) end

-- ---- a step

---@param record accelerate.ModelRecord
function Strategy:before_step(record) end

---@param record accelerate.ModelRecord
---@param groups table[] the optimizer's param_groups
function Strategy:after_step(record, groups) end

-- ---- values

--- Returns whether values of parameters are cut over ranks.
---@return boolean
function Strategy:cuts_values() return false end

--- Averages the parameters over all ranks, for LocalSGD: where each rank trains a whole model
--- (`replicas`).
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
function Strategy:average(record, model) end

--- Runs fn(...) with whole values on every rank, and returns what it returns.
---@param record accelerate.ModelRecord
---@param write boolean? whether edits are taken back; nil: there are none
---@param from integer? the rank whose values all ranks take before
---@param fn function
---@return any ...
function Strategy:summon(record, write, from, fn, ...) return fn(...) end

--- Returns whether ranks have buffers of modules (running statistics, say) of their own.
---@param record accelerate.ModelRecord
---@return boolean
function Strategy:keeps_buffers(record) return self.ranks > 1 and record.has_buffers end

--- Returns what this rank has of a model's parameters.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
---@return accelerate.Piece[]
function Strategy:pieces(record, model) return pieces.of_model(model, record) end

--- Waits, before this rank writes its pieces, for the ranks that read them.
---@param record accelerate.ModelRecord
function Strategy:meet(record) pieces.meet(record) end

--- After pieces were written on all ranks.
---@param record accelerate.ModelRecord
function Strategy:changed(record) pieces.changed(record) end

return Strategy
