"""PyTorch: products of a sparse matrix with a dense one, alone and with gradients."""
import peer

NODES, EDGES, WIDTH, REPEATS = 20000, 200000, 64, 9


def main():
    args = peer.arguments(__doc__)
    import torch
    torch.manual_seed(1)
    places = torch.randint(0, NODES, (2, EDGES))
    adjacency = torch.sparse_coo_tensor(places, torch.rand(EDGES), (NODES, NODES)).coalesce()
    x = torch.randn(NODES, WIDTH)
    leaf = x.clone().requires_grad_()
    weighted = adjacency.clone().requires_grad_()
    work = dict(
        sparse_mm=lambda: torch.sparse.mm(adjacency, x),
        sparse_mm_backward=lambda: torch.sparse.mm(adjacency, leaf).sum().backward(),
        sparse_mm_both=lambda: torch.sparse.mm(weighted, leaf).sum().backward())
    peer.emit(args, **{name + "_ms": 1e3 * peer.median_seconds(fn, REPEATS, 1) for name, fn in work.items()})


if __name__ == "__main__":
    main()
