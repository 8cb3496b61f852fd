--- Inputs for the cases of the op table: values that meet no tie and no kink, in three layouts,
--- float64.
local tensor = require "accelerate.tensor"

local M = {}

-- Values evenly spread over the range in a scrambled order: distinct, so no finite difference
-- crosses a tie or a kink.
local function spread(n, lo, hi, salt)
  local order, values = tensor.randperm(n, { generator = tensor.Generator(salt) }):totable(), {}
  for i = 1, n do values[i] = lo + (hi - lo) * (order[i] + 0.5) / n end
  return tensor.tensor(values, { dtype = "float64" })
end

local function numel(shape)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  return n
end

-- Each layout makes a leaf and a function that views it as the input.
local layouts = {
  contiguous = function(spec, salt)
    return spread(numel(spec.shape), spec.lo, spec.hi, salt):view(spec.shape), function(leaf) return leaf end
  end,
  -- every other element of a transposed buffer
  strided = function(spec, salt)
    local back = {}
    for d = #spec.shape, 1, -1 do back[#back + 1] = spec.shape[d] end
    back[#back] = back[#back] * 2
    local order = {}
    for d = 1, #back do order[d] = #back - d + 1 end
    return spread(numel(back), spec.lo, spec.hi, salt):view(back), function(leaf)
      local first = {}
      for d = 1, #back do first[d] = d == #back and { 1, back[d], 2 } or {} end
      return leaf[first]:permute(order)
    end
  end,
  -- one row repeated with stride 0 (ops of one input); several inputs bring shapes of their own
  broadcast = function(spec, salt, own)
    if own then
      return spread(numel(spec.shape), spec.lo, spec.hi, salt):view(spec.shape), function(leaf)
        return leaf
      end
    end
    local row = { unpack(spec.shape) }
    row[1] = 1
    return spread(numel(row), spec.lo, spec.hi, salt):view(row), function(leaf)
      return leaf:expand(spec.shape)
    end
  end,
}

--- Leaves for a case's inputs, and a function that views leaves as the inputs.
---@param case table of spec/support/op_cases
---@param layout "contiguous"|"strided"|"broadcast"
function M.build(case, layout)
  local own = layout == "broadcast" and case.broadcast
  local leaves, views = {}, {}
  for k, spec in ipairs(own or case.inputs) do leaves[k], views[k] = layouts[layout](spec, k, own) end
  local function inputs(...)
    local out = { ... }
    for k = 1, #out do out[k] = views[k](out[k]) end
    return unpack(out)
  end
  return leaves, inputs
end

return M
