--- Bytes of models: of each module, of the largest layer, of a type's element.
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local tensors = require "accelerate.hooks.tensors"
local Module = require("accelerate.nn").Module

local fail = options.fail

local M = {}

M.check_model = tensors.check_model

--- Raises unless `modules` is a list of { name, module or tensor }.
---@param where string
function M.check_entries(where, modules)
  options.value(where, "modules", modules, { "list" })
  for i, entry in ipairs(modules) do
    if type(entry) ~= "table" or type(entry[1]) ~= "string" or entry[2] == nil then
      options.fail("%s: entry %d of modules must be { name, module }, got %s", where, i, options.show(entry))
    end
  end
end

-- Types that are no types of tensors here, and bool, which counts as one bit.
local BYTES = { bool = 1 / 8, int2 = 1 / 4, int4 = 1 / 2, fp8 = 1 }

--- Returns the bytes of an element of a type, as Accelerate counts them: 4 for "float32", 1/8 for
--- "bool", 1/2 for "int4", 1/4 for "int2", 1 for "fp8" and the types "float8_...". A name may begin
--- with "torch.". Raises for a name that does not end in a number of bits.
---@param dtype string
---@return number
function M.dtype_byte_size(dtype)
  options.value("dtype_byte_size", "dtype", dtype, { "string" })
  local name = dtype:gsub("^torch%.", "")
  if BYTES[name] then return BYTES[name] end
  if name:find "^float8_" then return 1 end
  local bits = name:match "^%a+(%d+)$"
  if not bits then
    fail("dtype_byte_size: dtype: expected a type such as \"float32\", got %s", options.show(dtype))
  end
  return math.floor(tonumber(bits) / 8)
end

-- The classes here by Transformers' names, of the first model inside that has other ones.
local function their_names(model)
  for _, module in ipairs(model and model:modules() or {}) do
    local names = module._transformers_names
    if names then return names end
  end
  return {}
end

--- Returns the classes that a model must not be split inside of, as a set of names.
---@param where string
---@param classes string|string[]|nil
---@param model accelerate.nn.Module? whose classes may have Transformers' names
---@return table<string, boolean>
function M.class_set(where, classes, model)
  if type(classes) == "string" then classes = { classes } end
  local set, ours = {}, their_names(model)
  for i, name in ipairs(classes or {}) do
    options.value(where, ("no_split_module_classes[%d]"):format(i), name, { "string" })
    set[name], set[ours[name] or name] = true, true
  end
  return set
end

M.SIZES = { dtype = { "string", optional = true }, special_dtypes = { "table", optional = true },
  buffers_only = { "boolean", default = false } }

-- The bytes of a tensor: of a floating type the smaller of its own and `dtype`'s.
local function bytes_of(name, t, o)
  local special = o.special_dtypes and o.special_dtypes[name]
  local size = M.dtype_byte_size(special or t.dtype)
  if not special and o.dtype and not (t.dtype:find "int" or t.dtype == "bool") then
    size = math.min(size, M.dtype_byte_size(o.dtype))
  end
  return t:numel() * size
end

--- Returns the bytes of each module, parameter and buffer by name; "" is the whole model. A tensor
--- of several names counts once, under the first.
---@param model accelerate.nn.Module may be on the device "meta"
---@param opts? { dtype: string?, special_dtypes: table<string, string>?, buffers_only: boolean? }
---  dtype: the type that floating tensors get when they are loaded: each counts as the smaller of
---  the two; special_dtypes: types by the names of tensors, which come before; buffers_only:
---  default false
---@return table<string, number> ordered as the tensors are registered
function M.compute_module_sizes(model, opts)
  M.check_model("compute_module_sizes", model)
  local o = options.check("compute_module_sizes", opts, M.SIZES)
  local sizes = ordered.new()
  local function add(name, t)
    local bytes = bytes_of(name, t, o)
    sizes[""] = (sizes[""] or 0) + bytes
    for at in (name .. "."):gmatch "()%." do
      local prefix = name:sub(1, at - 1)
      sizes[prefix] = (sizes[prefix] or 0) + bytes
    end
  end
  local each = o.buffers_only and model:named_buffers()
    or tensors.named_module_tensors(model, { recurse = true })
  for name, t in each do add(name, t) end
  return sizes
end

-- A module's name in a list of { name, module }, and whether it is never split.
local function whole(module, classes)
  if not class.is(module, Module) or classes[module.__name] then return true end
  return module:_child_list()[1] == nil
end

--- Returns the children of an entry { name, module } as such entries.
---@param entry table
---@param with_parameters boolean the module's own parameters come before
---@return table[]
function M.children(entry, with_parameters)
  local list, prefix = {}, entry[1] .. "."
  if with_parameters then
    for name, p in entry[2]:named_parameters { recurse = false } do
      list[#list + 1] = { prefix .. name, p }
    end
  end
  for name, child in entry[2]:named_children() do list[#list + 1] = { prefix .. name, child } end
  return list
end

--- Returns whether an entry { name, module or tensor } is a layer: a tensor, a module without
--- children, or of a class that is not split.
M.is_whole = whole

--- Returns the model's direct parameters, children and buffers, in this order, as { name, value }.
---@param model accelerate.nn.Module
---@return table[]
function M.direct(model)
  local list = {}
  for name, p in model:named_parameters { recurse = false } do list[#list + 1] = { name, p } end
  for name, child in model:named_children() do list[#list + 1] = { name, child } end
  for name, b in model:named_buffers { recurse = false } do list[#list + 1] = { name, b } end
  return list
end

-- Calls visit(entry) for the layers of a list of entries, in order.
local function each_layer(entries, classes, visit)
  for _, entry in ipairs(entries) do
    if whole(entry[2], classes) then visit(entry)
    else each_layer(M.children(entry, false), classes, visit) end
  end
end

--- Returns the bytes of the largest layer, and the names of all layers of that size. A layer is a
--- tensor, a module without children, or one of a class that is not split.
---@param modules table[] { name, module or tensor }
---@param module_sizes table<string, number> as compute_module_sizes returns them
---@param no_split_module_classes string|string[]|nil
---@return number bytes
---@return string[] names
function M.get_max_layer_size(modules, module_sizes, no_split_module_classes)
  M.check_entries("get_max_layer_size", modules)
  options.value("get_max_layer_size", "module_sizes", module_sizes, { "table" })
  return M.largest(modules, module_sizes, M.class_set("get_max_layer_size", no_split_module_classes))
end

--- As get_max_layer_size, with a set of classes.
function M.largest(entries, sizes, classes)
  local most, names = 0, {}
  each_layer(entries, classes, function(entry)
    local size = sizes[entry[1]] or 0
    if size > most then most, names = size, {} end
    if size == most then names[#names + 1] = entry[1] end
  end)
  return most, names
end

--- Returns the bytes of a model, and its largest layer: { bytes, names }. Of a model of
--- accelerate.models a block is a layer.
---@param model accelerate.nn.Module
---@return number total
---@return { [1]: number, [2]: string[] } largest
function M.calculate_maximum_sizes(model)
  M.check_model("calculate_maximum_sizes", model)
  local sizes = M.compute_module_sizes(model)
  local classes = M.class_set("calculate_maximum_sizes", model._no_split_modules)
  local most, names = M.largest(M.direct(model), sizes, classes)
  return sizes[""] or 0, { most, names }
end

return M
