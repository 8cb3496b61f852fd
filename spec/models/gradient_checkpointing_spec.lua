-- gradient_checkpointing_enable: layers that are computed again in backward.
local core = require "accelerate.core"
local models = require "accelerate.models"
local tensor = require "accelerate.tensor"
local small = require "spec.support.small_models"
local raises = require("spec.support.messages").raises

local NAMES = { "AlbertModel", "BertModel", "DistilBertModel", "ElectraModel", "GPT2LMHeadModel",
  "Gemma2ForCausalLM", "GemmaForCausalLM", "GraniteForCausalLM", "LlamaForCausalLM", "MPNetModel",
  "MistralForCausalLM", "Olmo2ForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
  "RobertaModel", "SmolLM3ForCausalLM", "Starcoder2ForCausalLM", "T5ForConditionalGeneration", "ViTModel",
  "XLMRobertaModel" }

-- The gradients of all parameters, by name, after one pass with dropout.
local function gradients(model, name)
  model:zero_grad()
  tensor.manual_seed(5)
  local out = model(small.inputs(name))
  local loss = out.loss or small.main(out):square():sum()
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
  for _, name in ipairs(NAMES) do
    it(("of %s gives the gradients of plain training"):format(name), function()
      local model = small.make(name):train()
      local plain = gradients(model, name)
      model:gradient_checkpointing_enable()
      same(plain, gradients(model, name))
      model:gradient_checkpointing_disable()
      same(plain, gradients(model, name))
    end)
  end

  it("is on in a copy, whose gradients are its own, and ends there alone", function()
    local model = small.make "LlamaForCausalLM"
    local plain = gradients(model, "LlamaForCausalLM")
    model:zero_grad()
    model:gradient_checkpointing_enable()
    local copy, other = model:clone(), model:clone()
    same(plain, gradients(copy, "LlamaForCausalLM"))
    for name in pairs(plain) do assert.is_nil(model:get_parameter(name).grad) end
    assert.truthy(copy.model.layers[1]._values.forward)
    other:gradient_checkpointing_disable()
    assert.is_nil(other.model.layers[1]._values.forward)
    assert.truthy(copy.model.layers[1]._values.forward)
  end)

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
