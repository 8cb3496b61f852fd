"""Writes float8_reference.lua: PyTorch's casts to and from float8_e4m3fn and float8_e5m2.

    python3 gen_float8_reference.py > float8_reference.lua        (needs torch)

A cast from a type of 16 bits is a list of runs over its 65536 patterns in order: how many, and the byte
that they become.  A cast from float32 has the numbers halfway between neighbours and the ones beside
them, where rounding errs.
"""
import torch

TYPES = ["float8_e4m3fn", "float8_e5m2"]


def lines(items, per):
    return "".join("    " + " ".join(items[i:i + per]) + "\n" for i in range(0, len(items), per))


def runs(to, of):
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(of)
    out, found = bits.to(to).view(torch.uint8).tolist(), []
    for byte in out:
        if found and found[-1][1] == byte:
            found[-1][0] += 1
        else:
            found.append([1, byte])
    return [f"{n}:{byte:02x}" for n, byte in found]


def halfway(to):
    values = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(to).float()
    values = values[values.isfinite()].double().sort().values.unique()
    middles = ((values[1:] + values[:-1]) / 2).float()
    more = torch.tensor([0.0, 448, 449, 464, 480, 57344, 61439, 61440, 61441, 65536, 1e9, 3.4e38, float("inf"),
                         float("nan"), 1e-30, 1e-45, 2**-10, 2**-17], dtype=torch.float32)
    bits = torch.cat([middles, more, -more]).view(torch.int32)
    # (next to infinity there is no number on one side)
    near = torch.cat([bits, bits[: len(middles)] + 1, bits[: len(middles)] - 1])
    return near, near.view(torch.float32).to(to).view(torch.uint8)


print('--- Casts of PyTorch %s; written by spec/generators/gen_float8_reference.py.' % torch.__version__)
print("return {")
for name in TYPES:
    to = getattr(torch, name)
    print(f"  {name} = {{")
    for of in ["float16", "bfloat16"]:
        print(f"    {of} = [[\n{lines(runs(to, getattr(torch, of)), 14)}]],")
    near, became = halfway(to)
    pairs = [f"{b & 0xffffffff:08x}:{o:02x}" for b, o in zip(near.tolist(), became.tolist())]
    print(f"    float32 = [[\n{lines(pairs, 9)}]],")
    back = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(to)
    words = [f"{b & 0xffffffff:08x}" for b in back.float().view(torch.int32).tolist()]
    print("    back = [[\n%s]]," % lines(words, 11))
    other = getattr(torch, TYPES[1 - TYPES.index(name)])
    print("    other = [[\n%s]]," % lines([f"{b:02x}" for b in back.to(other).view(torch.uint8).tolist()], 32))
    print("  },")
print("}")
