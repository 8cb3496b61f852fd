--- A canvas of pixels, written as PNG. Letters are smooth where the system has them; else three by
--- five dots, each of two by two pixels.
local colours = require("accelerate.plot.svg").COLOURS
local core = require "accelerate.core"
local ffi = require "ffi"
local font = require "accelerate.plot.font"
local png = require "accelerate.plot.png"

local M = {}

local Canvas = {}
Canvas.__index = Canvas

-- The five rows of each letter, in octal: 4 is the left dot.
local LETTERS = { ["0"] = "75557", ["1"] = "26227", ["2"] = "71747", ["3"] = "71717", ["4"] = "55711",
  ["5"] = "74717", ["6"] = "74757", ["7"] = "71122", ["8"] = "75757", ["9"] = "75717", A = "25755",
  B = "65656",
  C = "34443", D = "65556", E = "74647", F = "74644", G = "34553", H = "55755", I = "72227", J = "11152",
  K = "55655", L = "44447", M = "57755", N = "65555", O = "25552", P = "65644", Q = "25573", R = "65655",
  S = "34216", T = "72222", U = "55557", V = "55552", W = "55775", X = "55255", Y = "55222", Z = "71247",
  ["."] = "00002", ["-"] = "00700", ["+"] = "02720", ["_"] = "00007", ["/"] = "11244", [":"] = "02020",
  ["%"] = "51245", ["("] = "12221", [")"] = "42224", [","] = "00024", ["="] = "07070", ["["] = "64446",
  ["]"] = "31113", ["*"] = "05250", ["<"] = "12421", [">"] = "42124", [" "] = "00000" }
local UNKNOWN, DOT = "77777", 2
local CHARACTER = "[%z\1-\127\194-\244][\128-\191]*"

local RGB = {}
for i, text in next, colours do
  RGB[i] = { tonumber(text:sub(2, 3), 16), tonumber(text:sub(4, 5), 16), tonumber(text:sub(6, 7), 16) }
end
local INK = { 51, 51, 51 }

---@param width integer
---@param height integer
function M.new(width, height)
  local smooth = font.is_there()
  local tensor = core.full({ height, width, 3 }, 255, { dtype = "uint8" })
  return setmetatable({ width = width, height = height, smooth = smooth, cw = smooth and font.CW or 4 * DOT,
    ch = smooth and font.CH or 7 * DOT, pad = 6,
    swatch = 24, turns = true, tensor = tensor, data = ffi.cast("uint8_t *", tensor:data_ptr()) }, Canvas)
end

local function fill(self, x, y, w, h, colour)
  local from_x, to_x = math.max(0, math.floor(x + 0.5)), math.min(self.width, math.floor(x + w + 0.5)) - 1
  local from_y, to_y = math.max(0, math.floor(y + 0.5)), math.min(self.height, math.floor(y + h + 0.5)) - 1
  for row = from_y, to_y do
    for column = from_x, to_x do
      local at = (row * self.width + column) * 3
      self.data[at], self.data[at + 1], self.data[at + 2] = colour[1], colour[2], colour[3]
    end
  end
end

function Canvas:line(x1, y1, x2, y2, colour)
  local n = math.max(1, math.ceil(math.max(math.abs(x2 - x1), math.abs(y2 - y1))))
  local size = colour > 0 and 2 or 1
  for i = 0, n do fill(self, x1 + (x2 - x1) * i / n, y1 + (y2 - y1) * i / n, size, size, RGB[colour]) end
end

function Canvas:box(x, y, w, h, colour) fill(self, x, y, math.max(w - 1, 1), h, RGB[colour]) end

function Canvas:measure(text)
  if self.smooth then return font.measure(text) end
  local _, characters = text:gsub(CHARACTER, "")
  return characters * self.cw
end

local function letter(self, x, y, rows, colour, upwards)
  for row = 1, 5 do
    local bits = tonumber(rows:sub(row, row))
    for column = 0, 2 do
      if math.floor(bits / 2 ^ (2 - column)) % 2 == 1 then
        local along, down = column * DOT, row * DOT
        if upwards then fill(self, x + down, y - along - DOT, DOT, DOT, colour)
        else fill(self, x + along, y + down, DOT, DOT, colour) end
      end
    end
  end
end

-- Mixes a colour into one pixel.
local function mix(self, x, y, colour, coverage)
  if x < 0 or y < 0 or x >= self.width or y >= self.height then return end
  local at = (y * self.width + x) * 3
  for i = 0, 2 do
    local old = self.data[at + i]
    self.data[at + i] = math.floor(old + (colour[i + 1] - old) * coverage + 0.5)
  end
end

local function smooth_text(self, x, y, text, colour, upwards)
  x, y = math.floor(x + 0.5), math.floor(y + 0.5)
  font.draw(text, math.max(self.width, self.height), function(along, down, coverage)
    if upwards then mix(self, x + down, y - along - 1, colour, coverage)
    else mix(self, x + along, y + down, colour, coverage) end
  end)
end

--- Draws a text whose corner at the top left is at x, y; `upwards`: turned, with its start there.
function Canvas:text(x, y, text, colour, upwards)
  local ink = colour and RGB[colour] or INK
  if self.smooth then return smooth_text(self, x, y, text, ink, upwards) end
  for character in text:gmatch(CHARACTER) do
    letter(self, x, y, LETTERS[character:upper()] or UNKNOWN, ink, upwards)
    if upwards then y = y - self.cw else x = x + self.cw end
  end
end

-- One pixel of a picture, on white where it is transparent.
local function blended(pixel, channels)
  local alpha = channels % 2 == 0 and pixel[channels - 1] / 255 or 1
  local function on_white(v) return 255 + (v - 255) * alpha end
  local grey = on_white(pixel[0])
  if channels < 3 then return grey, grey, grey end
  return grey, on_white(pixel[1]), on_white(pixel[2])
end

--- Draws a uint8 tensor [H, W, C] into a rectangle, its proportions kept. Without a rectangle it is
--- the whole file, with its own pixels.
function Canvas:picture(picture, x, y, w, h)
  if not x then
    self.tensor = picture
    return
  end
  local rows, columns, channels = picture:size(1), picture:size(2), picture:size(3)
  local scale = math.min(w / columns, h / rows)
  local width, height = math.max(1, math.floor(columns * scale)), math.max(1, math.floor(rows * scale))
  local pixels = ffi.cast("const uint8_t *", picture:data_ptr())
  local left, top = x + math.floor((w - width) / 2), y
  for row = 0, height - 1 do
    local line = pixels + math.min(rows - 1, math.floor((row + 0.5) / scale)) * columns * channels
    for column = 0, width - 1 do
      local from = line + math.min(columns - 1, math.floor((column + 0.5) / scale)) * channels
      fill(self, left + column, top + row, 1, 1, { blended(from, channels) })
    end
  end
end

--- Returns the file.
function Canvas:result() return (png.encode(self.tensor)) end

return M
