--- Models with weights in 4 and 8 bits under device maps: on disk, in files and offload folders.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local homes = require "accelerate.big_modeling.homes"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local models, nn, utils = accelerate.models, accelerate.nn, accelerate.utils

local GPT2 = { vocab_size = 50, n_positions = 32, n_embd = 64, n_layer = 2, n_head = 2 }
local LLAMA = { vocab_size = 50, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 3,
  num_attention_heads = 2, num_key_value_heads = 1 }

local KINDS = {
  nf4 = { load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_compute_dtype = "fp32" },
  doubled = { load_in_4bit = true, bnb_4bit_use_double_quant = true, bnb_4bit_compute_dtype = "fp32" },
  int8 = { load_in_8bit = true, torch_dtype = "fp32" },
}
local function config(kind, fields)
  local all = {}
  for key, value in pairs(KINDS[kind]) do all[key] = value end
  for key, value in pairs(fields or {}) do all[key] = value end
  return utils.BnbQuantizationConfig(all)
end

local function scores(model)
  return core.no_grad(function() return model(core.arange(8):view(2, 4)).logits:tolist() end)
end

-- The same scores, also when memory keeps one block alone.
local function same(expected, model)
  homes.tighten(model)
  for _ = 1, 3 do assert.same(expected, scores(model)) end
end

local function net()
  core.manual_seed(0)
  return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 4)):eval()
end
local X = core.ones(3, 64)
local function run(model) return core.no_grad(function() return model(X):tolist() end) end

local function index_of(folder) return json.decode((fs.read(folder .. "/index.json"))) end

describe("from_pretrained { device_map } of encoded weights", function()
  local function in_folder(kind, class, settings, fn)
    host.in_folder(function(root)
      core.manual_seed(3)
      models[class](settings):eval():save_pretrained(root .. "/plain")
      local whole = models.from_pretrained(root .. "/plain",
        { quantization_config = config(kind), dtype = "float32" })
      whole:save_pretrained(root .. "/encoded")
      fn(root, whole, scores(whole))
    end)
  end

  for kind in pairs(KINDS) do
    for class, settings in pairs { GPT2LMHeadModel = GPT2, LlamaForCausalLM = LLAMA } do
      it(("computes the same bits from files with codes: %s in %s"):format(class, kind), function()
        in_folder(kind, class, settings, function(root, whole, expected)
          local bytes = utils.compute_module_sizes(whole)[""]
          for _, map in ipairs { "auto", "balanced", { [""] = "disk" } } do
            local model = models.from_pretrained(root .. "/encoded", { device_map = map, dtype = "float32",
              max_memory = type(map) == "string" and { cpu = math.floor(0.6 * bytes) } or nil })
            local places = {}
            for _, place in pairs(model.hf_device_map) do places[place] = true end
            assert.is_true(places.disk)
            same(expected, model)
            assert.is_true(homes.stats(model).cpu.left > 0)
          end
        end)
      end)
    end
    it("encodes plain files into an offload folder: " .. kind, function()
      in_folder(kind, "LlamaForCausalLM", LLAMA, function(root, _, expected)
        local how = { quantization_config = config(kind), dtype = "float32", device_map = { [""] = "disk" } }
        assert.error_matches(function() models.from_pretrained(root .. "/plain", how) end,
          "device_map puts 'model.layers.0.self_attn.q_proj.weight' on disk, and no file has its codes as " ..
            "they are: give an offload_folder")
        how.offload_folder = root .. "/offload"
        local model = models.from_pretrained(root .. "/plain", how)
        same(expected, model)
        model:save_pretrained(root .. "/again")
        assert.same(expected, scores(models.from_pretrained(root .. "/again", { dtype = "float32" })))
      end)
    end)
  end

  it("takes no memory for codes and scales that rest in the file", function()
    in_folder("nf4", "LlamaForCausalLM", LLAMA, function(root)
      collectgarbage() collectgarbage()
      local before = core.memory_stats("cpu").live_bytes
      local model = models.from_pretrained(root .. "/encoded", { device_map = { [""] = "disk" } })
      collectgarbage() collectgarbage()
      local bytes = utils.compute_module_sizes(model)[""]
      assert.is_true(core.memory_stats("cpu").live_bytes - before < 0.05 * bytes)
      assert.equal(bytes, homes.stats(model).cpu.bytes)
    end)
  end)

  it("names the layer and the file of damaged codes", function()
    in_folder("nf4", "LlamaForCausalLM", LLAMA, function(root, whole)
      local state = whole:state_dict()
      state["model.layers.1.mlp.up_proj.weight.absmax"] = core.ones(3)
      utils.save(state, root .. "/encoded/model.safetensors")
      for _, map in ipairs { false, { [""] = "disk" } } do
        assert.error_matches(function()
          models.from_pretrained(root .. "/encoded", { device_map = map or nil })
        end, "encoded/model.safetensors: layer 'model.layers.1.mlp.up_proj': " ..
          "weight.absmax: expected 96 elements")
      end
    end)
  end)

  it("names a layer whose codes are missing, and parts that no layer knows", function()
    in_folder("int8", "LlamaForCausalLM", LLAMA, function(root, whole)
      local state = whole:state_dict()
      local name = "model.layers.0.mlp.up_proj."
      state[name .. "extra"] = core.ones(3)
      utils.save(state, root .. "/encoded/model.safetensors")
      local _, info = models.from_pretrained(root .. "/encoded", { output_loading_info = true })
      assert.same({ name .. "extra" }, info.unexpected_keys)
      state[name .. "weight"] = nil
      utils.save(state, root .. "/encoded/model.safetensors")
      assert.error_matches(function() models.from_pretrained(root .. "/encoded") end,
        "lacks 'model.layers.0.mlp.up_proj.weight'")
    end)
  end)
end)

describe("load_and_quantize_model { device_map }", function()
  for kind in pairs(KINDS) do
    it("puts parts of an empty model where a map says: " .. kind, function()
      host.in_folder(function(root)
        utils.save(net():state_dict(), root .. "/plain.safetensors")
        local expected = run(utils.load_and_quantize_model(net(), config(kind)))
        local map = { ["0"] = "disk", ["2"] = "cpu", ["4"] = "disk" }
        local model = utils.load_and_quantize_model(accelerate.init_empty_weights(net), config(kind),
          { weights_location = root .. "/plain.safetensors", device_map = map, offload_folder = root ..
          "/off" })
        homes.tighten(model)
        for _ = 1, 2 do assert.same(expected, run(model)) end
        assert.same(map, { ["0"] = model.hf_device_map["0"], ["2"] = model.hf_device_map["2"],
          ["4"] = model.hf_device_map["4"] })
        local index = index_of(root .. "/off")
        assert.equal(kind == "int8" and "int8" or "uint8", index["0.weight"].dtype)
        assert.is_not_nil(index[kind == "int8" and "0.SCB" or "0.weight.absmax"])
        assert.is_nil(index["2.weight"])
        assert.equal(root .. "/plain.safetensors", index["4.weight"].safetensors_file)
      end)
    end)
  end

  it("takes words, with sizes of the encoding", function()
    host.in_folder(function(root)
      utils.save(net():state_dict(), root .. "/plain.safetensors")
      -- 4 bits: 4160 + 6192 bytes; the last layer 1552
      local model = utils.load_and_quantize_model(accelerate.init_empty_weights(net), config "nf4",
        { weights_location = root .. "/plain.safetensors", device_map = "sequential",
          max_memory = { cpu = 4160 + 6192 + 10 }, offload_folder = root .. "/off" })
      assert.same({ "cpu", "disk", "disk" }, { model.hf_device_map["0"], model.hf_device_map["2"],
        model.hf_device_map["4"] })
      assert.same(run(utils.load_and_quantize_model(net(), config "nf4")), run(model))
    end)
  end)

  it("keeps types by name on disk, too", function()
    host.in_folder(function(root)
      utils.save(net():state_dict(), root .. "/plain.safetensors")
      local model = utils.load_and_quantize_model(accelerate.init_empty_weights(net),
        config("nf4", { torch_dtype = "bf16", skip_modules = { "2", "4" }, keep_in_fp32_modules = { "2" } }),
        { weights_location = root .. "/plain.safetensors", device_map = { [""] = "disk" },
          offload_folder = root .. "/off" })
      assert.equal("bfloat16", model[1].bias.dtype)
      assert.equal("float32", model[3].weight.dtype)
      assert.equal("bfloat16", model[5].weight.dtype)
    end)
  end)

  it("says what a checkpoint lacks", function()
    host.in_folder(function(root)
      local state = net():state_dict()
      state["2.weight"] = nil
      utils.save(state, root .. "/plain.safetensors")
      assert.error_matches(function()
        utils.load_and_quantize_model(accelerate.init_empty_weights(net), config "nf4",
          { weights_location = root .. "/plain.safetensors" })
      end, "plain.safetensors lacks weights of the model: 2.weight")
    end)
  end)
end)

describe("dispatch_model of an encoded model", function()
  for kind in pairs(KINDS) do
    it("writes codes and scales to an offload folder, and reads them again: " .. kind, function()
      host.in_folder(function(root)
        local map = { ["0"] = "disk", ["1"] = "cpu", ["2"] = "disk", ["3"] = "cpu", ["4"] = "cpu" }
        local model = utils.load_and_quantize_model(net(), config(kind))
        local expected, numbers = run(model), model[1]:dequantize():tolist()
        accelerate.dispatch_model(model, map, { offload_dir = root })
        homes.tighten(model)
        for _ = 1, 2 do assert.same(expected, run(model)) end
        assert.is_true(fs.is_file(root .. (kind == "int8" and "/2.SCB.dat" or "/2.weight.absmax.dat")))
        assert.equal(64 * 128 / (kind == "int8" and 1 or 2), #fs.read(root .. "/0.weight.dat"))
        accelerate.hooks.remove_hook_from_submodules(model)
        assert.same(expected, run(model))
        -- another model of this shape takes its weights from there
        local other = utils.load_and_quantize_model(net(), config(kind))
        accelerate.dispatch_model(other, map, { offload_dir = root })
        assert.same(numbers, other[1]:dequantize():tolist())
      end)
    end)
  end

  it("loads files with codes into layers that have codes", function()
    host.in_folder(function(root)
      local model = utils.load_and_quantize_model(net(), config "nf4")
      utils.save(model:state_dict(), root .. "/model.safetensors")
      local other = utils.load_and_quantize_model(nn.Sequential(nn.Linear(64, 128), nn.ReLU(),
        nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 4)):eval(), config "nf4")
      accelerate.load_checkpoint_and_dispatch(other, root .. "/model.safetensors",
        { device_map = { [""] = "disk" } })
      assert.same(run(model), run(other))
    end)
  end)
end)
