--- Transformer layers and stacks of them, with PyTorch's parameter names, defaults and
--- initialisation.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local Module = require "accelerate.nn.clone"
local hooks = require "accelerate.nn.hooks"
local init = require "accelerate.nn.initializers"
local sizes = require "accelerate.nn.sizes"
local Linear = require("accelerate.nn.linear").Linear
local Dropout = require("accelerate.nn.dropout").Dropout
local LayerNorm = require("accelerate.nn.norm").LayerNorm
local MultiheadAttention = require("accelerate.nn.attention").MultiheadAttention
local ModuleList = require("accelerate.nn.containers").ModuleList

local M = {}

local SIZE = { "integer", min = 1 }
local ACTIVATIONS = {
  relu = core.relu,
  gelu = function(x) return core.gelu(x) end,
}
local LAYER = {
  dim_feedforward = { "integer", default = 2048, min = 1 },
  dropout = { "number", default = 0.1, min = 0, max = 1 },
  activation = { "string|function", default = "relu" },
  layer_norm_eps = { "number", default = 1e-5, min = 0 },
  batch_first = { "boolean", default = false },
  norm_first = { "boolean", default = false },
  bias = { "boolean", default = true },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}

-- The options of a call: by position in this order, by name in a table at the end, or both.
local function called(where, order, schema, ...)
  return options.check(where, options.gather(where, order, ...), schema)
end

-- What both layers share: checks options, makes attention, the two linear layers, norms and
-- dropouts.
local function build(self, where, d_model, nhead, opts, attentions)
  local o = options.check(where, opts, LAYER)
  options.value(where, "d_model", d_model, SIZE)
  options.value(where, "nhead", nhead, SIZE)
  if type(o.activation) == "string" and not ACTIVATIONS[o.activation] then
    options.fail("%s: activation must be 'relu', 'gelu' or a function, got '%s'", where, o.activation)
  end
  self.activation = ACTIVATIONS[o.activation] or o.activation
  self.norm_first = o.norm_first
  local place = { bias = o.bias, dtype = o.dtype, device = o.device }
  for _, name in ipairs(attentions) do
    self[name] = MultiheadAttention(d_model, nhead,
      { dropout = o.dropout, batch_first = o.batch_first, bias = o.bias, dtype = o.dtype, device = o.device })
  end
  self.linear1 = Linear(d_model, o.dim_feedforward, place)
  self.dropout = Dropout(o.dropout)
  self.linear2 = Linear(o.dim_feedforward, d_model, place)
  for i = 1, #attentions + 1 do
    self["norm" .. i] = LayerNorm(d_model, { eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype,
      device = o.device })
  end
  for i = 1, #attentions + 1 do self["dropout" .. i] = Dropout(o.dropout) end
end

-- No hook or method of the script sees the inputs and outputs of the module.
local function plain(module)
  return module._builtin and not hooks.watch_forward(module)
end

-- May what lies between the parts of a layer be let go of at once?  Not when a hook or a function
-- of the user's gets to see it.
local function private(self)
  for _, module in ipairs(self:children()) do
    if not plain(module) then return false end
  end
  local activation = self._values.activation
  return activation == nil or activation == ACTIVATIONS.relu or activation == ACTIVATIONS.gelu
end

-- Returns y. Where `free`, frees x: y was made of it.
local function instead(free, x, y)
  if free and not rawequal(x, y) then core.release(x) end
  return y
end

local function feed_forward(self, free, x)
  local h = self.linear1(x)
  h = instead(free, h, self.activation(h))
  h = instead(free, h, self.dropout(h))
  return instead(free, h, self.linear2(h))
end

-- x + dropout(branch)
local function residual(free, x, branch, dropout)
  local dropped = instead(free, branch, dropout(branch))
  return instead(free, dropped, core.add(x, dropped))
end

-- One sublayer around x, norm first or last.  ours: x was made in this layer.
local function sublayer(self, free, x, ours, norm, dropout, fn)
  local y
  if self.norm_first then
    local normed = norm(x)
    y = residual(free, x, instead(free, normed, fn(normed)), dropout)
  else
    local sum = residual(free, x, fn(x), dropout)
    y = instead(free, sum, norm(sum))
  end
  return instead(free and ours, x, y)
end

-- ---- encoder

---@class accelerate.nn.TransformerEncoderLayer : accelerate.nn.Module
local EncoderLayer = class("TransformerEncoderLayer", Module)
EncoderLayer._builtin = true

--- Self-attention and a feed-forward network, each with dropout, a residual connection and
--- LayerNorm.
---@param d_model integer
---@param nhead integer
---@param opts? { dim_feedforward: integer, dropout: number, activation: "relu"|"gelu"|function,
---  layer_norm_eps: number, batch_first: boolean, norm_first: boolean, bias: boolean, dtype:
---  string, device: string }
function EncoderLayer:init(d_model, nhead, opts)
  build(self, "TransformerEncoderLayer", d_model, nhead, opts, { "self_attn" })
end

local ENCODE = {
  src_mask = { "tensor", optional = true },
  src_key_padding_mask = { "tensor", optional = true },
  is_causal = { "boolean", default = false },
}
local ENCODE_ORDER = { "src_mask", "src_key_padding_mask", "is_causal" }

---@param src accelerate.Tensor (T, N, E), or (N, T, E) with batch_first, or (T, E)
---@param ... any src_mask, src_key_padding_mask (in masks true hides), is_causal = false; by
---  position, by name in a table at the end, or both
---@return accelerate.Tensor
function EncoderLayer:forward(src, ...)
  local o = called("TransformerEncoderLayer", ENCODE_ORDER, ENCODE, ...)
  local how = { attn_mask = o.src_mask, key_padding_mask = o.src_key_padding_mask, is_causal = o.is_causal,
    need_weights = false }
  local free = private(self)
  local x = sublayer(self, free, src, false, self.norm1, self.dropout1,
    function(h) return (self.self_attn(h, h, h, how)) end)
  return sublayer(self, free, x, true, self.norm2, self.dropout2,
    function(h) return feed_forward(self, free, h) end)
end

-- ---- decoder

---@class accelerate.nn.TransformerDecoderLayer : accelerate.nn.Module
local DecoderLayer = class("TransformerDecoderLayer", Module)
DecoderLayer._builtin = true

--- Self-attention, attention over an encoder's result, and a feed-forward network.
---@param d_model integer
---@param nhead integer
---@param opts? table as for TransformerEncoderLayer
function DecoderLayer:init(d_model, nhead, opts)
  build(self, "TransformerDecoderLayer", d_model, nhead, opts, { "self_attn", "multihead_attn" })
end

local DECODE = {
  tgt_mask = { "tensor", optional = true },
  memory_mask = { "tensor", optional = true },
  tgt_key_padding_mask = { "tensor", optional = true },
  memory_key_padding_mask = { "tensor", optional = true },
  tgt_is_causal = { "boolean", default = false },
  memory_is_causal = { "boolean", default = false },
}
local DECODE_ORDER = { "tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask",
  "tgt_is_causal", "memory_is_causal" }

---@param tgt accelerate.Tensor
---@param memory accelerate.Tensor the encoder's result
---@param ... any tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
---  tgt_is_causal = false, memory_is_causal = false; by position, by name in a table at the end, or
---  both
---@return accelerate.Tensor
function DecoderLayer:forward(tgt, memory, ...)
  local o = called("TransformerDecoderLayer", DECODE_ORDER, DECODE, ...)
  local own = { attn_mask = o.tgt_mask, key_padding_mask = o.tgt_key_padding_mask,
    is_causal = o.tgt_is_causal, need_weights = false }
  local other = { attn_mask = o.memory_mask, key_padding_mask = o.memory_key_padding_mask,
    is_causal = o.memory_is_causal, need_weights = false }
  local free = private(self)
  local x = sublayer(self, free, tgt, false, self.norm1, self.dropout1,
    function(h) return (self.self_attn(h, h, h, own)) end)
  x = sublayer(self, free, x, true, self.norm2, self.dropout2,
    function(h) return (self.multihead_attn(h, memory, memory, other)) end)
  return sublayer(self, free, x, true, self.norm3, self.dropout3,
    function(h) return feed_forward(self, free, h) end)
end

-- ---- stacks

local function stack(self, where, layer, count, norm)
  if not Module._is_module(layer) then
    options.fail("%s: expected a layer, got %s", where, options.show(layer))
  end
  options.value(where, "num_layers", count, sizes.LAYERS)
  local list = {}
  for i = 1, count do list[i] = layer:clone() end
  self.layers = ModuleList(list)
  self.num_layers = count
  if norm ~= nil then self.norm = norm end
end

-- The layers in turn, and the norm.
local function run(self, x, call)
  local layers, free = self.layers, private(self.layers) and (not self.norm or plain(self.norm))
  for i = 1, self.num_layers do x = instead(free and i > 1, x, call(layers[i], x)) end
  if not self.norm then return x end
  return instead(free, x, self.norm(x))
end

-- Is the mask the causal one?  Asked once for a stack, so that its layers take the faster way.
local function is_causal(mask)
  if not mask or mask:dim() ~= 2 or mask.shape[1] ~= mask.shape[2] then return false end
  local n = mask.shape[1]
  local at = core.arange(n, { device = mask.device })
  local above = core.gt(at, at:view(n, 1))
  local hidden = mask.dtype == "bool" and mask or mask:eq(-math.huge)
  local shown = mask.dtype == "bool" or mask:masked_fill(above, 0):eq(0):all():item()
  return shown and hidden:eq(above):all():item()
end

local STACK = { norm = { "any", optional = true } }
-- PyTorch's encoder skips what padding masks hide, when it may; the results are the same.
local ENCODER = { norm = STACK.norm, enable_nested_tensor = { "boolean", default = true },
  mask_check = { "boolean", default = true } }

---@class accelerate.nn.TransformerEncoder : accelerate.nn.Module
local Encoder = class("TransformerEncoder", Module)
Encoder._builtin = true

--- num_layers copies of a layer, and a norm after them.
---@param encoder_layer accelerate.nn.Module
---@param num_layers integer
---@param opts? { norm: accelerate.nn.Module, enable_nested_tensor: boolean, mask_check: boolean }
---  the last two change nothing
function Encoder:init(encoder_layer, num_layers, opts)
  stack(self, "TransformerEncoder", encoder_layer, num_layers,
    options.check("TransformerEncoder", opts, ENCODER).norm)
end

local ENCODE_ALL = {
  mask = { "tensor", optional = true },
  src_key_padding_mask = { "tensor", optional = true },
  is_causal = { "boolean", optional = true },
}
local ENCODE_ALL_ORDER = { "mask", "src_key_padding_mask", "is_causal" }

---@param src accelerate.Tensor
---@param ... any mask, src_key_padding_mask, is_causal (found out when not given); by position, by
---  name in a table at the end, or both
---@return accelerate.Tensor
function Encoder:forward(src, ...)
  local o = called("TransformerEncoder", ENCODE_ALL_ORDER, ENCODE_ALL, ...)
  if o.is_causal == nil then o.is_causal = is_causal(o.mask) end
  local how = { src_mask = o.mask, src_key_padding_mask = o.src_key_padding_mask, is_causal = o.is_causal }
  return run(self, src, function(layer, x) return layer(x, how) end)
end

---@class accelerate.nn.TransformerDecoder : accelerate.nn.Module
local Decoder = class("TransformerDecoder", Module)
Decoder._builtin = true

--- num_layers copies of a layer, and a norm after them.
---@param decoder_layer accelerate.nn.Module
---@param num_layers integer
---@param opts? { norm: accelerate.nn.Module }
function Decoder:init(decoder_layer, num_layers, opts)
  stack(self, "TransformerDecoder", decoder_layer, num_layers,
    options.check("TransformerDecoder", opts, STACK).norm)
end

local DECODE_ALL = {}
for name, entry in next, DECODE do DECODE_ALL[name] = entry end
DECODE_ALL.tgt_is_causal = { "boolean", optional = true }

---@param tgt accelerate.Tensor
---@param memory accelerate.Tensor
---@param ... any as for TransformerDecoderLayer; tgt_is_causal is found out when not given
---@return accelerate.Tensor
function Decoder:forward(tgt, memory, ...)
  local o = called("TransformerDecoder", DECODE_ORDER, DECODE_ALL, ...)
  if o.tgt_is_causal == nil then o.tgt_is_causal = is_causal(o.tgt_mask) end
  return run(self, tgt, function(layer, x) return layer(x, memory, o) end)
end

-- ---- both

---@class accelerate.nn.Transformer : accelerate.nn.Module
local Transformer = class("Transformer", Module)
Transformer._builtin = true

local BOTH = {
  d_model = { "integer", default = 512, min = 1 },
  nhead = { "integer", default = 8, min = 1 },
  num_encoder_layers = { "integer", default = 6, min = 1, max = sizes.LAYERS.max },
  num_decoder_layers = { "integer", default = 6, min = 1, max = sizes.LAYERS.max },
}
for name, entry in next, LAYER do BOTH[name] = entry end

--- An encoder and a decoder, each with a LayerNorm at its end; matrices start Xavier uniform.
---@param opts? { d_model: integer, nhead: integer, num_encoder_layers: integer, num_decoder_layers:
---  integer, dim_feedforward: integer, dropout: number, activation: "relu"|"gelu"|function,
---  layer_norm_eps: number, batch_first: boolean, norm_first: boolean, bias: boolean, dtype:
---  string, device: string }
function Transformer:init(opts)
  local o = options.check("Transformer", opts, BOTH)
  local layer = {}
  for name in next, LAYER do layer[name] = o[name] end
  local function norm()
    return LayerNorm(o.d_model, { eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype, device = o.device })
  end
  self.encoder = Encoder(EncoderLayer(o.d_model, o.nhead, layer), o.num_encoder_layers, { norm = norm() })
  self.decoder = Decoder(DecoderLayer(o.d_model, o.nhead, layer), o.num_decoder_layers, { norm = norm() })
  self.d_model, self.nhead, self.batch_first = o.d_model, o.nhead, o.batch_first
  for _, p in ipairs(self:parameters()) do
    if p:dim() > 1 then init.xavier_uniform_(p) end
  end
end

local TRANSLATE = {
  src_mask = { "tensor", optional = true },
  tgt_mask = { "tensor", optional = true },
  memory_mask = { "tensor", optional = true },
  src_key_padding_mask = { "tensor", optional = true },
  tgt_key_padding_mask = { "tensor", optional = true },
  memory_key_padding_mask = { "tensor", optional = true },
  src_is_causal = { "boolean", optional = true },
  tgt_is_causal = { "boolean", optional = true },
  memory_is_causal = { "boolean", default = false },
}
local TRANSLATE_ORDER = { "src_mask", "tgt_mask", "memory_mask", "src_key_padding_mask",
  "tgt_key_padding_mask", "memory_key_padding_mask", "src_is_causal", "tgt_is_causal", "memory_is_causal" }

---@param src accelerate.Tensor
---@param tgt accelerate.Tensor
---@param ... any src_mask, tgt_mask, memory_mask, src_key_padding_mask, tgt_key_padding_mask,
---  memory_key_padding_mask, src_is_causal, tgt_is_causal (both found out when not given),
---  memory_is_causal = false; by position, by name in a table at the end, or both
---@return accelerate.Tensor
function Transformer:forward(src, tgt, ...)
  local o = called("Transformer", TRANSLATE_ORDER, TRANSLATE, ...)
  local memory = self.encoder(src, { mask = o.src_mask, src_key_padding_mask = o.src_key_padding_mask,
    is_causal = o.src_is_causal })
  return self.decoder(tgt, memory, {
    tgt_mask = o.tgt_mask, memory_mask = o.memory_mask, tgt_key_padding_mask = o.tgt_key_padding_mask,
    memory_key_padding_mask = o.memory_key_padding_mask, tgt_is_causal = o.tgt_is_causal,
    memory_is_causal = o.memory_is_causal,
  })
end

--- Returns a float32 mask (size, size): -inf above the diagonal, 0 elsewhere. Needs no object:
--- `nn.Transformer.generate_square_subsequent_mask(size)`.
---@param size integer
---@return accelerate.Tensor
function Transformer.generate_square_subsequent_mask(...)
  local size = select(-1, nil, ...) -- behind the object, if it is called as a method
  options.value("generate_square_subsequent_mask", "size", size, SIZE)
  local at = core.arange(size)
  return core.zeros(size, size):masked_fill(core.gt(at, at:view(size, 1)), -math.huge)
end

M.TransformerEncoderLayer, M.TransformerDecoderLayer = EncoderLayer, DecoderLayer
M.TransformerEncoder, M.TransformerDecoder, M.Transformer = Encoder, Decoder, Transformer

-- The tensors of a call, too, may be given by name.
for title, tensors in next, {
  TransformerEncoderLayer = "src", TransformerDecoderLayer = "tgt memory", TransformerEncoder = "src",
  TransformerDecoder = "tgt memory", Transformer = "src tgt",
} do
  local Class = M[title]
  rawset(Class, "forward", positions.arrange(title, tensors .. " ...", Class.forward, true))
end

return M
