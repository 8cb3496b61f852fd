"""Writes the files of this folder: what bitsandbytes and gguf make of some weights.

    python spec/reference/quantised/generate.py      (with torch, bitsandbytes, gguf, safetensors)
"""
import os

import bitsandbytes.functional as F
import gguf
import numpy as np
import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(0)
torch.set_num_threads(1)  # PyTorch's sums depend on their number


def four_bits(out):
    """name.x is encoded; name.TYPE.codes, .absmax, .more, and values in three types."""
    samples = {"plain": torch.randn(48, 128) * 0.05, "half": (torch.randn(24, 128) * 0.3).half(),
               "bfloat": torch.randn(10, 64).bfloat16(), "odd": torch.randn(7, 13), "zeros": torch.zeros(4, 64),
               "large": torch.randn(300, 64) * torch.rand(300, 1)}
    for name, x in samples.items():
        out[name + ".x"] = x
        for kind in ("nf4", "fp4"):
            codes, state = F.quantize_4bit(x, quant_type=kind)
            key = "%s.%s." % (name, kind)
            out[key + "codes"], out[key + "absmax"] = codes, state.absmax
            if name == "large" or name == "odd": out[key + "values"] = F.dequantize_4bit(codes, state).float()
            _, doubled = F.quantize_4bit(x, quant_type=kind, compress_statistics=True)
            out[key + "absmax8"] = doubled.absmax
            out[key + "more"] = torch.cat([doubled.state2.code, doubled.offset.reshape(1), doubled.state2.absmax])
            out[key + "doubled"] = F.dequantize_4bit(codes, doubled).to(x.dtype)


def eight_bits(out):
    x, a = torch.randn(40, 64) * 0.2, torch.randn(5, 64) * 2
    x[3] = 0
    x[5, 0], x[5, 1:] = 0.0280303955078125, 0.042633056640625  # 127 / x and 127 * (1 / x) differ
    codes, scale, _ = F.int8_vectorwise_quant(x.half())
    out["int8.x"], out["int8.codes"], out["int8.scale"] = x, codes.view(torch.uint8), scale
    out["int8.values"] = F.int8_vectorwise_dequant(codes, scale)
    out["int8.bias"] = torch.randn(40)
    for threshold in (0.0, 3.0):
        half = a.half()
        ca, sca, large = F.int8_vectorwise_quant(half.clone(), threshold=threshold)
        if threshold > 0:
            y, _ = torch.ops.bitsandbytes.int8_mixed_scaled_mm(a, ca, codes, sca, scale, large, out["int8.bias"])
        else:
            y = torch.ops.bitsandbytes.int8_scaled_mm.default(ca, codes, sca, scale, bias=out["int8.bias"],
                                                               dtype=a.dtype)
        out["int8.y%d" % threshold] = y
    out["int8.a"] = a


def blocks(out):
    """Three rows of random bytes of each type; scales are small half numbers."""
    rng = np.random.default_rng(0)
    places = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
              "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "MXFP4": []}
    for name, at in places.items():
        kind = gguf.GGMLQuantizationType[name]
        size, width = gguf.GGML_QUANT_SIZES[kind]
        n = 3 * 512 // size
        b = rng.integers(0, 256, (n, width), dtype=np.uint8)
        for k in at:
            b[:, k:k + 2] = (rng.standard_normal(n) * 0.1).astype(np.float16).reshape(n, 1).view(np.uint8)
        if name == "MXFP4": b[:, 0] = rng.integers(0, 140, n)
        out["blocks.%s.codes" % name] = torch.from_numpy(b.reshape(3, -1))
        out["blocks.%s.values" % name] = torch.from_numpy(gguf.dequantize(b, kind).reshape(3, 512).copy())


out = {}
four_bits(out)
eight_bits(out)
blocks(out)
save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(HERE, "reference.safetensors"))
