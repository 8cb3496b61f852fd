--- PNG pictures (w3.org/TR/png) from tensors: 8 bits a channel, no filter, zlib's compression.
local ffi = require "ffi"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

ffi.cdef [[
int compress2(char *dest, unsigned long *destLen, const char *source, unsigned long sourceLen, int level);
unsigned long compressBound(unsigned long sourceLen);
unsigned long crc32(unsigned long crc, const char *buf, unsigned int len); /* zlib's */
]]

local fail = options.fail

local M = {}

local function big_endian(n)
  return string.char(math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256,
    n % 256)
end

local function chunk(kind, data)
  local text = kind .. data
  return big_endian(#data) .. text .. big_endian(tonumber(ffi.C.crc32(0, text, #text)))
end

local function deflate(bytes, n)
  local size = ffi.new("unsigned long[1]", ffi.C.compressBound(n))
  local room = ffi.new("char[?]", size[0])
  if ffi.C.compress2(room, size, bytes, n, 6) ~= 0 then
    error("png: zlib could not compress the picture", 0)
  end
  return ffi.string(room, size[0])
end

--- Returns the positions of height, width, channels and picture number in formats such as "CHW",
--- "NHWC", "HW".
local function by_letters(where, x, formats)
  local at = {}
  for i = 1, #formats do at[formats:sub(i, i)] = i end
  local ok = at.H and at.W and #formats == x:dim()
  for letter in pairs(at) do ok = ok and ("NCHW"):find(letter, 1, true) end
  if not ok then
    fail("%s: dataformats must name the dims of a tensor of shape [%s] with H, W and, where there are, C " ..
      "and N; got '%s'", where,
      table.concat(x.shape, ", "), formats)
  end
  return at
end

--- Returns the pictures of a tensor, each as a contiguous uint8 tensor [H, W, C]. Floating-point
--- values are clamped to 0..1; NaN shows as black.
---@param where string start of messages
---@param x accelerate.Tensor
---@param formats string? order of the dims; default HW, CHW or NCHW by their number
---@return accelerate.Tensor[]
function M.pictures(where, x, formats)
  local dims = x:dim()
  if not formats then
    formats = ({ nil, "HW", "CHW", "NCHW" })[dims]
    if not formats then
      fail("%s: a picture has 2 dims (H, W), 3 (C, H, W) or, for several, 4 (N, C, H, " ..
        "W); got a tensor of shape [%s]", where,
        table.concat(x.shape, ", "))
    end
  end
  local at = by_letters(where, x, formats)
  x = x:detach():to("cpu")
  if x.dtype == "bool" then x = x:to("uint8") * 255
  elseif core._is_float(x) then
    x = ((x:to("float32")):nan_to_num(0):clamp(0, 1) * 255):round():to("uint8")
  else x = x:clamp(0, 255):to("uint8") end
  local order = {}
  for _, letter in ipairs { "N", "H", "W", "C" } do
    if at[letter] then order[#order + 1] = at[letter] end
  end
  x = x:permute(order)
  if not at.C then x = x:unsqueeze(-1) end
  if not at.N then x = x:unsqueeze(1) end
  local channels = x:size(4)
  if channels < 1 or channels > 4 then
    fail("%s: a picture has 1 to 4 channels, got %d in a tensor of shape [%s] as %s", where, channels,
      table.concat(x.shape, ", "), formats)
  end
  if x:numel() == 0 then
    fail("%s: a picture without pixels: shape [%s]", where, table.concat(x.shape, ", "))
  end
  local list = {}
  for i = 1, x:size(1) do list[i] = x[i]:contiguous() end
  return list
end

-- PNG's colour types by the number of channels: grey, grey and alpha, RGB, RGB and alpha.
local COLOUR = { 0, 4, 2, 6 }

--- Encodes a picture as a PNG file.
---@param picture accelerate.Tensor uint8 [H, W, C], contiguous
---@return string bytes
---@return integer height
---@return integer width
---@return integer channels
function M.encode(picture)
  local height, width, channels = picture:size(1), picture:size(2), picture:size(3)
  local row = width * channels
  local pixels = ffi.cast("const uint8_t *", picture:data_ptr())
  local lines = ffi.new("char[?]", height * (row + 1))
  for y = 0, height - 1 do  -- each line begins with the number of its filter: 0
    ffi.copy(lines + y * (row + 1) + 1, pixels + y * row, row)
  end
  return "\137PNG\r\n\26\n" ..
    chunk("IHDR", big_endian(width) .. big_endian(height) .. string.char(8, COLOUR[channels], 0, 0, 0)) ..
    chunk("IDAT", deflate(lines, height * (row + 1))) .. chunk("IEND", ""), height, width, channels
end

--- Encodes all pictures of a value: a tensor with one or several, or a list of tensors.
---@return string[] files
---@return table[] sizes { height, width, channels } of each
function M.files(where, value, formats)
  local files, sizes = {}, {}
  local list = core.is_tensor(value) and { value } or value
  if type(list) ~= "table" or getmetatable(list) ~= nil then
    fail("%s: expected a tensor or a list of tensors, got %s", where, options.show(value))
  end
  for i, x in ipairs(list) do
    if not core.is_tensor(x) then
      fail("%s: entry %d of the list must be a tensor, got %s", where, i, options.show(x))
    end
    for _, picture in ipairs(M.pictures(where, x, formats)) do
      local bytes, height, width, channels = M.encode(picture)
      files[#files + 1], sizes[#sizes + 1] = bytes, { height, width, channels }
    end
  end
  if #files == 0 then fail("%s: an empty list of pictures", where) end
  return files, sizes
end

return M
