--- Collectives over nested values (see utils.nested, whose functions are here, too).
---
--- Before data moves, the ranks always compare what they request: operation, dtype, count, root and
--- reduction. With ACCELERATE_DEBUG_MODE they also compare shapes before the operation starts.
--- well, before the operation starts.
local core = require "accelerate.core"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local state = require "accelerate.state"

local fail = options.fail
local recursively_apply, is_container, kind_of = nested.recursively_apply, nested.is_container, nested.kind_of

local M = {}
for name, member in pairs(nested) do M[name] = member end

local function at(path) return path == "" and "" or " at " .. path end

-- ---- objects as bytes: data, never code

--- Returns a nested value of booleans, numbers, strings and tensors as bytes. Equal values give
--- equal bytes on every rank. Raises for functions, objects and tables that contain themselves,
--- with their place.
---@param value any
---@param name string? name of the value in messages
---@return string
function M.serialize(value, name)
  local ok, bytes = pcall(core._serialize, value, name)
  if not ok then fail("%s", bytes) end
  return bytes
end

--- Returns the value that `serialize` turned into `bytes`. Raises for damaged bytes; nothing in
--- them is ever run.
---@param bytes string
---@return any
function M.deserialize(bytes)
  local ok, value = pcall(core._deserialize, bytes)
  if not ok then fail("%s", value) end
  return value
end

-- ---- shapes of all ranks, in debug mode

local function lines_of(all)
  local lines = {}
  for i, text in ipairs(all) do lines[i] = ("  - Process %d: %s"):format(i - 1, text) end
  return table.concat(lines, "\n")
end

--- Raises an error whose first word, DistributedOperationException, scripts may look for.
local function mismatch(what, all)
  fail("DistributedOperationException: %s: shapes differ between processes:\n%s", what, lines_of(all))
end

--- In debug mode, checks that tensors are on the run's kind of device and that shapes agree between
--- ranks. `shape_text` returns the part of a shape that must agree.
local function verify(what, data, shape_text, handle)
  local here = state.PartialState()
  if not here.debug or here.num_processes == 1 then return end
  local device = here.device:match("^%a+")
  local shapes, astray = {}, nil
  recursively_apply(function(t, path)
    shapes[#shapes + 1] = path .. (shape_text and shape_text(t) or "[" .. table.concat(t.shape, ", ") .. "]")
    if t.device:match("^%a+") ~= device then astray = astray or ("%s%s"):format(t.device, at(path)) end
  end, data, nil, what)
  -- Raising before the comparison would leave the other ranks waiting in it.
  local all = core.dist.all_gather_bytes(table.concat(shapes, " ") .. (astray and " on " .. astray or ""),
    handle)
  if astray then
    fail("DistributedOperationException: %s: a tensor lies on %s, but this run's processes are on %s; " ..
      "move it there first", what,
      astray, here.device)
  end
  for rank = 2, #all do
    if all[rank] ~= all[1] then mismatch(what, all) end
  end
end

-- ---- arguments

-- Reads a rank: a number or { from_process = number }; `group`: returns its rank there.
local function rank_of(what, from, group)
  local count = state.PartialState().num_processes
  local entry = { "integer", default = group and group.ranks[1] or 0, min = 0, max = count - 1 }
  if type(from) == "table" then
    from = options.check(what, from, { from_process = entry, group = group and { "any" } }).from_process
  end
  from = options.value(what, "from_process", from, entry)
  if not group then return from end
  for k, rank in ipairs(group.ranks) do
    if rank == from then return k - 1 end
  end
  fail("%s: from_process is rank %d, which is not in %s", what, from, group.name)
end

local function check_list(what, list)
  if not is_container(list) then fail("%s: expected a list, got %s", what, kind_of(list)) end
  if not ordered.is_list(list) then
    local key
    for _, k in ipairs(ordered.keys(list)) do
      if type(k) == "string" then
        key = k
        break
      end
    end
    fail("%s: expected a list, got a map (it has a key %s); put it into a list: { value }", what,
      key and options.show(key) or "that is no position")
  end
end

-- ---- collectives

local GROUP = { group = { "any", optional = true } }

-- The core's group of an option `group` (nil: the world), and whether this rank is alone in it.
local function group_of(what, opts)
  opts = options.check(what, opts, GROUP)
  if opts.group == nil then return nil, state.PartialState().num_processes == 1 end
  local handle, group = require("accelerate.distributed.group").handle_of(what, opts.group)
  return handle, group.size == 1, group
end

-- Likewise of a rank that may be { from_process = .., group = .. }.
local function group_given(what, from_process)
  local given = type(from_process) == "table" and from_process.group
  return group_of(what, given and { group = given } or nil)
end

local function gather_one(t, handle)
  t = t:detach()
  if t:dim() == 0 then t = t:reshape(1) end
  return core.dist.all_gather(t:contiguous(), handle)
end

--- Concatenates every tensor of all ranks along dim 1, in rank order, on every rank. A 0-d tensor
--- counts as one element. A single process gets `data` itself.
---@generic T
---@param data T nested tensors; shapes must agree between ranks
---@param opts { group: accelerate.ProcessGroup? }? group: over its ranks alone
---@return T
function M.gather(data, opts)
  local handle, alone = group_of("gather", opts)
  if alone then
    recursively_apply(function() end, data, nil, "gather")  -- raises for the same mistakes on one process
    return data
  end
  verify("gather", data, nil, handle)
  return recursively_apply(function(t) return gather_one(t, handle) end, data, nil, "gather")
end

--- Concatenates the lists of all ranks in rank order. Lengths may differ. A single process gets the
--- list itself.
---@param list any[] booleans, numbers, strings, tensors, and tables of them
---@param opts { group: accelerate.ProcessGroup? }? group: over its ranks alone
---@return any[]
function M.gather_object(list, opts)
  local handle, alone = group_of("gather_object", opts)
  check_list("gather_object", list)
  local mine = M.serialize(list, "gather_object: list")
  if alone then return list end
  local all, result = core.dist.all_gather_bytes(mine, handle), {}
  for _, bytes in ipairs(all) do
    local part = M.deserialize(bytes)
    for i = 1, #part do result[#result + 1] = part[i] end
  end
  return result
end

local REDUCTIONS = { "sum", "mean", "max", "min", "prod", "none" }
local REDUCE = {
  reduction = { "string", optional = true }, scale = { "number", default = 1 }, group = GROUP.group,
}
local REDUCTION = { "string" }

local function check_reduction(name)
  options.value("reduce", "reduction", name, REDUCTION)
  for _, known in ipairs(REDUCTIONS) do
    if known == name then return name end
  end
  local near = options.nearest(name, REDUCTIONS)
  fail("reduce: '%s' is not a reduction%s", name, near and (", did you mean '" .. near .. "'?") or
    "; there are " .. table.concat(REDUCTIONS, ", "))
end

-- Reads the arguments [reduction,] [opts] of reduce, and returns the reduction and the scale.
local function reduce_options(default, reduction, opts)
  if type(reduction) == "table" and opts == nil then reduction, opts = nil, reduction end
  if type(opts) == "number" then
    fail("reduce: the scale is an option: write reduce(data, \"%s\", { scale = %.14g })",
      tostring(reduction or default), opts)
  end
  opts = options.check("reduce", opts, REDUCE)
  if opts.reduction then
    fail("reduce: the reduction comes by position: write reduce(data, \"%s\")", opts.reduction)
  end
  return check_reduction(reduction == nil and default or reduction), opts.scale, opts.group
end

local function reduce(data, reduction, scale, group)
  local handle, alone = group_of("reduce", { group = group })
  recursively_apply(function(t, path)
    if reduction == "mean" and not core._is_float(t) then
      fail("reduce: the mean of %s tensors is not defined; use \"sum\", or convert them with :float()%s",
        t.dtype,
        path == "" and "" or " (at " .. path .. ")")
    elseif t.dtype == "bool" and (reduction == "sum" or reduction == "prod") then
      fail("reduce: the %s of bool tensors is not defined; use \"max\" for any and \"min\" for all%s",
        reduction,
        path == "" and "" or " (at " .. path .. ")")
    end
  end, data, nil, "reduce")
  local exchange = not alone and reduction ~= "none"
  if exchange then verify("reduce", data, nil, handle) end
  return recursively_apply(function(t)
    local copy = t:detach():clone()
    if exchange then core.dist.all_reduce(copy, reduction, 0, false, handle) end
    return scale ~= 1 and copy * scale or copy
  end, data)
end

--- Reduces every tensor over the ranks; the input is unchanged. "none" returns a copy of the rank's
--- own tensors.
---@generic T
---@param data T nested tensors
---@param reduction ("mean"|"sum"|"max"|"min"|"prod"|"none")? default "mean"
---@param opts { scale: number?, group: accelerate.ProcessGroup? }? scale: factor for the result
---  (default 1); group: over its ranks alone
---@return T
function M.reduce(data, reduction, opts) return reduce(data, reduce_options("mean", reduction, opts)) end

--- Accelerator:reduce, whose default reduction is the sum.
function M.reduce_sum(data, reduction, opts) return reduce(data, reduce_options("sum", reduction, opts)) end

--- Overwrites every tensor with one rank's, and returns `data`.
---@generic T
---@param data T nested tensors
---@param from_process integer|{ from_process: integer?, group: accelerate.ProcessGroup? }|nil a
---  rank of the world; default 0. group: over its ranks alone, from_process is one of them
---@return T
function M.broadcast(data, from_process)
  local handle, alone, group = group_given("broadcast", from_process)
  local from = rank_of("broadcast", from_process, group)
  recursively_apply(function() end, data, nil, "broadcast")
  if alone then return data end
  verify("broadcast", data, nil, handle)
  recursively_apply(function(t) core.dist.broadcast(t, from, handle) end, data)
  return data
end

--- Replaces the entries of `list` by those of one rank, and returns it. That rank's own list is
--- unchanged.
---@param list any[] its length does not matter on the other ranks
---@param from_process integer|{ from_process: integer?, group: accelerate.ProcessGroup? }|nil a
---  rank of the world; default 0. group: over its ranks alone, from_process is one of them
---@return any[] list
function M.broadcast_object_list(list, from_process)
  check_list("broadcast_object_list", list)
  local handle, alone, group = group_given("broadcast_object_list", from_process)
  local from = rank_of("broadcast_object_list", from_process, group)
  local sends = (group and group.rank or state.PartialState().process_index) == from
  local mine = sends and M.serialize(list, "broadcast_object_list: list") or nil
  if alone then return list end
  local bytes = core.dist.broadcast_bytes(mine, from, handle)
  if sends then return list end
  for i = #list, 1, -1 do list[i] = nil end
  for i, value in ipairs(M.deserialize(bytes)) do list[i] = value end
  return list
end

--- Gives every rank a copy of one rank's tensor. The other ranks pass nothing and need not know its
--- shape.
---@param tensor accelerate.Tensor?
---@return accelerate.Tensor a copy, also on the rank that passed it
function M.copy_tensor_to_devices(tensor)
  options.value("copy_tensor_to_devices", "tensor", tensor, { "tensor", optional = true })
  local here = state.PartialState()
  local mine = tensor and { shape = tensor.shape, dtype = tensor.dtype } or nil
  local owner, count, ranks = nil, 0, {}
  local all = here.num_processes == 1 and { M.serialize(mine) }
    or core.dist.all_gather_bytes(M.serialize(mine))
  for rank, bytes in ipairs(all) do
    local info = M.deserialize(bytes)
    if info then owner, count, ranks[#ranks + 1] = { rank = rank - 1, info = info }, count + 1, rank - 1 end
  end
  if count == 0 then fail("copy_tensor_to_devices: no rank has a tensor; exactly one must pass it") end
  if count > 1 then
    fail("copy_tensor_to_devices: ranks %s each have a tensor; exactly one may pass it",
      table.concat(ranks, " and "))
  end
  local info = owner.info
  local copy = tensor and tensor:detach():clone()
    or core.empty(info.shape, { dtype = info.dtype, device = here.device })
  if here.num_processes > 1 then core.dist.broadcast(copy, owner.rank) end
  return copy
end

local PAD = {
  dim = { "integer", default = 1 },
  pad_index = { "number|boolean", default = 0 },
  pad_first = { "boolean", default = false },
  group = GROUP.group,
}

--- Pads tensors to the size of the longest rank's, so that they can be gathered. A tensor without
--- that dim is returned as it is.
---@generic T
---@param data T nested tensors
---@param opts { dim: integer?, pad_index: number|boolean|nil, pad_first: boolean?, group:
---  accelerate.ProcessGroup? }? `dim` counts from 1, -1 is the last; default 1. pad_index: the fill
---  value; default 0. pad_first: pad at the beginning. group: the longest of its ranks
---@return T
function M.pad_across_processes(data, opts)
  opts = options.check("pad_across_processes", opts, PAD)
  if opts.dim == 0 then fail("pad_across_processes: dim counts from 1 (-1 is the last), got 0") end
  recursively_apply(function() end, data, nil, "pad_across_processes")
  local handle, alone = group_of("pad_across_processes", { group = opts.group })
  if alone then return data end
  local function padded_dim(t)
    local dim = opts.dim < 0 and opts.dim + t:dim() + 1 or opts.dim
    return dim >= 1 and dim <= t:dim() and dim or nil
  end
  verify("pad_across_processes", data, function(t)
    local shape, dim = t.shape, padded_dim(t)
    if dim then shape[dim] = "any" end
    return "[" .. table.concat(shape, ", ") .. "]"
  end, handle)
  return recursively_apply(function(t)
    local shape, dim = t.shape, padded_dim(t)
    if not dim then return t end
    local size = shape[dim]
    local sizes = core.tensor({ size }, { dtype = "int64" })
    local longest = core.dist.all_reduce(sizes, "max", 0, false, handle):totable()[1]
    if longest == size then return t end
    shape[dim] = longest
    local padded = core.full(shape, opts.pad_index, { dtype = t.dtype, device = t.device })
    if size > 0 then
      padded:narrow(dim, opts.pad_first and longest - size + 1 or 1, size):copy_(t:detach())
    end
    return padded
  end, data)
end

return M
