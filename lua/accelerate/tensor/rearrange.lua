--- Orders and places of elements.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local methods = require "accelerate.tensor.methods"
local options = require "accelerate.utils.options"


define.plain("T", "x.T", "all dims in reverse order", "field", function(x)
  local dims = {}
  for i = 1, x.ndim do dims[i] = x.ndim + 1 - i end
  return x.ndim > 0 and x:permute(dims) or x
end)
define.plain("mT", "x.mT", "the last two dims swapped", "field", function(x)
  if x.ndim < 2 then
    options.fail("mT: expected a matrix or a batch of matrices, got %s", lists.shape_text(x))
  end
  return x:transpose(-2, -1)
end)
define.alias("ravel", "flatten")
define.alias("argwhere", "nonzero")

-- ---- another shape for the same object

-- The object becomes a view of what it was. Views that were made of it before stay views of it.
local function reshaped(name, signature, view)
  define(name .. "_", signature,
    ("`x:%s(..)` as x itself; a leaf that requires a gradient is refused"):format(name),
    function(x, ...)
      core._take_over(x, view(x, ...), name .. "_")
      methods.retain_again(x)
      return x
    end, "method")
end
reshaped("squeeze", "x:T dim:dims?", function(x, dims)
  if dims then return x:squeeze(dims) end
  return x:squeeze()
end)
reshaped("unsqueeze", "x:T dim:dim+", core.unsqueeze)
for _, name in ipairs { "transpose", "swapaxes", "swapdims" } do
  reshaped(name, "x:T dim0:dim dim1:dim", core.transpose)
end
reshaped("t", "x:T", core.t)

define("msort", "x:T", "sorted along dim 1", function(x) return (x:sort(1)) end)
define("fliplr", "x:T", "flipped along dim 2", function(x) return x:flip(2) end)
define("flipud", "x:T", "flipped along dim 1", function(x)
  if x.ndim == 0 then options.fail("flipud: expected at least 1 dim, got a 0-d tensor") end
  return x:flip(1)
end)

define("rot90", "x:T k:int=1 dims:dims?",
  "turned k times by 90 degrees in the plane of two dims, " ..
  "from the first to the second", function(x, k, dims)
    dims = dims or { 1, 2 }
    if #dims ~= 2 or dims[1] == dims[2] then
      options.fail("rot90: dims: expected two different dims, got [%s]", table.concat(dims, ", "))
    end
    k = k % 4
    if k == 1 then return x:flip(dims[2]):transpose(dims[1], dims[2]) end
    if k == 2 then return x:flip(dims) end
    if k == 3 then return x:flip(dims[1]):transpose(dims[1], dims[2]) end
    return x:clone()
  end)

define("take", "x:T index:T",
  "elements of the flattened x; positions count from 0, negative ones from the end",
  function(x, index)
    local flat = index:reshape(-1)
    flat = core.where(flat:lt(0), flat + x:numel(), flat)
    return x:reshape(-1):index_select(1, flat):view(index.shape)
  end)

define("fill_diagonal_", "x:T value:num wrap:bool=false",
  "fills the main diagonal; wrap: again below a tall matrix",
  function(x, value, wrap)
    if x.ndim < 2 then
      options.fail("fill_diagonal_: expected at least 2 dims, got %s", lists.shape_text(x))
    end
    if x.ndim == 2 then
      local rows, columns = x.shape[1], x.shape[2]
      for first = 1, wrap and rows or 1, columns + 1 do
        x:narrow(1, first, math.min(columns, rows - first + 1)):diagonal():fill_(value)
      end
      return x
    end
    for _, size in ipairs(x.shape) do
      if size ~= x.shape[1] then
        options.fail("fill_diagonal_: with more than 2 dims all sizes must be equal, got %s",
          lists.shape_text(x))
      end
    end
    local view = x
    while view.ndim > 1 do view = view:diagonal(0, 1, view.ndim) end
    view:fill_(value)
    return x
  end, "method")

define("unique_consecutive", "x:T return_inverse:bool=false return_counts:bool=false dim:dim?",
  "x without repetitions of the element (dim: the slice) before; where each went; how many; without dim " ..
  "of the flattened x", function(x, inverse, counts, dim)
    local slices = require "accelerate.tensor.slices"
    if dim then return slices.unique(x, dim, inverse, counts, false) end
    local results = { slices.unique(x:reshape(-1), 1, inverse, counts, false) }
    if inverse then results[2] = results[2]:view(x.shape) end
    return unpack(results)
  end)
