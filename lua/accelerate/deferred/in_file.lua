--- Values that rest in a file: a tensor without memory knows where its elements are, and reads
--- those that are wanted from the mapped file.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"

---@class accelerate.deferred.Source where a tensor is, without its elements in memory
---@field path string for messages
---@field lend fun(): accelerate.Tensor its elements over the mapped file
---@field check fun() raises where the file was truncated meanwhile
---@field drop? fun() gives the pages back that were read

---@class accelerate.deferred.InFile
---@field source accelerate.deferred.Source
---@field transposed boolean whether the file has the matrix the other way round
---@field dtypes string[] the types that the file's elements are converted to, one after the other
---@field dtype string the last of these
---@field device string
local InFile = class("InFile")

---@param source accelerate.deferred.Source
---@param dtype string
---@param device string
---@param transposed boolean?
function InFile:init(source, dtype, device, transposed)
  self.source, self.transposed = source, transposed or false
  self.dtypes, self.dtype, self.device = { dtype }, dtype, device
end

---@return accelerate.deferred.InFile
function InFile:copy() return self:to(self.dtype, self.device) end

--- Returns the recipe of the values after a conversion.
---@param dtype string
---@param device string
---@return accelerate.deferred.InFile
function InFile:to(dtype, device)
  local result = InFile(self.source, self.dtypes[1], device, self.transposed)
  for i = 2, #self.dtypes do result.dtypes[i] = self.dtypes[i] end
  if dtype ~= self.dtype then result.dtypes[#result.dtypes + 1] = dtype end
  result.dtype = dtype
  return result
end

-- Elements from, from + 1 .. of the flattened transpose of a matrix: the columns that they are in.
local function of_transpose(matrix, from, n)
  local length = matrix:size(1)
  local first = math.floor(from / length)
  local last = math.ceil((from + n) / length)
  local rows = matrix:narrow(2, first + 1, last - first):t():contiguous()
  return rows:view(-1):narrow(1, from - first * length + 1, n)
end

--- Writes the elements from `from` (from 0) on of the flattened tensor.
---@param into accelerate.Tensor 1-d, contiguous
---@param from integer
function InFile:fill(into, from)
  local n = into:numel()
  if n == 0 then return end
  core.no_grad(core.scope, function()
    local value = self.source.lend()
    local run = self.transposed and of_transpose(value, from, n) or value:reshape(-1):narrow(1, from + 1, n)
    for i = 1, #self.dtypes - 1 do run = run:to(self.dtypes[i]) end
    into:copy_(run)
  end)
  self.source.check()
  if self.source.drop then self.source.drop() end
end

--- Reads all values: called by the first use.
---@param into accelerate.Tensor 1-d
function InFile:make(into) self:fill(into, 0) end

return InFile
