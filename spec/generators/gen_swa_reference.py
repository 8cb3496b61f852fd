"""Writes swa_reference.lua: what torch.optim.swa_utils does in the scenarios of spec/accelerate/swa_utils_spec.lua.

    python3 gen_swa_reference.py > swa_reference.lua        (needs torch)
"""
import torch
from torch.optim import swa_utils

torch.set_default_dtype(torch.float64)


def lua(v):
    if isinstance(v, list):
        return "{ " + ", ".join(lua(x) for x in v) + " }"
    return repr(float(v)).removesuffix(".0")


def pattern(shape, t):
    n = torch.Size(shape).numel()
    return torch.tensor([((i * 5 + 3 * t) % 17 - 8) / 16 for i in range(n)]).reshape(shape)


def net():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def advance(model, t):
    """Sets every parameter and runs one forward pass, which moves the statistics."""
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(pattern(p.shape, t + k))
        model(pattern((4, 2), t))


def flat(module):
    return [v for t in module.state_dict().values() for v in t.reshape(-1).tolist()]


KINDS = {
    "mean": {}, "mean together": dict(multi_avg_fn=swa_utils.get_swa_multi_avg_fn()),
    "ema": dict(avg_fn=swa_utils.get_ema_avg_fn(0.9)),
    "ema together": dict(multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
    "buffers": dict(use_buffers=True),
    "ema buffers": dict(multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.75), use_buffers=True),
    "own": dict(avg_fn=lambda a, b, n: (a * n + b) / 2),
}

print("-- Written by gen_swa_reference.py with PyTorch.\nreturn {\n  averages = {")
for name, how in KINDS.items():
    model = net()
    averaged = swa_utils.AveragedModel(model, **how)
    for t in range(5):
        advance(model, t)
        averaged.update_parameters(model)
    print(f'    ["{name}"] = {lua(flat(averaged))},')
print("  },")
model = net()
advance(model, 0)
swa_utils.update_bn([[pattern((4, 2), t), 0] for t in range(3)], model)
print(f"  update_bn = {lua(flat(model))},\n  rates = {{")
for strategy, epochs in ("cos", 4), ("linear", 3), ("linear", 0):
    optimizer = torch.optim.SGD([dict(params=[torch.ones(1)], lr=1.0), dict(params=[torch.ones(1)], lr=0.5)])
    scheduler = swa_utils.SWALR(optimizer, [0.1, 0.2], epochs, strategy)
    rates = [scheduler.get_last_lr()]
    for _ in range(6):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr())
    print(f'    {{ "{strategy}", {epochs}, {lua(rates)} }},')
print("  },\n}")
