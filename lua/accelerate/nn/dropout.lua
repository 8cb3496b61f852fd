--- nn.Dropout.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"

---@class accelerate.nn.Dropout : accelerate.nn.Module
local Dropout = class("Dropout", Module)
Dropout._builtin = true

local OPTIONS = { p = { "number", default = 0.5, min = 0, max = 1 }, generator = { "Generator", optional = true } }

--- In training, zeroes each element with probability p and scales the others by 1 / (1 - p); otherwise returns its input.
--- Each rank draws its own numbers; which they are depends on the seed alone.
---@param p? number|{ p: number, generator: accelerate.Generator } default 0.5
function Dropout:init(p)
  local o = options.check("Dropout", type(p) == "table" and p or { p = p }, OPTIONS)
  self.p, self.generator = o.p, o.generator
end

local dropout = core.dropout

function Dropout:forward(x)
  local p = rawget(self, "_values").p
  if not self.training or p == 0 then return x end
  return self:_run(dropout, x, p, true, self.generator)
end

function Dropout:extra_repr() return ("p=%g"):format(self.p) end

return { Dropout = Dropout }
