"""Tokenizing the library's own pages and Lua files with Hugging Face's tokenizers on one thread."""
import os
import statistics
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

import peer  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def read_lines():
    paths = []
    for folder in ("docs", "lua"):
        for where, _, names in os.walk(os.path.join(ROOT, folder)):
            paths += [os.path.join(where, name) for name in names if name.endswith((".md", ".lua"))]
    lines = []
    for path in sorted(paths):
        with open(path, encoding="utf-8") as f:
            lines += [line.rstrip("\n") for line in f if line.strip()]
    return lines


def median_ms(tokenizer, lines):
    times = []
    for i in range(4):
        began = time.perf_counter()
        for at in range(0, len(lines), 1000):
            [e.ids for e in tokenizer.encode_batch(lines[at:at + 1000])]
        if i:
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


args = peer.arguments(__doc__)
lines = read_lines()
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
began = time.perf_counter()
bpe.train_from_iterator(lines, trainers.BpeTrainer(
    vocab_size=8000, min_frequency=2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
train_ms = (time.perf_counter() - began) * 1e3


def small(name):
    return Tokenizer.from_file(os.path.join(ROOT, f"spec/reference/tokenizers/{name}.json"))


peer.emit(args, bpe_ms=median_ms(bpe, lines), train_ms=train_ms, wordpiece_ms=median_ms(small("bert"), lines),
    unigram_ms=median_ms(small("unigram"), lines))
