--- Modules with adapters: a linear layer with low-rank updates, and a module that is trained as a
--- whole beside the original. Parameters have PEFT's names.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local quantisation = require "accelerate.quantisation"

local M = {}

local linear, dropout = core.linear, core.dropout

local function is_encoded(layer) return class.is(layer, quantisation.EncodedLinear) end

---@class accelerate.peft.LoraLayer : accelerate.nn.Module
---@field base_layer accelerate.nn.Linear
---@field lora_A accelerate.nn.ModuleDict by adapter: Linear(in, r)
---@field lora_B accelerate.nn.ModuleDict by adapter: Linear(r, out)
---@field lora_magnitude_vector accelerate.nn.ModuleDict by adapter, with DoRA: (out)
local LoraLayer = nn.class "LoraLayer"
M.LoraLayer = LoraLayer

local Magnitude = nn.class "DoraMagnitude"
function Magnitude:init(values) self.weight = nn.Parameter(values) end

---@param base accelerate.nn.Linear
function LoraLayer:init(base)
  self.in_features, self.out_features = base.in_features, base.out_features
  self.base_layer = base
  for _, name in ipairs { "lora_A", "lora_B", "lora_magnitude_vector" } do self[name] = nn.ModuleDict() end
  self.scaling, self.dropouts = {}, {}
  self.active, self.merged = {}, {}
  self.disabled = false
end

--- The weight's numbers as they are without adapters that are not merged.
---@return accelerate.Tensor (out, in)
function LoraLayer:base_weight()
  local base = self.base_layer
  return is_encoded(base) and base:dequantize() or base.weight:detach()
end

--- Adds an adapter, which is not active yet.
---@param name string
---@param config accelerate.peft.LoraConfig
---@param r integer
---@param alpha number
function LoraLayer:add_adapter(name, config, r, alpha)
  local device = self.base_layer.weight.device
  local place = { bias = false, device = device }
  local down, up = nn.Linear(self.in_features, r, place), nn.Linear(r, self.out_features, place)
  if config.init_lora_weights == "gaussian" then nn.init.normal_(down.weight, 0, 1 / r) end
  if config.init_lora_weights then nn.init.zeros_(up.weight) end
  self.lora_A[name] = down
  self.lora_B[name] = up
  self.scaling[name] = alpha / (config.use_rslora and math.sqrt(r) or r)
  self.dropouts[name] = config.lora_dropout
  if config.use_dora then
    self.lora_magnitude_vector[name] = Magnitude(self:_norms(name))
  end
end

--- Removes an adapter.
---@param name string
function LoraLayer:delete_adapter(name)
  self.lora_A[name], self.lora_B[name], self.lora_magnitude_vector[name] = nil, nil, nil
  self.scaling[name], self.dropouts[name] = nil, nil
end

local function has(self, name) return self.lora_A._registered.kinds[name] ~= nil end

--- Returns the update of an adapter.
---@param name string
---@return accelerate.Tensor (out, in), float32
function LoraLayer:delta(name)
  return core.no_grad(function()
    return self.lora_B[name].weight:float():matmul(self.lora_A[name].weight:float()) * self.scaling[name]
  end)
end

-- The lengths of the updated weight's rows.
function LoraLayer:_norms(name)
  local weight = self:base_weight():float() + self:delta(name)
  return (weight * weight):sum({ dim = 2 }):sqrt()
end

local function is_dora(self, name) return self.lora_magnitude_vector._registered.kinds[name] ~= nil end

-- What DoRA adds to the base layer's result: the row lengths of the updated weight are the trained
-- magnitudes; the lengths themselves have no gradient.
local function dora(self, name, x, y, low)
  local factor = self.lora_magnitude_vector[name].weight / self:_norms(name)
  local bias = self.base_layer.bias
  local plain
  if self.training and self.dropouts[name] > 0 then
    plain = linear(x, self:base_weight():to(x.dtype))
  else
    plain = bias and y - bias:to(y.dtype) or y
  end
  return plain * (factor - 1) + low * factor
end

function LoraLayer:forward(x)
  local y = self.base_layer(x)
  if self.disabled or self.merged[1] then return y end
  for _, name in ipairs(self.active) do
    if has(self, name) then
      local down, up = self.lora_A[name], self.lora_B[name]
      local given = x:to(down.weight.dtype)
      if self.training and self.dropouts[name] > 0 then given = dropout(given, self.dropouts[name]) end
      local low = up(down(given)) * self.scaling[name]
      if is_dora(self, name) then low = dora(self, name, given, y, low) end
      y = y + low:to(y.dtype)
    end
  end
  return y
end

-- ---- merging

-- Gives the base layer another weight; codes are encoded anew, with their rounding.
local function set_weight(base, weight)
  if is_encoded(base) then base:quantize(weight)
  else core.no_grad(function() base.weight:copy_(weight) end) end
end

--- Adds the updates of the adapters to the base layer's weight.
---@param names string[]
function LoraLayer:merge(names)
  for _, name in ipairs(names) do
    if has(self, name) then
      local weight = self:base_weight():float() + self:delta(name)
      if is_dora(self, name) then
        local factor = self.lora_magnitude_vector[name].weight:detach() / self:_norms(name)
        weight = weight * factor:unsqueeze(2)
      end
      local base = self.base_layer
      self.before = self.before or (is_encoded(base) and base:kept() or base.weight:detach():clone())
      set_weight(self.base_layer, weight)
      self.merged[#self.merged + 1] = name
    end
  end
end

--- Gives the base layer's weight back as it was before the merge.
function LoraLayer:unmerge()
  if self.before and is_encoded(self.base_layer) then self.base_layer:restore(self.before)
  elseif self.before then set_weight(self.base_layer, self.before) end
  self.before, self.merged = nil, {}
end

-- ---- modules that are trained as a whole

---@class accelerate.peft.ModulesToSaveWrapper : accelerate.nn.Module
---@field original_module accelerate.nn.Module
---@field modules_to_save accelerate.nn.ModuleDict by adapter
local Wrapper = nn.class "ModulesToSaveWrapper"
M.ModulesToSaveWrapper = Wrapper

function Wrapper:init(module)
  self.original_module = module
  self.modules_to_save = nn.ModuleDict()
  self.active, self.disabled = {}, false
end

function Wrapper:add_adapter(name)
  for path, module in self.original_module:named_modules() do
    if is_encoded(module) then
      options.fail("get_peft_model: modules_to_save: %s is %s, whose codes cannot be trained; " ..
        "leave it out, or make plain numbers of them (model:dequantize(), skip_modules)",
        path == "" and "the module" or "'" .. path .. "' in it", module.__name)
    end
  end
  local copy = require "accelerate.utils.copy"(self.original_module)
  copy:requires_grad_(true)
  self.modules_to_save[name] = copy
end

--- Returns the module that is in use.
function Wrapper:current()
  local name = not self.disabled and self.active[1]
  return name and self.modules_to_save._registered.kinds[name] and self.modules_to_save[name]
    or self.original_module
end

function Wrapper:forward(...) return self:current()(...) end

return M
