--- Process groups: some ranks of the world, in an order.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

--- A process group, as `distributed.new_group` and `distributed.mesh` make it. It is left when it
--- is collected, or by `distributed.destroy_process_group`.
---@class accelerate.ProcessGroup
---@field rank integer this rank's number in the group, from 0; -1: it is in none of its ranks
---@field size integer how many ranks it has
---@field ranks integer[] each one's rank in the world, in the group's order
---@field name string "tp[0,1]"; "world" for the group of all ranks
---@field mesh integer[]? of a mesh's group: its ranks
local ProcessGroup = class("ProcessGroup")
class.optional(ProcessGroup, "mesh")

-- `handle`: the core's group; nil: the world, or (rank -1) none.
function ProcessGroup:init(handle, facts)
  self._handle, self.rank, self.size = handle, facts.rank, facts.size
  self.ranks, self.name = facts.ranks, facts.name
end

function ProcessGroup:__tostring()
  local here = self.rank < 0 and "this rank is not in it" or ("rank %d of %d"):format(self.rank, self.size)
  return ("ProcessGroup(%s, %s)"):format(self.name, here)
end

function ProcessGroup:__len() return self.size end

local M = { ProcessGroup = ProcessGroup }

local world

--- Returns the group of all ranks.
---@return accelerate.ProcessGroup
function M.world()
  local rank, size, _, ranks = core.dist.group_facts()
  if not world or world.size ~= size or world.rank ~= rank then
    world = ProcessGroup(nil, { rank = rank, size = size, ranks = ranks, name = "world" })
  end
  return world
end

--- Returns the core's group of a group or nil (the world), and the group. Raises where this rank is
--- not in it, or has left it.
---@param what string the function that the script called
---@param group accelerate.ProcessGroup?
---@return userdata? handle
---@return accelerate.ProcessGroup group
function M.handle_of(what, group)
  if group == nil then return nil, M.world() end
  if not class.is(group, ProcessGroup) then
    fail("%s: group must be a ProcessGroup (see distributed.new_group), got %s", what, options.show(group))
  end
  if group._left then fail("%s: %s was destroyed by destroy_process_group", what, group.name) end
  if group.rank < 0 then
    fail("%s: rank %d is not in %s, and cannot take part in its collectives", what, core.dist.rank(),
      group.name)
  end
  return group._handle, group
end

--- Divides a group: ranks with the same colour make a new one, ordered by key, then by rank. A
--- collective of `from`.
---@param from accelerate.ProcessGroup? default the world
---@param colour integer 0 or more; -1: this rank is in none of the new groups
---@param key integer
---@param name string the beginning of the new group's name
---@return accelerate.ProcessGroup? group nil for colour -1
function M.split(from, colour, key, name)
  local handle = M.handle_of("new_group", from)
  local made = core.dist.group_split(handle, colour, key, name)
  if not made then return nil end
  local rank, size, full, ranks = core.dist.group_facts(made)
  return ProcessGroup(made, { rank = rank, size = size, ranks = ranks, name = full })
end

-- Checks a list of world ranks; returns it sorted, as torch.distributed does.
local function check_ranks(ranks)
  local size, seen, sorted = core.dist.world_size(), {}, {}
  if type(ranks) ~= "table" or #ranks == 0 then
    fail("new_group: expected a list of ranks, such as { 0, 1 }, got %s", options.show(ranks))
  end
  for k, rank in ipairs(ranks) do
    if type(rank) ~= "number" or rank % 1 ~= 0 or rank < 0 or rank >= size then
      fail("new_group: entry %d is %s; the world's ranks are 0 to %d", k, options.show(rank), size - 1)
    end
    if seen[rank] then fail("new_group: rank %d is in the list twice", rank) end
    seen[rank], sorted[k] = true, rank
  end
  table.sort(sorted)
  return sorted
end

-- All ranks must give the same list: else some would wait for others that never come.
local function agree(text)
  local all = core.dist.all_gather_bytes(text)
  for rank = 2, #all do
    if all[rank] ~= all[1] then
      fail("new_group: all ranks must give the same list: rank 0 gives { %s }, rank %d { %s }", all[1],
        rank - 1, all[rank])
    end
  end
end

local NEW = { name = { "string", default = "group" } }

--- Makes a group of some ranks of the world. Every rank calls it, also those that are not in it, at
--- the same point.
---@param ranks integer[]? ranks of the world, from 0; their order does not matter; default: all
---@param opts { name: string? }? name: how messages call it, with its ranks behind; default "group"
---@return accelerate.ProcessGroup group on ranks that are not in it, one whose `rank` is -1
function M.new_group(ranks, opts)
  opts = options.check("new_group", opts, NEW)
  local _, all = M.handle_of("new_group")
  local members, key = check_ranks(ranks or all.ranks), -1
  local text = table.concat(members, ", ")
  if all.size > 1 then agree(text) end
  for k, rank in ipairs(members) do
    if rank == all.rank then key = k - 1 end
  end
  local group = M.split(nil, key < 0 and -1 or 0, key, opts.name)
  if group then return group end
  return ProcessGroup(nil, {
    rank = -1, size = #members, ranks = members,
    name = ("%s[%s]"):format(opts.name, table.concat(members, ",")),
  })
end

--- Leaves a group: its collectives raise from now on. The other ranks are not waited for.
---@param group accelerate.ProcessGroup
function M.destroy_process_group(group)
  if group == nil then
    core.dist.leave()
    return
  end
  M.handle_of("destroy_process_group", group)
  if not group._handle then fail("destroy_process_group: the world is left by destroy_process_group()") end
  core.dist.group_release(group._handle)
  group._left = true
end

return M
