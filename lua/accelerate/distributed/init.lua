--- Groups of ranks, meshes, and collectives on tensors, with the names of torch.distributed.
---
---   local dist = require "accelerate.distributed"
---   local mesh = dist.mesh { dp_shard = 2, tp = 2 }
---   dist.all_reduce(x, { op = "sum", group = mesh.tp })
---
--- Ranks are names and count from 0; `src` and `dst` are ranks of the world, also in a group. Every
--- rank of a group calls its collectives in the same order. The tensors of all ranks are on the
--- CPU, or each on its rank's GPU. Collectives of GPU tensors run in the order of their calls, in
--- all groups together. Of ranks on several machines those of a group meet in shared memory where
--- they are on one machine, else through connections that they open when the group is made.
local core = require "accelerate.core"
local collectives = require "accelerate.distributed.collectives"
local groups = require "accelerate.distributed.group"
local mesh = require "accelerate.distributed.mesh"
local properties = require "accelerate.utils.properties"

local M = {
  new_group = groups.new_group, destroy_process_group = groups.destroy_process_group, mesh = mesh.mesh,
  ProcessGroup = groups.ProcessGroup,
}
for name, fn in pairs(collectives) do M[name] = fn end

--- Returns this rank's number in a group; -1 where it is not in it.
---@param group accelerate.ProcessGroup? default the world
---@return integer
function M.get_rank(group)
  if group and group.rank == -1 then return -1 end
  return select(2, groups.handle_of("get_rank", group)).rank
end

--- Returns the number of ranks of a group; -1 where this rank is not in it.
---@param group accelerate.ProcessGroup? default the world
---@return integer
function M.get_world_size(group)
  if group and group.rank == -1 then return -1 end
  return select(2, groups.handle_of("get_world_size", group)).size
end

--- Returns the world ranks of a group, in its order.
---@param group accelerate.ProcessGroup? default the world
---@return integer[]
function M.get_process_group_ranks(group)
  local ranks = {}
  for k, rank in ipairs((group or groups.world()).ranks) do ranks[k] = rank end
  return ranks
end

--- Returns what carries the memory of the CPU between the ranks: "shm", "mpi", "tcp"; "alone" with
--- one rank.
---@return string
function M.get_backend() return core.dist.transport() end

return properties.strict("accelerate.distributed", M, nil, {
  functional = function() return require "accelerate.distributed.functional" end,
  world = groups.world,
})
