"""Writes spec/reference/tokenizers/folders.json: folders with tokens that tokenizer.json does not list, in
tokenizer_config.json, special_tokens_map.json and added_tokens.json, and what Transformers makes of them; and
texts that are given as lists of words.

    python3 spec/generators/gen_tokenizer_folders.py

Needs transformers 5 and the tokenizers that gen_tokenizers_reference.py has written.
"""
import json
import os
import random
import shutil
import tempfile

import transformers
from transformers import PreTrainedTokenizerFast

transformers.logging.set_verbosity_error()
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/tokenizers")
ROLES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
TEXT = "a <q1> b<q2>c <q3> <r1>  <r2> x <Q1> </s> <pad> the<r1>."
NEW = ["<q1>", "<q2>", "<q3>", "<r1>", "<r2>", "<pad>", "</s>", "<unk>", "the"]
rng = random.Random(5)


def flags(typed):
    token = {"content": rng.choice(NEW)}
    for flag in ("lstrip", "rstrip", "single_word", "normalized", "special"):
        if rng.random() < 0.5:
            token[flag] = rng.random() < 0.5
    if typed:
        token["__type"] = "AddedToken"
    return token


def token(typed):
    return flags(typed) if rng.random() < 0.4 else rng.choice(NEW)


def roles(typed, most):
    return {role: token(typed) for role in rng.sample(ROLES, rng.randint(0, most))}


def tokens(most):
    """A list of tokens, each text once."""
    found = {}
    for _ in range(rng.randint(0, most)):
        one = token(True)
        found[one if isinstance(one, str) else one["content"]] = one
    return list(found.values())


def folder():
    """The files of a folder beside tokenizer.json."""
    files = {}
    config = roles(True, 3)
    if rng.random() < 0.3:
        config["additional_special_tokens"] = tokens(3)
    if rng.random() < 0.2:
        config["extra_special_tokens"] = tokens(2)
    if rng.random() < 0.15:
        config["image_token"] = "<image>"
    if rng.random() < 0.3:
        config["added_tokens_decoder"] = {str(5000 + 7 * i): {"special": False, **flags(False)}
            for i in range(rng.randint(1, 3))}
    files["tokenizer_config.json"] = config
    if rng.random() < 0.6:
        files["special_tokens_map.json"] = roles(False, 3)
        if rng.random() < 0.4:
            files["special_tokens_map.json"]["additional_special_tokens"] = rng.sample(NEW, 2)
    if rng.random() < 0.5:
        names = rng.sample(NEW, rng.randint(1, 4))
        files["added_tokens.json"] = {name: 6000 + 3 * rng.randint(0, 9) + 100 * i for i, name in enumerate(names)}
    return files


def load(kind, files):
    path = tempfile.mkdtemp()
    shutil.copy(os.path.join(OUT, kind + ".json"), os.path.join(path, "tokenizer.json"))
    for name, value in files.items():
        with open(os.path.join(path, name), "w") as f:
            json.dump(value, f)
    try:
        return PreTrainedTokenizerFast.from_pretrained(path)
    finally:
        shutil.rmtree(path)


def folders():
    found = []
    for number in range(150):
        kind = ["bert", "gpt2", "roberta", "unigram", "fallback"][number % 5]
        files = folder()
        t = load(kind, files)
        ids = t(TEXT)["input_ids"]
        found.append({"kind": kind, "files": files, "length": len(t), "ids": ids,
            "added": {str(i): {"content": a.content, "special": a.special} for i, a in t.added_tokens_decoder.items()},
            "roles": {role: [getattr(t, role), getattr(t, role + "_id")] for role in [*ROLES, "image_token"]
                if getattr(t, role, None) is not None},
            "plain": t.decode(ids, skip_special_tokens=kind != "fallback")})
    return found


WORDS = [["Hello", "world"], ["a"], [], ["unaffordable", "don't", "", " x ", "two words", "été"],
    ["<s>", "word", "ok", "…"]]


def words():
    """Calls with is_split_into_words: one list, a batch, pairs, cut and padded."""
    found = []
    for kind in ("bert", "gpt2", "llama3", "roberta", "unigram", "fallback"):
        t = load(kind, {"tokenizer_config.json": {"pad_token": "[PAD]" if kind == "bert" else "<pad>"}})
        for one in WORDS:
            if not one:  # an empty list alone is an empty batch
                continue
            got = t(one, is_split_into_words=True, return_offsets_mapping=True)
            offsets = [[0 if w is None else len(one[w][:i].encode()) for i in span]  # bytes, not characters
                for w, span in zip(got.word_ids(), got["offset_mapping"])]
            found.append({"kind": kind, "text": one, "ids": got["input_ids"], "offsets": offsets,
                "words": [-1 if w is None else w for w in got.word_ids()]})
        for options in ({"padding": True}, {"truncation": True, "max_length": 6}, {"add_special_tokens": False}):
            got = t(WORDS, is_split_into_words=True, **options)
            found.append({"kind": kind, "batch": WORDS, "options": options, "ids": got["input_ids"],
                "words": [[-1 if w is None else w for w in got.word_ids(i)] for i in range(len(WORDS))]})
        got = t(WORDS[0], WORDS[3], is_split_into_words=True)
        found.append({"kind": kind, "text": WORDS[0], "pair": WORDS[3], "ids": got["input_ids"],
            "words": [-1 if w is None else w for w in got.word_ids()]})
    return found


with open(os.path.join(OUT, "folders.json"), "w", encoding="utf-8") as out:
    json.dump({"text": TEXT, "folders": folders(), "words": words()}, out, separators=(",", ":"))
    out.write("\n")
