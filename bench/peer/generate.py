"""Transformers: greedy generation with GPT-2, one row, with a cache of keys and values, as ../generate.lua."""
import statistics
import time

import peer

#          layers width heads vocab
PRESETS = {"tiny": (2, 256, 4, 8000), "small": (6, 256, 4, 8000), "medium": (4, 512, 8, 8000),
    "wide": (6, 768, 12, 8000), "124m": (12, 768, 12, 50257)}


def main():
    args = peer.arguments(__doc__, preset="small", tokens=100, rounds=5, dtype="float32", lookup=0)
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads, vocab = PRESETS[args.preset]
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=1024)
    model = GPT2LMHeadModel(config).eval().to(getattr(torch, args.dtype))
    prompt = torch.randint(0, vocab, (1, 8))

    def generate():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=args.tokens,
            do_sample=False, eos_token_id=None, pad_token_id=0, prompt_lookup_num_tokens=args.lookup or None)
        assert out.shape[1] == 8 + args.tokens

    generate()
    times = []
    for _ in range(args.rounds):
        began = time.perf_counter()
        generate()
        times.append((time.perf_counter() - began) / args.tokens)
    peer.emit(args, preset=args.preset, tokens=args.tokens, dtype=args.dtype, token_ms=statistics.median(times) * 1e3,
        least_ms=min(times) * 1e3)


if __name__ == "__main__":
    main()
