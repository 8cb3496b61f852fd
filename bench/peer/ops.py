"""PyTorch: what an op costs beside its arithmetic: adds of 4 elements, plain, recorded for
autograd, and with their backward."""
import peer

ADDS, CHAIN = 100_000, 100


def main():
    args = peer.arguments(__doc__)
    import torch
    a, b = torch.ones(4), torch.ones(4)
    leaf = torch.ones(4, requires_grad=True)

    def plain():
        for _ in range(ADDS):
            a + b

    def recorded():
        for _ in range(ADDS):
            leaf + b

    def backward():
        for _ in range(ADDS // CHAIN):
            x = leaf
            for _ in range(CHAIN):
                x = x + b
            torch.autograd.grad(x, leaf, a)

    peer.emit(args, **{fn.__name__ + "_ns": 1e9 * peer.median_seconds(fn, 5, 1) / ADDS
        for fn in (plain, recorded, backward)})


if __name__ == "__main__":
    main()
