--- optim.lr_scheduler: learning rates as functions of the number of steps: PyTorch's schedulers,
--- and Transformers' schedules with a warm-up.

local lr_scheduler = { LRScheduler = require("accelerate.optim.lr_scheduler.base").LRScheduler }

for _, part in ipairs { "lambda", "step", "linear", "cosine", "cycle", "sequence", "plateau", "warmup" } do
  for name, value in next, require("accelerate.optim.lr_scheduler." .. part) do lr_scheduler[name] = value end
end

return require("accelerate.utils.properties").strict("accelerate.optim.lr_scheduler", lr_scheduler)
