--- vmap: a function of one sample, called for all of a batch.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local positions = require "accelerate.utils.positions"

local fail = options.fail

local M = {}

-- chunk_size says how PyTorch computes: fn is called for one position at a time here. It draws anew
-- each time, unless randomness is "same".
local VMAP = { in_dims = { "integer|table", default = 1 }, out_dims = { "integer|table", default = 1 },
  chunk_size = { "integer", optional = true, min = 1 },
  randomness = { "string", default = "different", one_of = { "error", "different", "same" } } }

local function dim_at(dims, i)
  if type(dims) ~= "table" then return dims end
  return dims[i] or nil
end

-- An argument with visit(tensor, dim, path) in place of its tensors that are mapped. dim: of all of
-- them, or a table of dims by key.
local function mapped(value, dim, path, visit)
  if not dim then return value end
  if core.is_tensor(value) then return visit(value, dim, path) end
  if not nested.is_container(value) then return value end
  local result = nested.empty_like(value)
  for _, key in ipairs(ordered.keys(value)) do
    result[key] = mapped(value[key], dim_at(dim, key), nested.extend(path, key), visit)
  end
  return result
end

-- The results of all positions, tensors or nested tables of them, as one.
local function stacked(list, dim)
  if core.is_tensor(list[1]) then return core.stack(list, dim or 1) end
  local result = nested.empty_like(list[1])
  for _, key in ipairs(ordered.keys(list[1])) do
    local parts = {}
    for at, value in ipairs(list) do
      parts[at] = type(value) == "table" and value[key]
      if not parts[at] then fail("vmap: result %d of the function lacks %s", at, options.show(key)) end
    end
    result[key] = stacked(parts, dim_at(dim, key))
  end
  return result
end

--- A function that calls func once for each position of dim 1 of its tensors and stacks the
--- results. It is a loop: func runs as often as the dim is long. Arguments and results may be
--- nested tables of tensors, as parameters by name.
---@param func fun(...): ...
---@param opts? { in_dims: integer|table, out_dims: integer|table, chunk_size: integer, randomness:
---  string } dims that are mapped: one for all arguments, or a list with one for each (of an
---  argument that is a table: one for all in it, or a table of them); false in the list: the
---  argument is given as it is. randomness: "different" (the default; "error" is taken for it), or
---  "same": fn draws the same numbers at each position. chunk_size changes nothing
---@return fun(...): ...
function M.vmap(func, opts)
  local o = options.check("vmap", opts, VMAP)
  options.value("vmap", "func", func, { "function" })
  return function(...)
    local given, n, size = { ... }, select("#", ...), nil
    local function each(visit)
      local args = {}
      for i = 1, n do args[i] = mapped(given[i], dim_at(o.in_dims, i), "", visit(i)) end
      return args
    end
    each(function(i)
      return function(x, dim, path)
        local name = path == "" and tostring(i) or ("%d at %s"):format(i, path)
        if type(dim) ~= "number" or dim % 1 ~= 0 or dim == 0 or dim > x.ndim or -dim > x.ndim then
          fail("vmap: in_dims: dim %s of argument %s, which has shape %s%s", options.show(dim), name,
            lists.shape_text(x), dim == 0 and "; dims count from 1" or "")
        end
        local length = x:size(dim)
        if size and size ~= length then
          fail("vmap: argument %s has %d positions to map over, those before it %d", name, length, size)
        end
        size = length
        return x
      end
    end)
    if not size then fail("vmap: no argument is a tensor to map over") end
    if size == 0 then fail("vmap: there is no position to map over") end
    local columns, count = {}, 0
    local generator = o.randomness == "same" and core.default_generator()
    local state = generator and generator:get_state()
    for at = 1, size do
      if generator then generator:set_state(state) end
      local function pick(x, dim) return x:select(dim, at) end
      local results = { func(unpack(each(function() return pick end), 1, n)) }
      count = #results
      for k, result in ipairs(results) do
        if not nested.all_tensors(result) then
          fail("vmap: expected the function to return tensors, result %d is %s", k, options.show(result))
        end
        columns[k] = columns[k] or {}
        columns[k][at] = result
      end
    end
    local results = {}
    for k = 1, count do results[k] = stacked(columns[k], dim_at(o.out_dims, k)) end
    return unpack(results, 1, count)
  end
end

positions.functions(M, { vmap = "func [in_dims] [out_dims] [randomness]" })

return M
