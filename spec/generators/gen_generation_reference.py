"""Writes spec/models/generation_reference.json: what Transformers' generate gives for the small models of
spec/models/folders under each of its options, and the keys of its GenerationConfig.

    python3 spec/generators/gen_generation_reference.py spec/models
"""
import json
import logging
import os
import sys

import torch
import transformers

transformers.logging.set_verbosity(logging.CRITICAL)
FOLDERS = os.path.join(sys.argv[1], "folders")
EOS = {"eos_token_id": [7, 11], "pad_token_id": 36}
LONG = {**EOS, "max_new_tokens": 14, "do_sample": False}
BEAMS = {**LONG, "num_beams": 3}

# Options under which whole sequences are compared.
SEQUENCES = [
    {}, {"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 3},
    {"encoder_no_repeat_ngram_size": 1}, {"encoder_no_repeat_ngram_size": 2},
    {"encoder_repetition_penalty": 1.8}, {"encoder_repetition_penalty": 0.4}, {"repetition_penalty": 2.5},
    {"min_length": 12}, {"min_length": 3}, {"min_length": 5, "min_new_tokens": 9}, {"min_new_tokens": 4},
    {"suppress_tokens": [3, 15, 16, 21, 30]}, {"suppress_tokens": [7, 11, 99]},
    {"begin_suppress_tokens": [3, 15, 16, 21, 30, 33]}, {"forced_eos_token_id": 2}, {"forced_eos_token_id": [4, 9]},
    {"forced_bos_token_id": 8}, {"forced_bos_token_id": 8, "begin_suppress_tokens": [3, 15, 16, 21, 30]},
    {"sequence_bias": [[[15], 4.0], [[21], -3.5], [[3], 1.5], [[15, 3], -50.0], [[5, 9, 2, 4], 80.0]]},
    {"sequence_bias": [[[15], 40.0], [[15], -40.0]]},
    {"bad_words_ids": [[15], [7], [3, 3], [21, 16], [30, 30, 30]]},
    {"exponential_decay_length_penalty": [3, 1.6]}, {"exponential_decay_length_penalty": [0, 1.05]},
    {"remove_invalid_values": True, "suppress_tokens": [15]}, {"renormalize_logits": True}, {"use_cache": False},
    {"temperature": 0.0, "top_k": -1, "top_p": 7.0}, {"max_length": 9, "max_new_tokens": None},
    {"no_repeat_ngram_size": 2, "bad_words_ids": [[15], [3, 16]], "repetition_penalty": 1.3, "min_new_tokens": 5,
        "forced_eos_token_id": 7, "suppress_tokens": [30]},
]
BEAM_SEQUENCES = SEQUENCES + [
    {"early_stopping": "never"}, {"early_stopping": "never", "length_penalty": 2.0},
    {"early_stopping": "never", "length_penalty": -1.0}, {"early_stopping": True, "length_penalty": 2.0},
    {"num_return_sequences": 2}, {"renormalize_logits": True, "suppress_tokens": [15, 21]},
]
# Options of draws: the processed scores of the first step are compared.
DRAWS = [
    {"top_k": 0}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.6}, {"top_p": 0.0}, {"min_p": 0.3}, {"min_p": 1.0},
    {"top_h": 0.2}, {"top_h": 0.5}, {"top_h": 0.97}, {"typical_p": 0.2}, {"typical_p": 0.7}, {"epsilon_cutoff": 0.05},
    {"epsilon_cutoff": 0.9}, {"eta_cutoff": 0.05}, {"eta_cutoff": 0.9},
    {"temperature": 1.7, "top_k": 9, "top_p": 0.8, "min_p": 0.05, "typical_p": 0.8, "eta_cutoff": 0.01,
        "epsilon_cutoff": 0.02, "renormalize_logits": True, "top_h": 0.9},
    {"top_k": 4, "typical_p": 0.6}, {"suppress_tokens": [15, 21], "top_p": 0.5, "renormalize_logits": True},
]


def lines(t):
    """Scores as numbers that JSON has: -1e30 for -inf."""
    return [[float(f"{v:.7g}") for v in row] for row in t.masked_fill(t == -torch.inf, -1e30).tolist()]


def options(o):
    """As a call in Python has them."""
    o = {k: v for k, v in o.items() if v is not None}
    if "sequence_bias" in o:
        o["sequence_bias"] = [[ids, float(bias)] for ids, bias in o["sequence_bias"]]
    return o


def cases(model, prompts, common, list_of, **more):
    found = []
    for name, prompt in prompts.items():
        for case in list_of:
            o = options({**common, **case})
            out = model.generate(**prompt, **o, **more)
            found.append((name, o, out))
    return found


def sequences(model, prompts, common, list_of):
    return [{"prompt": name, "options": o, "sequences": out.tolist()}
        for name, o, out in cases(model, prompts, common, list_of)]


def draws(model, prompts):
    common = {**EOS, "max_new_tokens": 1, "do_sample": True}
    more = {"return_dict_in_generate": True, "output_scores": True}
    torch.manual_seed(1)
    return [{"prompt": name, "options": o, "scores": lines(out.scores[0])}
        for name, o, out in cases(model, prompts, common, DRAWS, **more)]


def outputs(model, prompts):
    """All outputs of a greedy call and of one with beams."""
    found = []
    more = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    for common in [{**LONG, "max_new_tokens": 5, "suppress_tokens": [15]},
            {**BEAMS, "max_new_tokens": 6, "num_return_sequences": 2}]:
        for name, o, out in cases(model, prompts, common, [{}], **more):
            entry = {"prompt": name, "options": o, "sequences": out.sequences.tolist(),
                "scores": [lines(t) for t in out.scores], "logits": [lines(t) for t in out.logits]}
            if "num_beams" in o:
                entry["beam_indices"] = out.beam_indices.tolist()
                entry["sequences_scores"] = lines(out.sequences_scores[None])[0]
            found.append(entry)
    return found


def entry_of(name, start=False):
    auto = transformers.AutoModelForSeq2SeqLM if start else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(os.path.join(FOLDERS, name)).eval()
    model.generation_config = transformers.GenerationConfig(decoder_start_token_id=0 if start else None)
    ids = torch.randint(1, 36, (3, 5), generator=torch.Generator().manual_seed(77))
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    if start:
        mask = mask.flip(1)
    prompts = {
        "padded": {"input_ids": ids.masked_fill(mask == 0, 36), "attention_mask": mask},
        "one": {"input_ids": torch.tensor([[12]]), "attention_mask": torch.tensor([[1]])},
    }
    first = {"padded": prompts["padded"]}
    found = {
        "prompts": {key: {k: t.tolist() for k, t in value.items()} for key, value in prompts.items()},
        "greedy": sequences(model, prompts, LONG, SEQUENCES), "beams": sequences(model, first, BEAMS, BEAM_SEQUENCES),
        "draws": draws(model, first), "outputs": outputs(model, first),
    }
    if start:
        found["greedy"] += sequences(model, first, LONG, [
            {"decoder_start_token_id": 5}, {"decoder_start_token_id": [3, 4, 9]},
            {"decoder_start_token_id": [3, 4, 9], "num_beams": 2}])
    return found


keys = {k: v for k, v in vars(transformers.GenerationConfig()).items() if k != "_original_object_hash"}
result = {"version": transformers.__version__, "keys": sorted([*keys, "_commit_hash"]),
    "models": {"gpt2": entry_of("gpt2"), "llama": entry_of("llama"), "t5": entry_of("t5", True)}}
with open(os.path.join(sys.argv[1], "generation_reference.json"), "w") as f:
    json.dump(result, f, sort_keys=True)
    f.write("\n")
