--- The encoder of BERT and what is built like it: post-LayerNorm, learned positions, and what its
--- heads have in common.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local activations = require "accelerate.models.activations"
local masks = require "accelerate.models.masks"
local pretrained = require "accelerate.models.pretrained"

local sdpa, dropout = core.scaled_dot_product_attention, core.dropout

local M = {}

-- ---- configurations

local RATE = { "number", default = 0.1, min = 0, max = 1 }

local COMMON = {
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

-- Inputs of an encoder, with and without labels.
local INPUTS = {
  input_ids = { "tensor" },
  attention_mask = { "tensor", optional = true },
  position_ids = { "tensor", optional = true },
  output_hidden_states = { "boolean", default = false },
}
local KINDS, LABELS = { token_type_ids = { "tensor", optional = true } }, { labels = { "tensor",
  optional = true } }

local function joined(...)
  local all = {}
  for _, part in ipairs { ... } do
    for name, entry in next, part do all[name] = entry end
  end
  return all
end

--- Returns the schema of a type of encoders: BERT's, and the given entries; false takes one of
--- BERT's away.
---@param entries table<string, table|false>?
---@return table<string, table>
function M.schema(entries)
  local schema = joined(COMMON, entries or {})
  for name, entry in next, entries or {} do
    if not entry then schema[name] = nil end
  end
  return schema
end

--- Returns the traits of a type of encoders.
---@param model_type string
---@param prefix string the name of the encoder inside models with a head
---@param schema table<string, table>
---@param sizes? { [1]: string, [2]: string, kinds: boolean } the keys of width and heads, default
---  hidden_size and num_attention_heads; kinds: false without token types
---@return table
function M.traits(model_type, prefix, schema, sizes)
  sizes = sizes or { "hidden_size", "num_attention_heads" }
  local inputs = joined(INPUTS, sizes.kinds == false and {} or KINDS)
  return {
    model_type = model_type, prefix = prefix, config = schema, inputs = inputs,
    with_labels = joined(inputs, LABELS),
    check = function(where, c)
      local width, heads = unpack(sizes)
      if c[width] % c[heads] ~= 0 then
        options.fail("%s: config.%s must be a multiple of config.%s, got %d and %d", where, width, heads,
          c[width], c[heads])
      end
    end,
    -- buffers of old files
    rename = function(name)
      if name:find("embeddings%.position_ids$") then return nil end
      return name
    end,
  }
end

-- ---- parts

local function layer_norm(config) return nn.LayerNorm(config.hidden_size, { eps = config.layer_norm_eps }) end

local Embeddings = nn.class "BertEmbeddings"

-- behind: positions count on behind the padding's id and leave padding out, as RoBERTa's do. A
-- configuration without type_vocab_size has no token types.
function Embeddings:init(config, behind)
  local width = config.embedding_size or config.hidden_size
  local padding = { padding_idx = config.pad_token_id }
  self.word_embeddings = nn.Embedding(config.vocab_size, width, padding)
  self.position_embeddings = nn.Embedding(config.max_position_embeddings, width, behind and padding or nil)
  if config.type_vocab_size then
    self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
  end
  self.LayerNorm = nn.LayerNorm(width, { eps = config.layer_norm_eps })
  self.drop, self.behind = config.hidden_dropout_prob, behind and config.pad_token_id
end

local function check_length(where, v, length)
  local most = v.position_embeddings.num_embeddings
  if v.behind then most = most - v.behind - 1 end
  if length > most then
    options.fail("%s: %d positions are more than config.max_position_embeddings%s (%d)", where, length,
      v.behind and " has behind pad_token_id" or "", most)
  end
end

-- The embeddings of the positions of tokens.
local function embedded_positions(v, ids, positions)
  local places = v.position_embeddings
  if not positions and v.behind then
    local real = ids:ne(v.behind):long()
    positions = real:cumsum(2) * real + v.behind
  end
  return positions and places(positions) or places.weight:narrow(1, 1, ids:size(2))
end

function Embeddings:forward(ids, kinds, positions)
  local v = self._values
  local types = v.token_type_embeddings
  check_length(self.__name, v, ids:size(2))
  local at = embedded_positions(v, ids, positions)
  if types then at = at + (kinds and types(kinds) or types.weight:select(1, 1)) end
  local x = v.LayerNorm(v.word_embeddings(ids) + at)
  return self.training and dropout(x, v.drop) or x
end

--- Returns a class of self-attention: softmax(q k^T / sqrt(width of a head) + mask) v.
---@param name string
---@param layers string[] names of its linear layers: of queries, keys, values, and of the result
---  where that has one
---@param sizes? string[] the keys of width, heads and dropout, default BERT's
---@return table
function M.self_attention(name, layers, sizes)
  local width, heads, drop = unpack(sizes or { "hidden_size", "num_attention_heads",
    "attention_probs_dropout_prob" })
  local query, key, value, out = unpack(layers)
  local Class = nn.class(name)

  function Class:init(config)
    self.heads, self.drop = config[heads], config[drop]
    for _, layer in ipairs(layers) do self[layer] = nn.Linear(config[width], config[width]) end
  end

  function Class:forward(x, mask)
    local v, N, T = self._values, x:size(1), x:size(2)
    local function split(t) return t:view(N, T, v.heads, -1):transpose(2, 3) end
    local y = sdpa(split(v[query](x)), split(v[key](x)), split(v[value](x)), mask,
      self.training and v.drop or 0)
    y = y:transpose(2, 3):reshape(N, T, -1)
    return out and v[out](y) or y
  end

  return Class
end

local SelfAttention = M.self_attention("BertSelfAttention", { "query", "key", "value" })

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

local function layer(v, x, mask)
  x = v.attention(x, mask)
  return v.output(v.intermediate(x), x)
end

--- Returns a class of layers: an attention, whose class is given, and two linear layers.
---@param name string
---@param Attend table its forward takes x and the mask, and adds x
---@return table
function M.layer(name, Attend)
  local Class = nn.class(name)

  function Class:init(config)
    self.attention = Attend(config)
    self.intermediate = Intermediate(config)
    self.output = Output(config, config.intermediate_size)
  end

  function Class:forward(x, mask) return core.scope(layer, self._values, x, mask) end

  return Class
end

local BertLayer = M.layer("BertLayer", Attention)

local Encoder = nn.class "BertEncoder"

-- Layer: the class of its layers, default BERT's.
function Encoder:init(config, Layer)
  local layers = {}
  for i = 1, config.num_hidden_layers do layers[i] = (Layer or BertLayer)(config) end
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

-- RoBERTa's and MPNet's heads: two linear layers on the first token, and scores of the vocabulary.
local ClassHead = nn.class "RobertaClassificationHead"

function ClassHead:init(config)
  self.dense = nn.Linear(config.hidden_size, config.hidden_size)
  self.dropout = nn.Dropout(M.head_dropout(config))
  self.out_proj = nn.Linear(config.hidden_size, config.num_labels)
end

function ClassHead:forward(x)
  local v = self._values
  return v.out_proj(v.dropout(v.dense(v.dropout(x:select(2, 1))):tanh()))
end

local LMHead = nn.class "RobertaLMHead"

function LMHead:init(config, embeddings)
  self.dense = nn.Linear(config.hidden_size, config.hidden_size)
  self.layer_norm = nn.LayerNorm(config.hidden_size, { eps = config.layer_norm_eps })
  self.bias = nn.Parameter(core.zeros(config.vocab_size))
  self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
  self.decoder.bias = self.bias
  if config.tie_word_embeddings then self.decoder.weight = embeddings.weight end
end

function LMHead:forward(x)
  local v = self._values
  return v.decoder(v.layer_norm(core.gelu(v.dense(x))))
end

M.Embeddings, M.Encoder, M.Pooler, M.ClassHead, M.LMHead = Embeddings, Encoder, Pooler, ClassHead, LMHead

-- ---- models

--- Gives a class without a head its forward. Its parts are `embeddings`, `encoder`, and where there
--- are such `embeddings_project` and `pooler`.
---@param Class table
function M.base(Class)
  -- The hidden states behind the last layer, the pooled ones, and all that output_hidden_states
  -- wants.
  function Class:_hidden(o)
    local v = self._values
    pretrained.check_input(self.__name, o.input_ids)
    local all = o.output_hidden_states and {} or nil
    local x = v.embeddings(o.input_ids, o.token_type_ids, o.position_ids)
    if v.embeddings_project then x = v.embeddings_project(x) end
    x = v.encoder(x, masks.keys(o.attention_mask), all)
    return x, v.pooler and v.pooler(x), all
  end

  --- `model(input_ids, opts)` or `model { input_ids = ..., attention_mask = ... }`.
  ---@param inputs accelerate.Tensor|table input_ids int64 (batch, length), or all inputs by name
  ---@param opts? { attention_mask: accelerate.Tensor, token_type_ids: accelerate.Tensor,
  ---  position_ids: accelerate.Tensor, output_hidden_states: boolean } attention_mask: (batch,
  ---  length), 0 for padding; token_type_ids: default zeros, where the type has them
  ---@return { last_hidden_state: accelerate.Tensor, pooler_output: accelerate.Tensor?,
  ---  hidden_states: accelerate.Tensor[]? }
  function Class:forward(inputs, opts)
    local o = pretrained.inputs(self, inputs, opts, self.traits.inputs)
    return core.scope(function()
      local x, pooled, all = self:_hidden(o)
      return { last_hidden_state = x, pooler_output = pooled, hidden_states = all }
    end)
  end
end

--- Returns a base model as part of a model with a head.
---@param Base table
---@param config table
---@param pooling boolean? false for none
---@return accelerate.models.PreTrainedModel
function M.part(Base, config, pooling)
  local given = {}
  for key, value in next, config do given[key] = value end
  given.add_pooling_layer = pooling
  return nn.init._skip(Base, given)
end

--- Gives a class with a head its forward.
---@param Class table
---@param scores fun(self: table, x: accelerate.Tensor, pooled: accelerate.Tensor?):
---  accelerate.Tensor
---@param loss_of fun(config: table, logits: accelerate.Tensor, labels: accelerate.Tensor):
---  accelerate.Tensor
function M.headed(Class, scores, loss_of)
  --- `model { input_ids = ..., attention_mask = ..., labels = ... }`.
  ---@return { loss: accelerate.Tensor?, logits: accelerate.Tensor, hidden_states:
  ---  accelerate.Tensor[]? }
  function Class:forward(inputs, opts)
    local o = pretrained.inputs(self, inputs, opts, self.traits.with_labels)
    return core.scope(function()
      local x, pooled, all = self._values[self.traits.prefix]:_hidden(o)
      local logits = scores(self, x, pooled)
      return { loss = o.labels and loss_of(self.config, logits, o.labels), logits = logits,
        hidden_states = all }
    end)
  end
end

--- Returns the loss of every token's scores.
function M.token_loss(_, logits, labels) return pretrained.token_loss(logits, labels) end

--- Returns the dropout before a head's last layer.
---@param config table
---@return number
function M.head_dropout(config) return config.classifier_dropout or config.hidden_dropout_prob end

return M
