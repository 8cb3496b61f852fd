--- optim.lr_scheduler: learning rates as functions of the number of steps: PyTorch's schedulers,
--- and Transformers' schedules with a warm-up.

local lr_scheduler = { LRScheduler = require("accelerate.optim.lr_scheduler.base").LRScheduler }

for _, part in ipairs { "lambda", "step", "linear", "cosine", "cycle", "sequence", "plateau", "warmup" } do
  for name, value in next, require("accelerate.optim.lr_scheduler." .. part) do lr_scheduler[name] = value end
end

require("accelerate.utils.positions").constructors(lr_scheduler, {
  LRScheduler = "optimizer [last_epoch]",
  LambdaLR = "optimizer lr_lambda [last_epoch]",
  MultiplicativeLR = "optimizer lr_lambda [last_epoch]",
  StepLR = "optimizer +step_size [gamma] [last_epoch]",
  MultiStepLR = "optimizer +milestones [gamma] [last_epoch]",
  ConstantLR = "optimizer [factor] [total_iters] [last_epoch]",
  LinearLR = "optimizer [start_factor] [end_factor] [total_iters] [last_epoch]",
  ExponentialLR = "optimizer +gamma [last_epoch]",
  PolynomialLR = "optimizer [total_iters] [power] [last_epoch]",
  CosineAnnealingLR = "optimizer +T_max [eta_min] [last_epoch]",
  CosineAnnealingWarmRestarts = "optimizer +T_0 [T_mult] [eta_min] [last_epoch]",
  OneCycleLR = "optimizer +max_lr [total_steps] [epochs] [steps_per_epoch] [pct_start] [anneal_strategy]"
    .. " [cycle_momentum] [base_momentum] [max_momentum] [div_factor] [final_div_factor] [three_phase] " ..
      "[last_epoch]",
  CyclicLR = "optimizer +base_lr +max_lr [step_size_up] [step_size_down] [mode] [gamma]"
    .. " [scale_fn] [scale_mode] [cycle_momentum] [base_momentum] [max_momentum] [last_epoch]",
  SequentialLR = "optimizer +schedulers +milestones [last_epoch]",
  ReduceLROnPlateau = "optimizer [mode] [factor] [patience] [threshold] [threshold_mode] [cooldown] [min_lr]"
    .. " [eps]",
})

return require("accelerate.utils.properties").strict("accelerate.optim.lr_scheduler", lr_scheduler)
