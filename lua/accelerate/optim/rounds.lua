--- Steps that need whole matrices, where these are cut over ranks: each matrix comes together on
--- one rank of the group, which makes the result and sends each rank its elements of it.
---
--- It goes in rounds of as many matrices as there are ranks, of about one size, one for each rank.
--- So the ranks share the work, and none has more than one whole matrix at a time. A matrix goes to
--- the rank that has most of it, as far as that one has no other in the round.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"

local M = {}

---@class accelerate.optim.Cut a matrix that is cut over ranks
---@field part accelerate.optim.Part
---@field shape integer[]
---@field cost number of the work on it, in any unit
---@field device string where it comes together

---@class accelerate.optim.RoundWork
---@field dtype string in which elements travel
---@field give fun(cut: accelerate.optim.Cut): accelerate.Tensor this rank's elements, one dim, on
---  the cut's device; called only where there are some
---@field whole fun(cut: accelerate.optim.Cut, matrix: accelerate.Tensor): accelerate.Tensor what
---  becomes of a matrix, in its shape and type; called on one rank
---@field take fun(cut: accelerate.optim.Cut, piece: accelerate.Tensor) called with this rank's
---  elements of that, where there are some

local function count(cut, rank)
  local _, n = cut.part.of(rank)
  return n
end

-- The matrices of one round, each with its rank: rank + 1 -> cut. Larger ones choose first.
local function owned(list, first, ranks)
  local owners = {}
  for k = first, math.min(first + ranks - 1, #list) do
    local best
    for rank = 0, ranks - 1 do
      if not owners[rank + 1] and (not best or count(list[k], rank) > count(list[k], best)) then
        best = rank
      end
    end
    owners[best + 1] = list[k]
  end
  return owners
end

-- Whether every matrix of a round is whole where it is.
local function at_home(owners, ranks)
  for rank = 1, ranks do
    local cut = owners[rank]
    if cut and count(cut, rank - 1) < cut.shape[1] * cut.shape[2] then return false end
  end
  return true
end

-- Elements that this rank has of each owner's matrix, and those that each rank has of its own one.
local function splits_of(owners, group)
  local mine, own = {}, owners[group.rank + 1]
  for rank = 1, group.size do
    mine[rank] = owners[rank] and owners[rank].part.n or 0
    mine[group.size + rank] = own and count(own, rank - 1) or 0
  end
  return mine
end

local function reversed(splits, ranks)
  local list = {}
  for rank = 1, ranks do list[rank], list[ranks + rank] = splits[ranks + rank], splits[rank] end
  return list
end

local function joined(pieces, like)
  if #pieces == 1 then return pieces[1] end
  return #pieces > 1 and core.cat(pieces) or core.empty({ 0 }, like)
end

local function round(owners, group, like, work)
  local own, home = owners[group.rank + 1], at_home(owners, group.size)
  local splits, pieces = splits_of(owners, group), {}
  for rank = 1, group.size do
    if splits[rank] > 0 then pieces[#pieces + 1] = work.give(owners[rank]) end
  end
  local there = joined(pieces, like)
  if not home then there = core.dist.all_to_all(there, splits, group._handle) end
  if own then there = work.whole(own, there:view(own.shape)):contiguous():view(-1) end
  if not home then there = core.dist.all_to_all(there, reversed(splits, group.size), group._handle) end
  local at = 1
  for rank = 1, group.size do
    local n = splits[rank]
    if n > 0 then work.take(owners[rank], there:narrow(1, at, n)) end
    at = at + n
  end
end

-- The matrices that one group of ranks has on one device.
local function run(list, work)
  local group, like = list[1].part.group, { dtype = work.dtype, device = list[1].device }
  local order = {}
  for i, cut in ipairs(list) do order[cut] = i end
  table.sort(list, function(a, b)
    if a.cost ~= b.cost then return a.cost > b.cost end
    return order[a] < order[b]
  end)
  for first = 1, #list, group.size do
    core.scope(round, owned(list, first, group.size), group, like, work)
  end
end

--- Brings matrices together, works on them and gives the pieces back. A collective of the ranks
--- that they are cut over, which give alike lists.
---@param list accelerate.optim.Cut[]
---@param work accelerate.optim.RoundWork
function M.run(list, work)
  local function place(cut) return cut.part.group.name .. " " .. cut.device end
  for _, each in ipairs(lists.grouped(list, place)) do run(each, work) end
end

--- Returns the bytes that a rank sends in a step over a matrix that is cut, on average: its
--- elements to the rank that has the whole, and as that rank, for one matrix of `ranks`, theirs
--- back.
---@param numel integer
---@param size integer bytes of an element that travels
---@param ranks integer
---@return number
function M.bytes_sent(numel, size, ranks) return 2 * numel * size * (ranks - 1) / ranks ^ 2 end

return M
