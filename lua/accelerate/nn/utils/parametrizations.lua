--- nn.utils.parametrizations: weight_norm, spectral_norm and orthogonal weights.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local norms = require "accelerate.nn.utils.norms"
local parametrize = require "accelerate.nn.utils.parametrize"

local fail = options.fail

---@class accelerate.nn.utils.parametrizations
local M = {}

local function weight_of(where, module, name)
  if not Module._is_module(module) then
    fail("%s: expected a module, got %s", where, options.show(module))
  end
  local weight = module[name]
  if not core._is_float(weight) then
    fail("%s: %s has no floating-point tensor '%s'", where, module.__name, tostring(name))
  end
  return weight
end

-- ---- weight_norm

local WeightNorm = class("_WeightNorm", Module)
WeightNorm._builtin = true
function WeightNorm:init(dim) self.dim = dim end
function WeightNorm:forward(g, v) return norms.weighted(v, g, self.dim) end
function WeightNorm:right_inverse(weight) return norms.norm_except(weight, self.dim), weight end

local WEIGHT = { name = { "string", default = "weight" }, dim = { "integer|boolean", default = 1 } }

--- Makes a weight the product of a direction (original1) and norms (original0), one for each
--- position of dim.
---@param module accelerate.nn.Module
---@param ... any name = "weight", dim = 1 (false, and -1 as in PyTorch: one norm for all), or a
---  table of them
---@return accelerate.nn.Module module
function M.weight_norm(module, ...)
  local o = options.check("weight_norm", options.gather("weight_norm", { "name", "dim" }, ...), WEIGHT)
  if o.dim == true then fail("weight_norm: dim: expected an integer, or false for one norm of all") end
  local weight = weight_of("weight_norm", module, o.name)
  local dim = norms.weight_dim("weight_norm", o.dim, weight)
  return parametrize.register_parametrization(module, o.name, WeightNorm(dim), { unsafe = true })
end

-- ---- spectral_norm

local SpectralNorm = class("_SpectralNorm", Module)
SpectralNorm._builtin = true

function SpectralNorm:init(weight, n_power_iterations, dim, eps)
  self.dim, self.eps, self.n_power_iterations = dim, eps, n_power_iterations
  if weight.ndim < 2 then return end
  local matrix = norms.matrix(weight:detach(), dim)
  local u, v = norms.start(matrix, eps)
  norms.iterate(matrix, u, v, 15, eps)
  self:register_buffer("_u", u)
  self:register_buffer("_v", v)
end

function SpectralNorm:forward(weight)
  local v = self._values
  if weight.ndim < 2 then return weight / core.norm(weight):clamp { min = v.eps } end
  local matrix = norms.matrix(weight, v.dim)
  if self.training then norms.iterate(matrix, v._u, v._v, v.n_power_iterations, v.eps) end
  return norms.over_sigma(weight, matrix, v._u:clone(), v._v:clone())
end

function SpectralNorm:right_inverse(weight) return weight end

local SPECTRAL = {
  name = { "string", default = "weight" },
  n_power_iterations = { "integer", default = 1, min = 1 },
  eps = { "number", default = 1e-12, above = 0 },
  dim = { "integer", optional = true },
}

--- Divides a weight by an estimate of its largest singular value, which power iterations improve
--- each time that the weight is read in training.
---@param module accelerate.nn.Module
---@param ... any name = "weight", n_power_iterations = 1, eps = 1e-12, dim (1; 2 for transposed
---  convolutions), or a table of them
---@return accelerate.nn.Module module
function M.spectral_norm(module, ...)
  local o = options.check("spectral_norm", options.gather("spectral_norm",
    { "name", "n_power_iterations", "eps", "dim" }, ...), SPECTRAL)
  local weight = weight_of("spectral_norm", module, o.name)
  local dim = o.dim or ((module.__name or ""):find("ConvTranspose", 1, true) and 2 or 1)
  dim = norms.dim_of("spectral_norm", dim, weight)
  return parametrize.register_parametrization(module, o.name,
    SpectralNorm(weight, o.n_power_iterations, dim, o.eps))
end

-- ---- orthogonal
--
-- With trivialization the weight is base * Q(x) with a fixed orthogonal base and a trained x that
-- starts at 0, where Q is the identity: so any value can be assigned, and steps are as good
-- everywhere.

local Orthogonal = class("_Orthogonal", Module)
Orthogonal._builtin = true

local function tall(x) return x.shape[x.ndim - 1] >= x.shape[x.ndim] end

-- The orthogonal matrix nearest in direction to x's columns, completed to a square on request.
local function orthonormal(x, square)
  local Q, R = core._linalg.qr(x, square and "complete" or "reduced")
  local signs = R:diagonal(0, -2, -1):sign()
  signs = core.where(signs:eq(0), 1, signs)
  local columns = Q:narrow(-1, 1, x:size(-1)) * signs:unsqueeze(-2)
  if not square or Q:size(-1) == x:size(-1) then return columns end
  return core.cat({ columns, Q:narrow(-1, x:size(-1) + 1, Q:size(-1) - x:size(-1)) }, -1)
end

function Orthogonal:init(weight, map, trivialize)
  self.orthogonal_map, self.use_trivialization = map, trivialize
  self.shape = weight.shape
  if trivialize then self:register_buffer("base", weight:detach():clone()) end
end

-- The skew-symmetric matrix of the lower triangle, padded to a square.
local function skew(x)
  local n, k = x:size(-2), x:size(-1)
  local a = x:tril(-1)
  if n ~= k then a = core.pad(a, { 0, n - k }) end
  return a - a:transpose(-2, -1)
end

function Orthogonal:forward(x)
  local v = self._values
  local flip = not tall(x)
  if flip then x = x:transpose(-2, -1) end
  local n, k = x:size(-2), x:size(-1)
  local a = skew(x)
  local q
  if v.orthogonal_map == "matrix_exp" then q = a:matrix_exp()
  else
    local one = core.eye(n, { dtype = x.dtype, device = x.device }):expand(a.shape)
    q = core._linalg.solve(one - a * 0.5, one + a * 0.5)
  end
  if v.base then q = v.base:matmul(q) end
  q = q:narrow(-1, 1, k)
  return flip and q:transpose(-2, -1) or q
end

function Orthogonal:right_inverse(weight)
  if table.concat(weight.shape, ",") ~= table.concat(self.shape, ",") then
    fail("orthogonal: expected a weight of shape [%s], got %s", table.concat(self.shape, ", "),
      options.show(weight))
  end
  if not self.use_trivialization then
    fail("orthogonal: without use_trivialization the weight cannot be assigned")
  end
  local x = tall(weight) and weight or weight:transpose(-2, -1)
  self:register_buffer("base", orthonormal(x:contiguous(), true))
  return core.zeros_like(weight)
end

local ORTHOGONAL = {
  name = { "string", default = "weight" },
  orthogonal_map = { "string", optional = true, one_of = { "matrix_exp", "cayley" } },
  use_trivialization = { "boolean", default = true },
}

--- Keeps a weight's columns (or rows, if there are fewer) orthonormal. It starts at the orthonormal
--- matrix that the QR decomposition makes of its value.
---@param module accelerate.nn.Module
---@param ... any name = "weight", orthogonal_map = "matrix_exp" ("cayley"), use_trivialization =
---  true (false: the weight starts at the identity's columns or where the map takes its value, and
---  cannot be assigned), or a table of them
---@return accelerate.nn.Module module
function M.orthogonal(module, ...)
  local where = "orthogonal"
  local o = options.check(where, options.gather(where, { "name", "orthogonal_map", "use_trivialization" },
    ...),
    ORTHOGONAL)
  local weight = weight_of(where, module, o.name)
  if weight.ndim < 2 then
    fail("orthogonal: expected a matrix or a batch of matrices, got %s", options.show(weight))
  end
  local step = Orthogonal(weight, o.orthogonal_map or "matrix_exp", o.use_trivialization)
  if not o.use_trivialization then step.right_inverse = false end
  return parametrize.register_parametrization(module, o.name, step)
end

return require("accelerate.utils.properties").strict("accelerate.nn.utils.parametrizations", M)
