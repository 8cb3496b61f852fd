-- Calls the Accelerator's functions in random orders.  Run by the host on one or more ranks:
--
--   orders.lua SEED SEQUENCES LENGTH            the same order on every rank
--   orders.lua SEED SEQUENCES LENGTH apart      an order of its own on every rank: something has to
--     raise, nothing may hang
--
-- Every call may work or raise; a message must be text that begins with a line of this file (or,
-- from a forward or a hook, hold one). Prints "N worked, M raised" on rank 0, and each kind of
-- message when ORDERS_SHOW is set.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data, nn, optim, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.utils

local seed, sequences, length, apart = tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3]), arg[4] == "apart"
local rank, ranks = core.dist.rank(), core.dist.world_size()

-- A small generator: math.random and the tensors' generators belong to what is tested.
local state = seed + (apart and 7919 * rank or 0)
local function draw(n)
  state = (state * 1103515245 + 12345) % 2147483648
  return math.floor(state / 65536) % n + 1
end

local w  -- the objects of this sequence
local function world()
  local model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
  local optimizer = optim.SGD(model:parameters(), { lr = 0.01, momentum = 0.9 })
  w = {
    accelerator = accelerate.Accelerator { gradient_accumulation_steps = draw(3) },
    model = model, optimizer = optimizer, scheduler = optim.lr_scheduler.StepLR(optimizer, { step_size = 2 }),
    loader = data.DataLoader(data.TensorDataset(core.ones(7, 3), core.arange(7):float()), { batch_size = 2 }),
  }
end

local function batch()
  if not w.next then w.next = w.loader:iter() end
  local x, y = w.next()
  if not x then
    w.next = nil
    x, y = core.ones(2, 3), core.ones(2)
  end
  return x, y
end

local function forward()
  local x, y = batch()
  w.loss = ((w.model(x):reshape(-1) - y) ^ 2):mean()
  return w.loss
end

local function stop() error("asked to stop") end

local ACTIONS = {
  { "prepare", function()
    w.model, w.optimizer, w.loader, w.scheduler = w.accelerator:prepare(w.model, w.optimizer, w.loader,
      w.scheduler)
  end },
  { "prepare the other way round",
    function() w.scheduler, w.loader = w.accelerator:prepare(w.scheduler, w.loader) end },
  { "prepare the model", function() w.accelerator:prepare(w.model) end },
  { "prepare nothing", function() w.accelerator:prepare() end },
  { "evaluation mode", function() w.accelerator:prepare_model(w.model, { evaluation_mode = true }) end },
  { "forward", forward },
  { "backward", function() w.accelerator:backward(w.loss) end },
  { "backward with a weight", function() w.accelerator:backward(forward(), { weight = 2 }) end },
  { "backward twice", function()
    local loss = forward()
    w.accelerator:backward(loss)
    w.accelerator:backward(loss)
  end },
  { "plain backward", function() w.loss:backward() end },
  { "step", function() w.optimizer:step() end },
  { "zero_grad", function() w.optimizer:zero_grad() end },
  { "scheduler", function() w.scheduler:step() end },
  { "accumulate", function()
    w.accelerator:accumulate(w.model, function()
      w.accelerator:backward(forward())
      w.optimizer:step()
      w.scheduler:step()
      w.optimizer:zero_grad()
    end)
  end },
  { "accumulate that raises", function() w.accelerator:accumulate(w.model, stop) end },
  { "accumulate inside accumulate", function()
    w.accelerator:accumulate(w.model,
      function() w.accelerator:accumulate(w.model, function() w.accelerator:backward(forward()) end) end)
  end },
  { "no_sync", function()
    w.accelerator:no_sync(w.model, function() w.accelerator:backward(forward()) end)
  end },
  { "no_sync that raises", function() w.accelerator:no_sync(w.model, stop) end },
  { "gather in a nested no_sync", function()
    w.accelerator:no_sync(w.model, function()
      w.accelerator:no_sync(w.model, function() w.accelerator:gather(forward()) end)
    end)
  end },
  { "trigger_sync_in_backward", function()
    w.accelerator:trigger_sync_in_backward(w.model, function() w.accelerator:backward(forward()) end)
  end },
  { "gather", function() w.accelerator:gather { a = core.ones(2), b = { core.tensor(1) } } end },
  { "gather_for_metrics", function() w.accelerator:gather_for_metrics { batch() } end },
  { "gather strings for metrics", function() w.accelerator:gather_for_metrics { "a", "b" } end },
  { "gather the loss", function() w.accelerator:gather(w.loss) end },
  { "reduce", function() w.accelerator:reduce(core.ones(3), "mean") end },
  { "pad", function() w.accelerator:pad_across_processes(core.ones(2 + rank, 2)) end },
  { "broadcast", function() utils.broadcast(core.ones(2), ranks - 1) end },
  { "objects", function() utils.gather_object { rank, { "x" } } end },
  { "object list", function() utils.broadcast_object_list { rank } end },
  { "copy", function() utils.copy_tensor_to_devices(rank == 0 and core.ones(2) or nil) end },
  { "next batch", batch },
  { "leave the loader by break", function()
    local n = 0
    for _ in w.loader:iter() do
      n = n + 1
      if n > 0 then break end
    end
  end },
  { "a loader inside itself", function()
    for _ in w.loader:iter() do
      for _ in w.loader:iter() do end
    end
  end },
  { "skip batches", function()
    for _ in w.accelerator:skip_first_batches(w.loader, 1):iter() do end
  end },
  { "forget the pass", function() w.next = nil end },
  { "clip", function() w.accelerator:clip_grad_norm_(w.model:parameters(), 1) end },
  { "clip values", function() w.accelerator:clip_grad_value_(w.model:parameters(), 1) end },
  { "unscale", function() w.accelerator:unscale_gradients() end },
  { "free_memory", function() w.accelerator:free_memory() end },
  { "clear", function() w.accelerator:clear(w.model) end },
  { "unwrap", function() w.accelerator:unwrap_model(w.model, { keep_fp32_wrapper = false }) end },
  { "autocast", function() w.accelerator:autocast(forward) end },
  { "triggers", function()
    if rank == 0 then w.accelerator:set_trigger() end
    w.accelerator:check_trigger()
  end },
  { "wait", function() w.accelerator:wait_for_everyone() end },
  { "main process first", function() w.accelerator:main_process_first(function() return 1 end) end },
  { "main process first that raises", function() w.accelerator:main_process_first(stop) end },
  { "on the main process", function() w.accelerator:on_main_process(function() return 1 end)() end },
  { "split", function()
    w.accelerator:split_between_processes({ 1, 2, 3 }, { apply_padding = true }, function() end)
  end },
  { "split that raises", function() w.accelerator:split_between_processes({ 1, 2, 3 }, stop) end },
  { "join", function()
    w.accelerator:join_uneven_inputs({ w.model }, function() w.accelerator:backward(forward()) end)
  end },
  { "steps", function() w.accelerator.gradient_accumulation_steps = draw(3) end },
  { "step number", function() w.accelerator.step = draw(5) end },
  { "sync", function() w.accelerator.sync_gradients = draw(2) == 1 end },
  { "train and eval", function()
    w.model:eval()
    w.model:train()
  end },
  { "state dicts", function() w.optimizer:load_state_dict(w.optimizer:state_dict()) end },
  { "weights", function() w.model:load_state_dict(w.accelerator:get_state_dict(w.model)) end },
  { "more parameters", function()
    local extra = nn.Parameter(core.ones(2))
    w.optimizer:add_param_group { params = { extra } }
  end },
  { "freeze", function()
    for _, p in ipairs(w.model:parameters()) do p.requires_grad = false end
  end },
  { "unfreeze", function()
    for _, p in ipairs(w.model:parameters()) do p.requires_grad = true end
  end },
  { "set_seed", function() utils.set_seed(draw(9)) end },
  { "synchronize", function() utils.synchronize_rng_states { "torch" } end },
  { "another Accelerator", function() w.accelerator = accelerate.Accelerator {} end },
  { "garbage", function()
    collectgarbage()
    utils.clear_device_cache()
  end },
  { "trackers", function() w.accelerator:init_trackers("orders", { config = { lr = 1 } }) end },
  { "log", function() w.accelerator:log({ loss = w.loss or 1 }, { step = draw(9) }) end },
  { "a tracker that is not there", function() w.accelerator:get_tracker("none") end },
  { "local SGD", function()
    accelerate.local_sgd.LocalSGD(w.accelerator, w.model, 2, function(sgd)
      for _ = 1, 3 do
        w.accelerator:backward(forward())
        w.optimizer:step()
        w.optimizer:zero_grad()
        sgd:step()
      end
    end)
  end },
  { "register for checkpointing", function() w.accelerator:register_for_checkpointing(w.scheduler) end },
  { "save_state", function() w.accelerator:save_state() end },
  { "load_state", function() w.accelerator:load_state() end },
  { "end_training", function() if apart or ranks == 1 then w.accelerator:end_training() end end },
  { "profile", function() w.accelerator:profile(function() forward() end) end },
  { "start again", world },
}

local worked, raised, kinds = 0, 0, {}
local trail = {}

local function attempt(name, fn)
  trail[#trail + 1] = name
  local ok, message = xpcall(fn, function(m) return m end)
  if ok then
    worked = worked + 1
    return
  end
  raised = raised + 1
  if type(message) ~= "string" then
    error(("rank %d: '%s' raised a %s after: %s"):format(rank, name, type(message),
      table.concat(trail, ", ")), 0)
  end
  kinds[name .. ": " .. message:match("^[^\n]*")] = true
  if not message:find("orders.lua:%d+") then
    error(("rank %d: '%s' raised without a line of the script: %s\nafter: %s"):format(rank, name, message,
      table.concat(trail, ", ")), 0)
  end
end

for _ = 1, sequences do
  trail = {}
  attempt("start", world)
  for _ = 1, length do attempt(unpack(ACTIONS[draw(#ACTIONS)])) end
end

if os.getenv("ORDERS_SHOW") and rank == 0 then
  for text in pairs(kinds) do io.stderr:write(text, "\n") end
end
if rank == 0 then print(("%d worked, %d raised"):format(worked, raised)) end
