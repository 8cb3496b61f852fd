-- Checkpoints: the run saves its whole state, forgets what it learned since, and goes on from the
-- checkpoint with the same bits.
--
--   accel-run examples/by_feature/checkpointing.lua
--   accel-run --num_processes 2 examples/by_feature/checkpointing.lua --project_dir out
--
-- A run that was killed is started again with `--project_dir out --resume true`.  Learns which
-- quarter of the plane a noisy point came from; the loss falls from about 1.4 to below 0.5, and the
-- last line says `resumed run and first run end alike`.  Options, with their defaults:
--   --max_steps 120  --batch_size 32 (of each process)  --lr 2e-2  --resume false
--   --project_dir FOLDER (a folder that is removed at the end)
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("checkpointing.lua", arg, {
  max_steps = { "integer", default = 120, min = 4 }, batch_size = { "integer", default = 32, min = 1 },
  lr = { "number", default = 2e-2, above = 0 }, project_dir = { "string", optional = true },
  resume = { "boolean", default = false },
})
utils.set_seed(0)
if options.resume and not options.project_dir then
  error("checkpointing.lua: --resume needs --project_dir, the folder of the run to go on with", 0)
end

local folder = options.project_dir
if not folder then
  local name = os.tmpname() -- makes a file
  os.remove(name)
  folder = utils.broadcast_object_list({ name })[1] -- one name for all ranks
end

-- A stateful loader's place in its pass is part of the checkpoint.
local accelerator = accelerate.Accelerator {
  project_config = accelerate.ProjectConfiguration { project_dir = folder, automatic_checkpoint_naming = true,
    total_limit = 2 },
  dataloader_config = accelerate.DataLoaderConfiguration { use_stateful_dataloader = true },
}
local x = tensor.randn(2048, 2)
local y = x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long()
local model = nn.Sequential(nn.Linear(2, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 4))
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = options.batch_size, shuffle = true })
local progress = { step = 0 }
function progress:state_dict() return { step = self.step } end
function progress:load_state_dict(state) self.step = state.step end
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
accelerator:register_for_checkpointing(progress)
if options.resume then accelerator:load_state() end

-- Trains up to a step, and saves when it gets to another one.
local function run(last, save_at)
  local loss
  while progress.step < last do
    for points, labels in loader:iter() do
      loss = nn.functional.cross_entropy(model(points), labels)
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      progress.step = progress.step + 1
      if progress.step % 40 == 1 or progress.step == last then
        accelerator:print(("step %d: loss %.4f"):format(progress.step, loss:item()))
      end
      if progress.step == save_at then accelerator:save_state() end
      if progress.step == last then break end
    end
  end
  return loss and loss:item()
end

local first = run(options.max_steps, math.floor(options.max_steps / 2))
if first then
  accelerator:load_state()
  local second = run(options.max_steps)
  assert(first == second, ("%.9g and %.9g"):format(first, second))
  accelerator:print("resumed run and first run end alike")
end
accelerator:wait_for_everyone()
if not options.project_dir and accelerator.is_main_process then os.execute(("rm -r '%s'"):format(folder)) end
