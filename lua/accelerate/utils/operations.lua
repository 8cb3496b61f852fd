--- Collectives over nested values, and walks over them.
---
--- A nested value is a tensor, or a table of nested values.  A table whose keys are 1 to n is a list; any other plain
--- table is a map, and a map is always walked in the order of its sorted keys: `pairs` has another order in every
--- process, and the order of collectives must be the same on all ranks.
local core = require "accelerate.core"
local ffi = require "ffi"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local is_tensor = core.is_tensor

--- A plain table, or one that remembers its order, holds nested values; everything else is a leaf.
local function is_container(value)
  if type(value) ~= "table" then return false end
  local meta = getmetatable(value)
  return meta == nil or (type(meta) == "table" and rawget(meta, "__order") ~= nil)
end

local function empty_like(value) return getmetatable(value) and ordered.new() or {} end

local function extend(path, key)
  if type(key) == "string" and key:match("^[%a_][%w_]*$") then return path == "" and key or path .. "." .. key end
  return ("%s[%s]"):format(path, type(key) == "string" and ("%q"):format(key) or tostring(key))
end

local function kind_of(value)
  local meta = type(value) == "table" and getmetatable(value)
  return meta and type(meta) == "table" and type(meta.__name) == "string" and meta.__name or type(value)
end

--- Calls `fn(leaf, path)` for the leaves of `data` and returns a value of the same form with its results.
---@param fn fun(leaf: any, path: string): any
---@param data any
---@param test (fun(leaf: any): boolean)? which leaves `fn` takes (default: tensors)
---@param what string? when given, a leaf that `test` refuses is an error that begins with it; else it stays as it is
function M.recursively_apply(fn, data, test, what)
  test = test or is_tensor
  local function walk(value, path)
    if test(value) then return fn(value, path) end
    if is_container(value) then
      local result = empty_like(value)
      for _, key in ipairs(ordered.keys(value)) do result[key] = walk(value[key], extend(path, key)) end
      return result
    end
    if what then
      fail("%s: expected a tensor, or a table of them, got a %s%s", what, kind_of(value), path == "" and "" or " at " .. path)
    end
    return value
  end
  return walk(data, "")
end

--- Whether every leaf is a tensor.
function M.all_tensors(data)
  if is_tensor(data) then return true end
  if not is_container(data) then return false end
  for _, value in pairs(data) do
    if not M.all_tensors(value) then return false end
  end
  return true
end

-- ---- bytes -------------------------------------------------------------------------------------------------------

local function put(value, out, path)
  local kind = type(value)
  if value == nil then
    out[#out + 1] = "z"
  elseif kind == "boolean" then
    out[#out + 1] = value and "T" or "F"
  elseif kind == "number" then
    out[#out + 1] = ("n%.17g;"):format(value)
  elseif kind == "string" then
    out[#out + 1] = ("s%d:"):format(#value)
    out[#out + 1] = value
  elseif is_tensor(value) then
    local t = value:detach():contiguous()
    local shape, bytes = t.shape, t:numel() * t:element_size()
    out[#out + 1] = ("x%s:%d:%s;"):format(t.dtype, bytes, table.concat(shape, ","))
    out[#out + 1] = bytes > 0 and ffi.string(t:data_ptr(), bytes) or ""
  elseif is_container(value) then
    local keys = ordered.keys(value)
    out[#out + 1] = ("t%d:"):format(#keys)
    for _, key in ipairs(keys) do
      put(key, out, path)
      put(value[key], out, extend(path, key))
    end
  else
    fail("cannot send a %s%s to other ranks: only nil, booleans, numbers, strings, tensors and plain tables of them",
      kind_of(value), path == "" and "" or " at " .. path)
  end
end

local get
local function get_tensor(text, at)
  local dtype, bytes, dims, stop = text:match("^(%w+):(%d+):([%d,]*);()", at)
  local shape = {}
  for size in dims:gmatch("%d+") do shape[#shape + 1] = tonumber(size) end
  local t = core.empty(shape, { dtype = dtype })
  bytes = tonumber(bytes)
  if bytes > 0 then ffi.copy(t:data_ptr(), text:sub(stop, stop + bytes - 1), bytes) end
  return t, stop + bytes
end

function get(text, at)
  local kind = text:sub(at, at)
  at = at + 1
  if kind == "z" then return nil, at end
  if kind == "T" or kind == "F" then return kind == "T", at end
  if kind == "n" then
    local number, stop = text:match("^([^;]+);()", at)
    return tonumber(number), stop
  elseif kind == "s" then
    local size, from = text:match("^(%d+):()", at)
    return text:sub(from, from + size - 1), from + size
  elseif kind == "x" then
    return get_tensor(text, at)
  end
  local count, from = text:match("^(%d+):()", at)
  local map = {}
  for _ = 1, tonumber(count) do
    local key
    key, from = get(text, from)
    map[key], from = get(text, from)
  end
  return map, from
end

--- A nested value of nil, booleans, numbers, strings and tensors as bytes, the same bytes on every rank for equal values.
---@return string
function M.serialize(value)
  local out = {}
  put(value, out, "")
  return table.concat(out)
end

--- The value that `serialize` made `text` of.
function M.deserialize(text) return (get(text, 1)) end

-- ---- collectives -------------------------------------------------------------------------------------------------

--- With ACCELERATE_DEBUG_MODE set, compares the shapes of all ranks before a collective and says which rank has which.
local function verify(what, data)
  local here = state.PartialState()
  if not here.debug or here.num_processes == 1 then return end
  local shapes = {}
  M.recursively_apply(function(t, path) shapes[#shapes + 1] = ("%s[%s]"):format(path, table.concat(t.shape, ", ")) end, data, nil, what)
  local all = core.dist.all_gather_bytes(table.concat(shapes, " "))
  for rank = 2, #all do
    if all[rank] ~= all[1] then
      local lines = {}
      for i, text in ipairs(all) do lines[i] = ("  - Process %d: %s"):format(i - 1, text) end
      fail("DistributedOperationException: %s: shapes differ between processes:\n%s", what, table.concat(lines, "\n"))
    end
  end
end

local function gather_one(t)
  t = t:detach()
  if t:dim() == 0 then t = t:reshape(1) end
  return core.dist.all_gather(t:contiguous())
end

--- Joins every tensor of all ranks along dim 1, in rank order, on every rank.  A 0-d tensor counts as one of one
--- element.  One process: `data` itself.
---@generic T
---@param data T nested tensors; shapes must agree between ranks
---@return T
function M.gather(data)
  if state.PartialState().num_processes == 1 then
    M.recursively_apply(function() end, data, nil, "gather")  -- the same complaints on one process
    return data
  end
  verify("gather", data)
  return M.recursively_apply(gather_one, data, nil, "gather")
end

--- Each rank passes a list; the result is one flat list in rank order.  Lengths may differ.
---@param list any[] booleans, numbers, strings, tensors, and tables of them
---@return any[]
function M.gather_object(list)
  if not is_container(list) then fail("gather_object: expected a list, got a %s", kind_of(list)) end
  if state.PartialState().num_processes == 1 then return list end
  local all, result = core.dist.all_gather_bytes(M.serialize(list)), {}
  for _, text in ipairs(all) do
    local part = M.deserialize(text)
    for i = 1, #part do result[#result + 1] = part[i] end
  end
  return result
end

local REDUCTIONS = { "sum", "mean", "max", "min", "prod", "none" }

--- Combines every tensor with those of the other ranks; the input is left alone.  "none" gives a copy.
---@generic T
---@param data T nested tensors
---@param reduction ("mean"|"sum"|"max"|"min"|"prod"|"none")? default "mean"
---@param scale number? factor for the result (default 1)
---@return T
function M.reduce(data, reduction, scale)
  reduction = reduction or "mean"
  local known = false
  for _, name in ipairs(REDUCTIONS) do known = known or name == reduction end
  if not known then
    local near = options.nearest(tostring(reduction), REDUCTIONS)
    fail("reduce: '%s' is not a reduction%s", tostring(reduction), near and (", did you mean '" .. near .. "'?") or
      "; there are " .. table.concat(REDUCTIONS, ", "))
  end
  local alone = state.PartialState().num_processes == 1
  if not alone then verify("reduce", data) end
  return M.recursively_apply(function(t, path)
    if reduction == "mean" and not t.dtype:find("float") then
      fail("reduce: the mean of %s tensors is not defined%s; use \"sum\", or convert them with :float()", t.dtype,
        path == "" and "" or " (at " .. path .. ")")
    end
    local copy = t:detach():clone()
    if reduction ~= "none" and not alone then core.dist.all_reduce(copy, reduction) end
    if scale and scale ~= 1 then copy = copy * scale end
    return copy
  end, data, nil, "reduce")
end

--- Overwrites every tensor with that of one rank, and returns `data`.
---@param data any nested tensors
---@param from_process integer? default 0
function M.broadcast(data, from_process)
  if state.PartialState().num_processes == 1 then return data end
  verify("broadcast", data)
  M.recursively_apply(function(t) core.dist.broadcast(t, from_process or 0) end, data, nil, "broadcast")
  return data
end

--- Replaces the entries of `list` by those of one rank, and returns it.
---@param list any[]
---@param from_process integer? default 0
function M.broadcast_object_list(list, from_process)
  if not is_container(list) then fail("broadcast_object_list: expected a list, got a %s", kind_of(list)) end
  local here, from = state.PartialState(), from_process or 0
  if here.num_processes == 1 then return list end
  local received = M.deserialize(core.dist.broadcast_bytes(here.process_index == from and M.serialize(list) or nil, from))
  for key in pairs(list) do list[key] = nil end
  for key, value in pairs(received) do list[key] = value end
  return list
end

local PAD = {
  dim = { "integer", default = 1 },
  pad_index = { "any", default = 0 },
  pad_first = { "boolean", default = false },
}

--- Pads tensors to the size that the longest rank has, so that they can be gathered.  A tensor without such a dim stays
--- as it is.
---@generic T
---@param data T nested tensors
---@param opts { dim: integer?, pad_index: number?, pad_first: boolean? }? `dim` counts from 1, -1 is the last; default 1
---@return T
function M.pad_across_processes(data, opts)
  opts = options.check("pad_across_processes", opts, PAD)
  local alone = state.PartialState().num_processes == 1
  return M.recursively_apply(function(t)
    local shape, dim = t.shape, opts.dim
    if dim < 0 then dim = dim + #shape + 1 end
    if dim < 1 or dim > #shape or alone then return t end
    local size = shape[dim]
    local longest = core.dist.all_reduce(core.tensor({ size }, { dtype = "int64" }), "max"):totable()[1]
    if longest == size then return t end
    shape[dim] = longest
    local padded = core.full(shape, opts.pad_index, { dtype = t.dtype, device = t.device })
    if size > 0 then padded:narrow(dim, opts.pad_first and longest - size + 1 or 1, size):copy_(t:detach()) end
    return padded
  end, data, nil, "pad_across_processes")
end

-- ---- on one rank -------------------------------------------------------------------------------------------------

--- Moves every tensor, and every object with a method `to`, to `device`; other leaves stay as they are.
---@param skip_keys string|string[]? entries of maps to leave alone
function M.send_to_device(data, device, skip_keys)
  local skip = {}
  for _, key in ipairs(type(skip_keys) == "table" and skip_keys or { skip_keys }) do skip[key] = true end
  local function walk(value)
    if is_tensor(value) then
      if value.device == device then return value end
      return value:to(device)
    end
    if is_container(value) then
      local result
      for key, item in pairs(value) do  -- no collective in here: the order does not matter
        local moved = skip[key] and item or walk(item)
        if moved ~= item and not result then
          result = {}
          for k, v in pairs(value) do result[k] = v end
        end
        if result then result[key] = moved end
      end
      return result or value
    end
    if type(value) == "table" and type(value.to) == "function" then return value:to(device) end
    return value
  end
  return walk(data)
end

--- The size of dim 1 of the first tensor.
---@return integer
function M.find_batch_size(data)
  local size
  M.recursively_apply(function(t) size = size or (t:dim() > 0 and t:size(1)) end, data, nil, "find_batch_size")
  if not size then fail("find_batch_size: there is no tensor with a dim in it") end
  return size
end

--- Joins nested tensors of one form along `dim`.
---@param list any[] values of the same form
---@param dim integer? counts from 1; default 1
function M.concatenate(list, dim)
  local first = list[1]
  if is_tensor(first) then return core.cat(list, dim or 1) end
  if is_container(first) then
    local result = empty_like(first)
    for _, key in ipairs(ordered.keys(first)) do
      local parts = {}
      for i, item in ipairs(list) do parts[i] = item[key] end
      result[key] = M.concatenate(parts, dim)
    end
    return result
  end
  if #list == 1 then return first end
  fail("concatenate: expected tensors, got a %s", kind_of(first))
end

--- Positions first..last (counted from 1, inclusive) of dim 1 of every tensor.
function M.slice_tensors(data, first, last)
  return M.recursively_apply(function(t) return t:narrow(1, first, math.max(last - first + 1, 0)) end, data)
end

--- Tensors become Lua numbers and tables.
function M.listify(data)
  return M.recursively_apply(function(t) return t:dim() == 0 and t:item() or t:totable() end, data)
end

return M
