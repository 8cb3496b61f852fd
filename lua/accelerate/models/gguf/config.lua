--- Configurations of models out of the settings of GGUF files. Each setting of an architecture
--- becomes a key, is checked, or raises: none is left aside.

local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

-- What a file calls an architecture -> the types of models that it may hold, the usual one first.
local ARCHITECTURES = {
  llama = { "llama", "mistral" }, qwen2 = { "qwen2" }, qwen3 = { "qwen3" }, phi3 = { "phi3" },
  gemma = { "gemma" }, gemma2 = { "gemma2" }, gpt2 = { "gpt2" }, starcoder2 = { "starcoder2" },
  olmo2 = { "olmo2" }, smollm3 = { "smollm3" }, granite = { "granite" },
}
local CLASSES = { llama = "Llama", mistral = "Mistral", qwen2 = "Qwen2", qwen3 = "Qwen3", phi3 = "Phi3",
  gemma = "Gemma", gemma2 = "Gemma2", starcoder2 = "Starcoder2", olmo2 = "Olmo2", smollm3 = "SmolLM3",
  granite = "Granite" }

-- Settings that become a key as they are.
local DECODER = {
  context_length = "max_position_embeddings", embedding_length = "hidden_size",
  block_count = "num_hidden_layers", feed_forward_length = "intermediate_size",
  ["attention.head_count"] = "num_attention_heads", ["attention.head_count_kv"] = "num_key_value_heads",
  ["attention.layer_norm_rms_epsilon"] = "rms_norm_eps", ["attention.key_length"] = "head_dim",
  ["rope.freq_base"] = "rope_theta",
}
local OWN = {
  gpt2 = { context_length = "n_positions", embedding_length = "n_embd", block_count = "n_layer",
    feed_forward_length = "n_inner", ["attention.head_count"] = "n_head",
    ["attention.layer_norm_epsilon"] = "layer_norm_epsilon" },
  starcoder2 = { ["attention.layer_norm_epsilon"] = "norm_epsilon" },
  gemma2 = { attn_logit_softcapping = "attn_logit_softcapping",
    final_logit_softcapping = "final_logit_softcapping", ["attention.sliding_window"] = "sliding_window" },
  granite = { ["attention.scale"] = "attention_multiplier", embedding_scale = "embedding_multiplier",
    residual_scale = "residual_multiplier", logit_scale = "logits_scaling" },
}

-- Settings that are looked at by name below, and those that say nothing of what is computed.
local READ = { vocab_size = true, ["attention.value_length"] = true, ["rope.dimension_count"] = true,
  ["rope.scale_linear"] = true, ["attention.sliding_window"] = true, expert_count = true,
  ["attention.causal"] = true, use_parallel_residual = true, ["attention.sliding_window_pattern"] = true }
local SILENT = { expert_used_count = true, tensor_data_layout = true, ["rope.scaling.finetuned"] = true }
local NEEDED = { "context_length", "embedding_length", "block_count", "attention.head_count" }

-- ---- rotary positions

local SCALING = { type = true, factor = true, original_context_length = true, attn_factor = true,
  finetuned = true, yarn_beta_fast = true, yarn_beta_slow = true }

local function factors(file, name)
  local t = file.tensors[name]
  return t and t:read():float():reshape(-1):totable()
end

-- Each element has a divisor of its own, as in LongRoPE.
local function divided(short, long, length, strength)
  return { rope_type = "longrope", short_factor = short, long_factor = long,
    original_max_position_embeddings = length, attention_factor = strength }
end

local READERS = {}
function READERS.none() return nil end
function READERS.linear(where, given)
  return { rope_type = "linear", factor = given.factor or fail("%s: rope.scaling.factor is missing", where) }
end
function READERS.yarn(where, given)
  local factor = given.factor or fail("%s: rope.scaling.factor is missing", where)
  return { rope_type = "yarn", factor = factor, beta_fast = given.yarn_beta_fast,
    beta_slow = given.yarn_beta_slow,
    original_max_position_embeddings = given.original_context_length
      or fail("%s: rope.scaling.original_context_length is missing", where),
    attention_factor = given.attn_factor and given.attn_factor * (1 + 0.1 * math.log(factor)) }
end
READERS.longrope = READERS.none -- its factors are tensors

-- What rope.scaling.* and the tensors of factors say, or nil.
local function rope_scaling(file, where, prefix, length)
  local given = {}
  for key in next, SCALING do given[key] = file:get(prefix .. "rope.scaling." .. key) end
  local each = factors(file, "rope_freqs.weight")
  local short, long = factors(file, "rope_factors_short.weight"), factors(file, "rope_factors_long.weight")
  local kind = given.type or given.factor and "linear" or "none"
  local read = READERS[kind]
  if not read then
    fail("%s: %srope.scaling.type must be none, linear, yarn or longrope, got %s", where, prefix, show(kind))
  end
  local old = file:get(prefix .. "rope.scale_linear")
  local scaling = read(where .. ": " .. prefix:sub(1, -2), given)
    or old and old ~= 1 and { rope_type = "linear", factor = old } or nil
  if scaling and (each or short) then
    fail("%s: rope.scaling.type '%s' beside tensors of factors is not there", where, kind)
  end
  if each then return divided(each, each, length, 1) end
  if not short and not long then return scaling end
  if not short or not long then
    fail("%s: rope_factors_short.weight and rope_factors_long.weight go together", where)
  end
  return divided(short, long, given.original_context_length
    or fail("%s: %srope.scaling.original_context_length is missing", where, prefix), given.attn_factor or 1)
end

-- ---- keys

-- Raises for settings of the architecture that are not known.
local function check_known(file, where, prefix, own)
  for _, key in ipairs(file.keys) do
    local rest = key:sub(1, #prefix) == prefix and key:sub(#prefix + 1)
    local known = not rest or own[rest] or READ[rest] or SILENT[rest]
      or SCALING[rest:match "^rope%.scaling%.(.*)$"]
    if not known then fail("%s: the setting %s is not known", where, show(key)) end
  end
end

-- One number for a list of a number for each layer.
local function the_same(where, key, value)
  if type(value) ~= "table" then return value end
  for _, other in ipairs(value) do
    if other ~= value[1] then fail("%s: %s: layers of several sizes are not there", where, key) end
  end
  return value[1]
end

local function check_others(file, where, prefix, config)
  local experts, window = file:get(prefix .. "expert_count"), file:get(prefix .. "attention.sliding_window")
  if experts and experts ~= 0 then
    fail("%s: %sexpert_count: models of experts are not there, got %s", where, prefix, show(experts))
  end
  if file:get(prefix .. "attention.causal") == false or file:get(prefix .. "use_parallel_residual") then
    fail("%s: %sattention.causal = false and %suse_parallel_residual are not there", where, prefix, prefix)
  end
  local pattern = file:get(prefix .. "attention.sliding_window_pattern")
  for _, slides in ipairs(type(pattern) == "table" and pattern or {}) do
    if slides then
      fail("%s: %sattention.sliding_window_pattern: windows in some layers are not there", where, prefix)
    end
  end
  if window and config.sliding_window == nil and not pattern then
    config.sliding_window = window > 0 and window or false
    if window > 0 and config.model_type ~= "phi3" and config.model_type ~= "mistral" then
      fail("%s: %sattention.sliding_window: models of type %s have no window", where, prefix,
        config.model_type)
    end
  end
end

-- The size of a head, and the share of it that is turned.
local function set_heads(file, where, prefix, config)
  local values, turned = file:get(prefix .. "attention.value_length"),
    file:get(prefix .. "rope.dimension_count")
  local size = config.head_dim or config.hidden_size / config.num_attention_heads
  if values and values ~= size then
    fail("%s: %sattention.value_length must be that of keys, %g, got %g", where, prefix, size, values)
  end
  local llamas = config.model_type == "llama" or config.model_type == "mistral"
  if turned and not config.head_dim and llamas then size = turned end
  config.head_dim = size
  if not turned or turned == size then return end
  if config.model_type ~= "phi3" then
    fail("%s: %srope.dimension_count: heads of %g of which %g are turned are not there", where, prefix, size,
      turned)
  end
  config.partial_rotary_factor = turned / size
end

-- What scores are divided by: the file says it of Granite's alone; Gemma 2's 27B, the one of 46
-- layers, differs from the others.
local function set_scales(config)
  local width = config.hidden_size / config.num_attention_heads
  if config.model_type == "gemma2" then
    config.query_pre_attn_scalar = config.num_hidden_layers == 46 and width or config.head_dim
  elseif config.model_type == "granite" then
    config.attention_multiplier = config.attention_multiplier or config.head_dim ^ -0.5
  end
end

local function has(file, name) return file.tensors[name] ~= nil end

-- Biases are not among the settings: their tensors are there.
local function set_biases(file, config)
  local kind = config.model_type
  if kind == "starcoder2" then config.use_bias = has(file, "blk.0.attn_q.bias") end
  if kind ~= "gpt2" and kind ~= "starcoder2" and kind ~= "qwen2" and kind ~= "phi3" then
    config.attention_bias = has(file, "blk.0.attn_q.bias")
  end
  if kind == "llama" or kind == "granite" or kind == "smollm3" then
    config.mlp_bias = has(file, "blk.0.ffn_gate.bias")
  end
end

local function set_tokens(file, where, config)
  local embedding = file.tensors["token_embd.weight"]
    or fail("%s: there is no tensor 'token_embd.weight'", where)
  config.vocab_size = embedding.shape[1]
  for key, name in next, { bos_token_id = "bos_token_id", eos_token_id = "eos_token_id",
    pad_token_id = "padding_token_id" } do
    config[key] = file:get("tokenizer.ggml." .. name)
  end
  local pad = config.pad_token_id
  if pad and pad >= config.vocab_size then config.pad_token_id = nil end
  config.tie_word_embeddings = not has(file, "output.weight")
end

--- Returns what config.json would say of the model of a file, and the types of models that may
--- hold it.
---@param file accelerate.models.GgufFile
---@return table
---@return string[] types
function M.of(file)
  local where = file.where
  local architecture = file:get "general.architecture"
  local types = ARCHITECTURES[architecture]
  if not types then
    local known = {}
    for name in next, ARCHITECTURES do known[#known + 1] = name end
    table.sort(known)
    fail("%s: general.architecture %s is not there; known are %s", where, show(architecture),
      table.concat(known, ", "))
  end
  local kind = file:get "general.name" == "mistral" and types[2] or types[1]
  local prefix, config = architecture .. ".", { model_type = kind }
  local own = {}
  for _, part in ipairs { kind ~= "gpt2" and DECODER or {}, OWN[kind] or {} } do
    for setting, key in next, part do own[setting] = key end
  end
  check_known(file, where, prefix, own)
  for _, setting in ipairs(NEEDED) do
    if file:get(prefix .. setting) == nil then
      fail("%s: the setting %s%s is missing", where, prefix, setting)
    end
  end
  for setting, key in next, own do
    config[key] = the_same(where, prefix .. setting, file:get(prefix .. setting))
  end
  if kind == "gpt2" then config.architectures = { "GPT2LMHeadModel" }
  else
    config.architectures = { CLASSES[kind] .. "ForCausalLM" }
    check_others(file, where, prefix, config)
    set_heads(file, where, prefix, config)
    config.rope_scaling = rope_scaling(file, where, prefix, config.max_position_embeddings)
    set_scales(config)
  end
  set_biases(file, config)
  set_tokens(file, where, config)
  if kind == "olmo2" or kind == "smollm3" or kind == "phi3" or kind == "gemma" or kind == "gemma2" then
    config.pad_token_id = config.pad_token_id or false
  end
  return config, types
end

return M
