--- A canvas of characters: braille dots, two by four in each, half blocks for pictures; "*" and
--- shades where the locale is not UTF-8.
local bit = require "bit"
local terminal = require "accelerate.utils.terminal"

local M = {}

local Canvas = {}
Canvas.__index = Canvas

-- The bit of each dot of U+2800, by row and column.
local DOTS = { [0] = { [0] = 1, 8 }, { [0] = 2, 16 }, { [0] = 4, 32 }, { [0] = 64, 128 } }
local FULL = 255
local CODES = { [0] = "2", "36", "33", "32", "35", "31", "34" } -- of the colours; 0 is dim
local SHADES, PLAIN = { " ", "░", "▒", "▓", "█" }, { " ", ".", "+", "%", "#" }

---@param width integer in characters
---@param height integer
---@param colours boolean
function M.new(width, height, colours)
  return setmetatable({ columns = width, rows = height, width = 2 * width, height = 4 * height, cw = 2,
    ch = 4, pad = 0, swatch = 0, turns = false, kept = 0,
    colours = colours, utf8 = terminal.has_utf8(), dots = {}, paint = {}, written = {} }, Canvas)
end

function Canvas:measure(text) return 2 * terminal.width(text) end

function Canvas:dot(x, y, colour)
  x, y = math.floor(x), math.floor(y)
  if x < 0 or y < 0 or x >= self.width or y >= self.height then return end
  local at = math.floor(y / 4) * self.columns + math.floor(x / 2)
  self.dots[at] = bit.bor(self.dots[at] or 0, DOTS[y % 4][x % 2])
  if colour > 0 or not self.paint[at] then self.paint[at] = colour end
end

function Canvas:line(x1, y1, x2, y2, colour)
  local n = math.max(1, math.ceil(math.max(math.abs(x2 - x1), math.abs(y2 - y1))))
  for i = 0, n do self:dot(x1 + (x2 - x1) * i / n, y1 + (y2 - y1) * i / n, colour) end
end

function Canvas:box(x, y, w, h, colour)
  for i = math.floor(x + 0.5), math.floor(x + w - 0.5) do
    for k = math.floor(y + 0.5), math.floor(y + h - 0.5) do self:dot(i, k, colour) end
  end
end

function Canvas:text(x, y, text, colour)
  local row, column = math.floor(y / 4 + 0.5), math.floor(x / 2 + 0.5)
  row = math.max(0, math.min(self.rows - 1, row))
  for character in text:gmatch("[%z\1-\127\194-\244][\128-\191]*") do
    if column >= 0 and column < self.columns then
      self.written[row * self.columns + column] = character
      self.paint[row * self.columns + column] = colour
    end
    column = column + 1
  end
end

local function character_of(self, at)
  local dots = self.dots[at]
  if self.written[at] then return self.written[at] end
  if not dots then return " " end
  if not self.utf8 then return dots == FULL and "#" or "*" end
  if dots == FULL then return "█" end
  return "\226" .. string.char(160 + math.floor(dots / 64), 128 + dots % 64)
end

local function painted(self, text, code)
  return self.colours and code and text ~= " " and ("\27[%sm%s\27[0m"):format(code, text) or text
end

-- ---- pictures

local function rgb(x, row, column)
  local p, channels = x.data, x.channels
  local at = (row * x.w + column) * channels
  local r = p[at]
  local g, b = channels > 2 and p[at + 1] or r, channels > 2 and p[at + 2] or r
  return r, g, b
end

local function sample(x, columns, rows, column, row)
  return rgb(x, math.min(x.h - 1, math.floor((row + 0.5) / rows * x.h)),
    math.min(x.w - 1, math.floor((column + 0.5) / columns * x.w)))
end

local function luminance(r, g, b) return (0.299 * r + 0.587 * g + 0.114 * b) / 255 end

-- Two pixels of a picture, one above the other, as one character.
local function cell(self, x, columns, rows, column, row)
  local r, g, b = sample(x, columns, 2 * rows, column, 2 * row)
  local r2, g2, b2 = sample(x, columns, 2 * rows, column, 2 * row + 1)
  if self.colours and self.utf8 then
    return ("\27[38;2;%d;%d;%d;48;2;%d;%d;%dm▀\27[0m"):format(r, g, b, r2, g2, b2)
  end
  local shade = (luminance(r, g, b) + luminance(r2, g2, b2)) / 2
  return (self.utf8 and SHADES or PLAIN)[math.min(5, math.floor(shade * 5) + 1)]
end

--- Draws a uint8 tensor [H, W, C] into a rectangle (default: the whole canvas), its proportions
--- kept.
function Canvas:picture(picture, left, top, w, h)
  local ffi = require "ffi"
  local x = { h = picture:size(1), w = picture:size(2), channels = picture:size(3),
    data = ffi.cast("const uint8_t *", picture:data_ptr()), keep = picture }
  local most, high = math.floor((w or self.width) / self.cw), math.floor((h or self.height) / self.ch)
  local scale = math.min(most / x.w, 2 * high / x.h)
  local columns, rows = math.max(1, math.floor(x.w * scale)), math.max(1, math.floor(x.h * scale / 2))
  local from = math.floor((left or 0) / self.cw)
  local first = math.floor((top or 0) / self.ch)
  self.kept = math.max(self.kept, math.min(first + rows, self.rows)) -- dark lines are blank
  for row = 0, math.min(rows, self.rows - first) - 1 do
    for column = 0, math.min(columns, self.columns - from) - 1 do
      self.written[(first + row) * self.columns + from + column] = cell(self, x, columns, rows, column, row)
    end
  end
end

--- Returns the lines.
function Canvas:result()
  local lines = {}
  for row = 0, self.rows - 1 do
    local out = {}
    for column = 0, self.columns - 1 do
      local at = row * self.columns + column
      out[#out + 1] = painted(self, character_of(self, at), self.paint[at] and CODES[self.paint[at]])
    end
    lines[#lines + 1] = (table.concat(out):gsub(" +$", ""))
  end
  while #lines > self.kept and lines[#lines] == "" do lines[#lines] = nil end
  return table.concat(lines, "\n")
end

return M
