"""Writes ddp_hooks_reference.lua: what PyTorch's DistributedDataParallel trains with its
communication hooks on two ranks (gloo).

    python3 spec/generators/gen_ddp_hooks_reference.py > spec/reference/ddp_hooks_reference.lua
"""
import math
import os
import sys
import tempfile
import textwrap

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

RANKS, STEPS = 2, 6


def wave(shape, start):
    n = math.prod(shape)
    return torch.tensor([0.5 * math.sin(start + 0.7 * i + 0.05 * i * i) for i in range(n)],
        dtype=torch.float32).reshape(shape)


def power(**options):
    return lambda: powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, **options)


# torch 2.15's batched hook hands its orthogonalization a matrix where that expects a batch of them.
orthogonalize = powerSGD_hook._orthogonalize
powerSGD_hook._orthogonalize = lambda m, epsilon=0: orthogonalize(m if m.dim() == 3 else m.unsqueeze(0), epsilon)

CASES = {
    "fp16": (default_hooks.fp16_compress_hook, lambda: None),
    "bf16": (default_hooks.bf16_compress_hook, lambda: None),
    "power": (powerSGD_hook.powerSGD_hook, power()),
    "power_rank": (powerSGD_hook.powerSGD_hook,
        power(matrix_approximation_rank=3, min_compression_rate=1, batch_tensors_with_same_shape=True)),
    "power_cold": (powerSGD_hook.powerSGD_hook,
        power(warm_start=False, use_error_feedback=False, orthogonalization_epsilon=1e-8)),
    "batched": (powerSGD_hook.batched_powerSGD_hook, power()),
    "batched_rank": (powerSGD_hook.batched_powerSGD_hook, power(matrix_approximation_rank=2)),
    "fp16_power": (default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook), power()),
    "bf16_fp16": (default_hooks.bf16_compress_wrapper(default_hooks.fp16_compress_hook), lambda: None),
}


def run(rank, folder):
    dist.init_process_group("gloo", init_method="file://%s/store" % folder, rank=rank, world_size=RANKS)
    # The first Q of a matrix, which is random, follows a formula here.
    torch.randn = lambda *shape, **options: wave(shape, 3).to(options.get("dtype", torch.float32))
    lines = ["-- Made by gen_ddp_hooks_reference.py: all parameters after %d steps on two ranks." % STEPS, "return {"]
    for name, (hook, state) in CASES.items():
        # No biases, and sizes that are multiples of 64: the flat order is that of our padded
        # buffers, reversed registration.
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 16, bias=False), torch.nn.Tanh(), torch.nn.Linear(16, 16, bias=False), torch.nn.Tanh(),
            torch.nn.Linear(16, 8, bias=False))
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(wave(p.shape, i + 1))
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        ddp.register_comm_hook(state(), hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
        for t in range(STEPS):
            loss = (ddp(wave((4, 16), 10 + t + 5 * rank)) - wave((4, 8), 20 + t + 3 * rank)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        values = [v for p in model.parameters() for v in p.detach().flatten().tolist()][::7]
        lines.append(textwrap.fill("%s = { %s }," % (name, ", ".join("%.7g" % v for v in values)), 125,
                                   initial_indent="  ", subsequent_indent="    "))
    if rank == 0:
        print("\n".join(lines + ["}"]))
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(folder,), nprocs=RANKS)
