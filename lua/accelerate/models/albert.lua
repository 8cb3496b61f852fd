--- ALBERT: BERT's encoder on narrow embeddings, whose layers share their weights.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local activations = require "accelerate.models.activations"
local encoder = require "accelerate.models.encoder"
local pretrained = require "accelerate.models.pretrained"

local function rate(default) return { "number", default = default, min = 0, max = 1 } end

local CONFIG = encoder.schema {
  vocab_size = { "integer", default = 30000, min = 1 },
  embedding_size = { "integer", default = 128, min = 1 },
  hidden_size = { "integer", default = 4096, min = 1 },
  num_hidden_groups = { "integer", default = 1, min = 1 },
  num_attention_heads = { "integer", default = 64, min = 1 },
  intermediate_size = { "integer", default = 16384, min = 1 },
  inner_group_num = { "integer", default = 1, min = 1 },
  hidden_act = activations.entry "gelu_new",
  hidden_dropout_prob = rate(0), attention_probs_dropout_prob = rate(0),
  classifier_dropout = false, classifier_dropout_prob = rate(0.1),
  bos_token_id = { "integer", default = 2 },
  eos_token_id = { "integer|list", default = 3 },
}

local TRAITS = encoder.traits("albert", "albert", CONFIG)

-- ---- parts

local function layer_norm(config) return nn.LayerNorm(config.hidden_size, { eps = config.layer_norm_eps }) end

local SelfAttention = encoder.self_attention("AlbertSelfAttention", { "query", "key", "value", "dense" })

local Attention = nn.class("AlbertAttention", SelfAttention)

function Attention:init(config)
  SelfAttention.init(self, config)
  self.output_drop = config.hidden_dropout_prob
  self.LayerNorm = layer_norm(config)
end

function Attention:forward(x, mask)
  local v = self._values
  local y = SelfAttention.forward(self, x, mask)
  if self.training then y = core.dropout(y, v.output_drop) end
  return v.LayerNorm(x + y)
end

local Layer = nn.class "AlbertLayer"

function Layer:init(config)
  self.full_layer_layer_norm = layer_norm(config)
  self.attention = Attention(config)
  self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
  self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
  self.act = activations.functions[config.hidden_act]
end

local function layer(v, x, mask)
  x = v.attention(x, mask)
  return v.full_layer_layer_norm(v.ffn_output(v.act(v.ffn(x))) + x)
end

function Layer:forward(x, mask) return core.scope(layer, self._values, x, mask) end

-- Layer i is that of its group: num_hidden_groups of them, each passed as often as the others.
local Encoder = nn.class "AlbertTransformer"

function Encoder:init(config)
  self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
  local groups = {}
  for i = 1, config.num_hidden_groups do
    local layers = {}
    for j = 1, config.inner_group_num do layers[j] = Layer(config) end
    groups[i] = nn.Module()
    groups[i].albert_layers = nn.ModuleList(layers)
  end
  self.albert_layer_groups = nn.ModuleList(groups)
  self.passes, self.groups = config.num_hidden_layers, config.num_hidden_groups
end

function Encoder:forward(x, mask, all)
  local v = self._values
  local groups = v.albert_layer_groups:_child_list()
  x = v.embedding_hidden_mapping_in(x)
  if all then all[1] = x end
  for i = 0, v.passes - 1 do
    local group = groups[math.floor(i / (v.passes / v.groups)) + 1]
    for _, one in ipairs(group.albert_layers:_child_list()) do
      x = one(x, mask)
      if all then all[#all + 1] = x end
    end
  end
  return x
end

-- The pooler of the first token is a linear layer itself.
local Pooler = nn.class("AlbertPooler", nn.Linear)

function Pooler:forward(x) return nn.Linear.forward(self, x:select(2, 1)):tanh() end

local MaskedHead = nn.class "AlbertMLMHead"

function MaskedHead:init(config, embeddings)
  self.LayerNorm = nn.LayerNorm(config.embedding_size, { eps = config.layer_norm_eps })
  self.bias = nn.Parameter(core.zeros(config.vocab_size))
  self.dense = nn.Linear(config.hidden_size, config.embedding_size)
  self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
  self.decoder.bias = self.bias
  if config.tie_word_embeddings then self.decoder.weight = embeddings.weight end
  self.act = activations.functions[config.hidden_act]
end

function MaskedHead:forward(x)
  local v = self._values
  return v.decoder(v.LayerNorm(v.act(v.dense(x))))
end

-- ---- models

---@class accelerate.models.AlbertModel : accelerate.models.PreTrainedModel
--- ALBERT's encoder, with the pooler unless it is made with `{ add_pooling_layer = false }`.
local AlbertModel = pretrained.class("AlbertModel", TRAITS)

function AlbertModel:_build(config)
  self.embeddings = encoder.Embeddings(config)
  self.encoder = Encoder(config)
  if config.add_pooling_layer ~= false then self.pooler = Pooler(config.hidden_size, config.hidden_size) end
end

encoder.base(AlbertModel)

---@class accelerate.models.AlbertForSequenceClassification : accelerate.models.PreTrainedModel
--- ALBERT with a linear layer on the pooled first token.
local AlbertForSequenceClassification = pretrained.class("AlbertForSequenceClassification", TRAITS)

function AlbertForSequenceClassification:_build(config)
  self.albert = encoder.part(AlbertModel, config)
  self.dropout = nn.Dropout(config.classifier_dropout_prob)
  self.classifier = nn.Linear(config.hidden_size, config.num_labels)
end

encoder.headed(AlbertForSequenceClassification, function(self, _, pooled)
  return self.classifier(self.dropout(pooled))
end, pretrained.class_loss)

---@class accelerate.models.AlbertForTokenClassification : accelerate.models.PreTrainedModel
--- ALBERT with a linear layer on every token.
local AlbertForTokenClassification = pretrained.class("AlbertForTokenClassification", TRAITS)

function AlbertForTokenClassification:_build(config)
  self.albert = encoder.part(AlbertModel, config, false)
  self.dropout = nn.Dropout(config.classifier_dropout_prob)
  self.classifier = nn.Linear(config.hidden_size, config.num_labels)
end

encoder.headed(AlbertForTokenClassification, function(self, x) return self.classifier(self.dropout(x)) end,
  encoder.token_loss)

---@class accelerate.models.AlbertForMaskedLM : accelerate.models.PreTrainedModel
--- ALBERT with scores of the vocabulary for every token; labels of -100 have no loss.
local AlbertForMaskedLM = pretrained.class("AlbertForMaskedLM", TRAITS)

function AlbertForMaskedLM:_build(config)
  self.albert = encoder.part(AlbertModel, config, false)
  self.predictions = MaskedHead(config, self.albert.embeddings.word_embeddings)
end

encoder.headed(AlbertForMaskedLM, function(self, x) return self.predictions(x) end, encoder.token_loss)

return { AlbertModel = AlbertModel, AlbertForSequenceClassification = AlbertForSequenceClassification,
  AlbertForTokenClassification = AlbertForTokenClassification, AlbertForMaskedLM = AlbertForMaskedLM }
