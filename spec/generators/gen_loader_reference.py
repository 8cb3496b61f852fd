#!/usr/bin/env python3
"""Writes spec/reference/loader_reference.txt: what Accelerate's prepared loaders give, for the specs to compare with.

    pip install torch accelerate torchdata       # made with torch 2.15, accelerate 1.15, torchdata 0.11
    python3 spec/generators/gen_loader_reference.py > spec/reference/loader_reference.txt

One case a line, fields separated by '|'; items count from 0, batches are separated by blanks and ranks by ';'.
    dispatch  kind N batch_size ranks split drop_last | len | remainder in the last batch | batches
    shard     kind N batch_size ranks split drop_last even | len | remainder in the first, last
    batch | batches metrics   kind N batch_size ranks dispatch | items that gather_for_metrics gives
    over a pass resume    kind N batch_size ranks dispatch | for each batch k: what comes after its
    state was loaded (separated by '/'), then a
              whole pass
kind: map or stream.
"""
import os
import sys
import warnings

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, IterableDataset

RANKS = (2, 3)


class Map(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


def make(kind, n, size, drop=False):
    return DataLoader(Map(n) if kind == "map" else Stream(n), batch_size=size, drop_last=drop)


def text(batches):
    return " ".join(",".join(str(i) for i in batch.tolist()) for batch in batches)


def worker(rank, ranks, port, out):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="1", OMP_NUM_THREADS="1")
    warnings.simplefilter("ignore")
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, gather_object

    lines = []

    def emit(head, mine):
        """mine: this rank's fields; the last one stands for every rank."""
        everybody = gather_object([mine])
        if rank == 0:
            lines.append(" | ".join([head, *everybody[0][:-1], ";".join(fields[-1] for fields in everybody)]))

    def length(loader):
        try:
            return str(len(loader))
        except TypeError:
            return "-"

    def accelerator(**config):
        return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))

    for kind in ("map", "stream"):
        for n in (2, 3, 5, 6, 8, 11, 12, 13):
            for size in (1, 2, 4, 6):
                for split in (False, True):
                    for drop in (False, True):
                        if split and size % ranks:
                            continue
                        if n < ranks or drop and n < (size if split else size * ranks):
                            continue  # too few items to fill with, and nothing at all: upstream fails
                        loader = accelerator(dispatch_batches=True, split_batches=split).prepare(
                            make(kind, n, size, drop))
                        batches, remainder = [], -2
                        for batch in loader:
                            batches.append(batch)
                            remainder = loader.remainder
                            assert loader.end_of_dataloader or remainder == -1
                        emit(f"dispatch {kind} {n} {size} {ranks} {int(split)} {int(drop)}",
                             [length(loader), str(remainder), text(batches)])
    for kind in ("map", "stream"):
        for n in (1, 3, 8, 11, 12):
            for size in (1, 2, 6):
                for split in (False, True):
                    for drop in (False, True):
                        for even in (True, False) if kind == "map" else (True,):
                            if split and size % ranks:
                                continue
                            config = accelerator(dispatch_batches=False, split_batches=split, even_batches=even)
                            loader = config.prepare(make(kind, n, size, drop))
                            batches, remainders = [], []
                            for batch in loader:
                                batches.append(batch)
                                remainders.append(loader.remainder)
                            found = f"{remainders[0]} {remainders[-1]}" if remainders else "-"
                            emit(f"shard {kind} {n} {size} {ranks} {int(split)} {int(drop)} {int(even)}",
                                 [length(loader), found, text(batches)])
    for kind, dispatch in (("map", False), ("map", True), ("stream", True)):
        for n in (3, 7, 12, 13):
            for size in (1, 3):
                config = accelerator(dispatch_batches=dispatch)
                items = []
                for batch in config.prepare(make(kind, n, size)):
                    items += config.gather_for_metrics(batch).tolist()
                emit(f"metrics {kind} {n} {size} {ranks} {int(dispatch)}", [",".join(map(str, items))] if rank == 0
                    else [""])
    for kind, dispatch in (("map", False), ("stream", True)):
        for n in (12, 13) if kind == "map" else (12, 18):  # upstream fills a resumed stream from where it was resumed
            config = accelerator(dispatch_batches=dispatch, use_stateful_dataloader=True)
            loader = config.prepare(make(kind, n, 2))
            states = [loader.state_dict() for _ in loader]
            rests = []
            for k, state in enumerate(states):
                again = config.prepare(make(kind, n, 2))
                again.load_state_dict(state)
                rests.append(text(again))
                rests.append(text(again))
                del config._dataloaders[1:]
            emit(f"resume {kind} {n} 2 {ranks} {int(dispatch)}", ["/".join(rests)])
    if rank == 0:
        with open(out, "w") as file:
            file.write("\n".join(lines) + "\n")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    for ranks in RANKS:
        path = f"/tmp/loader_reference.{os.getpid()}.{ranks}"
        mp.spawn(worker, (ranks, 29600 + ranks, path), nprocs=ranks)
        with open(path) as file:
            sys.stdout.write(file.read())
        os.remove(path)
