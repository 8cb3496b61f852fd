--- The file `.metadata` of PyTorch's distributed checkpoints: a pickle of a dozen classes, which
--- say for each value its shape, the boxes that it is cut into, and where each one lies.
---
---   Metadata { state_dict_metadata { NAME: TensorStorageMetadata { properties, size, chunks
---                                          [ChunkStorageMetadata { offsets, sizes }] }
---                                        | BytesStorageMetadata },
---              planner_data { NAME: path in the nested value },
---              storage_data { MetadataIndex { fqn, offset, index }: _StorageInfo { relative_path,
---                                          offset, length } },
---              storage_meta, version }
---
--- Reading makes no more of a file than it has bytes for: a hostile one may name one list a million
--- times, so what is looked at is counted.
local fs = require "accelerate.utils.fs"
local names = require "accelerate.files.pickle_names"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local pickle = require "accelerate.files.pickle"
local pieces = require "accelerate.checkpoint.pieces"
local writer = require "accelerate.files.pickle_writer"

local fail = options.fail

local M = {}

M.NAME = ".metadata"
local MOST = 2 ^ 30 -- bytes of a file that is read: one chunk of a value has about 100

local ROOM, FILES = "torch.distributed.checkpoint.metadata.", "torch.distributed.checkpoint.filesystem."

local CLASSES = { [FILES .. "_StorageInfo"] = true,
  [ROOM .. "_MEM_FORMAT_ENCODING"] = function(arguments) return arguments[1] end,
  ["torch.Size"] = function(arguments) return arguments[1] end,
  ["torch.serialization._get_layout"] = function(arguments) return arguments[1] end }
for name in ([[Metadata TensorStorageMetadata BytesStorageMetadata TensorProperties ChunkStorageMetadata
  MetadataIndex StorageMeta]]):gmatch("%S+") do
  CLASSES[ROOM .. name] = true
end

-- ---- reading

local Reader = {}
Reader.__index = Reader

-- Names are shown with at most 100 bytes.
function Reader:bad(message, ...)
  local facts = { ... }
  for i = 1, #facts do
    if type(facts[i]) == "string" then facts[i] = facts[i]:sub(1, 100) end
  end
  fail("%s: %s", self.where, message:format(unpack(facts)))
end

-- Counts what is looked at.
function Reader:spend(n)
  self.left = self.left - n
  if self.left < 0 then self:bad("it says more than a file of %d bytes can", self.bytes) end
end

local function shown(v) return type(v) == "table" and "a table" or options.show(v) end

-- The fields of an object of a class.
function Reader:fields(object, class, what)
  if type(object) ~= "table" or object.class ~= class or type(object.state) ~= "table" then
    self:bad("%s must be a %s, got %s", what, class:match "[^.]+$",
      type(object) == "table" and type(object.class) == "string" and "a " .. object.class:match "[^.]+$"
      or shown(object))
  end
  return object.state
end

-- A list of sizes, or of offsets.
function Reader:sizes(list, what, ...)
  if not pieces.is_shape(list) then self:bad(what .. " must be at most 8 sizes", ...) end
  self:spend(#list + 1)
  return list
end

function Reader:whole(v, what, name)
  if type(v) ~= "number" or v < 0 or v % 1 ~= 0 or v > 2 ^ 53 then
    self:bad("the %s of '%s' must be a number of bytes, got %s", what, name, shown(v))
  end
  return v
end

local function key_of(offsets) return offsets and table.concat(offsets, ",") or "" end

-- Where the pieces of each value lie: name -> key_of(offsets) -> place.
local function places_of(self, storage)
  local places = {}
  if type(storage) ~= "table" then self:bad("storage_data must be a dict, got %s", shown(storage)) end
  for index, info in next, storage do
    self:spend(4)
    local at = self:fields(index, ROOM .. "MetadataIndex", "a key of storage_data")
    local place = self:fields(info, FILES .. "_StorageInfo", "an entry of storage_data")
    if type(at.fqn) ~= "string" then self:bad("the fqn of a MetadataIndex is no text") end
    local name = at.fqn
    local offsets = at.offset and self:sizes(at.offset, "the offset of '%s'", name)
    if not fs.is_plain_name(place.relative_path) then
      self:bad("'%s' must be in a file beside it, got %s", name, shown(place.relative_path))
    end
    if place.transform_descriptors and next(place.transform_descriptors) ~= nil then
      self:bad("'%s' is written through %s, which is not read here; expected plain files", name,
        shown(place.transform_descriptors[1]))
    end
    places[name] = places[name] or {}
    places[name][key_of(offsets)] = { file = place.relative_path,
      at = self:whole(place.offset, "offset", name),
      n = self:whole(place.length, "length", name) }
  end
  return places
end

local function check_dtype(self, properties, name)
  local state = type(properties) == "table" and properties.class == ROOM .. "TensorProperties"
    and properties.state
  local dtype = type(state) == "table" and (state[1] or state.dtype)
  if type(dtype) ~= "string" or names.find("torch", dtype) ~= dtype then
    self:bad("the properties of '%s' name no dtype", name)
  end
  return dtype
end

-- The pieces of a tensor, each with its place.
local function chunks_of(self, name, list, places)
  local found = {}
  if type(list) ~= "table" then self:bad("the chunks of '%s' must be a list, got %s", name, shown(list)) end
  for i, chunk in ipairs(list) do
    local state = self:fields(chunk, ROOM .. "ChunkStorageMetadata", "a chunk")
    local offsets = self:sizes(state.offsets, "the offsets of chunk %d of '%s'", i, name)
    local sizes = self:sizes(state.sizes, "the sizes of chunk %d of '%s'", i, name)
    local place = places[key_of(offsets)]
    if not place then self:bad("chunk %d of '%s' lies nowhere: storage_data has no entry for it", i, name) end
    found[i] = { offsets = offsets, sizes = sizes, place = place }
  end
  return found
end

-- The path of a name in the nested value that was saved, or nil.
local function path_of(self, planner, name)
  local path = type(planner) == "table" and planner[name]
  if type(path) ~= "table" then return nil end
  self:spend(#path + 1)
  for i = 1, #path do
    local key = path[i]
    if type(key) ~= "string" and (type(key) ~= "number" or key < 0 or key % 1 ~= 0 or key > 2 ^ 53) then
      self:bad("the path of '%s' in planner_data has %s; expected names and positions", name, shown(key))
    end
  end
  return path
end

local function entry_of(self, name, entry, places)
  local class = type(entry) == "table" and entry.class
  if class == ROOM .. "BytesStorageMetadata" then
    if not places[""] then self:bad("'%s' lies nowhere: storage_data has no entry for it", name) end
    return { place = places[""] }
  end
  local state = self:fields(entry, ROOM .. "TensorStorageMetadata", ("'%s'"):format(name))
  return { dtype = check_dtype(self, state.properties, name),
    shape = self:sizes(state.size, "the size of '%s'",
    name), chunks = chunks_of(self, name, state.chunks, places) }
end

---@class accelerate.dcp.Place
---@field file string a name in the folder
---@field at integer bytes, from 0
---@field n integer

---@class accelerate.dcp.Entry
---@field name string
---@field dtype string? nil: it is no tensor
---@field shape integer[]?
---@field chunks { offsets: integer[], sizes: integer[], place: accelerate.dcp.Place }[]?
---@field place accelerate.dcp.Place? of what is no tensor
---@field path (string|integer)[]? in the nested value that was saved

--- Returns what a `.metadata` says, by name in their order.
---@param path string
---@param where string what messages begin with
---@return accelerate.dcp.Entry[]
function M.read(path, where)
  local text, why = fs.read(path, MOST)
  if not text then fail("%s: %s", where, why) end
  local self = setmetatable({ where = ("%s: '%s'"):format(where, path), bytes = #text, left = #text }, Reader)
  local value = pickle.read(text, self.where, { classes = CLASSES })
  local state = self:fields(value, ROOM .. "Metadata", "it")
  if type(state.state_dict_metadata) ~= "table" then self:bad("state_dict_metadata must be a dict") end
  local places, list = places_of(self, state.storage_data), {}
  for name in next, state.state_dict_metadata do
    if type(name) ~= "string" then self:bad("a name in state_dict_metadata is %s", shown(name)) end
  end
  for i, name in ipairs(ordered.sorted_keys(state.state_dict_metadata)) do
    self:spend(2)
    local entry = entry_of(self, name, state.state_dict_metadata[name], places[name] or {})
    entry.name, entry.path = name, path_of(self, state.planner_data, name)
    list[i] = entry
  end
  return list
end

-- ---- writing

local text, integer = writer.text, writer.integer

-- The names that a file uses, each remembered once under its number.
local NAMES = { ROOM .. "Metadata", ROOM .. "TensorStorageMetadata", ROOM .. "BytesStorageMetadata",
  ROOM .. "TensorProperties", ROOM .. "ChunkStorageMetadata", ROOM .. "MetadataIndex",
  ROOM .. "_MEM_FORMAT_ENCODING", FILES .. "_StorageInfo", "torch.Size", "torch.serialization._get_layout" }
local NUMBERS = {}
for i, name in ipairs(NAMES) do NUMBERS[name] = i - 1 end

local function name_code(name) return "h" .. string.char(NUMBERS[name]) end

local function tuple(items, encode)
  local out = { "(" }
  for i, item in ipairs(items) do out[i + 1] = encode(item) end
  out[#out + 1] = "t"
  return table.concat(out)
end

local function size(list) return name_code "torch.Size" .. tuple(list, integer) .. "\133R" end

-- An object of a class with its fields, which are pickled: { name, code, name, code, .. }.
local function object(class, fields)
  for i = 1, #fields, 2 do fields[i] = text(fields[i]) end
  return name_code(class) .. ")\129}(" .. table.concat(fields) .. "ub"
end

-- dtype, layout, requires_grad, memory_format, pin_memory
local function properties(dtype)
  return name_code(ROOM .. "TensorProperties") .. ")\129(ctorch\n" .. dtype .. "\n" ..
    name_code "torch.serialization._get_layout" .. text "torch.strided" .. "\133R\137" ..
    name_code(ROOM .. "_MEM_FORMAT_ENCODING") .. integer(0) .. "\133R\137tb"
end

local function value_code(entry)
  if not entry.dtype then return name_code(ROOM .. "BytesStorageMetadata") .. ")\129}b" end
  local chunks = { "](" }
  for _, chunk in ipairs(entry.chunks) do
    chunks[#chunks + 1] = object(ROOM .. "ChunkStorageMetadata",
      { "offsets", size(chunk.offsets), "sizes", size(chunk.sizes) })
  end
  chunks[#chunks + 1] = "e"
  return object(ROOM .. "TensorStorageMetadata", { "properties", properties(entry.dtype), "size",
    size(entry.shape), "chunks", table.concat(chunks) })
end

local function place_code(name, place, offsets, index)
  local key = { "fqn", text(name), "offset", offsets and size(offsets) or "N", "index",
    index and integer(index) or "N" }
  return object(ROOM .. "MetadataIndex", key) .. object(FILES .. "_StorageInfo",
    { "relative_path", text(place.file), "offset", integer(place.at), "length", integer(place.n) })
end

local function places_code(entry)
  if not entry.dtype then return place_code(entry.name, entry.place) end
  local out = {}
  for i, chunk in ipairs(entry.chunks) do
    out[i] = place_code(entry.name, chunk.place, chunk.offsets, i - 1)
  end
  return table.concat(out)
end

local function path_item(key) return type(key) == "number" and integer(key) or text(key) end

-- A dict with what fn gives for each entry.
local function dict(entries, fn)
  local out = { "}(" }
  for _, entry in ipairs(entries) do out[#out + 1] = fn(entry) end
  out[#out + 1] = "u"
  return table.concat(out)
end

--- Returns the bytes of a `.metadata`.
---@param entries accelerate.dcp.Entry[]
---@return string
function M.encode(entries)
  local out = { "\128\2" }
  for i, name in ipairs(NAMES) do
    out[#out + 1] = ("c%s\n%s\nq%s0"):format(name:match "^(.*)%.", name:match "[^.]+$",
      string.char(i - 1))
  end
  out[#out + 1] = object(ROOM .. "Metadata", {
    "state_dict_metadata", dict(entries, function(entry) return text(entry.name) .. value_code(entry) end),
    "planner_data", dict(entries, function(entry)
      return text(entry.name) .. tuple(entry.path, path_item)
    end),
    "storage_data", dict(entries, places_code), "storage_meta", "N", "version", text "1.0.0" })
  out[#out + 1] = "."
  return table.concat(out)
end

return M
