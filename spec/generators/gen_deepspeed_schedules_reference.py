"""Writes deepspeed_schedules_reference.lua: learning rates of DeepSpeed's own schedules.

    pip download --no-deps --no-binary :all: deepspeed==0.19.8 && tar xf deepspeed-0.19.8.tar.gz
    python3 spec/generators/gen_deepspeed_schedules_reference.py \
        deepspeed-0.19.8/deepspeed/runtime/lr_schedules.py > spec/reference/deepspeed_schedules_reference.lua
"""
import importlib.util
import logging
import sys
import types

import torch

# The file asks the package for its logger only.
for name in ["deepspeed", "deepspeed.utils"]:
    sys.modules[name] = types.ModuleType(name)
sys.modules["deepspeed.utils"].logger = logging.getLogger("deepspeed")
spec = importlib.util.spec_from_file_location("lr_schedules", sys.argv[1])
schedules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(schedules)

CASES = [
    ("WarmupLR", {"warmup_max_lr": 0.01, "warmup_num_steps": 6}),
    ("WarmupLR", {"warmup_min_lr": 0.001, "warmup_num_steps": 5, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_max_lr": 0.01, "warmup_num_steps": 1}),
    ("WarmupLR", {"warmup_min_lr": [0.001, 0.002], "warmup_max_lr": [0.01, 0.03], "warmup_num_steps": 4}),
    ("WarmupDecayLR", {"total_num_steps": 12, "warmup_max_lr": 0.02, "warmup_num_steps": 4}),
    ("WarmupDecayLR", {"total_num_steps": 10, "warmup_min_lr": 0.004, "warmup_num_steps": 5, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 3, "warmup_num_steps": 6}),
    ("WarmupCosineLR", {"total_num_steps": 12, "warmup_num_steps": 4}),
    ("WarmupCosineLR", {"total_num_steps": 10, "warmup_num_steps": 3, "warmup_min_ratio": 0.2, "cos_min_ratio": 0.05,
                        "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 2, "warmup_num_steps": 4}),
    ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 5}),
    ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 4, "cycle_second_step_size": 7,
                  "decay_step_size": 2, "decay_lr_rate": 0.5, "decay_mom_rate": 0.1, "cycle_min_mom": 0.7,
                  "cycle_max_mom": 0.95}),
    ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 8, "cycle_second_step_size": 5,
                  "cycle_first_stair_count": 4, "cycle_second_stair_count": 2, "cycle_momentum": False}),
    ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 3,
                  "cycle_second_step_size": 0}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.001, "lr_range_test_step_size": 4, "lr_range_test_step_rate": 2.0}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.001, "lr_range_test_step_size": 4, "lr_range_test_step_rate": 2.0,
                     "lr_range_test_staircase": True}),
]
STEPS = 20


def lua(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        return "{ " + ", ".join(lua(v) for v in value) + " }"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {lua(v)}" for k, v in value.items()) + " }"
    return f"{value:.15g}"


print("-- Written by gen_deepspeed_schedules_reference.py. Each case: the schedule, its options, and for")
print("-- each of the optimizer's steps the two groups' learning rates and the first group's beta1.")
print("return {")
for name, opts in CASES:
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": params[:1], "lr": 0.05}, {"params": params[1:], "lr": 0.1}])
    schedule = getattr(schedules, name)(optimizer, **opts)
    print(f'  {{ "{name}", {lua(opts)},')
    for step in range(STEPS):
        print("    {", ", ".join(lua(float(group["lr"])) for group in optimizer.param_groups) + ",",
              lua(float(optimizer.param_groups[0]["betas"][0])), "},")
        schedule.step()
    print("  },")
print("}")
