"""PyTorch: linear algebra: systems, singular values and eigenvalues of one matrix, and batches of small ones."""
import peer

N, SMALL, BATCH, REPEATS = 512, 16, 2000, 7


def main():
    args = peer.arguments(__doc__)
    import torch
    torch.manual_seed(1)
    x, b = torch.randn(N, N) + torch.eye(N) * 8, torch.randn(N, 8)
    small, sides = torch.randn(BATCH, SMALL, SMALL) + torch.eye(SMALL) * 8, torch.randn(BATCH, SMALL, 1)
    symmetric, leaf = x + x.t(), x.clone().requires_grad_()
    positive = x @ x.t()
    large, sides_8 = torch.randn(1024, 1024) + torch.eye(1024) * 8, torch.randn(1024, 8)
    few, few_sides = torch.randn(128, 8, 8) + torch.eye(8) * 8, torch.randn(128, 8, 8)
    quarter = x[:256, :256].contiguous()
    work = dict(
        solve=lambda: torch.linalg.solve(x, b),
        solve_backward=lambda: torch.linalg.solve(leaf, b).sum().backward(),
        inv=lambda: torch.linalg.inv(x),
        cholesky=lambda: torch.linalg.cholesky(positive),
        qr=lambda: torch.linalg.qr(x),
        svd=lambda: torch.linalg.svd(x, full_matrices=False),
        eigh=lambda: torch.linalg.eigh(symmetric),
        det=lambda: torch.linalg.det(large),
        eig=lambda: torch.linalg.eig(quarter),
        solve_large=lambda: torch.linalg.solve(large, sides_8),
        solve_few=lambda: torch.linalg.solve(few, few_sides),
        inv_few=lambda: torch.linalg.inv(few),
        solve_batch=lambda: torch.linalg.solve(small, sides),
        det_batch=lambda: torch.linalg.det(small))
    peer.emit(args, **{name + "_ms": 1e3 * peer.median_seconds(fn, REPEATS, 1) for name, fn in work.items()})


if __name__ == "__main__":
    main()
