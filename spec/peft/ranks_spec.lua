--- Adapters on several ranks: they train as in one process, and are saved of a model that is cut.
local core = require "accelerate.core"
local host = require "spec.support.host"
local models = require "accelerate.models"
local peft = require "accelerate.peft"

local SCRIPT = [[
local accelerate = require "accelerate"
local peft, optim = require "accelerate.peft", require "accelerate.optim"
local core, models, nn, utils = require "accelerate.core", accelerate.models, accelerate.nn, accelerate.utils
local folder, how, codes = arg[1], arg[2], arg[3] == "nf4"
local plugin = how == "sharded" and utils.FullyShardedDataParallelPlugin { fsdp_version = 2 } or nil
local accelerator = accelerate.Accelerator { fsdp_plugin = plugin }
local base = models.from_pretrained(folder .. "/base", { quantization_config = codes and
  utils.BnbQuantizationConfig { load_in_4bit = true, bnb_4bit_quant_type = "nf4",
  bnb_4bit_compute_dtype = "fp32" } or nil })
core.manual_seed(1)
local model = peft.get_peft_model(base, peft.LoraConfig { r = 4, target_modules = { "c_attn", "c_fc" },
  use_dora = true, modules_to_save = { "ln_f" } })
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
model, optimizer = accelerator:prepare(model, optimizer)
local rows = 4 / accelerator.num_processes
local ids = core.arange(32):view(4, 8):narrow(1, 1 + accelerator.process_index * rows, rows)
for _ = 1, 4 do
  accelerator:backward(model { input_ids = ids, labels = ids }.loss)
  accelerator:clip_grad_norm_(model:parameters(), 0.5)
  optimizer:step()
  optimizer:zero_grad()
end
model:save_pretrained(folder .. "/adapter")
]]

local function scores(model)
  return core.no_grad(function() return model(core.arange(8):view(2, 4)).logits end)
end

-- Trains, and returns the scores of the adapter that was saved over the plain model.
local function trained(folder, ranks, how, weights, env)
  local script = host.plain_path()
  local f = assert(io.open(script, "w"))
  f:write(SCRIPT)
  f:close()
  local status, out, err = host.run({ "--cpu", "--num_processes", ranks, script, folder, how, weights },
    { env = env, seconds = 60 })
  os.remove(script)
  assert.are.equal(0, status, out .. err)
  return scores(peft.PeftModel.from_pretrained(models.from_pretrained(folder .. "/base"), folder ..
    "/adapter"))
end

local function base()
  core.manual_seed(0)
  return models.GPT2LMHeadModel { vocab_size = 40, n_positions = 16, n_embd = 64, n_layer = 2, n_head = 2,
    bos_token_id = 0, eos_token_id = 0, resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 }
end

describe("adapters on two ranks", function()
  for _, weights in ipairs { "float32", "nf4" } do
    it("train as in one process, and are saved of parts, over " .. weights, function()
      host.in_folder(function(folder)
        base():save_pretrained(folder .. "/base")
        local alone = trained(folder, 1, "replicated", weights)
        assert.is_true((alone - scores(base())):abs():max():item() > 0.1)
        for _, case in ipairs { { "replicated" }, { "sharded" },
          { "sharded", ACCEL_SHARED_PARAMETERS = "0" } } do
          local env = { ACCEL_SHARED_PARAMETERS = case[2] }
          local off = (trained(folder, 2, case[1], weights, env) - alone):abs():max():item()
          assert.is_true(off < 2e-4, ("%s %s: %g"):format(case[1], case[2], off))
        end
      end)
    end)
  end
end)

describe("save_pretrained", function()
  it("writes a model that is cut, from all ranks", function()
    host.in_folder(function(folder)
      base():save_pretrained(folder .. "/base")
      local script = folder .. "/save.lua"
      local f = assert(io.open(script, "w"))
      f:write [[
        local accelerate = require "accelerate"
        local accelerator = accelerate.Accelerator {
          fsdp_plugin = accelerate.utils.FullyShardedDataParallelPlugin { fsdp_version = 2 } }
        local model = accelerator:prepare(accelerate.models.from_pretrained(arg[1] .. "/base"))
        model:save_pretrained(arg[1] .. "/again")
        model:save_pretrained(arg[1] .. "/main", { is_main_process = accelerator.is_main_process })
      ]]
      f:close()
      local status, out, err = host.run({ "--cpu", "--num_processes", 2, script, folder },
        { env = { ACCEL_SHARED_PARAMETERS = "0" }, seconds = 60 })
      assert.are.equal(0, status, out .. err)
      for _, name in ipairs { "again", "main" } do
        assert.same(scores(base()):tolist(), scores(models.from_pretrained(folder .. "/" .. name)):tolist())
      end
    end)
  end)
end)
