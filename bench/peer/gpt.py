"""PyTorch: a GPT-2 style decoder on characters, as ../gpt.lua: pre-LN, tanh GELU, learned
positions, tied embeddings, no dropout.

--plain-attention 1: matmul, softmax, matmul in place of scaled_dot_product_attention.  --text FILE:
train on a file's characters. With ranks: DistributedDataParallel over gloo, or with --sharded 1
fully_shard of each block, a batch of this size on every rank; --zero1 1: DistributedDataParallel with
ZeroRedundancyOptimizer.  --dtype fp8: bfloat16 with torchao's layers in eight bits, chosen as
Accelerate chooses them, in the emulation that torchao has for machines without products of eight bits.
"""
import math

import peer

#          layers width heads T   vocab batch
PRESETS = {"tiny": (4, 128, 4, 128, 96, 8), "small": (6, 384, 6, 256, 96, 8)}
WORDS = ("a step of the model reads some text and then it guesses what comes next each weight moves by little "
         "while loss falls Lua scripts drive C code; Every epoch ends with one check: is 42 more than 17? "
         "We print (and keep) the best.").split(" ")


def text_ids(path, n=1 << 18):
    import torch
    if path:
        with open(path, "rb") as f:
            text = f.read()
    else:
        s, out, size = 1, [], 0
        while size < n:
            s = (s * 1103515245 + 12345) & 0x7FFFFFFF
            out.append(WORDS[(s >> 16) % len(WORDS)] + ("\n" if len(out) % 12 == 11 else " "))
            size += len(out[-1])
        text = "".join(out)[:n].encode()
    return torch.tensor([95 if c == 10 else c - 32 if 32 <= c < 127 else 31 for c in text])


def model(layers, width, heads, seq, vocab, plain):
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            if plain:
                self.register_buffer("mask", torch.full((seq, seq), float("-inf")).triu(1), persistent=False)

        def attend(self, x):
            b, t, c = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
            if plain:
                y = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + self.mask[:t, :t]).softmax(-1).to(v.dtype) @ v
            else:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.proj(y.transpose(1, 2).reshape(b, t, c))

        def forward(self, x):
            x = x + self.attend(self.ln1(x))
            return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(seq, width)
            self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
            self.ln = nn.LayerNorm(width)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    last = name.endswith(("proj.weight", "down.weight"))
                    nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * layers) if last else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(p)

        def forward(self, ids):
            x = self.tok(ids) + self.pos.weight[:ids.size(1)]
            return self.ln(self.blocks(x)) @ self.tok.weight.t()

    return GPT()


def in_eight_bits(net):
    from torch import nn
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]

    def takes(module, name):
        return (isinstance(module, nn.Linear) and name not in (layers[0], layers[-1])
                and module.in_features % 16 == 0 and module.out_features % 16 == 0)

    return convert_to_float8_training(net, config=Float8LinearConfig(emulate=True), module_filter_fn=takes)


def main():
    args = peer.arguments(__doc__, preset="tiny", steps=30, warmup=5, dtype="fp32", plain_attention=0, text="",
        sharded=0, zero1=0)
    import torch
    import torch.nn.functional as F
    before = peer.resident()
    layers, width, heads, seq, vocab, batch = PRESETS[args.preset]
    net = model(layers, width, heads, seq, vocab, args.plain_attention)
    if args.dtype == "fp8":
        net = in_eight_bits(net)
    if args.ranks > 1:
        dist = peer.join()
        if args.sharded:
            from torch.distributed.fsdp import fully_shard
            from torch.distributed.device_mesh import init_device_mesh
            mesh = init_device_mesh("cpu", (args.ranks,))
            for block in net.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(net, mesh=mesh)
        else:
            net = torch.nn.parallel.DistributedDataParallel(net)
    settings = {"lr": 3e-4, "weight_decay": 0.1, **({"fused": True} if args.fused else {})}
    if args.zero1:
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.AdamW, **settings)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), **settings)
    generator = torch.Generator().manual_seed(peer.rank())
    ids, span = text_ids(args.text), torch.arange(seq + 1)

    def step():
        rows = ids[torch.randint(len(ids) - seq - 1, (batch, 1), generator=generator) + span]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype != "fp32"):
            loss = F.cross_entropy(net(rows[:, :-1]).reshape(-1, vocab), rows[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    peer.train(args, step, before, preset=args.preset, batch=batch)
    if args.ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
