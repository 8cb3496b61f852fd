"""Times each call of bench/calls.txt in PyTorch; one line of JSON, as bench/calls.lua prints it."""

import argparse
import json
import os
import re
import statistics
import time
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
SECONDS, LEAST_CALLS, MOST_CALLS = 0.4, 3, 12

arguments = argparse.ArgumentParser()
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--least", action="store_true")
arguments.add_argument("--only", default="")
options = arguments.parse_args()
torch.set_num_threads(options.threads)
torch.manual_seed(1)

operands = {
    "torch": torch, "nn": nn, "F": torch.nn.functional,
    "R": lambda *shape: torch.randn(*shape).requires_grad_(),
}
seeds = {}


def backward(y):
    if isinstance(y, tuple):
        y = y[0]
    if y.numel() == 1:
        y.sum().backward()
        return
    key = tuple(y.shape)
    if key not in seeds:
        seeds[key] = torch.ones(key)
    y.backward(seeds[key])


def clear_gradients():
    for value in operands.values():
        if isinstance(value, torch.Tensor):
            value.grad = None
        elif isinstance(value, nn.Module):
            value.zero_grad(set_to_none=True)


def measure(text, gradient):
    fn = eval("lambda: " + text, operands)
    times, began = [], time.perf_counter()
    for k in range(MOST_CALLS + 1):
        start = time.perf_counter()
        y = fn()
        if gradient:
            backward(y)
        del y
        if k > 0:
            times.append((time.perf_counter() - start) * 1e3)
        if gradient:
            clear_gradients()
        if k >= LEAST_CALLS and time.perf_counter() - began > SECONDS:
            break
    return min(times) if options.least else statistics.median(times)


out = []
with open(os.path.join(os.path.dirname(__file__), "..", "calls.txt")) as lines:
    for line in lines:
        row = re.match(r"\s*([^#].*?)\s+\|\s+(.*?)\s*$", line)
        if not row:
            continue
        ours, theirs = row.groups()
        operand = re.match(r"([A-Za-z_0-9]+) = ", ours)
        if operand:
            operands[operand.group(1)] = eval(theirs, operands)
            continue
        gradient = ours.startswith("B ")
        out.append(measure(theirs, gradient) if options.only in ours else None)
print(json.dumps({"calls": out}))
