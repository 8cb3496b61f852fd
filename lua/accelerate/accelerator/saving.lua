--- What an Accelerator writes and reads.  Methods of accelerate.Accelerator.
local checkpoint = require "accelerate.checkpoint"
local data_loader = require "accelerate.data_loader"
local kinds = require "accelerate.accelerator.kinds"
local options = require "accelerate.utils.options"

local fail = options.fail

---@class accelerate.Accelerator
local Accelerator = {}

local SAVE = { safe_serialization = { "boolean", default = true } }

--- Is this the process that writes files?
local function writes(self)
  if self._project_configuration.save_on_each_node then return self.is_local_main_process end
  return self.is_main_process
end

--- Writes a table of tensors as a safetensors file, on the main process (of every machine with save_on_each_node).
---@param object table<string, accelerate.Tensor>
---@param path string
function Accelerator:save(object, path, opts)
  opts = options.check("save", opts, SAVE)
  if writes(self) then checkpoint.save(object, path, opts.safe_serialization) end
end

--- Writes the model's weights: model.safetensors, or shards with an index when they are larger than max_shard_size.
---@param model accelerate.nn.Module
---@param directory string made if need be
---@param opts { max_shard_size: integer|string?, safe_serialization: boolean? }? default "10GB"; units are decimal
function Accelerator:save_model(model, directory, opts)
  opts = options.check("save_model", opts, {
    max_shard_size = { "number|string", default = "10GB" }, safe_serialization = SAVE.safe_serialization,
  })
  if not kinds.is_model(model) then fail("save_model: expected a module, got %s", options.show(model)) end
  options.value("save_model", "directory", directory, { "string" })
  if writes(self) then checkpoint.save_model(model, directory, opts) end
end

--- The weights of a model by name.
function Accelerator:get_state_dict(model, opts)
  options.check("get_state_dict", opts, { unwrap = { "boolean", default = true } })
  return model:state_dict()
end

--- A loader without the first `num_batches` batches of this rank; the original is left alone.
function Accelerator:skip_first_batches(loader, num_batches) return data_loader.skip_first_batches(loader, num_batches) end

--- Ends the run's bookkeeping.  There are no trackers to finish yet; the ranks' connection ends with the processes.
function Accelerator:end_training() end

local NOT_YET = {
  save_state = "saving the state of a run", load_state = "resuming a run", register_for_checkpointing = "saving the state of a run",
  register_save_state_pre_hook = "saving the state of a run", register_load_state_pre_hook = "resuming a run",
  init_trackers = "experiment tracking", get_tracker = "experiment tracking", log = "experiment tracking",
  profile = "profiling", maybe_context_parallel = "context parallelism",
}
for name, what in pairs(NOT_YET) do
  Accelerator[name] = function() fail("accelerator:%s: %s is not there yet", name, what) end
end

return Accelerator
