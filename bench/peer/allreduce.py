"""PyTorch: all_reduce (sum, float32, in place) of 1 KB, 1 MB and 64 MB over gloo; a barrier before each, not timed."""
import peer

SIZES = {"1KB": (1 << 10, 2000), "1MB": (1 << 20, 300), "64MB": (64 << 20, 20)}


def main():
    args = peer.arguments(__doc__)
    import torch
    dist = peer.join()
    results = {}
    for name, (size, times) in SIZES.items():
        x = torch.zeros(size // 4)
        results[name + "_us"] = 1e6 * peer.median_seconds(lambda: dist.all_reduce(x), times, 5, before=dist.barrier)
    results["gradients_us"] = results["64MB_us"]  # a bucket of DDP's is such a tensor
    peer.emit(args, **results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
