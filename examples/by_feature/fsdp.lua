-- Fully sharded data parallel: values, gradients and optimizer states are cut over the ranks.
--
--   accel-run --num_processes 2 examples/by_feature/fsdp.lua
--   accel-run --num_processes 2 examples/by_feature/fsdp.lua --strategy NO_SHARD
--
-- Prints the plan (each setting with its origin, the bytes of a rank, what a step sends), then the
-- loss, and the most bytes of tensors that rank 0 had while it trained.  The losses of all
-- strategies are the same to rounding; the bytes differ.  A small GPT learns to go on counting; the
-- loss falls from about 4.2 to below 2.  Options, with their defaults:
--   --strategy FULL_SHARD (SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2)
--   --max_steps 60  --batch_size 8 (of each process)  --lr 0.001
--   --activation_checkpointing false
local accelerate = require "accelerate"
local data, models, optim, tensor, utils = accelerate.data, accelerate.models, accelerate.optim,
  accelerate.tensor, accelerate.utils

local options = utils.options.arguments("fsdp.lua", arg, {
  strategy = { "string", default = "FULL_SHARD" }, max_steps = { "integer", default = 60, min = 1 },
  batch_size = { "integer", default = 8, min = 1 }, lr = { "number", default = 1e-3, above = 0 },
  activation_checkpointing = { "boolean", default = false },
})
utils.set_seed(0)

-- The units are the model's own blocks: GPT2Block.
local accelerator = accelerate.Accelerator {
  fsdp_plugin = accelerate.FullyShardedDataParallelPlugin {
    reshard_after_forward = options.strategy, auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
    activation_checkpointing = options.activation_checkpointing },
}

local VOCABULARY, LENGTH = 64, 32
local model = models.GPT2LMHeadModel { vocab_size = VOCABULARY, n_positions = LENGTH, n_embd = 128,
  n_layer = 4,
  n_head = 4 }
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
-- each row counts from somewhere, in steps of 1 to 3
local start, step_of = tensor.randint(0, VOCABULARY, { 2048, 1 }), tensor.randint(1, 4, { 2048, 1 })
local counting = (start + step_of * tensor.arange(LENGTH)):remainder(VOCABULARY)
local loader = data.DataLoader(data.TensorDataset(counting),
  { batch_size = options.batch_size, shuffle = true })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
accelerator:explain_sharding(model)

local step = 0
repeat
  for ids in loader:iter() do
    if step == 1 then utils.reset_peak_memory_stats() end -- the states are made by the first step
    local loss = model(ids, { labels = ids }).loss
    accelerator:backward(loss)
    accelerator:clip_grad_norm_(model:parameters(), 1)
    optimizer:step()
    optimizer:zero_grad()
    step = step + 1
    local mean = accelerator:reduce(loss:detach(), "mean")
    if step % 20 == 1 or step == options.max_steps then
      accelerator:print(("step %d: loss %.4f"):format(step, mean:item()))
    end
    if step == options.max_steps then break end
  end
until step == options.max_steps

accelerator:print(("at most %.1f MB of tensors on rank 0"):format(utils.memory_stats().peak_bytes / 1e6))
