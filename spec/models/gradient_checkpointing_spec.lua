-- gradient_checkpointing_enable: layers that are computed again in backward.
local core = require "accelerate.core"
local models = require "accelerate.models"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local FORMS = {
  { { "BertModel", "RobertaModel", "XLMRobertaModel", "ElectraModel", "MPNetModel", "AlbertModel" },
    { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 32 } },
  { { "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM",
    "GemmaForCausalLM", "Gemma2ForCausalLM", "Olmo2ForCausalLM", "GraniteForCausalLM",
    "SmolLM3ForCausalLM", "Starcoder2ForCausalLM" },
    { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 32,
    num_key_value_heads = 2, pad_token_id = 0, bos_token_id = 1, eos_token_id = 2 } },
  { { "GPT2LMHeadModel" }, { n_embd = 16, n_layer = 2, n_head = 2 } },
  { { "DistilBertModel" }, { dim = 16, n_layers = 2, n_heads = 2, hidden_dim = 32 } },
  { { "T5ForConditionalGeneration" }, { d_model = 16, d_kv = 8, d_ff = 32, num_layers = 2, num_heads = 2 } },
  { { "ViTModel" }, { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2,
    intermediate_size = 32, image_size = 8, patch_size = 4 } },
}

-- The gradients of all parameters, by name, after one pass with dropout.
local function gradients(model, name)
  local ids = tensor.arange(14):view(2, 7) + 3
  model:zero_grad()
  tensor.manual_seed(5)
  local inputs = { input_ids = ids, attention_mask = tensor.ones(2, 7, { dtype = "int64" }) }
  if name == "ViTModel" then inputs = { pixel_values = tensor.arange(384):view(2, 3, 8, 8) / 384 }
  elseif name:find "^T5" then inputs.labels = ids end
  local out = model(inputs)
  local loss = out.loss or (out.logits or out.last_hidden_state):square():sum()
  loss:backward()
  local found = {}
  for key, p in model:named_parameters() do found[key] = p.grad and p.grad:clone() end
  return found
end

local function same(a, b)
  for key, value in pairs(a) do
    -- a bias of all layers adds its gradients in another order
    assert.is_true(tensor.allclose(value, b[key], { rtol = 1e-4, atol = 1e-6 }), key)
  end
  for key in pairs(b) do assert(a[key], key) end
end

describe("gradient_checkpointing_enable", function()
  for _, form in ipairs(FORMS) do
    for _, name in ipairs(form[1]) do
      it(("of %s gives the gradients of plain training"):format(name), function()
        local config = {}
        for key, value in pairs(form[2]) do config[key] = value end
        if name ~= "ViTModel" then config.vocab_size = 30 end
        tensor.manual_seed(0)
        local model = models[name](config):train()
        local plain = gradients(model, name)
        model:gradient_checkpointing_enable()
        same(plain, gradients(model, name))
        model:gradient_checkpointing_disable()
        same(plain, gradients(model, name))
      end)
    end
  end

  it("keeps the memory of the layers down", function()
    local model = models.GPT2LMHeadModel { n_embd = 32, n_layer = 8, n_head = 2, vocab_size = 30 }
    local ids = tensor.zeros(16, 64):long()
    local function peak()
      model:zero_grad()
      collectgarbage()
      collectgarbage()
      local before = core.memory_stats().live_bytes
      core.reset_peak_memory_stats()
      model({ input_ids = ids, labels = ids }).loss:backward()
      return core.memory_stats().peak_bytes - before
    end
    local plain = peak()
    model:gradient_checkpointing_enable()
    local less = peak()
    assert.is_true(less < 0.5 * plain, ("%.1f MB instead of %.1f"):format(less / 1e6, plain / 1e6))
  end)

  it("says which model has no layers", function()
    local model = models.ResNetForImageClassification { embedding_size = 4, hidden_sizes = { 4 },
      depths = { 1 } }
    raises("gradient_checkpointing: ResNetForImageClassification has no layers that it knows",
      model.gradient_checkpointing_enable, model)
  end)
end)
