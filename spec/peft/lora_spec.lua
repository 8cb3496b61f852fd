--- accelerate.peft beside PEFT's folders and scores (spec/reference/peft/generate.py).
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local models = require "accelerate.models"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local peft = require "accelerate.peft"
local quantisation = require "accelerate.quantisation"
local raises = require("spec.support.messages").raises

local ROOT = "spec/reference/peft/"
local expected = core.safetensors_open(ROOT .. "scores.safetensors")

local function base() return models.from_pretrained(ROOT .. "base") end
local function scores(model)
  return core.no_grad(function() return model(core.arange(8):view(2, 4)).logits end)
end
local function off(a, b) return (a - b):abs():max():item() end

local function net()
  core.manual_seed(0)
  return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
end
local function config(fields)
  local all = { r = 4, target_modules = { "0", "2" } }
  for key, value in pairs(fields or {}) do all[key] = value end
  return peft.LoraConfig(all)
end
-- Draws the second halves of updates, which are zero at first.
local function drawn(model)
  for path, p in model:named_parameters() do
    if path:find "lora_B" then core.no_grad(function() nn.init.normal_(p) end) end
  end
  return model
end

describe("PeftModel", function()
  it("computes PEFT's DoRA over nf4, with its gradients", function()
    local file = core.safetensors_open(ROOT .. "dora_nf4.safetensors")
    local function given(name) return file:get_tensor(name) end
    local plain = nn.Linear(64, 32)
    core.no_grad(function()
      plain.weight:copy_(given "weight")
      plain.bias:copy_(given "bias")
    end)
    local model = peft.get_peft_model(nn.Sequential(quantisation.Linear4bit(plain, { quant_type = "nf4" })),
      peft.LoraConfig { r = 4, target_modules = { "0" }, use_dora = true }):train()
    local layer = model.base_model.model[1]
    local trained = { A = layer.lora_A.default.weight, B = layer.lora_B.default.weight,
      m = layer.lora_magnitude_vector.default.weight }
    core.no_grad(function()
      for name, p in pairs(trained) do p:copy_(given(name)) end
    end)
    local function check(t, name)
      local wanted = given(name)
      assert.is_true(off(t, wanted) < 2e-6 * wanted:abs():max():item() + 1e-6, name)
    end
    check(layer:_norms "default", "made") -- what a new adapter's magnitudes are
    local x = given("x"):requires_grad_()
    local y = model(x)
    check(y, "y")
    y:square():sum():backward()
    check(x.grad, "x_grad")
    for name, p in pairs(trained) do check(p.grad, name .. "_grad") end
  end)

  it("names what there is where target_modules name nothing", function()
    raises('target_modules { "query" } names no layer of the model; its linear layers end in 0, 2',
      peft.get_peft_model, net(), config { target_modules = { "query" } })
  end)

  for _, name in ipairs { "lora", "dora", "saved" } do
    it("reads PEFT's folder and computes PEFT's scores: " .. name, function()
      local model = peft.PeftModel.from_pretrained(base(), ROOT .. name)
      assert.is_true(off(expected:get_tensor(name), scores(model)) < 1e-6)
      assert.are.equal(0, (model:get_nb_trainable_parameters()))
    end)

    it("writes what it reads: " .. name, function()
      host.in_folder(function(root)
        peft.PeftModel.from_pretrained(base(), ROOT .. name):save_pretrained(root)
        local model = peft.PeftModel.from_pretrained(base(), root)
        assert.is_true(off(expected:get_tensor(name), scores(model)) < 1e-6)
      end)
    end)

    it("merges and unmerges: " .. name, function()
      local model = peft.PeftModel.from_pretrained(base(), ROOT .. name)
      model:merge_adapter()
      assert.is_true(off(expected:get_tensor(name), scores(model)) < 1e-6)
      model:unmerge_adapter()
      assert.is_true(off(expected:get_tensor(name), scores(model)) < 1e-6)
      local plain = model:merge_and_unload()
      assert.are.equal("GPT2LMHeadModel", plain.__name)
      assert.is_true(off(expected:get_tensor(name), scores(plain)) < 1e-6)
    end)
  end

  it("has ranks and scales by pattern, and adapters in some blocks alone", function()
    local wanted = core.safetensors_open(ROOT .. "patterns_scores.safetensors"):get_tensor "scores"
    local function read(folder)
      return peft.PeftModel.from_pretrained(models.from_pretrained(ROOT .. "llama"), folder)
    end
    local model = read(ROOT .. "patterns")
    assert.is_true(off(wanted, scores(model)) < 1e-6)
    host.in_folder(function(root)
      model:save_pretrained(root)
      assert.is_true(off(wanted, scores(read(root))) < 1e-6)
    end)
    assert.is_true(off(wanted, scores(model:merge_and_unload())) < 1e-6)
  end)

  it("says which patterns contradict each other, and what does not go together", function()
    for message, fields in pairs {
      ["LoraConfig: rank_pattern: '0' and '[02]' both fit 0, with 2 and 3"] =
        { rank_pattern = { ["0"] = 2, ["[02]"] = 3 } },
      ["rank_pattern['0']"] = { rank_pattern = { ["0"] = 0 } },
      ["alpha_pattern: a key must be a pattern, got 1"] = { alpha_pattern = { 3 } },
      ["layers_pattern is for layers_to_transform, which is not given"] = { layers_pattern = "h" },
      ["layers_to_transform[2] must be an integer, got '1'"] = { layers_to_transform = { 0, "1" } },
      ["layers_to_transform goes with names as target_modules"] =
        { target_modules = "0", layers_to_transform = 1 },
    } do
      raises(message, function() peft.get_peft_model(net(), config(fields)) end)
    end
  end)

  it("trains the head of a model for a task, without adapters in it", function()
    local sizes = { vocab_size = 20, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1,
      num_attention_heads = 2, num_key_value_heads = 2 }
    for _, case in ipairs { { "BertForSequenceClassification", "SEQ_CLS", "classifier" },
      { "BertForTokenClassification", "TOKEN_CLS", "classifier" } } do
      local class, task, head = unpack(case)
      local model = peft.get_peft_model(models[class](sizes), peft.LoraConfig { task_type = task,
        target_modules = { "query", "dense" }, modules_to_save = { "intermediate" } })
      local names = {}
      for name, p in model:named_parameters() do
        if p.requires_grad and not name:find("lora_", 1, true) then names[#names + 1] = name end
      end
      local inner = "base_model.model.bert.encoder.layer.0.intermediate.modules_to_save.default.dense."
      local outer = ("base_model.model.%s.modules_to_save.default."):format(head)
      assert.same({ inner .. "weight", inner .. "bias", outer .. "weight", outer .. "bias" }, names)
      assert.same({ "intermediate", head }, model.peft_config.default.modules_to_save)
    end
  end)

  it("trains the head for answers to questions", function()
    local model = nn.Sequential(nn.Linear(4, 4))
    model.qa_outputs = nn.Linear(4, 2)
    local adapted = peft.get_peft_model(model,
      config { task_type = "QUESTION_ANS", target_modules = { "0" } })
    assert.is_true(adapted.base_model.model.qa_outputs.modules_to_save.default.weight.requires_grad)
  end)

  it("takes an empty layers_pattern for none", function()
    local function block()
      local made = nn.Sequential()
      made.fc = nn.Linear(4, 4)
      return made
    end
    local function adapted(number)
      return peft.get_peft_model(nn.Sequential(nn.Sequential(nn.Sequential(block(), block()))),
        config { target_modules = { "fc" }, layers_to_transform = number, layers_pattern = "" })
    end
    local blocks = adapted(1).base_model.model[1][1]
    assert.are.same({ "Linear", "LoraLayer" }, { blocks[1].fc.__name, blocks[2].fc.__name })
    raises("names no layer of the model in the blocks of layers_to_transform", adapted, 9)
  end)

  it("leaves the model's head as it is where a folder neither lists nor has one", function()
    local function model()
      core.manual_seed(5)
      local made = nn.Sequential(nn.Linear(4, 4))
      made.qa_outputs = nn.Linear(4, 2)
      return made
    end
    host.in_folder(function(root)
      local fields = { target_modules = { "0" }, init_lora_weights = false }
      peft.get_peft_model(model(), config(fields)):save_pretrained(root)
      local path = root .. "/adapter_config.json"
      local text = assert(fs.read(path)):gsub('"use_dora"', '"task_type": "QUESTION_ANS", %0')
      assert(fs.write(path, text, true))
      local read = peft.PeftModel.from_pretrained(model(), root)
      local head = read.base_model.model.qa_outputs
      assert.is_true(core.same_bits(model().qa_outputs.weight, head.modules_to_save.default.weight))
      text = text:gsub('"task_type"', '"modules_to_save": ["qa_outputs"], %0')
      assert(fs.write(path, text, true))
      raises("lacks 'base_model.model.qa_outputs.weight'", function()
        peft.PeftModel.from_pretrained(model(), root)
      end)
    end)
  end)

  it("has PEFT's names of parameters", function()
    local model = peft.get_peft_model(net(), config())
    local names = {}
    for name, p in model:named_parameters() do
      if p.requires_grad then names[#names + 1] = name end
    end
    assert.are.same({ "base_model.model.0.lora_A.default.weight", "base_model.model.0.lora_B.default.weight",
      "base_model.model.2.lora_A.default.weight", "base_model.model.2.lora_B.default.weight" }, names)
  end)

  it("changes nothing at first, and nothing while it is disabled", function()
    local x, plain = core.randn(2, 64), net()
    local y = plain(x)
    for _, dora in ipairs { false, true } do
      local model = peft.get_peft_model(net(), config { use_dora = dora })
      assert.is_true(off(y, model(x)) < 1e-5)
      drawn(model)
      assert.is_true(off(y, model(x)) > 1e-2)
      assert.are.equal(0, off(y, model:disable_adapter(function() return model(x) end)))
      assert.is_true(off(y, model:unload()(x)) == 0)
    end
  end)

  it("has several adapters, one or some of them active", function()
    local x = core.randn(2, 64)
    local model = drawn(peft.get_peft_model(net(), config(), { adapter_name = "one" }))
    local first = model(x)
    model:add_adapter("two", config { r = 2 })
    assert.are.equal(0, off(first, model(x)))
    model:set_adapter "two"
    drawn(model)
    local second = model(x)
    assert.is_true(off(first, second) > 1e-2)
    model:set_adapter { "one", "two" }
    assert.is_true(off(first, model(x)) > 1e-2)
    model:delete_adapter "two"
    assert.are.equal("one", model.active_adapter)
    assert.has_error(function() model:set_adapter "two" end,
      "set_adapter: there is no adapter 'two'; there are one")
  end)

  it("saves adapters that are not the default below", function()
    host.in_folder(function(root)
      local model = peft.get_peft_model(base(), peft.LoraConfig { r = 2 })
      model:add_adapter("other", peft.LoraConfig { r = 3, target_modules = { "c_fc" } })
      model:save_pretrained(root)
      local again = peft.PeftModel.from_pretrained(base(), root)
      again:load_adapter(root .. "/other", { adapter_name = "other" })
      assert.are.equal(3, again.peft_config.other.r)
    end)
  end)

  it("takes PEFT's names of tasks, and no others", function()
    assert.are.equal("CAUSAL_LM", peft.LoraConfig { task_type = peft.TaskType.CAUSAL_LM }.task_type)
    assert.error_matches(function() peft.LoraConfig { task_type = "CAUSAL_LMM" } end,
      "'task_type' must be one of SEQ_CLS, .*; did you mean 'CAUSAL_LM'")
  end)

  it("passes on to the model what it does not have", function()
    local model = peft.PeftModel.from_pretrained(base(), ROOT .. "lora")
    assert.are.equal("gpt2", model.config.model_type)
    local ids = core.tensor({ { 1, 2 } }, { dtype = "int64" })
    assert.are.same({ 1, 5 },
      model:generate(ids, { max_new_tokens = 3, do_sample = false, eos_token_id = 11 }).shape)
  end)

  it("names what a configuration asks for and the model does not have", function()
    assert.has_error(function() peft.get_peft_model(net(), config { target_modules = { "nine" } }) end)
    assert.has_error(function() peft.get_peft_model(net(), config { target_modules = { "1" } }) end,
      "get_peft_model: target_modules: '1' is ReLU; adapters are for linear layers")
    assert.has_error(function() peft.get_peft_model(net(), peft.LoraConfig {}) end,
      "get_peft_model: LoraConfig.target_modules must name layers: there is no default for this model")
    assert.has_error(function() peft.LoraConfig { bias = "some" } end)
  end)
end)

describe("adapters train", function()
  local function trained(model, steps)
    local accelerator = accelerate.Accelerator()
    local x, y = core.randn(16, 64), core.randint(0, 3, { 16 })
    local trainable = {}
    for _, p in ipairs(model:parameters()) do
      if p.requires_grad then trainable[#trainable + 1] = p end
    end
    local optimizer = optim.AdamW(trainable, { lr = 1e-2 })
    model, optimizer = accelerator:prepare(model, optimizer)
    local loss
    for _ = 1, steps do
      loss = core.cross_entropy(model(x), y)
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
    end
    return loss:item()
  end

  it("alone, through prepare", function()
    local model = peft.get_peft_model(net(), config { lora_dropout = 0.1 })
    local before = model.base_model.model[1].base_layer.weight:clone()
    core.manual_seed(5)
    assert.is_true(trained(model, 30) < 0.3)
    assert.are.equal(0, off(before, model.base_model.model[1].base_layer.weight))
  end)

  it("over nf4, near the loss over float32", function()
    local losses = {}
    for i, load_in_4bit in ipairs { false, true } do
      local model = net()
      if load_in_4bit then
        model = quantisation.load_and_quantize_model(model,
          quantisation.BnbQuantizationConfig { load_in_4bit = true,
          bnb_4bit_quant_type = "nf4", bnb_4bit_compute_dtype = "fp32", skip_modules = {} })
      end
      core.manual_seed(7)
      losses[i] = trained(peft.get_peft_model(model, config()), 5)
    end
    assert.is_true(math.abs(losses[2] / losses[1] - 1) < 0.05)
  end)

  it("merges into codes by encoding anew", function()
    local model = quantisation.load_and_quantize_model(net(),
      quantisation.BnbQuantizationConfig { load_in_4bit = true,
      bnb_4bit_quant_type = "nf4", bnb_4bit_compute_dtype = "fp32", skip_modules = {} })
    local with = drawn(peft.get_peft_model(model, config()))
    local x = core.randn(2, 64)
    local y = with(x)
    local merged = with:merge_and_unload()
    assert.are.equal("Linear4bit", merged[1].__name)
    assert.is_true(off(y, merged(x)) < 0.2 * y:abs():max():item())
  end)

  it("give codes back as they were, also in a copy of a merged model", function()
    for _, settings in ipairs { { load_in_8bit = true },
      { load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_use_double_quant = true } } do
      settings.skip_modules, settings.torch_dtype = {}, "fp32"
      local model = quantisation.load_and_quantize_model(net(), quantisation.BnbQuantizationConfig(settings))
      local with = drawn(peft.get_peft_model(model, config()))
      local files = model[1].base_layer:state_dict()
      with:merge_adapter()
      local copy = with:clone()
      assert.is_false(files.weight:equal(model[1].base_layer.weight))
      for _, merged in ipairs { copy, with } do
        merged:unmerge_adapter()
        local again = merged.base_model.model[1].base_layer:state_dict()
        for name, t in pairs(files) do assert.is_true(t:equal(again[name]), name) end
      end
    end
  end)

  it("refuse codes in modules_to_save by name", function()
    local model = quantisation.load_and_quantize_model(net(),
      quantisation.BnbQuantizationConfig { load_in_4bit = true, skip_modules = {} })
    raises("modules_to_save: the module is Linear4bit, whose codes cannot be trained", peft.get_peft_model,
      model,
      config { target_modules = { "0" }, modules_to_save = { "2" } })
  end)

  it("are saved of a state dict that has all of them", function()
    local model = drawn(peft.get_peft_model(net(), config()))
    host.in_folder(function(folder)
      raises("save_pretrained: state_dict: 'base_model.model.0.lora_A.default.weight' " ..
        "must be a tensor, got nil",
        function() model:save_pretrained(folder, { state_dict = {} }) end)
      model:save_pretrained(folder, { state_dict = model:state_dict() })
    end)
  end)

  it("takes models without layers to checkpoint", function()
    local model = peft.prepare_model_for_kbit_training(models.LeNet())
    assert.is_false(model:parameters()[1].requires_grad)
    raises("LeNet has no layers that it knows", peft.prepare_model_for_kbit_training, models.LeNet(),
      { use_gradient_checkpointing = true })
    model = peft.prepare_model_for_kbit_training(base())
    assert.is_true(model.is_gradient_checkpointing)
  end)

  it("are read of folders that are named by a text", function()
    local model = peft.get_peft_model(net(), config())
    for _, folder in ipairs { 3, {}, false } do
      raises("PeftModel.from_pretrained: directory must be a string", peft.PeftModel.from_pretrained,
        net(), folder)
      raises("load_adapter: directory must be a string", model.load_adapter, model, folder)
    end
  end)
end)
