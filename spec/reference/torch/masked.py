"""torch.masked and torch.signal.windows."""
import torch
from common import Family, rand

f = Family(__file__)
x = rand(3, 4)
mask = torch.tensor([[True, False, True, True], [False, False, False, True], [True, True, False, True]])
row = torch.tensor([True, False, True, True])


def case(name, expression, fn, *inputs, **options):
    f.case("masked." + name, "tensor.masked.%s(%s)" % (name, expression), fn, *inputs, **options)


for name in "sum", "prod", "amax", "amin", "mean", "logsumexp", "var", "std":
    fn = getattr(torch.masked, name)
    case(name, "x1, { dim = 2, mask = x2 }", lambda v, m: fn(v, dim=1, mask=m), x, mask[[0, 0, 2]])
    case(name, "x1, { dim = { 1, 2 }, keepdim = true, mask = x2 }",
        lambda v, m: fn(v, dim=(0, 1), keepdim=True, mask=m), x, row)
    case(name, "x1, 1", lambda v: fn(v, dim=0), x)
case("var", "x1, 2, false, { mask = x2 }", lambda v, m: torch.masked.var(v, 1, False, mask=m), x, mask)
case("var", "x1, { dim = 2, correction = 0.5, mask = x2 }",
    lambda v, m: torch.masked.var(v, 1, correction=0.5, mask=m), x, mask)
for name in "argmax", "argmin":
    fn = getattr(torch.masked, name)
    case(name, "x1, { dim = 2, mask = x2 }", lambda v, m: fn(v, dim=1, mask=m).long(), x, mask, grad=False)
for name in "argmax", "argmin":
    fn = getattr(torch.masked, name)
    case(name, "x1, { dim = 2, dtype = 'int32', mask = x2 }", lambda v, m: fn(v, dim=1, dtype=torch.int32, mask=m),
        3 * x, mask, grad=False)
whole = (4 * x).long()
case("amax", "x1, { dim = 2, mask = x2 }", lambda v, m: torch.masked.amax(v, dim=1, mask=m), whole, mask)
case("amin", "x1:int(), { dim = 2, mask = x2 }", lambda v, m: torch.masked.amin(v.int(), dim=1, mask=m), whole,
    mask.logical_and(mask.flip(1)))
case("median", "x1, { dim = 2, mask = x2 }", lambda v, m: torch.masked.median(v, dim=1, mask=m), x, mask)
for name in "cumsum", "cumprod", "softmax", "log_softmax", "softmin":
    fn = getattr(torch.masked, name)
    case(name, "x1, 2, { mask = x2 }", lambda v, m: fn(v, 1, mask=m), x, row)
    case(name, "x1, 1, { dtype = 'float64' }", lambda v: fn(v, 0, dtype=torch.float64), x)
for p in 1.0, 2.0, 3.0:
    case("norm", "x1, %g, 2, { mask = x2 }" % p, lambda v, m: torch.masked.norm(v, p, 1, mask=m), x, mask)
    case("normalize", "x1, %g, 2, { mask = x2 }" % p, lambda v, m: torch.masked.normalize(v, p, 1, mask=m), x, mask)
case("logaddexp", "x1, x2, { input_mask = x3 }",
    lambda a, b, m: torch.masked.logaddexp(a, b, input_mask=m, other_mask=torch.ones_like(m)), x, rand(3, 4, seed=2),
    mask)

windows = torch.signal.windows
for name, ours, options in [("hann", "", {}), ("hamming", "", {}), ("blackman", "", {}), ("nuttall", "", {}),
        ("bartlett", "", {}), ("cosine", "", {}), ("general_hamming", "alpha = 0.6", {"alpha": 0.6}),
        ("exponential", "tau = 2.5", {"tau": 2.5}), ("gaussian", "std = 1.5", {"std": 1.5}),
        ("kaiser", "beta = 8", {"beta": 8.0}), ("general_cosine", "a = { 0.4, 0.5, 0.1 }", {"a": [0.4, 0.5, 0.1]})]:
    for length in 0, 1, 2, 7:
        for sym in True, False:
            f.case("signal.windows." + name, "tensor.signal.windows.%s(%d, { sym = %s, dtype = 'float64', %s })" % (
                name, length, str(sym).lower(), ours),
                lambda: getattr(windows, name)(length, sym=sym, dtype=torch.float64, **options))
f.case("signal.windows.exponential", "tensor.signal.windows.exponential(5, 1, 2, false, 'float64')",
    lambda: windows.exponential(5, center=1, tau=2, sym=False, dtype=torch.float64))
f.write()
