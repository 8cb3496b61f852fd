"""PyTorch: a small residual network on Fashion-MNIST: a stem, 3 stages of 2 blocks of width 32, 64,
128; SGD with momentum 0.9.

A step is: batch fetch, forward, zero_grad, backward, optimizer.  The images are scaled to [0, 1]
once, before timing.  With --channels-last 1 the model's weights are in that memory format, and the
activations follow.
"""
import os
import statistics
import time

import peer
from mlp import batches, idx


def build(widths=(32, 64, 128), blocks=2, classes=10):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, cin, cout, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(cout)
            self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(cout)
            self.skip = nn.Identity()
            if stride != 1 or cin != cout:
                self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

        def forward(self, x):
            y = torch.relu(self.bn1(self.conv1(x)))
            return torch.relu(self.bn2(self.conv2(y)) + self.skip(x))

    layers = [nn.Conv2d(1, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    cin = widths[0]
    for stage, width in enumerate(widths):
        for b in range(blocks):
            layers.append(Block(cin, width, 2 if stage and b == 0 else 1))
            cin = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, classes))


def main():
    args = peer.arguments(__doc__, batch=64, steps=30, warmup=5, dtype="fp32", channels_last=0,
                          data=os.environ.get("FASHION_MNIST_DIR", "/usr/share/datasets/fashion-mnist"))
    import torch
    from torch import nn
    x = idx(os.path.join(args.data, "train-images-idx3-ubyte.gz")).float().div_(255).unsqueeze(1)
    y = idx(os.path.join(args.data, "train-labels-idx1-ubyte.gz")).long()
    model = build()
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if args.ranks > 1:
        dist = peer.join()
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **({"fused": True} if args.fused else {}))
    source = batches(x, y, args.batch)
    losses, times = [], []
    for i in range(args.warmup + args.steps):
        began = time.perf_counter()
        images, labels = next(source)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i >= args.warmup:
            times.append(time.perf_counter() - began)
            losses.append(loss.detach())
    peer.emit(args, batch=args.batch, step_ms=statistics.median(times) * 1e3, least_ms=min(times) * 1e3,
        loss=float(sum(losses[-10:]) / 10))
    if args.ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
