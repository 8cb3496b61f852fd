"""PyTorch: Fashion-MNIST, 784-512-256-10 with ReLU, AdamW at its defaults and lr 1e-3.

A step is: batch fetch, forward, zero_grad, backward, optimizer.  The images are scaled to [0, 1]
once, before timing, and each epoch's batches are picked out of them by a permutation, the fastest
plain way.  With ranks: DistributedDataParallel over gloo, a batch of this size on every rank.
"""
import gzip
import os
import statistics
import struct
import time

import peer


def idx(path):
    import torch
    with gzip.open(path, "rb") as f:
        data = f.read()
    dims = struct.unpack(">%dI" % data[3], data[4:4 + 4 * data[3]])
    return torch.frombuffer(bytearray(data[4 + 4 * data[3]:]), dtype=torch.uint8).view(dims)


def batches(x, y, size):
    import torch
    while True:
        order = torch.randperm(len(x))
        for i in range(0, len(x) - size + 1, size):  # the last, short batch is dropped
            pick = order[i:i + size]
            yield x[pick], y[pick]


def main():
    args = peer.arguments(__doc__, batch=64, steps=400, warmup=50, dtype="fp32",
                          data=os.environ.get("FASHION_MNIST_DIR", "/usr/share/datasets/fashion-mnist"))
    import torch
    from torch import nn
    x = idx(os.path.join(args.data, "train-images-idx3-ubyte.gz")).float().div_(255).view(-1, 784)
    y = idx(os.path.join(args.data, "train-labels-idx1-ubyte.gz")).long()
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    if args.ranks > 1:
        dist = peer.join()
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **({"fused": True} if args.fused else {}))
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
    peer.emit(args, batch=args.batch, step_ms=statistics.median(times) * 1e3, loss=float(sum(losses[-10:]) / 10))
    if args.ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
