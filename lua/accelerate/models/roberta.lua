--- RoBERTa and XLM-RoBERTa: BERT's encoder with positions that count on behind the padding's id.

local nn = require "accelerate.nn"
local encoder = require "accelerate.models.encoder"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = encoder.schema {
  vocab_size = { "integer", default = 50265, min = 1 },
  pad_token_id = { "integer", default = 1, min = 0 },
  bos_token_id = { "integer", default = 0 },
  eos_token_id = { "integer|list", default = 2 },
}

local ROBERTA, XLM = encoder.traits("roberta", "roberta", CONFIG), encoder.traits("xlm-roberta", "roberta",
  CONFIG)

-- Gives the four classes of a type what they do.
local function complete(Base, Classifier, Tokens, Masked)
  function Base:_build(config)
    self.embeddings = encoder.Embeddings(config, true)
    self.encoder = encoder.Encoder(config)
    if config.add_pooling_layer ~= false then self.pooler = encoder.Pooler(config) end
  end
  encoder.base(Base)

  function Classifier:_build(config)
    self.roberta = encoder.part(Base, config, false)
    self.classifier = encoder.ClassHead(config)
  end
  encoder.headed(Classifier, function(self, x) return self.classifier(x) end, pretrained.class_loss)

  function Tokens:_build(config)
    self.roberta = encoder.part(Base, config, false)
    self.dropout = nn.Dropout(encoder.head_dropout(config))
    self.classifier = nn.Linear(config.hidden_size, config.num_labels)
  end
  encoder.headed(Tokens, function(self, x) return self.classifier(self.dropout(x)) end, encoder.token_loss)

  function Masked:_build(config)
    self.roberta = encoder.part(Base, config, false)
    self.lm_head = encoder.LMHead(config, self.roberta.embeddings.word_embeddings)
  end
  encoder.headed(Masked, function(self, x) return self.lm_head(x) end, encoder.token_loss)
end

---@class accelerate.models.RobertaModel : accelerate.models.PreTrainedModel
--- RoBERTa's encoder, with the pooler unless it is made with `{ add_pooling_layer = false }`.
local RobertaModel = pretrained.class("RobertaModel", ROBERTA)

---@class accelerate.models.RobertaForSequenceClassification : accelerate.models.PreTrainedModel
--- RoBERTa with two linear layers on the first token.
local RobertaForSequenceClassification = pretrained.class("RobertaForSequenceClassification", ROBERTA)

---@class accelerate.models.RobertaForTokenClassification : accelerate.models.PreTrainedModel
--- RoBERTa with a linear layer on every token.
local RobertaForTokenClassification = pretrained.class("RobertaForTokenClassification", ROBERTA)

---@class accelerate.models.RobertaForMaskedLM : accelerate.models.PreTrainedModel
--- RoBERTa with scores of the vocabulary for every token; labels of -100 have no loss.
local RobertaForMaskedLM = pretrained.class("RobertaForMaskedLM", ROBERTA)

complete(RobertaModel, RobertaForSequenceClassification, RobertaForTokenClassification, RobertaForMaskedLM)

---@class accelerate.models.XLMRobertaModel : accelerate.models.PreTrainedModel
--- XLM-RoBERTa's encoder, with the pooler unless it is made with `{ add_pooling_layer = false }`.
local XLMRobertaModel = pretrained.class("XLMRobertaModel", XLM)

---@class accelerate.models.XLMRobertaForSequenceClassification : accelerate.models.PreTrainedModel
--- XLM-RoBERTa with two linear layers on the first token.
local XLMRobertaForSequenceClassification = pretrained.class("XLMRobertaForSequenceClassification", XLM)

---@class accelerate.models.XLMRobertaForTokenClassification : accelerate.models.PreTrainedModel
--- XLM-RoBERTa with a linear layer on every token.
local XLMRobertaForTokenClassification = pretrained.class("XLMRobertaForTokenClassification", XLM)

---@class accelerate.models.XLMRobertaForMaskedLM : accelerate.models.PreTrainedModel
--- XLM-RoBERTa with scores of the vocabulary for every token; labels of -100 have no loss.
local XLMRobertaForMaskedLM = pretrained.class("XLMRobertaForMaskedLM", XLM)

complete(XLMRobertaModel, XLMRobertaForSequenceClassification, XLMRobertaForTokenClassification,
  XLMRobertaForMaskedLM)

return {
  RobertaModel = RobertaModel, RobertaForSequenceClassification = RobertaForSequenceClassification,
  RobertaForTokenClassification = RobertaForTokenClassification, RobertaForMaskedLM = RobertaForMaskedLM,
  XLMRobertaModel = XLMRobertaModel,
  XLMRobertaForSequenceClassification = XLMRobertaForSequenceClassification,
  XLMRobertaForTokenClassification = XLMRobertaForTokenClassification,
  XLMRobertaForMaskedLM = XLMRobertaForMaskedLM,
}
