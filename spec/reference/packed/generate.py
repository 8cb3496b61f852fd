"""Writes the folders beside this file: a small Llama with weights as GPTQ, AWQ and fp8 files have them, and in each
expected.safetensors: some weights as the formats' formulas give them, and the scores of the model with all of them.

    python spec/reference/packed/generate.py      (with torch, transformers, safetensors)
"""
import copy
import json
import os

import torch
import transformers as tf
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)
CONFIG = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, vocab_size=48, rope_theta=500.0, bos_token_id=1, eos_token_id=2)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(codes, bits, order=None):
    """(.., n) codes in words of 32 bits (.., n * bits / 32), the first in the lowest bits."""
    per = 32 // bits
    parts = codes.reshape(*codes.shape[:-1], -1, per).long()
    total = torch.zeros(parts.shape[:-1], dtype=torch.long)
    for i in range(per): total |= parts[..., order[i] if order else i] << (bits * i)
    return torch.where(total >= 2 ** 31, total - 2 ** 32, total).int()


def integers(w, bits, group, g_idx, symmetric):
    """Codes (out, in), scales and zeros (groups, out) of the nearest numbers, and these."""
    most = 2 ** bits - 1
    groups = int(g_idx.max()) + 1
    scales, zeros = torch.zeros(groups, w.shape[0]), torch.zeros(groups, w.shape[0])
    for g in range(groups):
        part = w[:, g_idx == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            scales[g], zeros[g] = torch.maximum(-low, high) * 2 / most, (most + 1) // 2
        else:
            scales[g] = (high - low) / most
            zeros[g] = (-low / scales[g]).round()
    scales = scales.half()
    codes = ((w / scales.float()[g_idx].t()).round() + zeros[g_idx].t()).clamp(0, most)
    values = scales[g_idx].t() * (codes - zeros[g_idx].t()).half()
    exact = scales.float()[g_idx].t() * (codes - zeros[g_idx].t())
    return codes, scales, zeros, values, exact


def gptq(w, bits=4, group=32, act=False, symmetric=False, offset=1):
    inputs = w.shape[1]
    size = inputs if group == -1 else group
    g_idx = torch.arange(inputs) // size
    if act: g_idx = g_idx[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    codes, scales, zeros, values, exact = integers(w, bits, size, g_idx, symmetric)
    stored = (zeros - offset).long() & (2 ** bits - 1)
    return {"qweight": words(codes, bits).t().contiguous(), "qzeros": words(stored, bits), "scales": scales,
            "g_idx": g_idx.int()}, values, exact


def awq(w, group=32):
    g_idx = torch.arange(w.shape[1]) // group
    codes, scales, zeros, values, exact = integers(w, 4, group, g_idx, False)
    parts = {"qweight": words(codes.t(), 4, AWQ_ORDER), "qzeros": words(zeros, 4, AWQ_ORDER), "scales": scales}
    return parts, values, exact


def fp8(w, block=None, rows=False, name="weight_scale_inv", dtype=torch.float32):
    """A scale for each block, each row, or one."""
    if rows: scales = w.abs().amax(1, keepdim=True) / 448
    elif block:
        h, v = -(-w.shape[0] // block), -(-w.shape[1] // block)
        scales = torch.stack([torch.stack([w[i * block:(i + 1) * block, j * block:(j + 1) * block].abs().amax()
                                           for j in range(v)]) for i in range(h)]) / 448
    else: scales = w.abs().amax().reshape(1) / 448
    scales = scales.to(dtype)
    wide = scales.float()
    if block: wide = wide.repeat_interleave(block, 0)[:w.shape[0]].repeat_interleave(block, 1)[:, :w.shape[1]]
    codes = (w / wide).to(torch.float8_e4m3fn)
    values = codes.float() * wide
    return {"weight": codes, name: scales}, values.half(), values


def write(name, quantization, encode):
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    config = tf.LlamaConfig(**CONFIG)
    model = tf.LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(7)
    for key, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        p.data = (1 + 0.1 * noise if p.dim() == 1 else 0.2 * noise).half().float()
    tensors, expected = {}, {}
    for key, p in model.state_dict().items():
        path = key[:-len(".weight")]
        if "_proj" not in key:
            tensors[key] = p.half()
            continue
        parts, values, exact = encode(p)
        for part, t in parts.items(): tensors[path + "." + part] = t.contiguous()
        if "q_proj" in key or "down_proj" in key: expected[key] = values.contiguous()
        p.data.copy_(exact)
    config = dict(json.loads(config.to_json_string()), architectures=["LlamaForCausalLM"], dtype="float16",
                  quantization_config=quantization)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
        f.write("\n")
    save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    expected["ids"] = torch.randint(1, 48, (2, 9), generator=generator)
    with torch.no_grad(): expected["logits"] = model(expected["ids"]).logits
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    if name == "fp8_blocks":
        plain = tf.FineGrainedFP8Config(weight_block_size=(32, 32), dequantize=True)
        other = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=plain)
        print("Transformers dequantizes to", (other(expected["ids"]).logits - expected["logits"]).abs().max().item())
    print(name, sum(os.path.getsize(os.path.join(folder, x)) for x in os.listdir(folder)), "bytes", flush=True)


base = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False, "true_sequential": True,
        "damp_percent": 0.1}
write("gptq", dict(base, checkpoint_format="gptq"), gptq)
write("gptq_act", dict(base, desc_act=True, sym=True), lambda w: gptq(w, act=True, symmetric=True))
write("gptq_v2", dict(base, checkpoint_format="gptq_v2", group_size=-1), lambda w: gptq(w, group=-1, offset=0))
write("gptq_8", dict(base, bits=8, desc_act=True), lambda w: gptq(w, bits=8, act=True))
write("awq", {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
              "modules_to_not_convert": None}, awq)
write("fp8_blocks", {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic",
                     "fmt": "e4m3"}, lambda w: fp8(w, block=32))
group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False},
         "input_activations": {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}}
ROWS = dict(rows=True, dtype=torch.bfloat16)
for name, strategy, how in (("fp8_rows", "channel", ROWS), ("fp8_tensor", "tensor", {})):
    g = copy.deepcopy(group)
    g["weights"]["strategy"] = strategy
    write(name, {"quant_method": "compressed-tensors", "format": "float-quantized",
                 "config_groups": {"group_0": g}, "ignore": ["lm_head"], "quantization_status": "compressed",
                 "kv_cache_scheme": None}, lambda w: fp8(w, name="weight_scale", **how))
