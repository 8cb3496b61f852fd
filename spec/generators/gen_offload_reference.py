"""Writes offload_reference.json beside device_maps_reference.json: a folder of offloaded weights, as Accelerate has it.

Run with a Python that has torch and accelerate (1.15).  Each weight is written as [name, type, shape, bytes of the
tensor in hexadecimal digits, bytes of its file]; those of bool are of numpy's.  `index` is index.json.
"""
import json
import os
import tempfile

import torch
from accelerate.utils import offload_state_dict

TYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
         "complex128"]
SHAPES = [[], [1], [3], [2, 3], [2, 1, 2], [0], [2, 0]]


def main():
    generator, weights = torch.Generator().manual_seed(7), {}
    for dtype in TYPES:
        for shape in SHAPES:
            x = torch.randn(shape + [2], generator=generator) * 50
            x = torch.view_as_complex(x) if dtype.startswith("complex") else x[..., 0]
            weights[f"{dtype}.{'x'.join(map(str, shape)) or 'one'}"] = x.to(getattr(torch, dtype))
    weights["strange.float32"] = torch.tensor([float("inf"), float("nan"), -0.0, 1e-42])
    weights["strange.bfloat16"] = weights["strange.float32"].bfloat16()
    weights["turned"] = torch.arange(6.0).view(2, 3).t()
    with tempfile.TemporaryDirectory() as folder:
        files, refused = [], []
        for name, w in weights.items():
            try:
                offload_state_dict(folder, {name: w})
            except ValueError:  # numpy maps no empty file
                refused.append(name)
                continue
            with open(os.path.join(folder, name + ".dat"), "rb") as f:
                content = f.read().hex()
            bits = torch.empty(w.numel(), dtype=w.dtype).copy_(w.flatten())
            bits = bits.view(torch.uint8) if w.dtype != torch.bool else bits.to(torch.uint8)
            files.append([name, str(w.dtype)[6:], list(w.shape), bytes(bits.tolist()).hex(), content])
        with open(os.path.join(folder, "index.json")) as f:
            index = json.load(f)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/offload_reference.json")
    with open(path, "w") as f:
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in files)
        f.write(f'{{"files": [\n{lines}\n],\n"index": {json.dumps(index)},\n"refused": {json.dumps(refused)}}}\n')
    print(len(files), "files; refused:", *refused)


main()
