"""Checks folders that accelerate.models writes with Transformers: every folder of spec/models/folders is read and
written by accel-run and opened here, and must give the same results.

    ACCEL_RUN=build/accel-run python3 spec/support/check_models.py
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers

ROOT = "spec/models/folders"
SCRIPT = """
local models = require "accelerate.models"
local class, from, to, size = ...
models[class].from_pretrained(from):save_pretrained(to, { max_shard_size = size })
"""

transformers.logging.set_verbosity_error()
worst = 0
for name in sorted(os.listdir(ROOT)):
    with open(os.path.join(ROOT, name, "expected.json")) as f:
        expected = json.load(f)
    inputs = {k: torch.tensor(t["values"], dtype=getattr(torch, t["dtype"])).view(t["shape"])
        for k, t in expected["inputs"].items()}
    for size in ["1GB", "8KB"]:
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.lua")
            with open(script, "w") as f:
                f.write(SCRIPT)
            out = os.path.join(folder, "out")
            subprocess.run([os.environ["ACCEL_RUN"], script, expected["class"], os.path.join(ROOT, name), out, size],
                check=True)
            model, info = getattr(transformers, expected["class"]).from_pretrained(out, output_loading_info=True)
            if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
                sys.exit(f"{name}: {info}")
            auto = transformers.AutoConfig.from_pretrained(out)
            assert auto.architectures == [expected["class"]], auto.architectures
            with torch.no_grad():
                found = model.eval()(**inputs)[expected["output"]]
            far = (found.flatten() - torch.tensor(expected["values"])).abs().max().item()
            worst = max(worst, far)
            if far > 1e-5:
                sys.exit(f"{name}: results differ by {far:g}")
print(f"Transformers {transformers.__version__}: {len(os.listdir(ROOT))} folders, largest difference {worst:.2g}")
