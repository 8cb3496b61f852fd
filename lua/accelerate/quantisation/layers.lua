--- Linear layers whose weight rests in an encoding: Linear4bit and Linear8bitLt, after those of
--- bitsandbytes. The weight is a parameter of uint8 without gradient; its scales are buffers that
--- keep their type. Gradients pass to the input.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local encodings = require "accelerate.quantisation.encodings"
local quant_state = require "accelerate.quantisation.quant_state"
local parameter = require "accelerate.nn.parameter"
local stored = require "accelerate.files.stored"

local linear = encodings._linear

local M = {}

---@class accelerate.quantisation.EncodedLinear : accelerate.nn.Linear
---@field weight accelerate.Tensor uint8 codes
---@field scales accelerate.Tensor?
---@field more accelerate.Tensor?
---@field encoding string
local EncodedLinear = class("EncodedLinear", nn.Linear)
class.optional(EncodedLinear, "scales more")
EncodedLinear._builtin = true
-- codes are (out, in), whatever the class of layer that they come from
EncodedLinear._transposed = false
-- the buffers that rest where the codes do, by their names in files (big_modeling/parts.lua)
EncodedLinear._parts = { scales = "scales" }

--- A layer over an encoded matrix.
---@param matrix accelerate.EncodedMatrix (out, in)
---@param bias accelerate.Tensor? (out)
---@param opts? { compute_dtype: string? } compute_dtype: the type that inputs are cast to first
function EncodedLinear:init(matrix, bias, opts)
  self.in_features, self.out_features = matrix.cols, matrix.rows
  self.weight = parameter.new(matrix.codes, { requires_grad = false })
  if bias then self.bias = bias end
  self.compute_dtype = opts and opts.compute_dtype or nil
  self:_take(matrix)
end

-- Takes over the parts of a matrix.
function EncodedLinear:_take(matrix)
  self.encoding, self.size = matrix.name, matrix.size
  self.weight.data = matrix.codes
  for _, name in ipairs { "scales", "more" } do
    self:register_buffer(name, matrix[name] and parameter.keep_type(matrix[name]:detach()) or nil,
      { persistent = false })
  end
end

-- The tensors of a state dict that a layer keeps: copies, unless the tensors are lent and the
-- lender sees to their memory.
function EncodedLinear:_kept(t) return self._is_lent and t or t:clone() end

--- Returns the parts of the weight.
---@return accelerate.EncodedMatrix
function EncodedLinear:matrix()
  local v = self._values
  return { name = v.encoding, rows = v.out_features, cols = v.in_features, size = v.size,
    codes = v.weight:detach(), scales = v.scales, more = v.more }
end

--- Returns the weight as it is, for `restore`: encoding decoded numbers again may give others.
---@return { matrix: accelerate.EncodedMatrix, dtype: string? }
function EncodedLinear:kept() return { matrix = self:matrix(), dtype = self._values.quant_dtype } end

--- Gives the layer back a weight that `kept` returned.
---@param kept { matrix: accelerate.EncodedMatrix, dtype: string? }
function EncodedLinear:restore(kept)
  self:_take(kept.matrix)
  if kept.dtype then self.quant_dtype = kept.dtype end
end

--- Returns the weight's numbers.
---@param dtype? string default "float32"
---@return accelerate.Tensor (out, in)
function EncodedLinear:dequantize(dtype) return encodings.decode(self:matrix(), dtype) end

--- An encoded weight is not drawn.
function EncodedLinear:reset_parameters() end

-- The largest input that is rounded to eight bits, or nil: inputs stay as they are.
function EncodedLinear:_threshold() end

function EncodedLinear:forward(x)
  local v, given = self._values, x.dtype
  if v.compute_dtype and v.compute_dtype ~= given then x = x:to(v.compute_dtype) end
  local bias = v.bias
  if bias and bias.dtype ~= x.dtype then bias = bias:to(x.dtype) end
  local y = self:_run(linear, x, v.weight, v.scales, v.more, bias, encodings.list[v.encoding].number,
    v.out_features, v.in_features, v.size, self:_threshold(x))
  return y.dtype == given and y or y:to(given)
end

function EncodedLinear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s, encoding=%s"):format(self.in_features, self.out_features,
    nn.Module._show(self.bias ~= nil), self.encoding)
end
M.EncodedLinear = EncodedLinear

-- Gives a layer hooks that save and load its parts under the names of files: `save(self, dict,
-- name)` runs after the layer's own entries, `load(self, dict, name)` before names are compared.
local function with_names(layer, save, load)
  layer:register_state_dict_post_hook(function(self, dict, prefix)
    save(self, dict, prefix .. "weight", prefix)
  end)
  layer:register_load_state_dict_pre_hook(function(self, dict, prefix)
    local name = prefix .. "weight"
    local value = dict[name]
    if not core.is_tensor(value) then return end
    if core._is_float(value) then
      self:quantize(self.turned and value:t():contiguous() or value)
      dict[name] = self.weight:detach()
    else
      load(self, dict, name, prefix)
    end
  end)
end

--- Returns the smallest power of two from 32 on that is at least n: a size that all of a row or
--- matrix shares a scale in.
---@param n integer
---@return integer
function M.power_from(n)
  local p = 32
  while p < n do p = 2 * p end
  return p
end

-- Whether files have the plain weight of a layer as (in, out).
local function is_turned(layer) return layer._transposed and layer._transposed.weight or false end

-- Class -> function that makes a layer of it without values.
local makers = {}

-- Returns a function(out, in, bias) for layers of the class that an encoded one takes the place of.
-- A function, and not the class, so that copies of the layer share it.
local function plain_of(layer)
  local Class = class.of(layer)
  makers[Class] = makers[Class] or function(rows, cols, bias)
    if Class._transposed then return nn.init._skip(Class, rows, cols) end
    return nn.init._skip(Class, cols, rows, { bias = bias })
  end
  return makers[Class]
end
M.plain_of = plain_of

local function check_layer(where, layer)
  if class.is(layer, nn.Linear) and not class.is(layer, EncodedLinear) then return end
  options.fail("%s: layer: expected an nn.Linear with a plain weight, got %s", where, options.show(layer))
end

local function check_shape(layer, value)
  if value:dim() ~= 2 or value:size(1) ~= layer.out_features or value:size(2) ~= layer.in_features then
    options.fail("%s: expected weights [%d, %d], got %s", layer.__name, layer.out_features, layer.in_features,
      require("accelerate.utils.lists").shape_text(value))
  end
end

-- ---- 4 bits

---@class accelerate.quantisation.Linear4bit : accelerate.quantisation.EncodedLinear
---@field quant_type "nf4"|"fp4"
---@field compress_statistics boolean
---@field quant_dtype string the type that the weight was encoded from
local Linear4bit = class("Linear4bit", EncodedLinear)
Linear4bit._builtin = true
Linear4bit._parts = { scales = "weight.absmax" }
M.Linear4bit = Linear4bit

-- empty: the layer gets its weight from a state dict; until then that is on the meta device
local EMPTY = { "boolean", default = false }
local FOUR = {
  quant_type = { "string", default = "fp4", one_of = { "nf4", "fp4" } },
  compress_statistics = { "boolean", default = true },
  blocksize = { "integer", default = 64, one_of = { 32, 64, 128, 256, 512, 1024, 2048, 4096 } },
  compute_dtype = { "string", optional = true },
  empty = EMPTY,
}

--- A linear layer in 4 bits.
---@param layer accelerate.nn.Linear whose weight is encoded, and whose bias is taken over
---@param opts? { quant_type: string, compress_statistics: boolean, blocksize: integer,
---  compute_dtype: string? } quant_type: "nf4" or "fp4", the default; compress_statistics: scales
---  are encoded, too, default true; blocksize: values that share a scale, default 64;
---  compute_dtype: the type that inputs are cast to first, default theirs
function Linear4bit:init(layer, opts)
  local o = options.check("Linear4bit", opts, FOUR)
  check_layer("Linear4bit", layer)
  self.quant_type, self.compress_statistics, self.blocksize = o.quant_type, o.compress_statistics, o.blocksize
  self.filled = not o.empty
  self.in_features, self.out_features, self.turned = layer.in_features, layer.out_features, is_turned(layer)
  self.plain = plain_of(layer)
  EncodedLinear.init(self, self:_encoded(layer.weight), layer.bias, o)
  with_names(self, quant_state.save, quant_state.load)
end

function Linear4bit:_encoded(weight)
  self.quant_dtype = weight.dtype
  if weight.device == "meta" or not self.filled then return quant_state.empty(self) end
  return encodings.encode(self.quant_type, weight, self.blocksize, self.compress_statistics)
end

--- Encodes new weights.
---@param value accelerate.Tensor (out, in)
function Linear4bit:quantize(value)
  check_shape(self, value)
  self.filled = true
  self:_take(self:_encoded(value))
end

-- ---- 8 bits

---@class accelerate.quantisation.Linear8bitLt : accelerate.quantisation.EncodedLinear
---@field threshold number
local Linear8bitLt = class("Linear8bitLt", EncodedLinear)
Linear8bitLt._builtin = true
Linear8bitLt._parts = { scales = "SCB" }
M.Linear8bitLt = Linear8bitLt

local EIGHT = { threshold = { "number", default = 6, min = 0 }, empty = EMPTY }

local function save_eight(self, dict, name, prefix)
  dict[name] = stored.mark(self.weight:detach(), "I8")
  dict[prefix .. "SCB"] = self.scales
  dict[prefix .. "weight_format"] = core.tensor(0, { dtype = "uint8" })
end

local function load_eight(self, dict, name, prefix)
  local scales, format = dict[prefix .. "SCB"], dict[prefix .. "weight_format"]
  if not core.is_tensor(scales) then options.fail("%s: the state dict has no '%sSCB'", name, prefix) end
  if format and format:item() ~= 0 then
    options.fail("%sweight_format: rows are read (0), got %d", prefix, format:item())
  end
  if scales:numel() ~= self.out_features or scales.dtype ~= "float32" then
    options.fail("%sSCB: expected %d numbers of float32, got %s", prefix, self.out_features,
      options.show(scales))
  end
  dict[prefix .. "SCB"], dict[prefix .. "weight_format"] = nil, nil
  check_shape(self, dict[name])
  self:_take { name = "int8", size = encodings.SIZE, codes = self:_kept(dict[name]:to("uint8")),
    scales = self:_kept(scales) }
  dict[name] = self.weight:detach()
end

--- A linear layer in 8 bits, LLM.int8: rows of the weight and of inputs are rounded to 8 bits, but
--- for columns of the input that have an element of at least `threshold`. On a CPU, training leaves
--- inputs as they are.
---@param layer accelerate.nn.Linear whose weight is encoded, and whose bias is taken over
---@param opts? { threshold: number } default 6; 0: all columns are rounded
function Linear8bitLt:init(layer, opts)
  local o = options.check("Linear8bitLt", opts, EIGHT)
  check_layer("Linear8bitLt", layer)
  self.threshold, self.filled = o.threshold, not o.empty
  self.in_features, self.out_features, self.turned = layer.in_features, layer.out_features, is_turned(layer)
  self.plain = plain_of(layer)
  EncodedLinear.init(self, self:_encoded(layer.weight), layer.bias)
  stored.mark(self.weight, "I8")
  with_names(self, save_eight, load_eight)
end

function Linear8bitLt:_encoded(weight)
  if weight.device ~= "meta" and self.filled then return encodings.encode("int8", weight) end
  local place = { dtype = "uint8", device = "meta" }
  return { name = "int8", size = encodings.SIZE, rows = self.out_features, cols = self.in_features,
    codes = core.empty({ self.out_features, self.in_features }, place),
    scales = core.empty({ self.out_features }, { device = "meta" }) }
end

function Linear8bitLt:_threshold(x)
  if not (self.training and x.device == "cpu") then return self._values.threshold end
end

--- Encodes new weights.
---@param value accelerate.Tensor (out, in)
function Linear8bitLt:quantize(value)
  check_shape(self, value)
  self.filled = true
  self:_take(self:_encoded(value))
end

return M
