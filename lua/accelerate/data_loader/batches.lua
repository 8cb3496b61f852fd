--- Joins and cuts batches of any form for the dispatching loader.
---
--- A batch is a list of parts, { n = count, ... }, as the loader returns them. Dim 1 of a tensor
--- counts items, and so does the length of a column: a list without tensors (strings, numbers,
--- tables). The number of items is dim 1 of the first tensor that has dims; without tensors it is
--- the length of the outermost first list.
local core = require "accelerate.core"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail
local is_tensor, is_container, empty_like = core.is_tensor, nested.is_container, nested.empty_like

local M = {}

local ADVICE = "; pass dispatch_batches = false, so that every process reads its own batches, or " ..
  "split_batches = true, so that one "
  .. "batch is read and cut for all"

local function has_tensor(value)
  if is_tensor(value) then return true end
  if is_container(value) then
    for _, item in pairs(value) do
      if has_tensor(item) then return true end
    end
  end
  return false
end

local function is_column(value, count)
  return is_container(value) and #value == count and ordered.is_list(value) and not has_tensor(value)
end

local function extend(path, key) return (type(key) == "number" and "%s[%d]" or "%s.%s"):format(path, key) end

local function find(value, test)
  local found = test(value)
  if found or not is_container(value) then return found end
  for _, key in ipairs(ordered.keys(value)) do
    found = find(value[key], test)
    if found then return found end
  end
end

--- Returns a batch as one value: its only part, or the list of its parts.
function M.value(batch)
  if batch.n == 1 then return batch[1] end
  local list = {}
  for i = 1, batch.n do list[i] = batch[i] end
  return list
end

--- Returns the parts of `value`.
---@param n integer number of parts
function M.parts(value, n)
  if n == 1 then return { n = 1, value } end
  local batch = { n = n }
  for i = 1, n do batch[i] = value[i] end
  return batch
end

--- Returns the number of items in a batch; nil when nothing in it counts them.
---@param value any
---@param n integer number of parts
---@return integer?
function M.count(value, n)
  local size = find(value, function(v) return is_tensor(v) and v:dim() > 0 and v:size(1) end)
  if size then return size end
  if is_tensor(value) or not is_container(value) then return nil end
  local function length(v) return is_container(v) and #v > 0 and ordered.is_list(v) and #v end
  if n == 1 then return find(value, length) or nil end
  for i = 1, n do -- the parts themselves are not items
    size = find(value[i], length)
    if size then return size end
  end
end

local function shapes_of(tensors)
  local list = {}
  for i, t in ipairs(tensors) do list[i] = ("[%s]"):format(table.concat(t.shape, ", ")) end
  return table.concat(list, " and ")
end

local function join_tensors(list, counts, path)
  if #list == 1 then return list[1] end
  for i, t in ipairs(list) do
    if not is_tensor(t) then
      fail("dispatch_batches: %s is a tensor in one batch and %s in another%s", path, options.show(t), ADVICE)
    end
    if t:dim() == 0 or t:size(1) ~= counts[i] then
      fail("dispatch_batches: %s of shape [%s] cannot be joined with that of another batch: its dim 1 " ..
        "must count the %d items%s", path,
        table.concat(t.shape, ", "), counts[i], ADVICE)
    end
  end
  local ok, joined = pcall(core.cat, list, 1)
  if not ok then
    fail("dispatch_batches: batches of different sizes cannot be joined: %s has %s%s", path, shapes_of(list),
      ADVICE)
  end
  return joined
end

local function join(list, counts, path)
  local first = list[1]
  if is_tensor(first) then return join_tensors(list, counts, path) end
  if #list == 1 then return first end
  if not is_container(first) then
    for i = 2, #list do
      if list[i] ~= first then
        fail("dispatch_batches: %s is %s in one batch and %s in another: what is no tensor and no list " ..
          "of items cannot be joined%s", path,
          options.show(first), options.show(list[i]), ADVICE)
      end
    end
    return first
  end
  local columns = true
  for i, value in ipairs(list) do columns = columns and is_column(value, counts[i]) end
  local joined = columns and {} or empty_like(first)
  if columns then
    for _, value in ipairs(list) do
      for _, item in ipairs(value) do joined[#joined + 1] = item end
    end
    return joined
  end
  for i = 2, #list do
    if not is_container(list[i]) or ordered.count(list[i]) ~= ordered.count(first) then
      fail("dispatch_batches: %s has other entries in another batch, they cannot be joined%s", path, ADVICE)
    end
  end
  for _, key in ipairs(ordered.keys(first)) do
    local items = {}
    for i, value in ipairs(list) do
      items[i] = value[key]
      if items[i] == nil then
        fail("dispatch_batches: %s is not in every batch, they cannot be joined%s", extend(path, key), ADVICE)
      end
    end
    joined[key] = join(items, counts, extend(path, key))
  end
  return joined
end

--- Joins values of one form: tensors along dim 1, columns end to end. Other leaves must be equal.
---@param list any[] at least one
---@param counts integer[] number of items in each value
function M.join(list, counts) return join(list, counts, "the batch") end

--- Returns items first..last of `count` without copying.
---@param value any
---@param first integer from 1
---@param last integer first - 1 for none
---@param count integer
function M.slice(value, first, last, count)
  if is_tensor(value) then
    if value:dim() == 0 or value:size(1) ~= count then return value end
    if last < first then return value:narrow(1, 1, 0) end
    return value:narrow(1, first, last - first + 1)
  end
  if not is_container(value) then return value end
  local part = empty_like(value)
  if is_column(value, count) then
    for i = first, last do part[#part + 1] = value[i] end
    return part
  end
  for _, key in ipairs(ordered.keys(value)) do part[key] = M.slice(value[key], first, last, count) end
  return part
end

-- ---- over the ranks -----------------------------------------------------------------------------

--- Takes the tensors out of a value.
---@return any skeleton plain tables, with an empty tensor in place of each tensor
---@return accelerate.Tensor[] tensors in the order of sorted keys
---@return table<integer, any[]> orders keys of the tables that remember their order, by the table's
---  number in the walk
function M.unpack_tensors(value)
  local tensors, orders, empty, tables = {}, {}, core.empty({ 0 }), 0
  local function walk(v)
    if is_tensor(v) then
      tensors[#tensors + 1] = v:detach():contiguous()
      return empty
    end
    if not is_container(v) then return v end
    tables = tables + 1
    if ordered.is_ordered(v) then orders[tables] = ordered.keys(v) end
    local copy = {}
    for _, key in ipairs(ordered.sorted_keys(v)) do copy[key] = walk(v[key]) end
    return copy
  end
  return walk(value), tensors, orders
end

--- Puts tensors and key orders back into a skeleton.
function M.pack_tensors(skeleton, tensors, orders)
  local at, tables = 0, 0
  local function walk(v)
    if is_tensor(v) then
      at = at + 1
      return tensors[at]
    end
    if not is_container(v) then return v end
    tables = tables + 1
    local order = orders[tables]
    for _, key in ipairs(ordered.sorted_keys(v)) do v[key] = walk(v[key]) end
    if not order then return v end
    local map = ordered.new()
    for _, key in ipairs(order) do map[key] = v[key] end
    return map
  end
  return walk(skeleton)
end

return M
