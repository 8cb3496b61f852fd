"""Saving and loading a state of 500 MB: torch.save and torch.load, and Accelerate's save_state and load_state.

Files are synced after each save, as ours are: PyTorch and Accelerate leave them to the kernel.
"""
import os
import shutil
import statistics
import tempfile
import time

import peer

args = peer.arguments(__doc__, rounds=3, millions=42)
import torch

try:
    import accelerate
except ImportError:
    accelerate = None

width = int(args.millions * 1e6 / 4096)
model = torch.nn.Sequential(torch.nn.Linear(2048, width, bias=False), torch.nn.Linear(width, 2048, bias=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model(torch.randn(8, 2048)).square().mean().backward()
optimizer.step()
optimizer.zero_grad()
accelerator = accelerate.Accelerator(cpu=True) if accelerate else None
if accelerator:
    model, optimizer = accelerator.prepare(model, optimizer)
folder = tempfile.mkdtemp()
taken = {}


def sync(path):
    for name in os.listdir(path) if os.path.isdir(path) else [""]:
        fd = os.open(os.path.join(path, name) if name else path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def note(name, fn):
    began = time.perf_counter()
    fn()
    taken.setdefault(name, []).append((time.perf_counter() - began) * 1e3)


def save():
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder + "/state.pt")
    sync(folder + "/state.pt")


def save_state():
    accelerator.save_state(folder + "/state")
    sync(folder + "/state")


for _ in range(args.rounds + 1):
    note("save_ms", save)
    note("load_ms", lambda: torch.load(folder + "/state.pt", weights_only=True))
    if accelerator:
        note("save_state_ms", save_state)
        note("load_state_ms", lambda: accelerator.load_state(folder + "/state"))
shutil.rmtree(folder)
peer.emit(args, **{name: statistics.median(values[1:]) for name, values in taken.items()})
