"""Transformers: greedy generation with GPT-2, one row, with a cache of keys and values, as ../generate.lua. With
--encoding nf4 or int8 the weights are those of bitsandbytes, in turns with plain ones."""
import statistics
import time

import peer

#          layers width heads vocab
PRESETS = {"tiny": (2, 256, 4, 8000), "small": (6, 256, 4, 8000), "medium": (4, 512, 8, 8000),
    "wide": (6, 768, 12, 8000), "124m": (12, 768, 12, 50257)}


def encoded(model, args):
    """The model with its linear layers in bitsandbytes' codes, which Transformers makes from files."""
    import tempfile

    import torch
    from transformers import BitsAndBytesConfig, GPT2LMHeadModel

    dtype = getattr(torch, args.dtype)
    config = BitsAndBytesConfig(load_in_8bit=args.encoding == "int8", load_in_4bit=args.encoding == "nf4",
                                bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return GPT2LMHeadModel.from_pretrained(folder, quantization_config=config, dtype=dtype,
                                               device_map="cpu").eval()


def main():
    args = peer.arguments(__doc__, preset="small", tokens=100, rounds=5, dtype="float32", lookup=0,
        encoding="none")
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads, vocab = PRESETS[args.preset]
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=1024)
    model = GPT2LMHeadModel(config).eval().to(getattr(torch, args.dtype))
    plain = None
    if args.encoding != "none":
        plain, model = model, encoded(model, args)
    prompt = torch.randint(0, vocab, (1, 8))

    def generate(model=model):
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=args.tokens,
            do_sample=False, eos_token_id=None, pad_token_id=0, prompt_lookup_num_tokens=args.lookup or None)
        assert out.shape[1] == 8 + args.tokens

    generate()
    times, plain_times = [], []
    for _ in range(args.rounds):
        for one, list_ in ((model, times), (plain, plain_times)):
            if one is None: continue
            began = time.perf_counter()
            generate(one)
            list_.append((time.perf_counter() - began) / args.tokens)
    peer.emit(args, preset=args.preset, tokens=args.tokens, dtype=args.dtype, token_ms=statistics.median(times) * 1e3,
        least_ms=min(times) * 1e3, encoding=args.encoding,
        **({"plain_ms": statistics.median(plain_times) * 1e3} if plain_times else {}))


if __name__ == "__main__":
    main()
