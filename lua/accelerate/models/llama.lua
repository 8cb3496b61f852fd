--- Llama and decoders of its kind: rotary positions, RMSNorm, SwiGLU, grouped heads.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local activations = require "accelerate.models.activations"
local decoder = require "accelerate.models.decoder"
local pretrained = require "accelerate.models.pretrained"
local rotary = require "accelerate.models.rotary"

local sdpa, turn = core.scaled_dot_product_attention, rotary.turn

local CONFIG = {
  vocab_size = { "integer", default = 32000, min = 1 },
  hidden_size = { "integer", default = 4096, min = 1 },
  intermediate_size = { "integer", default = 11008, min = 1 },
  num_hidden_layers = { "integer", default = 32, min = 1 },
  num_attention_heads = { "integer", default = 32, min = 1 },
  num_key_value_heads = { "integer", optional = true, min = 1 },
  head_dim = { "integer", optional = true, min = 2 },
  hidden_act = activations.entry "silu",
  max_position_embeddings = { "integer", default = 2048, min = 1 },
  initializer_range = { "number", default = 0.02, min = 0 },
  rms_norm_eps = { "number", default = 1e-6, min = 0 },
  pad_token_id = { "integer", optional = true },
  bos_token_id = { "integer", default = 1 },
  eos_token_id = { "integer|list", default = 2 },
  tie_word_embeddings = { "boolean", default = false },
  rope_theta = { "number", optional = true, above = 0 },
  rope_scaling = { "table", optional = true },
  rope_parameters = { "table", optional = true },
  attention_bias = { "boolean", default = false },
  attention_dropout = { "number", default = 0, min = 0, max = 1 },
  mlp_bias = { "boolean", default = false },
}

local TRAITS = {
  model_type = "llama", prefix = "model", config = CONFIG,
  check = function(where, c)
    c.num_key_value_heads = c.num_key_value_heads or c.num_attention_heads
    c.head_dim = c.head_dim or c.hidden_size / c.num_attention_heads
    if c.head_dim % 2 ~= 0 then
      options.fail("%s: config.head_dim must be even, got %g (hidden_size %d with %d heads)", where,
        c.head_dim,
        c.hidden_size, c.num_attention_heads)
    end
    if c.num_attention_heads % c.num_key_value_heads ~= 0 then
      options.fail("%s: config.num_attention_heads must be a multiple of config.num_key_value_heads, got %d "
        .. "and %d", where, c.num_attention_heads, c.num_key_value_heads)
    end
    rotary.frequencies(where, c, c.head_dim)
  end,
  rename = function(name)
    if name:find("%.rotary_emb%.inv_freq$") then return nil end
    return name
  end,
}

-- ---- parts --------------------------------------------------------------------------------------

local function norm(config) return nn.RMSNorm(config.hidden_size, { eps = config.rms_norm_eps }) end

local Attention = nn.class "LlamaAttention"

function Attention:init(config, layer)
  local width, size = config.hidden_size, config.head_dim
  self.heads, self.groups, self.size = config.num_attention_heads, config.num_key_value_heads, size
  self.layer, self.drop = layer, config.attention_dropout
  local bias = { bias = config.attention_bias }
  self.q_proj = nn.Linear(width, self.heads * size, bias)
  self.k_proj = nn.Linear(width, self.groups * size, bias)
  self.v_proj = nn.Linear(width, self.groups * size, bias)
  self.o_proj = nn.Linear(self.heads * size, width, bias)
end

-- place: { cos, sin, mask, causal, cache }
function Attention:forward(x, place)
  local v, N, T = self._values, x:size(1), x:size(2)
  local size, groups, cache = v.size, v.groups, place.cache
  local q = turn(v.q_proj(x):view(N, T, v.heads, size):transpose(2, 3), place.cos, place.sin)
  local k = turn(v.k_proj(x):view(N, T, groups, size):transpose(2, 3), place.cos, place.sin)
  local w = v.v_proj(x):view(N, T, groups, size):transpose(2, 3)
  if cache then k, w = cache:append(v.layer, k, w) end
  local y = sdpa(q, k, w, place.mask, self.training and v.drop or 0, place.causal, nil, groups ~= v.heads)
  return v.o_proj(y:transpose(2, 3):reshape(N, T, -1))
end

local MLP = nn.class "LlamaMLP"

function MLP:init(config)
  local width, inner, bias = config.hidden_size, config.intermediate_size, { bias = config.mlp_bias }
  self.gate_proj = nn.Linear(width, inner, bias)
  self.up_proj = nn.Linear(width, inner, bias)
  self.down_proj = nn.Linear(inner, width, bias)
  self.act = activations.functions[config.hidden_act]
end

function MLP:forward(x)
  local v = self._values
  return v.down_proj(v.act(v.gate_proj(x)) * v.up_proj(x))
end

local Layer = nn.class "LlamaDecoderLayer"

function Layer:init(config, layer)
  self.self_attn = Attention(config, layer)
  self.mlp = MLP(config)
  self.input_layernorm = norm(config)
  self.post_attention_layernorm = norm(config)
end

local function layer(v, x, place)
  x = x + v.self_attn(v.input_layernorm(x), place)
  return x + v.mlp(v.post_attention_layernorm(x))
end

function Layer:forward(x, place) return core.scope(layer, self._values, x, place) end

-- ---- models -------------------------------------------------------------------------------------

---@class accelerate.models.LlamaModel : accelerate.models.PreTrainedModel
--- The decoder without a head.
local LlamaModel = pretrained.class("LlamaModel", TRAITS)

function LlamaModel:_build(config)
  self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size,
    { padding_idx = config.pad_token_id })
  local layers = {}
  for i = 1, config.num_hidden_layers do layers[i] = Layer(config, i) end
  self.layers = nn.ModuleList(layers)
  self.norm = norm(config)
  self.rotary = rotary.Rotary(self.__name, config, config.head_dim)
end

-- The hidden states behind the last norm, and with output_hidden_states those of all layers.
function LlamaModel:_hidden(o)
  local v, ids, cache = self._values, o.input_ids, o.cache
  pretrained.check_input(self.__name, ids)
  local length, past = ids:size(2), cache and cache.length or 0
  local x = v.embed_tokens(ids)
  local positions, mask, causal = decoder.layout(o, past)
  local place = { mask = mask, causal = causal, cache = cache }
  place.cos, place.sin = v.rotary:at(past, length, positions, x)
  local all = o.output_hidden_states and { x } or nil
  for _, one in ipairs(v.layers:_child_list()) do
    x = one(x, place)
    if all then all[#all + 1] = x end
  end
  x = v.norm(x)
  if all then all[#all] = x end
  if cache then cache:advance(length) end
  return x, all
end

---@class accelerate.models.LlamaForCausalLM : accelerate.models.PreTrainedModel
--- The decoder with scores for the next token.
local LlamaForCausalLM = pretrained.class("LlamaForCausalLM", TRAITS)

function LlamaForCausalLM:_build(config)
  self.model = nn.init._skip(LlamaModel, config)
  self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, { bias = false })
  if config.tie_word_embeddings then self.lm_head.weight = self.model.embed_tokens.weight end
end

---@class accelerate.models.LlamaForSequenceClassification : accelerate.models.PreTrainedModel
--- The decoder with scores for classes, taken at the last token of each row.
local LlamaForSequenceClassification = pretrained.class("LlamaForSequenceClassification", TRAITS)

function LlamaForSequenceClassification:_build(config)
  self.model = nn.init._skip(LlamaModel, config)
  self.score = nn.Linear(config.hidden_size, config.num_labels, { bias = false })
end

decoder.base(LlamaModel)
decoder.causal_lm(LlamaForCausalLM, "model")
decoder.classifier(LlamaForSequenceClassification, "model")

return { LlamaModel = LlamaModel, LlamaForCausalLM = LlamaForCausalLM,
  LlamaForSequenceClassification = LlamaForSequenceClassification }
