--- Modules without parameters: ReLU, Tanh, Sigmoid, Softmax, LogSoftmax, Flatten.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"

local M = {}

local NONE = {}

local function simple(name, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(opts) options.check(name, opts, NONE) end
  function Class:forward(x) return self:_run(op, x) end
  return Class
end

--- Hyperbolic tangent of each element.
---@class accelerate.nn.Tanh : accelerate.nn.Module
M.Tanh = simple("Tanh", core.tanh)

--- 1 / (1 + exp(-x)) of each element.
---@class accelerate.nn.Sigmoid : accelerate.nn.Module
M.Sigmoid = simple("Sigmoid", core.sigmoid)

---@class accelerate.nn.ReLU : accelerate.nn.Module
local ReLU = class("ReLU", Module)
ReLU._builtin = true

--- max(x, 0) of each element.
---@param opts? { inplace: boolean } inplace: the input itself is rewritten
function ReLU:init(opts)
  self.inplace = options.check("ReLU", opts, { inplace = { "boolean", default = false } }).inplace
end

local relu = core.relu

local function relu_(x) return x:relu_() end

function ReLU:forward(x) return self:_run(rawget(self, "_values").inplace and relu_ or relu, x) end

function ReLU:extra_repr() return self.inplace and "inplace=True" or "" end

M.ReLU = ReLU

local DIM = { dim = { "integer" } }

local function along(name, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(dim)
    local o = type(dim) == "table" and dim or { dim = dim }
    self.dim = options.check(name, o, DIM).dim
  end
  function Class:forward(x) return self:_run(op, x, self.dim) end
  function Class:extra_repr() return ("dim=%d"):format(self.dim) end
  return Class
end

--- `nn.Softmax(-1)`: exp(x) / sum(exp(x)) along a dim (1-based, -1 is the last).
---@class accelerate.nn.Softmax : accelerate.nn.Module
M.Softmax = along("Softmax", core.softmax)

--- `nn.LogSoftmax(-1)`: the logarithm of Softmax, computed safely.
---@class accelerate.nn.LogSoftmax : accelerate.nn.Module
M.LogSoftmax = along("LogSoftmax", core.log_softmax)

---@class accelerate.nn.Flatten : accelerate.nn.Module
local Flatten = class("Flatten", Module)
Flatten._builtin = true

local FLATTEN = { start_dim = { "integer", default = 2 }, end_dim = { "integer", default = -1 } }

--- Dims start_dim..end_dim as one; by default all but the first (the batch).
---@param start_dim? integer|{ start_dim: integer, end_dim: integer } default 2
---@param end_dim? integer default -1
function Flatten:init(start_dim, end_dim)
  local o = start_dim
  if type(o) ~= "table" then o = { start_dim = start_dim, end_dim = end_dim } end
  o = options.check("Flatten", o, FLATTEN)
  self.start_dim, self.end_dim = o.start_dim, o.end_dim
end

local flatten = core.flatten

function Flatten:forward(x)
  local values = rawget(self, "_values")
  return self:_run(flatten, x, values.start_dim, values.end_dim)
end

function Flatten:extra_repr() return ("start_dim=%d, end_dim=%d"):format(self.start_dim, self.end_dim) end

M.Flatten = Flatten

return M
