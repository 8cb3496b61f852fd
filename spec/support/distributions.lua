--- What the specs of accelerate.distributions share: PyTorch's values, and how near is near.
local json = require "accelerate.utils.json"
local tensor = require "accelerate.tensor"

local M = {}

--- Returns what spec/generators/gen_distributions_reference.py wrote.
function M.reference()
  local f = assert(io.open("spec/reference/distributions_reference.json"))
  local text = f:read "*a"
  f:close()
  return assert(json.decode(text))
end

--- Returns a tensor of double precision.
function M.double(list, requires_grad)
  return tensor.tensor(list, { dtype = "float64", requires_grad = requires_grad })
end

--- Raises unless the elements of a tensor are near the wanted ones. "inf" and "nan" stand for
--- these.
function M.near(wanted, got, what, tolerance)
  local list = got:detach():reshape({ -1 }):tolist()
  if #wanted ~= #list then error(("%s: %d elements, expected %d"):format(what, #list, #wanted), 0) end
  for i, value in ipairs(wanted) do
    local fits
    if value == "inf" then fits = list[i] == math.huge
    elseif value == "nan" then fits = list[i] ~= list[i]
    else fits = math.abs(list[i] - value) <= (tolerance or 1e-9) * math.max(1, math.abs(value)) end
    if not fits then error(("%s[%d]: %.12g, expected %s"):format(what, i, list[i], value), 0) end
  end
end

return M
