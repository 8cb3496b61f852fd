--- Many pictures as one, with torchvision's values.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

local OPTIONS = {
  nrow = { "integer", default = 8, min = 1 }, padding = { "integer", default = 2, min = 0 },
  normalize = { "boolean", default = false }, value_range = { "list", optional = true },
  scale_each = { "boolean", default = false }, pad_value = { "number", default = 0 },
}

-- The pictures as one tensor [N, C, H, W], of three channels where they have one.
local function batch_of(pictures)
  if type(pictures) == "table" and getmetatable(pictures) == nil then
    for i, picture in ipairs(pictures) do
      if not core.is_tensor(picture) then
        fail("make_grid: entry %d must be a tensor, got %s", i, show(picture))
      end
    end
    if #pictures == 0 then fail("make_grid: expected pictures, got an empty list") end
    pictures = core.stack(pictures, 1)
  end
  if not core.is_tensor(pictures) or pictures.ndim < 2 or pictures.ndim > 4 then
    fail("make_grid: expected a tensor [N, C, H, W] or a list of pictures, got %s", show(pictures))
  end
  while pictures.ndim < 4 do pictures = pictures:unsqueeze(1) end
  return pictures:size(2) == 1 and core.cat({ pictures, pictures, pictures }, 2) or pictures
end

-- Moves values of a range to 0 to 1.
local function scaled(x, range)
  local low, high = x:min():item(), x:max():item()
  if range then low, high = range[1], range[2] end
  return (x:clamp({ min = low, max = high }) - low) / math.max(high - low, 1e-5)
end

local function normalized(pictures, o)
  local range = o.value_range
  if range and (#range ~= 2 or type(range[1]) ~= "number" or type(range[2]) ~= "number") then
    fail("make_grid: option 'value_range' must be { least, most }, got %s", show(range))
  end
  if not o.scale_each then return scaled(pictures, range) end
  local list = {}
  for i = 1, pictures:size(1) do list[i] = scaled(pictures[i], range) end
  return core.stack(list, 1)
end

--- Returns pictures beside and below each other as one picture [C, H, W]. One picture alone is
--- returned as it is; pictures of one channel get three.
---@param pictures accelerate.Tensor|accelerate.Tensor[] [N, C, H, W], [C, H, W], [H, W], or a list
---  of pictures of one size
---@param opts? integer|{ nrow: integer?, padding: integer?, normalize: boolean?, value_range:
---  number[]?, scale_each: boolean?, pad_value: number? } nrow: pictures in a row, default 8;
---  padding: pixels between them, default 2, of the value pad_value, default 0; normalize: values
---  go to 0 to 1, from value_range or the least and the most of all, with scale_each of each
---  picture
---@return accelerate.Tensor
function M.make_grid(pictures, opts)
  local o = options.read("make_grid", { "nrow" }, OPTIONS, opts)
  pictures = batch_of(pictures)
  if o.normalize then pictures = normalized(pictures, o) end
  local n = pictures:size(1)
  if n == 1 then return pictures[1] end
  local across = math.min(o.nrow, n)
  local down, h, w = math.ceil(n / across), pictures:size(3) + o.padding, pictures:size(4) + o.padding
  local grid = core.full({ pictures:size(2), h * down + o.padding, w * across + o.padding }, o.pad_value,
    { dtype = pictures.dtype, device = pictures.device })
  for k = 0, n - 1 do
    local top, left = math.floor(k / across) * h + o.padding, k % across * w + o.padding
    grid:narrow(2, top + 1, h - o.padding):narrow(3, left + 1, w - o.padding):copy_(pictures[k + 1])
  end
  return grid
end

return M
