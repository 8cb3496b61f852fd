--- Values as a notebook shows them: texts by their types (text/plain, text/html, image/png,
--- image/svg+xml).
local core = require "accelerate.core"
local show = require "accelerate.utils.show"

local M = {}

local MOST = 20 -- rows and columns of a table

local ESCAPES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }

local function escaped(text) return (text:gsub('[&<>"]', ESCAPES)) end

local function cell(tag, text) return ("<%s>%s</%s>"):format(tag, escaped(text), tag) end

local function table_of(rows)
  return '<table style="text-align: right">\n' .. table.concat(rows, "\n") .. "\n</table>"
end

-- ---- tensors

-- Positions 1 to n, those in the middle of many left out: 0 stands for them.
local function positions(n)
  local list = {}
  for i = 1, n do
    if n <= MOST or i <= MOST / 2 or i > n - MOST / 2 then list[#list + 1] = i
    elseif list[#list] ~= 0 then list[#list + 1] = 0 end
  end
  return list
end

local function number_text(value, imaginary)
  if imaginary then return ("%.5g%+.5gj"):format(value, imaginary) end
  if type(value) ~= "number" then return tostring(value) end
  return value % 1 == 0 and math.abs(value) < 1e15 and ("%d"):format(value) or ("%.5g"):format(value)
end

local function tensor_row(x, columns)
  local out = {}
  for i, at in ipairs(columns) do
    out[i] = at == 0 and cell("td", "…") or cell("td", number_text(x[at]:item()))
  end
  return "<tr>" .. table.concat(out) .. "</tr>"
end

local function tensor_html(x)
  local dims = x:dim()
  if dims < 1 or dims > 2 or x:numel() == 0 then return nil end
  x = x:detach():to("cpu")
  local columns, rows = positions(x:size(-1)), {}
  if dims == 1 then
    rows[1] = tensor_row(x, columns)
  else
    for i, at in ipairs(positions(x:size(1))) do
      rows[i] = at == 0 and "<tr><td>⋮</td></tr>" or tensor_row(x[at], columns)
    end
  end
  local caption = ("<caption>[%s] %s, %s</caption>"):format(table.concat(x.shape, ", "), x.dtype,
    tostring(x.device))
  return table_of { caption, unpack(rows) }
end

-- ---- tables

local function text_of(value)
  return type(value) == "string" and value or show.pformat(value, { depth = 2, count = 8 })
end

local function sorted_keys(map)
  local list = {}
  for key in next, map do list[#list + 1] = key end
  table.sort(list, function(a, b)
    if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
    return tostring(a) < tostring(b)
  end)
  return list
end

-- The names of the columns when all entries of a list are plain maps; nil else.
local function columns_of(list)
  local set = {}
  for _, entry in ipairs(list) do
    if type(entry) ~= "table" or getmetatable(entry) ~= nil or #entry > 0 then return nil end
    for key in next, entry do
      if type(key) ~= "string" then return nil end
      set[key] = true
    end
  end
  return next(set) and sorted_keys(set) or nil
end

local function more(rows, left)
  if left > 0 then rows[#rows + 1] = ("<tr><td>… %d more</td></tr>"):format(left) end
  return table_of(rows)
end

local function records_html(list, columns)
  local rows, head = {}, {}
  for i, name in ipairs(columns) do head[i] = cell("th", name) end
  rows[1] = "<tr>" .. table.concat(head) .. "</tr>"
  for i = 1, math.min(#list, MOST) do
    local out = {}
    for k, name in ipairs(columns) do
      local value = list[i][name]
      out[k] = cell("td", value == nil and "" or text_of(value))
    end
    rows[#rows + 1] = "<tr>" .. table.concat(out) .. "</tr>"
  end
  return more(rows, #list - MOST)
end

local function map_html(map)
  local rows, keys = {}, sorted_keys(map)
  for i = 1, math.min(#keys, MOST) do
    rows[i] = ("<tr>%s%s</tr>"):format(cell("th", tostring(keys[i])), cell("td", text_of(map[keys[i]])))
  end
  return more(rows, #keys - MOST)
end

local function table_html(value)
  if getmetatable(value) ~= nil or next(value) == nil then return nil end
  local columns = columns_of(value)
  if value[1] == nil then return map_html(value) end
  if columns and #columns <= MOST then return records_html(value, columns) end
end

-- ---- bundles

local function pictures_of(value)
  local meta = debug.getmetatable(value)
  local fn = type(meta) == "table" and rawget(meta, "__mime")
  local fine, list = pcall(function() return fn and fn(value) end)
  return fine and list or {}
end

--- Returns a value's texts by their types. A value whose metatable has __mime(value) gives more of
--- them, as pictures do.
---@param value any
---@return table<string, string>
function M.bundle(value)
  local data = { ["text/plain"] = show.pformat(value) }
  local fine, html = pcall(function()
    if core.is_tensor(value) then return tensor_html(value) end
    return type(value) == "table" and table_html(value) or nil
  end)
  if fine then data["text/html"] = html end
  for kind, text in next, pictures_of(value) do data[kind] = text end
  return data
end

return M
