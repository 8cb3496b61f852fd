--- MPNet: BERT's encoder with RoBERTa's positions and T5's relative ones, without token types.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local encoder = require "accelerate.models.encoder"
local pretrained = require "accelerate.models.pretrained"
local relative = require "accelerate.models.relative"

-- Distances have 32 buckets, up to 128, whatever the configuration says: Transformers has it so.
local BUCKETS, FARTHEST = 32, 128

local CONFIG = encoder.schema {
  vocab_size = { "integer", default = 30527, min = 1 },
  pad_token_id = { "integer", default = 1, one_of = { 1 } },
  bos_token_id = { "integer", default = 0 },
  eos_token_id = { "integer|list", default = 2 },
  relative_attention_num_buckets = { "integer", default = BUCKETS, min = BUCKETS },
  type_vocab_size = false, classifier_dropout = false,
}

local TRAITS = encoder.traits("mpnet", "mpnet", CONFIG,
  { "hidden_size", "num_attention_heads", kinds = false })

-- ---- parts

local SelfAttention = encoder.self_attention("MPNetSelfAttention", { "q", "k", "v", "o" })

local Attention = nn.class "MPNetAttention"

function Attention:init(config)
  self.attn = SelfAttention(config)
  self.LayerNorm = nn.LayerNorm(config.hidden_size, { eps = config.layer_norm_eps })
  self.drop = config.hidden_dropout_prob
end

function Attention:forward(x, bias)
  local v = self._values
  local y = v.attn(x, bias)
  if self.training then y = core.dropout(y, v.drop) end
  return v.LayerNorm(y + x)
end

local Layer = encoder.layer("MPNetLayer", Attention)

local Encoder = nn.class("MPNetEncoder", encoder.Encoder)

function Encoder:init(config)
  encoder.Encoder.init(self, config, Layer)
  self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets,
    config.num_attention_heads)
end

-- What is added to the scores of all layers: (1 or N, heads, T, T).
local function bias_of(v, x, mask)
  local length = x:size(2)
  local buckets = relative.buckets(0, length, length, true, BUCKETS, FARTHEST, x.device)
  local bias = v.relative_attention_bias(buckets):permute(3, 1, 2):unsqueeze(1)
  return mask and bias:masked_fill(mask:logical_not(), -math.huge) or bias
end

function Encoder:forward(x, mask, all)
  return encoder.Encoder.forward(self, x, bias_of(self._values, x, mask), all)
end

-- ---- models

---@class accelerate.models.MPNetModel : accelerate.models.PreTrainedModel
--- MPNet's encoder, with the pooler unless it is made with `{ add_pooling_layer = false }`.
local MPNetModel = pretrained.class("MPNetModel", TRAITS)

function MPNetModel:_build(config)
  self.embeddings = encoder.Embeddings(config, true)
  self.encoder = Encoder(config)
  if config.add_pooling_layer ~= false then self.pooler = encoder.Pooler(config) end
end

encoder.base(MPNetModel)

---@class accelerate.models.MPNetForSequenceClassification : accelerate.models.PreTrainedModel
--- MPNet with two linear layers on the first token.
local MPNetForSequenceClassification = pretrained.class("MPNetForSequenceClassification", TRAITS)

function MPNetForSequenceClassification:_build(config)
  self.mpnet = encoder.part(MPNetModel, config, false)
  self.classifier = encoder.ClassHead(config)
end

encoder.headed(MPNetForSequenceClassification, function(self, x) return self.classifier(x) end,
  pretrained.class_loss)

---@class accelerate.models.MPNetForTokenClassification : accelerate.models.PreTrainedModel
--- MPNet with a linear layer on every token.
local MPNetForTokenClassification = pretrained.class("MPNetForTokenClassification", TRAITS)

function MPNetForTokenClassification:_build(config)
  self.mpnet = encoder.part(MPNetModel, config, false)
  self.dropout = nn.Dropout(config.hidden_dropout_prob)
  self.classifier = nn.Linear(config.hidden_size, config.num_labels)
end

encoder.headed(MPNetForTokenClassification, function(self, x) return self.classifier(self.dropout(x)) end,
  encoder.token_loss)

---@class accelerate.models.MPNetForMaskedLM : accelerate.models.PreTrainedModel
--- MPNet with scores of the vocabulary for every token; labels of -100 have no loss.
local MPNetForMaskedLM = pretrained.class("MPNetForMaskedLM", TRAITS)

function MPNetForMaskedLM:_build(config)
  self.mpnet = encoder.part(MPNetModel, config, false)
  self.lm_head = encoder.LMHead(config, self.mpnet.embeddings.word_embeddings)
end

encoder.headed(MPNetForMaskedLM, function(self, x) return self.lm_head(x) end, encoder.token_loss)

return { MPNetModel = MPNetModel, MPNetForSequenceClassification = MPNetForSequenceClassification,
  MPNetForTokenClassification = MPNetForTokenClassification, MPNetForMaskedLM = MPNetForMaskedLM }
