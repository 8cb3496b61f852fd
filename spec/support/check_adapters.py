"""PEFT's side of adapters' folders: has PEFT open folders that accel-run wrote, over plain weights and over nf4, and
compares the scores; the specs read PEFT's own folders (spec/reference/peft).

    python3 spec/support/check_adapters.py build/accel-run      (needs torch, transformers, peft, bitsandbytes)
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

KINDS = {
    "lora": "r = 4, lora_alpha = 8, target_modules = { 'c_attn', 'c_proj' }",
    "rslora": "r = 4, use_rslora = true, target_modules = 'all-linear'",
    "dora": "r = 4, use_dora = true, target_modules = { 'c_attn', 'c_fc' }",
    "bias": "r = 2, bias = 'all', modules_to_save = { 'ln_f' }, target_modules = { 'c_attn' }",
}

WRITE = """
local core = require "accelerate.core"
local models, peft, utils = require "accelerate.models", require "accelerate.peft", require "accelerate.utils"
local folder, encoded = arg[1], arg[2] == "nf4"
core.manual_seed(0)
local base = models.GPT2LMHeadModel { vocab_size = 40, n_positions = 16, n_embd = 64, n_layer = 2, n_head = 2,
  bos_token_id = 0, eos_token_id = 0 }
base:save_pretrained(folder .. "/base")
local codes = encoded and utils.BnbQuantizationConfig { load_in_4bit = true, bnb_4bit_quant_type = "nf4",
  bnb_4bit_compute_dtype = "fp32" } or nil
local model = peft.get_peft_model(models.from_pretrained(folder .. "/base", { quantization_config = codes }),
  peft.LoraConfig { task_type = "CAUSAL_LM", init_lora_weights = false, %s })
model:eval()
model:save_pretrained(folder .. "/adapter")
print(require("accelerate.utils.json").encode(model(core.arange(8):view(2, 4)).logits:tolist()))
"""


def check(host, kind, encoded, folder):
    script = os.path.join(folder, "write.lua")
    with open(script, "w") as f:
        f.write(WRITE % KINDS[kind])
    out = subprocess.run([host, script, folder, "nf4" if encoded else "plain"], check=True, capture_output=True,
                         text=True)
    ours = torch.tensor(json.loads(out.stdout))
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(folder + "/base", dtype=torch.float32, device_map="cpu",
                                                **({"quantization_config": config} if encoded else {}))
    # Codes that bitsandbytes packs anew for AVX512-BF16 compute in bfloat16, and PEFT's DoRA decodes them wrongly.
    for module in base.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"): module.support_avx512bf16_for_cpu = False
    model = PeftModel.from_pretrained(base, folder + "/adapter").eval()
    with torch.no_grad():
        theirs = model(torch.arange(8).reshape(2, 4)).logits
    return (ours - theirs).abs().max().item() / theirs.abs().max().item()


def main():
    failed = False
    for encoded in (False, True):
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                off = check(os.path.abspath(sys.argv[1]), kind, encoded, folder)
            failed |= not off < 1e-5
            print(f"{kind:7} over {'nf4' if encoded else 'float32':8} off by {off:.1e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
