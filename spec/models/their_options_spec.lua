-- What scripts for Transformers pass to from_pretrained, save_pretrained and configurations.
local core = require "accelerate.core"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local messages = require "spec.support.messages"
local models = require "accelerate.models"
local utils = require "accelerate.utils"

local SMALL = { vocab_size = 20, hidden_size = 16, intermediate_size = 16, num_hidden_layers = 2,
  num_attention_heads = 2, num_key_value_heads = 2 }

local function in_llama_folder(fn)
  host.in_folder(function(folder)
    local model = models.LlamaForCausalLM(SMALL)
    model:save_pretrained(folder)
    fn(folder, model)
  end)
end

local function load(folder, opts) return models.AutoModelForCausalLM.from_pretrained(folder, opts) end

describe("from_pretrained", function()
  it("takes torch_dtype for dtype", function()
    in_llama_folder(function(folder)
      assert.are.equal("bfloat16", load(folder, { torch_dtype = "bfloat16" }).dtype)
      messages.raises("torch_dtype is an older name of dtype", load, folder,
        { torch_dtype = "float32", dtype = "float32" })
    end)
  end)

  it("takes options that change nothing, and says so of an attention by name", function()
    in_llama_folder(function(folder)
      assert.are.equal("", messages.said(load, folder, { low_cpu_mem_usage = true, local_files_only = true,
        trust_remote_code = false, attn_implementation = "sdpa", use_cache = false }))
      messages.has(messages.said(load, folder, { attn_implementation = "flash_attention_2" }),
        "attn_implementation = 'flash_attention_2' has no effect")
    end)
  end)

  local refused = {
    { { trust_remote_code = true }, "code of a repository is not run" },
    { { load_in_4bit = true }, "BnbQuantizationConfig { load_in_4bit = true }" },
    { { load_in_8bit = true }, "BnbQuantizationConfig { load_in_8bit = true }" },
    { { attn_implementation = "fast" }, "attn_implementation = 'fast': expected eager, sdpa" },
    { { low_cpu_mem_usage = 1 }, "low_cpu_mem_usage must be true or false, got 1" },
    { { device_mapp = "auto" }, "unknown option 'device_mapp'; did you mean 'device_map'?" },
    { { hidden_act = "fast" }, "config.hidden_act must be one of" },
  }
  for _, case in ipairs(refused) do
    it("refuses " .. next(case[1]) .. " = " .. tostring(select(2, next(case[1]))), function()
      in_llama_folder(function(folder)
        messages.raises(case[2], load, folder, case[1])
      end)
    end)
  end

  it("takes keys of the configuration", function()
    in_llama_folder(function(folder)
      assert.are.equal(0.25, load(folder, { rms_norm_eps = 0.25 }).config.rms_norm_eps)
    end)
  end)
end)

describe("configurations", function()
  it("of a folder have the architecture's defaults and make models", function()
    in_llama_folder(function(folder, model)
      local config = models.AutoConfig.from_pretrained(folder, { num_hidden_layers = 1 })
      assert.are.same({ 20, 1, 1e-6, "llama" },
        { config.vocab_size, config.num_hidden_layers, config.rms_norm_eps, config.model_type })
      local made = models.AutoModelForCausalLM.from_config(config)
      assert.are.equal("LlamaForCausalLM", made.__name)
      assert.is_true(made:num_parameters() < model:num_parameters())
    end)
  end)

  it("by an architecture's name are checked", function()
    local config = models.LlamaConfig(SMALL)
    assert.are.equal(1e-6, config.rms_norm_eps)
    assert.are.equal(20, models.LlamaForCausalLM(config).config.vocab_size)
    assert.are.equal("LlamaForCausalLM", models.AutoModelForCausalLM.from_config(config).__name)
    messages.raises("LlamaConfig: config.hidden_act must be one of", models.LlamaConfig,
      { hidden_act = "fast" })
  end)

  it("of a folder that is not there name it", function()
    messages.raises("AutoConfig.from_pretrained: 'no/such/folder' is no folder",
      models.AutoConfig.from_pretrained, "no/such/folder")
  end)
end)

describe("save_pretrained", function()
  it("writes on a rank that is_main_process names, and on no other", function()
    host.in_folder(function(folder)
      local model = models.LlamaForCausalLM(SMALL)
      model:save_pretrained(folder .. "/no", { is_main_process = false })
      assert.is_false(fs.exists(folder .. "/no"))
      model:save_pretrained(folder .. "/yes", { is_main_process = true })
      assert.is_true(fs.exists(folder .. "/yes/model.safetensors"))
    end)
  end)

  it("writes the weights of state_dict", function()
    host.in_folder(function(folder)
      local model = models.LlamaForCausalLM(SMALL)
      local dict = model:state_dict()
      dict["lm_head.weight"] = core.full({ 20, 16 }, 7)
      model:save_pretrained(folder, { state_dict = dict })
      assert.are.equal(7, load(folder).lm_head.weight:min():item())
      messages.raises("'x' must be a tensor, got 1", model.save_pretrained, model, folder,
        { state_dict = { x = 1 } })
    end)
  end)

  it("calls save_function for files of PyTorch's format", function()
    host.in_folder(function(folder)
      local model, paths = models.LlamaForCausalLM(SMALL), {}
      model:save_pretrained(folder, { safe_serialization = false, save_function = function(dict, path)
        paths[#paths + 1] = path
        utils.save(dict, path)
      end })
      assert.are.same({ folder .. "/pytorch_model.bin" }, paths)
      assert.is_truthy(files.load(paths[1])["lm_head.weight"])
    end)
  end)
end)
