--- T5: an encoder and a decoder with relative positions, RMSNorm before each part and no biases.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local activations = require "accelerate.models.activations"
local generation = require "accelerate.models.generation"
local cached = require "accelerate.models.cache"
local masks = require "accelerate.models.masks"
local pretrained = require "accelerate.models.pretrained"
local relative = require "accelerate.models.relative"

local sdpa, dropout, lasting = core.scaled_dot_product_attention, core.dropout, cached.lasting

local CONFIG = {
  vocab_size = { "integer", default = 32128, min = 1 },
  d_model = { "integer", default = 512, min = 1 },
  d_kv = { "integer", default = 64, min = 1 },
  d_ff = { "integer", default = 2048, min = 1 },
  num_layers = { "integer", default = 6, min = 1 },
  num_decoder_layers = { "integer", optional = true, min = 1 },
  num_heads = { "integer", default = 8, min = 1 },
  relative_attention_num_buckets = { "integer", default = 32, min = 4 },
  relative_attention_max_distance = { "integer", default = 128, min = 2 },
  dropout_rate = { "number", default = 0.1, min = 0, max = 1 },
  layer_norm_epsilon = { "number", default = 1e-6, min = 0 },
  initializer_factor = { "number", default = 1, min = 0 },
  feed_forward_proj = { "string", default = "relu" },
  tie_word_embeddings = { "boolean", default = true },
  scale_decoder_outputs = { "boolean", optional = true },
  pad_token_id = { "integer", default = 0 },
  eos_token_id = { "integer|list", default = 1 },
  decoder_start_token_id = { "integer", optional = true },
}

-- The activation that "relu", "gated-gelu", ... names, and whether it gates.
local function feed_forward(config)
  local name = config.feed_forward_proj
  local gated = name:match("^gated%-(.+)$")
  return gated == "gelu" and "gelu_new" or gated or name, gated ~= nil
end

local TRAITS = {
  model_type = "t5", config = CONFIG,
  check = function(where, c)
    local name = feed_forward(c)
    options.value(where, "config.feed_forward_proj", name, activations.entry "relu")
    c.num_decoder_layers = c.num_decoder_layers or c.num_layers
    c.decoder_start_token_id = c.decoder_start_token_id or c.pad_token_id
    if c.scale_decoder_outputs == nil then c.scale_decoder_outputs = c.tie_word_embeddings end
    c.is_encoder_decoder = true
  end,
  -- a bias that old files have and no version uses
  rename = function(name)
    if name:find("EncDecAttention.relative_attention_bias", 1, true) then return nil end
    return name
  end,
}

-- ---- parts

local function norm(config) return nn.RMSNorm(config.d_model, { eps = config.layer_norm_epsilon }) end

local function linear(from, to) return nn.Linear(from, to, { bias = false }) end

local Attention = nn.class "T5Attention"

function Attention:init(config, biased)
  local inner = config.num_heads * config.d_kv
  self.q = linear(config.d_model, inner)
  self.k = linear(config.d_model, inner)
  self.v = linear(config.d_model, inner)
  self.o = linear(inner, config.d_model)
  self.heads, self.drop = config.num_heads, config.dropout_rate
  if biased then
    self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_heads)
  end
end

local function heads(t, count) return t:view(t:size(1), t:size(2), count, -1):transpose(2, 3) end

-- keys_of(module) gives keys and values as (N, H, S, D); mask: added to the scores, or bool.
function Attention:forward(x, mask, keys_of)
  local v = self._values
  local k, w = keys_of(v)
  local y = sdpa(heads(v.q(x), v.heads), k, w, mask, self.training and v.drop or 0, false, 1)
  return v.o(y:transpose(2, 3):reshape(x:size(1), x:size(2), -1))
end

local Dense = nn.class "T5DenseActDense"

function Dense:init(config)
  local name, gated = feed_forward(config)
  self.act, self.gated, self.drop = activations.functions[name], gated, config.dropout_rate
  if gated then
    self.wi_0 = linear(config.d_model, config.d_ff)
    self.wi_1 = linear(config.d_model, config.d_ff)
  else
    self.wi = linear(config.d_model, config.d_ff)
  end
  self.wo = linear(config.d_ff, config.d_model)
end

function Dense:forward(x)
  local v = self._values
  local h = v.gated and v.act(v.wi_0(x)) * v.wi_1(x) or v.act(v.wi(x))
  return v.wo(self.training and dropout(h, v.drop) or h)
end

-- A norm and one sublayer, named as in the checkpoint.
local function sublayer(config, name, part)
  local module = nn.Module()
  module[name] = part
  module.layer_norm = norm(config)
  return module
end

local Block = nn.class "T5Block"

function Block:init(config, layer, decodes)
  local list = { sublayer(config, "SelfAttention", Attention(config, layer == 1)) }
  if decodes then list[2] = sublayer(config, "EncDecAttention", Attention(config, false)) end
  list[#list + 1] = sublayer(config, "DenseReluDense", Dense(config))
  self.layer = nn.ModuleList(list)
  self.number, self.drop = layer, config.dropout_rate
end

local function self_keys(x, cache, number)
  return function(v)
    local k, w = heads(v.k(x), v.heads), heads(v.v(x), v.heads)
    if cache then return cache:append(number, k, w) end
    return k, w
  end
end

-- Keys and values of the encoder's result, which a cache keeps.
local function cross_keys(memory, cache, number)
  return function(v)
    local kept = cache and cache.cross and cache.cross[number]
    if kept then return kept[1], kept[2] end
    local k, w = heads(v.k(memory), v.heads), heads(v.v(memory), v.heads)
    if cache then
      cache.cross = cache.cross or {}
      cache.cross[number] = { lasting(k), lasting(w) }
    end
    return k, w
  end
end

local function block(v, x, place, training)
  local list = v.layer:_child_list()
  local function dropped(y) return training and dropout(y, v.drop) or y end
  local one = list[1]
  local h = one.layer_norm(x)
  x = x + dropped(one.SelfAttention(h, place.mask, self_keys(h, place.cache, v.number)))
  if place.memory then
    one = list[2]
    x = x + dropped(one.EncDecAttention(one.layer_norm(x), place.memory_mask,
      cross_keys(place.memory, place.cache, v.number)))
  end
  one = list[#list]
  return x + dropped(one.DenseReluDense(one.layer_norm(x)))
end

function Block:forward(x, place) return core.scope(block, self._values, x, place, self.training) end

local Stack = nn.class "T5Stack"

function Stack:init(config, shared, decodes)
  self.embed_tokens = shared
  local blocks = {}
  for i = 1, decodes and config.num_decoder_layers or config.num_layers do
    blocks[i] = Block(config, i, decodes)
  end
  self.block = nn.ModuleList(blocks)
  self.final_layer_norm = norm(config)
  self.decodes, self.drop = decodes, config.dropout_rate
  self.buckets, self.distance = config.relative_attention_num_buckets, config.relative_attention_max_distance
end

-- place: { padding, cache, memory, memory_mask }
function Stack:forward(ids, place)
  local v, cache = self._values, place.cache
  local past, length = cache and cache.length or 0, ids:size(2)
  local total = past + length
  local blocks = v.block:_child_list()
  local table_ = blocks[1].layer[1].SelfAttention.relative_attention_bias
  local bucket = relative.buckets(past, length, total, not v.decodes, v.buckets, v.distance, ids.device)
  local bias = table_(bucket):permute(3, 1, 2):unsqueeze(1)
  local allowed = masks.keys(place.padding)
  if v.decodes then allowed = masks.causal_of(length, past, place.padding, ids.device) end
  if allowed then bias = bias:masked_fill(allowed:logical_not(), -math.huge) end
  place.mask = bias
  local x = v.embed_tokens(ids)
  if self.training then x = dropout(x, v.drop) end
  for _, one in ipairs(blocks) do x = one(x, place) end
  x = v.final_layer_norm(x)
  if cache then cache:advance(length) end
  return self.training and dropout(x, v.drop) or x
end

-- ---- models

local INPUTS = {
  input_ids = { "tensor" },
  attention_mask = { "tensor", optional = true },
  decoder_input_ids = { "tensor", optional = true },
  decoder_attention_mask = { "tensor", optional = true },
  labels = { "tensor", optional = true },
}

-- Deviations of new matrices, less config.initializer_factor, by the name of the module that has
-- them.
local function deviation(c, path)
  local inner = c.num_heads * c.d_kv
  local by_name = { shared = 1, lm_head = 1, q = (c.d_model * c.d_kv) ^ -0.5, k = c.d_model ^ -0.5,
    v = c.d_model ^ -0.5, o = inner ^ -0.5, wo = c.d_ff ^ -0.5 }
  return by_name[path] or c.d_model ^ -0.5
end

local function init_parameter(self, module, _, p)
  if module.__name == "RMSNorm" then return nn.init.constant_(p, self.config.initializer_factor) end
  for path, one in self:named_modules() do
    if rawequal(one, module) then
      nn.init.normal_(p, 0, self.config.initializer_factor * deviation(self.config, path:match("[^.]*$")))
    end
  end
end

-- The embeddings and both stacks.
local function build(self, config, with_decoder)
  self.shared = nn.Embedding(config.vocab_size, config.d_model)
  self.encoder = Stack(config, self.shared, false)
  if with_decoder then self.decoder = Stack(config, self.shared, true) end
end

-- Ids shifted right behind the start token, -100 as padding.
local function shifted(config, labels)
  local start = core.full({ labels:size(1), 1 }, config.decoder_start_token_id,
    { dtype = "int64", device = labels.device })
  local ids = core.cat({ start, labels:narrow(2, 1, labels:size(2) - 1) }, 2)
  return ids:masked_fill(ids:eq(-100), config.pad_token_id)
end

local function encode(self, o)
  pretrained.check_input(self.__name, o.input_ids)
  return self.encoder(o.input_ids, { padding = o.attention_mask })
end

local function decode(self, o, memory)
  local ids = o.decoder_input_ids or o.labels and shifted(self.config, o.labels)
  if not ids then options.fail("%s: decoder_input_ids are missing, and there are no labels", self.__name) end
  return self.decoder(ids, { padding = o.decoder_attention_mask, memory = memory,
    memory_mask = masks.keys(o.attention_mask), cache = o.cache })
end

---@class accelerate.models.T5EncoderModel : accelerate.models.PreTrainedModel
--- The encoder alone.
local T5EncoderModel = pretrained.class("T5EncoderModel", TRAITS)
T5EncoderModel._init_parameter = init_parameter

function T5EncoderModel:_build(config) build(self, config, false) end

--- `model { input_ids = ..., attention_mask = ... }`.
---@return { last_hidden_state: accelerate.Tensor }
function T5EncoderModel:forward(inputs, opts)
  local o = pretrained.inputs(self, inputs, opts, { input_ids = INPUTS.input_ids,
    attention_mask = INPUTS.attention_mask })
  return core.scope(function() return { last_hidden_state = encode(self, o) } end)
end

---@class accelerate.models.T5Model : accelerate.models.PreTrainedModel
--- Encoder and decoder without a head.
local T5Model = pretrained.class("T5Model", TRAITS)
T5Model._init_parameter = init_parameter

function T5Model:_build(config) build(self, config, true) end

--- `model { input_ids = ..., decoder_input_ids = ... }`.
---@return { last_hidden_state: accelerate.Tensor, encoder_last_hidden_state: accelerate.Tensor }
function T5Model:forward(inputs, opts)
  local o = pretrained.inputs(self, inputs, opts, INPUTS)
  return core.scope(function()
    local memory = encode(self, o)
    return { last_hidden_state = decode(self, o, memory), encoder_last_hidden_state = memory }
  end)
end

---@class accelerate.models.T5ForConditionalGeneration : accelerate.models.PreTrainedModel
--- Encoder and decoder with scores for the decoder's next token.
local T5ForConditionalGeneration = pretrained.class("T5ForConditionalGeneration", TRAITS)
T5ForConditionalGeneration._init_parameter, T5ForConditionalGeneration._encodes = init_parameter, true

function T5ForConditionalGeneration:_build(config)
  build(self, config, true)
  self.lm_head = linear(config.d_model, config.vocab_size)
  if config.tie_word_embeddings then self.lm_head.weight = self.shared.weight end
end

local function scores(self, x)
  if self.config.scale_decoder_outputs then x = x * self.config.d_model ^ -0.5 end
  return self.lm_head(x)
end

--- `model { input_ids = ..., labels = ... }`: the decoder's input is the labels shifted right,
--- unless decoder_input_ids are given.
---@return { loss: accelerate.Tensor?, logits: accelerate.Tensor, encoder_last_hidden_state:
---  accelerate.Tensor }
function T5ForConditionalGeneration:forward(inputs, opts)
  local o = pretrained.inputs(self, inputs, opts, INPUTS)
  return core.scope(function()
    local memory = encode(self, o)
    local logits = scores(self, decode(self, o, memory))
    return { loss = o.labels and pretrained.token_loss(logits, o.labels), logits = logits,
      encoder_last_hidden_state = memory }
  end)
end

-- The decoder's first tokens, (N, 1): one for all, or one for each row of the batch.
local function first_tokens(self, prompt, opts)
  local start = opts.decoder_start_token_id or opts.bos_token_id or self.config.decoder_start_token_id
  local rows = prompt:size(1)
  if type(start) == "number" then
    return core.full({ rows, 1 }, start, { dtype = "int64", device = prompt.device })
  end
  local times = math.max(opts.num_beams, opts.num_return_sequences)
  if #start * times ~= rows then
    options.fail("generate: decoder_start_token_id must be one id, or one for each of %d rows, got %d",
      rows / times, #start)
  end
  local ids = core.tensor(start, { dtype = "int64", device = prompt.device })
  return ids:repeat_interleave(times, 1):view(rows, 1)
end

-- The prompt is the encoder's; the decoder begins with its start token. opts.use_cache: false
-- computes all positions of the decoder at each call.
function T5ForConditionalGeneration:_stepper(prompt, padding, _, limit, opts)
  local memory = core.scope(function()
    return encode(self, { input_ids = prompt, attention_mask = padding })
  end)
  opts = opts or {}
  local with_cache, seen = opts.use_cache ~= false, nil
  local o = { attention_mask = padding }
  if with_cache then o.cache = cached.KeyValueCache { capacity = limit + 1 } end
  return {
    ids = first_tokens(self, prompt, opts), encoded = prompt,
    scores = function(ids)
      seen = not with_cache and seen and core.cat({ seen, ids }, 2) or ids
      o.decoder_input_ids = seen
      return core.scope(function()
        local x = decode(self, o, memory)
        return scores(self, x:select(2, x:size(2))):float()
      end)
    end,
    -- rows change places within a prompt alone, where what comes from the encoder is alike
    reorder = function(index)
      if with_cache then o.cache:reorder(index) else seen = seen:index_select(1, index) end
    end,
  }
end

T5ForConditionalGeneration.generate = generation.generate

return { T5Model = T5Model, T5EncoderModel = T5EncoderModel,
  T5ForConditionalGeneration = T5ForConditionalGeneration }
