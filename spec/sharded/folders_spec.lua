-- Folders that models write whose values are cut over ranks, as scripts for Transformers and PEFT
-- do it: save_pretrained with is_main_process and state_dict.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local models = require "accelerate.models"
local peft = require "accelerate.peft"
local ranks = require "spec.support.ranks"

local CONFIG = "{ vocab_size = 32, n_positions = 8, n_embd = 16, n_layer = 2, n_head = 2 }"

local SAVED = [[
local models, optim, tensor = accelerate.models, accelerate.optim, accelerate.tensor
local peft = require "accelerate.peft"
local folder, adapters = arg[1], arg[2] == "adapters"
local a = accelerate.Accelerator { fsdp_plugin = { auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } }
accelerate.utils.set_seed(5)
local model = models.GPT2LMHeadModel ]] .. CONFIG .. [[

if adapters then model = peft.get_peft_model(model, peft.LoraConfig { r = 2 }) end
local optimizer
model, optimizer = a:prepare(model, optim.AdamW(model:parameters(), { lr = 0.1 }))
local ids = tensor.arange(0, 8):reshape(1, 8):long()
a:backward(model(ids, { labels = ids }).loss)
optimizer:step()
a:unwrap_model(model):save_pretrained(folder, { is_main_process = a.is_main_process,
  state_dict = a:get_state_dict(model) })
local loss = model:eval()(ids, { labels = ids }).loss:item()
if a.is_main_process then accelerate.utils.save({ loss = loss }, folder .. "/loss.bin") end
]]

local function loss_of(model)
  local ids = require("accelerate.core").arange(0, 8):reshape(1, 8):long()
  return model:eval()(ids, { labels = ids }).loss:item()
end

-- Whether values are one mapping on the machine, or are gathered.
for _, shared in ipairs { "1", "0" } do
  local launch = { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = shared } }
  describe(("save_pretrained with ACCEL_SHARED_PARAMETERS=%s"):format(shared), function()
    it("writes a model whole", function()
      host.in_folder(function(folder)
        launch.arguments = { folder, "model" }
        ranks.ok(2, SAVED, launch)
        local expected = require("accelerate.utils").load(folder .. "/loss.bin").loss
        assert.is_near(expected, loss_of(models.from_pretrained(folder)), 1e-5)
      end)
    end)

    it("writes adapters whole", function()
      host.in_folder(function(folder)
        launch.arguments = { folder, "adapters" }
        ranks.ok(2, SAVED, launch)
        assert.is_false(fs.exists(folder .. "/model.safetensors"))
        local expected = require("accelerate.utils").load(folder .. "/loss.bin").loss
        require("accelerate.utils").set_seed(5)
        local base = models.GPT2LMHeadModel { vocab_size = 32, n_positions = 8, n_embd = 16, n_layer = 2,
          n_head = 2 }
        assert.is_near(expected, loss_of(peft.PeftModel.from_pretrained(base, folder)), 1e-5)
      end)
    end)
  end)
end
