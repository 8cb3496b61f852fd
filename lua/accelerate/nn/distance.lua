--- nn.CosineSimilarity, nn.PairwiseDistance, nn.Bilinear.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"
local init = require "accelerate.nn.initializers"
local distance = require "accelerate.nn.functional.distance"

---@class accelerate.nn.CosineSimilarity : accelerate.nn.Module
local CosineSimilarity = class("CosineSimilarity", Module)

--- Returns the cosine of the angle between two tensors along a dim.
---@param opts? { dim: integer, eps: number } 2, 1e-8
function CosineSimilarity:init(opts)
  local o = options.check("CosineSimilarity", opts,
    { dim = { "integer", default = 2 }, eps = { "number", default = 1e-8 } })
  self.dim, self.eps = o.dim, o.eps
end

function CosineSimilarity:forward(x1, x2)
  return self:_run(distance.cosine_similarity, x1, x2, { dim = self.dim, eps = self.eps })
end

---@class accelerate.nn.PairwiseDistance : accelerate.nn.Module
local PairwiseDistance = class("PairwiseDistance", Module)

--- Returns the p-norm of the difference along the last dim.
---@param opts? { p: number, eps: number, keepdim: boolean } 2, 1e-6, false
function PairwiseDistance:init(opts)
  local o = options.check("PairwiseDistance", opts,
    { p = { "number", default = 2 }, eps = { "number", default = 1e-6 },
    keepdim = { "boolean", default = false } })
  self.p, self.eps, self.keepdim = o.p, o.eps, o.keepdim
end

function PairwiseDistance:forward(x1, x2)
  return self:_run(distance.pairwise_distance, x1, x2, { p = self.p, eps = self.eps, keepdim = self.keepdim })
end

---@class accelerate.nn.Bilinear : accelerate.nn.Module
---@field weight accelerate.Tensor (out_features, in1_features, in2_features)
---@field bias accelerate.Tensor? (out_features)
local Bilinear = class("Bilinear", Module)

local SIZE = { "integer", min = 1 }

--- y = x1^T W x2 + b.
---@param in1_features integer
---@param in2_features integer
---@param out_features integer
---@param opts? { bias: boolean, dtype: string, device: string }
function Bilinear:init(in1_features, in2_features, out_features, opts)
  local o = options.check("Bilinear", opts,
    { bias = { "boolean", default = true }, dtype = { "string", optional = true },
    device = { "string", optional = true } })
  self.in1_features = options.value("Bilinear", "in1_features", in1_features, SIZE)
  self.in2_features = options.value("Bilinear", "in2_features", in2_features, SIZE)
  self.out_features = options.value("Bilinear", "out_features", out_features, SIZE)
  local place = { dtype = o.dtype, device = o.device }
  self.weight = parameter.empty({ out_features, in1_features, in2_features }, place)
  if o.bias then self.bias = parameter.empty({ out_features }, place) end
  self:reset_parameters()
end

--- Draws weight and bias anew: uniform in +-1/sqrt(in1_features).
function Bilinear:reset_parameters()
  local bound = 1 / math.sqrt(self.in1_features)
  for _, p in ipairs(self:parameters()) do init.uniform_(p, -bound, bound) end
end

function Bilinear:forward(x1, x2) return self:_run(distance.bilinear, x1, x2, self.weight, self.bias) end

function Bilinear:extra_repr()
  return ("in1_features=%d, in2_features=%d, out_features=%d, bias=%s"):format(self.in1_features,
    self.in2_features, self.out_features,
    Module._show(self.bias ~= nil))
end

positions.forward("CosineSimilarity", CosineSimilarity, "x1 x2")
positions.forward("PairwiseDistance", PairwiseDistance, "x1 x2")
positions.forward("Bilinear", Bilinear, "input1 input2")

return { CosineSimilarity = CosineSimilarity, PairwiseDistance = PairwiseDistance, Bilinear = Bilinear }
