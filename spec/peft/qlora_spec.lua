--- QLoRA: adapters over weights in 4 and 8 bits learn what they learn over float32.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local models = require "accelerate.models"
local optim = require "accelerate.optim"
local peft = require "accelerate.peft"
local quantisation = require "accelerate.quantisation"

local VOCAB, LENGTH, ROWS = 32, 16, 16

-- A batch in which `factor` times a token and one of three numbers give the next token: no model's
-- loss is below log(3).
local function batch(factor)
  local columns = { core.randint(0, VOCAB, { ROWS, 1 }) }
  for t = 2, LENGTH do
    columns[t] = (columns[t - 1] * factor + core.randint(0, 3, { ROWS, 1 })):remainder(VOCAB)
  end
  return core.cat(columns, 2)
end

-- Trains, and returns the mean loss of the last steps.
local function trained(model, factor, steps, rate)
  local params = {}
  for _, p in ipairs(model:parameters()) do
    if p.requires_grad then params[#params + 1] = p end
  end
  local optimizer = optim.AdamW(params, { lr = rate, weight_decay = 0 })
  local sum, last = 0, 10
  core.manual_seed(7)
  for step = 1, steps do
    local ids = batch(factor)
    local loss = model({ input_ids = ids, labels = ids }).loss
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    if step > steps - last then sum = sum + loss:item() end
  end
  return sum / last
end

local function gpt()
  return models.GPT2LMHeadModel { n_layer = 2, n_embd = 64, n_head = 2, vocab_size = VOCAB,
    n_positions = LENGTH, resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 }
end

describe("QLoRA of a small GPT", function()
  local learned, float32
  setup(function()
    core.manual_seed(1)
    local model = gpt()
    trained(model, 3, 150, 5e-3)
    learned = model:state_dict()
  end)

  -- The loss of an adapter of another task, over the model in an encoding; nil: over float32.
  local function adapted(fields)
    core.manual_seed(2)
    local model = gpt()
    model:load_state_dict(learned)
    if fields then
      fields.torch_dtype = "fp32"
      model = quantisation.load_and_quantize_model(model, quantisation.BnbQuantizationConfig(fields))
    end
    core.manual_seed(3)
    local with = peft.get_peft_model(model, peft.LoraConfig { r = 8, lora_alpha = 16,
      target_modules = { "c_attn", "c_fc", "c_proj" } })
    return trained(with, 5, 150, 1e-2)
  end

  local KINDS = {
    nf4 = { load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_compute_dtype = "fp32" },
    ["nf4 with doubled scales"] = { load_in_4bit = true, bnb_4bit_quant_type = "nf4",
      bnb_4bit_compute_dtype = "fp32", bnb_4bit_use_double_quant = true },
    int8 = { load_in_8bit = true },
  }
  for kind, fields in pairs(KINDS) do
    it("is within 1 % of LoRA's loss on float32 weights: " .. kind, function()
      float32 = float32 or adapted()
      local loss = adapted(fields)
      assert.is_true(float32 < 0.75 * math.log(VOCAB), ("LoRA learned nothing: %g"):format(float32))
      assert.is_true(math.abs(loss / float32 - 1) < 0.01, ("%g, on float32 %g"):format(loss, float32))
    end)
  end
end)

describe("an adapter over codes", function()
  local ADAPTERS = { lora = {}, rslora = { use_rslora = true }, dora = { use_dora = true },
    bias = { bias = "all" } }
  for kind, settings in pairs(ADAPTERS) do
    it("computes what it does over their numbers: " .. kind, function()
      for _, doubled in ipairs { false, true } do
        core.manual_seed(4)
        local plain = gpt():eval()
        local encoded = gpt():eval()
        encoded:load_state_dict(plain:state_dict())
        quantisation.load_and_quantize_model(encoded,
          quantisation.BnbQuantizationConfig { load_in_4bit = true,
          bnb_4bit_quant_type = "nf4", bnb_4bit_compute_dtype = "fp32", bnb_4bit_use_double_quant = doubled })
        for path, layer in encoded:named_modules() do
          if class.is(layer, quantisation.EncodedLinear) then
            core.no_grad(function() plain:get_submodule(path).weight:copy_(layer:dequantize()) end)
          end
        end
        local ids, results = core.arange(24):view(2, 12), {}
        for i, model in ipairs { plain, encoded } do
          local all = { r = 4, lora_alpha = 8, init_lora_weights = false,
            target_modules = { "c_attn", "c_fc" } }
          for key, value in pairs(settings) do all[key] = value end
          core.manual_seed(5)
          local with = peft.get_peft_model(model, peft.LoraConfig(all)):eval()
          results[i] = with(ids).logits
        end
        local off = (results[1] - results[2]):abs():max():item()
        assert.is_true(off <= 1e-5 * results[1]:abs():max():item(), ("%s: %g"):format(kind, off))
      end
    end)
  end
end)
