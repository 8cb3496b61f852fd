--- GGUF files: their settings and tensors, of one file or of all parts of a model.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local encodings = require "accelerate.quantisation.encodings"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"

local fail = options.fail

---@class accelerate.models.GgufTensor
---@field name string
---@field type string "F32", "Q4_K" and so on
---@field shape integer[] row-major
---@field file userdata
local Tensor = class "GgufTensor"

function Tensor:init(file, entry)
  self.file, self.name, self.type, self.shape = file, entry.name, entry.type, entry.shape
end

--- Returns the elements over the mapped file: blocks as uint8, with bytes in place of numbers.
---@return accelerate.Tensor
function Tensor:lend() return self.file:_lend(self.name) end

--- Returns whether the tensor rests in blocks that products read.
---@return boolean
function Tensor:is_encoded() return encodings.list[self.type] ~= nil end

--- Returns the numbers, decoded where they rest in blocks.
---@return accelerate.Tensor
function Tensor:read()
  local t = self:lend()
  if not self:is_encoded() then return t end
  local cols, rows = self.shape[#self.shape], 1
  for d = 1, #self.shape - 1 do rows = rows * self.shape[d] end
  return encodings.decode({ name = self.type, rows = rows, cols = cols, size = encodings.SIZE, codes = t })
    :view(unpack(self.shape))
end

---@class accelerate.models.GgufFile
---@field where string what messages begin with
---@field path string
---@field keys string[] of the settings
---@field tensors table<string, accelerate.models.GgufTensor>
---@field names string[] of the tensors, in order
local File = class "GgufFile"

-- The paths of all parts of a model whose first part says how many there are.
local function part_paths(where, path, count)
  local stem = path:match "^(.*)%-%d%d%d%d%d%-of%-%d%d%d%d%d%.gguf$"
  if not stem then
    fail("%s: split.count is %d, but the file's name does not end in -00001-of-%05d.gguf", where, count,
      count)
  end
  local list = {}
  for i = 1, count do
    list[i] = ("%s-%05d-of-%05d.gguf"):format(stem, i, count)
    if not fs.exists(list[i]) then fail("%s: a part of the model is missing: %s", where, list[i]) end
  end
  return list
end

---@param where string
---@param path string
function File:init(where, path)
  self.path, self.where = path, where .. ": " .. path
  self.files = { core._gguf_open(path) }
  self.keys = self.files[1]:keys()
  local parts, number = self:get "split.count", self:get "split.no"
  if type(parts) == "number" and parts > 1 then
    if number ~= 0 then
      fail("%s: it is part %g of %d of a model; give the first one", self.where, number + 1, parts)
    end
    for i, other in ipairs(part_paths(self.where, path, parts)) do
      if i > 1 then self.files[i] = core._gguf_open(other) end
    end
  end
  self.tensors, self.names = {}, {}
  for _, file in ipairs(self.files) do
    for _, entry in ipairs(file:tensors()) do
      if self.tensors[entry.name] then
        fail("%s: the tensor '%s' is in two parts of the model", self.where, entry.name)
      end
      self.tensors[entry.name] = Tensor(file, entry)
      self.names[#self.names + 1] = entry.name
    end
  end
end

--- Returns the value of a setting: a number, a text, a boolean, a list, or a text for a list of
--- bytes; nil: there is none.
---@param key string
---@return any
function File:get(key) return self.files[1]:get(key) end

--- Raises where a file was truncated since it was opened.
function File:check()
  for _, file in ipairs(self.files) do file:_check() end
end

return File
