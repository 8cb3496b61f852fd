--- The tensors of GGUF files under Transformers' names, and what the writer of such files has done
--- to their values.

local core = require "accelerate.core"

local M = {}

-- Parts of a block's names, by the part of the file's. A norm of the file stands for another one
-- of the model where a type of models has more of them.
local DECODER = {
  attn_norm = "input_layernorm", ffn_norm = "post_attention_layernorm",
  attn_q = "self_attn.q_proj", attn_k = "self_attn.k_proj", attn_v = "self_attn.v_proj",
  attn_qkv = "self_attn.qkv_proj", attn_output = "self_attn.o_proj",
  attn_q_norm = "self_attn.q_norm", attn_k_norm = "self_attn.k_norm",
  ffn_gate = "mlp.gate_proj", ffn_up = "mlp.up_proj", ffn_down = "mlp.down_proj",
}
local OUTSIDE = { token_embd = "model.embed_tokens", output_norm = "model.norm", output = "lm_head" }

local function with(entries)
  local all = {}
  for _, part in ipairs { DECODER, entries } do
    for name, new in next, part do all[name] = new end
  end
  return all
end

local GPT2 = { attn_norm = "ln_1", attn_qkv = "attn.c_attn", attn_output = "attn.c_proj", ffn_norm = "ln_2",
  ffn_up = "mlp.c_fc", ffn_down = "mlp.c_proj" }

-- A type of models: names within blocks and outside of them, what blocks are called, and whether
-- the rows of queries and keys are in another order (turned) and norms are stored with 1 added.
local TYPES = {
  llama = { turned = true }, mistral = { turned = true }, smollm3 = { turned = true },
  granite = { turned = true },
  qwen2 = {}, qwen3 = {}, gemma = { centred = true },
  gemma2 = { centred = true, block = with { post_attention_norm = "post_attention_layernorm",
    ffn_norm = "pre_feedforward_layernorm", post_ffw_norm = "post_feedforward_layernorm" } },
  olmo2 = { block = with { post_attention_norm = "post_attention_layernorm",
    post_ffw_norm = "post_feedforward_layernorm" } },
  phi3 = { block = with { ffn_up = "mlp.gate_up_proj" } },
  starcoder2 = { block = with { ffn_up = "mlp.c_fc", ffn_down = "mlp.c_proj" } },
  gpt2 = { block = GPT2, blocks = "transformer.h.", outside = { token_embd = "transformer.wte",
    position_embd = "transformer.wpe", output_norm = "transformer.ln_f", output = "lm_head" } },
}
M.TYPES = TYPES

--- Returns the name of a tensor of a file in models of a type; nil: such models have none.
---@param model_type string
---@param name string
---@return string?
function M.of(model_type, name)
  local t = TYPES[model_type]
  local layer, part, ending = name:match "^blk%.(%d+)%.([%w_]+)%.(%w+)$"
  if layer then
    local new = (t.block or DECODER)[part]
    return new and ("%s%d.%s.%s"):format(t.blocks or "model.layers.", tonumber(layer), new, ending)
  end
  part, ending = name:match "^([%w_]+)%.(%w+)$"
  local new = part and (t.outside or OUTSIDE)[part]
  return new and new .. "." .. ending
end

-- Rows of queries and keys as Transformers turns them: the halves of a head one after the other,
-- where the file has them in pairs.
local function in_halves(t, heads)
  local rows = t:size(1)
  local order = core.arange(rows):view(heads, rows / heads / 2, 2):transpose(2, 3):reshape(-1)
  return t:index_select(1, order)
end

--- Returns whether convert makes another tensor of it.
---@param model_type string
---@param name string
---@return boolean
function M.is_converted(model_type, name)
  local type_ = TYPES[model_type]
  return type_.turned and name:find "%.attn_[qk]%.%w+$" ~= nil
    or type_.centred and name:find "norm%.weight$" ~= nil or false
end

--- Returns the rows, plain or encoded, of a file's tensor as models of a type have them.
---@param model_type string
---@param name string the file's
---@param t accelerate.Tensor
---@param config table
---@return accelerate.Tensor
function M.convert(model_type, name, t, config)
  local type_ = TYPES[model_type]
  local part = name:match "%.(attn_[qk])%.%w+$"
  if type_.turned and part then
    return in_halves(t, part == "attn_q" and config.num_attention_heads
      or config.num_key_value_heads or config.num_attention_heads)
  end
  if type_.centred and name:find "norm%.weight$" then return t:float() - 1 end
  return t
end

return M
