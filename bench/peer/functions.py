"""PyTorch: functions of one call each: images at given positions, windows, sums by index, draws, orders."""
import peer

REPEATS = 15


def main():
    args = peer.arguments(__doc__)
    import torch
    import torch.nn.functional as F
    torch.manual_seed(1)
    images, grid = torch.randn(4, 16, 64, 64), torch.rand(4, 64, 64, 2) * 2 - 1
    leaf = images.clone().requires_grad_()
    columns, wide = torch.randn(8, 32 * 9, 56 * 56), torch.randn(8, 32, 56, 56)
    rows, index = torch.randn(256, 1024), torch.randint(0, 256, (256, 1024))
    weights, sums = torch.rand(256, 1024), torch.zeros(256, 1024)
    double = torch.randn(512, 512, dtype=torch.float64)
    work = dict(
        grid_sample=lambda: F.grid_sample(images, grid, align_corners=False),
        grid_sample_backward=lambda: F.grid_sample(leaf, grid, align_corners=False).sum().backward(),
        unfold=lambda: F.unfold(wide, (3, 3), padding=1),
        fold=lambda: F.fold(columns, (56, 56), (3, 3), padding=1),
        scatter_reduce=lambda: sums.scatter_reduce(0, index, rows, "sum"),
        multinomial=lambda: weights.multinomial(8),
        sort=lambda: rows.sort(),
        topk=lambda: rows.topk(10),
        mm_double=lambda: double.mm(double))
    peer.emit(args, **{name + "_ms": 1e3 * peer.median_seconds(fn, REPEATS, 1) for name, fn in work.items()})


if __name__ == "__main__":
    main()
