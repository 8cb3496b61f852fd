--- What an Accelerator writes and reads.  Methods of accelerate.Accelerator.
local class = require "accelerate.utils.class"
local data_loader = require "accelerate.data_loader"
local float8 = require "accelerate.accelerator.float8"
local kinds = require "accelerate.accelerator.types"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local parallel = require "accelerate.parallel"
local scope = require "accelerate.utils.scope"

local fail = options.fail

---@class accelerate.Accelerator
local Accelerator = {}

local SAFE = { "boolean", default = true }
local SAVE = { safe_serialization = { "boolean", default = false } }
local SAVE_STATE = { safe_serialization = SAFE, async = { "boolean", default = false },
  max_shard_size = { "number|string", default = "10GB" } }

-- Does this process write files?
function Accelerator:_writes()
  if self._project_configuration.save_on_each_node then return self.is_local_main_process end
  return self.is_main_process
end

-- The rank that writes for this one.
function Accelerator:_writer()
  if not self._project_configuration.save_on_each_node then return 0 end
  return self.process_index - self.local_process_index
end

--- Writes an object to a file: any nested value in PyTorch's format, which `torch.load` and
--- `utils.load` read, whatever the path's ending; or with safe_serialization = true a table of
--- tensors by name as a safetensors file. Only the main process writes, or with save_on_each_node
--- the main process of every machine. Raises for what has no form in the file, naming where it is.
---@param object any
---@param path string
---@param ... any safe_serialization = false, or a table with it
function Accelerator:save(object, path, ...)
  local opts = options.read("save", { "safe_serialization" }, SAVE, ...)
  options.value("save", "path", path, { "string" })
  if self:_writes() then require("accelerate.weights").save(object, path, opts.safe_serialization) end
end

--- Writes the model's weights to model.safetensors, or to shards with an index if they are larger
--- than max_shard_size. All ranks call it where the model's values are cut over them: rank 0
--- receives them.
---@param model accelerate.nn.Module
---@param directory string made if need be
---@param opts { max_shard_size: integer|string?, safe_serialization: boolean? }? default "10GB";
---  units are decimal
function Accelerator:save_model(model, directory, opts)
  opts = options.check("save_model", opts, {
    max_shard_size = { "number|string", default = "10GB" }, safe_serialization = SAFE,
  })
  if not kinds.is_model(model) then fail("save_model: expected a module, got %s", options.show(model)) end
  options.value("save_model", "directory", directory, { "string" })
  local dict
  if parallel.cuts_values(model) then
    dict = require("accelerate.checkpoint.sharded").whole_state_dict(model)
  end
  if self:_writes() then require("accelerate.weights").save_model(model, directory, opts, dict) end
end

--- Returns the weights of a model by name. Those of a model whose values are cut over ranks come to
--- rank 0, on the CPU; all ranks call it, and the others get an empty table.
---@param model accelerate.nn.Module
---@param opts { unwrap: boolean? }? prepare does not wrap models, so both say the same
---@return table<string, accelerate.Tensor>
function Accelerator:get_state_dict(model, opts)
  options.check("get_state_dict", opts, { unwrap = { "boolean", default = true } })
  if not kinds.is_model(model) then fail("get_state_dict: expected a module, got %s", options.show(model)) end
  if parallel.cuts_values(model) then
    return require("accelerate.checkpoint.sharded").whole_state_dict(model)
  end
  return model:state_dict()
end

--- Returns a loader without the first `num_batches` batches of this rank. The original does not
--- change.
---@param loader table
---@param num_batches integer|{ num_batches: integer }|nil default 0
function Accelerator:skip_first_batches(loader, num_batches, ...)
  return data_loader.skip_first_batches(loader, num_batches, ...)
end

--- Returns how messages show an object: by its class if it has one.
local function pretty_name(object)
  local Class = class.of(object)
  return Class and "a " .. Class.__name or options.show(object)
end

--- Returns a method of an object of any kind, or nil. Also returns nil if the object raises on
--- unknown names.
local function method(object, name)
  local ok, value = pcall(function() return object[name] end)
  return ok and value or nil
end

--- Registers objects that save_state writes and load_state reads, in this order.
---@param ... any objects with the methods state_dict() and load_state_dict(state)
function Accelerator:register_for_checkpointing(...)
  local wrong = {}
  for i = 1, select("#", ...) do
    local object = (select(i, ...))
    if type(object) == "string"
      or not (method(object, "state_dict") and method(object, "load_state_dict")) then
      wrong[#wrong + 1] = ("\n  - object %d, %s"):format(i, pretty_name(object))
    end
  end
  if #wrong > 0 then
    fail("register_for_checkpointing: all objects must have the methods state_dict and load_state_dict; " ..
      "these have not:%s", table.concat(wrong))
  end
  for i = 1, select("#", ...) do self._custom_objects[#self._custom_objects + 1] = (select(i, ...)) end
end

--- Adds `hook` to an ordered list. The handle removes it again.
local function add_hook(self, list, name, hook)
  if type(hook) ~= "function" then fail("%s: hook must be a function, got %s", name, options.show(hook)) end
  local entry = { hook }
  table.insert(self[list], entry)
  return {
    remove = function()
      for i, other in ipairs(self[list]) do
        if other == entry then return table.remove(self[list], i) and nil end
      end
    end,
  }
end

--- Registers a hook that runs before save_state writes. It may empty the list of weights to write
--- them itself.
---@param hook fun(models: accelerate.nn.Module[], weights: table[], output_dir: string)
---@return { remove: fun() } handle
function Accelerator:register_save_state_pre_hook(hook)
  return add_hook(self, "_save_state_pre_hooks", "register_save_state_pre_hook", hook)
end

--- Registers a hook that runs before load_state reads. It may remove models from the list to load
--- them itself.
---@param hook fun(models: accelerate.nn.Module[], input_dir: string)
---@return { remove: fun() } handle
function Accelerator:register_load_state_pre_hook(hook)
  return add_hook(self, "_load_state_pre_hooks", "register_load_state_pre_hook", hook)
end

-- A path that may be left out before the options.
local function path_and_options(path, opts)
  if opts == nil and type(path) == "table" then return nil, path end
  return path, opts
end

--- Writes the whole state of the run into a directory, from which load_state goes on with the same
--- bits: prepared models, optimizers, schedulers and loaders, the loss scaler, the generators of
--- every rank, an open accumulation window with its gradients, and registered objects. All ranks
--- call it. The directory appears whole or not at all: when any rank fails, all raise, and what was
--- there before stays.
---
--- With `async` the call takes a snapshot of the state, and a thread writes it while the run goes
--- on. One save at a time: the next save or load waits for it, and raises what went wrong with it,
--- as do wait_for_checkpoint, end_training and the end of the script.
---
--- With automatic naming the path follows from the ProjectConfiguration's iteration, which grows by
--- one, and only the newest `total_limit` checkpoints are kept.
---@param output_dir string? left out with automatic naming
---@param opts { safe_serialization: boolean?, async: boolean?, max_shard_size: integer|string? }?
---  safe_serialization: false for weights in PyTorch's format, not as safetensors; async: true to
---  go on while it is written; max_shard_size: weights beyond it are cut into files with an index,
---  default "10GB"
---@return string path of the directory; with async it is there when the save has ended
function Accelerator:save_state(output_dir, opts)
  output_dir, opts = path_and_options(output_dir, opts)
  opts = options.check("save_state", opts, SAVE_STATE)
  return require("accelerate.checkpoint").save(self, output_dir, opts)
end

--- Waits until the checkpoint that save_state { async = true } began is whole, and raises on all
--- ranks what went wrong on any. Returns at once when none is being written. All ranks call it.
function Accelerator.wait_for_checkpoint() require("accelerate.checkpoint").wait() end

local LOAD_STATE = {
  strict = { "boolean", default = true },
  map_location = { "string", one_of = { "cpu", "on_device" }, optional = true },
  load_kwargs = { "table", optional = true },
}
local LOAD_KWARGS = { weights_only = { "boolean", default = true } }

--- Puts the state that save_state wrote into the prepared objects and returns the directory. All
--- ranks call it, after prepare. Files are compared with the manifest's checksums first, and a
--- damaged checkpoint is refused before anything changes. Without `input_dir` and with automatic
--- naming it takes the newest whole checkpoint, and says why it passed over a newer one.
---
--- With use_stateful_dataloader the next pass of each loader goes on behind the batch that was in
--- use; otherwise it begins anew in the same order, for skip_first_batches. On another number of
--- ranks, generators of new ranks and gradients of an open window do not carry over; a line says
--- so.
---@param input_dir string?
---@param opts { strict: boolean?, map_location: "cpu"|"on_device"|nil, load_kwargs: { weights_only:
---  boolean? }? }? strict: false takes weights that do not fit by name as far as they do;
---  map_location: accepted, for tensors go where the prepared objects are; load_kwargs:
---  weights_only is accepted, for reading a file runs nothing of the file's, whatever it says
---@return string path
function Accelerator:load_state(input_dir, opts)
  input_dir, opts = path_and_options(input_dir, opts)
  opts = options.check("load_state", opts, LOAD_STATE)
  options.check("load_state: load_kwargs", opts.load_kwargs, LOAD_KWARGS)
  return require("accelerate.checkpoint").load(self, input_dir, opts)
end

local CONTEXT = { buffers = { "list", optional = true }, buffer_seq_dims = { "list", optional = true },
  no_restore_buffers = { "list", optional = true } }

local function alone(opts, fn, ...)
  options.check("maybe_context_parallel", opts, CONTEXT)
  notice.main_once("maybe_context_parallel: context parallelism is not there yet; each rank computes " ..
    "with whole sequences")
  return fn(...)
end

--- Runs fn(...) and returns what it returns. There is no context parallelism, so that the buffers
--- stay whole, as in Accelerate without a parallelism_config; a line says so once.
---@param opts { buffers: accelerate.Tensor[]?, buffer_seq_dims: integer[]?, no_restore_buffers:
---  accelerate.Tensor[]? }?
---@param fn function
---@param ... any what fn gets
---@return any ... what fn returns
function Accelerator:maybe_context_parallel(...) -- luacheck: ignore 212/self
  return alone(scope.arguments("maybe_context_parallel", CONTEXT, ...))
end

-- For checkpoints: the scales of eight bits that models have between steps.
function Accelerator:_float8_scales() return float8.scales(self._models) end

return Accelerator
