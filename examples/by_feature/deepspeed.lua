-- DeepSpeed: the model, its gradients and its optimizer's states are cut over the ranks, as a JSON
-- file of DeepSpeed's says.
--
--   accel-run --num_processes 2 examples/by_feature/deepspeed.lua
--   accel-run --num_processes 2 --use_deepspeed --deepspeed_config_file ds.json \
--     examples/by_feature/deepspeed.lua
--
-- deepspeed.json beside this file has the blocks `optimizer` and `scheduler`, so that the script
-- gives `prepare` a DummyOptim and a DummyScheduler; what is 'auto' in the file comes from the run.
-- A script that makes its own optimizer leaves these blocks out.  A small GPT learns to go on
-- counting; the loss falls from about 4.2 to below 2.  --stage 0 to 3 changes what a rank keeps,
-- which the last line shows, and not what is learned. Options, with their defaults:
--   --max_steps 60  --batch_size 8 (of each process)  --accumulate 1  --lr 1e-3  --stage 3
local accelerate = require "accelerate"
local data, models, tensor, utils = accelerate.data, accelerate.models, accelerate.tensor, accelerate.utils

local options = utils.options.arguments("deepspeed.lua", arg, {
  max_steps = { "integer", default = 60, min = 1 }, batch_size = { "integer", default = 8, min = 1 },
  accumulate = { "integer", default = 1, min = 1 }, lr = { "number", default = 1e-3, above = 0 },
  stage = { "integer", default = 3, min = 0, max = 3 },
})
utils.set_seed(0)

-- With --use_deepspeed the launcher says which configuration; alone, the file beside this one.
local plugin
if not utils.environment.flag("ACCELERATE_USE_DEEPSPEED", false) then
  plugin = accelerate.DeepSpeedPlugin { hf_ds_config = arg[0]:gsub("%.lua$", ".json"),
    zero_stage = options.stage }
end
local accelerator = accelerate.Accelerator { deepspeed_plugin = plugin,
  gradient_accumulation_steps = options.accumulate }

local VOCABULARY, LENGTH = 64, 32
local model = models.GPT2LMHeadModel { vocab_size = VOCABULARY, n_positions = LENGTH, n_embd = 128,
  n_layer = 4, n_head = 4 }
-- Each row counts from somewhere, in steps of 1 to 3.
local start, step_of = tensor.randint(0, VOCABULARY, { 2048, 1 }), tensor.randint(1, 4, { 2048, 1 })
local counting = (start + step_of * tensor.arange(LENGTH)):remainder(VOCABULARY)
local loader = data.DataLoader(data.TensorDataset(counting),
  { batch_size = options.batch_size, shuffle = true })

-- The configuration counts steps of all ranks together, as Accelerate does.
local updates = math.ceil(options.max_steps / options.accumulate)
local optimizer = utils.DummyOptim(model:parameters(), { lr = options.lr, weight_decay = 0.01 })
local scheduler = utils.DummyScheduler(optimizer, {
  total_num_steps = updates * accelerator.num_processes, warmup_num_steps = math.ceil(updates / 10) })
model, optimizer, loader, scheduler = accelerator:prepare(model, optimizer, loader, scheduler)

local step = 0
repeat
  for ids in loader:iter() do
    accelerator:accumulate(model, function()
      if step == 1 then utils.reset_peak_memory_stats() end -- the states are made by the first step
      local loss = model(ids, { labels = ids }).loss
      accelerator:backward(loss)
      optimizer:step() -- gradients are clipped here, as the file says, and the schedule moves
      scheduler:step()
      optimizer:zero_grad()
      step = step + 1
      local mean = accelerator:reduce(loss:detach(), "mean")
      if step % 20 == 1 or step == options.max_steps then
        accelerator:print(("step %d: loss %.4f, learning rate %.6f"):format(step, mean:item(),
          scheduler:get_last_lr()[1]))
      end
    end)
    if step == options.max_steps then break end
  end
until step == options.max_steps

accelerator:print(("stage %d: at most %.1f MB of tensors on rank 0"):format(
  accelerator.deepspeed_plugin.zero_stage, utils.memory_stats().peak_bytes / 1e6))
