"""Accelerate: linear layers whose weights rest in a safetensors file, as ../offload.lua."""
import os
import statistics
import tempfile
import time

import peer


def main():
    args = peer.arguments(__doc__, width=2048, rounds=5)
    import accelerate
    import torch
    from safetensors.torch import save_file

    def network():
        layers = [torch.nn.Linear(args.width, args.width, bias=False) for _ in range(24)]
        return torch.nn.Sequential(*layers, torch.nn.Identity()).eval()

    def seconds(fn, *arguments):
        began = time.perf_counter()
        fn(*arguments)
        return time.perf_counter() - began

    plain, x = network(), torch.ones(1, args.width)
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "model.safetensors")
    save_file(plain.state_dict(), path, metadata={"format": "pt"})

    @torch.no_grad()
    def run(model):
        return model(x).sum().item()

    # Accelerate 1.15 raises where every module is on disk: the last one, without weights, is not.
    places = {str(i): "disk" for i in range(24)} | {"24": "cpu"}
    index = {f"{i}.weight": {"safetensors_file": path, "weight_name": f"{i}.weight", "dtype": "float32"}
        for i in range(24)}

    def dispatched():
        with accelerate.init_empty_weights():
            empty = network()
        return accelerate.dispatch_model(empty, places, offload_index=index, main_device="cpu")

    def cold(fn):
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        took = fn(fd)
        os.close(fd)
        return took

    def read_all(fd):
        while os.read(fd, 4 << 20):
            pass

    warm = dispatched()
    run(plain), run(warm)
    times = {"memory": [], "warm": [], "cold": [], "read": []}
    for _ in range(args.rounds):
        for _ in range(5):
            times["memory"].append(seconds(run, plain))
            times["warm"].append(seconds(run, warm))
    for _ in range(args.rounds):
        times["read"].append(cold(lambda fd: seconds(read_all, fd)))
        model = dispatched()
        times["cold"].append(cold(lambda fd: seconds(run, model)))
    os.remove(path)
    os.rmdir(folder)
    peer.emit(args, width=args.width, **{name + "_ms": statistics.median(t) * 1e3 for name, t in times.items()})


if __name__ == "__main__":
    main()
