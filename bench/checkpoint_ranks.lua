-- Saving and loading a state of 500 MB (42 million parameters with AdamW's states) that is cut over
-- the ranks; one line of JSON from rank 0.  Run it with one and with two ranks, in turns: the bytes
-- are the same, and two ranks should not take longer.
--
--   accel-run --num_processes 2 bench/checkpoint_ranks.lua [ROUNDS=3] [MILLIONS=42]
--
-- save_state_ms, load_state_ms: from when all ranks begin until all have ended; medians.
local accelerate = require "accelerate"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")
local fs = require "accelerate.utils.fs"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local rounds, millions = tonumber(arg[1]) or 3, tonumber(arg[2]) or 42
local width = math.floor(millions * 1e6 / 4096)
local accelerator = accelerate.Accelerator { cpu = true,
  fsdp_plugin = { auto_wrap_policy = "NO_WRAP", state_dict_type = "SHARDED_STATE_DICT" } }
local folder = { os.tmpname() }
os.remove(folder[1])
folder = utils.broadcast_object_list(folder)[1]

local model = nn.Sequential(nn.Linear(2048, width, { bias = false }),
  nn.Linear(width, 2048, { bias = false }))
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-4 })
model, optimizer = accelerator:prepare(model, optimizer)
accelerator:backward(model(tensor.randn(32, 2048)):square():mean())
optimizer:step()
optimizer:zero_grad()

local function ms(fn)
  accelerator:wait_for_everyone()
  local began = common.now()
  fn()
  accelerator:wait_for_everyone()
  return (common.now() - began) * 1e3
end

local saved, loaded = {}, {}
for round = 0, rounds do -- the first one makes the pages of the files
  if accelerator.is_main_process then fs.remove_tree(folder) end
  local save = ms(function() accelerator:save_state(folder) end)
  local load = ms(function() accelerator:load_state(folder) end)
  if round > 0 then saved[round], loaded[round] = save, load end
end
accelerator:wait_for_everyone()
if accelerator.is_main_process then fs.remove_tree(folder) end

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end
accelerator:print(utils.json.encode { ranks = accelerator.num_processes, save_state_ms = median(saved),
  load_state_ms = median(loaded) })
