--- BERT: an encoder with post-LayerNorm, and its heads.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local activations = require "accelerate.models.activations"
local encoder = require "accelerate.models.encoder"
local pretrained = require "accelerate.models.pretrained"

local TRAITS = encoder.traits("bert", "bert", encoder.schema())

---@class accelerate.models.BertModel : accelerate.models.PreTrainedModel
--- The encoder, with the pooler unless it is made with `{ add_pooling_layer = false }`.
local BertModel = pretrained.class("BertModel", TRAITS)

function BertModel:_build(config)
  self.embeddings = encoder.Embeddings(config)
  self.encoder = encoder.Encoder(config)
  if config.add_pooling_layer ~= false then self.pooler = encoder.Pooler(config) end
end

encoder.base(BertModel)

---@class accelerate.models.BertForSequenceClassification : accelerate.models.PreTrainedModel
--- BERT with a linear layer on the pooled first token.
local BertForSequenceClassification = pretrained.class("BertForSequenceClassification", TRAITS)

function BertForSequenceClassification:_build(config)
  self.bert = encoder.part(BertModel, config)
  self.dropout = nn.Dropout(encoder.head_dropout(config))
  self.classifier = nn.Linear(config.hidden_size, config.num_labels)
end

encoder.headed(BertForSequenceClassification, function(self, _, pooled)
  return self.classifier(self.dropout(pooled))
end, pretrained.class_loss)

---@class accelerate.models.BertForTokenClassification : accelerate.models.PreTrainedModel
--- BERT with a linear layer on every token.
local BertForTokenClassification = pretrained.class("BertForTokenClassification", TRAITS)

function BertForTokenClassification:_build(config)
  self.bert = encoder.part(BertModel, config, false)
  self.dropout = nn.Dropout(encoder.head_dropout(config))
  self.classifier = nn.Linear(config.hidden_size, config.num_labels)
end

encoder.headed(BertForTokenClassification, function(self, x) return self.classifier(self.dropout(x)) end,
  encoder.token_loss)

local Predictions = nn.class "BertLMPredictionHead"

function Predictions:init(config, embeddings)
  self.bias = nn.Parameter(core.zeros(config.vocab_size))
  self.transform = nn.Module()
  self.transform.dense = nn.Linear(config.hidden_size, config.hidden_size)
  self.transform.LayerNorm = nn.LayerNorm(config.hidden_size, { eps = config.layer_norm_eps })
  self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
  self.decoder.bias = self.bias
  if config.tie_word_embeddings then self.decoder.weight = embeddings.weight end
  self.act = activations.functions[config.hidden_act]
end

function Predictions:forward(x)
  local v = self._values
  return v.decoder(v.transform.LayerNorm(v.act(v.transform.dense(x))))
end

---@class accelerate.models.BertForMaskedLM : accelerate.models.PreTrainedModel
--- BERT with scores of the vocabulary for every token; labels of -100 have no loss.
local BertForMaskedLM = pretrained.class("BertForMaskedLM", TRAITS)

function BertForMaskedLM:_build(config)
  self.bert = encoder.part(BertModel, config, false)
  self.cls = nn.Module()
  self.cls.predictions = Predictions(config, self.bert.embeddings.word_embeddings)
end

encoder.headed(BertForMaskedLM, function(self, x) return self.cls.predictions(x) end, encoder.token_loss)

return { BertModel = BertModel, BertForSequenceClassification = BertForSequenceClassification,
  BertForTokenClassification = BertForTokenClassification, BertForMaskedLM = BertForMaskedLM }
