--- PyTorch's distributed checkpoints (torch.distributed.checkpoint), read and written natively: a
--- folder with `.metadata` and files `__<rank>_<i>.distcp`, in which archives of torch.save follow
--- each other, one for each box of a tensor.
---
--- What we cut is a run of the flattened value, which is up to 2 * dims - 1 boxes. The layout of
--- all ranks follows from the plan of the cut, and the length of an archive from the shape in it:
--- so rank 0 writes `.metadata` without asking anybody.
local boxes = require "accelerate.checkpoint.boxes"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local lists = require "accelerate.utils.lists"
local metadata = require "accelerate.checkpoint.dcp_metadata"
local options = require "accelerate.utils.options"
local pieces = require "accelerate.checkpoint.pieces"
local torch = require "accelerate.files.torch"

local fail = options.fail

local M = {}

local ALIGNMENT = 64 -- of the archives in a file

-- ---- reading

-- A function that gives the value and the archive at a place. The first archive of each file stays
-- open, and the file mapped, until the reader is closed.
local function loader(folder, reader)
  local first = {}
  reader:holds(function()
    for _, archive in pairs(first) do archive:close() end
  end)
  return function(place, lent)
    local path = fs.join(folder, place.file)
    first[path] = first[path] or core._zip_open(path, "load", place.at, place.n)
    return torch.load(path, nil, lent, nil, place.at, place.n, first[path])
  end
end

local function lend_chunk(load, entry, chunk)
  local t, archive = load(chunk.place, true)
  if not core.is_tensor(t) or t.dtype ~= entry.dtype or not lists.same(t.shape, chunk.sizes) then
    fail("byte %.0f holds %s; %s says %s %s", chunk.place.at, core.is_tensor(t)
      and t.dtype .. " " .. lists.shape_text(t) or options.show(t), metadata.NAME, entry.dtype,
      lists.shape_text(chunk.sizes))
  end
  return t, function()
    archive:_check()
    archive:close()
  end
end

local function object_at(load, place)
  local value, archive = load(place)
  archive:close()
  return value
end

--- Returns a reader of the folder. Only `.metadata` is read at once.
---@param folder string
---@param where string? what messages begin with; default "load"
---@return accelerate.IntervalReader
function M.open(folder, where)
  local reader = pieces.new(where or "load", folder)
  local load = loader(folder, reader)
  for _, entry in ipairs(metadata.read(fs.join(folder, metadata.NAME), reader.where)) do
    reader:set_path(entry.name, entry.path)
    if entry.place then
      reader:add_object(entry.name, function() return object_at(load, entry.place) end)
    else
      reader:add_name(entry.name, entry.dtype, entry.shape, fs.join(folder, metadata.NAME))
    end
    for _, chunk in ipairs(entry.chunks or {}) do
      reader:add(entry.name, entry.dtype, entry.shape, { file = fs.join(folder, chunk.place.file),
        offsets = chunk.offsets, sizes = chunk.sizes,
        lend = function() return lend_chunk(load, entry, chunk) end })
    end
  end
  return reader
end

-- ---- writing

---@class accelerate.dcp.Value what all ranks know of a value, and the elements that one has
---@field name string "model.0.weight"
---@field path (string|integer)[]? in the nested value; default: the name up to its first dot, and
---  the rest
---@field dtype string? nil: an object
---@field shape integer[]?
---@field cut table<integer, { from: integer, n: integer }>? by rank, from 0: the run that it writes
---@field tensor accelerate.Tensor? 1-d: the elements of this rank's run
---@field value any? of an object, on rank 0, which writes it; nil is None

local function file_of(rank) return ("__%d_0.distcp"):format(rank) end

local function next_place(at) return math.ceil(at / ALIGNMENT) * ALIGNMENT end

local function default_path(name)
  local first, rest = name:match "^([^.]*)%.(.+)$"
  return first and { first, rest } or { name }
end

-- The boxes that a rank writes of a value. An empty value is one empty box of rank 0.
local function boxes_at(value, rank)
  local run = value.cut[rank]
  if boxes.count(value.shape) == 0 then
    local zeros = {}
    for d = 1, #value.shape do zeros[d] = 0 end
    return rank == 0 and { { offsets = zeros, sizes = value.shape } } or {}
  end
  return run and boxes.of(value.shape, run.from, run.n) or {}
end

-- The length of an archive, which many boxes have in common.
local function measure()
  local known, bytes = {}, {}
  return function(dtype, sizes)
    bytes[dtype] = bytes[dtype] or core.empty({ 0 }, { dtype = dtype }):element_size()
    local key = dtype .. table.concat(sizes, ",")
    if not known[key] then
      local count = boxes.count(sizes)
      known[key] = core._zip_length(torch.members_of_tensor(dtype, sizes, count, count * bytes[dtype]))
    end
    return known[key]
  end
end

local function check_value(where, value)
  if type(value.name) ~= "string" or value.dtype and (not pieces.is_shape(value.shape)
    or type(value.cut) ~= "table") then
    fail("%s: a value must have a name and, when it is a tensor, its shape and cut, got %s", where,
      options.show(value))
  end
end

local function object_members(where, value)
  if value.value == nil then return torch.members_of_none() end
  return torch.members(value.value, ("%s: '%s'"):format(where, value.name))
end

-- The archives of this rank, in their order, each as its members.
local function own_archives(where, rank, values)
  local archives = {}
  for _, value in ipairs(values) do
    local at = 1
    for _, box in ipairs(value.dtype and boxes_at(value, rank) or {}) do
      local count = boxes.count(box.sizes)
      if not value.tensor or value.tensor.dtype ~= value.dtype or value.tensor:numel() < at + count - 1 then
        fail("%s: '%s' needs %s elements of %s on rank %d, got %s", where, value.name,
          tostring(value.cut[rank] and value.cut[rank].n or 0), value.dtype, rank, options.show(value.tensor))
      end
      archives[#archives + 1] = torch.members_of_tensor(value.dtype, box.sizes, count,
        value.tensor:narrow(1, at, count))
      at = at + count
    end
    if not value.dtype and rank == 0 then
      archives[#archives + 1] = object_members(where, value)
    end
  end
  return archives
end

-- What `.metadata` says of the values, in which the places of all ranks' archives are.
local function entries_of(where, ranks, values)
  local length_of, ends, entries = measure(), {}, {}
  local function place(rank, n)
    local at = next_place(ends[rank] or 0)
    ends[rank] = at + n
    return { file = file_of(rank), at = at, n = n }
  end
  for i, value in ipairs(values) do
    local entry = { name = value.name, path = value.path or default_path(value.name), dtype = value.dtype,
      shape = value.shape, chunks = {} }
    if not value.dtype then
      entry.place = place(0, core._zip_length(object_members(where, value)))
    end
    for rank = 0, value.dtype and ranks - 1 or -1 do
      for _, box in ipairs(boxes_at(value, rank)) do
        entry.chunks[#entry.chunks + 1] = { offsets = box.offsets, sizes = box.sizes,
          place = place(rank, length_of(value.dtype, box.sizes)) }
      end
    end
    entries[i] = entry
  end
  return entries
end

--- Writes a rank's part of a folder; rank 0 writes `.metadata`, too. All ranks give the same values
--- in the same order, each with its own elements; nothing is exchanged.
---@param folder string which exists
---@param rank integer
---@param ranks integer
---@param values accelerate.dcp.Value[]
---@param save userdata? a save (core._save_new) that the files are added to; nil: they are written
function M.write(folder, rank, ranks, values, save)
  local where = "dcp.write"
  for _, value in ipairs(values) do check_value(where, value) end
  core._zips_write(fs.join(folder, file_of(rank)), own_archives(where, rank, values), "save", save)
  if rank ~= 0 then return end
  core._parts_write(fs.join(folder, metadata.NAME), { metadata.encode(entries_of(where, ranks, values)) },
    "save",
    save)
end

return M
