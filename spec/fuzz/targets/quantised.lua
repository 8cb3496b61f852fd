--- Weights in fewer bits as safetensors files have them: what layers take of the tensors of
--- bitsandbytes, GPTQ, AWQ and fp8.
local core = require "accelerate.core"
local fp8 = require "accelerate.quantisation.fp8"
local nn = require "accelerate.nn"
local packed = require "accelerate.quantisation.packed"
local quantisation = require "accelerate.quantisation"
local weights = require "accelerate.weights"

local function plain() return nn.Linear(32, 8, { bias = false, device = "meta" }) end

local function integers(method, bits)
  return packed.PackedLinear(plain(), { method = method, bits = bits, group_size = 32, offset = 1 })
end

-- The layer that a file's names are for.
local function layer_of(dict)
  if dict.qweight then
    local rows = dict.qweight:dim() > 0 and dict.qweight:size(1)
    return rows == 32 and integers("awq", 4) or integers("gptq", rows == 8 and 8 or 4)
  elseif dict.SCB then return quantisation.Linear8bitLt(plain(), { empty = true })
  elseif dict.weight_scale_inv then
    return fp8.Fp8Linear(plain(), { block = 32, scale_name = "weight_scale_inv" })
  elseif dict.weight_scale then
    return fp8.Fp8Linear(plain(), { rows = true, scale_name = "weight_scale" }) end
  return quantisation.Linear4bit(plain(), { quant_type = "nf4", empty = true })
end

-- Makes what is kept for the process: the numbers of encodings.
for _, quant_type in ipairs { "nf4", "fp4" } do
  local layer = quantisation.Linear4bit(nn.Linear(64, 64), { quant_type = quant_type })
  layer:load_state_dict(layer:state_dict())
end

return {
  ending = ".safetensors",
  nameless = true, -- what reads a whole model adds the file and the layer
  read = function(path)
    local dict = weights.lend_checkpoint(path)
    local layer = layer_of(dict)
    layer:load_state_dict(dict, { strict = false, assign = true })
    if layer.weight.device == "meta" then error("there are no codes for a layer", 0) end
    return { y = core.no_grad(layer, core.ones(1, 32)), written = layer:state_dict() }
  end,
}
