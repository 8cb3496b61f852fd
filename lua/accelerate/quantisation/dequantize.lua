--- Plain layers in place of encoded ones.

local class = require "accelerate.utils.class"
local blocks = require "accelerate.quantisation.blocks"
local layers = require "accelerate.quantisation.layers"
local nn = require "accelerate.nn"
local parameter = require "accelerate.nn.parameter"

local M = {}

local function plain(rows, cols, bias) return nn.init._skip(nn.Linear, cols, rows, { bias = bias }) end

local function plain_linear(old, weight)
  local bias = old.bias
  local new = (old.plain or plain)(old.out_features, old.in_features, bias ~= nil)
  new.weight, new.bias = weight, bias
  return new
end

local function plain_embedding(old, weight)
  local new = nn.init._skip(nn.Embedding, old.num_embeddings, old.embedding_dim,
    { padding_idx = old.padding_idx })
  new.weight = weight
  return new
end

--- Replaces the encoded layers below a model by plain ones with the same numbers, one after the
--- other. Weights of several names stay one.
---@param model accelerate.nn.Module
---@param dtype string of the weights
function M.all(model, dtype)
  local made = {} -- old weight -> new one
  for _, module in ipairs(model:modules()) do
    for _, child in ipairs(module:_own("module")) do
      local name, old = child[1], child[2]
      local linear, embedding = class.is(old, layers.EncodedLinear), class.is(old, blocks.GgufEmbedding)
      if linear or embedding then
        local codes = old.weight
        made[codes] = made[codes] or parameter.new(old:dequantize(dtype))
        local new = (linear and plain_linear or plain_embedding)(old, made[codes])
        new.training = old.training
        new:requires_grad_(true)
        module[name] = new
      end
    end
  end
end

return M
