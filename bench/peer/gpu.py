"""PyTorch's side of bench/gpu.lua: trains the same models on a GPU (or, with --device cpu, slowly),
in up to three modes at once.

    gpu.py --workload gpt --preset 124m --batch 8 --dtype bf16 --modes eager,compile,accelerate
    gpu.py --serve        reads such lines, and `go MODE` to measure a mode of the last one; an answer is a line of JSON

eager: a plain loop.  compile: torch.compile(model).  accelerate: the same loop through Accelerator.
All of them with the fused optimizer where there is one.  bf16 and fp16 are autocast over float32
weights, fp16 with a gradient scaler.  A step is: batch fetch, forward, zero_grad, backward,
optimizer; step_ms waits for the GPU after each, loop_step_ms comes from a second block that does
not.  peak_device_mb: the most that was allocated, as if the mode were alone: what it keeps between
steps and what its steps take beyond that.
"""
import argparse
import gc
import json
import os
import platform
import shlex
import statistics
import sys
import time


def parser():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--workload", choices=["mlp", "cnn", "gpt", "bert", "resnet50"], default="mlp")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32")
    p.add_argument("--modes", default="eager")
    p.add_argument("--preset", default="tiny")
    p.add_argument("--batch", type=int, default=0)
    p.add_argument("--side", type=int, default=224)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--tf32", action="store_true", help="in products and convolutions of float32")
    p.add_argument("--conv-tf32", action="store_true", help="in convolutions alone, PyTorch's default")
    p.add_argument("--serve", action="store_true")
    return p


def images(device):
    import torch
    import mlp
    folder = os.environ.get("FASHION_MNIST_DIR", "/usr/share/datasets/fashion-mnist")
    path = os.path.join(folder, "train-images-idx3-ubyte.gz")
    if not os.path.exists(path):  # noise of the same shape takes as long
        return torch.rand(60000, 784, device=device), torch.randint(10, (60000,), device=device)
    x = mlp.idx(path).float().div_(255).view(-1, 784)
    return x.to(device), mlp.idx(os.path.join(folder, "train-labels-idx1-ubyte.gz")).long().to(device)


def picked(x, y, batch):
    import torch
    while True:
        order = torch.randperm(len(x)).to(x.device)
        for i in range(0, len(x) - batch + 1, batch):
            pick = order[i:i + batch]
            yield x[pick], y[pick]


def job(args, device):
    """(make_model, next_batch, loss_of(model, *batch), make_optimizer, what a step does, its unit)"""
    import torch
    import torch.nn.functional as F
    from torch import nn
    fused = {"fused": True}
    generator = torch.Generator().manual_seed(0)

    def adamw(lr, decay=0.01):
        return lambda params: torch.optim.AdamW(params, lr=lr, weight_decay=decay, **fused)

    def sgd(lr):
        return lambda params: torch.optim.SGD(params, lr=lr, momentum=0.9, **fused)

    if args.workload == "mlp":
        x, y = images(device)
        source = picked(x, y, args.batch)
        return (lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 10)),
                lambda: next(source), lambda m, x, y: F.cross_entropy(m(x), y), adamw(1e-3), args.batch)
    if args.workload == "cnn":
        import cnn
        x, y = images(device)
        source = picked(x.view(-1, 1, 28, 28), y, args.batch)
        return (lambda: cnn.build().to(memory_format=torch.channels_last), lambda: next(source),
                lambda m, x, y: F.cross_entropy(m(x), y), sgd(0.05), args.batch)
    if args.workload == "gpt":
        import gpt
        presets = dict(gpt.PRESETS, **{
            "124m": (12, 768, 12, 1024, 50257, 4), "774m": (36, 1280, 20, 1024, 50257, 4),
            "smoke": (1, 32, 2, 16, 96, 2)})
        layers, width, heads, seq, vocab, batch = presets[args.preset]
        batch = args.batch or batch
        ids = gpt.text_ids("") if vocab == 96 else torch.randint(vocab, (1 << 20,), generator=generator)
        span = torch.arange(seq + 1)

        def rows():
            at = torch.randint(len(ids) - seq - 1, (batch, 1), generator=generator)
            r = ids[at + span].to(device)
            return r[:, :-1], r[:, 1:]

        return (lambda: gpt.model(layers, width, heads, seq, vocab, False), rows,
                lambda m, x, y: F.cross_entropy(m(x).reshape(-1, vocab), y.reshape(-1)), adamw(3e-4, 0.1), batch * seq)
    if args.workload == "bert":
        import bert
        layers, width, heads, ffn, vocab = dict(bert.PRESETS, smoke=(1, 32, 2, 64, 100))[args.preset]

        def padded():
            ids = torch.randint(vocab, (args.batch, bert.SEQ), generator=generator)
            length = torch.randint(bert.SEQ // 4, bert.SEQ + 1, (args.batch, 1), generator=generator)
            mask = torch.arange(bert.SEQ) < length
            return ids.to(device), mask.to(device), (ids[:, 0] % 2).to(device)

        return (lambda: bert.model(layers, width, heads, ffn, vocab, bert.DROPOUT, False), padded,
                lambda m, ids, mask, label: F.cross_entropy(m(ids, mask), label), adamw(2e-5), args.batch)
    import resnet50
    x = torch.randn(args.batch, 3, args.side, args.side).to(device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(1000, (args.batch,)).to(device)
    return (lambda: resnet50.build().to(memory_format=torch.channels_last), lambda: (x, y),
        lambda m, x, y: F.cross_entropy(m(x), y),
            sgd(0.1), args.batch)


class Mode:
    def __init__(self, args, name, device, work):
        import torch
        self.args, self.device, self.name = args, device, name
        make_model, self.next_batch, self.loss_of, make_optimizer, self.units = work
        self.cuda = device.type == "cuda"
        self.wait = torch.cuda.synchronize if self.cuda else (lambda: None)
        torch.manual_seed(0)
        held = torch.cuda.memory_allocated() if self.cuda else 0
        model = make_model().to(device)
        self.params = sum(p.numel() for p in model.parameters())
        self.amp = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.dtype)
        self.scaler = None
        if name == "accelerate":
            from accelerate import Accelerator
            from accelerate.state import AcceleratorState
            AcceleratorState._reset_state(True)
            accelerator = Accelerator(cpu=not self.cuda, mixed_precision="no" if args.dtype == "fp32" else args.dtype)
            self.model, self.optimizer = accelerator.prepare(model, make_optimizer(model.parameters()))
            self.backward, self.amp = accelerator.backward, None
        else:
            self.model = torch.compile(model) if name == "compile" else model
            self.optimizer, self.backward = make_optimizer(model.parameters()), torch.Tensor.backward
            if args.dtype == "fp16":
                self.scaler = torch.amp.GradScaler(device.type)
        began = time.perf_counter()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        for _ in range(max(1, args.warmup)):
            self.step()
        self.wait()
        self.warmup_s = time.perf_counter() - began
        self.kept = (torch.cuda.memory_allocated() if self.cuda else 0) - held

    def step(self):
        import torch
        batch = self.next_batch()
        with torch.autocast(self.device.type, dtype=self.amp, enabled=self.amp is not None):
            loss = self.loss_of(self.model, *batch)
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.backward(loss)
            self.optimizer.step()
        return loss.detach()

    def measure(self):
        import torch
        held = 0
        if self.cuda:
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(self.args.steps):
            began = time.perf_counter()
            loss = self.step()
            self.wait()
            times.append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(self.args.steps):
            self.step()
        self.wait()
        loop = (time.perf_counter() - began) / self.args.steps
        peak = self.kept + torch.cuda.max_memory_allocated() - held if self.cuda else 0
        return dict(mode=self.name, step_ms=statistics.median(times) * 1e3, least_ms=min(times) * 1e3,
            loop_step_ms=loop * 1e3,
                    per_second=self.units / loop, peak_device_mb=peak / 1e6, loss=float(loss), params=self.params,
                    warmup_s=self.warmup_s, conv_tf32=int(torch.backends.cudnn.allow_tf32))


def versions():
    import torch
    found = dict(torch=torch.__version__, python=platform.python_version(), cuda=torch.version.cuda)
    if torch.cuda.is_available():
        found.update(gpu=torch.cuda.get_device_name(), cudnn=torch.backends.cudnn.version())
    try:
        import accelerate
        found["accelerate"] = accelerate.__version__
    except ImportError:
        pass
    return found


def say(**fields):
    print(json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in fields.items()}), flush=True)


def prepare(args):
    """The modes of a line; what went wrong instead of those that cannot be had."""
    import torch
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = args.tf32 or args.conv_tf32
    device = torch.device(args.device)
    modes, errors = {}, {}
    work = job(args, device)
    for name in args.modes.split(","):
        try:
            modes[name] = Mode(args, name, device, work)
        except Exception as e:  # the others are measured all the same
            errors[name] = f"{type(e).__name__}: {e}"[:300]
    return modes, errors


def main():
    args = parser().parse_args()
    if not args.serve:
        modes, errors = prepare(args)
        for mode in modes.values():
            say(**mode.measure(), **versions())
        for name, error in errors.items():
            say(mode=name, error=error)
        return len(modes) == 0
    say(**versions())
    modes = {}
    for line in sys.stdin:
        words = shlex.split(line)
        if not words:
            continue
        if words[0] == "stop":
            break
        try:
            if words[0] == "go":
                say(**modes[words[1]].measure())
                continue
            modes = {}
            gc.collect()
            import torch
            torch._dynamo.reset()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            modes, errors = prepare(parser().parse_args(words))
            say(ready=1, **{name + "_error": error for name, error in errors.items()})
        except Exception as e:
            say(error=f"{type(e).__name__}: {e}"[:300])
    return 0


if __name__ == "__main__":
    sys.exit(main())
