-- utils.deepcopy of the models of accelerate.models: plain, with codes, with adapters.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local models = require "accelerate.models"
local optim = require "accelerate.optim"
local ordered = require "accelerate.utils.ordered"
local peft = require "accelerate.peft"
local small = require "spec.support.small_models"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

-- Overwrites all that a model has in memory.
local function destroy(model)
  core.no_grad(function()
    for _, list in ipairs { model:parameters(), model:buffers() } do
      for _, t in ipairs(list) do t:zero_() end
    end
  end)
end

-- A copy has the names, values, ties and types of the original, and computes what it computed when
-- the original's memory has been overwritten. Returns the copy.
local function check_copy(model, compute)
  local before, own, ties = compute(model), model:state_dict(), {}
  local copy = utils.deepcopy(model)
  local there = copy:state_dict()
  assert.same(ordered.keys(own), ordered.keys(there))
  for name, t in ordered.pairs(own) do
    assert.same({ t.dtype, t.shape }, { there[name].dtype, there[name].shape }, name)
    assert.is_true(t:eq(there[name]):all():item(), name)
    -- names of one tensor are names of one tensor in the copy
    local first = ties[t:_address()]
    if first then assert.equal(there[first]:_address(), there[name]:_address(), name) end
    ties[t:_address()] = name
  end
  assert.equal(#model:parameters(), #copy:parameters())
  for i, p in ipairs(model:parameters()) do
    assert.equal(p.requires_grad, copy:parameters()[i].requires_grad)
  end
  destroy(model)
  assert.is_true(compute(copy):eq(before):all():item())
  return copy
end

describe("a copy of", function()
  for _, name in ipairs(small.names()) do
    it(name .. " computes the same in memory of its own", function()
      local inputs = small.inputs(name)
      check_copy(small.make(name):eval(), function(model) return small.main(model(inputs)) end)
    end)
  end

  it("a decoder has its ties, trains and generates by itself", function()
    local model = small.make("LlamaForCausalLM", { tie_word_embeddings = true }):eval()
    local prompt = core.tensor({ { 5, 9, 2 } }, { dtype = "int64" })
    local copy = check_copy(model, function(m) return m:generate(prompt, { max_new_tokens = 5 }) end)
    assert.is_true(rawequal(copy.lm_head.weight, copy.model.embed_tokens.weight))
    copy({ input_ids = prompt, labels = prompt }).loss:backward()
    assert.truthy(copy.lm_head.weight.grad)
    assert.is_nil(model.lm_head.weight.grad)
  end)

  it("a decoder turns positions by its own calls alone", function()
    local scaling = { rope_type = "dynamic", factor = 4 }
    local function new()
      return small.make("LlamaForCausalLM", { max_position_embeddings = 8, rope_scaling = scaling }):eval()
    end
    local function scores(model, length)
      return model({ input_ids = core.arange(length):view(1, length) + 3 }).logits
    end
    local model, plain = new(), new()
    local copy = utils.deepcopy(model)
    scores(model, 20) -- beyond the positions that it was made for: its angles change
    assert.is_true(scores(copy, 7):eq(scores(plain, 7)):all():item())
    assert.is_true(scores(copy, 12):eq(scores(plain, 12)):all():item())
  end)

  local function quantised(folder, fields)
    fields.torch_dtype = "fp32"
    return models.from_pretrained("spec/models/folders/" .. folder,
      { quantization_config = utils.BnbQuantizationConfig(fields) })
  end
  local KINDS = {
    nf4 = function() return quantised("llama", { load_in_4bit = true, bnb_4bit_quant_type = "nf4" }) end,
    ["nf4 with doubled scales, tied"] = function()
      return quantised("gpt2", { load_in_4bit = true, bnb_4bit_quant_type = "nf4",
        bnb_4bit_use_double_quant = true, skip_modules = {} })
    end,
    int8 = function() return quantised("gpt2", { load_in_8bit = true }) end,
    ["a GGUF file"] = function() return models.from_pretrained "spec/reference/gguf/llama_k.gguf" end,
    ["a GGUF file, tied"] = function() return models.from_pretrained "spec/reference/gguf/gpt2.gguf" end,
    LoRA = function()
      return peft.get_peft_model(models.from_pretrained "spec/models/folders/llama",
        peft.LoraConfig { target_modules = "all-linear", init_lora_weights = false })
    end,
    ["DoRA, merged"] = function()
      local model = peft.get_peft_model(models.from_pretrained "spec/models/folders/llama",
        peft.LoraConfig { target_modules = "all-linear", init_lora_weights = false, use_dora = true })
      model:merge_adapter()
      return model
    end,
    ["QLoRA with a module that is trained as a whole"] = function()
      return peft.get_peft_model(quantised("llama", { load_in_4bit = true }),
        peft.LoraConfig { target_modules = { "q_proj" }, modules_to_save = { "lm_head" },
          init_lora_weights = false })
    end,
  }
  for _, name in ipairs { "gptq", "gptq_8", "gptq_act", "gptq_v2", "awq", "fp8_blocks", "fp8_rows",
    "fp8_tensor" } do
    KINDS[name] = function() return models.from_pretrained("spec/reference/packed/" .. name) end
  end
  local ids = core.arange(14):view(2, 7) + 1
  for kind, new in pairs(KINDS) do
    it("a model of " .. kind .. " computes the same in memory of its own, and can be cast", function()
      local model = new()
      local function scores(m) return m({ input_ids = ids }).logits end
      local expected = scores(utils.deepcopy(model):to "bfloat16")
      local copy = check_copy(model, scores)
      assert.is_true(scores(copy:to "bfloat16"):eq(expected):all():item())
    end)
  end

  it("merged adapters takes them out again by itself", function()
    local model = peft.get_peft_model(models.from_pretrained "spec/models/folders/llama",
      peft.LoraConfig { target_modules = "all-linear", init_lora_weights = false })
    local function scores(m) return m({ input_ids = ids }).logits end
    local without = model:disable_adapter(scores, model)
    model:merge_adapter()
    local copy = utils.deepcopy(model)
    destroy(model)
    assert.is_true(scores(copy:unload()):eq(without):all():item())
    assert.equal(tostring(model.peft_config.default), tostring(copy.peft_config.default))
  end)

  it("an offloaded model has its weights in memory", function()
    local model = models.from_pretrained("spec/models/folders/llama",
      { device_map = { model = "disk", lm_head = "cpu" } })
    local expected = model({ input_ids = ids }).logits
    local copy = utils.deepcopy(model)
    assert.equal("disk", model.hf_device_map.model)
    assert.equal("cpu", copy.hf_device_map.model)
    assert.is_true(copy({ input_ids = ids }).logits:eq(expected):all():item())
    copy:to "bfloat16"
    core.no_grad(function() copy.model.norm.weight:zero_() end)
    assert.is_true(model({ input_ids = ids }).logits:eq(expected):all():item())
  end)

  it("a model with a hook has a hook of its own", function()
    local hooks = require "accelerate.hooks"
    local model = models.from_pretrained "spec/models/folders/llama"
    local expected = model({ input_ids = ids }).logits
    accelerate.cpu_offload(model)
    hooks.add_hook_to_module(model.model.layers[1],
      hooks.AlignDevicesHook { execution_device = "cpu", offload = true })
    local copy = utils.deepcopy(model)
    assert.is_true(copy({ input_ids = ids }).logits:eq(expected):all():item())
    hooks.remove_hook_from_submodules(model)
    destroy(model)
    assert.is_true(copy({ input_ids = ids }).logits:eq(expected):all():item())
    hooks.remove_hook_from_submodules(copy)
    assert.is_true(copy({ input_ids = ids }).logits:eq(expected):all():item())
  end)
end)

describe("AveragedModel", function()
  it("of a decoder with codes and adapters averages the adapters, and keeps the codes", function()
    local base = models.from_pretrained("spec/models/folders/llama",
      { quantization_config = utils.BnbQuantizationConfig { load_in_4bit = true, torch_dtype = "fp32" } })
    local model = peft.get_peft_model(base, peft.LoraConfig { target_modules = { "q_proj" } })
    local swa = optim.swa_utils
    local averaged = swa.AveragedModel(model,
      { multi_avg_fn = swa.get_ema_multi_avg_fn(0.9), use_buffers = true })
    averaged:update_parameters(model)
    local trained = {}
    for name, p in model:named_parameters() do
      if p.requires_grad then
        trained[name] = p:detach():clone()
        core.no_grad(function() p:add_(1) end)
      end
    end
    averaged:update_parameters(model)
    local names, there = 0, averaged.module:state_dict()
    for name, t in ordered.pairs(model:state_dict()) do
      local expected = trained[name] and trained[name] + 0.1 or t
      names = names + (trained[name] and 1 or 0)
      assert.is_true(tensor.allclose(there[name]:float(), expected:float(), { rtol = 0, atol = 1e-6 }), name)
    end
    assert.equal(4, names)
  end)
end)
