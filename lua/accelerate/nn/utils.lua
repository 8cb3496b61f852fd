--- nn.utils: functions over many parameters or their gradients.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local gradients = require "accelerate.sparse.gradients"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local positions = require "accelerate.utils.positions"
local parts = require "accelerate.nn.parts"

local fail = options.fail

local checkpointing = require "accelerate.nn.utils.checkpoint"
local fusion = require "accelerate.nn.utils.fusion"
local normed = require "accelerate.nn.utils.normed"

---@class accelerate.nn.utils
local M = {
  rnn = require "accelerate.nn.utils.rnn",
  parametrize = require "accelerate.nn.utils.parametrize",
  parametrizations = require "accelerate.nn.utils.parametrizations",
  weight_norm = normed.weight_norm, remove_weight_norm = normed.remove_weight_norm,
  spectral_norm = normed.spectral_norm, remove_spectral_norm = normed.remove_spectral_norm,
  checkpoint = checkpointing.checkpoint,
  checkpoint_with = checkpointing.with,
  checkpoint_sequential = checkpointing.sequential,
  fusion = fusion,
  fuse_conv_bn_eval = fusion.fuse_conv_bn_eval, fuse_conv_bn_weights = fusion.fuse_conv_bn_weights,
  fuse_linear_bn_eval = fusion.fuse_linear_bn_eval, fuse_linear_bn_weights = fusion.fuse_linear_bn_weights,
}

local function list_of(where, params)
  if core.is_tensor(params) then return { params } end
  local list = lists.walked(params)
  local plain = rawequal(list, params)
  if not list or not plain and #list > 0 and not core.is_tensor(list[1]) then
    fail("%s: expected a list of tensors (model:parameters()), got %s", where, options.show(params))
  end
  for i = 1, #list do
    if not core.is_tensor(list[i]) then
      fail("%s: entry %d must be a tensor, got %s", where, i, options.show(list[i]))
    end
  end
  return list
end

local NORM_TYPE = { "number", default = 2 }
local FOREACH = { "boolean", optional = true } -- PyTorch's choice of an implementation: there is one
local CLIP = { max_norm = { "any", optional = true }, norm_type = NORM_TYPE,
  error_if_nonfinite = { "boolean", default = false }, foreach = FOREACH }
local TOTAL = { norm_type = NORM_TYPE, error_if_nonfinite = CLIP.error_if_nonfinite, foreach = FOREACH }
local WITH_NORM = { max_norm = CLIP.max_norm, total_norm = CLIP.max_norm, foreach = FOREACH }
local VALUE = { clip_value = CLIP.max_norm, foreach = FOREACH }
local CLIP_ORDER = { "max_norm", "norm_type", "error_if_nonfinite", "foreach" }
local TOTAL_ORDER = { "norm_type", "error_if_nonfinite", "foreach" }

--- Scales gradients in place so that their joint norm is at most max_norm: by max_norm / (norm +
--- 1e-6) when that is below 1. Parameters without a gradient are skipped.
---@param params accelerate.Tensor[]|accelerate.nn.ParameterList|accelerate.Tensor
---@param ... any max_norm (at least 0), norm_type = 2 (any number but 0; math.huge is the largest
---  element), error_if_nonfinite = false, foreach (without effect), or a table of them
---@return accelerate.Tensor norm 0-d, before clipping
function M.clip_grad_norm_(params, ...)
  local max_norm, o = (...)
  if type(max_norm) == "number" then -- what is unknown is not max_norm, then
    o = options.read("clip_grad_norm_", TOTAL_ORDER, TOTAL, select(2, ...))
  else
    o = options.read("clip_grad_norm_", CLIP_ORDER, CLIP, ...)
    max_norm = o.max_norm
  end
  options.value("clip_grad_norm_", "max_norm", max_norm, { "number", min = 0 })
  params = list_of("clip_grad_norm_", params)
  gradients.refuse("clip_grad_norm_", params)
  local how = { norm_type = o.norm_type, error_if_nonfinite = o.error_if_nonfinite }
  return parts.lend(params, function(list) return core.clip_grad_norm_(list, max_norm, how) end)
end

--- Scales gradients by max_norm / (total_norm + 1e-6) when that is below 1: the second half of
--- clip_grad_norm_.
---@param params accelerate.Tensor[]|accelerate.nn.ParameterList|accelerate.Tensor
---@param ... any max_norm (at least 0), total_norm (a tensor or a number), foreach (without
---  effect), or a table of them
function M.clip_grads_with_norm_(params, ...)
  local o = options.read("clip_grads_with_norm_", { "max_norm", "total_norm", "foreach" }, WITH_NORM, ...)
  local max_norm, total_norm = o.max_norm, o.total_norm
  options.value("clip_grads_with_norm_", "max_norm", max_norm, { "number", min = 0 })
  options.value("clip_grads_with_norm_", "total_norm", total_norm, { "number|tensor" })
  local factor = max_norm / ((type(total_norm) == "number" and total_norm or total_norm:item()) + 1e-6)
  params = list_of("clip_grads_with_norm_", params)
  if factor >= 1 then return end
  parts.lend(params, function(list) core.scale_grads_(list, factor) end)
end

--- Clamps every element of the gradients to -clip_value .. clip_value, in place.
---@param params accelerate.Tensor[]|accelerate.nn.ParameterList|accelerate.Tensor
---@param ... any clip_value (at least 0), foreach (without effect), or a table of them
function M.clip_grad_value_(params, ...)
  local clip_value = options.read("clip_grad_value_", { "clip_value", "foreach" }, VALUE, ...).clip_value
  options.value("clip_grad_value_", "clip_value", clip_value, { "number", min = 0 })
  params = list_of("clip_grad_value_", params)
  gradients.refuse("clip_grad_value_", params)
  core.clip_grad_value_(params, clip_value)
end

for _, name in ipairs { "clip_grad_norm_", "clip_grad_value_" } do
  M[name] = positions.arrange(name, "parameters ...", M[name])
end

--- Returns the joint norm of the gradients, as a number.
---@param params accelerate.Tensor[]|accelerate.nn.ParameterList|accelerate.Tensor
---@param ... any norm_type = 2, or a table with it
---@return number
function M.grad_norm(params, ...)
  local o = options.read("grad_norm", { "norm_type" }, { norm_type = NORM_TYPE }, ...)
  return parts.lend(list_of("grad_norm", params), function(list) return core.grad_norm(list, o.norm_type) end)
end

--- Returns the joint norm of the tensors themselves.
---@param tensors accelerate.Tensor[]|accelerate.Tensor of any floating-point types and shapes
---@param ... any norm_type = 2, error_if_nonfinite = false, foreach (without effect), or a table of
---  them
---@return accelerate.Tensor norm 0-d
function M.get_total_norm(tensors, ...)
  local o = options.read("get_total_norm", TOTAL_ORDER, TOTAL, ...)
  local norm = core.total_norm(parts.list(list_of("get_total_norm", tensors)), o.norm_type)
  if o.error_if_nonfinite and not (norm:item() < math.huge) then
    fail("get_total_norm: the norm is %g", norm:item())
  end
  return norm
end

--- Returns all elements of the parameters in one vector, through which gradients flow.
---@param params accelerate.Tensor[]|accelerate.nn.ParameterList|accelerate.Tensor
---@return accelerate.Tensor vector 1-d
function M.parameters_to_vector(params)
  local list = {}
  for i, p in ipairs(list_of("parameters_to_vector", params)) do list[i] = p:reshape(-1) end
  if #list == 0 then fail("parameters_to_vector: the list of tensors is empty") end
  return core.cat(list)
end

--- Copies the elements of a vector into the parameters, in order. Unlike in PyTorch, the parameters
--- keep their own memory.
---@param vector accelerate.Tensor 1-d, with as many elements as the parameters together
---@param params accelerate.Tensor[]|accelerate.nn.ParameterList|accelerate.Tensor
function M.vector_to_parameters(vector, params)
  options.value("vector_to_parameters", "vector", vector, { "tensor" })
  params = list_of("vector_to_parameters", params)
  local count, at = 0, 1
  for _, p in ipairs(params) do count = count + p:numel() end
  if vector:dim() ~= 1 or vector:numel() ~= count then
    fail("vector_to_parameters: the parameters have %d elements, the vector has shape [%s]", count,
      table.concat(vector.shape, ", "))
  end
  core.no_grad(function()
    for _, p in ipairs(params) do
      p:copy_(vector:narrow(1, at, p:numel()):view(p.shape))
      at = at + p:numel()
    end
  end)
end

--- Takes a prefix off the names of a state dict, in place. Names of a model that was saved within a
--- wrapper begin with "module." (data parallel) or "_orig_mod." (compiled).
---@param state_dict table<string, accelerate.Tensor>
---@param prefix string such as "module."
function M.consume_prefix_in_state_dict_if_present(state_dict, prefix)
  local where = "consume_prefix_in_state_dict_if_present"
  if type(state_dict) ~= "table" or class.of(state_dict) then
    fail("%s: expected a table of tensors by name, got %s", where, options.show(state_dict))
  elseif type(prefix) ~= "string" or prefix == "" then
    fail("%s: prefix: expected a string such as 'module.', got %s", where, options.show(prefix))
  end
  for _, name in ipairs(ordered.keys(state_dict)) do
    if type(name) == "string" and name:sub(1, #prefix) == prefix then
      local value = state_dict[name]
      state_dict[name] = nil
      state_dict[name:sub(#prefix + 1)] = value
    end
  end
end

positions.functions(M, { consume_prefix_in_state_dict_if_present = "state_dict prefix" })

return require("accelerate.utils.properties").strict("accelerate.nn.utils", M)
