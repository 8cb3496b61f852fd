--- Transforms that turn pictures and change their colours, with torchvision's values:
--- RandomRotation and ColorJitter of data.transforms.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

-- Returns a uniform number between two from the default generator: a float32, as torchvision's.
local function between(low, high)
  local t = core.rand(1)
  local value = (t * (high - low) + low):item()
  core.release(t)
  return value
end

--- Returns a picture. Raises for what is none.
function M.check_image(where, image)
  if not core.is_tensor(image) or image.ndim ~= 3 then
    fail("%s: expected a picture [channels, height, width], got %s", where, show(image))
  end
  return image
end
local check_image = M.check_image

-- Returns two numbers, the smaller first: of a list, or what `around` makes of one number.
local function range_of(where, name, value, around, least, most)
  local low, high
  if type(value) == "number" then low, high = around(value)
  elseif type(value) == "table" and not getmetatable(value) and #value == 2 then low, high = value[1],
    value[2]
  else fail("%s: %s must be a number or { low, high }, got %s", where, name, show(value)) end
  if type(low) ~= "number" or type(high) ~= "number" or not (low <= high) or low < least or high > most then
    fail("%s: %s must be within %g and %g, the smaller first, got %s", where, name, least, most, show(value))
  end
  return { low, high }
end

-- ---- rotation

-- The matrix by which a place of the turned picture is found in the picture: rows { a, b, c }.
local function inverse_matrix(degrees, x, y)
  local angle = math.rad(-degrees)
  local cos, sin = math.cos(angle), math.sin(angle)
  return { cos, sin, -cos * x - sin * y + x }, { -sin, cos, sin * x - cos * y + y }
end

-- Height and width that hold all of the turned picture.
local function expanded(row1, row2, h, w)
  local least, most = { math.huge, math.huge }, { -math.huge, -math.huge }
  for _, corner in ipairs { { -0.5 * w, -0.5 * h }, { -0.5 * w, 0.5 * h }, { 0.5 * w, 0.5 * h },
    { 0.5 * w, -0.5 * h } } do
    for k, row in ipairs { row1, row2 } do
      local at = row[1] * corner[1] + row[2] * corner[2] + row[3] + 0.5 * (k == 1 and w or h)
      least[k], most[k] = math.min(least[k], at), math.max(most[k], at)
    end
  end
  local function cut(v) -- at the fourth digit, so that 20.00000001 is 20
    v = v * 1e4
    return (v < 0 and math.ceil(v) or math.floor(v)) / 1e4
  end
  return math.ceil(cut(most[2])) - math.floor(cut(least[2])),
    math.ceil(cut(most[1])) - math.floor(cut(least[1]))
end

-- The places in the picture, -1 to 1, of each pixel of the turned one: [1, oh, ow, 2].
local function grid_of(row1, row2, h, w, oh, ow)
  local x = (core.arange(ow, { dtype = "float32" }) - (ow / 2 - 0.5)):view(1, ow):expand(oh, ow)
  local y = (core.arange(oh, { dtype = "float32" }) - (oh / 2 - 0.5)):view(oh, 1):expand(oh, ow)
  local function places(row, size) return (x * row[1] + y * row[2] + row[3]) / (0.5 * size) end
  return core.stack({ places(row1, w), places(row2, h) }, 3):unsqueeze(1)
end

-- Samples the picture at the places of a grid; fill: one number for each channel.
local function sampled(image, grid, mode, fill)
  local floats = image.dtype == "uint8" and image:to("float32") or image
  local mask = core.ones({ 1, image:size(2), image:size(3) }, { dtype = floats.dtype })
  local out = core.grid_sample(core.cat({ floats, mask }, 1):unsqueeze(1), grid:to(floats.dtype),
    { mode = mode, padding_mode = "zeros", align_corners = false }):squeeze(1)
  local n = image:size(1)
  local inside = out:narrow(1, n + 1, 1):expand(n, out:size(2), out:size(3))
  local behind = core.tensor(fill, { dtype = floats.dtype }):view(n, 1, 1):expand(n, out:size(2), out:size(3))
  out = out:narrow(1, 1, n)
  if mode == "nearest" then out = core.where(inside:lt(0.5), behind, out)
  else out = out * inside + behind * (1 - inside) end
  if image.dtype == "uint8" then out = out:round() end
  return out:to(image.dtype)
end

local ROTATION = {
  interpolation = { "string", default = "nearest", one_of = { "nearest", "bilinear" } },
  expand = { "boolean", default = false }, center = { "list", optional = true },
  fill = { "number|list", default = 0 },
}

--- Turns a picture by a random angle, counter-clockwise.
---@param degrees number|{ [1]: number, [2]: number } from -degrees to degrees, or from the first to
---  the second
---@param opts? { interpolation: "nearest"|"bilinear"|nil, expand: boolean?, center: number[]?,
---  fill: number|number[]|nil } expand: the result is as large as the turned picture; center: { x,
---  y } in pixels from the upper left corner, default the middle; fill: outside of the picture, one
---  number or one for each channel
local RandomRotation = class("RandomRotation")
M.RandomRotation = RandomRotation
function RandomRotation:init(degrees, opts)
  local o = options.check("RandomRotation", opts, ROTATION)
  self.degrees = range_of("RandomRotation", "degrees", degrees, function(d) return -d, d end, -math.huge,
    math.huge)
  if o.center and (#o.center ~= 2 or type(o.center[1]) ~= "number" or type(o.center[2]) ~= "number") then
    fail("RandomRotation: option 'center' must be { x, y }, got %s", show(o.center))
  end
  if o.center and o.expand then
    fail("RandomRotation: option 'expand' is for pictures that turn about their middle: leave 'center' out")
  end
  self.interpolation, self.expand, self.center, self.fill = o.interpolation, o.expand, o.center, o.fill
end
function RandomRotation:__call(image)
  check_image("RandomRotation", image)
  local n, h, w = image:size(1), image:size(2), image:size(3)
  local fill = type(self.fill) == "table" and self.fill or {}
  for k = 1, n do fill[k] = fill[k] or type(self.fill) == "number" and self.fill or nil end
  if #fill ~= n then fail("RandomRotation: fill has %d entries, the picture %d channels", #fill, n) end
  local x, y = 0, 0
  if self.center then x, y = self.center[1] - w / 2, self.center[2] - h / 2 end
  local row1, row2 = inverse_matrix(between(self.degrees[1], self.degrees[2]), x, y)
  local oh, ow = h, w
  if self.expand then oh, ow = expanded(row1, row2, h, w) end
  return sampled(image, grid_of(row1, row2, h, w, oh, ow), self.interpolation, fill)
end

-- ---- colours

-- Mixes two pictures, and keeps what a picture of the type can have.
local function blend(image, other, ratio)
  local mixed = image:to("float32") * ratio + other * (1 - ratio)
  return mixed:clamp({ min = 0, max = image.dtype == "uint8" and 255 or 1 }):to(image.dtype)
end

-- The brightness of each pixel, in the picture's type: [1, height, width].
local function grey(image)
  if image:size(1) == 1 then return image end
  local x = image:to("float32")
  return (x[1] * 0.2989 + x[2] * 0.587 + x[3] * 0.114):to(image.dtype):unsqueeze(1)
end

-- Hue, saturation and value of red, green and blue, 0 to 1.
local function to_hsv(x)
  local r, g, b = x[1], x[2], x[3]
  local high, low = x:amax(1), x:amin(1)
  local flat, span = high:eq(low), high - low
  local ones = core.ones_like(high)
  local divisor = core.where(flat, ones, span)
  local rc, gc, bc = (high - r) / divisor, (high - g) / divisor, (high - b) / divisor
  local is_red, is_green = high:eq(r), high:eq(g)
  local only_green = is_green:logical_and(is_red:logical_not())
  local blue = is_green:logical_not():logical_and(is_red:logical_not())
  local hue = (bc - gc) * is_red:to("float32") + (rc - bc + 2) * only_green:to("float32") +
    (gc - rc + 4) * blue:to("float32")
  return (hue / 6 + 1):fmod(1), span / core.where(flat, ones, high), high
end

local function from_hsv(h, s, v)
  local sector = (h * 6):floor()
  local f = h * 6 - sector
  local function unit(x) return x:clamp({ min = 0, max = 1 }) end
  local p, q, t = unit(v * (1 - s)), unit(v * (1 - s * f)), unit(v * (1 - s * (1 - f)))
  sector = sector:remainder(6)
  local channels = { { v, q, p, p, t, v }, { t, v, v, q, p, p }, { p, p, t, v, v, q } }
  for k, six in ipairs(channels) do
    local out = six[1]
    for i = 2, 6 do out = core.where(sector:eq(i - 1), six[i], out) end
    channels[k] = out
  end
  return core.stack(channels, 1)
end

local ADJUST = {}

function ADJUST.brightness(image, factor) return blend(image, core.zeros({ 1 }), factor) end

function ADJUST.contrast(image, factor) return blend(image, grey(image):to("float32"):mean(), factor) end

function ADJUST.saturation(image, factor)
  if image:size(1) == 1 then return image end
  return blend(image, grey(image):to("float32"), factor)
end

function ADJUST.hue(image, factor)
  if image:size(1) == 1 then return image end
  local bytes = image.dtype == "uint8"
  local h, s, v = to_hsv(bytes and image:to("float32") / 255 or image)
  local out = from_hsv((h + factor):remainder(1), s, v)
  return bytes and (out * (256 - 1e-3)):to("uint8") or out
end

local KINDS = { "brightness", "contrast", "saturation", "hue" }

--- Changes brightness, contrast, saturation and hue by random factors, in random order. Each is a
--- number v, for factors from max(0, 1 - v) to 1 + v, or { low, high }; of hue, which is at most
--- 0.5, from -v to v. Pictures have one channel or three.
---@param opts? number|{ brightness: number|number[]|nil, contrast: number|number[]|nil, saturation:
---  number|number[]|nil, hue: number|number[]|nil } default 0: left as it is; numbers by position
---  have this order
local ColorJitter = class("ColorJitter")
M.ColorJitter = ColorJitter
function ColorJitter:init(opts, ...)
  local schema = {}
  for _, kind in ipairs(KINDS) do schema[kind] = { "number|list", default = 0, min = 0 } end
  local o = options.read("ColorJitter", KINDS, schema, opts, ...)
  self.ranges = {}
  for _, kind in ipairs(KINDS) do
    local hue = kind == "hue"
    local range = range_of("ColorJitter", kind, o[kind], function(v)
      return hue and -v or math.max(0, 1 - v), hue and v or 1 + v
    end, hue and -0.5 or 0, hue and 0.5 or math.huge)
    local still = hue and 0 or 1
    if range[1] ~= still or range[2] ~= still then self.ranges[kind] = range end
  end
end
function ColorJitter:__call(image)
  check_image("ColorJitter", image)
  if image:size(1) ~= 1 and image:size(1) ~= 3 then
    fail("ColorJitter: expected a picture of one channel or three, got %d", image:size(1))
  end
  local order = core.randperm(4)
  for _, k in ipairs(order:totable()) do
    local kind = KINDS[k + 1]
    local range = self.ranges[kind]
    if range then image = ADJUST[kind](image, between(range[1], range[2])) end
  end
  core.release(order)
  return image
end

return M
