--- Meshes: the ranks of the world as a block with named dims, and a group along each.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local groups = require "accelerate.distributed.group"
local options = require "accelerate.utils.options"

local fail = options.fail

-- Accelerate's order, the slowest first: neighbours in the world are neighbours in tp.
local ORDER = { "pp", "dp_replicate", "dp_shard", "cp", "sp", "tp" }
local JOINT = {
  dp = { "dp_replicate", "dp_shard" },
  dp_shard_cp = { "dp_shard", "cp" },
  dp_cp = { "dp_replicate", "dp_shard", "cp" },
}
local JOINTS = { "dp", "dp_shard_cp", "dp_cp" }

--- A mesh; `mesh.tp` and the like are this rank's groups along its dims, `mesh.dp`,
--- `mesh.dp_shard_cp` and `mesh.dp_cp` those over several.
---@class accelerate.Mesh
---@field dim_names string[] in order
---@field shape integer[] the size of each
---@field coordinate integer[] this rank's place along each, from 0
local Mesh = class("Mesh")

-- This rank's colour and key for a group along `dims`: ranks that agree in all other coordinates
-- are together.
local function place(mesh, dims)
  local colour, key = 0, 0
  for k, name in ipairs(mesh.dim_names) do
    if dims[name] then key = key * mesh.shape[k] + mesh.coordinate[k]
    else colour = colour * mesh.shape[k] + mesh.coordinate[k] end
  end
  return colour, key
end

local function make_group(mesh, name, dims)
  local set = {}
  for _, dim in ipairs(dims) do set[dim] = true end
  local colour, key = place(mesh, set)
  mesh[name] = groups.split(nil, colour, key, name)
  mesh[name].mesh = mesh[name].ranks
end

function Mesh:init(sizes)
  local world, total, rank = core.dist.world_size(), 1, core.dist.rank()
  self.dim_names, self.shape, self.coordinate = {}, {}, {}
  for _, name in ipairs(ORDER) do
    if sizes[name] then
      self.dim_names[#self.dim_names + 1], self.shape[#self.shape + 1] = name, sizes[name]
      total = total * sizes[name]
    end
  end
  if #self.shape == 0 then fail("mesh: expected at least one dim, such as { tp = 2 }") end
  if total ~= world then
    fail("mesh: the sizes multiply to %d (%s), and the run has %d ranks", total, self:_text(), world)
  end
  for k = #self.shape, 1, -1 do
    self.coordinate[k] = rank % self.shape[k]
    rank = (rank - self.coordinate[k]) / self.shape[k]
  end
  for _, name in ipairs(self.dim_names) do make_group(self, name, { name }) end
  for _, name in ipairs(JOINTS) do
    for _, dim in ipairs(JOINT[name]) do
      if self[dim] and not self[name] then make_group(self, name, JOINT[name]) end
    end
  end
end

--- Returns this rank's place along a dim, from 0; 0 where the mesh has not the dim.
---@param dim string
---@return integer
function Mesh:get_local_rank(dim)
  options.value("get_local_rank", "dim", dim, { "string", one_of = ORDER })
  for k, name in ipairs(self.dim_names) do
    if name == dim then return self.coordinate[k] end
  end
  return 0
end

function Mesh:_text()
  local parts = {}
  for k, name in ipairs(self.dim_names) do parts[k] = ("%s=%d"):format(name, self.shape[k]) end
  return table.concat(parts, " x ")
end

function Mesh:__tostring() return ("Mesh(%s)"):format(self:_text()) end

local SIZES = {}
for _, name in ipairs(ORDER) do SIZES[name] = { "integer", optional = true, min = 1 } end

local M = { Mesh = Mesh }

--- Divides the world into named dims, in Accelerate's order: pp, dp_replicate, dp_shard, cp, sp,
--- tp; the last varies fastest. The sizes must multiply to the number of ranks. Every rank
--- calls it.
---@param sizes { pp: integer?, dp_replicate: integer?, dp_shard: integer?, cp: integer?, sp:
---  integer?, tp: integer? }
---@return accelerate.Mesh
function M.mesh(sizes) return Mesh(options.check("mesh", sizes, SIZES)) end

return M
