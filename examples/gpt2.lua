-- Pretrains GPT-2 on token shards: warm-up and cosine, weight decay on matrices alone, accumulation
-- over micro-batches, clipping, mixed precision; tokens per second as it goes.
--
--   accel-run examples/gpt2.lua
--   accel-run --num_processes 8 --mixed_precision bf16 examples/gpt2.lua --preset 124m
--     --context 1024 --batch_size 32 --accumulate 2 --max_steps 20000 --data 'fineweb_train_*.bin'
--
-- --data names files of data.TokenDataset: uint16 token numbers, as llm.c's and nanoGPT's
-- preparation writes them.  Without it the tokens are the bytes of the licences that every Debian
-- and Ubuntu system carries, and the model is small; the last line is `loss x.xxxx`, about 2.5
-- after the 200 steps (5.6 at the start).  Options, with their defaults:
--   --data PATTERN  --preset small (4 layers of 128; or 124m)  --context 128
--   --batch_size 8 (rows of each process)  --accumulate 1  --max_steps 200  --lr 1e-3  --seed 0
--   --save FOLDER (not saved; Transformers opens it)
--   --strategy NAME (each process has all; FSDP's FULL_SHARD, SHARD_GRAD_OP, NO_SHARD,
--       HYBRID_SHARD,
--     HYBRID_SHARD_ZERO2, or DeepSpeed's zero0 to zero3: what is cut over the processes)
local accelerate = require "accelerate"
local data, models, optim, tensor, utils = accelerate.data, accelerate.models, accelerate.optim,
  accelerate.tensor, accelerate.utils

local options = utils.options.arguments("gpt2.lua", arg, {
  data = { "string", optional = true },
  preset = { "string", default = "small", one_of = { "small", "124m" } },
  context = { "integer", default = 128, min = 2, max = 1024 },
  batch_size = { "integer", default = 8, min = 1 },
  accumulate = { "integer", default = 1, min = 1 },
  max_steps = { "integer", default = 200, min = 1 },
  lr = { "number", default = 1e-3, above = 0 },
  seed = { "integer", default = 0, min = 0 },
  save = { "string", optional = true },
  strategy = { "string", optional = true, one_of = { "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
    "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "zero0", "zero1", "zero2", "zero3" } },
})
utils.set_seed(options.seed)
local F = accelerate.nn.functional
local zero = (options.strategy or ""):match "^zero(%d)$"
local accelerator = accelerate.Accelerator { gradient_accumulation_steps = options.accumulate,
  deepspeed_plugin = zero
  and accelerate.DeepSpeedPlugin { zero_stage = tonumber(zero), gradient_clipping = 1.0 } or nil,
  fsdp_plugin = options.strategy and not zero and accelerate.FullyShardedDataParallelPlugin {
    reshard_after_forward = options.strategy, auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } or nil }

-- ---- tokens: rows, and the same rows one token later

local function licences()
  local ids = {}
  for _, name in ipairs { "GPL-2", "GPL-3", "LGPL-2.1", "Apache-2.0", "GFDL-1.3", "MPL-2.0" } do
    local file = io.open("/usr/share/common-licenses/" .. name)
    for c in (file and file:read("*a") or ""):gmatch(".") do ids[#ids + 1] = c:byte() end
    if file then file:close() end
  end
  if #ids == 0 then error("no licences in /usr/share/common-licenses; give --data", 0) end
  local length = options.context + 1
  local count = math.floor(#ids / length)
  local rows = tensor(ids, { dtype = "int64" }):narrow(1, 1, count * length):view(count, length)
  return data.TensorDataset(rows:narrow(2, 1, options.context), rows:narrow(2, 2, options.context))
end

local function shards()
  local paths, list = {}, io.popen("ls -d -- " .. options.data .. " 2>/dev/null")
  for path in list:lines() do paths[#paths + 1] = path end
  list:close()
  if #paths == 0 then error("gpt2.lua: --data " .. options.data .. " names no file", 0) end
  return data.TokenDataset(paths, { block_size = options.context })
end

local set = options.data and shards() or licences()
local loader = data.DataLoader(set, { batch_size = options.batch_size, shuffle = true, drop_last = true })

-- ---- model and optimizer

local SIZES = { small = { 4, 128, 4 }, ["124m"] = { 12, 768, 12 } }
local layers, width, heads = unpack(SIZES[options.preset])
local model = models.GPT2LMHeadModel { n_layer = layers, n_embd = width, n_head = heads, resid_pdrop = 0,
  n_positions = math.max(options.context, 128), vocab_size = options.data and 50257 or 256, embd_pdrop = 0,
  attn_pdrop = 0 }
local decayed, others = {}, {}
for _, p in ipairs(model:parameters()) do
  local list = p:dim() > 1 and decayed or others
  list[#list + 1] = p
end
local optimizer = optim.AdamW({ { params = decayed, weight_decay = 0.1 },
  { params = others, weight_decay = 0 } },
  { lr = options.lr, betas = { 0.9, 0.95 } })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
local updates = options.max_steps * accelerator.num_processes -- a prepared scheduler counts all ranks' steps
local scheduler = accelerator:prepare(optim.lr_scheduler.get_cosine_schedule_with_warmup(optimizer,
  { num_warmup_steps = math.floor(updates / 20), num_training_steps = updates }))

-- ---- training

local step, tokens, began, last = 0, 0, os.time(), nil
repeat
  for rows, wanted in loader:iter() do
    accelerator:accumulate(model, function()
      local logits = model(rows).logits
      local loss = F.cross_entropy(logits:view(-1, logits:size(3)), wanted:reshape(-1))
      accelerator:backward(loss)
      if accelerator.sync_gradients then
        accelerator:clip_grad_norm_(model:parameters(), 1.0)
        step = step + 1
      end
      optimizer:step()
      scheduler:step()
      optimizer:zero_grad()
      tokens = tokens + rows:numel() * accelerator.num_processes
      if accelerator.sync_gradients and (step == 1 or step % 20 == 0 or step == options.max_steps) then
        last = accelerator:gather(loss:detach():view(1)):mean():item()
        accelerator:print(("step %d: loss %.4f, %.0f tokens per second"):format(step, last,
          tokens / math.max(1, os.time() - began)))
      end
    end)
    if step == options.max_steps then break end
  end
until step == options.max_steps

accelerator:wait_for_everyone()
if options.save then
  utils.summon_full_params(model, { writeback = false }, model.save_pretrained, model, options.save)
end
accelerator:print(("loss %.4f"):format(last))
