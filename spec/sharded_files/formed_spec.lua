-- Weights that state dicts have in another form than memory: GPT-2's are transposed. Sharded runs
-- save and load them as replicas do (lua/accelerate/checkpoint/sharded.lua, resharded.lua).
local host = require "spec.support.host"
local fs = require "accelerate.utils.fs"

local PROGRAM = [[
local accelerate = require "accelerate"
local models, tensor = accelerate.models, accelerate.tensor
local what, kind = arg[1], arg[2]
tensor.manual_seed(what == "save" and 3 or 4)
local a = accelerate.Accelerator { fsdp_plugin = kind ~= "none" and {
  state_dict_type = kind, auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } or nil }
local model = models.GPT2LMHeadModel {
  vocab_size = 50, n_positions = 16, n_embd = 32, n_layer = 2, n_head = 2,
  resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 }
local optimizer
model, optimizer = a:prepare(model, accelerate.optim.AdamW(model:parameters(), { lr = 1e-2 }))
tensor.manual_seed(5)
local ids = tensor.randint(0, 50, { 2, 16 })
local function step()
  local loss = model(ids, { labels = ids }).loss
  a:backward(loss)
  optimizer:step()
  optimizer:zero_grad()
  return loss:item()
end
if what == "save" then
  step() step()
  a:save_state "state"
else
  a:load_state "state"
end
a:print(("next %.5f"):format(step()))
]]

describe("a sharded GPT-2", function()
  for _, kind in ipairs { "FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT" } do
    it("goes on from its " .. kind .. ", on as many ranks and on others", function()
      host.in_folder(function(folder)
        assert(fs.write(folder .. "/x.lua", PROGRAM))
        local function run(ranks, what)
          local status, out, err = host.run({ "--num_processes", tostring(ranks), "x.lua", what, kind },
            { folder = folder })
          assert(status == 0, err)
          return (out:match "next [%d.]+")
        end
        local saved = run(2, "save")
        for _, ranks in ipairs { 2, 1, 3 } do assert.are.equal(saved, run(ranks, "load"), ranks) end
      end)
    end)
  end
end)
