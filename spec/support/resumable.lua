-- A training run that can be killed and resumed: `accel-run resumable.lua FOLDER VARIANT
-- [KILL_AT]`.  It goes on from the newest checkpoint in FOLDER, and prints what depends on all that
-- came before.  KILL_AT: rank 0 ends its process with SIGKILL after so many batches.
--
-- Variants: plain (AdamW, dropout, a scheduler, workers, an accumulation window of three), weighted
-- (windows of weighted backward passes), two_loaders, norm (convolution, batch norm, SGD with
-- momentum), bf16, fp16 (its scale grows, on a GPU), captured (forward and backward recorded, on a
-- GPU), stream (an iterable data set), skip (skip_first_batches in place of stateful loaders),
-- async (plain, and checkpoints are written while the run goes on), sharded, sharded_async, full
-- and local (plain, cut over the ranks by FSDP, with its kinds of state dicts).
local ffi = require "ffi"
local accelerate = require "accelerate"
local data = require "accelerate.data"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"

ffi.cdef "int getpid(void); int kill(int pid, int sig);"

local folder, variant, kill_at = arg[1], arg[2], tonumber(arg[3] or math.huge)
tensor.manual_seed(3)

local STATE_DICTS = { sharded = "SHARDED_STATE_DICT", sharded_async = "SHARDED_STATE_DICT",
  full = "FULL_STATE_DICT", ["local"] = "LOCAL_STATE_DICT" }

local accelerator = accelerate.Accelerator {
  fsdp_plugin = STATE_DICTS[variant] and accelerate.FullyShardedDataParallelPlugin {
    fsdp_version = variant == "local" and 1 or 2, state_dict_type = STATE_DICTS[variant] } or nil,
  gradient_accumulation_steps = 3,
  mixed_precision = (variant == "bf16" or variant == "fp16") and variant or "no",
  dynamo_backend = variant == "captured" and "cudagraphs" or "no",
  kwargs_handlers = variant == "fp16" and { accelerate.GradScalerKwargs { growth_interval = 4 } } or nil,
  project_config = accelerate.ProjectConfiguration { project_dir = folder,
    automatic_checkpoint_naming = true, total_limit = 2 },
  dataloader_config = accelerate.DataLoaderConfiguration { use_stateful_dataloader = variant ~= "skip",
    use_seedable_sampler = variant == "skip" },
}

local function build()
  if variant == "norm" then
    return nn.Sequential(nn.Unflatten(2, { 1, 2, 4 }), nn.Conv2d(1, 4, { 2, 2 }), nn.BatchNorm2d(4),
      nn.ReLU(),
      nn.Flatten(), nn.Linear(12, 2))
  end
  return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
end

local function make_optimizer(model)
  if variant == "norm" then return optim.SGD(model:parameters(), { lr = 1e-2, momentum = 0.9 }) end
  return optim.AdamW(model:parameters(), { lr = 1e-2 })
end

local X, Y = tensor.randn(60, 8), tensor.randint(0, 2, { 60 })

local function make_loader()
  if variant == "stream" then
    return data.DataLoader({ iter = function()
      local i = 0
      return function()
        i = i + 1
        if i <= 60 then return X[i] + 0.1 * tensor.randn(8), Y[i] end
      end
    end }, { batch_size = 4 })
  end
  return data.DataLoader(data.TensorDataset(X, Y), { batch_size = 4, shuffle = true,
    num_workers = (variant == "plain" or variant == "async") and 2 or 0 })
end

local model = build()
local optimizer = make_optimizer(model)
local scheduler = optim.lr_scheduler.StepLR(optimizer, { step_size = 5, gamma = 0.9 })
local loader = make_loader()
local second = variant == "two_loaders" and make_loader() or nil
model, optimizer, loader, scheduler = accelerator:prepare(model, optimizer, loader, scheduler)
if second then second = accelerator:prepare(second) end

local progress = { epoch = 0, batch = 0, seen = 0 }
-- While the last batch of a pass is in use, what comes next is the next pass.
function progress:state_dict()
  if accelerator.gradient_state.end_of_dataloader then
    return { epoch = self.epoch + 1, batch = 0, seen = self.seen }
  end
  return { epoch = self.epoch, batch = self.batch, seen = self.seen }
end
function progress:load_state_dict(found)
  self.epoch, self.batch, self.seen = found.epoch, found.batch, found.seen
end
accelerator:register_for_checkpointing(progress)

local resumed = pcall(accelerator.load_state, accelerator)
if resumed then accelerator.project_configuration.iteration = progress.seen / 4 end

local loss_fn = nn.CrossEntropyLoss { reduction = variant == "weighted" and "sum" or "mean" }
local function step(x, y)
  accelerator:accumulate(model, function()
    local loss = loss_fn(model(x), y)
    accelerator:backward(loss, variant == "weighted" and { weight = y:size(1) } or nil)
    if accelerator.sync_gradients then accelerator:clip_grad_norm_(model:parameters(), 1) end
    optimizer:step()
    scheduler:step()
    optimizer:zero_grad()
  end)
end

local function batches()
  loader:set_epoch(progress.epoch)
  if variant == "skip" and progress.batch > 0 then
    return accelerator:skip_first_batches(loader, progress.batch)
  end
  return loader
end

while progress.epoch < 3 do
  local others = second and second:iter()
  for x, y in batches():iter() do
    step(x, y)
    if others then
      local ox, oy = others()
      if ox then step(ox, oy) end
    end
    progress.seen, progress.batch = progress.seen + 1, progress.batch + 1
    if progress.seen % 4 == 0 then accelerator:save_state { async = variant:find "async" ~= nil } end
    if progress.seen == kill_at and accelerator.is_main_process then ffi.C.kill(ffi.C.getpid(), 9) end
  end
  progress.epoch, progress.batch = progress.epoch + 1, 0
end

local sum = 0
local function add_parameters()
  for _, p in ipairs(model:parameters()) do sum = sum + (p:to("float64") * p:to("float64")):sum():item() end
end
local record = require("accelerate.parallel.record").of(model)
if record.plan then require("accelerate.parallel.sharded").summon(record, false, nil, add_parameters)
else add_parameters() end
for _, b in ipairs(model:buffers()) do sum = sum + b:to("float64"):sum():item() end
io.write(("rank %d: %.17g %.17g %.17g %.17g %g\n"):format(accelerator.process_index, sum,
  optimizer.param_groups[1].lr, tensor.rand(1):item(), math.random(),
  accelerator.scaler and accelerator.scaler:get_scale() or 0))
