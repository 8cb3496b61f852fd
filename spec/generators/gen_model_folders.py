"""Writes spec/models/folders: small models with random weights as Transformers saves them, each with the results that
Transformers has for given inputs (expected.json): logits, the loss, gradients, generated tokens.

    python3 spec/generators/gen_model_folders.py spec/models/folders [NAME ...]
"""
import copy
import json
import os
import sys

import torch
import transformers
from transformers import BertConfig, GPT2Config, LlamaConfig, ResNetConfig, T5Config, ViTConfig

torch.set_num_threads(1)


def randomised(model, seed):
    """Every parameter is drawn: no bias is zero, no norm is one."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        norm = p.dim() == 1 and "bias" not in name
        p.data = (1 + 0.1 * noise) if norm else 0.2 * noise
    for name, b in model.named_buffers():
        if name.endswith("running_mean"):
            b.copy_(0.2 * torch.randn(b.shape, generator=generator))
        elif name.endswith("running_var"):
            b.copy_(1 + 0.5 * torch.rand(b.shape, generator=generator))
    return model.eval()


def digits(t):
    return [float(f"{v:.7g}") for v in t.detach().double().flatten().tolist()]


def gradients(model):
    """Of each parameter: the norm of its gradient, and the sum with weights sin(1), sin(2), ..."""
    found = {}
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        g = p.grad.double().flatten()
        found[name] = [float(f"{g.norm():.7g}"), float(f"{(g * torch.arange(1, len(g) + 1).double().sin()).sum():.7g}")]
    return found


def write(root, name, model, inputs, output="logits", extra=None, **save):
    folder = os.path.join(root, name)
    model.save_pretrained(folder, **save)
    model.zero_grad()
    out = model(**inputs)
    expected = {"class": type(model).__name__, "inputs": {}, "shape": list(out[output].shape),
        "output": output, "values": digits(out[output])}
    for key, t in inputs.items():
        expected["inputs"][key] = {"shape": list(t.shape), "dtype": str(t.dtype)[6:], "values": digits(t)
            if t.is_floating_point() else t.flatten().tolist()}
    if "loss" in out and out.loss is not None:
        out.loss.backward()
        expected["loss"] = float(f"{out.loss.item():.7g}")
        expected["gradients"] = gradients(model)
    expected.update(extra or {})
    with open(os.path.join(folder, "expected.json"), "w") as f:
        json.dump(expected, f, indent=None, sort_keys=True)
        f.write("\n")
    print(name, sum(os.path.getsize(os.path.join(folder, x)) for x in os.listdir(folder)), "bytes", flush=True)


def ids(seed, vocabulary, *shape):
    return torch.randint(1, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def generated(model, prompt, cases, **common):
    """Tokens that generate gives, by the options that are given here and there."""
    found = []
    for case in cases:
        out = model.generate(**prompt, **common, **case)
        found.append({"options": {**common, **case}, "tokens": out.tolist()})
    return found


GREEDY = [
    {"do_sample": False, "max_new_tokens": 12},
    {"do_sample": False, "max_new_tokens": 12, "repetition_penalty": 1.7},
    {"do_sample": False, "max_new_tokens": 10, "num_beams": 3},
    {"do_sample": False, "max_new_tokens": 10, "num_beams": 4, "length_penalty": 0.3, "early_stopping": True,
        "num_return_sequences": 2},
    {"do_sample": False, "max_new_tokens": 10, "min_new_tokens": 6},
]


def decoder_extra(model, vocabulary, seed):
    """Generation with and without padding on the left; some rows end before the others."""
    rows = ids(seed, vocabulary - 1, 3, 5)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    common = {"pad_token_id": vocabulary - 1, "eos_token_id": [7, 11]}
    return {
        "prompt": rows.tolist(), "mask": mask.tolist(),
        "padded": generated(model, {"input_ids": rows, "attention_mask": mask}, GREEDY, **common),
        "plain": generated(model, {"input_ids": rows, "attention_mask": torch.ones_like(mask)}, GREEDY, **common),
    }


def gpt2(root):
    config = GPT2Config(vocab_size=37, n_positions=32, n_embd=16, n_layer=2, n_head=4, n_inner=24, bos_token_id=0,
        eos_token_id=7, scale_attn_by_inverse_layer_idx=True)
    rows = ids(1, 37, 2, 7)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    labels = rows.masked_fill(mask == 0, -100)
    model = randomised(transformers.GPT2LMHeadModel(config), 2)
    write(root, "gpt2", model, {"input_ids": rows, "attention_mask": mask, "labels": labels},
        extra=decoder_extra(model, 37, 3), max_shard_size="6KB")
    config.num_labels, config.pad_token_id = 3, 0
    model = randomised(transformers.GPT2ForSequenceClassification(config), 4)
    write(root, "gpt2_classes", model, {"input_ids": rows, "attention_mask": mask, "labels": torch.tensor([2, 0])})


def bert(root):
    config = BertConfig(vocab_size=41, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=20, num_labels=3)
    rows = ids(5, 41, 2, 9)
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    kinds = torch.tensor([[0] * 5 + [1] * 4] * 2)
    inputs = {"input_ids": rows, "attention_mask": mask, "token_type_ids": kinds}
    model = randomised(transformers.BertForSequenceClassification(config), 6)
    write(root, "bert_classes", model, {**inputs, "labels": torch.tensor([2, 1])})
    tokens = ids(7, 3, 2, 9).masked_fill(mask == 0, -100)
    write(root, "bert_tokens", randomised(transformers.BertForTokenClassification(config), 8),
        {**inputs, "labels": tokens})
    write(root, "bert_masked", randomised(transformers.BertForMaskedLM(config), 9),
        {**inputs, "labels": rows.masked_fill(mask == 0, -100)})
    config.hidden_act = "gelu_new"
    write(root, "bert", randomised(transformers.BertModel(config), 10), inputs, "last_hidden_state")


def bert_like(root):
    """RoBERTa with padding before tokens, too; narrow embeddings of ELECTRA; DistilBERT's own names; ALBERT's
    layers, several of which are one; MPNet with distances of more than one bucket."""
    from transformers import (AlbertConfig, DistilBertConfig, ElectraConfig, MPNetConfig, RobertaConfig,
        XLMRobertaConfig)
    common = dict(vocab_size=41, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=20, num_labels=3)
    own = dict(vocab_size=41, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=20, num_labels=3)
    shared = {**common, "num_hidden_layers": 4, "embedding_size": 8}
    mask = torch.tensor([[1] * 9, [0] + [1] * 5 + [0] * 3])
    classes = {"labels": torch.tensor([2, 1])}
    tokens = {"labels": ids(7, 3, 2, 9).masked_fill(mask == 0, -100)}
    for seed, (name, task, config, labels) in enumerate([
        ("roberta_classes", "SequenceClassification", RobertaConfig(**common, type_vocab_size=1), classes),
        ("roberta_masked", "MaskedLM", RobertaConfig(**common), None),
        ("xlm_roberta_tokens", "TokenClassification", XLMRobertaConfig(**common), tokens),
        ("xlm_roberta", "", XLMRobertaConfig(**common), {}),
        ("electra_classes", "SequenceClassification", ElectraConfig(**common, embedding_size=8), classes),
        ("electra_tokens", "TokenClassification", ElectraConfig(**common, embedding_size=16), tokens),
        ("distilbert_classes", "SequenceClassification", DistilBertConfig(**own), classes),
        ("distilbert_tokens", "TokenClassification", DistilBertConfig(**own), tokens),
        ("distilbert_masked", "MaskedLM", DistilBertConfig(**own), None),
        ("albert_classes", "SequenceClassification", AlbertConfig(**shared), classes),
        ("albert_tokens", "TokenClassification", AlbertConfig(**shared, num_hidden_groups=2), tokens),
        ("albert_masked", "MaskedLM", AlbertConfig(**shared, num_hidden_groups=2, inner_group_num=2), None),
        ("mpnet", "", MPNetConfig(**common), {}),
        ("mpnet_classes", "SequenceClassification", MPNetConfig(**common), classes),
        ("mpnet_tokens", "TokenClassification", MPNetConfig(**common), tokens),
        ("mpnet_masked", "MaskedLM", MPNetConfig(**common), None),
    ]):
        rows = ids(60 + seed, 41, 2, 9).masked_fill(mask == 0, config.pad_token_id)
        if labels is None:
            labels = {"labels": rows.masked_fill(mask == 0, -100)}
        auto = getattr(transformers, "AutoModelFor" + task if task else "AutoModel")
        model = randomised(auto.from_config(config), 70 + seed)
        write(root, name, model, {"input_ids": rows, "attention_mask": mask, **labels},
            "logits" if task else "last_hidden_state")


def llama(root):
    common = dict(vocab_size=37, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=7)
    scaled = {"rope_type": "llama3", "rope_theta": 50.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}
    rows = ids(11, 37, 2, 9)
    model = randomised(transformers.LlamaForCausalLM(LlamaConfig(**common, rope_parameters=scaled)), 12)
    write(root, "llama", model, {"input_ids": rows, "labels": rows}, extra=decoder_extra(model, 37, 13))
    linear = LlamaConfig(**common, head_dim=6, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0})
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    model = randomised(transformers.LlamaForCausalLM(linear), 14)
    write(root, "llama_linear", model, {"input_ids": rows, "attention_mask": mask,
        "labels": rows.masked_fill(mask == 0, -100)})
    yarn = {"rope_type": "yarn", "rope_theta": 20.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 4.0}
    model = randomised(transformers.LlamaForCausalLM(LlamaConfig(**common, head_dim=12, rope_parameters=yarn)), 17)
    write(root, "llama_yarn", model, {"input_ids": rows, "labels": rows}, extra=decoder_extra(model, 37, 18))
    # rows of 9 tokens, and generation that goes on from 5: the base grows from the seventh on, and
    # stays so until a short sequence comes, so that generation has a model of its own
    common["max_position_embeddings"] = 6
    dynamic = {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 3.0}
    model = randomised(transformers.LlamaForCausalLM(LlamaConfig(**common, head_dim=8, rope_parameters=dynamic)), 19)
    write(root, "llama_dynamic", model, {"input_ids": rows, "labels": rows},
        extra=decoder_extra(copy.deepcopy(model), 37, 20))
    # the long divisors count from the seventh position on; calls of generation cross it
    common["max_position_embeddings"] = 24
    longrope = {"rope_type": "longrope", "rope_theta": 50.0, "original_max_position_embeddings": 6,
        "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.5, 2.0, 3.5, 4.0]}
    model = randomised(transformers.LlamaForCausalLM(LlamaConfig(**common, head_dim=8, rope_parameters=longrope)), 21)
    write(root, "llama_longrope", model, {"input_ids": rows, "labels": rows},
        extra=decoder_extra(copy.deepcopy(model), 37, 22))


def llama_like(root):
    """The other types of Llama's kind, with windows that rows of 9 tokens and generation cross."""
    from transformers import (Gemma2Config, GemmaConfig, GraniteConfig, MistralConfig, Olmo2Config, Phi3Config,
        Qwen2Config, Qwen3Config, SmolLM3Config, Starcoder2Config)
    common = dict(vocab_size=37, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=7, pad_token_id=None)
    rows = ids(31, 37, 2, 9)
    longrope = {"rope_type": "longrope", "rope_theta": 50.0, "original_max_position_embeddings": 6,
        "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 2.0, 3.5], "partial_rotary_factor": 0.75}
    windows = dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)
    gemma = dict(common, head_dim=6, rope_parameters={"rope_type": "default", "rope_theta": 20.0})
    for seed, (name, config) in enumerate({
        "phi3": Phi3Config(**{**common, "hidden_size": 32}, sliding_window=None, rope_parameters={
            **longrope}, original_max_position_embeddings=6),
        "mistral": MistralConfig(**common, sliding_window=4, tie_word_embeddings=True),
        "qwen2": Qwen2Config(**common, **windows),
        "qwen3": Qwen3Config(**common, **windows, head_dim=6),
        "gemma": GemmaConfig(**gemma, hidden_act="relu"),
        "gemma2": Gemma2Config(**gemma, query_pre_attn_scalar=9, sliding_window=4, attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0),
        "olmo2": Olmo2Config(**common, attention_bias=True),
        "smollm3": SmolLM3Config(**common, no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=4),
        "granite": GraniteConfig(**common, mlp_bias=True, embedding_multiplier=1.7, logits_scaling=0.6,
            residual_multiplier=0.4, attention_multiplier=0.9),
        "starcoder2": Starcoder2Config(**common, sliding_window=5),
    }.items()):
        model = randomised(transformers.AutoModelForCausalLM.from_config(config), 32 + seed)
        write(root, name, model, {"input_ids": rows, "labels": rows},
            extra=decoder_extra(copy.deepcopy(model), 37, 42 + seed))
    mask = torch.tensor([[1] * 9, [0] * 3 + [1] * 6])
    common.update(num_labels=3, pad_token_id=0)
    config = MistralConfig(**common, sliding_window=None)
    model = randomised(transformers.MistralForSequenceClassification(config), 50)
    write(root, "mistral_classes", model, {"input_ids": rows.masked_fill(mask == 0, 0), "attention_mask": mask,
        "labels": torch.tensor([2, 0])})


def vit(root):
    config = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=20, image_size=8,
        patch_size=4, num_labels=3, layer_norm_eps=1e-6)
    pixels = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(15))
    model = randomised(transformers.ViTForImageClassification(config), 16)
    write(root, "vit", model, {"pixel_values": pixels, "labels": torch.tensor([2, 0])})
    config.qkv_bias, config.hidden_act = False, "gelu_new"
    write(root, "vit_base", randomised(transformers.ViTModel(config), 17), {"pixel_values": pixels}, "pooler_output")


def resnet(root):
    pixels = torch.randn(2, 3, 24, 20, generator=torch.Generator().manual_seed(18))
    common = dict(embedding_size=4, num_labels=3)
    for name, config in {
        "resnet_basic": ResNetConfig(**common, hidden_sizes=[4, 6], depths=[1, 2], layer_type="basic"),
        "resnet_bottleneck": ResNetConfig(**common, hidden_sizes=[8, 12], depths=[1, 2], downsample_in_bottleneck=True),
    }.items():
        model = randomised(transformers.ResNetForImageClassification(config), 19)
        write(root, name, model, {"pixel_values": pixels, "labels": torch.tensor([2, 0])})


def t5(root):
    common = dict(vocab_size=37, d_model=16, d_kv=4, d_ff=20, num_layers=2, num_heads=3, dropout_rate=0.1,
        relative_attention_num_buckets=8, relative_attention_max_distance=9, decoder_start_token_id=0)
    rows = ids(20, 36, 2, 13)
    mask = torch.tensor([[1] * 13, [1] * 8 + [0] * 5])
    labels = ids(21, 36, 2, 12)
    labels[1, 9:] = -100
    inputs = {"input_ids": rows, "attention_mask": mask, "labels": labels}
    model = randomised(transformers.T5ForConditionalGeneration(T5Config(**common)), 22)
    prompt = {"input_ids": rows, "attention_mask": mask}
    common_options = {"pad_token_id": 36, "eos_token_id": [7, 11]}
    write(root, "t5", model, inputs, extra={"prompt": rows.tolist(), "mask": mask.tolist(),
        "padded": generated(model, prompt, GREEDY, **common_options)})
    gated = T5Config(**common, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=1)
    write(root, "t5_gated", randomised(transformers.T5ForConditionalGeneration(gated), 23), inputs)
    write(root, "t5_encoder", randomised(transformers.T5EncoderModel(T5Config(**common)), 24), prompt,
        "last_hidden_state")


FAMILIES = {"gpt2": gpt2, "bert": bert, "bert_like": bert_like, "llama": llama, "llama_like": llama_like,
    "resnet": resnet, "t5": t5, "vit": vit}

if __name__ == "__main__":
    for family in sys.argv[2:] or FAMILIES:
        FAMILIES[family](sys.argv[1])
