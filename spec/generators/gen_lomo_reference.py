"""Writes lomo_reference.lua: trajectories of the authors' LOMO and AdaLOMO (PyPI package lomo-optim) on a CPU.

    python3 spec/generators/gen_lomo_reference.py > spec/reference/lomo_reference.lua
"""
import importlib.machinery
import math
import sys
import textwrap
import types

import torch

# The package asks transformers two questions only, and puts its state on a GPU.
for name in ["transformers", "transformers.integrations", "transformers.integrations.deepspeed", "transformers.utils"]:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = module
sys.modules["transformers.integrations.deepspeed"].is_deepspeed_zero3_enabled = lambda: False
sys.modules["transformers.utils"].logging = types.SimpleNamespace(get_logger=lambda: None)
torch.Tensor.cuda = lambda self: self
from lomo_optim import AdaLomo, Lomo  # noqa: E402


def wave(shape, start):
    n = math.prod(shape)
    return torch.tensor([0.5 * math.sin(start + 0.7 * i) for i in range(n)], dtype=torch.float32).reshape(shape)


CASES = [
    ("lomo", Lomo, {}, 0.05),
    ("lomo_decay", Lomo, {"weight_decay": 0.1}, 0.05),
    ("lomo_value", Lomo, {"clip_grad_value": 0.02}, 0.5),
    ("lomo_norm", Lomo, {"clip_grad_norm": 0.1}, 0.5),
    ("adalomo", AdaLomo, {}, 0.05),
    ("adalomo_all", AdaLomo, {"weight_decay": 0.1, "clip_threshold": 0.5, "decay_rate": -0.6, "eps": (1e-8, 1e-2),
        "clip_grad_value": 0.05}, 0.1),
    ("adalomo_norm", AdaLomo, {"clip_grad_norm": 0.1}, 0.1),
]

print("-- Made by gen_lomo_reference.py: loss of each of 6 passes, then all parameters after them.")
print("return {")
for name, Class, options, lr in CASES:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(wave(p.shape, i + 1))
    optimizer = Class(model, **options)
    losses = []
    for t in range(6):
        loss = (model(wave((4, 3), 10 + t)) - wave((4, 2), 20 + t)).square().mean()
        losses.append(loss.item())
        if "clip_grad_norm" in options:
            optimizer.grad_norm(loss)
        optimizer.fused_backward(loss, lr)
    values = [v for p in model.parameters() for v in p.detach().flatten().tolist()]
    print("  %s = {" % name)
    for key, numbers in ("losses", losses), ("values", values):
        text = "%s = { %s }," % (key, ", ".join("%.7g" % v for v in numbers))
        print(textwrap.fill(text, 125, initial_indent="    ", subsequent_indent="      "))
    print("  },")
print("}")
