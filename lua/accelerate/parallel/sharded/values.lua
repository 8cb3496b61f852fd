--- The values that this rank keeps of layouts whose values are cut from the start: no rank ever has
--- the whole model. All ranks get rank 0's values, as replicas do.
---
--- Where rank 0 knows how a parameter was drawn, every rank draws its own elements as rank 0 would;
--- where all ranks have a parameter in a file, each reads its own elements. What rank 0 has in
--- memory it sends, one parameter at a time.
local core = require "accelerate.core"
local Drawn = require "accelerate.deferred.drawn"
local deferred = require "accelerate.deferred"
local operations = require "accelerate.collectives.operations"

local M = {}

-- Every parameter of the layouts with its former values.
local function places_of(flats)
  local list = {}
  for _, flat in ipairs(flats) do
    for slot, former in ipairs(flat.former) do
      local from, n, piece = flat.layout:piece(slot)
      list[#list + 1] = { former = former, from = from, n = n, piece = piece, recipe = deferred.of(former) }
    end
  end
  return list
end

-- What rank 0 knows of each place: how it is drawn, or false.
local function described(places)
  local list = {}
  for i, place in ipairs(places) do
    list[i] = place.recipe and place.recipe.describe and place.recipe:describe() or false
  end
  return operations.broadcast_object_list(list)
end

-- Which places every rank has in a file.
local function in_files(places)
  local own = {}
  for i, place in ipairs(places) do own[i] = place.recipe and place.recipe.source and 1 or 0 end
  return core.dist.all_reduce(core.tensor(own), "min"):totable()
end

-- The whole value of rank 0.
local function received(place)
  local whole = place.former
  if deferred.of(whole) and core.dist.rank() > 0 then -- it need not be made to be replaced
    whole = core.empty(whole.shape, { dtype = whole.dtype, device = whole.device })
  end
  core.dist.broadcast(whole, 0)
  return whole
end

local function take(place, description, in_file)
  local former, piece = place.former, place.piece
  if in_file then
    if piece then place.recipe:fill(piece, place.from) end
  elseif description then
    if piece then Drawn.of_description(description, former.shape, former.device):fill(piece, place.from) end
  else
    local whole = received(place)
    if piece then piece:copy_(whole:reshape(-1):narrow(1, place.from + 1, place.n)) end
  end
end

local function take_all(places)
  local descriptions, files = described(places), in_files(places)
  core.no_grad(function()
    for i, place in ipairs(places) do
      core.scope(take, place, descriptions[i], files[i] == 1)
      places[i] = false -- compiled code may keep the list
    end
  end)
end

-- Gives the parameters what they had, where a piece cannot be written (its file is cut short, say):
-- a script that catches the error has no model with values that nobody wrote.
local function give_back(flats)
  for _, flat in ipairs(flats) do
    for slot, p in ipairs(flat.params) do p.data = flat.former[slot] end
  end
end

--- Writes this rank's pieces of layouts that were cut without values, and releases the parameters'
--- former memory. A collective.
---@param flats accelerate.Flat[]
function M.fill(flats)
  local places = places_of(flats)
  if #places == 0 then return end
  local ok, problem = pcall(take_all, places)
  if not ok then give_back(flats) end
  for _, flat in ipairs(flats) do flat.former = nil end
  if not ok then error(problem, 0) end
end

return M
