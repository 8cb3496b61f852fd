--- DistilBERT: BERT's encoder with names of its own, without token types and pooler.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local activations = require "accelerate.models.activations"
local encoder = require "accelerate.models.encoder"
local masks = require "accelerate.models.masks"
local pretrained = require "accelerate.models.pretrained"

local dropout = core.dropout

local function rate(default) return { "number", default = default, min = 0, max = 1 } end

local CONFIG = {
  vocab_size = { "integer", default = 30522, min = 1 },
  max_position_embeddings = { "integer", default = 512, min = 1 },
  dim = { "integer", default = 768, min = 1 },
  hidden_dim = { "integer", default = 3072, min = 1 },
  n_layers = { "integer", default = 6, min = 1 },
  n_heads = { "integer", default = 12, min = 1 },
  activation = activations.entry "gelu",
  dropout = rate(0.1), attention_dropout = rate(0.1), seq_classif_dropout = rate(0.2),
  initializer_range = { "number", default = 0.02, min = 0 },
  pad_token_id = { "integer", default = 0 },
  tie_word_embeddings = { "boolean", default = true },
}

local TRAITS = encoder.traits("distilbert", "distilbert", CONFIG, { "dim", "n_heads", kinds = false })

-- ---- parts

local function layer_norm(config) return nn.LayerNorm(config.dim, { eps = 1e-12 }) end

local Embeddings = nn.class "DistilBertEmbeddings"

function Embeddings:init(config)
  self.word_embeddings = nn.Embedding(config.vocab_size, config.dim, { padding_idx = config.pad_token_id })
  self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.dim)
  self.LayerNorm = layer_norm(config)
  self.drop = config.dropout
end

function Embeddings:forward(ids, positions)
  local v, length = self._values, ids:size(2)
  local places = v.position_embeddings
  if length > places.num_embeddings then
    options.fail("%s: %d positions are more than config.max_position_embeddings (%d)", self.__name, length,
      places.num_embeddings)
  end
  local x = v.word_embeddings(ids) + (positions and places(positions) or places.weight:narrow(1, 1, length))
  x = v.LayerNorm(x)
  return self.training and dropout(x, v.drop) or x
end

local Attention = encoder.self_attention("DistilBertSelfAttention", { "q_lin", "k_lin", "v_lin", "out_lin" },
  { "dim", "n_heads", "attention_dropout" })

local FFN = nn.class "DistilBertFFN"

function FFN:init(config)
  self.lin1 = nn.Linear(config.dim, config.hidden_dim)
  self.lin2 = nn.Linear(config.hidden_dim, config.dim)
  self.act, self.drop = activations.functions[config.activation], config.dropout
end

function FFN:forward(x)
  local v = self._values
  x = v.lin2(v.act(v.lin1(x)))
  return self.training and dropout(x, v.drop) or x
end

local Block = nn.class "DistilBertBlock"

function Block:init(config)
  self.attention = Attention(config)
  self.sa_layer_norm = layer_norm(config)
  self.ffn = FFN(config)
  self.output_layer_norm = layer_norm(config)
end

local function block(v, x, mask)
  x = v.sa_layer_norm(v.attention(x, mask) + x)
  return v.output_layer_norm(v.ffn(x) + x)
end

function Block:forward(x, mask) return core.scope(block, self._values, x, mask) end

-- ---- models

---@class accelerate.models.DistilBertModel : accelerate.models.PreTrainedModel
--- DistilBERT's encoder.
local DistilBertModel = pretrained.class("DistilBertModel", TRAITS)

function DistilBertModel:_build(config)
  self.embeddings = Embeddings(config)
  self.transformer = nn.Module()
  local blocks = {}
  for i = 1, config.n_layers do blocks[i] = Block(config) end
  self.transformer.layer = nn.ModuleList(blocks)
end

encoder.base(DistilBertModel)

-- The hidden states behind the last layer, nil for the pooled ones, and those of all layers.
function DistilBertModel:_hidden(o)
  local v = self._values
  pretrained.check_input(self.__name, o.input_ids)
  local mask, x = masks.keys(o.attention_mask), v.embeddings(o.input_ids, o.position_ids)
  local all = o.output_hidden_states and { x } or nil
  for _, one in ipairs(v.transformer.layer:_child_list()) do
    x = one(x, mask)
    if all then all[#all + 1] = x end
  end
  return x, nil, all
end

---@class accelerate.models.DistilBertForSequenceClassification : accelerate.models.PreTrainedModel
--- DistilBERT with two linear layers on the first token.
local DistilBertForSequenceClassification = pretrained.class("DistilBertForSequenceClassification", TRAITS)

function DistilBertForSequenceClassification:_build(config)
  self.distilbert = encoder.part(DistilBertModel, config)
  self.pre_classifier = nn.Linear(config.dim, config.dim)
  self.classifier = nn.Linear(config.dim, config.num_labels)
  self.dropout = nn.Dropout(config.seq_classif_dropout)
end

encoder.headed(DistilBertForSequenceClassification, function(self, x)
  return self.classifier(self.dropout(self.pre_classifier(x:select(2, 1)):relu()))
end, pretrained.class_loss)

---@class accelerate.models.DistilBertForTokenClassification : accelerate.models.PreTrainedModel
--- DistilBERT with a linear layer on every token.
local DistilBertForTokenClassification = pretrained.class("DistilBertForTokenClassification", TRAITS)

function DistilBertForTokenClassification:_build(config)
  self.distilbert = encoder.part(DistilBertModel, config)
  self.dropout = nn.Dropout(config.dropout)
  self.classifier = nn.Linear(config.dim, config.num_labels)
end

encoder.headed(DistilBertForTokenClassification,
  function(self, x) return self.classifier(self.dropout(x)) end,
  encoder.token_loss)

---@class accelerate.models.DistilBertForMaskedLM : accelerate.models.PreTrainedModel
--- DistilBERT with scores of the vocabulary for every token; labels of -100 have no loss.
local DistilBertForMaskedLM = pretrained.class("DistilBertForMaskedLM", TRAITS)

function DistilBertForMaskedLM:_build(config)
  self.distilbert = encoder.part(DistilBertModel, config)
  self.vocab_transform = nn.Linear(config.dim, config.dim)
  self.vocab_layer_norm = layer_norm(config)
  self.vocab_projector = nn.Linear(config.dim, config.vocab_size)
  if config.tie_word_embeddings then
    self.vocab_projector.weight = self.distilbert.embeddings.word_embeddings.weight
  end
  self.act = activations.functions[config.activation]
end

encoder.headed(DistilBertForMaskedLM, function(self, x)
  return self.vocab_projector(self.vocab_layer_norm(self.act(self.vocab_transform(x))))
end, encoder.token_loss)

return { DistilBertModel = DistilBertModel, DistilBertForMaskedLM = DistilBertForMaskedLM,
  DistilBertForSequenceClassification = DistilBertForSequenceClassification,
  DistilBertForTokenClassification = DistilBertForTokenClassification }
