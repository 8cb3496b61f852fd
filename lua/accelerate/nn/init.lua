--- accelerate.nn: modules, losses, initialisation. `local nn = require "accelerate.nn"`.
---
--- Arguments go by position, in PyTorch's order, as the headings below show it; those in brackets
--- may be left out. The last argument may be a table that gives any of the others by name, and
--- options that have no position: `nn.Linear(8, 2, false)`, `nn.Linear(8, 2, { bias = false })`,
--- `nn.Linear { in_features = 8, out_features = 2 }`. The rule holds for constructors of modules,
--- optimizers and schedulers, for functions, and for ops.

-- `require "accelerate.nn.init"` finds this file too; what it means is nn.init.
if (...) == "accelerate.nn.init" then return require("accelerate.nn.initializers") end

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
require "accelerate.nn.state_dict" -- adds its methods to Module, as the next one does
require "accelerate.nn.clone"
local parameter = require "accelerate.nn.parameter"
local positions = require "accelerate.utils.positions"

---@class accelerate.nn
local nn = {
  Module = Module,
  Parameter = positions.arrange("Parameter", "data [requires_grad]", parameter.new),
  functional = require "accelerate.nn.functional",
  init = require "accelerate.nn.initializers",
  utils = require "accelerate.nn.utils",
}

for name, register in next, require("accelerate.nn.hooks").registering do nn[name] = register end

for _, file in ipairs {
  "linear",
  "identity",
  "embedding",
  "activation",
  "dropout",
  "loss",
  "containers",
  "rnn",
  "distance",
  "norm",
  "attention",
  "transformer",
  "padding",
  "conv",
  "pooling",
  "adaptive_softmax",
  "resampling",
  "batchnorm",
  "instancenorm",
  "syncbatchnorm",
} do
  for name, Class in next, require("accelerate.nn." .. file) do nn[name] = Class end
end

positions.constructors(nn, require "accelerate.nn.orders")

--- Makes a class of modules: methods `init` (called with the constructor's arguments) and `forward`
--- are the user's to define. Assign modules and parameters one at a time: in `self.a, self.b = X(),
--- Y()` Lua assigns b first, so that b would come before a in parameters() and in files.
---@param name string what print and messages call it
---@param base? table a module class; default nn.Module
---@return table Class
function nn.class(name, base)
  if type(name) ~= "string" or name == "" then
    options.fail("nn.class: expected a name, got %s", options.show(name))
  end
  if base ~= nil and not class.derives(base, Module) then
    options.fail("nn.class: the base of '%s' must be a module class, got %s", name,
      class.itself(base) and tostring(base) ..
        "; optim.class and data.class make other classes, accelerate.utils.class those of distributions"
        or options.show(base))
  end
  return class.open(name, base or Module)
end

--- Returns whether `value` is a module.
---@param value any
---@return boolean
function nn.is_module(value) return Module._is_module(value) end

--- Returns whether `value` was made by nn.Parameter.
---@param value any
---@return boolean
function nn.is_parameter(value) return parameter.is(value) end

return require("accelerate.utils.properties").strict("accelerate.nn", nn)
