--- Joins and cuts batches of any form for the dispatching loader.
---
--- A batch is a list of parts, { n = count, ... }, as the loader returns them. Dim 1 of a tensor
--- counts items, and so does the length of a column: a list without tensors (strings, numbers,
--- tables). The number of items is dim 1 of the first tensor that has dims; without tensors it is
--- the length of the outermost first list. A field that only happens to have that length is found
--- out by `weigh`, and passed on whole.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail
local is_tensor, is_container, empty_like = core.is_tensor, nested.is_container, nested.empty_like

local M = {}

local ADVICE = "; pass dispatch_batches = false, so that every process reads its own batches, or " ..
  "split_batches = true, so that one " ..
  "batch is read and cut for all"

local ROOT = "the batch" -- how messages, and the places of fields, name it

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

local function fits(value, count)
  if is_tensor(value) then return value:dim() > 0 and value:size(1) == count end
  return is_column(value, count)
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

-- ---- fields that count items

local function same(a, b)
  if rawequal(a, b) then return true end
  if is_tensor(a) then
    return is_tensor(b) and a.dtype == b.dtype and lists.same(a.shape, b.shape) and a:eq(b):all():item()
  end
  if not is_container(a) or not is_container(b) then return a == b end
  if ordered.count(a) ~= ordered.count(b) then return false end
  for _, key in ipairs(ordered.keys(a)) do
    if not same(a[key], b[key]) then return false end
  end
  return true
end

-- Whether all items are the same. A column may well have one value only, a constant list hardly.
local function is_uniform(value)
  for i = 2, #value do
    if not same(value[1], value[i]) then return false end
  end
  return true
end

local function all_fit(list, counts)
  for i, value in ipairs(list) do
    if not fits(value, counts[i]) then return false end
  end
  return true
end

-- A field is a tensor, or a list without tensors. Its `kind` is what more of its values have shown:
--   "items"     it counts items;
--   "nested"    it has another length than the items: what is in it may count them;
--   "constant"  it is a list, and equal in all batches: each rank gets all of it;
--   nil         it has had the items' number of entries, and may be of any kind: it counts them, as
--               far
--               as is known.
-- Equal tensors are no sign of a constant: flags and labels repeat. Nor are lists of one repeated
-- item.
local function is_field(value)
  return is_tensor(value)
    or is_container(value) and #value > 0 and ordered.is_list(value) and not has_tensor(value)
end

local function decide(field, list, counts)
  local equal = true
  for _, value in ipairs(list) do equal = equal and same(value, field.first) end
  if not all_fit(list, counts) then field.kind = field.kind == "constant" and equal and "constant" or "nested"
  elseif not equal then field.kind = "items"
  elseif field.seen > 1 and not is_tensor(field.first) and not is_uniform(field.first) then
    field.kind = "constant"
  end
end

local function describe(value)
  return is_tensor(value) and ("the shape [%s]"):format(table.concat(value.shape, ", "))
    or is_container(value) and ("%d entries"):format(#value) or options.show(value)
end

local function check_items(list, counts, path)
  for i, value in ipairs(list) do
    if not fits(value, counts[i]) then
      fail("dispatch_batches: %s counted the items of the batches before, and has %s in one of %d items%s",
        path, describe(value), counts[i], ADVICE)
    end
  end
end

-- Where a step has one batch, ranks got their parts of those before by what was known then.
local function check_former(field, former, path)
  if field.kind == former or field.seen <= 2 then return end
  if former == "constant" then
    fail("dispatch_batches: %s was equal in the batches before, so that every rank got all of it, and is " ..
      "another in this one; give batches whose lists and tensors all count items", path)
  elseif former == nil and field.kind == "nested" then
    fail("dispatch_batches: %s had as many entries as there are items in the batches before, so that it " ..
      "was cut, and has another number in this one; " ..
      "give batches whose lists and tensors all count items", path)
  end
end

local function weigh_field(fields, list, counts, path)
  local field = fields[path] or { first = list[1], seen = 0 }
  fields[path], field.seen = field, field.seen + #list
  local former = field.kind
  if former == "items" then check_items(list, counts, path) end
  if former == "items" or former == "nested" then return former end
  decide(field, list, counts)
  if fields.alone then check_former(field, former, path) end
  if field.kind == "items" or field.kind == "nested" then field.first = nil end
  return field.kind
end

local function weigh(fields, list, counts, path, n)
  local first = list[1]
  local parts = n and n > 1 -- the list of a batch's parts is no field
  if not parts and (fields[path] or is_field(first)) then
    if weigh_field(fields, list, counts, path) ~= "nested" then return end
  end
  if is_tensor(first) or not is_container(first) then return end
  for _, key in ipairs(ordered.keys(first)) do
    local values = {}
    for i, value in ipairs(list) do values[i] = is_container(value) and value[key] or nil end
    if #values == #list then weigh(fields, values, counts, extend(path, key)) end
  end
end

--- Learns from the batches of a step which fields count items.
---@param fields table what the steps before have taught, { alone = whether a step has one batch }
---  at the start of a pass
---@param list any[] the batches
---@param counts integer[] number of items in each
---@param n integer parts of a batch
function M.weigh(fields, list, counts, n) weigh(fields, list, counts, ROOT, n) end

--- Returns the kinds of fields that do not count items, by their place.
---@return table<string, "nested"|"constant">
function M.whole_of(fields)
  local whole = {}
  for path, field in pairs(fields) do
    if path ~= "alone" and field.kind ~= "items" then whole[path] = field.kind end
  end
  return whole
end

-- ---- joining and cutting

local function shapes_of(tensors)
  local list = {}
  for i, t in ipairs(tensors) do list[i] = ("[%s]"):format(table.concat(t.shape, ", ")) end
  return table.concat(list, " and ")
end

-- Whether tensors have one shape but for their dim 1.
local function same_sizes(tensors)
  local first = tensors[1].shape
  for _, t in ipairs(tensors) do
    local shape = t.shape
    if #shape ~= #first then return false end
    for d = 2, #shape do
      if shape[d] ~= first[d] then return false end
    end
  end
  return true
end

local function join_tensors(list, counts, path)
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
    if same_sizes(list) then error(joined, 0) end
    fail("dispatch_batches: batches of different sizes cannot be joined: %s has %s%s", path, shapes_of(list),
      ADVICE)
  end
  return joined
end

local function all_same(list)
  for i = 2, #list do
    if not same(list[1], list[i]) then return false end
  end
  return true
end

local function join_columns(list)
  local joined = {}
  for _, value in ipairs(list) do
    for _, item in ipairs(value) do joined[#joined + 1] = item end
  end
  return joined
end

local join

local function join_entries(list, counts, whole, path)
  local first = list[1]
  for i = 2, #list do
    if not is_container(list[i]) or ordered.count(list[i]) ~= ordered.count(first) then
      fail("dispatch_batches: %s has other entries in another batch, they cannot be joined%s", path, ADVICE)
    end
  end
  local joined = empty_like(first)
  for _, key in ipairs(ordered.keys(first)) do
    local items = {}
    for i, value in ipairs(list) do
      items[i] = value[key]
      if items[i] == nil then
        fail("dispatch_batches: %s is not in every batch, they cannot be joined%s", extend(path, key), ADVICE)
      end
    end
    joined[key] = join(items, counts, whole, extend(path, key))
  end
  return joined
end

function join(list, counts, whole, path)
  local first = list[1]
  if #list == 1 then return first end
  if (whole[path] == "constant" or whole[path] and is_tensor(first)) and all_same(list) then return first end
  if is_tensor(first) then return join_tensors(list, counts, path) end
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
  if not whole[path] and all_fit(list, counts) then return join_columns(list) end
  return join_entries(list, counts, whole, path)
end

--- Joins values of one form: tensors along dim 1, columns end to end. Other leaves must be equal.
---@param list any[] at least one
---@param counts integer[] number of items in each value
---@param whole table? from `whole_of`
function M.join(list, counts, whole) return join(list, counts, whole or {}, ROOT) end

local function slice(value, cut, path)
  local kind = cut.whole[path]
  if kind == "constant" or kind and is_tensor(value) then return value end
  if is_tensor(value) then
    if not fits(value, cut.count) then return value end
    return value:narrow(1, cut.last < cut.first and 1 or cut.first, math.max(0, cut.last - cut.first + 1))
  end
  if not is_container(value) then return value end
  local part = empty_like(value)
  if not kind and is_column(value, cut.count) then
    for i = cut.first, cut.last do part[#part + 1] = value[i] end
    return part
  end
  for _, key in ipairs(ordered.keys(value)) do part[key] = slice(value[key], cut, extend(path, key)) end
  return part
end

--- Returns items first..last of `count` without copying.
---@param value any
---@param first integer from 1
---@param last integer first - 1 for none
---@param count integer
---@param whole table? from `whole_of`
function M.slice(value, first, last, count, whole)
  return slice(value, { first = first, last = last, count = count, whole = whole or {} }, ROOT)
end

-- ---- over the ranks

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
