--- MPNet: BERT's encoder with RoBERTa's positions and T5's relative ones, without token types.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local encoder = require "accelerate.models.encoder"
local pretrained = require "accelerate.models.pretrained"
local relative = require "accelerate.models.relative"

local sdpa, dropout = core.scaled_dot_product_attention, core.dropout

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

-- ---- parts --------------------------------------------------------------------------------------

local SelfAttention = nn.class "MPNetSelfAttention"

function SelfAttention:init(config)
  self.heads, self.drop = config.num_attention_heads, config.attention_probs_dropout_prob
  for _, name in ipairs { "q", "k", "v", "o" } do
    self[name] = nn.Linear(config.hidden_size, config.hidden_size)
  end
end

function SelfAttention:forward(x, bias)
  local v, N, T = self._values, x:size(1), x:size(2)
  local function heads(t) return t:view(N, T, v.heads, -1):transpose(2, 3) end
  local y = sdpa(heads(v.q(x)), heads(v.k(x)), heads(v.v(x)), bias, self.training and v.drop or 0)
  return v.o(y:transpose(2, 3):reshape(N, T, -1))
end

local Attention = nn.class "MPNetAttention"

function Attention:init(config)
  self.attn = SelfAttention(config)
  self.LayerNorm = nn.LayerNorm(config.hidden_size, { eps = config.layer_norm_eps })
  self.drop = config.hidden_dropout_prob
end

function Attention:forward(x, bias)
  local v = self._values
  local y = v.attn(x, bias)
  if self.training then y = dropout(y, v.drop) end
  return v.LayerNorm(y + x)
end

local Layer = nn.class "MPNetLayer"

function Layer:init(config)
  self.attention = Attention(config)
  self.intermediate = encoder.Intermediate(config)
  self.output = encoder.Output(config, config.intermediate_size)
end

local function layer(v, x, bias)
  x = v.attention(x, bias)
  return v.output(v.intermediate(x), x)
end

function Layer:forward(x, bias) return core.scope(layer, self._values, x, bias) end

local Encoder = nn.class "MPNetEncoder"

function Encoder:init(config)
  local layers = {}
  for i = 1, config.num_hidden_layers do layers[i] = Layer(config) end
  self.layer = nn.ModuleList(layers)
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
  local v = self._values
  local bias = bias_of(v, x, mask)
  if all then all[1] = x end
  for _, one in ipairs(v.layer:_child_list()) do
    x = one(x, bias)
    if all then all[#all + 1] = x end
  end
  return x
end

-- ---- models -------------------------------------------------------------------------------------

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
