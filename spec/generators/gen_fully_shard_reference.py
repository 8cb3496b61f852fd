#!/usr/bin/env python3
"""Writes spec/reference/fully_shard_reference.lua: losses and gradient norms of a small model under
PyTorch's fully_shard over two gloo ranks, in float32 and under mixed precision policies.

    python3 spec/generators/gen_fully_shard_reference.py > spec/reference/fully_shard_reference.lua

The weights are sines of their positions, so that spec/sharded/fully_shard_spec.lua makes the same.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

LOW, WIDE = torch.bfloat16, torch.float32
#          name          param reduce output
POLICIES = [("float32", None, None, None), ("param_bf16", LOW, WIDE, LOW), ("all_bf16", LOW, LOW, LOW)]
STEPS, ROWS, VOCAB, WIDTH = 8, 8, 11, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.h = nn.Embedding(VOCAB, WIDTH), nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


def fill(net):
    with torch.no_grad():
        for number, (name, p) in enumerate(sorted(net.named_parameters(), key=lambda x: x[0])):
            at = torch.arange(p.numel(), dtype=torch.float64)
            values = torch.sin(at * 1.3 + number) * 0.3 + (1 if "norm.weight" in name else 0)
            p.copy_(values.reshape(p.shape))


def train(rank, policy):
    net = Net()
    fill(net)
    mesh = init_device_mesh("cpu", (2,))
    given = {}
    if policy[0]:
        given["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=policy[0], reduce_dtype=policy[1], output_dtype=policy[2])
    for block in net.h:
        fully_shard(block, mesh=mesh, **given)
    fully_shard(net, mesh=mesh, **given)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    ids = (torch.arange(ROWS * 7).reshape(ROWS, 7) ** 2 + rank * 3) % VOCAB
    losses, norms = [], []
    for _ in range(STEPS):
        loss = F.cross_entropy(net(ids[:, :-1]).float().reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.8).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / 2)
        norms.append(norm.item())
    return losses, norms


def run(rank, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29547", RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    results = [(name, train(rank, policy)) for name, *policy in POLICIES]
    dist.destroy_process_group()
    if rank > 0:
        return
    with open(path, "w") as f:
        f.write("-- Written by spec/generators/gen_fully_shard_reference.py with PyTorch %s.\nreturn {\n"
                % torch.__version__.split("+")[0])
        for name, (losses, norms) in results:
            f.write("  %s = {\n" % name)
            for key, numbers in (("losses", losses), ("norms", norms)):
                f.write("    %s = { %s },\n" % (key, ", ".join("%.7g" % x for x in numbers)))
            f.write("  },\n")
        f.write("}\n")


if __name__ == "__main__":
    path = "/dev/stdout" if len(sys.argv) < 2 else sys.argv[1]
    mp.spawn(run, args=(path,), nprocs=2)
