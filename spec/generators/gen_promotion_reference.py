"""Writes spec/reference/promotion_reference.lua: PyTorch's result types.  Run: python3
spec/generators/gen_promotion_reference.py"""
import os

import torch

NAMES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
OPS = {"add": torch.add, "mul": torch.mul, "div": torch.div, "eq": torch.eq}
# what stands on the right: a tensor with dims, a 0-d tensor, or a Python number
NUMBERS = {"integral": 2, "fractional": 2.5}

lines = ["--- Made by gen_promotion_reference.py with PyTorch; do not edit.", "return {"]
for op, f in OPS.items():
    for a in NAMES:
        row = []
        x = torch.ones(2, dtype=getattr(torch, a))
        for b in NAMES:
            y = getattr(torch, b)
            for kind, other in (("dims", torch.ones(2, dtype=y)), ("scalar", torch.ones((), dtype=y))):
                row.append(f'{b}_{kind} = "{str(f(x, other).dtype)[6:]}"')
        for kind, number in NUMBERS.items():
            row.append(f'{kind} = "{str(f(x, number).dtype)[6:]}"')
        lines.append(f'  {{ op = "{op}", a = "{a}", {", ".join(row)} }},')
for op in ("sum", "mean", "exp", "abs"):
    for a in NAMES:
        try:
            got = str(getattr(torch.ones(2, dtype=getattr(torch, a)), op)().dtype)[6:]
        except RuntimeError:
            got = "error"
        lines.append(f'  {{ op = "{op}", a = "{a}", result = "{got}" }},')
lines.append("}")
with open(os.path.join(os.path.dirname(__file__), "../reference/promotion_reference.lua"), "w") as out:
    out.write("\n".join(lines) + "\n")
