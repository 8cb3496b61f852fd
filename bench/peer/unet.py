"""PyTorch: a denoising U-Net on noise: group norms, SiLU, 3 x 3 convolutions, time embeddings, attention at
the two coarsest scales, skip connections; AdamW.

The same work as ../unet.lua.  A step is: forward, zero_grad, backward, optimizer.  With --channels-last 1
the model's weights and the images are in that memory format, and the activations follow.
"""
import math

import peer

#          width side batch groups heads
PRESETS = {"small": (64, 32, 16, 32, 4), "large": (128, 64, 4, 32, 4), "smoke": (8, 8, 2, 4, 2)}
SCALES = (1, 2, 4)


def build(width, groups, heads):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Residual(nn.Module):
        def __init__(self, cin, cout):
            super().__init__()
            self.norm1, self.conv1 = nn.GroupNorm(groups, cin), nn.Conv2d(cin, cout, 3, padding=1)
            self.time = nn.Linear(4 * width, cout)
            self.norm2, self.conv2 = nn.GroupNorm(groups, cout), nn.Conv2d(cout, cout, 3, padding=1)
            self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

        def forward(self, x, time):
            y = self.conv1(F.silu(self.norm1(x)))
            y = y + self.time(F.silu(time))[:, :, None, None]
            return self.conv2(F.silu(self.norm2(y))) + self.skip(x)

    class Attention(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.norm = nn.GroupNorm(groups, channels)
            self.qkv, self.proj = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

        def forward(self, x):
            n, c, h, w = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(n, 3, heads, c // heads, h * w).transpose(3, 4).unbind(1)
            y = F.scaled_dot_product_attention(q, k, v)
            return x + self.proj(y.transpose(2, 3).reshape(n, c, h, w))

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
            self.first = nn.Conv2d(3, width, 3, padding=1)
            self.down, self.up = nn.ModuleList(), nn.ModuleList()
            cin = width
            for scale in SCALES:
                cout = scale * width
                self.down.append(nn.ModuleList([
                    Residual(cin, cout), Attention(cout) if scale > 1 else nn.Identity(),
                    nn.Conv2d(cout, cout, 3, 2, 1) if scale < SCALES[-1] else nn.Identity()]))
                cin = cout
            self.middle = Residual(cin, cin)
            for scale in reversed(SCALES):
                cout = scale * width
                self.up.append(nn.ModuleList([
                    Residual(cin + cout, cout), Attention(cout) if scale > 1 else nn.Identity(),
                    nn.Conv2d(cout, cout, 3, padding=1) if scale > 1 else nn.Identity()]))
                cin = cout
            self.norm, self.last = nn.GroupNorm(groups, width), nn.Conv2d(width, 3, 3, padding=1)

        def forward(self, x, times):
            half = width // 2
            angles = times[:, None] * torch.exp(torch.arange(half) * (-math.log(10000) / half))
            time, kept = self.time(torch.cat([angles.sin(), angles.cos()], 1)), []
            x = self.first(x)
            for block, attention, smaller in self.down:
                kept.append(attention(block(x, time)))
                x = smaller(kept[-1])
            x = self.middle(x, time)
            for block, attention, larger in self.up:
                x = attention(block(torch.cat([x, kept.pop()], 1), time))
                if kept:
                    x = larger(F.interpolate(x, scale_factor=2))
            return self.last(F.silu(self.norm(x)))

    return UNet()


def main():
    args = peer.arguments(__doc__, preset="small", steps=10, warmup=2, dtype="fp32", channels_last=0)
    import torch
    from torch import nn
    before = peer.resident()
    width, side, batch, groups, heads = PRESETS[args.preset]
    model = build(width, groups, heads)
    memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
    model = model.to(memory_format=memory_format)
    if args.ranks > 1:
        dist = peer.join()
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if args.fused else {}))

    def step():
        images, noise = torch.randn(batch, 3, side, side), torch.randn(batch, 3, side, side)
        times = torch.rand(batch)
        keep = times.view(-1, 1, 1, 1)
        x = (images * (1 - keep).sqrt() + noise * keep.sqrt()).contiguous(memory_format=memory_format)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = nn.functional.mse_loss(model(x, times * 1000), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    peer.train(args, step, before, batch=batch)
    if args.ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
