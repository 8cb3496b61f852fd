"""Writes the files beside this one: small models as llama.cpp's converter lays them out, by the gguf package's writer,
and expected.json: the scores that Transformers computes with the same numbers, and a sum over the bits of each weight.

    python spec/reference/gguf/generate.py      (with torch, transformers, gguf)

Where Transformers reads the architecture's files itself, its scores are compared with those.
"""
import json
import os

import gguf
import numpy as np
import torch
import transformers as tf

HERE = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)

# types that the gguf package does not encode: random bytes, and where each block has small half numbers
RANDOM = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0]}


def encoded(x, name, rng):
    """The bytes of a matrix in a type, and their numbers."""
    kind = gguf.GGMLQuantizationType[name]
    if name == "F32": return x, x
    if name == "F16": return x.astype(np.float16), x.astype(np.float16).astype(np.float32)
    if name in RANDOM:
        size, width = gguf.GGML_QUANT_SIZES[kind]
        b = rng.integers(0, 256, (x.size // size, width), dtype=np.uint8)
        for k in RANDOM[name]:
            small = rng.standard_normal(len(b)) * (0.0003 if name.endswith("K") else 0.001)
            b[:, k:k + 2] = small.astype(np.float16).reshape(-1, 1).view(np.uint8)
        b = b.reshape(x.shape[0], -1)
    else:
        b = gguf.quantize(x, kind)
    return b, gguf.dequantize(b, kind).astype(np.float32)


def in_pairs(x, heads):
    """Rows as llama.cpp turns them."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def in_halves(x, heads):
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def bits(x):
    """A sum over the bits of float32 numbers."""
    b = np.ascontiguousarray(x, dtype=np.float32).view(np.int32).astype(np.int64).reshape(-1)
    return int((b * (np.arange(len(b)) % 13 + 1)).sum())


def write(name, model, arch, settings, types, turned=False, centred=False, extra=(), reader=True, shuffle=None):
    """types: of the matrices, taken in turn.  settings: of the architecture, beyond what all have."""
    rng = np.random.default_rng(len(name))
    generator = torch.Generator().manual_seed(len(name))
    config = model.config
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", heads)
    path = os.path.join(HERE, name + ".gguf")
    w = gguf.GGUFWriter(path, arch)
    for key, (kind, value) in settings.items():
        getattr(w, "add_" + kind)(arch + "." + key, value)
    for key, value in (("bos", 1), ("eos", 2), ("padding", 0)): w.add_uint32("tokenizer.ggml.%s_token_id" % key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    sums, at, seen = {}, 0, set()
    for hf, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        p.data = (1 + 0.1 * noise if p.dim() == 1 and "bias" not in hf else 0.2 * noise)
        stem, ending = hf.rsplit(".", 1)
        new = names.get_name(stem)
        assert new, hf
        x = p.data.numpy()
        conv1d = arch == "gpt2" and p.dim() == 2 and "wte" not in hf and "wpe" not in hf and "lm_head" not in hf
        if conv1d: x = np.ascontiguousarray(x.T)
        which = new.split(".")[-1]
        count = {"attn_q": heads, "attn_k": groups}.get(which) if turned else None
        if count: x = in_pairs(x, count)
        add = centred and new.endswith("norm")
        if add: x = x + np.float32(1)
        kind = types[at % len(types)] if p.dim() == 2 and "wpe" not in hf else "F32"
        if p.dim() == 2: at += 1
        b, numbers = encoded(np.ascontiguousarray(x), kind, rng)
        raw = None if kind in ("F32", "F16") else gguf.GGMLQuantizationType[kind]
        w.add_tensor(new + "." + ending, b, raw_dtype=raw)
        if add: numbers = numbers - np.float32(1)
        if count: numbers = in_halves(numbers, count)
        p.data = torch.from_numpy(np.ascontiguousarray(numbers.T if conv1d else numbers))
        sums[hf] = bits(p.data.numpy())
    for tensor, values in extra: w.add_tensor(tensor, np.array(values, dtype=np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    model.eval()
    ids = torch.randint(1, config.vocab_size, (2, 9), generator=generator)
    with torch.no_grad():
        logits = model(ids).logits
        if reader:
            other = tf.AutoModelForCausalLM.from_pretrained(HERE, gguf_file=name + ".gguf", dtype=torch.float32)
            assert (other(ids).logits - logits).abs().max() < 1e-5, name
    print(name, os.path.getsize(path), "bytes", "as Transformers reads it" if reader else "", flush=True)
    return {"ids": ids.tolist(), "class": type(model).__name__, "sums": sums,
            "logits": [float("%.7g" % v) for v in logits.flatten().tolist()]}


def common(c, **more):
    """The settings of decoders of Llama's kind."""
    s = {"context_length": ("uint32", c.max_position_embeddings), "embedding_length": ("uint32", c.hidden_size),
         "vocab_size": ("uint32", c.vocab_size),
         "block_count": ("uint32", c.num_hidden_layers), "feed_forward_length": ("uint32", c.intermediate_size),
         "attention.head_count": ("uint32", c.num_attention_heads),
         "attention.head_count_kv": ("uint32", c.num_key_value_heads),
         "attention.layer_norm_rms_epsilon": ("float32", getattr(c, "rms_norm_eps", 1e-5))}
    theta = (getattr(c, "rope_parameters", None) or {}).get("rope_theta")
    if theta: s["rope.freq_base"] = ("float32", theta)
    return {**s, **more}


SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, vocab_size=50, rms_norm_eps=1e-5, rope_theta=500.0)
ALL32 = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "F16", "BF16"]
u32, f32 = (lambda v: ("uint32", v)), (lambda v: ("float32", v))
found = {}


def llamas():
    sizes = dict(SIZES, hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    m = tf.LlamaForCausalLM(tf.LlamaConfig(**sizes))
    found["llama_k"] = write("llama_k", m, "llama", common(m.config, **{"rope.dimension_count": u32(64)}),
                             ["Q4_K", "Q6_K", "Q5_K", "Q3_K", "Q2_K"], turned=True)
    m = tf.LlamaForCausalLM(tf.LlamaConfig(**dict(SIZES, tie_word_embeddings=True)))
    found["llama"] = write("llama", m, "llama", common(m.config, **{"rope.dimension_count": u32(16)}), ALL32,
                           turned=True)
    # Llama 3.1's angles, as the tensor that llama.cpp makes of them; Transformers' own reader leaves it out
    factors = [1, 1, 1.5, 2, 3, 4, 8, 8]
    rope = {"rope_type": "longrope", "rope_theta": 500.0, "short_factor": factors, "long_factor": factors,
            "original_max_position_embeddings": 64, "attention_factor": 1.0}
    sizes = {k: v for k, v in SIZES.items() if k != "rope_theta"}
    m = tf.LlamaForCausalLM(tf.LlamaConfig(**sizes, rope_parameters=rope))
    found["llama_factors"] = write("llama_factors", m, "llama", common(m.config, **{"rope.dimension_count": u32(16)}),
                                   ["Q8_0"], turned=True, extra=[("rope_freqs.weight", factors)], reader=False)


def others():
    m = tf.Qwen2ForCausalLM(tf.Qwen2Config(**SIZES))
    found["qwen2"] = write("qwen2", m, "qwen2", common(m.config), ["Q8_0", "Q4_0"])
    m = tf.Qwen3ForCausalLM(tf.Qwen3Config(**SIZES, head_dim=32))
    found["qwen3"] = write("qwen3", m, "qwen3", common(m.config, **{"attention.key_length": u32(32),
                           "attention.value_length": u32(32)}), ["Q8_0", "Q5_1"], reader=False)
    m = tf.Phi3ForCausalLM(tf.Phi3Config(**SIZES, pad_token_id=0, sliding_window=None))
    found["phi3"] = write("phi3", m, "phi3", common(m.config, **{"rope.dimension_count": u32(16),
                          "rope.scaling.original_context_length": u32(4096), "attention.sliding_window": u32(0)}),
                          ["Q8_0", "Q4_1"])
    m = tf.GemmaForCausalLM(tf.GemmaConfig(**SIZES, head_dim=32))
    heads = {"attention.key_length": u32(32), "attention.value_length": u32(32)}
    found["gemma"] = write("gemma", m, "gemma", common(m.config, **heads), ["Q8_0", "F16"], centred=True, reader=False)
    m = tf.Gemma2ForCausalLM(tf.Gemma2Config(**SIZES, head_dim=32, query_pre_attn_scalar=32, sliding_window=4))
    m.config._attn_implementation = "eager"
    found["gemma2"] = write("gemma2", m, "gemma2", common(m.config, **heads, **{"attention.sliding_window": u32(4),
                            "attn_logit_softcapping": f32(50.0), "final_logit_softcapping": f32(30.0)}),
                            ["Q8_0", "Q4_0"], centred=True, reader=False)
    m = tf.Olmo2ForCausalLM(tf.Olmo2Config(**SIZES))
    found["olmo2"] = write("olmo2", m, "olmo2", common(m.config), ["Q8_0"], reader=False)
    m = tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**dict(SIZES, num_hidden_layers=4), pad_token_id=0))
    found["smollm3"] = write("smollm3", m, "smollm3", common(m.config, **{"rope.dimension_count": u32(16)}), ["Q4_0"],
                             turned=True, reader=False)
    m = tf.GraniteForCausalLM(tf.GraniteConfig(**SIZES, attention_multiplier=0.2, embedding_multiplier=3.0,
                              residual_multiplier=0.5, logits_scaling=2.0))
    found["granite"] = write("granite", m, "granite", common(m.config, **{"attention.scale": f32(0.2),
                             "embedding_scale": f32(3.0), "residual_scale": f32(0.5), "logit_scale": f32(2.0)}),
                             ["Q8_0"], turned=True, reader=False)
    m = tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=64, vocab_size=50))
    found["gpt2"] = write("gpt2", m, "gpt2", {"context_length": u32(64), "embedding_length": u32(64),
                          "block_count": u32(2), "feed_forward_length": u32(256), "attention.head_count": u32(4),
                          "attention.layer_norm_epsilon": f32(1e-5)}, ["Q8_0", "Q4_0", "Q5_0"], reader=False)
    sizes = {k: v for k, v in SIZES.items() if k not in ("rms_norm_eps",)}
    m = tf.Starcoder2ForCausalLM(tf.Starcoder2Config(**sizes, sliding_window=None))
    s = common(m.config, **{"attention.layer_norm_epsilon": f32(1e-5)})
    del s["attention.layer_norm_rms_epsilon"]
    found["starcoder2"] = write("starcoder2", m, "starcoder2", s, ["Q8_0"], reader=False)


llamas()
others()
with open(os.path.join(HERE, "expected.json"), "w") as f:
    json.dump(found, f, sort_keys=True)
    f.write("\n")
