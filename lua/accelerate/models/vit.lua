--- ViT: an encoder of patches of an image, with pre-LayerNorm.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local activations = require "accelerate.models.activations"
local images = require "accelerate.models.images"
local pretrained = require "accelerate.models.pretrained"

local sdpa, dropout = core.scaled_dot_product_attention, core.dropout

local RATE = { "number", default = 0, min = 0, max = 1 }

local CONFIG = {
  hidden_size = { "integer", default = 768, min = 1 },
  num_hidden_layers = { "integer", default = 12, min = 1 },
  num_attention_heads = { "integer", default = 12, min = 1 },
  intermediate_size = { "integer", default = 3072, min = 1 },
  hidden_act = activations.entry "gelu",
  hidden_dropout_prob = RATE, attention_probs_dropout_prob = RATE,
  initializer_range = { "number", default = 0.02, min = 0 },
  layer_norm_eps = { "number", default = 1e-12, min = 0 },
  image_size = { "integer", default = 224, min = 1 },
  patch_size = { "integer", default = 16, min = 1 },
  num_channels = { "integer", default = 3, min = 1 },
  qkv_bias = { "boolean", default = true },
  pooler_act = { "string", default = "tanh", one_of = activations.names },
}

-- The names that newer versions of Transformers have in memory, and some files.
local NEW_NAMES = {
  { "^(.*)layers%.(%d+)%.attention%.q_proj", "%1encoder.layer.%2.attention.attention.query" },
  { "^(.*)layers%.(%d+)%.attention%.k_proj", "%1encoder.layer.%2.attention.attention.key" },
  { "^(.*)layers%.(%d+)%.attention%.v_proj", "%1encoder.layer.%2.attention.attention.value" },
  { "^(.*)layers%.(%d+)%.attention%.o_proj", "%1encoder.layer.%2.attention.output.dense" },
  { "^(.*)layers%.(%d+)%.mlp%.fc1", "%1encoder.layer.%2.intermediate.dense" },
  { "^(.*)layers%.(%d+)%.mlp%.fc2", "%1encoder.layer.%2.output.dense" },
  { "^(.*)layers%.(%d+)%.layernorm", "%1encoder.layer.%2.layernorm" },
}

local TRAITS = {
  model_type = "vit", prefix = "vit", config = CONFIG,
  check = function(where, c)
    if c.image_size % c.patch_size ~= 0 or c.hidden_size % c.num_attention_heads ~= 0 then
      options.fail("%s: config.image_size must be a multiple of config.patch_size, got %d and %d; and " ..
        "config.hidden_size one of config.num_attention_heads, got %d and %d", where, c.image_size,
        c.patch_size, c.hidden_size, c.num_attention_heads)
    end
  end,
  rename = function(name)
    for _, pair in ipairs(NEW_NAMES) do
      local changed, count = name:gsub(pair[1], pair[2])
      if count > 0 then return changed end
    end
    return name
  end,
}

-- ---- parts

local function group(children)
  local module = nn.Module()
  for _, child in ipairs(children) do module[child[1]] = child[2] end
  return module
end

local Embeddings = nn.class "ViTEmbeddings"

function Embeddings:init(config)
  local width, patch = config.hidden_size, config.patch_size
  self.cls_token = nn.Parameter(core.zeros(1, 1, width))
  self.position_embeddings = nn.Parameter(core.zeros(1, (config.image_size / patch) ^ 2 + 1, width))
  self.patch_embeddings = group {
    { "projection", nn.Conv2d(config.num_channels, width, patch, { stride = patch }) } }
  self.drop = config.hidden_dropout_prob
end

function Embeddings:forward(pixels)
  local v = self._values
  local x = v.patch_embeddings.projection(pixels):flatten(3):transpose(2, 3)
  x = core.cat({ v.cls_token:expand(x:size(1), 1, x:size(3)), x }, 2) + v.position_embeddings
  return self.training and dropout(x, v.drop) or x
end

local Layer = nn.class "ViTLayer"

function Layer:init(config)
  local width, eps = config.hidden_size, { eps = config.layer_norm_eps }
  local bias = { bias = config.qkv_bias }
  self.attention = group {
    { "attention", group {
      { "query", nn.Linear(width, width, bias) },
      { "key", nn.Linear(width, width, bias) },
      { "value", nn.Linear(width, width, bias) },
    } },
    { "output", group { { "dense", nn.Linear(width, width) } } },
  }
  self.intermediate = group { { "dense", nn.Linear(width, config.intermediate_size) } }
  self.output = group { { "dense", nn.Linear(config.intermediate_size, width) } }
  self.layernorm_before = nn.LayerNorm(width, eps)
  self.layernorm_after = nn.LayerNorm(width, eps)
  self.act = activations.functions[config.hidden_act]
  self.heads = config.num_attention_heads
  self.drop, self.attention_drop = config.hidden_dropout_prob, config.attention_probs_dropout_prob
end

local function attend(v, x, drop)
  local N, T, one = x:size(1), x:size(2), v.attention.attention
  local function heads(t) return t:view(N, T, v.heads, -1):transpose(2, 3) end
  local y = sdpa(heads(one.query(x)), heads(one.key(x)), heads(one.value(x)), nil, drop)
  return v.attention.output.dense(y:transpose(2, 3):reshape(N, T, -1))
end

local function layer(v, x, training)
  local function dropped(y) return training and dropout(y, v.drop) or y end
  x = x + dropped(attend(v, v.layernorm_before(x), training and v.attention_drop or 0))
  return x + dropped(v.output.dense(v.act(v.intermediate.dense(v.layernorm_after(x)))))
end

function Layer:forward(x) return core.scope(layer, self._values, x, self.training) end

-- ---- models

---@class accelerate.models.ViTModel : accelerate.models.PreTrainedModel
--- The encoder of patches; `add_pooling_layer = false` in the configuration leaves the pooler out.
local ViTModel = pretrained.class("ViTModel", TRAITS)

function ViTModel:_build(config)
  self.embeddings = Embeddings(config)
  local layers = {}
  for i = 1, config.num_hidden_layers do layers[i] = Layer(config) end
  self.encoder = group { { "layer", nn.ModuleList(layers) } }
  self.layernorm = nn.LayerNorm(config.hidden_size, { eps = config.layer_norm_eps })
  if config.add_pooling_layer ~= false then
    self.pooler = group { { "dense", nn.Linear(config.hidden_size, config.hidden_size) } }
  end
end

function ViTModel:_hidden(o)
  local v, config = self._values, self.config
  images.check(self.__name, o.pixel_values, config.num_channels, config.image_size)
  local x = v.embeddings(o.pixel_values)
  local all = o.output_hidden_states and { x } or nil
  for _, one in ipairs(v.encoder.layer:_child_list()) do
    x = one(x)
    if all then all[#all + 1] = x end
  end
  return v.layernorm(x), all
end

--- `model(pixel_values)` or `model { pixel_values = ... }`.
---@param inputs accelerate.Tensor|table pixel_values (batch, num_channels, image_size, image_size)
---@param opts? { output_hidden_states: boolean }
---@return { last_hidden_state: accelerate.Tensor, pooler_output: accelerate.Tensor?, hidden_states:
---  accelerate.Tensor[]? }
function ViTModel:forward(inputs, opts)
  local o = pretrained.inputs(self, inputs, opts, images.INPUTS, "pixel_values")
  return core.scope(function()
    local x, all = self:_hidden(o)
    local pooler = self._values.pooler
    local pooled = pooler and activations.functions[self.config.pooler_act](pooler.dense(x:select(2, 1)))
    return { last_hidden_state = x, pooler_output = pooled, hidden_states = all }
  end)
end

---@class accelerate.models.ViTForImageClassification : accelerate.models.PreTrainedModel
--- ViT with a linear layer on its first token.
local ViTForImageClassification = pretrained.class("ViTForImageClassification", TRAITS)

function ViTForImageClassification:_build(config)
  local given = {}
  for key, value in next, config do given[key] = value end
  given.add_pooling_layer = false
  self.vit = nn.init._skip(ViTModel, given)
  self.classifier = nn.Linear(config.hidden_size, config.num_labels)
end

images.classifier(ViTForImageClassification, function(self, o)
  local x, all = self.vit:_hidden(o)
  return self.classifier(x:select(2, 1)), all
end)

return { ViTModel = ViTModel, ViTForImageClassification = ViTForImageClassification }
