--- BERT: an encoder with post-LayerNorm, and its heads.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local activations = require "accelerate.models.activations"
local masks = require "accelerate.models.masks"
local pretrained = require "accelerate.models.pretrained"

local sdpa, dropout = core.scaled_dot_product_attention, core.dropout

local RATE = { "number", default = 0.1, min = 0, max = 1 }

local CONFIG = {
  vocab_size = { "integer", default = 30522, min = 1 },
  hidden_size = { "integer", default = 768, min = 1 },
  num_hidden_layers = { "integer", default = 12, min = 1 },
  num_attention_heads = { "integer", default = 12, min = 1 },
  intermediate_size = { "integer", default = 3072, min = 1 },
  hidden_act = activations.entry "gelu",
  hidden_dropout_prob = RATE, attention_probs_dropout_prob = RATE,
  classifier_dropout = { "number", optional = true, min = 0, max = 1 },
  max_position_embeddings = { "integer", default = 512, min = 1 },
  type_vocab_size = { "integer", default = 2, min = 1 },
  initializer_range = { "number", default = 0.02, min = 0 },
  layer_norm_eps = { "number", default = 1e-12, min = 0 },
  pad_token_id = { "integer", default = 0 },
  position_embedding_type = { "string", default = "absolute", one_of = { "absolute" } },
  is_decoder = { "boolean", default = false, one_of = { false } },
  add_cross_attention = { "boolean", default = false, one_of = { false } },
  tie_word_embeddings = { "boolean", default = true },
}

local TRAITS = {
  model_type = "bert", prefix = "bert", config = CONFIG,
  check = function(where, c)
    if c.hidden_size % c.num_attention_heads ~= 0 then
      options.fail("%s: config.hidden_size must be a multiple of config.num_attention_heads, got %d and %d",
        where, c.hidden_size, c.num_attention_heads)
    end
  end,
  -- buffers of old files, and heads of pretraining that no class here has
  rename = function(name)
    if name:find("embeddings%.position_ids$") then return nil end
    return name
  end,
}

-- ---- parts --------------------------------------------------------------------------------------

local function layer_norm(config) return nn.LayerNorm(config.hidden_size, { eps = config.layer_norm_eps }) end

local Embeddings = nn.class "BertEmbeddings"

function Embeddings:init(config)
  local width = config.hidden_size
  self.word_embeddings = nn.Embedding(config.vocab_size, width, { padding_idx = config.pad_token_id })
  self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
  self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
  self.LayerNorm = layer_norm(config)
  self.drop = config.hidden_dropout_prob
end

function Embeddings:forward(ids, kinds, positions)
  local v, length = self._values, ids:size(2)
  local places, types = v.position_embeddings, v.token_type_embeddings
  if length > places.num_embeddings then
    options.fail("BERT: %d positions are more than config.max_position_embeddings (%d)", length,
      places.num_embeddings)
  end
  local at = positions and places(positions) or places.weight:narrow(1, 1, length)
  local x = v.word_embeddings(ids) + (at + (kinds and types(kinds) or types.weight:select(1, 1)))
  x = v.LayerNorm(x)
  return self.training and dropout(x, v.drop) or x
end

local SelfAttention = nn.class "BertSelfAttention"

function SelfAttention:init(config)
  local width = config.hidden_size
  self.heads, self.drop = config.num_attention_heads, config.attention_probs_dropout_prob
  self.query = nn.Linear(width, width)
  self.key = nn.Linear(width, width)
  self.value = nn.Linear(width, width)
end

function SelfAttention:forward(x, mask)
  local v, N, T = self._values, x:size(1), x:size(2)
  local function heads(t) return t:view(N, T, v.heads, -1):transpose(2, 3) end
  local y = sdpa(heads(v.query(x)), heads(v.key(x)), heads(v.value(x)), mask, self.training and v.drop or 0)
  return y:transpose(2, 3):reshape(N, T, -1)
end

-- A linear layer, dropout, and a norm over the sum with the input of the sublayer.
local Output = nn.class "BertOutput"

function Output:init(config, from)
  self.dense = nn.Linear(from, config.hidden_size)
  self.LayerNorm = layer_norm(config)
  self.drop = config.hidden_dropout_prob
end

function Output:forward(x, residual)
  local v = self._values
  x = v.dense(x)
  if self.training then x = dropout(x, v.drop) end
  return v.LayerNorm(x + residual)
end

local Attention = nn.class "BertAttention"

function Attention:init(config)
  self.self = SelfAttention(config)
  self.output = Output(config, config.hidden_size)
end

function Attention:forward(x, mask)
  local v = self._values
  return v.output(v.self(x, mask), x)
end

local Intermediate = nn.class "BertIntermediate"

function Intermediate:init(config)
  self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
  self.act = activations.functions[config.hidden_act]
end

function Intermediate:forward(x)
  local v = self._values
  return v.act(v.dense(x))
end

local Layer = nn.class "BertLayer"

function Layer:init(config)
  self.attention = Attention(config)
  self.intermediate = Intermediate(config)
  self.output = Output(config, config.intermediate_size)
end

local function layer(v, x, mask)
  x = v.attention(x, mask)
  return v.output(v.intermediate(x), x)
end

function Layer:forward(x, mask) return core.scope(layer, self._values, x, mask) end

local Encoder = nn.class "BertEncoder"

function Encoder:init(config)
  local layers = {}
  for i = 1, config.num_hidden_layers do layers[i] = Layer(config) end
  self.layer = nn.ModuleList(layers)
end

function Encoder:forward(x, mask, all)
  for _, one in ipairs(self._values.layer:_child_list()) do
    if all then all[#all + 1] = x end
    x = one(x, mask)
  end
  if all then all[#all + 1] = x end
  return x
end

local Pooler = nn.class "BertPooler"

function Pooler:init(config) self.dense = nn.Linear(config.hidden_size, config.hidden_size) end

function Pooler:forward(x) return self._values.dense(x:select(2, 1)):tanh() end

-- ---- models -------------------------------------------------------------------------------------

local INPUTS = {
  input_ids = { "tensor" },
  attention_mask = { "tensor", optional = true },
  token_type_ids = { "tensor", optional = true },
  position_ids = { "tensor", optional = true },
  output_hidden_states = { "boolean", default = false },
}
local WITH_LABELS = { labels = { "tensor", optional = true } }
for name, entry in next, INPUTS do WITH_LABELS[name] = entry end

---@class accelerate.models.BertModel : accelerate.models.PreTrainedModel
--- The encoder, with the pooler unless it is made with `{ add_pooling_layer = false }`.
local BertModel = pretrained.class("BertModel", TRAITS)

function BertModel:_build(config)
  self.embeddings = Embeddings(config)
  self.encoder = Encoder(config)
  if config.add_pooling_layer ~= false then self.pooler = Pooler(config) end
end

-- The hidden states behind the last layer, the pooled ones, and all that output_hidden_states
-- wants.
function BertModel:_hidden(o)
  local v = self._values
  pretrained.check_input(self.__name, o.input_ids)
  local all = o.output_hidden_states and {} or nil
  local x = v.embeddings(o.input_ids, o.token_type_ids, o.position_ids)
  x = v.encoder(x, masks.keys(o.attention_mask), all)
  return x, v.pooler and v.pooler(x), all
end

--- `model(input_ids, opts)` or `model { input_ids = ..., attention_mask = ... }`.
---@param first accelerate.Tensor|table input_ids int64 (batch, length), or all inputs by name
---@param opts? { attention_mask: accelerate.Tensor, token_type_ids: accelerate.Tensor,
---  position_ids: accelerate.Tensor, output_hidden_states: boolean } attention_mask: (batch,
---  length), 0 for padding; token_type_ids: default zeros
---@return { last_hidden_state: accelerate.Tensor, pooler_output: accelerate.Tensor?, hidden_states:
---  accelerate.Tensor[]? }
function BertModel:forward(first, opts)
  local o = pretrained.inputs(self, first, opts, INPUTS)
  return core.scope(function()
    local x, pooled, all = self:_hidden(o)
    return { last_hidden_state = x, pooler_output = pooled, hidden_states = all }
  end)
end

local function base(config, pooling)
  local given = { }
  for key, value in next, config do given[key] = value end
  given.add_pooling_layer = pooling
  return nn.init._skip(BertModel, given)
end

-- A head's forward: scores(self, x, pooled) and their loss.
local function headed(Class, scores, loss_of)
  --- `model { input_ids = ..., attention_mask = ..., labels = ... }`.
  ---@return { loss: accelerate.Tensor?, logits: accelerate.Tensor, hidden_states:
  ---  accelerate.Tensor[]? }
  function Class:forward(first, opts)
    local o = pretrained.inputs(self, first, opts, WITH_LABELS)
    return core.scope(function()
      local x, pooled, all = self.bert:_hidden(o)
      local logits = scores(self, x, pooled)
      return { loss = o.labels and loss_of(self.config, logits, o.labels), logits = logits,
        hidden_states = all }
    end)
  end
end

local function token_loss(_, logits, labels) return pretrained.token_loss(logits, labels) end

local function head_dropout(config) return config.classifier_dropout or config.hidden_dropout_prob end

---@class accelerate.models.BertForSequenceClassification : accelerate.models.PreTrainedModel
--- BERT with a linear layer on the pooled first token.
local BertForSequenceClassification = pretrained.class("BertForSequenceClassification", TRAITS)

function BertForSequenceClassification:_build(config)
  self.bert = base(config)
  self.dropout = nn.Dropout(head_dropout(config))
  self.classifier = nn.Linear(config.hidden_size, config.num_labels)
end

headed(BertForSequenceClassification, function(self, _, pooled)
  return self.classifier(self.dropout(pooled))
end, pretrained.class_loss)

---@class accelerate.models.BertForTokenClassification : accelerate.models.PreTrainedModel
--- BERT with a linear layer on every token.
local BertForTokenClassification = pretrained.class("BertForTokenClassification", TRAITS)

function BertForTokenClassification:_build(config)
  self.bert = base(config, false)
  self.dropout = nn.Dropout(head_dropout(config))
  self.classifier = nn.Linear(config.hidden_size, config.num_labels)
end

headed(BertForTokenClassification, function(self, x) return self.classifier(self.dropout(x)) end, token_loss)

local Predictions = nn.class "BertLMPredictionHead"

function Predictions:init(config, embeddings)
  self.bias = nn.Parameter(core.zeros(config.vocab_size))
  self.transform = nn.Module()
  self.transform.dense = nn.Linear(config.hidden_size, config.hidden_size)
  self.transform.LayerNorm = layer_norm(config)
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
  self.bert = base(config, false)
  self.cls = nn.Module()
  self.cls.predictions = Predictions(config, self.bert.embeddings.word_embeddings)
end

headed(BertForMaskedLM, function(self, x) return self.cls.predictions(x) end, token_loss)

return { BertModel = BertModel, BertForSequenceClassification = BertForSequenceClassification,
  BertForTokenClassification = BertForTokenClassification, BertForMaskedLM = BertForMaskedLM }
