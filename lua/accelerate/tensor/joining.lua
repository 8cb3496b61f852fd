--- Joins and cuts of several tensors.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

-- Each with at least n dims: PyTorch puts new dims in front, and the third one behind.
local function at_least(n, x)
  if n >= 1 and x.ndim == 0 then x = x:unsqueeze(1) end
  if n >= 2 and x.ndim == 1 then x = x:unsqueeze(1) end
  if n >= 3 and x.ndim == 2 then x = x:unsqueeze(3) end
  return x
end

for n = 1, 3 do
  define.prepared(("atleast_%dd"):format(n), "tensors:T*",
    ("each with at least %d dims, as several values"):format(n), define.listed, function(list)
      return unpack(lists.map(list, function(x) return at_least(n, x) end))
    end, "function")
end

-- A function of a list that core.cat joins.
local function join(name, summary, fn) define(name, "tensors:T*", summary, fn, "function") end
join("hstack", "joined along dim 2; vectors along dim 1", function(list)
  list = lists.map(list, function(x) return at_least(1, x) end)
  return core.cat(list, list[1].ndim == 1 and 1 or 2)
end)
local function vstack(list) return core.cat(lists.map(list, function(x) return at_least(2, x) end), 1) end
join("vstack", "joined along dim 1; vectors are rows", vstack)
join("row_stack", "another name of `vstack`", vstack)
join("dstack", "joined along dim 3", function(list)
  return core.cat(lists.map(list, function(x) return at_least(3, x) end), 3)
end)
join("column_stack", "joined along dim 2; vectors are columns", function(list)
  return core.cat(lists.map(list, function(x) return x.ndim <= 1 and x:reshape(-1, 1) or x end), 2)
end)

define.prepared("block_diag", "tensors:T*", "matrices along the diagonal of a matrix of zeros",
  define.listed,
  function(list)
  local rows, columns, before = {}, 0, 0
  for i, x in ipairs(list) do
    if x.ndim > 2 then
      options.fail("block_diag: entry %d: expected at most 2 dims, got %s", i, lists.shape_text(x))
    end
    list[i] = at_least(2, x)
    columns = columns + list[i].shape[2]
  end
  for i, x in ipairs(list) do
    rows[i] = x:pad({ before, columns - before - x.shape[2] })
    before = before + x.shape[2]
  end
  return core.cat(rows, 1)
end, "function")

define.prepared("cartesian_prod", "tensors:T*", "all choices of one element of each vector, as rows",
  define.listed,
  function(list)
  for i, x in ipairs(list) do
    if x.ndim ~= 1 then
      options.fail("cartesian_prod: entry %d: expected a vector, got %s", i, lists.shape_text(x))
    end
  end
  if #list == 1 then return list[1] end
  return core.stack(lists.map({ core.meshgrid(list) }, function(x) return x:reshape(-1) end), 2)
end, "function")

local MOST_CHOSEN = 2 ^ 26 -- they are listed in Lua first
define("combinations", "x:T r:int=2 with_replacement:bool=false",
  "all choices of r elements of a vector, as rows",
  function(x, r, with_replacement)
    if x.ndim ~= 1 then
      options.fail("combinations: expected a vector, got %s", lists.shape_text(x))
    end
    if r < 0 then options.fail("combinations: r must be at least 0, got %d", r) end
    if r == 0 then return x:new_empty(0) end
    local n, rows = x:numel(), {}
    local count = 1 -- of the choices: the product of (free + i) / i
    local free = with_replacement and n - 1 or n - r
    if n == 0 or free < 0 then return x:new_empty(0, r) end
    for i = 1, r do
      count = count * (free + i) / i
      if count * r > MOST_CHOSEN then
        options.fail("combinations: more than %d numbers of %d elements, %d at a time", MOST_CHOSEN, n, r)
      end
    end
    local function choose(first, chosen)
      if #chosen == r then
        for _, i in ipairs(chosen) do rows[#rows + 1] = i end
        return
      end
      for i = first, n - 1 do
        chosen[#chosen + 1] = i
        choose(with_replacement and i or i + 1, chosen)
        chosen[#chosen] = nil
      end
    end
    choose(0, {})
    return x:index_select(1, core.tensor(rows, { dtype = "int64", device = x.device })):view(-1, r)
  end)

-- The common shape of shapes, each broadcast against the others.
local function common_shape(where, shapes)
  local out = {}
  for _, shape in ipairs(shapes) do
    for back = 1, #shape do
      local have, size = out[back], shape[#shape + 1 - back]
      if have and have ~= size and have ~= 1 and size ~= 1 then
        local texts = lists.map(shapes, lists.shape_text)
        options.fail("%s: shapes %s do not broadcast", where, table.concat(texts, " and "))
      end
      if not have or have == 1 then out[back] = size end
    end
  end
  local shape = {}
  for i = 1, #out do shape[i] = out[#out + 1 - i] end
  return shape
end

define.plain("broadcast_shapes", "tensor.broadcast_shapes(shape...)",
  "the shape of a sum of tensors of these shapes", "function", function(...)
    local shapes = { ... }
  for i = 1, select("#", ...) do
    if type(shapes[i]) ~= "table" then
      options.fail("broadcast_shapes: argument %d: expected a list of sizes, got %s", i,
        options.show(shapes[i]))
    end
  end
  return common_shape("broadcast_shapes", shapes)
  end)
define.prepared("broadcast_tensors", "tensors:T*", "each expanded to their common shape, as several values",
  define.listed,
  function(list)
    local shape = common_shape("broadcast_tensors", lists.map(list, function(x) return x.shape end))
    return unpack(lists.map(list, function(x) return x:expand(shape) end))
  end, "function")

local MOST_PARTS = 4096 -- a Lua function does not return many more values
define("tensor_split", "x:T sections:ints dim:dim=1",
  "views: a number of nearly equal ones, or those that begin at listed positions, counted from 0",
  function(x, sections, dim)
    local size, parts = x.shape[dim], {}
    local cuts = sections
    if #sections == 1 then
      local n = sections[1]
      if n < 1 or n > MOST_PARTS then
        options.fail("tensor_split: sections must be from 1 to %d, got %d", MOST_PARTS, n)
      end
      cuts = {}
      for i = 1, n - 1 do cuts[i] = math.floor(size / n) * i + math.min(i, size % n) end
    end
    local from = 0
    for i = 1, #cuts + 1 do
      local to = cuts[i] or size
      if to < 0 then to = to + size end
      to = math.max(0, math.min(to, size))
      parts[i] = x:narrow(dim, math.min(from, size - 1) + 1, math.max(to - from, 0))
      from = to
    end
    return unpack(parts)
  end)
