--- dispatch_model and what stands on it: models whose weights are on several devices, in memory of
--- the host or in files, and compute on one device or several.
local allocation = require "accelerate.big_modeling.allocation"
local device_maps = require "accelerate.big_modeling.device_map"
local homes = require "accelerate.big_modeling.homes"
local hooks = require "accelerate.hooks"
local limits = require "accelerate.big_modeling.limits"
local lists = require "accelerate.utils.lists"
local loading = require "accelerate.big_modeling.loading"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parameter = require "accelerate.nn.parameter"
local sizes = require "accelerate.big_modeling.sizes"
local tensors = require "accelerate.hooks.tensors"
local ties = require "accelerate.big_modeling.ties"

local fail = options.fail

local M = {}

-- ---- a dispatched model

-- Model:to of a dispatched model.
local function guarded_to(self, ...)
  local dtype, device = parameter.destination(self.__name, ...)
  if device then notice.main("to: the model was dispatched over devices; it is not meant to be moved") end
  if homes.any(self) then
    fail("to: weights of the model are offloaded, so it cannot be %s; take its hooks off first " ..
      "(hooks.remove_hook_from_submodules)", dtype and "cast" or "moved")
  end
  return getmetatable(self).to(self, ...)
end

local function undispatch(model)
  model.to, model._undispatch, model._copied = nil, nil, nil
  homes.bring_back(model)
end

-- The weights of a copy rest where they compute.
local function mark_copy(main)
  return function(copy)
    local map = copy.hf_device_map
    for name, place in ordered.pairs(map or {}) do
      if place == "cpu" or place == "disk" then map[name] = main end
    end
  end
end

-- Arguments come to the device that computes, results go back to where the arguments were.
local function around(model, device, opts)
  hooks.add_hook_to_module(model, hooks.AlignDevicesHook { execution_device = device, io_same_device = true,
    skip_keys = opts.skip_keys }, { append = true })
end

local function mark(model, main)
  model.to, model._undispatch, model._copied = guarded_to, undispatch, mark_copy(main)
end

-- Calls visit(name, tensor, is_buffer, saved) for each tensor of a model once: parameters, then
-- buffers, also those that state dicts leave out, by their names in the model. Scales of encoded
-- layers rest as weights do, and are visited under their names in files.
local function each_tensor(model, visit)
  local saved = model:state_dict { keep_vars = true }
  for name, p in model:named_parameters() do visit(name, p, false) end
  for name, b in model:named_buffers() do
    local module, last = tensors.owner(model, name)
    local part = module._parts and module._parts[last]
    if part then visit(name:sub(1, -#last - 1) .. part, b, false)
    else visit(name, b, true, saved[name] ~= nil) end
  end
end

-- ---- dispatch_model

local DISPATCH = {
  main_device = { "string|integer", optional = true },
  state_dict = { "table", optional = true },
  offload_dir = { "string", optional = true },
  offload_index = { "table", optional = true },
  offload_buffers = { "boolean", default = false },
  skip_keys = { "string|list", optional = true },
  preload_module_classes = { "list", optional = true },
  force_hooks = { "boolean", default = false },
}

-- The index of the weights on disk: given, read from the folder, or made by writing them there.
-- Weights whose homes are files already need none.
local function index_of(model, map, o)
  if o.offload_index then return o.offload_index end
  local index = homes.read_index("dispatch_model", o.offload_dir)
  if index then return index end
  local dict, modules = ordered.new(), {}
  each_tensor(model, function(name, t, is_buffer, saved)
    local on_disk = ties.place_of(map, name) == "disk" and not homes.is_in_file(t)
    if on_disk and (not is_buffer or o.offload_buffers and saved) then dict[name] = t end
  end)
  for name, place in ordered.pairs(map) do
    if place == "disk" then modules[#modules + 1] = name == "" and "the whole model" or name end
  end
  if next(dict) == nil then return {} end
  if not o.offload_dir then
    fail("dispatch_model: device_map puts these on disk: %s; give an offload_dir to write their weights to",
      table.concat(modules, ", "))
  end
  return homes.write_folder(o.offload_dir, dict)
end

-- The elements of a tensor that is going to rest in memory.
local function value_of(name, t, o)
  local value = o.state_dict and o.state_dict[name] or t
  if value.device == "meta" then
    fail("dispatch_model: '%s' is on the device \"meta\", without elements; give the option " ..
      "'state_dict', or load " ..
      "the model with load_checkpoint_and_dispatch", name)
  end
  if not lists.same(value.shape, t.shape) then
    fail("dispatch_model: state_dict: '%s' has the shape %s, the model has %s", name, lists.shape_text(value),
      lists.shape_text(t))
  end
  return value
end

-- Puts a tensor where the map says: on its device, or at its home with a way to the main device.
local function settle(model, name, t, is_buffer, saved, place, main, index, o)
  local rests = (place == "disk" or place == "cpu" and main ~= "cpu") and (not is_buffer or o.offload_buffers
    and saved)
  if not rests then
    local device = (place == "disk" or place == "cpu") and main or place
    if t.device ~= device then
      tensors.adopt(t, value_of(name, t, o):to({ dtype = t.dtype, device = device }))
    end
  elseif place == "cpu" then homes.put_in_memory(model, t, value_of(name, t, o), main)
  elseif homes.is_in_file(t) then homes.send_elsewhere(model, t, main)
  else
    if not index[name] then fail("dispatch_model: the index of the offloaded weights has no '%s'", name) end
    homes.put_in_folder(model, t, o.offload_dir, name, index[name], main)
  end
end

-- Between modules that compute on different devices arguments are moved.
local function move_arguments(model, map, main, o)
  around(model, main, o)
  for name, place in ordered.pairs(map) do
    local device = (place == "disk" or place == "cpu") and main or place
    local module = name ~= "" and not tensors.is_tensor_of(model, name) and model:get_submodule(name)
    if module then
      hooks.add_hook_to_module(module,
        hooks.AlignDevicesHook { execution_device = device, skip_keys = o.skip_keys })
    end
  end
end

local function named_places(map)
  local places, devices, several = ordered.new(), {}, 0
  for name, place in ordered.pairs(map) do
    places[name] = device_maps.device_of("dispatch_model", place)
    if not devices[places[name]] then devices[places[name]], several = true, several + 1 end
  end
  return places, devices, several
end

local function computing_devices(places, main)
  local list, seen = {}, {}
  for _, place in ordered.pairs(places) do
    local device = (place == "disk" or place == "cpu") and main or place
    if not seen[device] then list[#list + 1], seen[device] = device, true end
  end
  return list
end

local function dispatch(model, places, o)
  local main = o.main_device and tensors.device_name(o.main_device)
    or loading.main_device("dispatch_model", places)
  local index = index_of(model, places, o)
  each_tensor(model, function(name, t, is_buffer, saved)
    settle(model, name, t, is_buffer, saved, ties.place_of(places, name), main, index, o)
  end)
  if #computing_devices(places, main) > 1 then move_arguments(model, places, main, o)
  elseif main ~= "cpu" or o.force_hooks then around(model, main, o) end
  mark(model, main)
end

--- Spreads a model over devices as a map says. What is put on "cpu" while a GPU computes, and on
--- "disk", comes to the main device when it is used: two blocks ahead once the order is known. The
--- tensors keep their names, shapes and devices, and reading one brings it. On the CPU, weights of
--- files are computed on where they are mapped. The model gets the field hf_device_map.
---@param model accelerate.nn.Module
---@param device_map table<string, string|integer> as infer_auto_device_map returns it
---@param opts? { main_device: string|integer?, state_dict: table<string, accelerate.Tensor>?,
---  offload_dir: string?, offload_index: table?, offload_buffers: boolean?, skip_keys:
---  string|string[]?, preload_module_classes: string[]?, force_hooks: boolean? } main_device: what
---  computes the offloaded parts; default the map's first GPU, else the CPU; state_dict: the values
---  of what rests on the CPU; default the model's; offload_dir: a folder with weights in
---  Accelerate's form, which is written where it has no index.json; offload_index: default the
---  folder's; offload_buffers: buffers rest with the weights; skip_keys: entries of tables that are
---  not moved; preload_module_classes: makes no difference, as a weight comes to whichever module
---  uses it; force_hooks: arguments are moved also where the map has one device
---@return accelerate.nn.Module model
function M.dispatch_model(model, device_map, opts)
  sizes.check_model("dispatch_model", model)
  options.value("dispatch_model", "device_map", device_map, { "table" })
  local o = options.check("dispatch_model", opts, DISPATCH)
  device_maps.check_device_map(model, device_map)
  local places, devices, several = named_places(device_map)
  if several > 1 or devices.disk or o.force_hooks then dispatch(model, places, o)
  else model:to(next(devices)) end
  local map = ordered.new()
  for name, place in ordered.pairs(device_map) do map[name] = place end
  model.hf_device_map = map
  return model
end

-- ---- a whole model

local OFFLOAD = { execution_device = { "string|integer", optional = true },
  offload_buffers = { "boolean", default = false }, state_dict = { "table", optional = true },
  preload_module_classes = { "list", optional = true } }
local DISK = { execution_device = OFFLOAD.execution_device, offload_buffers = OFFLOAD.offload_buffers,
  preload_module_classes = OFFLOAD.preload_module_classes }

-- Where a model computes unless the call says it: where its first parameter is.
local function execution_device(where, model, given)
  local p = model:parameters()[1]
  local device = given and tensors.device_name(given) or p and p.device
  if not device or device == "meta" then
    fail("%s: give the option 'execution_device': the model's first parameter is on no device that computes",
      where)
  end
  return device
end

-- Puts each weight at its home; buffers come with them or go to the device.
local function offload_all(model, device, with_buffers, put)
  each_tensor(model, function(name, t, is_buffer, saved)
    if not is_buffer or with_buffers and saved then put(name, t)
    elseif t.device ~= device then tensors.adopt(t, t:detach():to(device)) end
  end)
  around(model, device, {})
  mark(model, device)
  return model
end

--- Keeps a model's weights in memory of the host; each comes to the device when it is used.
---@param model accelerate.nn.Module
---@param opts? { execution_device: string|integer?, offload_buffers: boolean?, state_dict:
---  table<string, accelerate.Tensor>?, preload_module_classes: string[]? } execution_device:
---  default where the first parameter is; offload_buffers: buffers rest there too; state_dict: the
---  values, default the model's; preload_module_classes: makes no difference, see dispatch_model
---@return accelerate.nn.Module model
function M.cpu_offload(model, opts)
  tensors.check_model("cpu_offload", model)
  local o = options.check("cpu_offload", opts, OFFLOAD)
  local device = execution_device("cpu_offload", model, o.execution_device)
  return offload_all(model, device, o.offload_buffers, function(name, t)
    homes.put_in_memory(model, t, o.state_dict and o.state_dict[name] or t, device)
  end)
end

local WITH_HOOK = { execution_device = OFFLOAD.execution_device,
  prev_module_hook = { "any", optional = true } }

--- Keeps a model on the CPU until it is called. It then stays on the device, until the returned
--- hook's `offload()`, or until the next model of a chain is called.
---@param model accelerate.nn.Module
---@param opts? { execution_device: string|integer?, prev_module_hook:
---  accelerate.UserCpuOffloadHook? } execution_device: default GPU 0 where there is one, else the
---  CPU; prev_module_hook: the hook of a model that goes back to the CPU before this one comes
---@return accelerate.nn.Module model
---@return accelerate.UserCpuOffloadHook hook with offload() and remove()
function M.cpu_offload_with_hook(model, opts)
  tensors.check_model("cpu_offload_with_hook", model)
  local o = options.check("cpu_offload_with_hook", opts, WITH_HOOK)
  local hook = hooks.CpuOffload(o)
  hooks.add_hook_to_module(model, hook, { append = true })
  return model, hooks.UserCpuOffloadHook(model, hook)
end

--- Keeps a model's weights in a folder in Accelerate's form, which is written where it has no
--- index.json; each comes to the device when it is used, and on the CPU it is computed on where its
--- file is mapped.
---@param model accelerate.nn.Module
---@param offload_dir string
---@param opts? { execution_device: string|integer?, offload_buffers: boolean?,
---  preload_module_classes: string[]? } as cpu_offload has them
---@return accelerate.nn.Module model
function M.disk_offload(model, offload_dir, opts)
  tensors.check_model("disk_offload", model)
  options.value("disk_offload", "offload_dir", offload_dir, { "string" })
  local o = options.check("disk_offload", opts, DISK)
  local device = execution_device("disk_offload", model, o.execution_device)
  local index = homes.read_index("disk_offload", offload_dir)
    or homes.write_folder(offload_dir, M.values_by_name(model))
  return offload_all(model, device, o.offload_buffers, function(name, t)
    if not index[name] then fail("disk_offload: %s has no weight '%s'", offload_dir, name) end
    homes.put_in_folder(model, t, offload_dir, name, index[name], device)
  end)
end

--- Returns a model's parameters and saved buffers by name, as they are in memory, each once.
---@param model accelerate.nn.Module
---@return table<string, accelerate.Tensor> ordered
function M.values_by_name(model)
  local dict = ordered.new()
  each_tensor(model, function(name, t, is_buffer, saved)
    if not is_buffer or saved then dict[name] = t end
  end)
  return dict
end

-- ---- from files

local MODES = { "auto", "balanced", "balanced_low_0", "sequential" }

--- Returns the device map that a word stands for, or the map itself.
---@param where string
---@param model accelerate.nn.Module
---@param device_map string|table
---@param o { max_memory: table?, no_split_module_classes: string|string[]?, dtype: string?,
---  special_dtypes: table<string, string>?, offload_buffers: boolean? }
---@return table<string, string|integer>
function M.resolve_map(where, model, device_map, o)
  if type(device_map) == "table" then return device_map end
  if not lists.set(MODES)[device_map] then
    fail("%s: device_map: expected a table, or one of \"%s\", got %s", where, table.concat(MODES, "\", \""),
      options.show(device_map))
  end
  local classes = o.no_split_module_classes or homes.block_classes(model)
  local memory = o.max_memory
  if device_map ~= "sequential" then
    memory = limits.get_balanced_memory(model, { max_memory = memory, no_split_module_classes = classes,
      dtype = o.dtype, special_dtypes = o.special_dtypes, low_zero = device_map == "balanced_low_0" })
  end
  return allocation.infer_auto_device_map(model, { max_memory = memory, no_split_module_classes = classes,
    dtype = o.dtype, special_dtypes = o.special_dtypes, offload_buffers = o.offload_buffers })
end

local AND_DISPATCH = {
  device_map = { "string|table", optional = true },
  max_memory = { "table", optional = true },
  no_split_module_classes = { "string|list", optional = true },
  offload_folder = { "string", optional = true },
  offload_buffers = { "boolean", default = false },
  dtype = { "string", optional = true },
  offload_state_dict = { "boolean", optional = true },
  skip_keys = DISPATCH.skip_keys,
  preload_module_classes = DISPATCH.preload_module_classes,
  force_hooks = DISPATCH.force_hooks,
  strict = { "boolean", default = false },
  full_state_dict = { "boolean", optional = true },
  broadcast_from_rank0 = { "boolean", optional = true },
}

--- Loads weights into a model, each to its place, and makes the model run:
--- load_checkpoint_in_model, then dispatch_model.
---@param model accelerate.nn.Module made with init_empty_weights, so that it takes no memory before
---@param checkpoint string a file, an index, or a directory
---@param opts? { device_map: string|table<string, string|integer>?, max_memory: table?,
---  no_split_module_classes: string|string[]?, offload_folder: string?, offload_buffers: boolean?,
---  dtype: string?, offload_state_dict: boolean?, skip_keys: string|string[]?,
---  preload_module_classes: string[]?, force_hooks: boolean?, strict: boolean?,
---  broadcast_from_rank0: boolean? } device_map: "auto" and "balanced" (GPUs get equal shares),
---  "balanced_low_0" (GPU 0 gets little), "sequential" (GPUs are filled in order), or a map; nil:
---  nothing is dispatched; max_memory: see get_max_memory; no_split_module_classes: default the
---  classes of the model's lists of blocks
---@return accelerate.nn.Module model
function M.load_checkpoint_and_dispatch(model, checkpoint, opts)
  local where = "load_checkpoint_and_dispatch"
  tensors.check_model(where, model)
  local o = options.check(where, opts, AND_DISPATCH)
  local map = o.device_map and M.resolve_map(where, model, o.device_map, o)
  loading.load_checkpoint_in_model(model, checkpoint, { device_map = map, offload_folder = o.offload_folder,
    dtype = o.dtype, offload_state_dict = o.offload_state_dict, offload_buffers = o.offload_buffers,
    strict = o.strict, full_state_dict = o.full_state_dict, broadcast_from_rank0 = o.broadcast_from_rank0 })
  if not map then return model end
  return M.dispatch_model(model, map, { offload_dir = o.offload_folder, offload_buffers = o.offload_buffers,
    skip_keys = o.skip_keys, preload_module_classes = o.preload_module_classes, force_hooks = o.force_hooks })
end

return M
