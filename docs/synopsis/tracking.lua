local accelerate = require "accelerate"
local tracking = accelerate.tracking

local Printer = tracking.class("Printer")  -- one's own
Printer.name, Printer.requires_logging_directory = "printer", false
function Printer:init() self.tracker = io.stdout end
function Printer:log(values, opts)
  self.tracker:write(("step %d: loss %.2f\n"):format(opts.step, values.loss))
end

local folder = os.tmpname()
os.remove(folder)
local accelerator = accelerate.Accelerator { log_with = { "tensorboard", "jsonl", Printer() },
  project_dir = folder }
accelerator:init_trackers("my_project", { config = { lr = 1e-3 } })
for step = 1, 3 do accelerator:log({ loss = 1 / step }, { step = step }) end
accelerator:get_tracker("tensorboard", { unwrap = true }):add_histogram("weights",
  accelerate.tensor.randn(100), 3)
accelerator:end_training()
os.execute(("rm -r '%s'"):format(folder))
