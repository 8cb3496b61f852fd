--- Where the parts of a figure go, for any canvas. A canvas has width and height, a space's width
--- and a line's height (cw, ch), the room at its edges (pad), the width of a legend's sample line
--- (swatch), whether texts can run upwards (turns); it measures texts, and draws line, box and
--- text.
local panel = require "accelerate.plot.panel"

local M = {}

local COLOURS = 6
local CHARACTER = "[%z\1-\127\194-\244][\128-\191]*"

local LARGEST = 1e300 -- what is beyond is left out: differences stay finite

local function is_finite(v) return v == v and math.abs(v) <= LARGEST end

--- Returns a range that has room, from one that may be a single value.
---@param least number
---@param most number
---@return number
---@return number
function M.widened(least, most)
  if most - least > math.max(math.abs(least), math.abs(most)) * 1e-12 and most - least > 1e-290 then
    return least, most
  end
  local by = math.max(0.5, math.abs(least) * 1e-6)
  return least - by, most + by
end

--- Returns a number as the text of an axis.
---@param value number
---@return string
function M.number(value)
  if value == 0 then return "0" end
  local size = math.abs(value)
  if size >= 1e5 or size < 1e-3 then
    return (("%.2g"):format(value):gsub("e([+-])0*(%d)", "e%1%2"):gsub("e%+", "e"))
  end
  return ("%.4g"):format(value)
end

local function multiples(least, most, step)
  local list = {}
  for i = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9) do list[#list + 1] = i * step end
  return list
end

-- Round numbers within a range, about `wanted` of them, and two at least: one alone gives no scale.
local function ticks(least, most, wanted)
  local rough = (most - least) / math.max(wanted, 1)
  local power, list = 10 ^ math.floor(math.log10(rough)), {}
  for _, factor in ipairs { 10, 5, 2, 1, 0.5 } do
    local finer = multiples(least, most, factor * power)
    if #list >= 2 and factor * power < rough then break end
    list = finer
  end
  return list
end

local function range_of(list, key, scale)
  local least, most = math.huge, -math.huge
  for _, one in ipairs(list) do
    for _, value in ipairs(one[key]) do
      value = scale(value)
      if is_finite(value) then least, most = math.min(least, value), math.max(most, value) end
    end
  end
  if least > most then return 0, 1 end
  return M.widened(least, most)
end

-- A text as lines no wider than `width`, broken between words; within a word that is wider itself.
local function wrapped(canvas, text, width)
  local lines, line = {}, ""
  local function add(piece, between)
    local longer = line == "" and piece or line .. between .. piece
    if line ~= "" and canvas:measure(longer) > width then
      lines[#lines + 1], line = line, piece
    else
      line = longer
    end
  end
  for word in text:gmatch("%S+") do
    if canvas:measure(word) <= width then
      add(word, " ")
    else
      local between = " "
      for character in word:gmatch(CHARACTER) do
        add(character, between)
        between = ""
      end
    end
  end
  if line ~= "" then lines[#lines + 1] = line end
  return lines
end

-- Draws the title, alone in its lines; returns where the rest begins.
local function titled(canvas, title)
  local y = canvas.pad
  for _, line in ipairs(wrapped(canvas, title or "", canvas.width)) do
    canvas:text((canvas.width - canvas:measure(line)) / 2, y, line)
    y = y + canvas.ch
  end
  return y > canvas.pad and y + canvas.pad / 2 or y
end

-- The rows of a legend: { entries, width } each. A name wider than the canvas takes several.
local function legend_rows(canvas, names)
  local rows, row, used = {}, {}, 0
  for i, name in ipairs(names) do
    for _, line in ipairs(wrapped(canvas, name, canvas.width - canvas.swatch - 2 * canvas.cw)) do
      local width = canvas.swatch + canvas:measure(line) + 2 * canvas.cw
      if #row > 0 and used + width > canvas.width then
        rows[#rows + 1], row, used = { row, used }, {}, 0
      end
      row[#row + 1], used = { name = line, at = used, colour = (i - 1) % COLOURS + 1 }, used + width
    end
  end
  if #row > 0 then rows[#rows + 1] = { row, used } end
  return rows
end

-- Draws the names of the curves, from the right, in as many lines as they need.
local function legend_below(canvas, y, names)
  for _, pair in ipairs(legend_rows(canvas, names)) do
    local left = math.max(0, canvas.width - canvas.pad - pair[2] + canvas.cw)
    for _, one in ipairs(pair[1]) do
      local middle = y + canvas.ch / 2
      if canvas.swatch > 0 then
        canvas:line(left + one.at, middle, left + one.at + canvas.swatch - canvas.cw, middle, one.colour)
      end
      canvas:text(left + one.at + canvas.swatch, y, one.name, one.colour)
    end
    y = y + canvas.ch
  end
  return y
end

-- Draws the label of y: upwards at the left where the canvas can turn texts, else in lines above
-- the axis. Returns how far each moves the axes.
local function label_of_y(canvas, text, top, bottom)
  local lines = wrapped(canvas, text or "", canvas.turns and bottom - top or canvas.width)
  for i, line in ipairs(lines) do
    if canvas.turns then
      canvas:text(canvas.pad + (i - 1) * canvas.ch, (top + bottom + canvas:measure(line)) / 2, line, nil,
        true)
    else
      canvas:text(0, top + (i - 1) * canvas.ch, line)
    end
  end
  local size = #lines * canvas.ch + (#lines > 0 and canvas.pad / 2 or 0)
  return canvas.turns and size or 0, canvas.turns and 0 or size
end

local function y_axis(canvas, y, left, top, bottom)
  local texts, widest = {}, 0
  local list = ticks(y.least, y.most, math.max(2, math.floor((bottom - top) / (2.5 * canvas.ch))))
  for i, value in ipairs(list) do
    texts[i] = M.number(y.shown(value))
    widest = math.max(widest, canvas:measure(texts[i]))
  end
  left = left + widest + canvas.cw
  local function place(v) return bottom - (v - y.least) / (y.most - y.least) * (bottom - top) end
  canvas:line(left, top, left, bottom, 0)
  for i, value in ipairs(list) do
    canvas:text(left - canvas:measure(texts[i]) - canvas.cw, place(value) - canvas.ch / 2, texts[i])
  end
  return place, left
end

local function x_axis(canvas, x, left, right, bottom)
  local function place(v) return left + (v - x.least) / (x.most - x.least) * (right - left) end
  canvas:line(left, bottom, right, bottom, 0)
  local last = -math.huge
  for _, value in ipairs(ticks(x.least, x.most, math.floor((right - left) / (10 * canvas.cw)))) do
    local text = M.number(value)
    local width = canvas:measure(text)
    local at = math.min(place(value) - width / 2, canvas.width - width)
    if at > last then
      canvas:text(at, bottom + 1 + canvas.pad / 2, text)
      last = at + width + canvas.cw
    end
  end
  return place
end

-- Draws title, legend, labels, axes and ticks; returns the functions from values to places.
local function frame(canvas, x, y, o, legend)
  local ch, pad = canvas.ch, canvas.pad
  local below = wrapped(canvas, o.x_label or "", canvas.width)
  local bottom = canvas.height - ch * (1 + #below) - 1 - 2 * pad
  local top = legend_below(canvas, titled(canvas, o.title), legend)
  if canvas.turns then top = top + ch / 2 end -- half of the highest tick's text
  top = math.min(top, bottom - 1)
  local right_by, down_by = label_of_y(canvas, o.y_label, top, bottom)
  local place_y, left = y_axis(canvas, y, pad + right_by, math.min(top + down_by, bottom - 1), bottom)
  local right = canvas.width - canvas.cw - 1
  local place_x = x_axis(canvas, x, left, right, bottom)
  for i, line in ipairs(below) do
    local at = (left + right - canvas:measure(line)) / 2
    canvas:text(math.max(0, math.min(at, canvas.width - canvas:measure(line))),
      canvas.height - pad / 2 - (#below - i + 1) * ch, line)
  end
  return place_x, place_y, bottom
end

local function same(v) return v end

--- Draws curves.
---@param canvas table
---@param list { name: string, x: number[], y: number[] }[]
---@param o table options of plot.curves
function M.curves(canvas, list, o)
  local scale = o.log and function(v) return v > 0 and math.log10(v) or 0 / 0 end or same
  local x, y = { shown = same }, { shown = o.log and function(v) return 10 ^ v end or same }
  x.least, x.most = range_of(list, "x", same)
  y.least, y.most = range_of(list, "y", scale)
  local legend = {}
  for i, one in ipairs(list) do legend[i] = one.name end
  local place_x, place_y = frame(canvas, x, y, o, legend)
  for i, one in ipairs(list) do
    local px, py
    for k = 1, #one.y do
      local v = scale(one.y[k])
      local qx, qy = nil, nil
      if is_finite(v) and is_finite(one.x[k]) then qx, qy = place_x(one.x[k]), place_y(v) end
      if qx then canvas:line(px or qx, py or qy, qx, qy, (i - 1) % COLOURS + 1) end
      px, py = qx, qy
    end
  end
end

-- How the bars stand: names beside them, or above where a name takes more than half the width.
local function bars_in(canvas, list)
  local names, texts, least, most = 0, 0, 0, 0
  for _, pair in ipairs(list) do
    local v = is_finite(pair[2]) and pair[2] or 0
    names, texts = math.max(names, canvas:measure(pair[1])),
      math.max(texts, canvas:measure(M.number(pair[2])))
    least, most = math.min(least, v), math.max(most, v)
  end
  local above = names > canvas.width / 2
  local left = canvas.pad + (above and 0 or names + canvas.cw)
  local right = canvas.width - texts - 2 * canvas.cw - canvas.pad
  local function place(v) return left + (v - least) / math.max(most - least, 1e-300) * (right - left) end
  return place, above
end

--- Draws bars, each with its name and value; says how many have no room.
---@param canvas table
---@param list { [1]: string, [2]: number }[]
---@param o table options of plot.bars
function M.bars(canvas, list, o)
  local ch = canvas.ch
  local at = titled(canvas, o.title)
  local place, above = bars_in(canvas, list)
  local names, needed = {}, 0
  for i, pair in ipairs(list) do
    names[i] = above and wrapped(canvas, pair[1], canvas.width) or {}
    needed = needed + #names[i] * ch
  end
  local room = math.floor((canvas.height - at - needed) / math.max(#list, 1) / ch) * ch
  local per = math.max(ch, math.min((canvas.turns and 4 or 2) * ch, room))
  local thick = math.max(1, per - (per > ch and ch / 2 or ch / 4))
  for i, pair in ipairs(list) do
    local v, size = is_finite(pair[2]) and pair[2] or 0, #names[i] * ch + per
    if at + size + (i < #list and ch or 0) > canvas.height + per - ch then
      return canvas:text(canvas.pad, math.min(at, canvas.height - ch), ("and %d more"):format(#list - i + 1))
    end
    for k, line in ipairs(names[i]) do canvas:text(canvas.pad, at + (k - 1) * ch, line) end
    at = at + #names[i] * ch
    local from, to = place(math.min(v, 0)), place(math.max(v, 0))
    local beside = at + (canvas.turns and (thick - ch) / 2 or 0)
    if not above then canvas:text(canvas.pad, beside, pair[1]) end
    canvas:box(from, at, to - from, thick, (i - 1) % COLOURS + 1)
    canvas:text(to + canvas.cw, beside, M.number(pair[2]))
    at = at + per
  end
end

--- Draws a histogram.
---@param canvas table
---@param counts integer[]
---@param least number
---@param most number
---@param o table options of plot.histogram
function M.histogram(canvas, counts, least, most, o)
  local highest = 1
  for _, count in ipairs(counts) do highest = math.max(highest, count) end
  local place_x, place_y, bottom = frame(canvas, { least = least, most = most, shown = same },
    { least = 0, most = highest, shown = same }, o, {})
  local width = (most - least) / #counts
  for i, count in ipairs(counts) do
    local from, to = place_x(least + (i - 1) * width), place_x(least + i * width)
    if count > 0 then canvas:box(from, place_y(count), to - from, bottom - place_y(count), 1) end
  end
end

--- Draws a picture below its title.
---@param canvas table
---@param picture accelerate.Tensor uint8 [H, W, C]
---@param o table options of plot.image
function M.image(canvas, picture, o)
  if not o.title then return canvas:picture(picture) end
  local top = titled(canvas, o.title)
  canvas:picture(picture, 0, top, canvas.width, math.max(canvas.ch, canvas.height - top))
end

--- Draws figures side by side, row after row, below the title.
---@param canvas table
---@param figures accelerate.Figure[]
---@param o table options of plot.grid
function M.grid(canvas, figures, o)
  local top, gap = titled(canvas, o.title), 2 * canvas.cw
  local rows = math.ceil(#figures / o.columns)
  local width = math.floor((canvas.width + gap) / o.columns / canvas.cw) * canvas.cw
  local height = math.floor((canvas.height - top) / rows / canvas.ch) * canvas.ch
  for i, figure in ipairs(figures) do
    local column, row = (i - 1) % o.columns, math.floor((i - 1) / o.columns)
    figure:_draw(panel.new(canvas, column * width, top + row * height, width - gap, height))
  end
end

return M
