--- load_checkpoint_in_model: weights of files into a model, each to the place that a map gives it.
local InFile = require "accelerate.deferred.in_file"
local core = require "accelerate.core"
local deferred = require "accelerate.deferred"
local device_maps = require "accelerate.big_modeling.device_map"
local fs = require "accelerate.utils.fs"
local homes = require "accelerate.big_modeling.homes"
local lists = require "accelerate.utils.lists"
local offload = require "accelerate.utils.offload"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parts = require "accelerate.big_modeling.parts"
local tensors = require "accelerate.hooks.tensors"
local ties = require "accelerate.big_modeling.ties"
local weights = require "accelerate.weights"

local fail = options.fail
local WHERE = "load_checkpoint_in_model"

local M = {}

local LOAD = {
  device_map = { "table", optional = true },
  offload_folder = { "string", optional = true },
  dtype = { "string", optional = true, one_of = { "float32", "float64", "float16", "bfloat16" } },
  offload_state_dict = { "boolean", optional = true },
  offload_buffers = { "boolean", default = false },
  keep_in_fp32_modules = { "list", optional = true },
  offload_8bit_bnb = { "boolean", default = false },
  strict = { "boolean", default = false },
  full_state_dict = { "boolean", default = true },
  broadcast_from_rank0 = { "boolean", default = false },
}

--- Returns the device that computes what a map puts on the CPU and on disk: its first GPU, else the
--- CPU.
---@param where string
---@param map table<string, string|integer>
---@return string
function M.main_device(where, map)
  for _, place in ordered.pairs(map) do
    local device = device_maps.device_of(where, place)
    if device ~= "cpu" and device ~= "disk" then return device end
  end
  return "cpu"
end

-- Whether one of the listed modules, which stay in float32 beside float16, has a tensor.
local function stays_float32(name, o)
  if o.dtype ~= "float16" then return false end
  for _, key in ipairs(o.keep_in_fp32_modules or {}) do
    if name == key or name:find(key .. ".", 1, true) then return true end
  end
  return false
end

-- The type that a tensor gets: nil is the model's own.
local function type_of(name, value, o)
  if o.type_of then return core._is_float(value) and o.type_of(name) or nil end
  if not o.dtype or not core._is_float(value) then return nil end
  return stays_float32(name, o) and "float32" or o.dtype
end

--- Returns the tensors of a model's state dict by name: { t = the parameter or buffer, transposed =
--- whether state dicts have the matrix the other way round, shape = there, buffer = whether it is
--- one }. A layer whose weight rests in parts has one entry of them, { t = the codes, layer = ,
--- path = }.
---@param model accelerate.nn.Module
---@return table<string, table> ordered
function M.own_tensors(model)
  local all, dict, layers = ordered.new(), model:state_dict { keep_vars = true }, parts.layers(model)
  for name, t in ordered.pairs(dict) do
    local path = parts.layer_of(layers, name)
    local module, last = tensors.owner(model, path and path .. ".weight" or name)
    local own = module[last]
    if path then
      all[path .. ".weight"] = all[path .. ".weight"] or { t = own, layer = module, path = path }
    elseif core.is_tensor(own) then
      all[name] = { t = own, transposed = not rawequal(own, t), shape = t.shape,
        buffer = module:_kind_of(last) == "buffer" }
    end
  end
  return all
end

--- Returns the names of the model that no source has, and those of sources that the model has not.
--- A tensor of several names is found under any of them.
---@param own table<string, table> as own_tensors returns it
---@param sources table<string, accelerate.WeightSource> of tensors
---@param of_layers table<string, table> of the weights of layers, by path (parts.split)
---@return string[] missing
---@return string[] unexpected in the files' names
function M.compare(own, sources, of_layers)
  local found, missing, unexpected = {}, {}, {}
  for name, source in ordered.pairs(sources) do
    if own[name] then found[own[name].t] = true else unexpected[#unexpected + 1] = source.name end
  end
  for name, entry in ordered.pairs(own) do
    if not (found[entry.t] or entry.layer and of_layers[entry.path]) then missing[#missing + 1] = name end
  end
  return missing, unexpected
end

-- Writes a tensor into the offload folder and takes it from there.
local function through_folder(model, entry, name, value, main, dtype, o)
  if entry.transposed then value = value:t():contiguous() end
  local index = offload.offload_weight(dtype and value:to(dtype) or value, name, o.offload_folder, {})
  offload.save_offload_index(index, o.offload_folder)
  tensors.adopt(entry.t, core.empty(entry.t.shape, { dtype = index[name].dtype, device = "meta" }))
  homes.put_in_folder(model, entry.t, o.offload_folder, name, index[name], main)
end

-- Leaves a tensor on disk: in its safetensors file, which the folder's index then names; in a file
-- of the folder where it came from another kind of file.
local function to_disk(model, entry, name, source, main, o)
  local value = weights.describe(source)
  local dtype = type_of(name, value, o)
  if source.file then
    homes.put_in_file(model, entry.t, source, main, dtype, entry.transposed)
    if o.offload_folder then
      offload.save_offload_index({ [name] = { safetensors_file = source.path, weight_name = source.name,
        dtype = dtype or value.dtype } }, o.offload_folder)
    end
  elseif o.offload_folder then through_folder(model, entry, name, value, main, dtype, o)
  else
    fail("%s: device_map puts %s on disk, and %s is no safetensors file: " ..
      "give an offload_folder to write it to",
      o.where, name, source.path)
  end
end

local function check_shape(name, entry, value, o)
  if lists.same(entry.shape, value.shape) then return end
  fail("%s: '%s' has the shape %s in the file, the model has %s", o.where, name, lists.shape_text(value),
    lists.shape_text { shape = entry.shape })
end

-- A tensor of a file in memory of a device, as a model has it. On the CPU there is no second one on
-- the way, in another type or order, which would stay until the collector comes.
local function in_memory(value, device, dtype, is_lent)
  value = value:detach()
  if device ~= "cpu" then return value:to({ device = device, dtype = dtype }):contiguous() end
  if not is_lent and value.dtype == dtype and value:is_contiguous() then return value end
  return core.empty(value.shape, { dtype = dtype }):copy_(value)
end

--- Puts a tensor of a checkpoint where a map says.
---@param model accelerate.nn.Module
---@param entry table as own_tensors has it
---@param name string in the model
---@param source accelerate.WeightSource
---@param map table<string, string|integer>
---@param main string the device that computes what rests elsewhere
---@param o { where: string, dtype: string?, keep_in_fp32_modules: string[]?, type_of: (fun(name:
---  string): string)?, offload_folder: string?, offload_buffers: boolean?, defers: boolean? }
---  type_of: comes before dtype; defers: parameters rest in their files until they are used
function M.place(model, entry, name, source, map, main, o)
  local where = ties.place_of(map, name)
  if where == nil then fail("%s: device_map gives '%s' no device", o.where, name) end
  local device = device_maps.device_of(o.where, where)
  if device == "disk" and (o.offload_buffers or not entry.buffer) then
    return to_disk(model, entry, name, source, main, o)
  end
  if device == "disk" then device = main end
  local value = weights.lend(source)
  local dtype = type_of(name, value, o) or entry.t.dtype
  local rests = o.defers and not entry.buffer and core._is_float(value) and weights.in_file(source)
  if rests then
    local recipe = InFile(rests, dtype, device, entry.transposed)
    return tensors.adopt(entry.t, deferred.new(entry.t.shape, dtype, device, recipe))
  end
  if entry.transposed then value = value:t() end
  tensors.adopt(entry.t, in_memory(value, device, dtype, source.file or source.is_lent))
  if source.file then source.file:_drop(source.name) end
end

--- Fills a model from sources, each tensor where a map says, one at a time: so each is in memory
--- once.
---@param model accelerate.nn.Module
---@param own table<string, table> as own_tensors returns it
---@param sources table<string, accelerate.WeightSource> of tensors
---@param of_layers table<string, table> of the weights of layers (parts.split)
---@param map table<string, string|integer>
---@param o table as M.place takes it
---@return string[] unexpected names of parts that a layer does not know
function M.fill(model, own, sources, of_layers, map, o)
  local main, done, unexpected = M.main_device(o.where, map), {}, {}
  if o.offload_folder and not fs.is_dir(o.offload_folder) then assert(fs.make_dirs(o.offload_folder)) end
  for name, entry in ordered.pairs(own) do -- the order of the model is about that of its use
    local of_layer = entry.layer and of_layers[entry.path]
    local source = not entry.layer and not done[entry.t] and sources[name]
    if of_layer then
      for _, rest in ipairs(parts.place(model, entry.path, entry.layer, of_layer, map, main, o)) do
        unexpected[#unexpected + 1] = entry.path .. "." .. rest
      end
    elseif source then
      check_shape(name, entry, source.tensor or { shape = source.file:get_shape(source.name) }, o)
      M.place(model, entry, name, source, map, main, o)
      done[entry.t], source.tensor = true, nil
    end
  end
  weights.close_sources(sources, of_layers, o.defers)
  return unexpected
end

--- Fills a model from a checkpoint, each tensor where a map says.
---@param model accelerate.nn.Module
---@param checkpoint string
---@param map table<string, string|integer>
---@param o table as M.place takes it, with tied as parts.split takes it
---@param report fun(missing: string[], unexpected: string[]) names that do not fit, before values
---  come
function M.load_placed(model, checkpoint, map, o, report)
  local own = M.own_tensors(model)
  ties.check_tied_parameters_on_same_device(ties.find_tied_parameters(model), map)
  local sources, of_layers = parts.split(model, weights.sources(checkpoint), o.tied)
  report(M.compare(own, sources, of_layers))
  local unexpected = M.fill(model, own, sources, of_layers, map, o)
  if #unexpected > 0 then report({}, unexpected) end
end

-- Rank 0 reads, the others get its values.
local function load_and_broadcast(model, checkpoint, o)
  local state = require("accelerate.state").PartialState()
  if state.is_main_process then weights.load_checkpoint_in_model(model, checkpoint, { strict = o.strict }) end
  local operations = require "accelerate.collectives.operations"
  core.no_grad(function()
    for _, t in ordered.pairs(model:state_dict()) do
      t:copy_(operations.broadcast(t, { from_process = 0 }))
    end
  end)
end

-- A map that names one device for the whole model, "disk" apart.
local function one_device(map)
  local only = next(map) == "" and next(map, "") == nil and map[""]
  local device = only and device_maps.device_of(WHERE, only)
  return device ~= "disk" and device or nil
end

local function refuse(o)
  if o.offload_8bit_bnb then
    fail("%s: offload_8bit_bnb: weights are not quantised here while they are loaded; leave the option out",
      WHERE)
  end
  if not o.full_state_dict then
    fail("%s: full_state_dict = false: the files hold whole tensors; leave the option out", WHERE)
  end
  if o.broadcast_from_rank0 and o.device_map then
    fail("%s: broadcast_from_rank0 is for models without a device_map; leave one of the two out", WHERE)
  end
  if o.dtype and not o.device_map then
    fail("%s: dtype goes with a device_map; without one the model's tensors keep their types", WHERE)
  end
end

--- Loads weights that save_model, Transformers or PyTorch wrote. Without a device map the values
--- are copied into the model's tensors where these are. With one each tensor goes to its place:
--- what is put on "disk" stays in its safetensors file and is computed on from there, or comes to
--- the first GPU of the map; dispatch_model then sees to inputs.
---@param model accelerate.nn.Module its tensors may be on the device "meta" where there is a map
---@param checkpoint string a safetensors or PyTorch file, an index, or a directory with either
---@param opts { device_map: table<string, string|integer>?, offload_folder: string?, dtype:
---  string?, offload_state_dict: boolean?, offload_buffers: boolean?, keep_in_fp32_modules:
---  string[]?, strict: boolean?, broadcast_from_rank0: boolean? }? offload_folder: gets an
---  index.json of what is on disk, and a file for each such tensor of a PyTorch file; dtype: the
---  type that floating tensors get; offload_state_dict: makes no difference, as tensors are read
---  one by one; offload_buffers: buffers stay on disk too; keep_in_fp32_modules: names whose
---  tensors stay in float32 under dtype = "float16"; strict: raise for missing or unknown names,
---  which otherwise give a notice; broadcast_from_rank0: rank 0 reads, the others get its values
function M.load_checkpoint_in_model(model, checkpoint, opts)
  local o = options.check(WHERE, opts, LOAD)
  o.where = WHERE
  tensors.check_model(WHERE, model)
  options.value(WHERE, "checkpoint", checkpoint, { "string" })
  refuse(o)
  if o.broadcast_from_rank0 then return load_and_broadcast(model, checkpoint, o) end
  if not o.device_map then
    return weights.load_checkpoint_in_model(model, checkpoint, { strict = o.strict })
  end
  if next(o.device_map) == nil then fail("%s: device_map is empty", WHERE) end
  local device = one_device(o.device_map)
  M.load_placed(model, checkpoint, device and { [""] = device } or o.device_map, o,
    function(missing, unexpected) weights.complain(checkpoint, missing, unexpected, o.strict) end)
  if device then model:to(device) end
end

return M
