--- optim.lr_scheduler: learning rates as functions of the number of steps: PyTorch's schedulers,
--- Transformers' schedules with a warm-up, and DeepSpeed's.

local lr_scheduler = { LRScheduler = require("accelerate.optim.lr_scheduler.base").LRScheduler }

for _, part in ipairs { "lambda", "step", "linear", "cosine", "cycle", "sequence", "plateau", "warmup",
  "deepspeed" } do
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
  OneCycleLR = "optimizer +max_lr [total_steps] [epochs] [steps_per_epoch] [pct_start] [anneal_strategy]" ..
    " [cycle_momentum] [base_momentum] [max_momentum] [div_factor] [final_div_factor] " ..
      "[three_phase] [last_epoch]",
  CyclicLR = "optimizer +base_lr +max_lr [step_size_up] [step_size_down] [mode] [gamma]" ..
    " [scale_fn] [scale_mode] [cycle_momentum] [base_momentum] [max_momentum] [last_epoch]",
  SequentialLR = "optimizer +schedulers +milestones [last_epoch]",
  ReduceLROnPlateau = "optimizer [mode] [factor] [patience] [threshold] [threshold_mode] " ..
    "[cooldown] [min_lr] [eps]",
  WarmupLR = "optimizer [warmup_min_lr] [warmup_max_lr] [warmup_num_steps] [warmup_type]" ..
    " [last_batch_iteration]",
  WarmupDecayLR = "optimizer +total_num_steps [warmup_min_lr] [warmup_max_lr] [warmup_num_steps]" ..
    " [warmup_type] [last_batch_iteration]",
  WarmupCosineLR = "optimizer +total_num_steps [warmup_min_ratio] [warmup_num_steps] [cos_min_ratio]" ..
    " [warmup_type] [last_batch_iteration]",
  OneCycle = "optimizer +cycle_min_lr +cycle_max_lr [decay_lr_rate] [cycle_first_step_size]" ..
    " [cycle_second_step_size] [cycle_first_stair_count] [cycle_second_stair_count] [decay_step_size]" ..
    " [cycle_momentum] [cycle_min_mom] [cycle_max_mom] [decay_mom_rate] [last_batch_iteration]",
  LRRangeTest = "optimizer [lr_range_test_min_lr] [lr_range_test_step_size] [lr_range_test_step_rate]" ..
    " [lr_range_test_staircase] [last_batch_iteration]",
})

return require("accelerate.utils.properties").strict("accelerate.optim.lr_scheduler", lr_scheduler)
