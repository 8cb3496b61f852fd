"""Writes tok_*.gguf beside this file: tokenizers as GGUF files hold them, and tokenizers.json: the ids that
Transformers makes of some texts with each.

    python spec/reference/gguf/generate_tokenizers.py      (with transformers, tokenizers, gguf)
"""
import json
import os

import gguf
import tokenizers
import transformers as tf

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "..", "..", "generators", "english.txt"), encoding="utf-8") as f:
    ENGLISH = f.read()

TEXTS = ["Hello world", " the quick  brown fox", "it's 12345 o'clock, isn't it?\n\nNo!\r\n", "naïve café — déjà vu 🙂",
         "<s>a</s>b", "x = [1, 2];\n\treturn x", "<|user|>hi<|end|>", "", "   ", "a▁b", "日本語 and русский", "THEY'LL go"]
TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"


def byte_level(size, split):
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    pre = tokenizers.pre_tokenizers
    t.pre_tokenizer = pre.ByteLevel(add_prefix_space=False) if split is None else pre.Sequence(
        [pre.Split(tokenizers.Regex(split), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre.ByteLevel.alphabet())
    t.train_from_iterator([ENGLISH], trainer)
    model = json.loads(t.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    return tokens, merges


def sentencepiece(size, first):
    """Tokens and scores as SentencePiece's BPE has them: special ones, bytes, characters, then merges by rank."""
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    t.train_from_iterator([ENGLISH], tokenizers.trainers.BpeTrainer(vocab_size=size))
    model = json.loads(t.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    letters = [x for x in tokens if len(x) == 1]
    others = [x for x in tokens if len(x) > 1]
    pieces = first + ["<0x%02X>" % b for b in range(256)] + others + letters
    types = [2 if x == "<unk>" else 3 for x in first] + [6] * 256 + [1] * (len(others) + len(letters))
    scores = [0.0] * (len(first) + 256) + [-float(i) for i in range(len(others))] + [
        -float(len(others) + i) for i in range(len(letters))]
    return pieces, types, scores


def write(name, arch, model, tokens, types, ids, scores=None, merges=None, pre=None, flags=(), template=True):
    path = os.path.join(HERE, name + ".gguf")
    w = gguf.GGUFWriter(path, arch)
    for key, value in (("context_length", 64), ("embedding_length", 8), ("block_count", 1), ("feed_forward_length", 8),
                       ("attention.head_count", 1), ("attention.head_count_kv", 1), ("vocab_size", len(tokens))):
        w.add_uint32(arch + "." + key, value)
    w.add_string("tokenizer.ggml.model", model)
    if pre: w.add_string("tokenizer.ggml.pre", pre)
    w.add_array("tokenizer.ggml.tokens", tokens)
    w.add_array("tokenizer.ggml.token_type", types)
    if scores: w.add_array("tokenizer.ggml.scores", scores)
    if merges: w.add_array("tokenizer.ggml.merges", merges)
    for role, i in ids.items(): w.add_uint32("tokenizer.ggml.%s_token_id" % role, i)
    for key, value in flags: w.add_bool("tokenizer.ggml." + key, value)
    if template: w.add_string("tokenizer.chat_template", TEMPLATE)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    t = tf.AutoTokenizer.from_pretrained(HERE, gguf_file=name + ".gguf")
    found = []
    for text in TEXTS:
        got = t(text)["input_ids"]
        found.append({"text": text, "ids": got, "back": t.decode(got), "bare": t.decode(got, skip_special_tokens=True)})
    print(name, os.path.getsize(path), "bytes", type(t).__name__, found[0]["ids"])
    return {"texts": found, "bos_token": t.bos_token, "eos_token": t.eos_token, "chat": t.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False) if template else None}


out = {}
own = ["<|user|>", "<|end|>"]
tokens, merges = byte_level(500, None)
out["tok_gpt2"] = write("tok_gpt2", "gpt2", "gpt2", tokens + ["<|endoftext|>"] + own, [1] * len(tokens) + [3, 4, 4],
                        {"bos": len(tokens), "eos": len(tokens)}, merges=merges, pre="gpt-2")
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS as SPLITS
tokens, merges = byte_level(500, SPLITS["llama-bpe"])
out["tok_llama3"] = write("tok_llama3", "llama", "gpt2", tokens + ["<s>", "</s>"] + own,
                          [1] * len(tokens) + [3, 3, 3, 3], {"bos": len(tokens), "eos": len(tokens) + 1},
                          merges=merges, pre="llama-bpe", flags=[("add_bos_token", True)])
tokens, merges = byte_level(500, SPLITS["qwen2"])
out["tok_qwen2"] = write("tok_qwen2", "qwen2", "gpt2", tokens + ["<|endoftext|>"] + own, [1] * len(tokens) + [3, 3, 4],
                         {"eos": len(tokens), "padding": len(tokens)}, merges=merges, pre="qwen2",
                         flags=[("add_bos_token", False)])


def digits():
    """SmolLM's and StarCoder's kind; Transformers' reader does not part digits, its tokenizer.json does."""
    pre = tokenizers.pre_tokenizers
    tokens, merges = byte_level(500, None)
    write("tok_smollm", "llama", "gpt2", tokens, [1] * len(tokens), {}, merges=merges, pre="smollm", template=False)
    t = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={x: i for i, x in enumerate(tokens)},
                                                   merges=[tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    t.decoder = tokenizers.decoders.ByteLevel()
    found = []
    for text in TEXTS + ["x2024 y 10,000", "٣٤ 1½"]:
        ids = t.encode(text).ids
        found.append({"text": text, "ids": ids, "back": t.decode(ids), "bare": t.decode(ids)})
    return {"texts": found, "bos_token": None, "eos_token": None, "chat": None}


out["tok_smollm"] = digits()
pieces, types, scores = sentencepiece(400, ["<unk>", "<s>", "</s>"])
roles = {"bos": 1, "eos": 2, "unknown": 0}
out["tok_llama"] = write("tok_llama", "llama", "llama", pieces + own, types + [4, 3], roles, scores=scores + [0.0, 0.0])
out["tok_llama_eos"] = write("tok_llama_eos", "llama", "llama", pieces, types, roles, scores=scores, template=False,
                             flags=[("add_bos_token", True), ("add_eos_token", True)])
out["tok_phi3"] = write("tok_phi3", "phi3", "llama", pieces + own, types + [4, 3], roles, scores=scores + [0.0, 0.0])
pieces, types, scores = sentencepiece(400, ["<pad>", "<eos>", "<bos>", "<unk>"])
spaces = ["  ", "   "]
out["tok_gemma"] = write("tok_gemma", "gemma2", "llama", pieces + spaces, types + [1, 1],
                         {"bos": 2, "eos": 1, "unknown": 3, "padding": 0}, scores=scores + [-900.0, -901.0],
                         flags=[("add_space_prefix", False), ("add_bos_token", True)])
with open(os.path.join(HERE, "tokenizers.json"), "w") as f:
    json.dump(out, f, sort_keys=True)
    f.write("\n")
