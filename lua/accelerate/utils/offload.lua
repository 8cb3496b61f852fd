--- Weights on disk, one file each, in Accelerate's form: `<name>.dat` holds a tensor's elements,
--- little-endian and in order, and `index.json` their types and shapes. An index may also point to
--- tensors of safetensors files.
local core = require "accelerate.core"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local stored = require "accelerate.files.stored"

local fail = options.fail

local M = {}

local INDEX = "index.json"

local function check(what, name, value, kind) return options.value(what, name, value, { kind }) end

local function check_tensor(what, name, value)
  if not core.is_tensor(value) then
    fail("%s: %s must be a tensor, got %s", what, name, options.show(value))
  end
  return value
end

-- The file of a weight. Names come from files of weights and from an index, so none leads out of
-- the folder.
local function file_of(what, folder, name)
  if not fs.is_plain_name(name) then
    fail("%s: the weight %s has no name for a file in %s: it must not be empty, " ..
      "and not hold '/' or control characters", what, options.show(name), folder)
  end
  return fs.join(folder, name .. ".dat")
end

--- Writes a tensor to `<weight_name>.dat` in a folder. Raises for a name with "/" in it.
---@param weight accelerate.Tensor
---@param weight_name string
---@param offload_folder string is there
---@param index table<string, { dtype: string, shape: integer[] }>? gets an entry for the tensor
---@return table? index
function M.offload_weight(weight, weight_name, offload_folder, index)
  check_tensor("offload_weight", "weight", weight)
  check("offload_weight", "weight_name", weight_name, "string")
  check("offload_weight", "offload_folder", offload_folder, "string")
  -- a file that others can map has a byte
  local content = weight:numel() > 0 and weight:detach():contiguous() or "\0"
  core._parts_write(file_of("offload_weight", offload_folder, weight_name), { content }, "offload_weight")
  if index then index[weight_name] = { dtype = stored.name_of(weight), shape = json.list(weight.shape) } end
  return index
end

-- An entry of an index, or an error that says what is wrong with it.
local function check_info(what, info)
  local shape = type(info) == "table" and info.shape
  if type(shape) ~= "table" or type(info.dtype) ~= "string" then
    fail("%s: weight_info must have dtype and shape, got %s", what, options.show(info))
  end
  return info.dtype, shape
end

-- A tensor of a raw file. Bytes of "int8", which tensors do not have, come as marked uint8.
local function read_as(weight_file, dtype, shape)
  local is_int8 = dtype == "int8"
  local t = core._read_raw(weight_file, "load_offloaded_weight", is_int8 and "uint8" or dtype, shape)
  return is_int8 and stored.mark(t, "I8") or t
end

-- A tensor without elements, whose file has at most a byte.
local function read_empty(weight_file, dtype, shape)
  local file, why = io.open(weight_file, "rb")
  if not file then fail("load_offloaded_weight: %s", why) end
  local text = file:read(2)
  file:close()
  if text and #text > 1 then
    fail("load_offloaded_weight: '%s': it has more than a byte; no elements have none, or one to be mapped",
      weight_file)
  end
  local t = core.empty(shape, { dtype = dtype == "int8" and "uint8" or dtype })
  return dtype == "int8" and stored.mark(t, "I8") or t
end

--- Returns the tensor of a file that `offload_weight` wrote. Raises when the file has another size
--- than the type and the shape, and for types that tensors do not have; those of "int8" are in
--- uint8.
---@param weight_file string
---@param weight_info { dtype: string, shape: integer[] }
---@return accelerate.Tensor
function M.load_offloaded_weight(weight_file, weight_info)
  check("load_offloaded_weight", "weight_file", weight_file, "string")
  local dtype, shape = check_info("load_offloaded_weight", weight_info)
  if lists.set(shape)[0] then return read_empty(weight_file, dtype, shape) end
  return read_as(weight_file, dtype, { unpack(shape) })
end

local function read_index(what, folder)
  local path = fs.join(folder, INDEX)
  local text, why = fs.read(path)
  if not text then fail("%s: %s", what, why) end
  local index, problem = json.decode(text)
  if type(index) ~= "table" then fail("%s: %s: %s", what, path, problem or "it is no object") end
  return index
end

--- Writes an index to a folder. Entries that its `index.json` has already stay, unless they have
--- the same name.
---@param index table<string, table>? nil or an empty table: nothing is written
---@param offload_folder string
function M.save_offload_index(index, offload_folder)
  check("save_offload_index", "offload_folder", offload_folder, "string")
  if index == nil then return end
  check("save_offload_index", "index", index, "table")
  if #ordered.keys(index) == 0 then return end
  local path, all = fs.join(offload_folder, INDEX), ordered.new()
  if fs.is_file(path) then
    for name, info in ordered.pairs(read_index("save_offload_index", offload_folder)) do all[name] = info end
  end
  for name, info in ordered.pairs(index) do all[name] = info end
  local ok, why = fs.write(path, json.encode(all, 2), true)
  if not ok then fail("save_offload_index: %s", why) end
end

--- Writes each tensor of a state dict to a folder, which is made, and their index.
---@param save_dir string
---@param state_dict table<string, accelerate.Tensor>
function M.offload_state_dict(save_dir, state_dict)
  check("offload_state_dict", "save_dir", save_dir, "string")
  check("offload_state_dict", "state_dict", state_dict, "table")
  local made, why = fs.make_dirs(save_dir)
  if not made then fail("offload_state_dict: %s", why) end
  local index = ordered.new()
  for name, weight in ordered.pairs(state_dict) do
    check("offload_state_dict", "a name of state_dict", name, "string")
    M.offload_weight(check_tensor("offload_state_dict", tostring(name), weight), name, save_dir, index)
  end
  M.save_offload_index(index, save_dir)
end

--- Returns the entries of a state dict that belong to the named submodules.
---@param state_dict table<string, any>
---@param submodule_names string[]
---@return table<string, any>
function M.extract_submodules_state_dict(state_dict, submodule_names)
  check("extract_submodules_state_dict", "state_dict", state_dict, "table")
  check("extract_submodules_state_dict", "submodule_names", submodule_names, "list")
  local result = ordered.new()
  for _, module in ipairs(submodule_names) do
    check("extract_submodules_state_dict", "submodule_names", module, "string")
    for name, value in ordered.pairs(state_dict) do
      if type(name) ~= "string" then
        fail("extract_submodules_state_dict: state_dict: names must be strings, got %s", options.show(name))
      end
      if name == module or name:sub(1, #module + 1) == module .. "." then result[name] = value end
    end
  end
  return result
end

-- ---- maps that read when they are indexed

-- Makes a class of maps: `get(self, key)`; `keys(self)`, in order; `at(self, key)` is the value of
-- such a key, default `get`. map[key], #map and pairs(map) work.
local function map_class(name, get, keys, at)
  at = at or get
  local Map = { __name = name, __index = get, keys = keys }
  function Map.__len(self) return #keys(self) end
  function Map.__pairs(self)
    local list, i = keys(self), 0
    return function()
      i = i + 1
      if list[i] ~= nil then return list[i], at(self, list[i]) end
    end
  end
  function Map.__newindex() fail("%s: it is read only", name) end
  return Map
end

-- What a map holds; its own fields would hide weights of these names.
local held = setmetatable({}, { __mode = "k" })

local Prefixed = map_class("PrefixedDataset",
  function(self, key) return held[self].dataset[held[self].prefix .. key] end,
  function(self)
    local list, prefix, dataset = {}, held[self].prefix, held[self].dataset
    local map = getmetatable(dataset)
    -- reads nothing
    local all = map and map.keys and held[dataset] and map.keys(dataset) or ordered.keys(dataset)
    for _, key in ipairs(all) do
      if type(key) == "string" and key:sub(1, #prefix) == prefix then list[#list + 1] = key end
    end
    return list
  end,
  function(self, key) return held[self].dataset[key] end)

--- Returns a view of a map: `view[key]` is `dataset[prefix .. key]`. `pairs` and `#` see the whole
--- names that begin with the prefix, as Accelerate's do.
---@param dataset table a table, or a map that reads when it is indexed
---@param prefix string
---@return table<string, any>
function M.PrefixedDataset(dataset, prefix)
  if type(dataset) ~= "table" then
    fail("PrefixedDataset: dataset must be a table, got %s", options.show(dataset))
  end
  check("PrefixedDataset", "prefix", prefix, "string")
  local view = setmetatable({}, Prefixed)
  held[view] = { dataset = dataset, prefix = prefix }
  return view
end

local function loader_keys(self)
  local list, of = {}, held[self]
  for name in ordered.pairs(of.state_dict) do list[#list + 1] = name end
  for name in ordered.pairs(of.index) do
    if of.state_dict[name] == nil then list[#list + 1] = name end
  end
  return list
end

local function from_safetensors(info, name, device)
  local file = files.safe_open(info.safetensors_file)
  local t = file:get_tensor(info.weight_name or name)
  file:close()
  if info.dtype then t = t:to(info.dtype) end
  return t:to(device)
end

local Loader = map_class("OffloadedWeightsLoader", function(self, name)
  local of = held[self]
  if of.state_dict[name] ~= nil then return of.state_dict[name] end
  local info = of.index[name]
  if info == nil then
    local near = options.nearest(tostring(name), loader_keys(self))
    fail("OffloadedWeightsLoader: there is no weight '%s'%s", tostring(name),
      near and ("; did you mean '" .. near .. "'?") or "")
  end
  if info.safetensors_file then return from_safetensors(info, name, of.device) end
  if not of.save_folder then
    fail("OffloadedWeightsLoader: '%s' is in a file of save_folder, which was not given", name)
  end
  return M.load_offloaded_weight(file_of("OffloadedWeightsLoader", of.save_folder, name), info)
end, loader_keys)

local LOADER = { state_dict = { "table", optional = true }, save_folder = { "string", optional = true },
  index = { "table", optional = true }, device = { "string", default = "cpu" } }

--- Returns a map of weights by name, read when it is indexed: `loader["fc.weight"]`, `#loader`,
--- `for name, weight in pairs(loader)`. The state dict comes before the files. Raises for a name
--- that is not there.
---@param opts { state_dict: table<string, accelerate.Tensor>?, save_folder: string?, index: table?,
---  device: string? } index: default: save_folder's; its entries have dtype and shape, or
---  safetensors_file with weight_name and dtype at will; device: where tensors of safetensors files
---  go, default "cpu"
---@return table<string, accelerate.Tensor>
function M.OffloadedWeightsLoader(opts)
  opts = options.check("OffloadedWeightsLoader", opts, LOADER)
  if not (opts.state_dict or opts.save_folder or opts.index) then
    fail("OffloadedWeightsLoader: give state_dict, save_folder or index")
  end
  local index = opts.index or (opts.save_folder and read_index("OffloadedWeightsLoader", opts.save_folder))
  local loader = setmetatable({}, Loader)
  held[loader] = { state_dict = opts.state_dict or {}, index = index or {}, save_folder = opts.save_folder,
    device = opts.device }
  return loader
end

return M
