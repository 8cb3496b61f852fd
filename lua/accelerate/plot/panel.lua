--- A part of a canvas that draws as a canvas of its own: figures of a grid stand in panels.
local M = {}

local Panel = {}
Panel.__index = Panel

--- Returns the part of a canvas whose corner at the top left is at x, y.
---@param canvas table
---@param x number
---@param y number
---@param width number
---@param height number
---@return table
function M.new(canvas, x, y, width, height)
  return setmetatable({ canvas = canvas, x = x, y = y, width = width, height = height, cw = canvas.cw,
    ch = canvas.ch, pad = canvas.pad, swatch = canvas.swatch, turns = canvas.turns }, Panel)
end

function Panel:measure(text) return self.canvas:measure(text) end

function Panel:line(x1, y1, x2, y2, colour)
  self.canvas:line(self.x + x1, self.y + y1, self.x + x2, self.y + y2, colour)
end

function Panel:box(x, y, w, h, colour) self.canvas:box(self.x + x, self.y + y, w, h, colour) end

function Panel:text(x, y, text, colour, upwards)
  self.canvas:text(self.x + x, self.y + y, text, colour, upwards)
end

function Panel:picture(picture, x, y, w, h)
  self.canvas:picture(picture, self.x + (x or 0), self.y + (y or 0), w or self.width, h or self.height)
end

return M
