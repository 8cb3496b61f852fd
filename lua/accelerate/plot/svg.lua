--- A canvas that is an SVG file (w3.org/TR/SVG11).
local base64 = require "accelerate.utils.base64"
local terminal = require "accelerate.utils.terminal"

local M = {}

local Canvas = {}
Canvas.__index = Canvas

--- The colours of curves and bars; 0: of axes. From ColorBrewer's Dark2.
M.COLOURS = { [0] = "#888888", "#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#a6761d" }

local ESCAPES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }

---@param width integer in pixels
---@param height integer
function M.new(width, height)
  return setmetatable({ width = width, height = height, cw = 7, ch = 14, pad = 6, swatch = 24,
    turns = true, parts = {} }, Canvas)
end

-- A viewer's monospace letters are about this wide.
function Canvas:measure(text) return self.cw * terminal.width(text) end

local function add(self, format, ...) self.parts[#self.parts + 1] = format:format(...) end

-- Pieces of one curve are one path.
function Canvas:line(x1, y1, x2, y2, colour)
  local open = self.open
  if open and open.colour == colour and open.x == x1 and open.y == y1 then
    open.points[#open.points + 1] = ("%.1f,%.1f"):format(x2, y2)
    open.x, open.y = x2, y2
    return
  end
  self.open = { colour = colour, x = x2, y = y2,
    points = { ("%.1f,%.1f"):format(x1, y1), ("%.1f,%.1f"):format(x2, y2) } }
  self.parts[#self.parts + 1] = self.open
end

function Canvas:box(x, y, w, h, colour)
  add(self, '<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>', x, y, math.max(w - 1, 0.5), h,
    M.COLOURS[colour])
end

--- Draws a text whose corner at the top left is at x, y; `upwards`: turned, with its start there.
function Canvas:text(x, y, text, colour, upwards)
  local turn = upwards and (' transform="rotate(-90 %.1f %.1f)"'):format(x, y) or ""
  add(self, '<text x="%.1f" y="%.1f"%s fill="%s">%s</text>', x, y + 11, turn, colour and M.COLOURS[colour]
    or "#333333",
    (text:gsub("%c", " "):gsub('[&<>"]', ESCAPES)))
end

--- Draws a uint8 tensor [H, W, C] into a rectangle, its proportions kept; without a rectangle it is
--- the whole file.
function Canvas:picture(picture, x, y, w, h)
  local rows, columns = picture:size(1), picture:size(2)
  local scale = math.min((w or self.width) / columns, (h or self.height) / rows)
  local width, height = math.max(1, math.floor(columns * scale)), math.max(1, math.floor(rows * scale))
  if not x then self.width, self.height = width, height end
  add(self, '<image x="%.1f" y="%.1f" width="%d" height="%d" style="image-rendering: pixelated" ' ..
    'href="data:image/png;base64,%s"/>', x and x + (w - width) / 2 or 0, y or 0, width, height,
    base64.encode((require("accelerate.plot.png").encode(picture))))
end

--- Returns the file.
function Canvas:result()
  local out = { ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" ' ..
    'font-family="monospace" font-size="11.5">'):format(self.width, self.height, self.width, self.height),
    '<rect width="100%" height="100%" fill="white"/>' }
  for _, part in ipairs(self.parts) do
    out[#out + 1] = type(part) == "string" and part or ('<polyline points="%s" fill="none" stroke="%s" ' ..
      'stroke-width="%s"/>'):format(table.concat(part.points, " "), M.COLOURS[part.colour], part.colour > 0
      and "1.5" or "1")
  end
  out[#out + 1] = "</svg>\n"
  return table.concat(out, "\n")
end

return M
