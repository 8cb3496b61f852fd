--- Accelerate's functions for the files of models under FSDP, one at a time and without save_state:
--- saved and loaded in a folder of the script's, which Accelerate reads and writes, too; and what
--- merges a sharded model into one file.
local core = require "accelerate.core"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local intervals = require "accelerate.checkpoint.intervals"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local resharded = require "accelerate.checkpoint.resharded"
local scope = require "accelerate.utils.scope"
local sharded = require "accelerate.checkpoint.sharded"
local state = require "accelerate.state"
local weights = require "accelerate.weights"

local fail = options.fail

local M = {}

local function arguments(where, index, ...)
  return options.read(where, { index, "adapter_only", "use_dcp" },
    { [index] = { "integer", default = 0, min = 0 },
    adapter_only = { "boolean", default = false, one_of = { false } },
    use_dcp = { "boolean", default = true, one_of = { true } } }, ...)[index] + 1
end

-- "full", "sharded" or "local".
local function kind_of(where, plugin)
  local kind = type(plugin) == "table" and plugin.state_dict_type
  if type(kind) ~= "string" then
    fail("%s: expected a FullyShardedDataParallelPlugin, got %s", where, options.show(plugin))
  end
  return kind:match("^%a+"):lower()
end

local function folder_for(where, path)
  options.value(where, "output_dir", path, { "string" })
  local made, why = fs.make_dirs(path)
  if not made then fail("%s: %s", where, why) end
  return { draft = path }
end

-- A folder, or one that is a model's or an optimizer's itself, as load_state knows a checkpoint.
local function source_of(where, path, own)
  options.value(where, "input_dir", path, { "string" })
  local plain = path:gsub("(.)/+$", "%1")
  if plain:match "[^/]*$" == own then plain = plain:match "^(.*)/" or "." end
  local list, why = fs.list(plain)
  if not list then fail("%s: %s", where, why) end
  local found = {}
  for _, name in ipairs(list) do
    found[name] = true
    for _, below in ipairs(fs.is_dir(fs.join(plain, name)) and fs.list(fs.join(plain, name)) or {}) do
      found[name .. "/" .. below] = true
    end
  end
  return { path = plain, files = found }
end

--- Writes a prepared model's weights in the form that the plugin's state_dict_type names. All ranks
--- call it.
---@param fsdp_plugin accelerate.FullyShardedDataParallelPlugin
---@param accelerator accelerate.Accelerator
---@param model accelerate.nn.Module
---@param output_dir string made if need be
---@param ... any model_index = 0, adapter_only = false, use_dcp = true (another value of the last
---  two raises)
function M.save_fsdp_model(fsdp_plugin, accelerator, model, output_dir, ...)
  local where = "save_fsdp_model"
  local i, kind = arguments(where, "model_index", ...), kind_of(where, fsdp_plugin)
  sharded.save_model(folder_for(where, output_dir), kind, i, model,
    model:state_dict { keep_vars = true })
  accelerator:wait_for_everyone()
end

--- Loads a prepared model's weights from what save_fsdp_model, save_state or Accelerate wrote on
--- any number of ranks. All ranks call it.
---@param fsdp_plugin accelerate.FullyShardedDataParallelPlugin
---@param accelerator accelerate.Accelerator
---@param model accelerate.nn.Module
---@param input_dir string the folder, or the model's in it
---@param ... any model_index = 0, adapter_only = false, use_dcp = true
function M.load_fsdp_model(fsdp_plugin, accelerator, model, input_dir, ...)
  local where = "load_fsdp_model"
  local i = arguments(where, "model_index", ...)
  kind_of(where, fsdp_plugin)
  local source = source_of(where, input_dir, sharded.names.model_folder(i))
  if not resharded.load_model(model, source, i, true) then
    fail("%s: %s has no weights for model %d", where, source.path, i - 1)
  end
  accelerator:wait_for_everyone()
end

--- Writes a prepared optimizer's states, as save_fsdp_model does weights.
---@param fsdp_plugin accelerate.FullyShardedDataParallelPlugin
---@param accelerator accelerate.Accelerator
---@param optimizer accelerate.AcceleratedOptimizer
---@param model accelerate.nn.Module whose names the parameters have
---@param output_dir string
---@param ... any optimizer_index = 0, adapter_only = false, use_dcp = true
function M.save_fsdp_optimizer(fsdp_plugin, accelerator, optimizer, model, output_dir, ...)
  local where = "save_fsdp_optimizer"
  local i, kind = arguments(where, "optimizer_index", ...), kind_of(where, fsdp_plugin)
  sharded.save_optimizer(accelerator, folder_for(where, output_dir), kind, i, optimizer.optimizer,
    sharded.parameter_names { model })
  accelerator:wait_for_everyone()
end

--- Loads a prepared optimizer's states, as load_fsdp_model does weights.
---@param fsdp_plugin accelerate.FullyShardedDataParallelPlugin
---@param accelerator accelerate.Accelerator
---@param optimizer accelerate.AcceleratedOptimizer
---@param model accelerate.nn.Module
---@param input_dir string the folder, or the optimizer's in it
---@param ... any optimizer_index = 0, adapter_only = false, use_dcp = true
function M.load_fsdp_optimizer(fsdp_plugin, accelerator, optimizer, model, input_dir, ...)
  local where = "load_fsdp_optimizer"
  local i, names = arguments(where, "optimizer_index", ...), sharded.parameter_names { model }
  kind_of(where, fsdp_plugin)
  local source = source_of(where, input_dir, sharded.names.optimizer_folder(i))
  if not resharded.load_optimizer(optimizer.optimizer, source, i, names) then
    local name = sharded.names.optimizer(i)
    if not source.files[name] then fail("%s: %s has no optimizer %d", where, source.path, i - 1) end
    local dict, check = files.lend(fs.join(source.path, name))
    optimizer:load_state_dict(resharded.with_numbers(dict, optimizer.optimizer, names, name))
    check()
  end
  accelerator:wait_for_everyone()
end

-- ---- merging

-- What a folder holds as one nested value, without a first name that all of it has.
local function merged(reader)
  local root = ordered.new()
  local function put(name, value)
    local path, at = reader:path_of(name), root
    for d = 1, #path - 1 do
      local key = type(path[d]) == "number" and path[d] + 1 or path[d]
      if type(rawget(at, key)) ~= "table" then
        at[key] = type(path[d + 1]) == "number" and {} or ordered.new()
      end
      at = at[key]
    end
    local last = path[#path]
    at[type(last) == "number" and last + 1 or last] = value
  end
  for _, name in ipairs(reader:object_names()) do put(name, reader:object(name)) end
  for _, name in ipairs(reader:names()) do put(name, reader:tensor(name)) end
  local keys = ordered.keys(root)
  local only = #keys == 1 and root[keys[1]]
  return type(only) == "table" and not core.is_tensor(only) and only or root
end

-- Where the folder is a checkpoint that has such folders: which ones.
local function hint(folder)
  local found = {}
  for _, name in ipairs(fs.list(folder) or {}) do
    if fs.exists(fs.join(fs.join(folder, name), ".metadata")) then
      found[#found + 1] = fs.join(folder, name)
    end
  end
  if #found > 0 then fail("%s has no weights itself; give %s", folder, table.concat(found, " or ")) end
end

--- Returns the weights of a folder: PyTorch's distributed checkpoint, files of pieces, or files
--- with an index.
---@param folder string
---@return table
function M.read_sharded(folder)
  if not intervals.is_sharded(folder) then
    hint(folder)
    return weights.read_checkpoint(folder)
  end
  local reader = intervals.open(folder, "merge_fsdp_weights")
  local value = merged(reader)
  reader:close()
  return value
end

--- Writes merged weights, in safetensors or PyTorch's format, into a folder or to a file.
---@param value table
---@param to string
---@param safe boolean
---@return string path of the file
function M.write_merged(value, to, safe)
  if to:match "%.safetensors$" or to:match "%.bin$" then safe = not to:match "%.bin$"
  else
    local made, why = fs.make_dirs(to)
    if not made then fail("%s", why) end
    to = fs.join(to, safe and "model.safetensors" or "pytorch_model.bin")
  end
  for name, t in ordered.pairs(safe and value or {}) do
    if not core.is_tensor(t) then
      fail("%s is %s, which a safetensors file does not hold; PyTorch's format does (unsafe_serialization)",
        options.show(name), options.show(t))
    end
  end
  weights.save(value, to, safe)
  return to
end

--- Removes a folder whose weights were merged, unless these are in it.
---@param folder string
---@param written string
function M.remove_merged(folder, written)
  local inside, real = assert(fs.real(written)), assert(fs.real(folder))
  if inside:sub(1, #real + 1) == real .. "/" then
    fail("%s is not removed: the merged weights are in it", folder)
  end
  local removed, why = fs.remove_tree(folder)
  if not removed then fail("%s", why) end
end

--- Merges the sharded weights in a folder into one file, model.safetensors or pytorch_model.bin in
--- the folder `output_path`. The main process does; the others wait.
---@param checkpoint_dir string pytorch_model_fsdp_0 of a checkpoint, say
---@param output_path string
---@param ... any safe_serialization = true, remove_checkpoint_dir = false
function M.merge_fsdp_weights(checkpoint_dir, output_path, ...)
  local o = options.read("merge_fsdp_weights", { "safe_serialization", "remove_checkpoint_dir" },
    { safe_serialization = { "boolean", default = true },
    remove_checkpoint_dir = { "boolean", default = false } },
    ...)
  options.value("merge_fsdp_weights", "checkpoint_dir", checkpoint_dir, { "string" })
  options.value("merge_fsdp_weights", "output_path", output_path, { "string" })
  local partial = state.PartialState()
  local fine, why = true, ""
  if partial.is_main_process then
    fine, why = xpcall(function()
      local written = M.write_merged(M.read_sharded(checkpoint_dir), output_path, o.safe_serialization)
      if o.remove_checkpoint_dir then M.remove_merged(checkpoint_dir, written) end
    end, scope.traced)
  end
  -- the others learn of a failure in place of waiting
  local said = core.dist.broadcast_bytes(partial.is_main_process and (fine and "" or tostring(why)) or nil, 0)
  if not fine then fail("merge_fsdp_weights: %s", tostring(why):match "^[^\n]*") end
  if said ~= "" then fail("merge_fsdp_weights: the main process could not merge: %s", said) end
end

return M
