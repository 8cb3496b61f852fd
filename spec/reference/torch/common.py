"""What the generators of PyTorch reference values share: each family file beside this one writes <family>.lua.

    python3 spec/reference/torch/pointwise.py        (needs PyTorch; the suite needs only the values)

A case names the row, gives the Lua expression that spec/kernels/torch_spec.lua evaluates (x1, x2 ..
are the inputs; core, tensor, nn and F are there) and the PyTorch function that says what must come
out.  Inputs of a floating type get gradients: those of the sum of each floating result times fixed
weights, w[i] = 0.5 + (i % 7) / 8 over its flat positions.
"""
import os
import torch

torch.set_default_dtype(torch.float64)


def rand(*shape, lo=-2.0, hi=2.0, seed=0):
    """Values with four digits, so that the files stay small."""
    g = torch.Generator().manual_seed(seed * 7919 + sum(shape) * 31 + len(shape))
    return (torch.rand(shape, generator=g) * (hi - lo) + lo).mul(1e4).round().div(1e4)


def number(v):
    if isinstance(v, bool): return "true" if v else "false"
    if isinstance(v, int): return str(v)
    if v != v: return "0/0"
    if v in (float("inf"), float("-inf")): return "1/0" if v > 0 else "-1/0"
    return repr(int(v)) if v == int(v) and abs(v) < 1e15 else "%.12g" % v


def lua(t):
    t = t.detach().contiguous()
    data = ",".join(number(v) for v in t.flatten().tolist())
    shape = ",".join(str(s) for s in t.shape)
    return '{s={%s},d="%s",v={%s}}' % (shape, str(t.dtype).replace("torch.", ""), data)


class Family:
    def __init__(self, file):
        self.name = os.path.splitext(os.path.basename(file))[0]
        self.path = os.path.join(os.path.dirname(os.path.abspath(file)), self.name + ".lua")
        self.cases, self.absent = [], []

    def not_in_torch(self, *rows):
        """Rows that PyTorch does not have as one function."""
        self.absent += rows

    def case(self, row, expression, fn, *inputs, grad=True, tolerance=1e-9):
        inputs = [t.clone() for t in inputs]
        wants = [grad and t.is_floating_point() for t in inputs]
        for t, w in zip(inputs, wants): t.requires_grad_(w)
        out = fn(*inputs)
        out = list(out) if isinstance(out, (tuple, list)) else [out]
        grads = [None] * len(inputs)
        total = sum((o * (0.5 + (torch.arange(o.numel()) % 7).to(o.dtype) / 8).view(o.shape)).sum() for o in out
            if o.requires_grad)
        if any(wants) and torch.is_tensor(total):
            grads = torch.autograd.grad(total, [t for t, w in zip(inputs, wants) if w], allow_unused=True)
            grads = iter(grads)
            grads = [next(grads) if w else None for w in wants]
        self.cases.append('{row="%s",call=[=[%s]=],tolerance=%g,\n inputs={%s},\n outputs={%s},\n grads={%s}}' % (
            row, expression, tolerance, ",".join(lua(t) for t in inputs), ",".join(lua(o) for o in out),
            ",".join("false" if g is None else lua(g) for g in grads)))

    def write(self):
        with open(self.path, "w") as f:
            f.write("-- Written by %s.py with PyTorch %s.\nreturn {absent={%s},cases={\n%s\n}}\n" % (
                self.name, torch.__version__, ",".join('"%s"' % r for r in self.absent), ",\n".join(self.cases)))
        print("%s: %d cases" % (self.path, len(self.cases)))
