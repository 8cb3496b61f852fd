--- Models made on a device, or without memory for their weights.
local options = require "accelerate.utils.options"
local parameter = require "accelerate.nn.parameter"
local scope = require "accelerate.utils.scope"

local M = {}

local OPTIONS = { include_buffers = { "boolean", optional = true } }

local function run(where, device, opts, fn, ...)
  local buffers = options.check(where, opts, OPTIONS).include_buffers
  if buffers == nil then buffers = os.getenv("ACCELERATE_INIT_INCLUDE_BUFFERS") == "true" end
  return parameter.on_device(device, buffers, fn, ...)
end

--- Calls fn(...), in which the parameters of modules get a shape and a type, but no memory and no
--- values: they are tensors of the device "meta". They note how nn.init, and edits in place, draw
--- them (the generator moves on), so that `accelerator:prepare(model)` gives a model the values
--- that it would have had. Or it is loaded: `model:load_state_dict(values, { assign = true })`,
--- `load_checkpoint_and_dispatch`. What reads elements before that raises and says so.
---
---   local model = accelerate.init_empty_weights(models.from_config, config)
---
---@param opts? { include_buffers: boolean } include_buffers: buffers too; default false, or true
---  where ACCELERATE_INIT_INCLUDE_BUFFERS is "true"
---@param fn fun(...): any
---@param ... any what fn gets
---@return any ... results of fn
function M.init_empty_weights(...)
  return (function(opts, ...) return run("init_empty_weights", "meta", opts, ...) end)(
    scope.arguments("init_empty_weights", OPTIONS, ...))
end

--- Calls fn(...), in which the parameters of modules are made on a device and drawn there.
---@param device string "cpu", "cuda", "cuda:N", or "meta" as in init_empty_weights
---@param opts? { include_buffers: boolean } include_buffers: buffers too, default as there
---@param fn fun(...): any
---@param ... any what fn gets
---@return any ... results of fn
function M.init_on_device(device, ...)
  options.value("init_on_device", "device", device, { "string" })
  if device ~= "cpu" and device ~= "meta" and not device:find("^cuda:?%d*$") then
    options.fail("init_on_device: device: expected \"cpu\", \"cuda\", \"cuda:N\" or \"meta\", got %s",
      options.show(device))
  end
  return (function(opts, ...) return run("init_on_device", device, opts, ...) end)(
    scope.arguments("init_on_device", OPTIONS, ...))
end

return M
