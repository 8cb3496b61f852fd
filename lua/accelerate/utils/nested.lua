--- Walks over nested values, on one rank: moving, slicing, joining, describing.
---
--- A nested value is a tensor, or a table of nested values.  A table whose keys are 1 to n is a
--- list; any other plain table is a map, and a map is always walked in the order of its sorted
--- keys: `pairs` has another order in every process, and the order of collectives must be the same
--- on all ranks.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

local is_tensor = core.is_tensor
M.is_tensor = is_tensor
--- Returns whether a value is a tensor: `is_tensor` under upstream's name.
M.is_torch_tensor = is_tensor

--- Stands for a tensor in the results of get_data_structure.
---@class accelerate.TensorInformation
---@field shape integer[]
---@field dtype string
local TensorInformation = class("TensorInformation")
M.TensorInformation = TensorInformation

function TensorInformation:init(shape, dtype)
  self.shape = options.value("TensorInformation", "shape", shape, { "list" })
  self.dtype = options.value("TensorInformation", "dtype", dtype, { "string" })
end

--- Returns whether `value` was made by get_data_structure for a tensor.
---@return boolean
function M.is_tensor_information(value) return class.is(value, TensorInformation) end

--- A plain table, or one that remembers its order, holds nested values; everything else is a leaf.
---@param value any
---@return boolean
function M.is_container(value)
  if type(value) ~= "table" then return false end
  local meta = getmetatable(value)
  return meta == nil or ordered.is_ordered(value)
end
local is_container = M.is_container

--- An empty container of the kind of `value`: a plain table, or one that remembers its order.
local function empty_like(value) return getmetatable(value) and ordered.new() or {} end
M.empty_like = empty_like

--- The path of an entry: "a.b[3]".
function M.extend(path, key)
  if type(key) == "string" and key:match("^[%a_][%w_]*$") then
    return path == "" and key or path .. "." .. key
  end
  return ("%s[%s]"):format(path, type(key) == "string" and ("%q"):format(key) or tostring(key))
end
local extend = M.extend

local function at(path) return path == "" and "" or " at " .. path end

--- "a string", "a Linear": for messages about leaves.
local function kind_of(value)
  if value == nil then return "nil" end
  local Class = class.of(value)
  return "a " .. (Class and Class.__name or type(value))
end
M.kind_of = kind_of

local MAX_DEPTH = 200

--- Raises for a table that holds itself, before it fills the stack.
local function check_depth(what, depth, path)
  if depth > MAX_DEPTH then
    fail("%s: tables are nested more than %d deep (or one holds itself)%s", what or "recursively_apply",
      MAX_DEPTH,
      at(#path > 60 and path:sub(1, 60) .. "..." or path))
  end
end

--- Calls `fn(leaf, path)` for the leaves of `data` and returns a value of the same form with its
--- results.
---@param fn fun(leaf: any, path: string): any
---@param data any
---@param test (fun(leaf: any): boolean)? which leaves `fn` takes (default: tensors)
---@param caller string? name that begins the error for a leaf that `test` refuses; without it such
---  a leaf stays as it is
function M.recursively_apply(fn, data, test, caller)
  options.value("recursively_apply", "fn", fn, { "function" })
  options.value("recursively_apply", "test", test, { "function", optional = true })
  options.value("recursively_apply", "caller", caller, { "string", optional = true })
  test = test or is_tensor
  local function walk(value, path, depth)
    if test(value) then return fn(value, path) end
    if is_container(value) then
      check_depth(caller, depth, path)
      local result = empty_like(value)
      for _, key in ipairs(ordered.keys(value)) do
        result[key] = walk(value[key], extend(path, key), depth + 1)
      end
      return result
    end
    if caller then
      fail("%s: expected a tensor, or a table of them, got %s%s", caller, kind_of(value), at(path))
    end
    return value
  end
  return walk(data, "", 1)
end

--- Returns whether every leaf is a tensor.
---@param data any nested values
---@return boolean
function M.all_tensors(data)
  local function walk(value, depth)
    if is_tensor(value) then return true end
    if not is_container(value) then return false end
    check_depth("all_tensors", depth, "")
    for _, key in ipairs(ordered.keys(value)) do
      if not walk(value[key], depth + 1) then return false end
    end
    return true
  end
  return walk(data, 1)
end

--- A table of the kind of `like` (plain, or one that remembers its order) with the entries of
--- `values`.
---@param like table
---@param values table
---@return table
function M.honor_type(like, values)
  if not is_container(like) then
    fail("honor_type: argument 1 must be a plain table, got %s", options.show(like))
  end
  if not is_container(values) then
    fail("honor_type: argument 2 must be a plain table, got %s", options.show(values))
  end
  local result = empty_like(like)
  for key, value in ordered.pairs(values) do result[key] = value end
  return result
end

--- Returns false: Lua has no named tuples.
---@return boolean
function M.is_namedtuple() return false end

local SEND = { non_blocking = { "boolean", default = false }, skip_keys = { "string|list", optional = true } }

--- Returns `data` with every tensor, and every object with a method `to`, on `device`. Other leaves
--- stay as they are. Tensors that are already there are not copied, and a value without anything to
--- move is returned itself.
---@param data any nested values
---@param device string "cpu", "cuda:0"
---@param opts { non_blocking: boolean?, skip_keys: string|string[]? }? non_blocking: pinned tensors
---  may still be read when this returns, and what comes down to the CPU may still be written
---  (synchronize before reading it); tensors alone, objects with a method `to` get the device only;
---  skip_keys: entries of maps, at any depth, to leave alone
---@return any
function M.send_to_device(data, device, opts)
  options.value("send_to_device", "device", device, { "string" })
  local skip, later = {}, nil
  if opts ~= nil then
    opts = options.check("send_to_device", opts, SEND)
    local keys = opts.skip_keys
    if opts.non_blocking then later = { non_blocking = true } end
    for _, key in ipairs(type(keys) == "table" and keys or { keys }) do skip[key] = true end
  end
  local function walk(value, depth)
    if is_tensor(value) then
      if value.device == device then return value end
      return later and value:to(device, later) or value:to(device)
    end
    if is_container(value) then
      check_depth("send_to_device", depth, "")
      local result
      for key, item in pairs(value) do  -- no collective in here: the order does not matter
        local moved = skip[key] and item or walk(item, depth + 1)
        if moved ~= item then
          result = result or M.honor_type(value, value)
          result[key] = moved
        end
      end
      return result or value
    end
    if type(value) == "table" and type(value.to) == "function" then return value:to(device) end
    return value
  end
  return walk(data, 1)
end

--- Returns the device of the first tensor, or nil if there is none.
---@param data any nested values
---@return string? "cpu", "cuda:0"
function M.find_device(data)
  local device
  M.recursively_apply(function(t) device = device or t.device end, data)
  return device
end

--- Returns the size of dim 1 of the first leaf. Raises if that is not a tensor with a dim, and for
--- empty tables.
---@param data any nested tensors
---@return integer
function M.find_batch_size(data)
  local value, path = data, ""
  while is_container(value) do
    local key = ordered.keys(value)[1]
    if key == nil then fail("find_batch_size: an empty table%s has no batch size", at(path)) end
    value, path = value[key], extend(path, key)
    check_depth("find_batch_size", select(2, path:gsub("[%.%[]", "")), path)
  end
  if not is_tensor(value) then
    fail("find_batch_size: expected a tensor, got %s%s", kind_of(value), at(path))
  end
  if value:dim() == 0 then fail("find_batch_size: a tensor without dims%s has no batch size", at(path)) end
  return value:size(1)
end

--- Returns what find_batch_size returns, or nil if that raises.
---@param data any
---@return integer?
function M.ignorant_find_batch_size(data)
  local found, size = pcall(M.find_batch_size, data)
  return found and size or nil
end

--- Returns `data` with a TensorInformation (shape and dtype) in place of each tensor.
---@param data any nested values
---@return any
function M.get_data_structure(data)
  return M.recursively_apply(function(t) return TensorInformation(t.shape, t.dtype) end, data)
end

--- Returns `data` with the list of sizes in place of each tensor.
---@param data any nested values
---@return any
function M.get_shape(data) return M.recursively_apply(function(t) return t.shape end, data) end

--- Returns a result of get_data_structure with a tensor in place of each TensorInformation. The
--- elements are not set.
---@param structure any
---@return any
function M.initialize_tensors(structure)
  return M.recursively_apply(function(info) return core.empty(info.shape, { dtype = info.dtype }) end,
    structure,
    M.is_tensor_information)
end

--- Returns `data` with Lua numbers and tables of numbers in place of tensors.
---@param data any nested values
---@return any
function M.listify(data)
  return M.recursively_apply(function(t) return t:dim() == 0 and t:item() or t:totable() end, data)
end

--- Joins nested tensors of one form along `dim`. A list of one leaf that is not a tensor gives that
--- leaf.
---@param list any[] values of the same form
---@param dim integer? counts from 1; default 1
---@return any
function M.concatenate(list, dim)
  options.value("concatenate", "list", list, { "list" })
  dim = options.value("concatenate", "dim", dim, { "integer", default = 1 })
  if #list == 0 then fail("concatenate: expected at least one value, got an empty list") end
  local function join(items, path, depth)
    local first = items[1]
    check_depth("concatenate", depth, path)
    for i, item in ipairs(items) do
      if is_tensor(item) ~= is_tensor(first) or is_container(item) ~= is_container(first) then
        fail("concatenate: the values differ in form%s: %s in value 1, %s in value %d", at(path),
          options.show(first),
          options.show(item), i)
      end
    end
    if is_tensor(first) then return core.cat(items, dim) end
    if not is_container(first) then
      if #items == 1 then return first end
      fail("concatenate: expected tensors, got %s%s", kind_of(first), at(path))
    end
    local result = empty_like(first)
    for _, key in ipairs(ordered.keys(first)) do
      local parts = {}
      for i, item in ipairs(items) do
        if item[key] == nil then fail("concatenate: value %d lacks%s", i, at(extend(path, key)):sub(4)) end
        parts[i] = item[key]
      end
      result[key] = join(parts, extend(path, key), depth + 1)
    end
    return result
  end
  return join(list, "", 1)
end

--- Returns positions first..last of dim 1 of every tensor, as views.
---@param data any nested tensors; other leaves stay as they are
---@param first integer|integer[] counts from 1; { first, last } for both, as slice_fn_for_dispatch
---  gets them
---@param last integer? inclusive; ends at the tensor's last
---@return any
function M.slice_tensors(data, first, last)
  if type(first) == "table" and getmetatable(first) == nil then first, last = first[1], first[2] end
  options.value("slice_tensors", "first", first, { "integer", min = 1 })
  options.value("slice_tensors", "last", last, { "integer", min = 0 })
  return M.recursively_apply(function(t, path)
    if t:dim() == 0 then fail("slice_tensors: a tensor without dims%s cannot be sliced", at(path)) end
    local size = t:size(1)
    local from = math.min(first, size + 1)
    local count = math.max(math.min(last, size) - from + 1, 0)
    return t:narrow(1, count > 0 and from or 1, count)
  end, data)
end

--- Pads `dim` of every tensor with zeros to the next multiple of `num_processes`, so that pipeline
--- stages (or ranks) get parts of one size.
---@param data any nested tensors
---@param batch_size integer the size that the tensors have there
---@param num_processes integer
---@param dim integer? counts from 1; default 1
---@return any
function M.pad_input_tensors(data, batch_size, num_processes, dim)
  options.value("pad_input_tensors", "batch_size", batch_size, { "integer", min = 0 })
  options.value("pad_input_tensors", "num_processes", num_processes, { "integer", min = 1 })
  dim = options.value("pad_input_tensors", "dim", dim, { "integer", default = 1, min = 1 })
  local wanted = math.ceil(batch_size / num_processes) * num_processes
  return M.recursively_apply(function(t, path)
    local shape = t.shape
    if shape[dim] ~= batch_size then
      fail("pad_input_tensors: a tensor of shape [%s]%s does not have batch_size %d in dim %d",
        table.concat(shape, ", "), at(path),
        batch_size, dim)
    end
    if wanted == batch_size then return t end
    shape[dim] = wanted - batch_size
    return core.cat({ t, core.zeros(shape, { dtype = t.dtype, device = t.device }) }, dim)
  end, data, nil, "pad_input_tensors")
end

return M
