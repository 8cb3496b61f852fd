"""Writes spec/reference/autocast_reference.lua: losses of an MLP that PyTorch trains under bfloat16 autocast on a CPU.

    python3 spec/generators/gen_autocast_reference.py

Weights and data come from a formula that spec/accelerate/mixed_precision_spec.lua repeats, so that
only losses are stored.
"""
import math
import os

import torch
from torch import nn

SIZES, ROWS, STEPS, LR = (24, 48, 32, 5), 40, 50, 3e-3


def wave(rows, cols, phase, scale):
    """Element i, counted along rows, is scale * sin(phase + 1.7 i + 0.001 i i) in float64, rounded to float32."""
    values = [scale * math.sin(phase + 1.7 * i + 0.001 * i * i) for i in range(rows * cols)]
    return torch.tensor(values, dtype=torch.float64).float().reshape(rows, cols)


def losses(dtype):
    layers = []
    for k, (n_in, n_out) in enumerate(zip(SIZES, SIZES[1:])):
        layer = nn.Linear(n_in, n_out)
        with torch.no_grad():
            layer.weight.copy_(wave(n_out, n_in, k, 1.7 / math.sqrt(n_in)))
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    x = wave(ROWS, SIZES[0], 0.5, 1.0)
    y = torch.tensor([(i * i + 3 * i) % SIZES[-1] for i in range(ROWS)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    found = []
    for _ in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            out = model(x)
        loss = nn.functional.cross_entropy(out.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def lua(name, values):
    lines, line = [], "   "
    for value in values:
        text = f" {value:.6g},"
        if len(line) + len(text) > 110:
            lines.append(line)
            line = "   "
        line += text
    return f"  {name} = {{\n" + "\n".join(lines + [line]) + "\n  },\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/autocast_reference.lua")
    with open(path, "w") as f:
        f.write("-- Written by gen_autocast_reference.py: the loss of each step, without and with bfloat16 autocast.\n"
            "return {\n")
        f.write(f"  sizes = {{ {', '.join(map(str, SIZES))} }}, rows = {ROWS}, steps = {STEPS}, lr = {LR:g},\n")
        f.write(lua("float32", losses("float32")) + lua("bfloat16", losses("bfloat16")) + "}\n")
