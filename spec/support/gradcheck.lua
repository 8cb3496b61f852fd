--- Gradients against finite differences, in float64. Central differences with step h err by about
--- h^2 f''' / 6 + eps f / h: at h = 1e-5 and values near 1 that is 1e-10.
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"

local M = {}
local STEP, TOLERANCE = 1e-5, 1e-6

-- Fixed weights that differ from element to element turn any result into one number whose gradient
-- sees every element.
local function weights_like(t, salt)
  local list = {}
  for i = 1, t:numel() do list[i] = math.sin(1.7 * i + salt) + 0.3 end
  return tensor.tensor(list, { dtype = "float64" }):view(t.shape)
end

local function floating(t) return t.dtype == "float64" end

-- f's floating results, as one scalar.
local function project(f, leaves)
  local total
  for k, out in ipairs { f(unpack(leaves)) } do
    if floating(out) then
      local term = (out * weights_like(out, k)):sum()
      total = total and total + term or term
    end
  end
  return total
end

local function numeric(scalar_of, leaf)
  local flat = leaf.data:view(-1)
  local result = {}
  for i = 1, leaf:numel() do
    local value = flat[i]:item()
    flat[i] = value + STEP
    local above = scalar_of()
    flat[i] = value - STEP
    local below = scalar_of()
    flat[i] = value
    result[i] = (above - below) / (2 * STEP)
  end
  return result
end

local function compare(what, leaves, analytic, scalar_of)
  for k, leaf in ipairs(leaves) do
    local expected = numeric(scalar_of, leaf)
    local got = analytic[k] and analytic[k]:reshape(-1):totable() or {}
    for i = 1, leaf:numel() do
      local g, e = got[i] or 0, expected[i]
      if not (math.abs(g - e) <= TOLERANCE * math.max(1, math.abs(e))) then
        error(("%s: gradient of input %d at element %d is %.10g, finite differences give %.10g"):format(what,
          k, i, g, e), 3)
      end
    end
  end
end

local function gradient(f, leaves, create_graph)
  return { core.grad({ project(f, leaves) }, leaves, { create_graph = create_graph, allow_unused = true }) }
end

--- Raises where the gradient of f(leaves...) differs from finite differences.
---@param what string names the check in messages
---@param f fun(...: accelerate.Tensor): accelerate.Tensor ...
---@param leaves accelerate.Tensor[] float64 leaves
function M.first(what, f, leaves)
  compare(what, leaves, gradient(f, leaves, false), function() return project(f, leaves):item() end)
end

--- The same for the gradient of the gradient (through create_graph).
function M.second(what, f, leaves)
  local function slope(...)
    local now = { ... }
    local total
    for k, g in ipairs(gradient(f, now, true)) do
      local term = (g * weights_like(g, 10 + k)):sum()
      total = total and total + term or term
    end
    return total
  end
  local function scalar_of() return slope(unpack(leaves)):item() end
  local s = slope(unpack(leaves))
  if not s.requires_grad then return compare(what .. " (second)", leaves, {}, scalar_of) end
  compare(what .. " (second)", leaves, { core.grad({ s }, leaves, { allow_unused = true }) }, scalar_of)
end

return M
