-- Saving and loading a state of 500 MB (42 million parameters with AdamW's states); one line of
-- JSON.  The same work as peer/checkpoint.py.
--
--   accel-run bench/checkpoint.lua [ROUNDS=3] [MILLIONS=42]
--
-- save_state_ms, load_state_ms: the Accelerator's.  save_ms, load_ms: utils.save and utils.load of
-- the same tensors in PyTorch's format.  copy_ms: cp and sync of the checkpoint's bytes.  read_ms:
-- reading them once.  stop_ms: for how long an asynchronous save_state holds the training up: the
-- call, and what the optimizer step after it takes longer.  Files are in the page cache when they
-- are read, and on the disk when a save ends.
local accelerate = require "accelerate"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")
local fs = require "accelerate.utils.fs"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local rounds, millions = tonumber(arg[1]) or 3, tonumber(arg[2]) or 42
local width = math.floor(millions * 1e6 / 4096)
local folder = os.tmpname()
os.remove(folder)
assert(fs.make_dirs(folder))

local accelerator = accelerate.Accelerator { cpu = true }
local model = nn.Sequential(nn.Linear(2048, width, { bias = false }),
  nn.Linear(width, 2048, { bias = false }))
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-4 })
model, optimizer = accelerator:prepare(model, optimizer)
local input = tensor.randn(256, 2048)

local function ms(fn)
  local began = common.now()
  fn()
  return (common.now() - began) * 1e3
end

-- A training step; returns how long the optimizer's part took.
local function step()
  accelerator:backward(model(input):square():mean())
  local took = ms(function() optimizer:step() end)
  optimizer:zero_grad()
  return took
end

local function shell(command)
  return ms(function() assert(os.execute(command:gsub("FOLDER", folder)), command) end)
end

step()
local taken = {}
local function note(name, value)
  taken[name] = taken[name] or {}
  table.insert(taken[name], value)
end

for round = 0, rounds do
  local values = {}
  fs.remove_tree(folder .. "/state")
  values.save_state_ms = ms(function() accelerator:save_state(folder .. "/state") end)
  values.load_state_ms = ms(function() accelerator:load_state(folder .. "/state") end)
  local usual = step()
  fs.remove_tree(folder .. "/state")
  values.stop_ms = ms(function() accelerator:save_state(folder .. "/state", { async = true }) end)
  values.stop_ms = values.stop_ms + math.max(0, step() - usual)
  accelerator:wait_for_checkpoint()
  values.copy_ms = shell "cp -r FOLDER/state FOLDER/copy && sync FOLDER/copy/*"
  values.read_ms = shell "cat FOLDER/state/* >/dev/null"
  shell "rm -r FOLDER/copy"
  local state = { model = model:state_dict(), optimizer = optimizer:state_dict() }
  fs.remove_tree(folder .. "/state.pt")
  values.save_ms = ms(function() utils.save(state, folder .. "/state.pt") end)
  values.load_ms = ms(function() utils.load(folder .. "/state.pt") end)
  for name, value in pairs(values) do
    if round > 0 then note(name, value) end -- the first one makes the memory that later ones use
  end
end
fs.remove_tree(folder)
for name, values in pairs(taken) do taken[name] = common.median(values) end
taken.stop_share = taken.stop_ms / taken.save_state_ms
common.emit(taken)
