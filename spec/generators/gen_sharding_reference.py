#!/usr/bin/env python3
"""Writes spec/reference/sharding_reference.txt: what Accelerate does, for the specs to compare with.

    pip install torch accelerate        # made with torch 2.15, accelerate 1.15
    python3 spec/generators/gen_sharding_reference.py > spec/reference/sharding_reference.txt

One case a line, fields separated by '|'; indices count from 0, batches are separated by blanks and ranks by ';'.
    batches   N batch_size ranks split even drop_last | lengths | batches
    stream    N batch_size ranks split drop_last | items
    between   N ranks padding | items
    schedule  ranks split accumulation with_optimizer batches | moves after each batch
    shards    limit sizes | indices of the tensors of each shard
"""
import itertools

import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, IterableDatasetShard
from accelerate.accelerator.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState, GradientState, PartialState
from huggingface_hub import split_torch_state_dict_into_shards
from torch.utils.data import BatchSampler, IterableDataset


def text(batches):
    return " ".join(",".join(str(i) for i in batch) for batch in batches)


def batches():
    for n, size, ranks, split, even, drop in itertools.product(
        (0, 1, 3, 5, 8, 12, 21, 22, 24), (1, 2, 3, 4), (2, 3), (False, True), (True, False), (False, True)
    ):
        if split and size % ranks:
            continue
        per_rank = []
        for rank in range(ranks):
            inner = BatchSampler(range(n), size, drop)
            shard = BatchSamplerShard(inner, ranks, rank, split_batches=split, even_batches=even)
            per_rank.append((len(shard), text(shard)))
        print(
            f"batches {n} {size} {ranks} {int(split)} {int(even)} {int(drop)} | "
            f"{' '.join(str(p[0]) for p in per_rank)} | "
            + ";".join(p[1] for p in per_rank)
        )


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


def stream():
    for n, size, ranks, split, drop in itertools.product((1, 3, 7, 12, 13), (2, 4), (2, 3), (False, True),
        (False, True)):
        if split and size % ranks:
            continue
        shards = [IterableDatasetShard(Stream(n), size, drop, ranks, rank, split) for rank in range(ranks)]
        print(f"stream {n} {size} {ranks} {int(split)} {int(drop)} | " + ";".join(text([shard]) for shard in shards))


def between():
    for n, ranks, padding in itertools.product((1, 2, 3, 4, 7, 8), (2, 3, 4), (False, True)):
        parts = []
        for rank in range(ranks):
            PartialState._reset_state()
            state = PartialState(cpu=True)
            state.num_processes, state.process_index = ranks, rank
            with state.split_between_processes(list(range(n)), apply_padding=padding) as part:
                parts.append(text([part]))
        print(f"between {n} {ranks} {int(padding)} | " + ";".join(parts))
    PartialState._reset_state()


class Counter:
    def __init__(self):
        self.moves = 0

    def step(self):
        self.moves += 1


class Optimizer:
    step_was_skipped = False


def schedule():
    for ranks, split, accumulation, follows in itertools.product((1, 2, 3), (False, True), (1, 2, 3), (True, False)):
        AcceleratorState._reset_state(True)
        Accelerator(cpu=True)
        PartialState().num_processes = ranks
        assert AcceleratorState().num_processes == ranks
        gradient_state = GradientState()
        counter, seen = Counter(), []
        scheduler = AcceleratedScheduler(counter, [Optimizer()], step_with_optimizer=follows, split_batches=split)
        for batch in range(1, 8):
            gradient_state.sync_gradients = batch % accumulation == 0 or batch == 7
            scheduler.step()
            seen.append(str(counter.moves))
        print(f"schedule {ranks} {int(split)} {accumulation} {int(follows)} 7 | " + " ".join(seen))


def shards():
    for limit, sizes in ((100, (60, 60, 20, 60, 20, 20)), (50, (10, 80, 10, 50, 60, 4, 46, 1)), (1000, (10, 20)),
        (10, (40, 40)),
                         (40, (40, 40))):
        # huggingface_hub groups tensors that share memory, so each gets its own.
        dict_ = {str(i): torch.zeros(size, dtype=torch.uint8) for i, size in enumerate(sizes)}
        split = split_torch_state_dict_into_shards(dict_, filename_pattern="model{suffix}.safetensors",
            max_shard_size=limit)
        print(f"shards {limit} {' '.join(map(str, sizes))} | " + " ".join(
            ",".join(names) for names in split.filename_to_tensors.values()))


if __name__ == "__main__":
    batches()
    stream()
    between()
    schedule()
    shards()
