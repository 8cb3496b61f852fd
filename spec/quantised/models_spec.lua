--- Models with weights in 4 and 8 bits: BnbQuantizationConfig, load_and_quantize_model,
--- from_pretrained and save_pretrained.
local accelerate = require "accelerate"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local models = require "accelerate.models"
local nn = require "accelerate.nn"
local quantisation = require "accelerate.quantisation"
local raises = require("spec.support.messages").raises
local utils = accelerate.utils

local function config(fields) return utils.BnbQuantizationConfig(fields) end

-- 4 bits with inputs as they are.
local function four(fields)
  local all = { load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_compute_dtype = "fp32" }
  for key, value in pairs(fields or {}) do all[key] = value end
  return config(all)
end

local function net()
  core.manual_seed(0)
  return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 4))
end

local GPT2 = { vocab_size = 50, n_positions = 32, n_embd = 64, n_layer = 1, n_head = 2 }
local LLAMA = { vocab_size = 50, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 1,
  num_attention_heads = 2, num_key_value_heads = 1 }

local function scores(model)
  return core.no_grad(function() return model(core.arange(8):view(2, 4)).logits end)
end
local function off(a, b) return (a:float() - b:float()):abs():max():item() end

describe("BnbQuantizationConfig", function()
  it("has Accelerate's defaults", function()
    local c = config { load_in_8bit = true }
    assert.are.equal(6, c.llm_int8_threshold)
    assert.are.equal("fp4", c.bnb_4bit_quant_type)
    assert.are.equal("float16", c.bnb_4bit_compute_dtype)
    assert.are.equal("float16", c.torch_dtype)
    assert.are.equal("int8", c.target_dtype)
    assert.is_nil(c.skip_modules)
    assert.are.equal("bfloat16", config({ load_in_4bit = true, bnb_4bit_compute_dtype = "bf16" }).torch_dtype)
    assert.are.equal("int4", config({ load_in_4bit = true }).target_dtype)
  end)
  it("has Transformers' names and defaults as BitsAndBytesConfig", function()
    local c = models.BitsAndBytesConfig { load_in_4bit = true, llm_int8_skip_modules = { "lm_head" } }
    assert.are.equal("float32", c.bnb_4bit_compute_dtype)
    assert.are.same({ "lm_head" }, c.skip_modules)
    raises("BitsAndBytesConfig: quantization_config.bnb_4bit_quant is not known", models.BitsAndBytesConfig,
      { load_in_4bit = true, bnb_4bit_quant = "nf4" })
    local model = models.from_pretrained("spec/models/folders/llama", { quantization_config = c })
    assert.are.equal("fp4", model.model.layers[1].mlp.up_proj.quant_type)
  end)
  it("takes exactly one of 4 and 8 bits", function()
    assert.has_error(function() config {} end,
      "BnbQuantizationConfig: exactly one of load_in_4bit and load_in_8bit must be true, both are false")
    assert.has_error(function() config { load_in_4bit = true, load_in_8bit = true } end,
      "BnbQuantizationConfig: exactly one of load_in_4bit and load_in_8bit must be true, both are true")
  end)
  it("refuses other types", function()
    assert.has_error(function() config { load_in_4bit = true, bnb_4bit_quant_type = "int4" } end)
    assert.has_error(function() config { load_in_4bit = true, torch_dtype = "int8" } end)
    assert.has_error(function() config { load_in_4bit = true, skip_modules = { 1 } } end)
  end)
end)

describe("load_and_quantize_model", function()
  it("keeps the last layer, and casts what it keeps to torch_dtype", function()
    local model = utils.load_and_quantize_model(net(), config { load_in_4bit = true })
    assert.are.equal("Linear4bit", model[1].__name)
    assert.are.equal("Linear4bit", model[3].__name)
    assert.are.equal("Linear", model[5].__name)
    assert.are.equal("float16", model[5].weight.dtype)
    assert.are.equal("float32", model[1].scales.dtype)
    assert.is_true(model.is_loaded_in_4bit)
    assert.is_false(model.is_loaded_in_8bit)
    assert.is_true(utils.has_4bit_bnb_layers(model))
  end)

  it("skips and keeps by name, by path and below a module", function()
    local model = nn.ModuleDict { first = nn.ModuleDict { up = nn.Linear(64, 64), down = nn.Linear(64, 64) },
      second = nn.ModuleDict { up = nn.Linear(64, 64), down = nn.Linear(64, 64) } }
    utils.load_and_quantize_model(model, config { load_in_8bit = true, skip_modules = { "second.up", "down" },
      keep_in_fp32_modules = { "second.up" } })
    assert.are.equal("Linear8bitLt", model.first.up.__name)
    assert.are.equal("Linear", model.second.up.__name)
    assert.are.equal("float32", model.second.up.weight.dtype)
    assert.are.equal("float16", model.second.down.weight.dtype)
    local whole = nn.ModuleDict { first = nn.ModuleDict { up = nn.Linear(64, 64) }, last = nn.Linear(64, 2) }
    utils.load_and_quantize_model(whole, config { load_in_8bit = true, skip_modules = { "first" } })
    assert.are.equal("Linear", whole.first.up.__name)
    assert.are.equal("Linear8bitLt", whole.last.__name)
  end)

  it("keeps scales in float32 whatever a model is converted to", function()
    local model = utils.load_and_quantize_model(net(), four { bnb_4bit_use_double_quant = true })
    local before = model[1]:dequantize()
    model:half()
    assert.are.equal(0, off(before, model[1]:dequantize()))
    assert.are.equal("float16", model[1].bias.dtype)
  end)

  it("computes about what the model did", function()
    local x = core.randn(3, 64)
    local plain = net()(x)
    for bound, fields in pairs { [0.2] = { load_in_4bit = true, bnb_4bit_quant_type = "nf4" },
      [0.02] = { load_in_8bit = true } } do
      fields.torch_dtype = "fp32"
      local model = utils.load_and_quantize_model(net(), config(fields)):eval()
      assert.is_true(off(plain, model(x)) < bound * plain:abs():max():item())
    end
  end)

  it("loads a model without values from plain and from encoded files", function()
    host.in_folder(function(root)
      local plain = net()
      accelerate.Accelerator():save_model(plain, root .. "/plain")
      local encoded = utils.load_and_quantize_model(net(), four())
      accelerate.Accelerator():save_model(encoded, root .. "/encoded")
      local x = core.randn(2, 64)
      for _, folder in ipairs { "/plain", "/encoded" } do
        local empty = accelerate.init_empty_weights(net)
        local model = utils.load_and_quantize_model(empty, four(), { weights_location = root .. folder })
        assert.are.equal(0, off(encoded(x), model(x)))
      end
      assert.has_error(function()
        utils.load_and_quantize_model(accelerate.init_empty_weights(net), four())
      end, "load_and_quantize_model: the model has no values: weights_location must name a file or a " ..
        "folder with them")
    end)
  end)

  it("asks for a folder where a map puts parts of a model with values on disk", function()
    assert.error_matches(function()
      utils.load_and_quantize_model(net(), four(), { device_map = { [""] = "cpu", ["2"] = "disk" } })
    end, "load_and_quantize_model: device_map puts these on disk: 2; give an offload_folder")
  end)

  it("lets adapters and inputs have gradients, and the codes none", function()
    local model = utils.load_and_quantize_model(net(), four())
    local x = core.randn(2, 64)
    x.requires_grad = true
    model(x):sum():backward()
    assert.is_true(x.grad:abs():sum():item() > 0)
    assert.is_nil(model[1].weight.grad)
    assert.is_false(model[1].weight.requires_grad)
  end)
  it("names the codes that cannot be trained, and changes nothing then", function()
    local model = utils.load_and_quantize_model(net(), four())
    model:requires_grad_(false)
    raises("requires_grad_: '0.weight' is uint8", model.requires_grad_, model, true)
    for _, p in ipairs(model:parameters()) do assert.is_false(p.requires_grad) end
  end)
end)

describe("from_pretrained in 4 and 8 bits", function()
  local CASES = { { "GPT2LMHeadModel", GPT2 }, { "LlamaForCausalLM", LLAMA } }
  for _, case in ipairs(CASES) do
    it(("encodes a plain folder, and reads its own encoded one: %s"):format(case[1]), function()
      host.in_folder(function(root)
        core.manual_seed(3)
        models[case[1]](case[2]):eval():save_pretrained(root .. "/plain")
        local configs = { four(), four { bnb_4bit_use_double_quant = true, bnb_4bit_quant_type = "fp4" },
          config { load_in_8bit = true } }
        for i, c in ipairs(configs) do
          local model = models.from_pretrained(root .. "/plain",
            { quantization_config = c, dtype = "float32" })
          assert.is_true(class.is(model:modules()[6], nn.Module))
          local folder = root .. "/encoded" .. i
          model:save_pretrained(folder)
          local written = json.decode(disk.read(folder .. "/config.json"))
          assert.are.equal("bitsandbytes", written.quantization_config.quant_method)
          assert.are.equal("float32", written.torch_dtype)
          local again = models.from_pretrained(folder, { dtype = "float32" })
          assert.are.equal(0, off(scores(model), scores(again)))
          assert.are.equal(model.is_loaded_in_8bit, again.is_loaded_in_8bit)
        end
      end)
    end)
  end

  it("writes int8 as int8", function()
    host.in_folder(function(root)
      local model = utils.load_and_quantize_model(models.GPT2LMHeadModel(GPT2),
        config { load_in_8bit = true })
      model:save_pretrained(root)
      local file = core.safetensors_open(root .. "/model.safetensors")
      assert.are.equal("int8", file:get_dtype "transformer.h.0.attn.c_attn.weight")
      assert.are.equal("float32", file:get_dtype "transformer.h.0.attn.c_attn.SCB")
    end)
  end)

  it("names a quantization_config that is not known", function()
    host.in_folder(function(root)
      models.GPT2LMHeadModel(GPT2):save_pretrained(root)
      local path = root .. "/config.json"
      local written = json.decode(disk.read(path))
      written.quantization_config = { quant_method = "hqq", nbits = 2 }
      disk.write(path, json.encode(written))
      local ok, why = pcall(models.from_pretrained, root)
      assert.is_false(ok)
      assert.matches("config.quantization_config (quant_method 'hqq')", why, 1, true)
    end)
  end)

  it("names the part of a damaged quant state", function()
    local state_of = function() return utils.load_and_quantize_model(net(), four()):state_dict() end
    local function refuses(change, pattern)
      local dict = state_of()
      change(dict)
      local model = utils.load_and_quantize_model(net(), four())
      local ok, why = pcall(model.load_state_dict, model, dict)
      assert.is_false(ok)
      assert.matches(pattern, why, 1, true)
    end
    local key = "0.weight.quant_state.bitsandbytes__nf4"
    refuses(function(d) d[key] = nil end, "0.weight: the state dict has no")
    refuses(function(d) d[key] = core.tensor({ 123, 34 }, { dtype = "uint8" }) end, "0.weight.quant_state")
    refuses(function(d) d["0.weight.absmax"] = core.ones(3) end,
      "0.weight.absmax: expected 128 elements of float32")
    refuses(function(d) d["0.weight.quant_map"] = core.ones(16) end,
      "0.weight.quant_map: the numbers are not those of bitsandbytes' encoding")
    refuses(function(d) d["0.weight"] = d["0.weight"]:narrow(1, 1, 10) end, "0.weight: expected 4096 bytes")
  end)
end)

describe("quantisation", function()
  it("replaces linear layers of scripts", function()
    local layer = nn.Linear(64, 32)
    local four_bits = quantisation.Linear4bit(layer, { quant_type = "nf4" })
    assert.are.equal("Linear4bit(in_features=64, out_features=32, bias=True, encoding=nf4)",
      tostring(four_bits))
  end)
end)
