--- Where the weights of a model rest, and the schedules by which they come to the device that
--- computes (host/offload.h).
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local limits = require "accelerate.big_modeling.limits"
local offload = require "accelerate.utils.offload"
local options = require "accelerate.utils.options"
local sizes = require "accelerate.big_modeling.sizes"
local tensors = require "accelerate.hooks.tensors"

local fail = options.fail

local M = {}

-- Model -> device -> schedule.
local schedules = setmetatable({}, { __mode = "k" })

--- Returns the classes of a model's blocks: what it says itself, or those of the modules in its
--- outermost lists of modules.
---@param model accelerate.nn.Module
---@return string[]
function M.block_classes(model)
  if model._no_split_modules then return model._no_split_modules end
  local nn, names, seen = require "accelerate.nn", {}, {}
  local function walk(module)
    local is_list = require("accelerate.utils.class").is(module, nn.ModuleList)
    for _, child in ipairs(module:children()) do
      local name = child.__name
      if is_list and not seen[name] then names[#names + 1], seen[name] = name, true end
      if not is_list then walk(child) end
    end
  end
  walk(model)
  return names
end

--- Returns the bytes of the largest block.
---@param model accelerate.nn.Module
---@param o? { dtype: string?, special_dtypes: table<string, string>? }
---@return number
function M.block_bytes(model, o)
  local all = sizes.compute_module_sizes(model, { dtype = o and o.dtype,
    special_dtypes = o and o.special_dtypes })
  return (sizes.largest(sizes.direct(model), all, sizes.class_set("dispatch_model", M.block_classes(model))))
end

--- Returns the schedule of a model's offloaded weights for a device. Two blocks are fetched ahead.
--- A GPU keeps one block after its use, as does the CPU where memory is short: mapped pages that
--- stay would drive others out.
---@param model accelerate.nn.Module
---@param device string
---@return userdata
function M.schedule(model, device)
  local of = schedules[model] or {}
  schedules[model] = of
  if not of[device] then
    local block = M.block_bytes(model)
    local total = sizes.compute_module_sizes(model)[""] or 0
    local short = device ~= "cpu" or total > 0.8 * (limits.get_max_memory().cpu or 0)
    of[device] = core._offload_new(device, short and block or nil, 2 * block)
  end
  return of[device]
end

--- Makes the schedules of a model keep one block, as where memory is short.
---@param model accelerate.nn.Module
function M.tighten(model)
  local block = M.block_bytes(model)
  for _, schedule in next, schedules[model] or {} do schedule:limit(block, 2 * block) end
end

--- Returns what the schedules of a model count, by device; see utils.offload_stats.
---@param model accelerate.nn.Module
---@return table<string, table<string, number>>
function M.stats(model)
  local result = {}
  for device, schedule in next, schedules[model] or {} do result[device] = schedule:stats() end
  return result
end

--- Returns whether weights of a model are offloaded.
---@param model accelerate.nn.Module
---@return boolean
function M.any(model)
  for _, schedule in next, schedules[model] or {} do
    if schedule:stats().weights > 0 then return true end
  end
  return false
end

-- Tensor -> where in which file its home is, as the functions below take it. Nothing in there may
-- lead to the tensor or the model, which would then never be collected.
local in_files = setmetatable({}, { __mode = "k" })

--- Returns whether a tensor's home is a file.
---@param t accelerate.Tensor
---@return boolean
function M.is_in_file(t) return in_files[t] ~= nil end

--- Returns a file that weights of a model rest in, or nil.
---@param model accelerate.nn.Module
---@return string? path
function M.file_of(model)
  for _, t in tensors.named_module_tensors(model, { recurse = true }) do
    local home = in_files[t]
    if home then
      return home.source and home.source.path or home.info.safetensors_file
        or fs.join(home.folder, home.name .. ".dat")
    end
  end
end

--- Has a tensor whose home is a file come to another device from now on.
---@param model accelerate.nn.Module
---@param t accelerate.Tensor
---@param device string
function M.send_elsewhere(model, t, device)
  local home = in_files[t]
  if t.device == device then return end
  if home.source then
    local source = { path = home.source.path, name = home.source.name,
      file = core.safetensors_open(home.source.path) }
    M.put_in_file(model, t, source, device, home.dtype, home.transposed)
    return source.file:close()
  end
  M.put_in_folder(model, t, home.folder, home.name, home.info, device)
end

--- Gives a tensor of the model its elements out of a source (see weights.sources), in a type, as a
--- module has them.
---@param model accelerate.nn.Module
---@param t accelerate.Tensor a parameter or a buffer
---@param source accelerate.WeightSource of a safetensors file
---@param device string that computes
---@param dtype string?
---@param transposed boolean? the file has the matrix the other way round
function M.put_in_file(model, t, source, device, dtype, transposed)
  local schedule = M.schedule(model, device)
  tensors.adopt(t, source.file:_offload(source.name, schedule, dtype, transposed))
  in_files[t] = { source = source, dtype = dtype, transposed = transposed }
end

--- Leaves a tensor in memory of the host, and has it come to the device that computes. Pinned
--- memory comes beside the computation; where the system gives none, plain memory does.
---@param model accelerate.nn.Module
---@param t accelerate.Tensor
---@param value accelerate.Tensor its elements, anywhere
---@param device string
function M.put_in_memory(model, t, value, device)
  local home = value:detach():to({ dtype = t.dtype, device = "cpu" }):contiguous()
  if device == "cpu" then
    if not rawequal(t, value) then tensors.adopt(t, home) end
    return
  end
  local fine, pinned = pcall(home.pin_memory, home)
  tensors.adopt(t, M.schedule(model, device):add(fine and pinned or home))
end

-- The type of tensors here that has the bytes of a type of an index: codes in int8 are uint8 here.
local function type_here(dtype) return dtype == "int8" and "uint8" or dtype end

--- Gives a tensor the elements of a file of an offload folder.
---@param model accelerate.nn.Module
---@param t accelerate.Tensor
---@param folder string?
---@param name string
---@param info table the entry of the folder's index
---@param device string that computes
function M.put_in_folder(model, t, folder, name, info, device)
  local schedule = M.schedule(model, device)
  local dtype = t.dtype
  if t:numel() == 0 then return tensors.adopt(t, core.empty(t.shape, { dtype = dtype, device = device })) end
  if info.safetensors_file then
    local file = core.safetensors_open(info.safetensors_file)
    tensors.adopt(t, file:_offload(info.weight_name or name, schedule, type_here(info.dtype) or dtype))
    file:close()
  else
    if not folder then fail("dispatch_model: '%s' is in a file of offload_dir, which was not given", name) end
    if type(info.dtype) ~= "string" or type(info.shape) ~= "table" then
      fail("dispatch_model: %s: the entry of '%s' must have dtype and shape", fs.join(folder, "index.json"),
        name)
    end
    tensors.adopt(t, schedule:raw(fs.join(folder, name .. ".dat"), type_here(info.dtype), dtype,
      unpack(info.shape)))
  end
  in_files[t] = { folder = folder, name = name, info = info }
end

--- Reads the index of an offload folder; nil: it has none.
---@param where string
---@param folder string?
---@return table<string, table>?
function M.read_index(where, folder)
  local path = folder and fs.join(folder, "index.json")
  if not path or not fs.is_file(path) then return nil end
  local index, why = json.decode((assert(fs.read(path))))
  if type(index) ~= "table" then fail("%s: %s: %s", where, path, why or "it is no object") end
  return index
end

--- Writes tensors and their index into an offload folder, and returns the index.
---@param folder string
---@param dict table<string, accelerate.Tensor>
---@return table<string, table>
function M.write_folder(folder, dict)
  offload.offload_state_dict(folder, dict)
  return M.read_index("dispatch_model", folder)
end

--- Takes the weights of a model out of its schedules: a weight that rests in memory is a plain
--- tensor again; a weight that rests in a file goes on being used from there.
---@param model accelerate.nn.Module
function M.bring_back(model)
  for _, t in tensors.named_module_tensors(model, { recurse = true }) do
    local home = core._offload_home(t)
    if home and not in_files[t] then tensors.adopt(t, home) end
  end
end

return M
