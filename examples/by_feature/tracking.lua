-- Trackers: a run whose numbers TensorBoard, a spreadsheet, wandb, MLflow and others can show, and
-- a tracker of one's own beside them.
--
--   accel-run examples/by_feature/tracking.lua
--   accel-run --num_processes 2 examples/by_feature/tracking.lua --log_with
--     tensorboard,jsonl,csv,wandb,comet_ml,mlflow,dvclive,clearml --project_dir runs
--   tensorboard --logdir runs          (each of the others has a tool of its own)
--
-- Learns which quarter of the plane a noisy point came from: the loss falls from about 1.5 to below
-- 0.4 in 300 steps, in a second or two. Options, with their defaults:
--   --max_steps 300  --batch_size 64 (of each process)  --lr 1e-2  --log_with tensorboard,jsonl
--   --project_dir FOLDER (a folder that is removed at the end)
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("tracking.lua", arg, {
  max_steps = { "integer", default = 300, min = 2 }, batch_size = { "integer", default = 64, min = 1 },
  lr = { "number", default = 1e-2, above = 0 }, log_with = { "string", default = "tensorboard,jsonl" },
  project_dir = { "string", optional = true },
})
utils.set_seed(0)

local names = {}
for name in options.log_with:gmatch("[^,]+") do names[#names + 1] = name end
local folder = options.project_dir
if not folder then
  local name = os.tmpname() -- makes a file
  os.remove(name)
  folder = utils.broadcast_object_list({ name })[1] -- one name for all ranks
end

-- A tracker of one's own: what it needs is a name, whether it wants a folder, and something that
-- does the tracking.
local Best = accelerate.tracking.class("Best")
Best.name, Best.requires_logging_directory = "best", false
function Best:init() self.tracker = { loss = math.huge } end
function Best:log(values, opts)
  if values.loss and values.loss < self.tracker.loss then
    self.tracker.loss, self.tracker.step = values.loss, opts.step
  end
end
names[#names + 1] = Best()

local accelerator = accelerate.Accelerator { log_with = names, project_dir = folder }
local logger = accelerate.logging.get_logger("tracking.lua", "INFO")
local given = {
  wandb = { dir = folder }, comet_ml = { offline_directory = folder .. "/comet" },
  mlflow = { tracking_uri = folder .. "/mlruns" }, clearml = { dir = folder .. "/clearml" },
  dvclive = { dir = folder .. "/dvclive", dvcyaml = folder .. "/dvc.yaml" },
}
for name in pairs(given) do
  if not (options.log_with .. ","):find(name .. ",", 1, true) then given[name] = nil end
end
accelerator:init_trackers("quarters", { config = { lr = options.lr, batch_size = options.batch_size },
  init_kwargs = given })

local n = 8192
local corners = tensor.randint(0, 4, { n })
local points = tensor.stack({ corners:remainder(2):to("float32"), corners:ge(2):to("float32") },
  2) * 2 - 1 + tensor.randn(n, 2) * 0.5
local loader = data.DataLoader(data.TensorDataset(points, corners),
  { batch_size = options.batch_size, shuffle = true })
local model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 4))
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local loss_fn = nn.CrossEntropyLoss()
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

local step = 0
repeat
  for x, y in loader:iter() do
    step = step + 1
    local logits = model(x)
    local loss = loss_fn(logits, y)
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    if step % 20 == 1 or step == options.max_steps then
      local value = accelerator:reduce(loss:detach(), "mean"):item()
      accelerator:log({ loss = value, accuracy = logits:argmax(2):eq(y):to("float32"):mean() },
        { step = step })
      accelerator:print(("step %d: loss %.4f"):format(step, value))
    end
    if step == options.max_steps then break end
  end
until step == options.max_steps

-- What TensorBoard shows beyond curves goes through its writer; on other processes, and without it,
-- this does nothing.
local writer = names[1] == "tensorboard" and accelerator:get_tracker("tensorboard", { unwrap = true })
if writer then
  for name, parameter in model:named_parameters() do
    writer:add_histogram(name, parameter, options.max_steps)
  end
end
local best = accelerator:get_tracker("best", { unwrap = true })
if accelerator.is_main_process then
  logger:info("the best of the logged losses was %.4f, at step %d", best.loss, best.step)
end
accelerator:end_training()
if not options.project_dir and accelerator.is_main_process then os.execute(("rm -r '%s'"):format(folder)) end
