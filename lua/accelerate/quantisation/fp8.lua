--- Linear layers of files with weights in float8_e4m3fn: a scale for each square block, for each
--- row, or one for all.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local layers = require "accelerate.quantisation.layers"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local stored = require "accelerate.files.stored"

local fail = options.fail

local M = {}

---@class accelerate.quantisation.Fp8Linear : accelerate.quantisation.EncodedLinear
local Fp8Linear = class("Fp8Linear", layers.EncodedLinear)
Fp8Linear._builtin = true
M.Fp8Linear = Fp8Linear

-- The bits of a tensor of eight bits.
local function bits_of(t) return t.dtype == "uint8" and t or t:view "uint8" end

local function load(self, dict, prefix)
  local name, key = prefix .. "weight", prefix .. self.scale_name
  local codes, scales = dict[name], dict[key]
  if not core.is_tensor(codes) then return end
  if core._is_float(codes) and not codes.dtype:find "float8" then self:quantize() end
  if not core.is_tensor(scales) then fail("the state dict has no '%s'", key) end
  if codes:element_size() ~= 1 or not lists.same(codes.shape, self.weight.shape) then
    fail("%s: expected float8_e4m3fn %s, got %s %s", name, lists.shape_text(self.weight), codes.dtype,
      lists.shape_text(codes))
  end
  if not core._is_float(scales) or scales:numel() ~= self.scales:numel() then
    fail("%s: expected %d scales, got %s", key, self.scales:numel(), options.show(scales))
  end
  self.scale_dtype, self.scale_shape = scales.dtype, scales.shape
  local kept = scales.dtype == "float32" and self:_kept(scales) or scales:float()
  self:_take { name = self.encoding, size = self.size, codes = self:_kept(bits_of(codes)),
    scales = kept:reshape(self.scales.shape) }
  dict[key], dict[name] = nil, self.weight:detach()
end

local function save(self, dict, prefix)
  if self.weight.device == "meta" then return end
  dict[prefix .. "weight"] = self.weight:detach():view "float8_e4m3fn"
  dict[prefix .. self.scale_name] = self.scales:to(self.scale_dtype):reshape(self.scale_shape)
end

--- A linear layer over numbers of eight bits, which a state dict brings. Inputs stay as they are.
---@param layer accelerate.nn.Linear whose sizes and bias are taken over
---@param o { block: integer?, rows: boolean?, scale_name: string } block: the side of a block that
---  shares a scale; rows: each row has one; neither: there is one
function Fp8Linear:init(layer, o)
  local rows, cols = layer.out_features, layer.in_features
  local size = o.block or layers.power_from(math.max(rows, cols))
  local shape = o.rows and { rows } or { math.ceil(rows / size), math.ceil(cols / size) }
  self.scale_name = o.scale_name
  layers.EncodedLinear.init(self, { name = o.rows and "fp8_rows" or "fp8", rows = rows, cols = cols,
    size = size,
    codes = core.empty({ rows, cols }, { dtype = "uint8", device = "meta" }),
    scales = core.empty(shape, { device = "meta" }) }, layer.bias)
  self._parts = { scales = o.scale_name }
  self.plain = layers.plain_of(layer)
  stored.mark(self.weight, "F8_E4M3")
  self:register_load_state_dict_pre_hook(function(it, dict, prefix) load(it, dict, prefix) end)
  self:register_state_dict_post_hook(function(it, dict, prefix) save(it, dict, prefix) end)
end

function Fp8Linear:quantize() -- luacheck: ignore 212
  fail("Fp8Linear: numbers are not encoded in float8; model:dequantize(), or from_pretrained with " ..
    "dequantize = true, makes it a plain layer")
end

return M
