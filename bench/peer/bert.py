"""PyTorch: a BERT-shaped encoder with a classification head on synthetic padded batches, as ../bert.lua.

--plain-attention 1: matmul, softmax, dropout, matmul in place of scaled_dot_product_attention.
"""
import peer

#          layers width heads ffn vocab
PRESETS = {"base": (12, 768, 12, 3072, 30522), "tiny": (2, 128, 2, 512, 30522)}
BATCH, SEQ, DROPOUT = 8, 128, 0.1


def model(layers, width, heads, ffn, vocab, drop, plain):
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)
            self.ln1, self.ln2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

        def forward(self, x, mask):
            b, t, c = x.shape
            p = drop if self.training else 0.0
            q, k, v = self.qkv(x).view(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
            if plain:
                att = (q @ k.transpose(-2, -1) / (c // heads) ** 0.5).masked_fill(~mask, float("-inf"))
                y = F.dropout(att.softmax(-1).to(v.dtype), p) @ v
            else:
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
            x = self.ln1(x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, t, c)), p))
            return self.ln2(x + F.dropout(self.down(F.gelu(self.up(x))), p))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(drop)
            self.tok, self.pos, self.kind = (nn.Embedding(n, width) for n in (vocab, 512, 2))
            self.ln = nn.LayerNorm(width, eps=1e-12)
            self.layers = nn.ModuleList([Layer() for _ in range(layers)])
            self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 2)
            for m in self.modules():
                if isinstance(m, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(m.weight, 0.0, 0.02)
                if isinstance(m, nn.Linear):
                    nn.init.zeros_(m.bias)

        def forward(self, ids, mask):
            x = self.tok(ids) + self.pos.weight[:ids.size(1)] + self.kind.weight[0]
            x = self.drop(self.ln(x))
            mask = mask[:, None, None, :]
            for layer in self.layers:
                x = layer(x, mask)
            return self.head(self.drop(torch.tanh(self.pool(x[:, 0]))))

    return Bert()


def main():
    args = peer.arguments(__doc__, preset="tiny", steps=30, warmup=3, dtype="fp32", plain_attention=0)
    import torch
    import torch.nn.functional as F
    before = peer.resident()
    layers, width, heads, ffn, vocab = PRESETS[args.preset]
    net = model(layers, width, heads, ffn, vocab, DROPOUT, args.plain_attention)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-5, **({"fused": True} if args.fused else {}))
    generator = torch.Generator().manual_seed(peer.rank())

    def step():
        ids = torch.randint(vocab, (BATCH, SEQ), generator=generator)
        mask = torch.arange(SEQ) < torch.randint(SEQ // 4, SEQ + 1, (BATCH, 1), generator=generator)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = F.cross_entropy(net(ids, mask), ids[:, 0] % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    peer.train(args, step, before, preset=args.preset, batch=BATCH)


if __name__ == "__main__":
    main()
