--- Helpers for models: the model behind a prepared one, its modules, its state dict for files.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

local function check_model(what, model)
  if not class.is(model, require("accelerate.nn").Module) then
    fail("%s: model must be a module, got %s", what, options.show(model))
  end
  return model
end

local EXTRACT = {
  keep_fp32_wrapper = { "boolean", default = true }, keep_torch_compile = { "boolean", default = true },
  recursive = { "boolean", default = false },
}

--- Returns the model behind a prepared one. prepare does not wrap models, so this is the model
--- itself.
---@param model accelerate.nn.Module
---@param opts { keep_fp32_wrapper: boolean?, keep_torch_compile: boolean?, recursive: boolean? }?
---  keep_fp32_wrapper = false: its forward is again what it was before mixed precision; recursive:
---  its submodules' as well; nothing is compiled here
---@return accelerate.nn.Module
function M.extract_model_from_parallel(model, opts)
  check_model("extract_model_from_parallel", model)
  opts = options.check("extract_model_from_parallel", opts, EXTRACT)
  if not opts.keep_fp32_wrapper then
    local mixed_precision = require "accelerate.precision.mixed_precision"
    mixed_precision.unwrap(model)
    if opts.recursive then
      for _, module in ipairs(model:modules()) do mixed_precision.unwrap(module) end
    end
  end
  return model
end

local CHILDREN = { return_fqns = { "boolean", default = false } }

--- Returns a model's modules, children before their parents. The model itself is the last.
---@param model accelerate.nn.Module
---@param opts { return_fqns: boolean? }? return_fqns: a list of { name, module }
---@return accelerate.nn.Module[]|table[]
function M.get_module_children_bottom_up(model, opts)
  check_model("get_module_children_bottom_up", model)
  opts = options.check("get_module_children_bottom_up", opts, CHILDREN)
  local stack, top_down = { { "", model } }, {}
  while #stack > 0 do
    local item = table.remove(stack)
    top_down[#top_down + 1] = item
    for name, child in item[2]:named_children() do
      stack[#stack + 1] = { item[1] == "" and name or item[1] .. "." .. name, child }
    end
  end
  local list = {}
  for i = #top_down, 1, -1 do list[#list + 1] = opts.return_fqns and top_down[i] or top_down[i][2] end
  return list
end

--- Returns a state dict as a safetensors file holds it. If a tensor has several names the first
--- stays, and stderr names the others. Every tensor is contiguous. Entries that are not tensors
--- stay.
---@param state_dict table<string, any> left alone
---@return table<string, any>
function M.clean_state_dict_for_safetensors(state_dict)
  options.value("clean_state_dict_for_safetensors", "state_dict", state_dict, { "table" })
  local identity = require("accelerate.weights").identity
  local clean, seen, removed = ordered.new(), {}, {}
  for name, value in ordered.pairs(state_dict) do
    if not core.is_tensor(value) then
      clean[name] = value
    else
      local id = identity(value)
      if seen[id] then removed[#removed + 1] = name else clean[name] = value:contiguous() end
      seen[id] = true
    end
  end
  if #removed > 0 then
    notice.here("left out, because they share their memory with a tensor of another name: %s",
      table.concat(removed, ", "))
  end
  return clean
end

--- Returns whether parameters of a model are spread over processes (DTensor). Always false: no such
--- parameters exist yet.
---@param model accelerate.nn.Module
---@return boolean
function M.model_has_dtensor(model)
  check_model("model_has_dtensor", model)
  return false
end

--- Returns whether a model has adapters (accelerate.peft).
---@param model accelerate.nn.Module
---@return boolean
function M.is_peft_model(model)
  check_model("is_peft_model", model)
  return model._is_peft == true
end

--- Raises: there are no TPUs here. Upstream installs torch_xla.
function M.install_xla()
  fail("install_xla: torch_xla is a library for PyTorch on TPUs; it cannot be used from here")
end

--- Raises. Upstream runs pipeline inference.
function M.prepare_pippy()
  fail("prepare_pippy: pipeline parallelism is not there yet; run the model on each process, or split " ..
    "the inputs with " ..
    "split_between_processes")
end

return M
