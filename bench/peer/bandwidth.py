"""PyTorch: ops over 64 MB of float32, forward and with their gradient, in milliseconds and as a
share of the copy bandwidth."""
import peer


def main():
    args = peer.arguments(__doc__, steps=30)
    import torch
    import torch.nn.functional as F
    n = 64 * (1 << 20) // 4
    x = torch.randn(n // 1024, 1024)
    other, grad, spare = torch.randn_like(x), torch.randn_like(x), torch.empty_like(x)
    w, b = torch.ones(1024), torch.zeros(1024)
    logits, label = torch.randn(n // 4096, 4096), torch.randint(4096, (n // 4096,))
    one, result, rate = torch.ones(()), {}, []

    def measure(name, moves, fn):
        seconds = peer.median_seconds(fn, args.steps, 3)
        rate.append(moves / seconds)
        result[name + "_ms"] = seconds * 1e3
        result[name + "_of_copy"] = moves / seconds / rate[0]

    def op(name, forward, both, fn, g, *inputs):
        with torch.no_grad():
            measure(name, forward, lambda: fn(*inputs))
        if g is not None:
            leaves = [t.detach().requires_grad_() for t in inputs]
            measure(name + "_grad", both, lambda: torch.autograd.grad(fn(*leaves), leaves, g))

    measure("copy", 2, lambda: spare.copy_(x))
    op("add", 3, None, torch.add, None, x, other)
    op("relu", 2, 5, torch.relu, grad, x)
    op("exp", 2, 5, torch.exp, grad, x)
    op("tanh", 2, 5, torch.tanh, grad, x)
    op("sigmoid", 2, 5, torch.sigmoid, grad, x)
    op("gelu", 2, 5, lambda v: F.gelu(v, approximate="tanh"), grad, x)
    op("gelu_erf", 2, 5, F.gelu, grad, x)
    op("silu", 2, 5, F.silu, grad, x)
    op("softmax", 2, 5, lambda v: F.softmax(v, -1), grad, x)
    op("log_softmax", 2, 5, lambda v: F.log_softmax(v, -1), grad, x)
    op("layernorm", 2, 5, lambda v, weight, bias: F.layer_norm(v, (1024,), weight, bias), grad, x, w, b)
    op("cross_entropy", 1, 3, lambda z: F.cross_entropy(z, label), one, logits)
    op("mse_loss", 2, 5, lambda a: F.mse_loss(a, other), one, x)
    op("sum", 1, None, torch.sum, None, x)
    peer.emit(args, **result)


if __name__ == "__main__":
    main()
