--- ELECTRA: BERT's encoder on embeddings that may be narrower, without a pooler.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local encoder = require "accelerate.models.encoder"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = encoder.schema {
  embedding_size = { "integer", default = 128, min = 1 },
  hidden_size = { "integer", default = 256, min = 1 },
  num_attention_heads = { "integer", default = 4, min = 1 },
  intermediate_size = { "integer", default = 1024, min = 1 },
}

local TRAITS = encoder.traits("electra", "electra", CONFIG)

---@class accelerate.models.ElectraModel : accelerate.models.PreTrainedModel
--- ELECTRA's encoder.
local ElectraModel = pretrained.class("ElectraModel", TRAITS)

function ElectraModel:_build(config)
  self.embeddings = encoder.Embeddings(config)
  if config.embedding_size ~= config.hidden_size then
    self.embeddings_project = nn.Linear(config.embedding_size, config.hidden_size)
  end
  self.encoder = encoder.Encoder(config)
end

encoder.base(ElectraModel)

local Head = nn.class "ElectraClassificationHead"

function Head:init(config)
  self.dense = nn.Linear(config.hidden_size, config.hidden_size)
  self.dropout = nn.Dropout(encoder.head_dropout(config))
  self.out_proj = nn.Linear(config.hidden_size, config.num_labels)
end

function Head:forward(x)
  local v = self._values
  return v.out_proj(v.dropout(core.gelu(v.dense(v.dropout(x:select(2, 1))))))
end

---@class accelerate.models.ElectraForSequenceClassification : accelerate.models.PreTrainedModel
--- ELECTRA with two linear layers on the first token.
local ElectraForSequenceClassification = pretrained.class("ElectraForSequenceClassification", TRAITS)

function ElectraForSequenceClassification:_build(config)
  self.electra = encoder.part(ElectraModel, config)
  self.classifier = Head(config)
end

encoder.headed(ElectraForSequenceClassification, function(self, x) return self.classifier(x) end,
  pretrained.class_loss)

---@class accelerate.models.ElectraForTokenClassification : accelerate.models.PreTrainedModel
--- ELECTRA with a linear layer on every token.
local ElectraForTokenClassification = pretrained.class("ElectraForTokenClassification", TRAITS)

function ElectraForTokenClassification:_build(config)
  self.electra = encoder.part(ElectraModel, config)
  self.dropout = nn.Dropout(encoder.head_dropout(config))
  self.classifier = nn.Linear(config.hidden_size, config.num_labels)
end

encoder.headed(ElectraForTokenClassification, function(self, x) return self.classifier(self.dropout(x)) end,
  encoder.token_loss)

return { ElectraModel = ElectraModel, ElectraForSequenceClassification = ElectraForSequenceClassification,
  ElectraForTokenClassification = ElectraForTokenClassification }
