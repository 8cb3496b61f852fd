--- Decoders of Llama's kind: rotary positions, norms before each part, gated feed-forward parts,
--- grouped heads. What one type of model has otherwise than another stands in its plan:
---
---   act          the activation of the feed-forward part, as activations names it
---   biases       { qkv, out, mlp }: do these layers have a bias?
---   fused        queries, keys and values are one layer, gate and up another
---   ungated      the feed-forward part is two layers, c_fc and c_proj
---   layer_norm   norms are layer norms of this epsilon, with biases
---   head_norms   queries and keys of each head are normalised
---   row_norms    queries and keys are normalised over all heads of a position
---   centred      the weights of norms are stored less 1
---   sandwich     a norm stands behind each part, too
---   behind       a norm stands behind each part alone
---   scale        what scores of attention are multiplied by, default head_dim^-0.5
---   attention_cap, score_cap   scores are bent so that they stay within this size
---   embed_scale  what embeddings are multiplied by
---   part_scale   what the result of each part is multiplied by
---   score_scale  what scores of tokens are multiplied by
---   embed_drop   the dropout of embeddings
---   drop         the dropout behind each part
---   windows      positions that each layer's queries see, themselves included; false for all
---   partial      the share of a head's elements that is turned, default 1
---   unturned     true for the layers whose queries and keys are not turned
---   renew_at     a cache of at most so many positions is computed anew by a call that goes beyond

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local activations = require "accelerate.models.activations"
local decoder = require "accelerate.models.decoder"
local masks = require "accelerate.models.masks"
local pretrained = require "accelerate.models.pretrained"
local rotary = require "accelerate.models.rotary"

local sdpa, turn, dropout = core.scaled_dot_product_attention, rotary.turn, core.dropout

local M = {}

-- ---- configurations

local COMMON = {
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
  bos_token_id = { "integer", optional = true },
  eos_token_id = { "integer|list", optional = true },
  tie_word_embeddings = { "boolean", default = false },
  rope_theta = { "number", optional = true, above = 0 },
  rope_scaling = { "table", optional = true },
  rope_parameters = { "table", optional = true },
  attention_dropout = { "number", default = 0, min = 0, max = 1 },
}

--- Returns the entry of an integer that may be missing although it has a default: false, null in
--- config.json.
---@param default integer|false
---@param min integer
---@return table
function M.integer_or_none(default, min)
  return { "integer|boolean", default = default, min = min, null = true }
end

--- Returns the entry of a positive number that may be missing although it has a default.
---@param default number
---@return table
function M.number_or_none(default) return { "number|boolean", default = default, above = 0, null = true } end

--- Returns the schema of a type of decoders: what all have, and the given entries.
---@param entries table<string, table>
---@return table<string, table>
function M.schema(entries)
  local schema = {}
  for _, part in ipairs { COMMON, entries } do
    for name, entry in next, part do schema[name] = entry end
  end
  return schema
end

local KINDS = { full_attention = true, sliding_attention = true }

--- Fills in config.layer_types by `slides(i)`, where the configuration has none, and checks it.
---@param where string
---@param c table
---@param slides fun(layer: integer): boolean
function M.layer_types(where, c, slides)
  if not c.layer_types then
    c.layer_types = {}
    for i = 1, c.num_hidden_layers do
      c.layer_types[i] = slides(i) and "sliding_attention" or "full_attention"
    end
  end
  if #c.layer_types < c.num_hidden_layers then
    options.fail("%s: config.layer_types must name each of the %d layers, got %d names", where,
      c.num_hidden_layers, #c.layer_types)
  end
  for i, kind in ipairs(c.layer_types) do
    if not KINDS[kind] then
      options.fail("%s: config.layer_types[%d] must be full_attention or sliding_attention, got %s", where, i,
        options.show(kind))
    end
  end
end

--- Returns the windows of a plan: config.sliding_window in the layers that config.layer_types says,
--- or in all.
---@param c table
---@return (integer|false)[]
function M.windows(c)
  local list = {}
  for i = 1, c.num_hidden_layers do
    local slides = not c.layer_types or c.layer_types[i] == "sliding_attention"
    list[i] = slides and c.sliding_window or false
  end
  return list
end

local function check(where, c, plan_of)
  c.num_key_value_heads = c.num_key_value_heads or c.num_attention_heads
  c.head_dim = c.head_dim or c.hidden_size / c.num_attention_heads
  if c.head_dim % 2 ~= 0 then
    options.fail("%s: config.head_dim must be even, got %g (hidden_size %d with %d heads)", where,
      c.head_dim, c.hidden_size, c.num_attention_heads)
  end
  if c.num_attention_heads % c.num_key_value_heads ~= 0 then
    options.fail("%s: config.num_attention_heads must be a multiple of " ..
      "config.num_key_value_heads, got %d and %d", where, c.num_attention_heads, c.num_key_value_heads)
  end
  rotary.frequencies(where, c, c.head_dim, nil, plan_of(c).partial)
end

--- Returns the traits of a type of decoders.
---@param model_type string
---@param schema table<string, table>
---@param plan fun(config: table): table
---@param prepare? fun(where: string, config: table) fills in what the type's configuration may lack
---@return table
function M.traits(model_type, schema, plan, prepare)
  return {
    model_type = model_type, prefix = "model", config = schema, plan = plan,
    check = function(where, c)
      if prepare then prepare(where, c) end
      check(where, c, plan)
    end,
    rename = function(name)
      if name:find("%.rotary_emb%.inv_freq$") then return nil end
      return name
    end,
  }
end

-- ---- parts

-- A norm whose weight is stored less 1, so that new weights are zeros.
local CentredNorm = nn.class("CentredRMSNorm", nn.RMSNorm)
local rms_norm = core.rms_norm

function CentredNorm:forward(x)
  local v = self._values
  return rms_norm(x, v.normalized_shape, v.weight:float() + 1, v.eps)
end

local function norm(config, plan, width)
  width = width or config.hidden_size
  if plan.layer_norm then return nn.LayerNorm(width, { eps = plan.layer_norm }) end
  return (plan.centred and CentredNorm or nn.RMSNorm)(width, { eps = config.rms_norm_eps })
end

local Attention = nn.class "RotaryAttention"

function Attention:init(config, plan, layer)
  local width, size = config.hidden_size, config.head_dim
  local queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
  self.heads, self.groups, self.size = config.num_attention_heads, config.num_key_value_heads, size
  self.layer, self.drop = layer, config.attention_dropout
  self.scale, self.cap = plan.scale or size ^ -0.5, plan.attention_cap
  local bias = { bias = plan.biases.qkv or false }
  if plan.fused then
    self.parts = { queries, keys, keys }
    self.qkv_proj = nn.Linear(width, queries + 2 * keys, bias)
  else
    self.q_proj = nn.Linear(width, queries, bias)
    self.k_proj = nn.Linear(width, keys, bias)
    self.v_proj = nn.Linear(width, keys, bias)
  end
  self.o_proj = nn.Linear(queries, width, { bias = plan.biases.out or false })
  if plan.head_norms then
    self.q_norm, self.k_norm = norm(config, plan, size), norm(config, plan, size)
  elseif plan.row_norms then
    self.q_norm, self.k_norm = norm(config, plan, queries), norm(config, plan, keys)
  end
  self.norms_rows, self.turns = plan.row_norms, not (plan.unturned and plan.unturned[layer])
end

-- Queries (N, T, heads, size), keys and values (N, T, groups, size), normalised where the plan
-- says.
local function projected(v, x, N, T)
  local q, k, w
  if v.qkv_proj then
    q, k, w = v.qkv_proj(x):split(v.parts, 3)
  else
    q, k, w = v.q_proj(x), v.k_proj(x), v.v_proj(x)
  end
  if v.norms_rows then q, k = v.q_norm(q), v.k_norm(k) end
  q, k, w = q:view(N, T, v.heads, v.size), k:view(N, T, v.groups, v.size), w:view(N, T, v.groups, v.size)
  if v.q_norm and not v.norms_rows then q, k = v.q_norm(q), v.k_norm(k) end
  return q, k, w
end

-- Attention whose scores stay within -cap and cap.
local function capped(q, k, w, place, v, rate)
  local times = v.heads / v.groups
  if times > 1 then k, w = k:repeat_interleave(times, 2), w:repeat_interleave(times, 2) end
  local scores = (q:matmul(k:transpose(3, 4)) * (v.scale / v.cap)):tanh() * v.cap
  local mask = place.mask or place.causal and masks.causal_of(q:size(3), 0, nil, q.device)
  if mask then scores = scores:masked_fill(mask:logical_not(), -math.huge) end
  local chances = scores:float():softmax(4):to(q.dtype)
  if rate > 0 then chances = dropout(chances, rate) end
  return chances:matmul(w)
end

local function attend(v, q, k, w, place, rate)
  if v.cap then return capped(q, k, w, place, v, rate) end
  return sdpa(q, k, w, place.mask, rate, place.causal, v.scale, v.groups ~= v.heads)
end

-- The attention of positions that come one by one.
local function attend_each(v, q, k, w, window)
  return decoder.one_by_one(q, k, w, function(a, b, c, past)
    local mask = window and past + 1 > window and masks.window(1, past, nil, window, a.device) or nil
    return attend(v, a, b, c, { mask = mask, causal = false }, 0)
  end)
end

-- place: { cos, sin, mask, causal, cache, window }
function Attention:forward(x, place)
  local v, N, T = self._values, x:size(1), x:size(2)
  local cache, rate = place.cache, self.training and v.drop or 0
  local q, k, w = projected(v, x, N, T)
  q, k, w = q:transpose(2, 3), k:transpose(2, 3), w:transpose(2, 3)
  if v.turns then q, k = turn(q, place.cos, place.sin), turn(k, place.cos, place.sin) end
  if cache then k, w = cache:append(v.layer, k, w) end
  local y = cache and cache.one_by_one and attend_each(v, q, k, w, place.window)
    or attend(v, q, k, w, place, rate)
  return v.o_proj(y:transpose(2, 3):reshape(N, T, -1))
end

local MLP = nn.class "GatedMLP"

function MLP:init(config, plan)
  local width, inner, bias = config.hidden_size, config.intermediate_size, { bias = plan.biases.mlp or false }
  if plan.fused then
    self.gate_up_proj = nn.Linear(width, 2 * inner, bias)
  else
    self.gate_proj = nn.Linear(width, inner, bias)
    self.up_proj = nn.Linear(width, inner, bias)
  end
  self.down_proj = nn.Linear(inner, width, bias)
  self.act = activations.functions[plan.act or config.hidden_act]
end

local function gate_and_up(v, x)
  if v.gate_up_proj then return v.gate_up_proj(x):chunk(2, 3) end
  return v.gate_proj(x), v.up_proj(x)
end

function MLP:forward(x)
  local v = self._values
  local gate, up = gate_and_up(v, x)
  return v.down_proj(v.act(gate) * up)
end

local PlainMLP = nn.class "PlainMLP"

function PlainMLP:init(config, plan)
  local bias = { bias = plan.biases.mlp or false }
  self.c_fc = nn.Linear(config.hidden_size, config.intermediate_size, bias)
  self.c_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias)
  self.act = activations.functions[config.hidden_act]
end

function PlainMLP:forward(x)
  local v = self._values
  return v.c_proj(v.act(v.c_fc(x)))
end

local Layer = nn.class "RotaryDecoderLayer"

function Layer:init(config, plan, layer)
  self.self_attn = Attention(config, plan, layer)
  self.mlp = (plan.ungated and PlainMLP or MLP)(config, plan)
  if not plan.behind then self.input_layernorm = norm(config, plan) end
  self.post_attention_layernorm = norm(config, plan)
  if plan.sandwich then self.pre_feedforward_layernorm = norm(config, plan) end
  if plan.sandwich or plan.behind then self.post_feedforward_layernorm = norm(config, plan) end
  self.drop, self.scale = plan.drop or 0, plan.part_scale
end

local function layer(v, x, place)
  x = x + v.self_attn(v.input_layernorm(x), place)
  return x + v.mlp(v.post_attention_layernorm(x))
end

local function sandwiched(v, x, place)
  x = x + v.post_attention_layernorm(v.self_attn(v.input_layernorm(x), place))
  return x + v.post_feedforward_layernorm(v.mlp(v.pre_feedforward_layernorm(x)))
end

local function normed_behind(v, x, place)
  x = x + v.post_attention_layernorm(v.self_attn(x, place))
  return x + v.post_feedforward_layernorm(v.mlp(x))
end

local function scaled(v, x, place)
  x = x + v.self_attn(v.input_layernorm(x), place) * v.scale
  return x + v.mlp(v.post_attention_layernorm(x)) * v.scale
end

local function dropping(v, x, place)
  x = x + dropout(v.self_attn(v.input_layernorm(x), place), v.drop)
  return x + dropout(v.mlp(v.post_attention_layernorm(x)), v.drop)
end

function Layer:forward(x, place)
  local v = self._values
  local body = v.pre_feedforward_layernorm and sandwiched or v.post_feedforward_layernorm and normed_behind
    or v.scale and scaled or self.training and v.drop > 0 and dropping or layer
  return core.scope(body, v, x, place)
end

-- ---- models

-- The largest window of a plan, or nil: all layers that have one have the same.
local function window_of(plan)
  for _, window in ipairs(plan.windows or {}) do
    if window then return window end
  end
end

local function build(self, config)
  local plan = self.traits.plan(config)
  self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size,
    { padding_idx = config.pad_token_id or nil })
  local layers = {}
  for i = 1, config.num_hidden_layers do layers[i] = Layer(config, plan, i) end
  self.layers = nn.ModuleList(layers)
  self.norm = norm(config, plan)
  self.rotary = rotary.Rotary(self.__name, config, config.head_dim, plan.partial)
  self.windows, self.window = plan.windows, window_of(plan)
  self.embed_scale, self.embed_drop = plan.embed_scale, plan.embed_drop
end

-- Where the new tokens are: for the layers that see all positions before, and for those with a
-- window.
local function places(v, o, x)
  local cache, length = o.cache, x:size(2)
  local past = cache and cache.length or 0
  local positions, mask, causal = decoder.layout(o, past)
  local all = { mask = mask, causal = causal, cache = cache }
  all.cos, all.sin = v.rotary:at(past, length, positions, x)
  if not v.window or past + length <= v.window then return all, all end
  local near = { cache = cache, cos = all.cos, sin = all.sin, causal = false, window = v.window }
  near.mask = masks.window(length, past, o.attention_mask, v.window, x.device)
  return all, near
end

-- The hidden states behind the last norm, and with output_hidden_states those of all layers.
local function hidden(self, o)
  local v, cache = self._values, o.cache
  pretrained.check_input(self.__name, o.input_ids)
  local x = v.embed_tokens(o.input_ids)
  if v.embed_scale then x = x * core.tensor(v.embed_scale, { dtype = x.dtype, device = x.device }) end
  if self.training and v.embed_drop then x = dropout(x, v.embed_drop) end
  local far, near = places(v, o, x)
  local all = o.output_hidden_states and { x } or nil
  for i, one in ipairs(v.layers:_child_list()) do
    x = one(x, v.windows and v.windows[i] and near or far)
    if all then all[#all + 1] = x end
  end
  x = v.norm(x)
  if all then all[#all] = x end
  if cache then cache:advance(o.input_ids:size(2)) end
  return x, all
end

local function bent(scores, cap) return (scores / cap):tanh() * cap end

local function causal_lm(Class, Base)
  function Class:_build(config)
    self.model = nn.init._skip(Base, config)
    self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, { bias = false })
    if config.tie_word_embeddings then self.lm_head.weight = self.model.embed_tokens.weight end
    local plan = self.traits.plan(config)
    self.score_cap, self.score_scale, self.renew_at = plan.score_cap, plan.score_scale, plan.renew_at
  end
  decoder.causal_lm(Class, "model", function(self, x)
    local scores = self.lm_head(x)
    if self.score_scale then scores = scores * self.score_scale end
    return self.score_cap and bent(scores, self.score_cap) or scores
  end)
end

local function classifier(Class, Base)
  function Class:_build(config)
    self.model = nn.init._skip(Base, config)
    self.score = nn.Linear(config.hidden_size, config.num_labels, { bias = false })
  end
  decoder.classifier(Class, "model")
end

--- Gives the classes of a type, made by pretrained.class with M.traits, what they do, and returns
--- them by name.
---@param Base table the decoder without a head
---@param CausalLM table
---@param Classifier table? nil where Transformers has none
---@return table<string, table>
function M.complete(Base, CausalLM, Classifier)
  Base._build, Base._hidden = build, hidden
  decoder.base(Base)
  causal_lm(CausalLM, Base)
  local classes = { [Base.__name] = Base, [CausalLM.__name] = CausalLM }
  if Classifier then
    classifier(Classifier, Base)
    classes[Classifier.__name] = Classifier
  end
  return classes
end

return M
