--- Folders with GPTQ's, AWQ's and fp8 weights (spec/reference/packed/generate.py): the numbers of
--- the formats' formulas, the scores of the model with them, and the way back into files.
local adapters = require "spec.support.adapters"
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local models = require "accelerate.models"
local peft = require "accelerate.peft"

local ROOT = "spec/reference/packed/"
local FOLDERS = { "gptq", "gptq_act", "gptq_v2", "gptq_8", "awq", "fp8_blocks", "fp8_rows", "fp8_tensor" }

local function read(name, opts) return (models.from_pretrained(ROOT .. name, opts)) end
local function scores(model, ids) return core.no_grad(function() return model(ids).logits end) end
local function off(a, b) return (a:float() - b:float()):abs():max():item() end
local function same(a, b)
  assert.are.same(a.shape, b.shape)
  assert.are.equal(a.dtype, b.dtype)
  assert.are.equal(0, a:ne(b):sum():item())
end

local function layer_of(model, name) return model:get_submodule((name:gsub("%.weight$", ""))) end

local function refuses(text, fn)
  local ok, message = pcall(fn)
  assert.is_false(ok)
  assert.is_truthy(tostring(message):find(text, 1, true), message)
end

-- A copy of a folder, with changes in its quantization_config and its tensors.
local function changed(name, change, edit, fn)
  local folder = os.tmpname()
  os.remove(folder)
  assert(fs.make_dirs(folder))
  local config = json.decode((assert(fs.read(ROOT .. name .. "/config.json"))))
  if change then change(config.quantization_config) end
  disk.write(folder .. "/config.json", json.encode(config))
  local list = {}
  local file = core.safetensors_open(ROOT .. name .. "/model.safetensors")
  for _, key in ipairs(file:keys()) do
    local t = file:get_tensor(key)
    if edit then t = edit(key, t) end
    if t then list[#list + 1] = { key, t } end
  end
  core.safetensors_save(folder .. "/model.safetensors", list, { format = "pt" })
  local ok, why = pcall(fn, folder)
  fs.remove_tree(folder)
  if not ok then error(why, 0) end
end

for _, name in ipairs(FOLDERS) do
  local expected = core.safetensors_load(ROOT .. name .. "/expected.safetensors")
  local values = {}
  for _, item in ipairs(expected) do values[item[1]] = item[2] end
  local ids = values.ids

  describe("weights of " .. name, function()
    it("are those of the formulas, bit for bit", function()
      local model, seen = read(name), 0
      for key, t in pairs(values) do
        if key:find "weight$" then
          same(t, layer_of(model, key):dequantize "float16")
          seen = seen + 1
        end
      end
      assert.are.equal(2, seen)
    end)

    it("give the scores of the same numbers, in batches and one by one", function()
      local model = read(name)
      local most = values.logits:abs():max():item()
      assert.is_true(off(values.logits, scores(model, ids)) < 1e-5 * most)
      assert.is_true(off(values.logits:narrow(2, 1, 1), scores(model, ids:narrow(2, 1, 1))) < 1e-5 * most)
    end)

    it("become plain ones", function()
      local model = read(name, { dequantize = true })
      assert.are.equal("Linear", model.model.layers[1].mlp.up_proj.__name)
      assert.is_nil(model.config.quantization_config)
      assert.is_true(off(values.logits, scores(model, ids)) < 1e-5 * values.logits:abs():max():item())
    end)

    it("are written back as they were", function()
      local folder = os.tmpname()
      os.remove(folder)
      read(name, { dtype = "float16" }):save_pretrained(folder)
      local old, new = core.safetensors_open(ROOT .. name .. "/model.safetensors"),
        core.safetensors_open(folder .. "/model.safetensors")
      for _, key in ipairs(old:keys()) do
        assert.are.equal(old:get_dtype(key), new:get_dtype(key))
        same(old:_lend(key, true), new:_lend(key, true))
      end
      assert.are.equal(#old:keys(), #new:keys())
      local before = json.decode((assert(fs.read(ROOT .. name .. "/config.json"))))
      local after = json.decode((assert(fs.read(folder .. "/config.json"))))
      assert.are.same(before.quantization_config, after.quantization_config)
      assert.are.equal(0, off(scores(read(name), ids), scores((models.from_pretrained(folder)), ids)))
      fs.remove_tree(folder)
    end)

    it("go through state dicts, and take no plain numbers", function()
      local one, other = read(name), read(name)
      local layer = other.model.layers[1].self_attn.q_proj
      core.no_grad(function() layer.scales:fill_(1) end)
      other:load_state_dict(one:state_dict())
      assert.are.equal(0, off(scores(one, ids), scores(other, ids)))
      local plain = read(name, { dequantize = true })
      refuses("makes it a plain layer", function() other:load_state_dict(plain:state_dict()) end)
    end)

    it("let adapters train", function()
      local model, first, last = adapters.train(read(name), ids)
      assert.is_true(last < first - 0.3)
      refuses("makes it a plain layer", function() model:merge_and_unload() end)
    end)

    it("take adapters in once they are plain", function()
      core.manual_seed(0)
      local base = read(name)
      local model = peft.get_peft_model(base,
        peft.LoraConfig { r = 4, target_modules = { "q_proj", "down_proj" },
        init_lora_weights = false }):eval()
      local before = scores(model, ids)
      base:dequantize()
      local merged = model:merge_and_unload()
      assert.is_true(off(before, scores(merged, ids)) < 1e-5 * before:abs():max():item())
      assert.is_true(off(before, values.logits) > 1e-2)
    end)

    it("have the gradient of the product with the plain weight", function()
      local layer = read(name).model.layers[1].mlp.down_proj
      local x = core.randn(3, 96)
      x.requires_grad = true
      layer(x):sum():backward()
      assert.is_true(off(x.grad, layer:dequantize():sum({ dim = 1 }):expand { 3, 96 }) < 1e-5)
    end)

    it("follow a device map", function()
      local folder = os.tmpname()
      os.remove(folder)
      local model = read(name, { device_map = { [""] = "disk" }, offload_folder = folder })
      assert.are.equal(0, off(scores(read(name), ids), scores(model, ids)))
      fs.remove_tree(folder)
    end)
  end)
end

local function with(key, value) return function(q) q[key] = value end end
local function weights(key, value) return function(q) q.config_groups.group_0.weights[key] = value end end

local REFUSED = {
  { "gptq", "3 bits", with("bits", 3), "quantization_config.bits must be 4 or 8, got 3" },
  { "gptq", "no bits", with("bits", nil), "quantization_config.bits must be 4 or 8, got nil" },
  { "gptq", "groups of 48", with("group_size", 48),
    "group_size must be -1 or a power of two from 32 on, got 48" },
  { "gptq", "Marlin's layout", with("checkpoint_format", "marlin"),
    "checkpoint_format must be 'gptq' or 'gptq_v2', got 'marlin'" },
  { "gptq", "bits of single layers", with("dynamic", { ["+:.*q_proj"] = { bits = 8 } }),
    "quantization_config.dynamic: bits of single layers are not read" },
  { "gptq", "a key that is not known", with("spin", true), "quantization_config.spin is not known" },
  { "awq", "another layout", with("version", "GEMV"),
    "quantization_config.version must be 'gemm', got 'gemv'" },
  { "awq", "3 bits", with("bits", 3), "quantization_config.bits must be 4, got 3" },
  { "fp8_blocks", "static inputs", with("activation_scheme", "static"),
    "quantization_config.activation_scheme must be 'dynamic', got 'static'" },
  { "fp8_blocks", "blocks that are no squares", with("weight_block_size", { 32, 64 }),
    "quantization_config.weight_block_size: square blocks are read" },
  { "fp8_rows", "integers", weights("type", "int"),
    "weights: quantization_config.type must be 'float', got 'int'" },
  { "fp8_rows", "groups", weights("strategy", "group"), "quantization_config.strategy must be" },
  { "fp8_rows", "cached keys", with("kv_cache_scheme", { num_bits = 8 }),
    "quantization_config.kv_cache_scheme: scales of cached keys and values are not read" },
  { "fp8_rows", "static inputs", function(q) q.config_groups.group_0.input_activations.dynamic = false end,
    "input_activations: quantization_config.dynamic must be true, got false" },
  { "fp8_rows", "another format", with("format", "pack-quantized"), "quantization_config.format must be" },
  { "gptq", "another method", with("quant_method", "aqlm"), "quant_method 'aqlm'" },
}

describe("a quantization_config is refused by name:", function()
  for _, case in ipairs(REFUSED) do
    it(("%s with %s"):format(case[1], case[2]), function()
      changed(case[1], case[3], nil, function(folder)
        refuses(case[4], function() models.from_pretrained(folder) end)
      end)
    end)
  end
end)

local Q = "model.layers.0.self_attn.q_proj."
local DAMAGED = {
  { "gptq", "qzeros", nil, "the state dict has no 'qzeros'" },
  { "gptq", "qweight", function(t) return t:narrow(1, 1, 4):contiguous() end,
    "qweight: expected int32 [8, 64], got" },
  { "gptq", "scales", function(t) return t:t():contiguous() end, "scales: expected float [2, 64], got" },
  { "gptq", "qzeros", function(t) return t:long() end, "qzeros: expected int32 [2, 8], got int64" },
  { "gptq_act", "g_idx", function(t) return t:fill_(0) end,
    "groups of other inputs than 32 each are not read" },
  { "gptq_act", "g_idx", function(t) return t - 2 ^ 31 end,
    "groups of other inputs than 32 each are not read" },
  { "awq", "scales", nil, "the state dict has no 'scales'" },
  { "fp8_blocks", "weight_scale_inv", function(t) return t:narrow(1, 1, 1):contiguous() end,
    "weight_scale_inv: expected 4 scales, got" },
  { "fp8_rows", "weight", function(t) return t:narrow(1, 1, 32):contiguous() end,
    "weight: expected float8_e4m3fn [64, 64], got" },
}

describe("damaged parts are refused by file and layer:", function()
  for _, case in ipairs(DAMAGED) do
    it(("%s of %s: %s"):format(case[2], case[1], case[4]), function()
      changed(case[1], nil, function(key, t)
        if key == Q .. case[2] then return case[3] and case[3](t) or nil end
        return t
      end, function(folder)
        refuses(case[4], function() models.from_pretrained(folder) end)
        refuses("q_proj", function() models.from_pretrained(folder) end)
        refuses("model.safetensors", function() models.from_pretrained(folder) end)
      end)
    end)
  end
end)

