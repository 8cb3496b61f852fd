--- Collectives on one tensor, with the names of torch.distributed. utils.gather and its siblings
--- take nested values.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local groups = require "accelerate.distributed.group"
local options = require "accelerate.utils.options"
local pending = require "accelerate.distributed.pending"
local positions = require "accelerate.utils.positions"

local fail, handle_of = options.fail, groups.handle_of
local dist = core.dist

local M = {}

local GROUP = { "any", optional = true }
local OP = { "string", default = "sum", one_of = { "sum", "mean", "max", "min", "prod" } }
local RANK = { "integer", optional = true, min = 0 }
local IN_PLACE = { op = OP, group = GROUP, async_op = { "boolean", default = false } }
local ROOT = { src = RANK, group_src = RANK, dst = RANK, group_dst = RANK, group = GROUP, op = OP }

local function check_tensor(what, x)
  if core.is_tensor(x) then return x end
  local returned = type(x) == "table" and "; no list is filled: what comes is returned" or ""
  fail("%s: expected a tensor, got %s%s", what, options.show(x), returned)
end

-- Runs what was put off, unless `put_off`, and reads options of the names in `known` alone.
local function read(what, opts, known, put_off)
  if not put_off then pending.flush() end
  local schema = {}
  for name in known:gmatch "%S+" do schema[name] = ROOT[name] or IN_PLACE[name] end
  return options.check(what, opts, schema)
end

-- The root's rank in the group: `src` and `dst` are ranks of the world, `group_src` and `group_dst`
-- of the group.
local function root_of(what, group, o, name)
  local own = o["group_" .. name]
  if own and o[name] then fail("%s: give %s or group_%s, not both", what, name, name) end
  if own and own >= group.size then
    fail("%s: group_%s is %d; the ranks of %s are 0 to %d", what, name, own, group.name, group.size - 1)
  end
  if own then return own end
  local wanted = o[name] or group.ranks[1]
  for k, rank in ipairs(group.ranks) do
    if rank == wanted then return k - 1 end
  end
  fail("%s: %s is rank %d of the world, which is not in %s", what, name, wanted, group.name)
end

--- A collective that was begun with async_op.
---@class accelerate.Work
local Work = class("Work")

-- work: the core's; or an entry of pending.
function Work:init(work, entry) self._work, self._entry = work, entry end

--- Waits until the collective has ended. On a GPU the work queued from now on waits, and this
--- function returns at once.
---@return boolean true
function Work:wait()
  local work, entry = self._work, self._entry
  self._work = nil
  if work then work:wait() end
  if entry and not entry.over then pending.flush() end
  return true
end

--- Returns whether the collective has ended, as far as this rank knows without waiting.
---@return boolean
function Work:is_completed()
  if self._entry then return self._entry.over end
  return self._work == nil
end

--- Reduces x over the ranks of a group, in place.
---@param x accelerate.Tensor the same shape and type on every rank
---@param opts { op: ("sum"|"mean"|"max"|"min"|"prod")?, group: accelerate.ProcessGroup?, async_op:
---  boolean? }?
---@return accelerate.Tensor|accelerate.Work x; with async_op the work to wait for
function M.all_reduce(x, opts)
  check_tensor("all_reduce", x)
  local o = read("all_reduce", opts, "op group async_op")
  local handle = handle_of("all_reduce", o.group)
  local begun = dist.all_reduce(x, o.op, 0, o.async_op, handle)
  return o.async_op and Work(begun) or x
end

--- Reduces x into one rank's x; the other ranks' keep their elements.
---@param x accelerate.Tensor
---@param opts { dst: integer?, group_dst: integer?, op: string?, group: accelerate.ProcessGroup? }?
---  dst: a rank of the world; default the group's first
---@return accelerate.Tensor x
function M.reduce(x, opts)
  check_tensor("reduce", x)
  local o = read("reduce", opts, "dst group_dst op group")
  local handle, group = handle_of("reduce", o.group)
  return dist.reduce(x, root_of("reduce", group, o, "dst"), o.op, handle)
end

--- Overwrites x with one rank's.
---@param x accelerate.Tensor
---@param opts { src: integer?, group_src: integer?, group: accelerate.ProcessGroup? }? src: a rank
---  of the world; default the group's first
---@return accelerate.Tensor x
function M.broadcast(x, opts)
  check_tensor("broadcast", x)
  local o = read("broadcast", opts, "src group_src group")
  local handle, group = handle_of("broadcast", o.group)
  return dist.broadcast(x, root_of("broadcast", group, o, "src"), handle)
end

--- Joins the ranks' tensors along dim 1, in the group's order, on every rank.
---@param x accelerate.Tensor the same shape on every rank; 0-d counts as one element
---@param opts { group: accelerate.ProcessGroup? }?
---@return accelerate.Tensor
function M.all_gather(x, opts)
  check_tensor("all_gather", x)
  return dist.all_gather(x:detach(), (handle_of("all_gather", read("all_gather", opts, "group").group)))
end

--- Joins the ranks' tensors along dim 1 on one rank.
---@param x accelerate.Tensor
---@param opts { dst: integer?, group_dst: integer?, group: accelerate.ProcessGroup? }?
---@return accelerate.Tensor? joined nil on the other ranks
function M.gather(x, opts)
  check_tensor("gather", x)
  local o = read("gather", opts, "dst group_dst group")
  local handle, group = handle_of("gather", o.group)
  return dist.gather(x:detach(), root_of("gather", group, o, "dst"), handle)
end

--- Reduces x over the ranks and returns this rank's part of dim 1, whose size must be a multiple of
--- the group's.
---@param x accelerate.Tensor
---@param opts { op: string?, group: accelerate.ProcessGroup? }?
---@return accelerate.Tensor
function M.reduce_scatter(x, opts)
  check_tensor("reduce_scatter", x)
  local o = read("reduce_scatter", opts, "op group")
  return dist.reduce_scatter(x:detach(), o.op, (handle_of("reduce_scatter", o.group)))
end

-- The GPU that carries this rank's collectives.
local function own_gpu()
  local joined, index = dist.device_group()
  return joined and "cuda:" .. index or "cuda"
end

--- Gives every rank its part of dim 1 of one rank's tensor.
---@param x accelerate.Tensor? on the rank that sends; the others need not pass one
---@param opts { src: integer?, group_src: integer?, group: accelerate.ProcessGroup? }?
---@return accelerate.Tensor part
function M.scatter(x, opts)
  local o = read("scatter", opts, "src group_src group")
  local handle, group = handle_of("scatter", o.group)
  local root = root_of("scatter", group, o, "src")
  local sends = group.rank == root
  if sends then x = check_tensor("scatter", x):detach() end
  local facts = sends and { shape = x.shape, dtype = x.dtype, gpu = x.device ~= "cpu" } or nil
  if sends and (x:dim() == 0 or x.shape[1] % group.size ~= 0) then facts = { bad = true } end
  facts = core._deserialize(dist.broadcast_bytes(facts and core._serialize(facts), root, handle))
  if facts.bad and not sends then
    fail("scatter: rank %d's tensor cannot be divided", group.ranks[root + 1])
  end
  local like
  if not sends then
    facts.shape[1] = facts.shape[1] / group.size
    like = core.empty(facts.shape, { dtype = facts.dtype, device = facts.gpu and own_gpu() or "cpu" })
  end
  return dist.scatter(sends and x or nil, like, root, handle)
end

-- n equal rows for each rank, or the list that was given.
local function sizes(what, name, list, rows, group)
  if list == nil then
    if rows % group.size ~= 0 then
      fail("%s: %d rows do not divide by %d ranks; say how many go where: %s = { .. }", what, rows,
        group.size,
        name)
    end
    list = {}
    for k = 1, group.size do list[k] = rows / group.size end
  elseif #list ~= group.size then
    fail("%s: %s has %d entries; %s has %d ranks", what, name, #list, group.name, group.size)
  end
  return list
end

local ALL_TO_ALL = {
  group = GROUP, input_split_sizes = { "list", optional = true },
  output_split_sizes = { "list", optional = true },
}

--- Sends part k of dim 1 to rank k, and returns the parts that came, joined in the group's order.
---@param x accelerate.Tensor
---@param opts { input_split_sizes: integer[]?, output_split_sizes: integer[]?, group:
---  accelerate.ProcessGroup? }? rows to each rank, and from each; default: equal parts. They must
---  fit the other ranks' sizes
---@return accelerate.Tensor
function M.all_to_all(x, opts)
  check_tensor("all_to_all", x)
  pending.flush()
  local o = options.check("all_to_all", opts, ALL_TO_ALL)
  local handle, group = handle_of("all_to_all", o.group)
  if x:dim() == 0 then fail("all_to_all: a 0-d tensor has no rows to divide") end
  local rows, splits = x.shape[1], {}
  local gives = sizes("all_to_all", "input_split_sizes", o.input_split_sizes, rows, group)
  local gets = sizes("all_to_all", "output_split_sizes", o.output_split_sizes, rows, group)
  for k = 1, group.size do splits[k], splits[group.size + k] = gives[k], gets[k] end
  return dist.all_to_all(x:detach(), splits, handle)
end

-- The root's handle, rank in the group and rank in the world.
local function other_of(what, group, o, name)
  local root = root_of(what, group, o, name)
  if root == group.rank then fail("%s: rank %d is this rank itself", what, group.ranks[root + 1]) end
  return root, group.ranks[root + 1]
end

-- Runs `run` now, or with async_op later.
local function now_or_later(o, group, other, sends, run)
  if not o.async_op then return run() end
  return Work(nil, pending.add(group.ranks[group.rank + 1], other, sends, run))
end

--- Sends x to another rank, which calls recv with a tensor of the same shape and type.
---@param x accelerate.Tensor with async_op it may not be written before the work's wait
---@param opts { dst: integer?, group_dst: integer?, group: accelerate.ProcessGroup?, async_op:
---  boolean? } dst: a rank of the world. async_op: what is begun goes at the first wait or the next
---  collective of this module, whichever order two ranks begin it in
---@return accelerate.Work? work with async_op
function M.send(x, opts)
  check_tensor("send", x)
  local o = read("send", opts, "dst group_dst group async_op", type(opts) == "table" and opts.async_op)
  if not o.dst and not o.group_dst then fail("send: dst is missing: to which rank?") end
  local handle, group = handle_of("send", o.group)
  local root, other = other_of("send", group, o, "dst")
  return now_or_later(o, group, other, true, function() dist.send(x:detach(), root, handle) end)
end

--- Overwrites x with what another rank sends.
---@param x accelerate.Tensor with async_op it may not be read before the work's wait
---@param opts { src: integer?, group_src: integer?, group: accelerate.ProcessGroup?, async_op:
---  boolean? } src: a rank of the world. async_op: see `send`
---@return accelerate.Tensor|accelerate.Work x; with async_op the work to wait for
function M.recv(x, opts)
  check_tensor("recv", x)
  local o = read("recv", opts, "src group_src group async_op", type(opts) == "table" and opts.async_op)
  if not o.src and not o.group_src then fail("recv: src is missing: from which rank?") end
  local handle, group = handle_of("recv", o.group)
  local root, other = other_of("recv", group, o, "src")
  return now_or_later(o, group, other, false, function() return dist.recv(x, root, handle) end)
end

-- Options of a send or receive that is begun.
local function begun(what, opts, known)
  local o = read(what, opts, known, true)
  return { dst = o.dst, group_dst = o.group_dst, src = o.src, group_src = o.group_src, group = o.group,
    async_op = true }
end

--- Begins to send x, as `send` with async_op does.
---@param x accelerate.Tensor
---@param opts { dst: integer?, group_dst: integer?, group: accelerate.ProcessGroup? }
---@return accelerate.Work
function M.isend(x, opts)
  return M.send(x, begun("isend", opts, "dst group_dst group"))
end

--- Begins to receive into x, as `recv` with async_op does.
---@param x accelerate.Tensor
---@param opts { src: integer?, group_src: integer?, group: accelerate.ProcessGroup? }
---@return accelerate.Work
function M.irecv(x, opts)
  return M.recv(x, begun("irecv", opts, "src group_src group"))
end

--- Returns when all ranks of the group have come here.
---@param opts accelerate.ProcessGroup|{ group: accelerate.ProcessGroup? }|nil
function M.barrier(opts)
  if class.is(opts, groups.ProcessGroup) then opts = { group = opts } end
  dist.barrier((handle_of("barrier", read("barrier", opts, "group").group)))
end

-- PyTorch's order; functions that it gives a list to fill have none.
positions.functions(M, {
  all_reduce = "x [op] [group] [async_op]", reduce = "x [dst] [op] [group]",
  broadcast = "x [src] [group]", send = "x [dst] [group]", recv = "x [src] [group]",
  isend = "x [dst] [group]", irecv = "x [src] [group]",
})

return M
