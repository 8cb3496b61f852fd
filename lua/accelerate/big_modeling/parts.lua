--- Layers whose weight rests in several tensors, codes and scales (accelerate.quantisation), under
--- a device map. Such a layer has `_parts`: its buffers that rest where the codes do, by their
--- names in files. What else belongs to the weight is small, and stays on the device that computes.
local core = require "accelerate.core"
local device_maps = require "accelerate.big_modeling.device_map"
local homes = require "accelerate.big_modeling.homes"
local offload = require "accelerate.utils.offload"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local stored = require "accelerate.files.stored"
local tensors = require "accelerate.hooks.tensors"
local ties = require "accelerate.big_modeling.ties"

local fail = options.fail

local M = {}

--- Returns the layers of a model whose weight rests in parts, by path.
---@param model accelerate.nn.Module
---@return table<string, accelerate.nn.Module> ordered
function M.layers(model)
  local all = ordered.new()
  for path, module in model:named_modules() do
    if path ~= "" and module._parts then all[path] = module end
  end
  return all
end

--- Returns the path of the layer to whose weight a tensor of a file belongs, and the tensor's name
--- below the layer; nil: to none.
---@param layers table<string, accelerate.nn.Module> as M.layers returns them
---@param name string
---@return string? path
---@return string? rest
function M.layer_of(layers, name)
  for at in name:gmatch "()%." do
    local path = name:sub(1, at - 1)
    if layers[path] then
      local rest = name:sub(at + 1)
      if rest ~= "weight" and layers[path]:_kind_of(rest) == "parameter" then return nil end
      return path, rest
    end
  end
end

-- The source of a layer's weight under one of its other names, or nil.
local function source_of_tie(name, tied, sources)
  for _, group in ipairs(tied or {}) do
    local found, own
    for _, other in ipairs(group) do
      own = own or other == name
      found = found or sources[other]
    end
    if own and found then
      return { path = found.path, name = found.name, file = found.file, tensor = found.tensor,
        is_safetensors = found.is_safetensors }
    end
  end
end

--- Splits the sources of a checkpoint: sources of single tensors, and sources of layers' weights.
---@param model accelerate.nn.Module
---@param sources table<string, accelerate.WeightSource>
---@param tied string[][]? names that stood for one parameter each before layers got codes: a layer
---  that files do not have is made of the weight under another name
---@return table<string, accelerate.WeightSource> tensors ordered
---@return table<string, table<string, accelerate.WeightSource>> layers by path, then by the name
---  below the layer
function M.split(model, sources, tied)
  local layers, plain, of_layers = M.layers(model), ordered.new(), ordered.new()
  for name, source in ordered.pairs(sources) do
    local path, rest = M.layer_of(layers, name)
    if path then
      of_layers[path] = of_layers[path] or ordered.new()
      of_layers[path][rest] = source
    else
      plain[name] = source
    end
  end
  for path in ordered.pairs(layers) do
    local source = not of_layers[path] and source_of_tie(path .. ".weight", tied, sources)
    if source then of_layers[path] = { weight = source } end
  end
  return plain, of_layers
end

-- Has a layer take its weight out of sources, whose tensors it is lent. Returns the source of each
-- tensor that was lent by its address, and the names that the layer does not know.
local function take(layer, path, sources, where)
  local dict, lenders = ordered.new(), {}
  for name, source in ordered.pairs(sources) do
    dict[name] = source.tensor or source.file:_lend(source.name, true)
    if source.file or source.is_lent then lenders[dict[name]:_address()] = source end
  end
  layer._is_lent = true
  local fine, result = pcall(layer.load_state_dict, layer, dict, { strict = false, assign = true })
  layer._is_lent = nil
  local file = sources[ordered.keys(sources)[1]].path
  if not fine then
    fail("%s: %s: layer '%s': %s", where, file, path, (tostring(result):gsub("^%S-:%d+: ", "")))
  end
  if layer.weight.device == "meta" then fail("%s: %s lacks '%s.weight'", where, file, path) end
  return lenders, result.unexpected_keys
end

-- Writes a part into the offload folder and takes it from there.
local function through_folder(model, t, name, main, o)
  local index = offload.offload_weight(t, name, o.offload_folder, {})
  offload.save_offload_index(index, o.offload_folder)
  homes.put_in_folder(model, t, o.offload_folder, name, index[name], main)
end

-- Copies a tensor that a layer was lent, or made from a lent one, to memory of a device.
local function to_memory(t, source, device)
  local moved = t:to(device)
  tensors.adopt(t, source and moved:_address() == t:_address() and moved:clone() or moved)
end

-- Leaves a part on disk: where its file is, or in the offload folder, if it was made here. Scales
-- that no file has as they are stay in memory where there is no folder.
local function to_disk(model, t, name, source, is_codes, main, o)
  if source and source.file then
    homes.put_in_file(model, t, source, main, t.dtype)
    if o.offload_folder then
      offload.save_offload_index({ [name] = { safetensors_file = source.path, weight_name = source.name,
        dtype = stored.name_of(t) } }, o.offload_folder)
    end
  elseif o.offload_folder then through_folder(model, t, name, main, o)
  elseif not is_codes then to_memory(t, source, main)
  else
    fail("%s: device_map puts '%s' on disk, and no file has its codes as they are: give an offload_folder " ..
      "to write them to, or encode the model once and save it", o.where, name)
  end
end

-- The parts of a layer's weight that go where the map says: { tensor, name in files }.
local function parts_of(layer, path)
  local list = { { layer.weight, path .. ".weight" } }
  for key, name in ordered.pairs(layer._parts) do
    local t = layer[key]
    if core.is_tensor(t) then list[#list + 1] = { t, path .. "." .. name } end
  end
  return list
end

-- Gives back the pages of lent tensors that have been copied.
local function release(sources)
  for _, source in ordered.pairs(sources) do
    source.tensor = nil
    if source.file then source.file:_drop(source.name) end
  end
end

--- Fills the weight of a layer and puts it where a map says.
---@param model accelerate.nn.Module
---@param path string of the layer
---@param layer accelerate.nn.Module
---@param sources table<string, accelerate.WeightSource> by the names below the layer
---@param map table<string, string|integer>
---@param main string the device that computes what rests elsewhere
---@param o { where: string, offload_folder: string? }
---@return string[] unexpected names below the layer that it does not know
function M.place(model, path, layer, sources, map, main, o)
  local place = ties.place_of(map, path .. ".weight")
  if place == nil then fail("%s: device_map gives '%s.weight' no device", o.where, path) end
  local device = device_maps.device_of(o.where, place)
  local lenders, unexpected = take(layer, path, sources, o.where)
  local stays = device == "disk" or device == "cpu" and layer._stays
  for i, part in ipairs(parts_of(layer, path)) do
    local t, name = unpack(part)
    local source = lenders[t:_address()]
    if stays and device == "cpu" and source and source.file then
      homes.put_in_file(model, t, source, main, t.dtype)
    elseif device == "disk" then to_disk(model, t, name, source, i == 1, main, o)
    else to_memory(t, source, device) end
  end
  for key, t in layer:named_buffers { recurse = false } do
    if not layer._parts[key] then to_memory(t, lenders[t:_address()], device == "disk" and main or device) end
  end
  if not stays then release(sources) end
  return unexpected
end

return M
