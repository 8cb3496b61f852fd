-- Folders of models: where they are looked for, what does not fit, types, and configurations.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local models = require "accelerate.models"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local weights = require "accelerate.weights"
local raises = require("spec.support.messages").raises

local GPT2 = "spec/models/folders/gpt2"
local LLAMA = "spec/models/folders/llama"
local BERT = "spec/models/folders/bert_classes"

-- A copy of a folder with its config.json changed.
local function with_config(folder, changes, fn)
  host.in_folder(function(copy)
    assert(os.execute(("cp %s/* '%s'"):format(folder, copy)))
    local config = assert(json.decode(assert(fs.read(copy .. "/config.json"))))
    for key, value in pairs(changes) do config[key] = value end
    assert(fs.write(copy .. "/config.json", json.encode(config)))
    fn(copy)
  end)
end

local function quietly(fn, ...)
  local main, said = notice.main, {}
  notice.main = function(text, ...) said[#said + 1] = text:format(...) end
  local ok, a, b = pcall(fn, ...)
  notice.main = main
  assert(ok, a)
  return a, b, table.concat(said)
end

describe("a configuration of a script", function()
  it("has a line for each key that is nearly a known one", function()
    local once, said = notice.main_once, {}
    notice.main_once = function(text, ...) said[#said + 1] = text:format(...) end
    local ok, why = pcall(models.GPT2Model.from_config,
      { n_layers = 1, n_head = 2, n_embd = 8, vocab_size = 9,
      n_ctx = 7, task_specific_params = {} })
    local quiet = pcall(models.from_pretrained, BERT)
    notice.main_once = once
    assert(ok and quiet, why)
    assert.same({ "GPT2Model: config.n_layers does not concern the model; did you mean 'n_layer'?" }, said)
  end)
end)

describe("from_pretrained", function()
  it("takes the class that config.json names, in evaluation mode", function()
    local model = models.from_pretrained(BERT)
    assert.equal("BertForSequenceClassification", getmetatable(model).__name)
    assert.is_false(model.training)
    assert.equal("GPT2LMHeadModel", getmetatable(models.AutoModelForCausalLM.from_pretrained(GPT2)).__name)
    assert.equal(3, model.config.num_labels)
  end)

  it("finds names in the Hugging Face cache, and says where it looked", function()
    host.in_folder(function(cache)
      local repository = cache .. "/models--some--tiny"
      assert(fs.make_dirs(repository .. "/snapshots/abc123"))
      assert(fs.make_dirs(repository .. "/refs"))
      assert(fs.write(repository .. "/refs/main", "abc123"))
      assert(os.execute(("cp %s/* '%s/snapshots/abc123'"):format(BERT, repository)))
      local model = models.from_pretrained("some/tiny", { cache_dir = cache })
      assert.equal("bert", model.config.model_type)
      models.from_pretrained("some/tiny", { cache_dir = cache, revision = "abc123" })
      raises("snapshots/other", models.from_pretrained, "some/tiny",
        { cache_dir = cache, revision = "other" })
      raises(cache .. "/models--no--where", models.from_pretrained, "no/where", { cache_dir = cache })
      raises("'/no/such/folder' is no folder", models.from_pretrained, "/no/such/folder")
    end)
  end)

  it("looks below HF_HOME", function()
    host.in_folder(function(home)
      assert(fs.make_dirs(home .. "/hub/models--tiny/snapshots/main"))
      assert(os.execute(("cp %s/* '%s/hub/models--tiny/snapshots/main'"):format(BERT, home)))
      local status, out, err = host.run({ "-e",
        'print(require("accelerate.models").from_pretrained("tiny").config.model_type)' },
        { env = { HF_HOME = home } })
      assert.equal(0, status, err)
      assert.equal("bert\n", out)
    end)
  end)

  it("reads a base model out of a model with a head, and the other way round", function()
    local _, info, said = quietly(models.BertModel.from_pretrained, BERT, { output_loading_info = true })
    assert.same({ "classifier.weight", "classifier.bias" },
      { info.unexpected_keys[2], info.unexpected_keys[1] })
    assert.same({}, info.missing_keys)
    assert.truthy(said:find("not used: classifier", 1, true), said)
    core.manual_seed(1)
    local model, more, warned = quietly(models.BertForTokenClassification.from_pretrained,
      "spec/models/folders/bert", { num_labels = 5, output_loading_info = true })
    assert.same({ "classifier.weight", "classifier.bias" }, more.missing_keys)
    assert.truthy(warned:find("start new", 1, true), warned)
    assert.same({ 5, 16 }, model.classifier.weight.shape)
    assert.equal(0, model.classifier.bias:abs():max():item())
    local spread = model.classifier.weight:std():item()
    assert.is_true(spread > 0.01 and spread < 0.03, tostring(spread))
  end)

  it("returns the model alone, so that a call may be an argument", function()
    assert.equal(1, select("#", models.from_pretrained(GPT2)))
    local plan = require("accelerate.utils").plan_device_map(models.from_pretrained(GPT2,
      { device_map = "cpu" }))
    assert.is_true(plan.seconds > 0)
  end)

  it("takes one place for the whole model as its device map", function()
    for _, place in ipairs { "cpu", "disk" } do
      assert.equal(place, models.from_pretrained(GPT2, { device_map = place }).hf_device_map[""])
    end
    raises('device_map: expected a table, or one of "auto"', models.from_pretrained, GPT2,
      { device_map = "autoo" })
    raises([[device_map: expected the number of a GPU, "cuda:N", "cpu" or "disk", got 'ram']],
      models.from_pretrained, GPT2, { device_map = { [""] = "ram" } })
    raises("got 'cuda:97', which is not here: ", models.from_pretrained, GPT2, { device_map = 97 })
    raises("device_map gives these no device: transformer.wpe.weight", models.from_pretrained, GPT2,
      { device_map = { ["transformer.wte"] = "cpu", ["transformer.h"] = "cpu", ["transformer.ln_f"] = "cpu",
        lm_head = "cpu" } })
  end)

  it("says that a folder is an adapter's, and that a GGUF file is not there", function()
    host.in_folder(function(folder)
      assert(io.open(folder .. "/adapter_config.json", "w")):close()
      raises(folder .. " is an adapter's folder, without a model; peft.PeftModel.from_pretrained(model, ",
        models.from_pretrained, folder)
      raises(("there is no file '%s/none.gguf'"):format(folder), models.from_pretrained,
        folder .. "/none.gguf")
    end)
  end)

  it("names weights of other shapes, and starts them new when asked to", function()
    raises("classifier.weight: the files have [3, 16], the model has [2, 16]",
      models.BertForSequenceClassification.from_pretrained, BERT, { num_labels = 2 })
    local model, info = quietly(models.BertForSequenceClassification.from_pretrained, BERT,
      { num_labels = 2, ignore_mismatched_sizes = true, output_loading_info = true })
    assert.equal(2, #info.mismatched_keys)
    assert.same({}, info.missing_keys)
    assert.is_true(model.classifier.weight:abs():max():item() < 0.2)
    assert.same({ ["0"] = "LABEL_0", ["1"] = "LABEL_1" }, model.config.id2label)
  end)

  it("converts to a type", function()
    local model = models.from_pretrained(GPT2, { dtype = "bfloat16" })
    for _, p in ipairs(model:parameters()) do assert.equal("bfloat16", p.dtype) end
    host.in_folder(function(folder)
      model:save_pretrained(folder)
      assert.equal("bfloat16", models.from_pretrained(folder, { dtype = "auto" }).lm_head.weight.dtype)
      assert.equal("float32", models.from_pretrained(folder).lm_head.weight.dtype)
    end)
  end)

  it("keeps tied weights tied", function()
    local model = models.from_pretrained(GPT2)
    assert.is_true(rawequal(model.lm_head.weight, model.transformer.wte.weight))
    assert.equal(16 * 37, model.lm_head.weight:numel())
  end)

  it("refuses values that would change results", function()
    local function refuses(pattern, folder, changes)
      with_config(folder, changes, function(copy) raises(pattern, models.from_pretrained, copy) end)
    end
    refuses("config.hidden_act must be one of", BERT, { hidden_act = "gelo" })
    refuses("config.position_embedding_type must be one of absolute", BERT,
      { position_embedding_type = "relative_key" })
    refuses("config.is_decoder must be one of false", BERT, { is_decoder = true })
    refuses("config.n_embd must be a multiple of config.n_head, got 16 and 3", GPT2, { n_head = 3 })
    refuses("config.model_type 'mamba'", BERT, { model_type = "mamba", architectures = { "MambaModel" } })
    refuses("config.rope_scaling.rope_type must be one of default, linear, dynamic, yarn, longrope, " ..
      "llama3, got 'su'", LLAMA, { rope_parameters = { rope_type = "su", factor = 2 } })
    local longrope = { rope_type = "longrope", short_factor = { 1, 1 }, long_factor = { 1, 2, 3 } }
    refuses("config.rope_scaling.original_max_position_embeddings", LLAMA, { rope_parameters = longrope })
    longrope.original_max_position_embeddings = 16
    refuses("config.rope_scaling.long_factor must hold 2 numbers, half of head_dim, got 3", LLAMA,
      { rope_parameters = longrope })
    longrope.long_factor = { 1, -2 }
    refuses("config.rope_scaling.long_factor[2]", LLAMA, { rope_parameters = longrope })
    refuses("config.rope_scaling.factor is missing", LLAMA, { rope_parameters = { rope_type = "linear" } })
    refuses("config.partial_rotary_factor must be one of 1", LLAMA, { partial_rotary_factor = 0.5 })
    refuses("config.num_attention_heads must be a multiple of config.num_key_value_heads, got 4 and 3", LLAMA,
      { num_key_value_heads = 3 })
    local QWEN3 = "spec/models/folders/qwen3"
    refuses("config.layer_types[2] must be full_attention or sliding_attention, got 'linear'", QWEN3,
      { layer_types = { "full_attention", "linear" } })
    refuses("config.layer_types must name each of the 2 layers, got 1 names", QWEN3,
      { layer_types = { "full_attention" } })
    refuses("config.sliding_window must be a number, or false for none, got true",
      "spec/models/folders/mistral",
      { sliding_window = true })
    refuses("config.partial_rotary_factor of head_dim must be even and above 0, got 0.4 of 8",
      "spec/models/folders/phi3", { rope_parameters = { partial_rotary_factor = 0.4 } })
    refuses("config.use_bidirectional_attention must be one of false", "spec/models/folders/gemma",
      { use_bidirectional_attention = true })
    with_config(BERT, { model_type = "roberta" }, function(copy)
      raises("holds a model of type 'roberta'", models.BertModel.from_pretrained, copy)
    end)
  end)

  it("says which file is missing or damaged", function()
    host.in_folder(function(folder)
      raises("config.json", models.from_pretrained, folder)
      assert(fs.write(folder .. "/config.json", "{\"model_type\": \"bert\""))
      raises(folder .. "/config.json", models.from_pretrained, folder)
      assert(fs.write(folder .. "/config.json", "{\"model_type\": \"bert\"}"))
      raises(folder .. " has no weights; expected one of model.safetensors", models.from_pretrained, folder)
    end)
    host.in_folder(function(folder)
      assert(os.execute(("cp %s/config.json %s"):format(BERT, folder)))
      -- the beginning of what torch.save wrote before PyTorch 1.6
      assert(fs.write(folder .. "/pytorch_model.bin", "\128\2\138\10l\252\156F\249 j\168P\25.\128\2M\233\3."))
      raises("pytorch_model.bin': the pickle ends inside a value", models.from_pretrained, folder)
    end)
    raises("is a file", models.from_pretrained, BERT .. "/config.json")
    raises("unknown option 'dtipe'", models.from_pretrained, BERT, { dtipe = "float32" })
  end)
end)

describe("weights that are not plain numbers", function()
  it("are refused where config.json describes them, by the key", function()
    for key, value in pairs { quantization_config = { quant_method = "hqq", bits = 4 },
      compression_config = { format = "pack-quantized" }, quantization = { group_size = 64, bits = 4 } } do
      with_config(LLAMA, { [key] = value }, function(copy)
        raises("config." .. key .. " (", models.from_pretrained, copy)
        assert.truthy(models.from_pretrained(copy, { config = { [key] = false } }))
      end)
    end
    with_config(LLAMA, { quantization_config = { quant_method = "hqq", bits = 4 } }, function(copy)
      raises("config.quantization_config (quant_method 'hqq', 4 bits): quantized weights are not read",
        models.LlamaForCausalLM.from_pretrained, copy)
    end)
    with_config(LLAMA, { quantization_config = { quant_method = "gptq", bits = 4 } }, function(copy)
      raises("quantization_config.quant_method is 'gptq', and no linear layer has 'qweight' in the files",
        models.LlamaForCausalLM.from_pretrained, copy)
    end)
    with_config(BERT, { pruned_heads = { ["0"] = { 1 } } }, function(copy)
      raises("config.pruned_heads", models.from_pretrained, copy)
    end)
    with_config(BERT, { pruned_heads = {} }, function(copy) assert.truthy(models.from_pretrained(copy)) end)
  end)

  -- The folder of a model with its weights changed by change(name, t), which returns both.
  local function with_weights(folder, change, fn)
    with_config(folder, {}, function(copy)
      local dict = {}
      for name, t in pairs(models.from_pretrained(folder):state_dict()) do
        local new, value = change(name, t:detach():clone())
        dict[new] = value
      end
      os.execute(("rm -f '%s'/model*"):format(copy))
      weights.save(dict, copy .. "/model.safetensors", true)
      fn(copy)
    end)
  end

  it("are refused by their names and types", function()
    with_weights(LLAMA, function(name, t)
      if name:find "proj" then return name, t:to("uint8") end
      return name, t
    end, function(copy)
      raises("_proj.weight' is uint8, and the model's is float32: quantized weights, which config.json's " ..
        "quantization_config describes", models.from_pretrained, copy)
    end)
    with_weights(LLAMA, function(name, t)
      if name:find "proj" then return (name:gsub("weight$", "qweight")), t:to("int32") end
      return name, t
    end, function(copy) raises("_proj.qweight': quantized weights", models.from_pretrained, copy) end)
    with_weights(LLAMA, function(name, t)
      if name:find "q_proj" then return "base_model." .. name:gsub("weight$", "lora_A.weight"), t end
      return name, t
    end, function(copy) raises("weights of an adapter (LoRA) are not read", models.from_pretrained, copy) end)
  end)

  it("are refused where safetensors has no such type here", function()
    with_config(LLAMA, {}, function(copy)
      os.execute(("rm -f '%s'/model*"):format(copy))
      local header = '{"lm_head.weight":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}'
      assert(fs.write(copy .. "/model.safetensors",
        string.char(#header, 0, 0, 0, 0, 0, 0, 0) .. header .. "abcd"))
      raises("quantization_config", models.from_pretrained, copy)
    end)
  end)

  it("say which prefix to take off, and have the names of the file", function()
    for _, prefix in ipairs { "module.", "_orig_mod.", "module._orig_mod." } do
      for _, class in ipairs { "BertForSequenceClassification", "BertModel" } do
        with_weights(BERT, function(name, t) return prefix .. name, t end, function(copy)
          local model, info, said = quietly(models[class].from_pretrained, copy,
            { output_loading_info = true })
          assert.truthy(said:find(("the names begin with '%s'"):format(prefix), 1, true), said)
          for _, name in ipairs(info.unexpected_keys) do assert.equal(prefix, name:sub(1, #prefix)) end
          local _, _, loaded = quietly(weights.load_checkpoint_in_model, model, copy)
          if class ~= "BertModel" then
            assert.truthy(loaded:find(("the names begin with '%s'"):format(prefix), 1, true), loaded)
          end
        end)
      end
    end
    local _, _, said = quietly(models.BertModel.from_pretrained, BERT)
    assert.is_nil(said:find("begin with", 1, true))
  end)

  it("in other files are named where there are no others", function()
    for name, words in pairs { ["adapter_model.safetensors"] = "is an adapter's",
      ["tf_model.h5"] = "is TensorFlow's", ["consolidated.00.pth"] = "has Mistral's or Meta's own" } do
      with_config(BERT, {}, function(copy)
        os.execute(("rm -f '%s'/model*"):format(copy))
        assert(fs.write(copy .. "/" .. name, ""))
        raises(name .. " " .. words, models.from_pretrained, copy)
      end)
    end
    with_config(BERT, {}, function(copy)
      os.execute(("rm -f '%s'/model*"):format(copy))
      assert(fs.write(copy .. "/m-q4.gguf", ""))
      raises("gguf_file = 'm-q4.gguf' reads the one that is there", models.from_pretrained, copy)
    end)
  end)
end)

describe("models", function()
  it("start as Transformers' do", function()
    core.manual_seed(0)
    local model = models.GPT2LMHeadModel.from_config { n_embd = 64, n_layer = 8, n_head = 4,
      vocab_size = 100 }
    local block = model.transformer.h[3]
    assert.is_near(0.02, block.mlp.c_fc.weight:std():item(), 0.001)
    assert.is_near(0.02 / 4, block.mlp.c_proj.weight:std():item(), 0.0005)
    assert.equal(1, block.ln_1.weight:min():item())
    assert.equal(0, block.attn.c_attn.bias:abs():max():item())
    local bert = models.from_config { model_type = "bert", hidden_size = 32, num_hidden_layers = 1,
      num_attention_heads = 4, intermediate_size = 64, vocab_size = 50 }
    assert.equal(0, bert.embeddings.word_embeddings.weight[1]:abs():max():item())
  end)

  it("have GPT-2's matrices the way its files have them, in every file", function()
    local model = models.from_pretrained(GPT2)
    assert.same({ 16, 48 }, model:state_dict()["transformer.h.0.attn.c_attn.weight"].shape)
    assert.same({ 48, 16 }, model.transformer.h[1].attn.c_attn.weight.shape)
    local before = model:state_dict()["transformer.h.1.attn.c_proj.weight"]:clone()
    host.in_folder(function(folder)
      weights.save_model(model, folder, { max_shard_size = "1GB", safe_serialization = true })
      local twin = models.GPT2LMHeadModel(model.config)
      weights.load_checkpoint_in_model(twin, folder, { strict = true })
      assert.same(before:totable(), twin:state_dict()["transformer.h.1.attn.c_proj.weight"]:totable())
      assert.same(model.transformer.h[2].attn.c_proj.weight:totable(),
        twin.transformer.h[2].attn.c_proj.weight:totable())
    end)
    local twin = models.GPT2LMHeadModel(model.config)
    twin:load_state_dict(model:state_dict())
    assert.same(before:totable(), twin:state_dict()["transformer.h.1.attn.c_proj.weight"]:totable())
  end)

  it("read rotary positions in the present form of config.json and in the older one", function()
    local rotary = require "accelerate.models.rotary"
    local values = { factor = 8, low_freq_factor = 1, high_freq_factor = 4,
      original_max_position_embeddings = 32 }
    local old = { rope_theta = 500, rope_scaling = { rope_type = "llama3" } }
    local new = { rope_parameters = { rope_type = "llama3", rope_theta = 500 } }
    for key, value in pairs(values) do
      old.rope_scaling[key], new.rope_parameters[key] = value, value
    end
    local list = rotary.frequencies("here", old, 16)
    assert.same(list, rotary.frequencies("here", new, 16))
    assert.equal(1, list[1])
    assert.is_near(500 ^ (-14 / 16) / 8, list[8], 1e-12)
    old.rope_scaling.type, old.rope_scaling.rope_type = "linear", nil
    assert.is_near(500 ^ (-2 / 16) / 8, rotary.frequencies("here", old, 16)[2], 1e-12)
  end)

  it("of images have the sizes that their names say, and learn", function()
    assert.equal(11689512, nn.init._skip(models.resnet18):num_parameters())
    assert.equal(25557032, nn.init._skip(models.resnet50):num_parameters())
    local model = models.LeNet { num_labels = 10 }
    assert.equal(61706, model:num_parameters())
    host.in_folder(function(folder)
      model:save_pretrained(folder)
      local x = core.rand(2, 1, 28, 28)
      assert.same(model(x).logits:totable(), models.from_pretrained(folder)(x).logits:totable())
    end)
    raises("pixel_values must be a floating tensor (batch, 1, 28, 28), " ..
      "got a float32 tensor of shape [2, 1, 27, 28]",
      model, core.rand(2, 1, 27, 28))
    core.manual_seed(5)
    local small = models.resnet18 { num_labels = 2, embedding_size = 4, hidden_sizes = { 4, 8, 8, 8 } }
    local optimizer = require("accelerate.optim").SGD(small:parameters(), { lr = 0.1 })
    local x, y = core.randn(16, 3, 32, 32), core.arange(16) % 2
    x = x + (y:float() * 2 - 1):view(16, 1, 1, 1)
    local first, last
    for _ = 1, 15 do
      local loss = small { pixel_values = x, labels = y }.loss
      loss:backward()
      optimizer:step()
      optimizer:zero_grad()
      first, last = first or loss:item(), loss:item()
    end
    assert.is_true(last < 0.5 * first, ("%g to %g"):format(first, last))
  end)

  it("may be called inside scopes, cached tables and keys included", function()
    local tensor = require "accelerate.tensor"
    for _, folder in ipairs { LLAMA, "spec/models/folders/t5" } do
      local model = models.from_pretrained(folder)
      local ids = core.tensor({ { 3, 4, 5 } }, { dtype = "int64" })
      local function tokens() return model:generate(ids, { max_new_tokens = 5 }):totable() end
      local inside = tensor.scope(function() return tensor.scope(tokens) end)
      assert.same(inside, tokens())
    end
  end)

  it("write whole numbers as floats where Python wants floats", function()
    local model = models.from_pretrained "spec/models/folders/t5"
    host.in_folder(function(folder)
      model:save_pretrained(folder)
      local text = assert(fs.read(folder .. "/config.json"))
      assert.truthy(text:find('"initializer_factor": 1.0,', 1, true), text)
      assert.truthy(text:find('"classifier_dropout": 0.0,', 1, true), text) -- no key of ours
      assert.truthy(text:find('"d_model": 16,', 1, true), text)
    end)
  end)

  it("keep a null of config.json where a default would take its place", function()
    local model = models.from_pretrained "spec/models/folders/mistral_classes"
    assert.is_false(model.config.sliding_window)
    assert.equal(4096, models.MistralModel { hidden_size = 16, num_hidden_layers = 1, vocab_size = 2,
      num_attention_heads = 4, num_key_value_heads = 2 }.config.sliding_window)
    host.in_folder(function(folder)
      model:save_pretrained(folder)
      local text = assert(fs.read(folder .. "/config.json"))
      assert.truthy(text:find('"sliding_window": null', 1, true), text)
      assert.is_false(models.from_pretrained(folder).config.sliding_window)
    end)
  end)

  it("with a window have numbers behind right padding, which no real token sees", function()
    local model = models.from_pretrained "spec/models/folders/mistral"
    local ids = core.arange(1, 13):view(1, 12)
    local mask = core.cat({ core.ones(1, 4), core.zeros(1, 8) }, 2):long()
    local padded, short = model(ids, { attention_mask = mask }).logits, model(ids:narrow(2, 1, 4)).logits
    assert.is_true(padded:isfinite():all():item())
    assert.is_true((padded:narrow(2, 1, 4) - short):abs():max():item() < 1e-5)
  end)

  it("with norms stored less 1 start with zeros there, and run in bfloat16", function()
    local config = { hidden_size = 16, num_hidden_layers = 2, vocab_size = 20, num_attention_heads = 4,
      num_key_value_heads = 2, head_dim = 8, intermediate_size = 24 }
    local model = models.Gemma2ForCausalLM(config)
    assert.equal(0, model.model.norm.weight:abs():max():item())
    local ids = core.arange(1, 9):view(1, 8)
    local wide = model(ids).logits
    model:to("bfloat16")
    local narrow = model(ids).logits
    assert.equal("bfloat16", narrow.dtype)
    assert.is_true((narrow:float() - wide):abs():max():item() < 0.05)
  end)

  it("take inputs by position or by name, and name what they do not know", function()
    local model = models.from_pretrained(BERT)
    local ids = core.tensor({ { 3, 4, 5 } }, { dtype = "int64" })
    assert.same(model(ids).logits:totable(), model { input_ids = ids }.logits:totable())
    raises("unknown option 'inputs_ids'", model, { inputs_ids = ids })
    raises("input_ids must be an int64 tensor (batch, length)", model, ids:view(3))
    raises("21 positions are more than config.max_position_embeddings (20)", model,
      core.ones({ 1, 21 }, { dtype = "int64" }))
    local roberta = models.from_pretrained "spec/models/folders/xlm_roberta"
    raises("19 positions are more than config.max_position_embeddings has behind pad_token_id (18)", roberta,
      core.full({ 1, 19 }, 5, { dtype = "int64" }))
    raises("unknown option 'token_type_ids'", models.from_pretrained "spec/models/folders/distilbert_tokens",
      { input_ids = ids, token_type_ids = ids })
    assert.equal(3, #model(ids, { output_hidden_states = true }).hidden_states)
  end)

  it("train with the optimizer and its flat buffers, and dropout", function()
    core.manual_seed(3)
    local accelerate = require "accelerate"
    local accelerator = accelerate.Accelerator { cpu = true }
    local model = models.BertForSequenceClassification { hidden_size = 16, num_hidden_layers = 1,
      num_attention_heads = 2, intermediate_size = 32, vocab_size = 20, num_labels = 2 }
    local optimizer = require("accelerate.optim").AdamW(model:parameters(), { lr = 1e-2 })
    model, optimizer = accelerator:prepare(model, optimizer)
    local ids = core.randint(1, 20, { 32, 6 })
    local batch = { input_ids = ids, labels = ids:select(2, 1) % 2, attention_mask = core.ones_like(ids) }
    local first, last
    for _ = 1, 60 do
      local loss = model(batch).loss
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      first, last = first or loss:item(), loss:item()
    end
    assert.is_true(last < 0.3 * first, ("%g to %g"):format(first, last))
    accelerator:free_memory()
  end)

  it("is empty of values inside nn.init._skip alone", function()
    assert.is_true(nn.init._skip(nn.init._is_skipped))
    assert.is_false(nn.init._is_skipped())
    raises("no", nn.init._skip, function() error("no") end)
    assert.is_false(nn.init._is_skipped())
  end)
end)

describe("a model", function()
  it("has its device and its type as fields", function()
    local model = models.from_pretrained(GPT2)
    assert.equal("cpu", model.device)
    assert.equal("float32", model.dtype)
    assert.equal("bfloat16", model:to("bfloat16").dtype)
    assert.equal("meta", require("accelerate").init_empty_weights(models.from_config, model.config).device)
    assert.equal("float32", models.from_pretrained(BERT).dtype)
  end)

  it("has no configuration that is inside itself", function()
    local circle = {}
    circle.me = circle
    raises("inside itself, cannot be copied", models.from_config,
      { model_type = "llama", vocab_size = 9, rope_scaling = circle })
  end)
end)
