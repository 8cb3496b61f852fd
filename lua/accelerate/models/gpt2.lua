--- GPT-2: a decoder with learned positions, pre-LayerNorm and tied embeddings.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local hooks = require "accelerate.nn.hooks"
local options = require "accelerate.utils.options"
local activations = require "accelerate.models.activations"
local decoder = require "accelerate.models.decoder"
local pretrained = require "accelerate.models.pretrained"

local sdpa, dropout, linear_gelu = core.scaled_dot_product_attention, core.dropout, core.linear_gelu

local RATE = { "number", default = 0.1, min = 0, max = 1 }

local CONFIG = {
  vocab_size = { "integer", default = 50257, min = 1 },
  n_positions = { "integer", default = 1024, min = 1 },
  n_embd = { "integer", default = 768, min = 1 },
  n_layer = { "integer", default = 12, min = 1 },
  n_head = { "integer", default = 12, min = 1 },
  n_inner = { "integer", optional = true, min = 1 },
  activation_function = activations.entry "gelu_new",
  resid_pdrop = RATE, embd_pdrop = RATE, attn_pdrop = RATE,
  layer_norm_epsilon = { "number", default = 1e-5, min = 0 },
  initializer_range = { "number", default = 0.02, min = 0 },
  scale_attn_weights = { "boolean", default = true },
  scale_attn_by_inverse_layer_idx = { "boolean", default = false },
  add_cross_attention = { "boolean", default = false, one_of = { false } },
  tie_word_embeddings = { "boolean", default = true },
  bos_token_id = { "integer", default = 50256 },
  eos_token_id = { "integer|list", default = 50256 },
  pad_token_id = { "integer", optional = true },
}

local TRAITS = {
  model_type = "gpt2", prefix = "transformer", config = CONFIG,
  check = function(where, c)
    if c.n_embd % c.n_head ~= 0 then
      options.fail("%s: config.n_embd must be a multiple of config.n_head, got %d and %d", where, c.n_embd,
        c.n_head)
    end
  end,
  -- buffers of old files: the causal mask
  rename = function(name)
    if name:find("%.attn%.masked_bias$") or name:find("%.attn%.bias$") then return nil end
    return name
  end,
}

-- ---- parts

---@class accelerate.models.Conv1D : accelerate.nn.Module
--- A linear layer whose weight is (in, out) in files and state dicts, as GPT-2's are; in memory it
--- is (out, in), which multiplies faster.
local Conv1D = nn.class("Conv1D", nn.Linear)
Conv1D._builtin, Conv1D._transposed = true, { weight = true }

---@param nf integer outputs
---@param nx integer inputs
function Conv1D:init(nf, nx) nn.Linear.init(self, nx, nf) end

function Conv1D:extra_repr() return ("nf=%d, nx=%d"):format(self.out_features, self.in_features) end

local Attention = nn.class "GPT2Attention"

function Attention:init(config, layer)
  local width = config.n_embd
  self.heads, self.layer, self.drop = config.n_head, layer, config.attn_pdrop
  self.resid_drop = config.resid_pdrop
  local scale = config.scale_attn_weights and (width / config.n_head) ^ -0.5 or 1
  self.scale = config.scale_attn_by_inverse_layer_idx and scale / layer or scale
  self.c_attn = Conv1D(3 * width, width)
  self.c_proj = Conv1D(width, width)
end

function Attention:forward(x, mask, causal, cache)
  local v, training = self._values, self.training
  local q, k, w = v.c_attn(x):split_heads(v.heads)
  if cache then k, w = cache:append(v.layer, k, w) end
  local y
  if cache and cache.one_by_one then
    y = decoder.one_by_one(q, k, w, function(a, b, c) return sdpa(a, b, c, nil, 0, false, v.scale) end)
  else
    y = sdpa(q, k, w, mask, training and v.drop or 0, causal, v.scale)
  end
  y = v.c_proj(y:transpose(2, 3):reshape(x.shape))
  return training and dropout(y, v.resid_drop) or y
end

local MLP = nn.class "GPT2MLP"

function MLP:init(config)
  local inner = config.n_inner or 4 * config.n_embd
  self.c_fc = Conv1D(inner, config.n_embd)
  self.c_proj = Conv1D(config.n_embd, inner)
  self.act = activations.functions[config.activation_function]
  self.fused = activations.is_tanh_gelu(config.activation_function)
  self.drop = config.resid_pdrop
end

function MLP:forward(x)
  local v = self._values
  local up = v.c_fc
  if v.fused and up.__name == "Conv1D" and not up._hooked and not hooks.everywhere then
    x = linear_gelu(x, up.weight, up.bias)
  else
    x = v.act(up(x))
  end
  x = v.c_proj(x)
  return self.training and dropout(x, v.drop) or x
end

local Block = nn.class "GPT2Block"

function Block:init(config, layer)
  local norm = { eps = config.layer_norm_epsilon }
  self.ln_1 = nn.LayerNorm(config.n_embd, norm)
  self.attn = Attention(config, layer)
  self.ln_2 = nn.LayerNorm(config.n_embd, norm)
  self.mlp = MLP(config)
end

local function block(v, x, mask, causal, cache)
  x = x + v.attn(v.ln_1(x), mask, causal, cache)
  return x + v.mlp(v.ln_2(x))
end

function Block:forward(x, mask, causal, cache)
  return core.scope(block, self._values, x, mask, causal, cache)
end

-- ---- models

-- What all GPT-2 models start with: c_proj's weights are smaller the more layers there are.
local function init_parameter(self, module, name, p)
  pretrained.PreTrainedModel._init_parameter(self, module, name, p)
  local layers = self.config.n_layer
  for _, block_ in ipairs((self.transformer or self).h) do
    if rawequal(module, block_.attn.c_proj) or rawequal(module, block_.mlp.c_proj) then
      if name == "weight" then
        nn.init.normal_(p, 0, self.config.initializer_range / math.sqrt(2 * layers))
      end
    end
  end
end

---@class accelerate.models.GPT2Model : accelerate.models.PreTrainedModel
--- The decoder without a head.
local GPT2Model = pretrained.class("GPT2Model", TRAITS)
GPT2Model._init_parameter = init_parameter

function GPT2Model:_build(config)
  self.wte = nn.Embedding(config.vocab_size, config.n_embd)
  self.wpe = nn.Embedding(config.n_positions, config.n_embd)
  local blocks = {}
  for i = 1, config.n_layer do blocks[i] = Block(config, i) end
  self.h = nn.ModuleList(blocks)
  self.ln_f = nn.LayerNorm(config.n_embd, { eps = config.layer_norm_epsilon })
end

-- The hidden states behind the last norm, and with output_hidden_states those of all layers.
function GPT2Model:_hidden(o)
  local v, ids, cache = self._values, o.input_ids, o.cache
  pretrained.check_input(self.__name, ids)
  local length, past = ids:size(2), cache and cache.length or 0
  if past + length > v.config.n_positions then
    options.fail("%s: %d positions, of which %d are cached, are more than config.n_positions (%d)",
      self.__name, past + length, past, v.config.n_positions)
  end
  local positions, mask, causal = decoder.layout(o, past)
  local at = positions and v.wpe(positions) or v.wpe.weight:narrow(1, past + 1, length)
  local x = v.wte(ids) + at
  if self.training then x = dropout(x, v.config.embd_pdrop) end
  local all = o.output_hidden_states and { x } or nil
  for _, layer in ipairs(v.h:_child_list()) do
    x = layer(x, mask, causal, cache)
    if all then all[#all + 1] = x end
  end
  x = v.ln_f(x)
  if all then all[#all] = x end
  if cache then cache:advance(length) end
  return x, all
end

---@class accelerate.models.GPT2LMHeadModel : accelerate.models.PreTrainedModel
--- GPT-2 with scores for the next token.
local GPT2LMHeadModel = pretrained.class("GPT2LMHeadModel", TRAITS)
GPT2LMHeadModel._init_parameter = init_parameter

function GPT2LMHeadModel:_build(config)
  self.transformer = nn.init._skip(GPT2Model, config)
  self.lm_head = nn.Linear(config.n_embd, config.vocab_size, { bias = false })
  if config.tie_word_embeddings then self.lm_head.weight = self.transformer.wte.weight end
end

---@class accelerate.models.GPT2ForSequenceClassification : accelerate.models.PreTrainedModel
--- GPT-2 with scores for classes, taken at the last token of each row.
local GPT2ForSequenceClassification = pretrained.class("GPT2ForSequenceClassification", TRAITS)
GPT2ForSequenceClassification._init_parameter = init_parameter

function GPT2ForSequenceClassification:_build(config)
  self.transformer = nn.init._skip(GPT2Model, config)
  self.score = nn.Linear(config.n_embd, config.num_labels, { bias = false })
end

decoder.base(GPT2Model)
decoder.causal_lm(GPT2LMHeadModel, "transformer")
decoder.classifier(GPT2ForSequenceClassification, "transformer")

return { GPT2Model = GPT2Model, GPT2LMHeadModel = GPT2LMHeadModel,
  GPT2ForSequenceClassification = GPT2ForSequenceClassification }
