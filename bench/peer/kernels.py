"""PyTorch: single kernels on a GPU, as ../kernels.lua."""
import argparse
import json
import statistics
import time

CALLS = 5


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--device", default="cuda")
    p.add_argument("--mb", type=int, default=1024)
    p.add_argument("--side", type=int, default=8192)
    p.add_argument("--launches", type=int, default=100000)
    p.add_argument("--steps", type=int, default=9)
    args = p.parse_args()
    import torch
    import torch.nn.functional as F
    import gpu
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device(args.device)
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    result = dict(mb=args.mb, side=args.side)

    def timed(fn, calls=CALLS, blocks=args.steps):
        for _ in range(2):
            fn()
        times = []
        for _ in range(blocks):
            wait()
            began = time.perf_counter()
            for _ in range(calls):
                fn()
            wait()
            times.append((time.perf_counter() - began) / calls)
        return statistics.median(times)

    def bandwidth(dtype, suffix):
        size = torch.empty((), dtype=dtype).element_size()
        n, width, classes = args.mb * (1 << 20) // size, 1024, 32768
        x = torch.randn(n // width, width, device=device, dtype=dtype)
        grad, spare = torch.randn_like(x), torch.empty_like(x)
        w, b = torch.ones(width, device=device, dtype=dtype), torch.zeros(width, device=device, dtype=dtype)
        logits, label = x.view(-1, classes), torch.randint(classes, (n // classes,), device=device)
        copy = timed(lambda: spare.copy_(x))
        result["copy" + suffix + "_gbs"], result["copy" + suffix + "_ms"] = 2 * n * size / copy / 1e9, copy * 1e3

        def keep(name, moves, seconds):
            result[name + suffix + "_ms"] = seconds * 1e3
            result[name + suffix + "_of_copy"] = moves / seconds / (2 / copy)

        def op(name, forward, both, fn, g, *inputs):
            with torch.no_grad():
                keep(name, forward, timed(lambda: fn(*inputs)))
            if g is not None:
                leaves = [t.detach().requires_grad_() for t in inputs]
                keep(name + "_grad", both, timed(lambda: torch.autograd.grad(fn(*leaves), leaves, g)))

        op("mul", 3, None, torch.mul, None, x, grad)
        op("relu", 2, 5, torch.relu, grad, x)
        op("gelu", 2, 5, lambda v: F.gelu(v, approximate="tanh"), grad, x)
        op("softmax", 2, 5, lambda v: F.softmax(v, -1), grad, x)
        op("layer_norm", 2, 5, lambda v, weight, bias: F.layer_norm(v, (width,), weight, bias), grad, x, w, b)
        op("cross_entropy", 1, 3, lambda z: F.cross_entropy(z, label), torch.ones((), device=device, dtype=dtype),
            logits)
        op("sum", 1, None, torch.sum, None, x)
        return copy

    copy = bandwidth(torch.float32, "")
    bandwidth(torch.bfloat16, "_bf16")
    for name, moves, make in (("adamw", 7, lambda q: torch.optim.AdamW([q], lr=1e-3, fused=True)),
                              ("momentum", 5, lambda q: torch.optim.SGD([q], lr=1e-3, momentum=0.9, fused=True))):
        q = torch.randn(args.mb * 256, 1024, device=device, requires_grad=True)
        q.grad = torch.randn_like(q)
        seconds = timed(make(q).step)
        result[name + "_ms"], result[name + "_of_copy"] = seconds * 1e3, moves / seconds / (2 / copy)
    q = None
    for tag, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        for n in (args.side, args.side // 4):
            a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
            result[f"mm_{tag}_{n}_tflops"] = 2 * n ** 3 / timed(lambda: a @ b) / 1e12
    shape = (8, 12, args.side // 8, 64)
    leaves = [torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    g = torch.randn(shape, device=device, dtype=torch.bfloat16)
    result["attention_grad_ms"] = 1e3 * timed(
        lambda: torch.autograd.grad(F.scaled_dot_product_attention(*leaves, is_causal=True), leaves, g))

    a, b, leaf = torch.ones(4, device=device), torch.ones(4, device=device), torch.ones(4, device=device,
        requires_grad=True)

    def adds():
        with torch.no_grad():
            for _ in range(args.launches):
                a + b

    def with_gradient(chain=100):
        for _ in range(args.launches // chain):
            x = leaf
            for _ in range(chain):
                x = x + b
            torch.autograd.grad(x, leaf, a)

    result["add_ns"] = timed(adds, 1, 3) / args.launches * 1e9
    result["add_grad_ns"] = timed(with_gradient, 1, 3) / args.launches * 1e9
    print(json.dumps(dict({k: round(v, 6) if isinstance(v, float) else v for k, v in result.items()},
        **gpu.versions())), flush=True)


if __name__ == "__main__":
    main()
