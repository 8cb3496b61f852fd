--- nn.utils.weight_norm and nn.utils.spectral_norm in PyTorch's older form: the weight is computed
--- before each forward from weight_g and weight_v, or weight_orig, weight_u and weight_v.
--- parametrizations.lua has the newer one.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local hooks = require "accelerate.nn.hooks"
local Module = require "accelerate.nn.module"
local norms = require "accelerate.nn.utils.norms"
local parameter = require "accelerate.nn.parameter"

local fail = options.fail

local M = {}

-- What hooks compute: hook -> { key, compute }. Copies of a module share its hooks.
local computed = setmetatable({}, { __mode = "k" })

-- The handle of the hook that computes the attribute of a kind and name.
local function find(module, key)
  for _, handle in ipairs(hooks.list(module, "forward_pre")) do
    local known = computed[handle.hook]
    if known and known.key == key then return handle end
  end
end

local function check(where, module, name)
  if not Module._is_module(module) then
    fail("%s: expected a module, got %s", where, options.show(module))
  end
  if module:_kind_of(name) ~= "parameter" then
    fail("%s: %s has no parameter '%s'", where, module.__name, tostring(name))
  end
end

-- Computes the attribute before each forward from now on; until then it is `first`. Copies of the
-- module (clone) share the hook, so what it needs is read from the module that it gets.
local function keep(module, key, name, compute, first)
  local function hook(self) self[name] = compute(self) end
  computed[hook] = { key = key, compute = compute }
  module:register_forward_pre_hook(hook)
  module[name] = first or compute(module)
end

local function take(where, module, key, name)
  local handle = Module._is_module(module) and find(module, key)
  if not handle then
    fail("%s: '%s' of %s has none", where, tostring(name), Module._is_module(module) and module.__name
      or options.show(module))
  end
  handle:remove()
  return computed[handle.hook]
end

local function restored(module, name, value, requires_grad)
  module[name] = nil
  module[name] = parameter.new(value:detach():clone(), { requires_grad = requires_grad })
  return module
end

-- ---- weight_norm

local WEIGHT = { name = { "string", default = "weight" }, dim = { "integer|boolean", default = 1 } }

--- Makes a weight the product of a direction and norms: `name`_v, scaled to norm `name`_g for each
--- position of dim. Both are parameters in the weight's place.
---@param module accelerate.nn.Module
---@param ... any name = "weight", dim = 1 (false, and -1 as in PyTorch: one norm for all), or a
---  table of them
---@return accelerate.nn.Module module
function M.weight_norm(module, ...)
  local o = options.check("weight_norm", options.gather("weight_norm", { "name", "dim" }, ...), WEIGHT)
  if o.dim == true then fail("weight_norm: dim: expected an integer, or false for one norm of all") end
  check("weight_norm", module, o.name)
  local name, weight = o.name, module[o.name]
  local dim = norms.weight_dim("weight_norm", o.dim, weight)
  local g = core.no_grad(function() return norms.norm_except(weight, dim):clone() end)
  module[name] = nil
  module[name .. "_g"] = parameter.new(g, { requires_grad = weight.requires_grad })
  module[name .. "_v"] = weight
  keep(module, "weight_norm " .. name, name, function(self)
    return norms.weighted(self[name .. "_v"], self[name .. "_g"], dim)
  end)
  return module
end

local NAME = { name = { "string", default = "weight" } }

--- Takes weight_norm away: the weight is a parameter again, with its present value.
---@param module accelerate.nn.Module
---@param ... any name = "weight", or a table with it
---@return accelerate.nn.Module module
function M.remove_weight_norm(module, ...)
  local name = options.read("remove_weight_norm", { "name" }, NAME, ...).name
  local state = take("remove_weight_norm", module, "weight_norm " .. name, name)
  local value = core.no_grad(function() return state.compute(module) end)
  local trained = module[name .. "_v"].requires_grad
  module[name .. "_g"], module[name .. "_v"] = nil, nil
  return restored(module, name, value, trained)
end

-- ---- spectral_norm

local SPECTRAL = {
  name = { "string", default = "weight" },
  n_power_iterations = { "integer", default = 1, min = 1 },
  eps = { "number", default = 1e-12, above = 0 },
  dim = { "integer", optional = true },
}

local function default_dim(module)
  return (module.__name or ""):find("ConvTranspose", 1, true) and 2 or 1
end

--- Divides a weight by an estimate of its largest singular value, which power iterations improve at
--- each forward in training: v from u, then u from that v. `name`_orig is trained in the weight's
--- place; `name`_u and `name`_v are buffers. Before the first forward the weight reads as it was.
---@param module accelerate.nn.Module
---@param ... any name = "weight", n_power_iterations = 1, eps = 1e-12, dim (1; 2 for transposed
---  convolutions), or a table of them
---@return accelerate.nn.Module module
function M.spectral_norm(module, ...)
  local o = options.check("spectral_norm", options.gather("spectral_norm",
    { "name", "n_power_iterations", "eps", "dim" }, ...), SPECTRAL)
  check("spectral_norm", module, o.name)
  local name, weight = o.name, module[o.name]
  local dim = norms.dim_of("spectral_norm", o.dim or default_dim(module), weight)
  local u, v = norms.start(norms.matrix(weight:detach(), dim), o.eps)
  module[name] = nil
  module[name .. "_orig"] = weight
  module:register_buffer(name .. "_u", u)
  module:register_buffer(name .. "_v", v)
  keep(module, "spectral_norm " .. name, name, function(self)
    local original = self[name .. "_orig"]
    local matrix = norms.matrix(original, dim)
    local left, right = self[name .. "_u"], self[name .. "_v"]
    if self.training then norms.iterate(matrix, left, right, o.n_power_iterations, o.eps, true) end
    return norms.over_sigma(original, matrix, left:clone(), right:clone())
  end, weight:detach())
  return module
end

--- Takes spectral_norm away: the weight is a parameter again, with its present value.
---@param module accelerate.nn.Module
---@param ... any name = "weight", or a table with it
---@return accelerate.nn.Module module
function M.remove_spectral_norm(module, ...)
  local name = options.read("remove_spectral_norm", { "name" }, NAME, ...).name
  local state = take("remove_spectral_norm", module, "spectral_norm " .. name, name)
  local training = module.training
  module.training = false
  local value = core.no_grad(function() return state.compute(module) end)
  module.training = training
  local trained = module[name .. "_orig"].requires_grad
  module[name .. "_orig"], module[name .. "_u"], module[name .. "_v"] = nil, nil, nil
  return restored(module, name, value, trained)
end

positions.functions(M, {
  weight_norm = "module ...",
  spectral_norm = "module ...",
  remove_weight_norm = "module ...",
  remove_spectral_norm = "module ...",
})

return M
