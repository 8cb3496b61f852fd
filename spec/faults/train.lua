-- A short training run in which something goes wrong: `accel-run train.lua FOLDER [KEY=VALUE ...]`.
-- It goes on from the newest checkpoint in FOLDER, saves at batches 3, 5, 7 and 9, keeps two
-- checkpoints, and prints what depends on all that came before.
--
--   saves=go_on   a save that fails is written to stderr, and the run goes on; else it ends
--   async=1       saves are asynchronous
--   act=WHAT rank=R   what rank R does wrong at batch 6 (see ACTS)
--   say=1         each rank prints a line for each batch
--   weights=bin   weights in PyTorch's format
local ffi = require "ffi"
local accelerate = require "accelerate"
local data = require "accelerate.data"
local fs = require "accelerate.utils.fs"
local manifest = require "accelerate.checkpoint.manifest"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"

ffi.cdef [[
  int getpid(void);
  int kill(int pid, int sig);
  int usleep(unsigned microseconds);
  void disk_faults_over(void);
  typedef struct { long seconds, nanoseconds; } train_time;
  int clock_gettime(int clock, train_time *out);
]]

local folder, options = arg[1], {}
for i = 2, #arg do
  local key, value = arg[i]:match "^(%w+)=(.*)$"
  options[key] = value
end

local BATCHES, SAVES, ACT_AT = 9, { [3] = true, [5] = true, [7] = true, [9] = true }, 6

tensor.manual_seed(3)
local accelerator = accelerate.Accelerator {
  gradient_accumulation_steps = 2,
  project_config = accelerate.ProjectConfiguration { project_dir = folder,
    automatic_checkpoint_naming = true, total_limit = 2 },
  dataloader_config = accelerate.DataLoaderConfiguration { use_stateful_dataloader = true },
  step_scheduler_with_optimizer = false,
}
local rank = accelerator.process_index
local X, Y = tensor.randn(24, 4), tensor.randint(0, 2, { 24 })
local model = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 2))
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
local scheduler = optim.lr_scheduler.StepLR(optimizer, { step_size = 2, gamma = 0.9 })
local loader = data.DataLoader(data.TensorDataset(X, Y), { batch_size = 2, shuffle = true })
model, optimizer, loader, scheduler = accelerator:prepare(model, optimizer, loader, scheduler)

local progress = { epoch = 0, seen = 0 }
function progress:state_dict()
  local ended = accelerator.gradient_state.end_of_dataloader
  return { epoch = self.epoch + (ended and 1 or 0), seen = self.seen }
end
function progress:load_state_dict(saved) self.epoch, self.seen = saved.epoch, saved.seen end
accelerator:register_for_checkpointing(progress)

if #(fs.list(folder .. "/checkpoints") or {}) > 0 then
  local found, path = pcall(accelerator.load_state, accelerator)
  if found then accelerator.project_configuration.iteration = tonumber(path:match "%d+$") + 1
  elseif not path:find("there is no whole checkpoint", 1, true) then error(path, 0) end
end

-- Writes a line with the time, which the table compares with other times.
local function say(text)
  local t = ffi.new "train_time"
  ffi.C.clock_gettime(1, t)
  io.stderr:write(("at %d.%09d rank %d %s\n"):format(tonumber(t.seconds), tonumber(t.nanoseconds), rank,
    text))
end

local ACTS = {
  raise = function() error("boom") end,
  segfault = function() ffi.cast("volatile int *", 0)[0] = 1 end,
  kill = function() ffi.C.kill(ffi.C.getpid(), 9) end,
  stop = function() ffi.C.kill(ffi.C.getpid(), 19) end,
  exit = function() os.exit(3) end,
  hang = function() while true do os.time() end end,
  slow = function() ffi.C.usleep(400000) end, -- below the timeout
  -- the others take part in a collective and this rank does not
  skip = function() return "skip" end,
  other = function() accelerator:wait_for_everyone() return "skip" end,
  shape = function() accelerator:gather(tensor.ones(3)) return "skip" end,
  finish = function() os.exit(0) end,
}

local function act()
  if not options.act or progress.seen + 1 ~= ACT_AT then return end
  local what
  if tonumber(options.rank) == rank then
    say "acts"
    what = ACTS[options.act]()
  end
  if what ~= "skip" then accelerator:gather(tensor.ones(2)) end
end

-- The checkpoints that there are, and what else: "checkpoint_1 .checkpoint_2.saving(not whole)".
local function inventory()
  local words = {}
  for _, name in ipairs(fs.list(folder .. "/checkpoints") or {}) do
    local whole = manifest.verify(folder .. "/checkpoints/" .. name)
    words[#words + 1] = name .. (whole and "" or "(not whole)")
  end
  return table.concat(words, " ")
end

local function save()
  local ok, why = pcall(function()
    accelerator:save_state { async = options.async ~= nil }
    -- what becomes of a save shows at the next one; here, a fault belongs to its own save
    if options.async and options.saves then accelerator:wait_for_checkpoint() end
  end)
  if ok then return end
  if options.saves ~= "go_on" then error(why, 0) end
  say("caught: " .. why)
  accelerator:wait_for_everyone()
  if rank == 0 then say("has: " .. inventory()) end
  accelerator:wait_for_everyone()
  pcall(function() ffi.C.disk_faults_over() end) -- where the library is loaded
end

local loss_fn = nn.CrossEntropyLoss()
local function step(x, y)
  accelerator:accumulate(model, function()
    accelerator:backward(loss_fn(model(x), y))
    optimizer:step()
    if accelerator.sync_gradients then scheduler:step() end
    optimizer:zero_grad()
  end)
end

while progress.seen < BATCHES do
  loader:set_epoch(progress.epoch)
  for x, y in loader:iter() do
    act()
    step(x, y)
    progress.seen = progress.seen + 1
    if options.say then
      io.write(("batch %d\n"):format(progress.seen))
      io.flush()
    end
    if SAVES[progress.seen] then save() end
    if progress.seen == BATCHES then break end
  end
  progress.epoch = progress.epoch + 1
end

local words = { tostring(optimizer.param_groups[1].lr), tensor.rand(1):item(), math.random() }
for _, p in ipairs(model:parameters()) do
  for _, value in ipairs(p:flatten():totable()) do words[#words + 1] = ("%.17g"):format(value) end
end
io.write(("bits of rank %d: %s\n"):format(rank, table.concat(words, " ")))
