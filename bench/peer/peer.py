"""What the PyTorch sides of our benchmarks share: threads, ranks, and the line of JSON at the end.

Import this before torch: its libraries read their thread counts from the environment when they are loaded.
"""
import argparse
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import time


def arguments(doc, **defaults):
    """The command line; every default becomes a flag of its type, beside --threads, --ranks and --fused."""
    p = argparse.ArgumentParser(description=doc)
    p.add_argument("--fused", action="store_true", help="the fused optimizer")
    for name, value in dict(threads=1, ranks=1, **defaults).items():
        p.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    args = p.parse_args()
    if args.ranks > 1 and "RANK" not in os.environ:
        sys.exit(spawn(args.ranks))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    import torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(rank())
    return args


def rank():
    return int(os.environ.get("RANK", 0))


def spawn(ranks):
    """Runs this command line once for each rank; the first status that is not 0, the others ended."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), USE_LIBUV="0")
    env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    children = [subprocess.Popen([sys.executable] + sys.argv, env=dict(env, RANK=str(r), LOCAL_RANK=str(r)))
                for r in range(ranks)]
    while children:
        for child in list(children):
            if child.poll() is not None:
                children.remove(child)
                if child.returncode:
                    for other in children:
                        other.terminate()
                    return child.returncode
        time.sleep(0.02)
    return 0


def join():
    import torch.distributed as dist
    dist.init_process_group("gloo")
    return dist


def median_seconds(fn, times, warmup, before=None):
    """The median wall time of fn(); before() runs untimed ahead of each."""
    taken = []
    for i in range(warmup + times):
        if before:
            before()
        began = time.perf_counter()
        fn()
        if i >= warmup:
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def resident(field="VmRSS"):
    """A figure of /proc/self/status in bytes: VmRSS (resident now) or VmHWM (the most there ever was)."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(field + ":"))


def train(args, step, before, **fields):
    """Times args.steps calls of step() after args.warmup more: the median, the mean of the last ten
    losses, the peak of resident memory, in all and beyond `before` bytes."""
    times, losses = [], []
    for i in range(args.warmup + args.steps):
        began = time.perf_counter()
        loss = step()
        if i >= args.warmup:
            times.append(time.perf_counter() - began)
        losses.append(loss)
    peak = resident("VmHWM")
    emit(args, step_ms=statistics.median(times) * 1e3, loss=float(sum(losses[-10:]) / len(losses[-10:])),
         step_mb=(peak - before) / 1e6, **fields)


def onednn():
    import torch
    found = re.search(r"(?:MKL-DNN|oneDNN)\D{0,8}v?(\d+\.\d+\.\d+)", torch.__config__.show())
    return found.group(1) if found else "none"


def capability():
    import torch
    found = re.search(r"CPU capability usage: (\S+)", torch.__config__.show())
    return found.group(1) if found else "unknown"


def emit(args, **fields):
    """Rank 0's results and its largest resident size as one line."""
    if rank() == 0:
        import torch
        print(json.dumps(dict(fields, peak_mb=resident("VmHWM") / 1e6, threads=args.threads, ranks=args.ranks,
                              torch=torch.__version__, onednn=onednn(), capability=capability(),
                              python=platform.python_version())), flush=True)
