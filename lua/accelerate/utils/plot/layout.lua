--- Where the parts of a figure go, for any canvas: it has width, height, the size of a character
--- (cw, ch), and draws line, box and text.
local M = {}

local COLOURS = 6

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

-- Round numbers within a range, about `wanted` of them.
local function ticks(least, most, wanted)
  local rough = (most - least) / math.max(wanted, 1)
  local power = 10 ^ math.floor(math.log10(rough))
  local step = 10 * power
  for _, factor in ipairs { 1, 2, 5 } do
    if factor * power >= rough then
      step = factor * power
      break
    end
  end
  local list = {}
  for i = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9) do list[#list + 1] = i * step end
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

-- Draws title, axes and ticks; returns the functions from values to places.
local function frame(canvas, x, y, o, legend)
  local cw, ch = canvas.cw, canvas.ch
  local top = (o.title or #legend > 0 or o.y_label) and ch or 0
  local bottom = canvas.height - ch - (o.x_label and ch or 0) - 1
  local y_ticks = y.ticks or ticks(y.least, y.most, math.max(2, math.floor((bottom - top) / (2.5 * ch))))
  local widest = 0
  for _, value in ipairs(y_ticks) do widest = math.max(widest, #M.number(y.shown(value))) end
  local left, right = (widest + 1) * cw, canvas.width - cw - 1
  local function place_x(v) return left + (v - x.least) / (x.most - x.least) * (right - left) end
  local function place_y(v) return bottom - (v - y.least) / (y.most - y.least) * (bottom - top) end
  canvas:line(left, top, left, bottom, 0)
  canvas:line(left, bottom, right, bottom, 0)
  for _, value in ipairs(y_ticks) do
    local text = M.number(y.shown(value))
    canvas:text(left - (#text + 1) * cw, place_y(value) - ch / 2, text)
  end
  local last = -math.huge
  for _, value in ipairs(x.ticks or ticks(x.least, x.most, math.floor((right - left) / (10 * cw)))) do
    local text = M.number(value)
    local at = math.min(place_x(value) - #text * cw / 2, canvas.width - #text * cw)
    if at > last then canvas:text(at, bottom + 1, text) end
    last = math.max(last, at + (#text + 1) * cw)
  end
  if o.x_label then canvas:text((left + right - #o.x_label * cw) / 2, canvas.height - ch, o.x_label) end
  local at = 0
  for _, text in ipairs { o.y_label or "", o.title or "" } do
    canvas:text(at, 0, text)
    if text ~= "" then at = at + (#text + 2) * cw end
  end
  at = canvas.width
  for i = #legend, 1, -1 do
    at = at - (#legend[i] + 2) * cw
    canvas:text(at, 0, legend[i], (i - 1) % COLOURS + 1)
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
  for i, one in ipairs(list) do
    if one.name ~= "" then legend[i] = one.name end
  end
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

--- Draws bars, each with its name and value.
---@param canvas table
---@param list { [1]: string, [2]: number }[]
---@param o table options of plot.bars
function M.bars(canvas, list, o)
  local cw, ch = canvas.cw, canvas.ch
  local top, names, texts, most, least = o.title and ch or 0, 0, 0, 0, 0
  for _, pair in ipairs(list) do
    local v = is_finite(pair[2]) and pair[2] or 0
    names, texts = math.max(names, #pair[1]), math.max(texts, #M.number(pair[2]))
    least, most = math.min(least, v), math.max(most, v)
  end
  if o.title then canvas:text(0, 0, o.title) end
  names = math.min(names, math.floor(canvas.width / cw / 3))
  local left, right = (names + 1) * cw, canvas.width - (texts + 2) * cw
  local per = math.max(1, math.min(2 * ch, math.floor((canvas.height - top) / math.max(#list, 1) / ch) * ch))
  if per < ch then per = ch end
  local function place(v) return left + (v - least) / math.max(most - least, 1e-300) * (right - left) end
  for i, pair in ipairs(list) do
    local at, v = top + (i - 1) * per, is_finite(pair[2]) and pair[2] or 0
    if at + ch > canvas.height then return end
    local from, to = place(math.min(v, 0)), place(math.max(v, 0))
    canvas:text(0, at, pair[1]:sub(1, names))
    canvas:box(from, at, to - from, math.max(1, per - (per > ch and ch / 2 or ch / 4)), (i - 1) % COLOURS + 1)
    canvas:text(to + cw, at, M.number(pair[2]))
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

return M
