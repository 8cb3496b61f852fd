--- Transforms of pictures before batching. A transform is called with a picture, uint8 or float32
--- [channels, height, width], and returns another one; the names are torchvision's.
---
---   local T = data.transforms
---   local set = data.ImageFolder(root, { transform = T.Compose { T.RandomResizedCrop(64),
---     T.RandomHorizontalFlip(), T.ToTensor(),
---     T.Normalize({ 0.48, 0.46, 0.41 }, { 0.23, 0.22, 0.23 }) } })
---
--- Random transforms draw from the default generator. While a loader reads, its state depends on
--- the batch only, so they do not depend on the number of workers.
local augment = require "accelerate.data.augment"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

local check_image = augment.check_image

-- Returns a uniform number in 0 to 1 from the default generator.
local function uniform()
  local t = core.rand(1)
  local value = t:item()
  core.release(t)
  return value
end

-- Returns a random whole number from 0 to n - 1.
local function below(n)
  local t = core.randint(0, n, { 1 })
  local value = t:item()
  core.release(t)
  return value
end

-- Reads a size: one number, or { height, width }.
local function read_size(where, size)
  if type(size) == "number" then size = { size, size } end
  if type(size) ~= "table" or #size ~= 2 then
    fail("%s: expected a size or { height, width }, got %s", where, show(size))
  end
  for k = 1, 2 do
    options.value(where, k == 1 and "the height" or "the width", size[k], { "integer", min = 1 })
  end
  return size[1], size[2]
end

--- Applies transforms in order.
---@param list function[]
local Compose = class("Compose")
M.Compose = Compose
function Compose:init(list)
  if type(list) ~= "table" or getmetatable(list) then
    fail("Compose: expected a list of transforms, got %s", show(list))
  end
  for k, fn in ipairs(list) do options.value("Compose", ("entry %d"):format(k), fn, { "function" }) end
  self.transforms = list
end
function Compose:__call(image)
  for _, fn in ipairs(self.transforms) do image = fn(image) end
  return image
end

--- Converts uint8 in 0..255 to float32 in 0..1, and other types to float32 without scaling.
local ToTensor = class("ToTensor")
M.ToTensor = ToTensor
function ToTensor:init() end
function ToTensor:__call(image)
  check_image("ToTensor", image)
  if image.dtype ~= "uint8" then return image:to("float32") end
  return image:to("float32"):div_(255)
end

--- Computes (x - mean) / std for each channel.
---@param mean number|number[] one number, or one for each channel
---@param std number|number[]
local Normalize = class("Normalize")
M.Normalize = Normalize
function Normalize:init(mean, std)
  for name, value in pairs { mean = mean, std = std } do
    local list = type(value) == "number" and { value } or value
    if type(list) ~= "table" or getmetatable(list) or #list == 0 then
      fail("Normalize: %s must be a number or a list, got %s", name, show(value))
    end
    for k, v in ipairs(list) do
      options.value("Normalize", ("%s[%d]"):format(name, k), v,
        { "number", above = name == "std" and 0 or nil })
    end
    self[name] = core.tensor(list):view(#list, 1, 1)
  end
  if mean == nil or std == nil then fail("Normalize: expected mean and std") end
end
function Normalize:__call(image)
  check_image("Normalize", image)
  if image.dtype == "uint8" then
    fail("Normalize: expected a picture of floats, got uint8: use ToTensor before it")
  end
  for _, name in ipairs { "mean", "std" } do
    local n = self[name]:size(1)
    if n ~= 1 and n ~= image:size(1) then
      fail("Normalize: %s has %d entries, the picture %d channels", name, n, image:size(1))
    end
  end
  return image:sub(self.mean):div_(self.std)
end

--- Resizes by bilinear interpolation. With one number the shorter side gets that length, and the
--- aspect ratio stays.
---@param size integer|{ [1]: integer, [2]: integer } { height, width }
---@param opts? { antialias: boolean? } default true: when shrinking, all pixels count
local Resize = class("Resize")
M.Resize = Resize
function Resize:init(size, opts)
  self.antialias = options.check("Resize", opts, { antialias = { "boolean", default = true } }).antialias
  self.shorter = type(size) == "number"
  self.height, self.width = read_size("Resize", size)
end
function Resize:__call(image)
  check_image("Resize", image)
  local h, w = image:size(2), image:size(3)
  local height, width = self.height, self.width
  if self.shorter then
    if h <= w then width = math.floor(height * w / h) else height = math.floor(width * h / w) end
  end
  if h == height and w == width then return image end
  return core._image_resize(image, height, width, self.antialias)
end

--- Cuts out the middle of the picture. Positions outside of it are 0.
---@param size integer|{ [1]: integer, [2]: integer }
local CenterCrop = class("CenterCrop")
M.CenterCrop = CenterCrop
function CenterCrop:init(size) self.height, self.width = read_size("CenterCrop", size) end
function CenterCrop:__call(image)
  check_image("CenterCrop", image)
  local function margin(n) return n % 2 == 1 and math.floor(n / 2 + 0.25) or n / 2 end
  return core._image_crop(image, margin(image:size(2) - self.height), margin(image:size(3) - self.width),
    self.height, self.width)
end

--- Cuts out a random window of the picture, which may first be padded on all sides.
---@param size integer|{ [1]: integer, [2]: integer }
---@param opts? { padding: integer?, fill: number?, pad_if_needed: boolean? } default: 0, 0, false
local RandomCrop = class("RandomCrop")
M.RandomCrop = RandomCrop
function RandomCrop:init(size, opts)
  local o = options.check("RandomCrop", opts, {
    padding = { "integer", default = 0, min = 0 }, fill = { "number", default = 0 },
    pad_if_needed = { "boolean", default = false },
  })
  self.height, self.width = read_size("RandomCrop", size)
  self.padding, self.fill, self.pad_if_needed = o.padding, o.fill, o.pad_if_needed
end
function RandomCrop:__call(image)
  check_image("RandomCrop", image)
  local function place(n, wanted)
    local pad = self.padding
    if n + 2 * pad < wanted and self.pad_if_needed then pad = math.ceil((wanted - n) / 2) end
    if n + 2 * pad < wanted then
      fail("RandomCrop: a picture of %d x %d pixels, padded by %d, is smaller than %d x %d", image:size(2),
        image:size(3), self.padding,
        self.height, self.width)
    end
    return below(n + 2 * pad - wanted + 1) - pad
  end
  local top = place(image:size(2), self.height)
  return core._image_crop(image, top, place(image:size(3), self.width), self.height, self.width, false,
    self.fill)
end

--- Mirrors left and right with probability p.
---@param p? number default 0.5
local RandomHorizontalFlip = class("RandomHorizontalFlip")
M.RandomHorizontalFlip = RandomHorizontalFlip
function RandomHorizontalFlip:init(p)
  self.p = options.value("RandomHorizontalFlip", "p", p, { "number", default = 0.5, min = 0, max = 1 })
end
function RandomHorizontalFlip:__call(image)
  check_image("RandomHorizontalFlip", image)
  if uniform() >= self.p then return image end
  return core._image_crop(image, 0, 0, image:size(2), image:size(3), true)
end

--- Mirrors top and bottom with probability p.
---@param p? number default 0.5
local RandomVerticalFlip = class("RandomVerticalFlip")
M.RandomVerticalFlip = RandomVerticalFlip
function RandomVerticalFlip:init(p)
  self.p = options.value("RandomVerticalFlip", "p", p, { "number", default = 0.5, min = 0, max = 1 })
end
function RandomVerticalFlip:__call(image)
  check_image("RandomVerticalFlip", image)
  return uniform() < self.p and image:flip(2) or image
end

--- Cuts out a window of random size and aspect ratio, and resizes it.
---@param size integer|{ [1]: integer, [2]: integer }
---@param opts? { scale: number[]?, ratio: number[]? } shares of the area, ratios of width to
---  height: default { 0.08, 1 } and { 3 / 4, 4 / 3 }
local RandomResizedCrop = class("RandomResizedCrop")
M.RandomResizedCrop = RandomResizedCrop
function RandomResizedCrop:init(size, opts)
  local o = options.check("RandomResizedCrop", opts, {
    scale = { "list", default = { 0.08, 1 } }, ratio = { "list", default = { 3 / 4, 4 / 3 } },
  })
  self.height, self.width = read_size("RandomResizedCrop", size)
  for name, pair in pairs(o) do
    if #pair ~= 2 or type(pair[1]) ~= "number" or type(pair[2]) ~= "number"
      or not (pair[1] > 0 and pair[1] <= pair[2]) then
      fail("RandomResizedCrop: option '%s' must be two numbers above 0, the smaller first", name)
    end
    self[name] = pair
  end
end
function RandomResizedCrop:__call(image)
  check_image("RandomResizedCrop", image)
  local h, w = image:size(2), image:size(3)
  local low, high = math.log(self.ratio[1]), math.log(self.ratio[2])
  local top, left, height, width
  for _ = 1, 10 do
    local area = h * w * (self.scale[1] + (self.scale[2] - self.scale[1]) * uniform())
    local ratio = math.exp(low + (high - low) * uniform())
    width, height = math.floor(math.sqrt(area * ratio) + 0.5), math.floor(math.sqrt(area / ratio) + 0.5)
    if width >= 1 and width <= w and height >= 1 and height <= h then
      top, left = below(h - height + 1), below(w - width + 1)
      break
    end
  end
  if not top then -- the largest window in the middle with an allowed ratio
    local ratio = math.max(self.ratio[1], math.min(self.ratio[2], w / h))
    width, height = math.min(w, math.floor(h * ratio + 0.5)), math.min(h, math.floor(w / ratio + 0.5))
    top, left = math.floor((h - height) / 2), math.floor((w - width) / 2)
  end
  return core._image_resize(core._image_crop(image, top, left, height, width), self.height, self.width, true)
end

--- Applies a function of the script.
---@param fn function
function M.Lambda(fn) return options.value("Lambda", "the transform", fn, { "function" }) end

M.RandomRotation, M.ColorJitter = augment.RandomRotation, augment.ColorJitter

return require("accelerate.utils.properties").strict("accelerate.data.transforms", M)
