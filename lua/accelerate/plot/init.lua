--- Pictures of numbers: curves, bars, histograms and images, in the terminal, as PNG and as SVG.
---
---   local plot = require("accelerate.utils").plot
---   plot.curves({ loss = losses, accuracy = { x = steps, y = accuracies } }):show()
---   plot.histogram(model.weight, { bins = 40 }):save("weights.svg")
---   plot.grid({ plot.curves(losses), plot.image(sample) }, { title = "a run" }):save("run.png")
---
--- A figure prints as text; a notebook shows it as a picture.
local base64 = require "accelerate.utils.base64"
local core = require "accelerate.core"
local layout = require "accelerate.plot.layout"
local options = require "accelerate.utils.options"
local terminal = require "accelerate.utils.terminal"

local fail = options.fail

local M = {}

-- ---- figures

---@class accelerate.Figure
local Figure = {}
Figure.__index = Figure
Figure.__name = "Figure"

local SIZE = { width = { "integer", min = 20, max = 10000, optional = true },
  height = { "integer", min = 4, max = 10000, optional = true } }
local TEXT = { width = SIZE.width, height = SIZE.height, colours = { "boolean", optional = true } }
local PIXELS = { width = { "integer", min = 100, max = 10000, optional = true },
  height = { "integer", min = 60, max = 10000, optional = true } }
local LINES, PIXELS_WIDE, PIXELS_HIGH, PIXELS_A_LINE = 16, 640, 360, 18

-- A canvas of pixels, of the size given or of the one that the figure needs.
local function canvas_of(self, where, kind, opts)
  local o = options.check(where, opts, PIXELS)
  local needed = math.max(PIXELS_HIGH, math.min(self._lines * PIXELS_A_LINE, PIXELS.height.max))
  return require("accelerate.plot." .. kind).new(o.width or PIXELS_WIDE, o.height or needed)
end

--- Returns the figure as text.
---@param opts { width: integer?, height: integer?, colours: boolean? }? in characters; default the
---  terminal's width, 16 lines (more for many bars), and colours where the terminal has them
---@return string
function Figure:text(opts)
  local o = options.check("Figure:text", opts, TEXT)
  if o.colours == nil then o.colours = terminal.has_colours(terminal.STDOUT) end
  local width = o.width or math.max(20, math.min(terminal.columns(terminal.STDOUT), 100))
  local canvas = require("accelerate.plot.characters").new(width, o.height
    or math.max(LINES, self._lines), o.colours)
  self:_draw(canvas)
  return canvas:result()
end

--- Returns the figure as SVG.
---@param opts { width: integer?, height: integer? }? in pixels, default 640 and 360 (more for many
---  bars, and for rows of a grid)
---@return string
function Figure:svg(opts)
  local canvas = canvas_of(self, "Figure:svg", "svg", opts)
  self:_draw(canvas)
  return canvas:result()
end

--- Returns the figure as a PNG file.
---@param opts { width: integer?, height: integer? }? in pixels, default 640 and 360 (more for many
---  bars, and for rows of a grid)
---@return string
function Figure:png(opts)
  local canvas = canvas_of(self, "Figure:png", "pixels", opts)
  self:_draw(canvas)
  return canvas:result()
end

--- Writes the figure into a file, whose name ends in .png, .svg or .txt. Raises when it cannot be
--- written.
---@param path string
---@param opts { width: integer?, height: integer? }?
function Figure:save(path, opts)
  local ending = type(path) == "string" and path:match("%.(%w+)$")
  local write = ({ png = Figure.png, svg = Figure.svg, txt = Figure.text })[ending]
  if not write then
    fail("Figure:save: expected a name that ends in .png, .svg or .txt, got %s", options.show(path))
  end
  local file, why = io.open(path, "wb")
  if not file then error("Figure:save: " .. why, 0) end
  file:write((write(self, opts)))
  file:close()
end

--- Prints the figure; in a notebook's cell, shows it.
function Figure:show()
  local display = terminal.notebook and rawget(_G, "display")
  if display then return display(self) end
  io.stdout:write(self:text(), "\n")
end

function Figure:__tostring() return self:text { colours = false } end

--- Returns what a notebook shows, by type.
-- Not all front ends show SVG: those that do not trust the notebook take the PNG.
function Figure:__mime()
  return { ["image/svg+xml"] = self:svg(), ["image/png"] = base64.encode(self:png()) }
end

-- `lines`: how many lines of text the figure needs, where that depends on what it shows.
local function figure(draw, lines)
  return setmetatable({ _draw = function(_, canvas) draw(canvas) end, _lines = lines or 0 }, Figure)
end

-- ---- what is given

-- The numbers of a list or a tensor; NaN and the infinities stay.
local function numbers(where, what, value)
  if core.is_tensor(value) then value = value:detach():to("cpu"):to("float64"):reshape({ -1 }):totable() end
  if type(value) ~= "table" then
    fail("%s: %s: expected a list of numbers or a tensor, got %s", where, what, options.show(value))
  end
  for i = 1, #value do
    if type(value[i]) ~= "number" then
      fail("%s: %s: entry %d must be a number, got %s", where, what, i, options.show(value[i]))
    end
  end
  return value
end

local function is_pair(value)
  return type(value) == "table" and not core.is_tensor(value) and value.y ~= nil
end

local function one_series(where, name, value)
  local y = numbers(where, name, is_pair(value) and value.y or value)
  local x = is_pair(value) and value.x and numbers(where, name .. ".x", value.x)
  if x and #x ~= #y then fail("%s: %s has %d x and %d y", where, name, #x, #y) end
  if not x then
    x = {}
    for i = 1, #y do x[i] = i end
  end
  return { name = name, x = x, y = y }
end

local function series_of(where, given)
  if core.is_tensor(given) or is_pair(given) or type(given) == "table" and type(given[1]) == "number" then
    return { one_series(where, "", given) }
  end
  if type(given) ~= "table" then
    fail("%s: expected numbers, or a table of them by name; got %s", where, options.show(given))
  end
  local names, list = {}, {}
  for name in next, given do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for i, name in ipairs(names) do list[i] = one_series(where, tostring(name), given[name]) end
  return list
end

local LABELS = { title = { "string", optional = true }, x_label = { "string", optional = true },
  y_label = { "string", optional = true }, log = { "boolean", default = false } }

--- Returns a figure of curves.
---@param values any numbers (a list or a tensor), { x = numbers, y = numbers }, or several of these
---  by name; NaN leaves a gap
---@param opts { title: string?, x_label: string?, y_label: string?, log: boolean? }? log: a
---  logarithmic scale for y, which leaves values up to 0 out
---@return accelerate.Figure
function M.curves(values, opts)
  local o = options.check("plot.curves", opts, LABELS)
  local list = series_of("plot.curves", values)
  return figure(function(canvas) layout.curves(canvas, list, o) end)
end

--- Returns a figure of bars.
---@param values any numbers, or a table of numbers by name, or a list of { name, number }
---@param opts { title: string? }?
---@return accelerate.Figure
function M.bars(values, opts)
  local o = options.check("plot.bars", opts, { title = LABELS.title })
  local list = {}
  if type(values) == "table" and not core.is_tensor(values) and type(values[1]) == "table" then
    for i, pair in ipairs(values) do
      list[i] = { tostring(pair[1]), numbers("plot.bars", "a value", { pair[2] })[1] }
    end
  elseif core.is_tensor(values) or type(values) == "table" and #values > 0 then
    for i, value in ipairs(numbers("plot.bars", "values", values)) do list[i] = { tostring(i), value } end
  elseif type(values) == "table" then
    for _, one in ipairs(series_of("plot.bars", (function()
      local lists = {}
      for name, value in next, values do lists[name] = { value } end
      return lists
    end)())) do list[#list + 1] = { one.name, one.y[1] } end
  else
    numbers("plot.bars", "values", values)
  end
  return figure(function(canvas) layout.bars(canvas, list, o) end, #list + 2)
end

--- Returns a figure of how often values occur.
---@param values any a list or a tensor; NaN and the infinities are left out
---@param opts { title: string?, x_label: string?, y_label: string?, bins: integer? }? bins: default
---  20
---@return accelerate.Figure
function M.histogram(values, opts)
  local o = options.check("plot.histogram", opts, { title = LABELS.title, x_label = LABELS.x_label,
    y_label = LABELS.y_label, bins = { "integer", min = 1, max = 1000, default = 20 } })
  local finite, least, most = {}, math.huge, -math.huge
  for _, value in ipairs(numbers("plot.histogram", "values", values)) do
    if value == value and math.abs(value) <= 1e300 then
      finite[#finite + 1] = value
      least, most = math.min(least, value), math.max(most, value)
    end
  end
  if #finite == 0 then least, most = 0, 1 end
  least, most = layout.widened(least, most)
  local counts = {}
  for i = 1, o.bins do counts[i] = 0 end
  for _, value in ipairs(finite) do
    local at = math.min(o.bins, math.floor((value - least) / (most - least) * o.bins) + 1)
    counts[at] = counts[at] + 1
  end
  return figure(function(canvas) layout.histogram(canvas, counts, least, most, o) end)
end

--- Returns a figure of a picture.
---@param x accelerate.Tensor [H, W] or [C, H, W]: floating-point values 0 to 1, integers 0 to 255
---@param opts { title: string? }? without a title the PNG file has the picture's own pixels
---@return accelerate.Figure
function M.image(x, opts)
  local o = options.check("plot.image", opts, { title = LABELS.title })
  local list = require("accelerate.plot.png").pictures("plot.image", x)
  if #list > 1 then fail("plot.image: expected one picture, got %d", #list) end
  return figure(function(canvas) layout.image(canvas, list[1], o) end)
end

--- Returns a figure of several figures, side by side and row after row.
---@param figures accelerate.Figure[]
---@param opts { columns: integer?, title: string? }? columns: default 2, or 1 for one figure
---@return accelerate.Figure
function M.grid(figures, opts)
  local o = options.check("plot.grid", opts,
    { title = LABELS.title, columns = { "integer", min = 1, max = 100, optional = true } })
  if type(figures) ~= "table" or getmetatable(figures) or #figures == 0 then
    fail("plot.grid: expected a list of figures, got %s", options.show(figures))
  end
  local list, lines = {}, LINES
  for i, one in ipairs(figures) do
    if getmetatable(one) ~= Figure then
      fail("plot.grid: entry %d must be a figure, got %s", i, options.show(one))
    end
    list[i], lines = one, math.max(lines, one._lines)
  end
  o.columns = o.columns or math.min(2, #list)
  local rows = math.ceil(#list / o.columns)
  return figure(function(canvas) layout.grid(canvas, list, o) end, rows * lines + 1)
end

return M
