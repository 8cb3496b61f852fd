--- Rows of different lengths made one length.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

--- Returns the smallest multiple of `step` that is at least `n`.
---@param n integer
---@param step integer?
---@return integer
function M.rounded(n, step) return step and math.ceil(n / step) * step or n end

---@return integer[] of `n` ones
function M.ones(n)
  local list = {}
  for i = 1, n do list[i] = 1 end
  return list
end

--- Extends a list in place by `gap` entries, behind it or before it.
---@param list any[]
---@param gap integer
---@param value any a function is called for each entry
---@param left boolean
---@return any[] list
function M.extend(list, gap, value, left)
  if gap <= 0 then return list end
  local n = #list
  if left then
    for i = n, 1, -1 do list[i + gap] = list[i] end
  end
  for i = 1, gap do
    local entry = value
    if type(value) == "function" then entry = value() end
    list[left and i or n + i] = entry
  end
  return list
end

--- Returns the length of the longest input_ids of rows, after a look at them.
---@param where string
---@param rows table[]
---@return integer
function M.longest(where, rows)
  if type(rows) ~= "table" or type(rows[1]) ~= "table" then
    fail("%s: expected a list of encoded texts, got %s", where, show(rows))
  end
  local longest = 0
  for i = 1, #rows do
    local ids = type(rows[i]) == "table" and rows[i].input_ids
    if type(ids) ~= "table" then fail("%s: row %d has no list input_ids", where, i) end
    if #ids > longest then longest = #ids end
  end
  return longest
end

--- Returns the width of a tensor of rows, which are padded to `width` (nil: not at all) and where
--- they are longer keep their length. Raises where they have several lengths then.
---@param where string
---@param width integer?
---@param lengths integer[] of the rows
---@return integer
function M.tensor_width(where, width, lengths)
  local longest = width or 0
  for _, n in ipairs(lengths) do longest = math.max(longest, n) end
  for _, n in ipairs(lengths) do
    n = math.max(n, width or 0)
    if n ~= longest then
      fail("%s: rows of %d and %d tokens make no tensor; use padding = true and truncation = true", where, n,
        longest)
    end
  end
  return longest
end

local PADS = { labels = -100, special_tokens_mask = 1 }

--- Joins rows to tensors, lists padded to `width`.
---@param rows table<string, integer[]|number>[]
---@param width integer
---@param pad_id integer for input_ids
---@param left boolean
---@return table<string, accelerate.Tensor>
function M.join(rows, width, pad_id, left)
  local names, result = {}, {}
  for name in pairs(rows[1]) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local values, lists = {}, type(rows[1][name]) == "table"
    for i, row in ipairs(rows) do
      local value = row[name]
      if (type(value) == "table") ~= lists or value == nil then
        fail("pad: %s of row %d is %s; row 1 has %s", name, i, show(value), lists and "a list" or "a number")
      end
      if lists then
        local copy = {}
        for k = 1, #value do copy[k] = value[k] end
        if #copy > width then
          fail("pad: %s of row %d has %d entries; input_ids have at most %d", name, i, #copy, width)
        end
        value = M.extend(copy, width - #copy, name == "input_ids" and pad_id or PADS[name] or 0, left)
      end
      values[i] = value
    end
    local first = lists and values[1][1] or values[1]
    if type(first) ~= "number" and first ~= nil then
      fail("pad: %s holds %s; expected numbers", name, show(first))
    end
    local whole = true
    for _, value in ipairs(lists and {} or values) do whole = whole and value % 1 == 0 end
    result[name] = core.tensor(values, { dtype = whole and "int64" or "float32" })
  end
  return result
end

return M
