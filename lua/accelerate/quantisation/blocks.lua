--- Layers whose weights rest in the blocks of GGUF files: a row of a weight is a row of bytes.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local encodings = require "accelerate.quantisation.encodings"
local layers = require "accelerate.quantisation.layers"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local parameter = require "accelerate.nn.parameter"

local fail = options.fail

local M = {}

local function empty_codes(type, rows, cols)
  local row = encodings.list[type]
  return core.empty({ rows, cols / row.block * row.bytes }, { dtype = "uint8", device = "meta" })
end

-- Refuses plain numbers for a weight in blocks, which nothing here encodes.
local function refuse_numbers(layer)
  layer:register_load_state_dict_pre_hook(function(self, dict, prefix)
    local value = dict[prefix .. "weight"]
    if core.is_tensor(value) and core._is_float(value) then self:quantize(value) end
  end)
end

local function quantize(self)
  fail("%s: numbers are not encoded in %s; from_pretrained with dequantize = true, or model:dequantize(), " ..
    "makes it a plain layer", self.__name, self.encoding)
end

---@class accelerate.quantisation.GgufLinear : accelerate.quantisation.EncodedLinear
local GgufLinear = class("GgufLinear", layers.EncodedLinear)
GgufLinear._builtin = true
-- all of the weight is one tensor, which stays in its file where that is of use to the CPU
GgufLinear._parts, GgufLinear._stays = {}, true
M.GgufLinear = GgufLinear

--- A linear layer over blocks, which a state dict brings.
---@param layer accelerate.nn.Linear whose sizes and bias are taken over
---@param type string of the blocks
function GgufLinear:init(layer, type)
  layers.EncodedLinear.init(self, { name = type, rows = layer.out_features, cols = layer.in_features,
    size = encodings.SIZE, codes = empty_codes(type, layer.out_features, layer.in_features) }, layer.bias)
  self.plain = layers.plain_of(layer)
  refuse_numbers(self)
end

GgufLinear.quantize = quantize

---@class accelerate.quantisation.GgufEmbedding : accelerate.nn.Embedding
---@field weight accelerate.Tensor uint8 codes
---@field encoding string
local GgufEmbedding = class("GgufEmbedding", nn.Embedding)
GgufEmbedding._builtin = true
GgufEmbedding._parts, GgufEmbedding._stays = {}, true
M.GgufEmbedding = GgufEmbedding

--- An embedding over blocks, which a state dict brings. Rows are decoded as they are looked up.
---@param layer accelerate.nn.Embedding whose sizes are taken over
---@param type string of the blocks
function GgufEmbedding:init(layer, type)
  self.num_embeddings, self.embedding_dim = layer.num_embeddings, layer.embedding_dim
  self.padding_idx = layer.padding_idx
  self.encoding = type
  -- has the type that rows are decoded to: Module:to converts it, as it does other layers' weights
  self:register_buffer("like", core.zeros(1), { persistent = false })
  self.weight = parameter.new(empty_codes(type, self.num_embeddings, self.embedding_dim),
    { requires_grad = false })
  refuse_numbers(self)
end

GgufEmbedding.quantize = quantize
function GgufEmbedding:reset_parameters() end

--- Returns the table's numbers.
---@param dtype? string default "float32"
---@return accelerate.Tensor (num_embeddings, embedding_dim)
function GgufEmbedding:dequantize(dtype) return self:_rows(self.weight:detach(), dtype or "float32") end

function GgufEmbedding:_rows(codes, dtype)
  local v = self._values
  return encodings.decode({ name = v.encoding, rows = codes:size(1), cols = v.embedding_dim,
    size = encodings.SIZE, codes = codes }, dtype)
end

function GgufEmbedding:forward(ids)
  local v = self._values
  local rows = self:_rows(v.weight:detach():index_select(1, ids:reshape(-1):long()), v.like.dtype)
  local shape = ids.shape
  shape[#shape + 1] = v.embedding_dim
  return rows:view(unpack(shape))
end

function GgufEmbedding:extra_repr()
  return ("%d, %d, encoding=%s"):format(self.num_embeddings, self.embedding_dim, self.encoding)
end

return M
