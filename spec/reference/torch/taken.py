"""Copies of parts, numbers taken apart, histograms, segments, slopes: what lua/accelerate/tensor writes of rows."""
import torch
from common import Family, rand

f = Family(__file__)
x5, x23, x34, x46 = rand(5), rand(2, 3), rand(3, 4), rand(4, 6)
inf, nan = float("inf"), float("nan")
ints = lambda *v: torch.tensor(v)


def case(row, expression, fn, *inputs, **options): f.case(row, expression, fn, *inputs, **options)


# copies
case("diagonal_copy", "x1:diagonal_copy(1)", lambda x: torch.diagonal_copy(x, 1), x34)
case("expand_copy", "x1:expand_copy(2, 5)", lambda x: torch.expand_copy(x, (2, 5)), x5)
case("narrow_copy", "x1:narrow_copy(2, 2, 2)", lambda x: torch.narrow_copy(x, 1, 1, 2), x34)
case("permute_copy", "x1:permute_copy(2, 1)", lambda x: torch.permute_copy(x, (1, 0)), x34)
case("squeeze_copy", "x1[{ { 1, 1 } }]:squeeze_copy()", lambda x: torch.squeeze_copy(x[:1]), x34)
case("t_copy", "x1:t_copy()", torch.t_copy, x34)
case("transpose_copy", "x1:transpose_copy(1, 2)", lambda x: torch.transpose_copy(x, 0, 1), x34)
case("unbind_copy", "x1:unbind_copy(2)", lambda x: torch.unbind_copy(x, 1), x34)
case("unfold_copy", "x1:unfold_copy(2, 2, 1)", lambda x: torch.unfold_copy(x, 1, 2, 1), x34)
case("unsqueeze_copy", "x1:unsqueeze_copy(1)", lambda x: torch.unsqueeze_copy(x, 0), x5)
case("view_copy", "x1:view_copy(2, 6)", lambda x: torch.view_copy(x, (2, 6)), x34)
case("split_with_sizes", "x1:split_with_sizes({ 1, 3 }, 2)", lambda x: x.split_with_sizes([1, 3], 1), x34)
case("split_with_sizes_copy", "x1:split_with_sizes_copy({ 1, 3 }, 2)",
    lambda x: torch.split_with_sizes_copy(x, [1, 3], 1), x34)
for name in "alias_copy", "resolve_conj", "resolve_neg", "conj_physical":
    case(name, "x1:%s()" % name, lambda x: getattr(torch, name)(x) * 1, x34)
case("as_strided_copy", "x1:as_strided_copy({ 2, 3 }, { 1, 2 }, 1)", lambda x: x.as_strided((2, 3), (1, 2), 1).clone(),
    x34)
case("as_strided_scatter", "x1:as_strided_scatter(x2, { 2, 3 }, { 4, 1 }, 1)",
    lambda x, s: torch.as_strided_scatter(x, s, (2, 3), (4, 1), 1), x34, x23, grad=False)
case("fill", "x1:fill(2), x1:fill(x2)", lambda x, v: (x.clone().fill_(2), x * 0 + v), x23, torch.tensor(1.5))
for flag in "false", "true":
    case("put", "x1:put(x2, x3, %s)" % flag, lambda x, i, s: x.put(i, s, flag == "true"), x34, ints(0, 11, 5, -2),
        rand(4))
case("put", "x1:put(x2, x3, true)", lambda x, i, s: x.put(i, s, True), x34, ints(3, 3), rand(2))
case("put_", "(x1 * 1):put_(x2, x3)", lambda x, i, s: (x * 1).put_(i, s), x34, ints(3, 1), rand(2))
case("nonzero_static", "x1:nonzero_static(2), x1:nonzero_static(5, -7)",
    lambda x: (torch.nonzero_static(x, size=2), torch.nonzero_static(x, size=5, fill_value=-7)), ints(0, 3, 0, 4, 5))
case("mH", "x1.mH", lambda x: x.mH, x34)
case("adjoint", "x1:adjoint()", lambda x: x.adjoint(), x34)
case("asarray", "tensor.asarray(x1)", lambda x: torch.asarray(x), x34)
case("H", "x1.H", lambda x: x.H, x34)

# numbers taken apart
odd = torch.tensor([0.0, 1.0, -1.0, 0.5, 3.75, -2.0, 1e-5])
case("frexp", "x1:frexp()", lambda x: tuple(torch.frexp(x)), odd, grad=False)
case("frexp", "x1:frexp()", lambda x: tuple(torch.frexp(x)), x5)
for power in 1020, -1022, -1060:
    case("frexp", "(x1 * 2 ^ %d):frexp()" % power, lambda x: tuple(torch.frexp(x * 2.0**power)), odd[:6], grad=False)
case("nextafter", "x1:nextafter(x2)", torch.nextafter, x5, rand(5, seed=3))
for kind in torch.float64, torch.float32, torch.bfloat16:
    for to in inf, -inf, 0.0:
        name = str(kind)[6:]
        values = torch.tensor([0.0, 1.0, -1.0, 0.5, 3.7, -2.0, 2.0**-126, 3.3e38, -inf, nan])
        case("nextafter", "tensor.nextafter(x1:to('%s'), tensor.full({ 10 }, %s, { dtype = '%s' })):double() - x1"
            % (name, {inf: "1/0", -inf: "-1/0", 0.0: "0"}[to], name),
            lambda x: torch.nextafter(x.to(kind), torch.full((10,), to, dtype=kind)).double() - x, values, grad=False)
for power in 1020, -1022, -1060:
    case("nextafter", "(tensor.nextafter(x1 * 2 ^ %d, x1 * 0) - x1 * 2 ^ %d) * 2 ^ %d * 2 ^ %d"
        % (power, power, -power // 2, 50 - power // 2),
        lambda x: (torch.nextafter(x * 2.0**power, x * 0) - x * 2.0**power) * 2.0**(-power // 2)
        * 2.0**(50 - power // 2), odd[:6], grad=False)
a, v = torch.tensor([0.1, 0.5, 1.0, 3.5, 20.0, 150.0]), torch.tensor([[0.05], [0.9], [2.5], [19.0], [160.0], [400.0]])
for name in "igamma", "igammac":
    case(name, "x1:detach():%s(x2)" % name, lambda a, v: getattr(torch, name)(a.detach(), v), a, v, tolerance=1e-8)
    case(name, "x1:%s(x2)" % name, getattr(torch, name), torch.tensor([0.0, 0.0, 1.0, 1.0, -1.0, 2.0, inf, nan]),
        torch.tensor([0.0, 1.0, 0.0, inf, 1.0, -1.0, 1.0, 1.0]), grad=False)

# histograms
edges = torch.tensor([-2.0, -0.5, 0.0, 1.5])
case("histogram", "x1:histogram(4)", lambda x: tuple(torch.histogram(x, 4)), x34, grad=False)
case("histogram", "x1:histogram(x2)", lambda x, e: tuple(torch.histogram(x, e)), x34, edges, grad=False)
case("histogram", "x1:histogram { bins = 3, range = { -1, 1 }, weight = x2, density = true }",
    lambda x, w: tuple(torch.histogram(x, 3, range=(-1., 1.), weight=w, density=True)), x34, x34.abs(), grad=False)
case("histogram", "x1:histogram(2)", lambda x: tuple(torch.histogram(x, 2)), torch.ones(3), grad=False)
flat = lambda r: (r.hist, *r.bin_edges)
case("histogramdd", "(function(h, e) return h, e[1], e[2], e[3] end)(x1:histogramdd({ 2, 3, 2 }))",
    lambda x: flat(torch.histogramdd(x, [2, 3, 2])), rand(4, 5, 3), grad=False)
case("histogramdd", "(x1:histogramdd({ x2, x2 }, nil, x3, true))",
    lambda x, e, w: torch.histogramdd(x, [e, e], weight=w, density=True).hist, rand(6, 2), edges, rand(6).abs(),
    grad=False)
case("histogramdd", "(x1:histogramdd { bins = 2, range = { -1, 1, 0, 2 } })",
    lambda x: torch.histogramdd(x, 2, range=[-1., 1., 0., 2.]).hist, rand(6, 2), grad=False)

# segments
for reduce in "sum", "mean", "max", "min", "prod":
    case("segment_reduce", "x1:segment_reduce('%s', { lengths = x2 })" % reduce,
        lambda x, n: torch.segment_reduce(x, reduce, lengths=n), x46, ints(1, 3))
    case("segment_reduce", "x1:segment_reduce('%s', { offsets = x2, initial = 0.75 })" % reduce,
        lambda x, n: torch.segment_reduce(x, reduce, offsets=n, initial=0.75), x46, ints(0, 3, 3, 4))
    case("segment_reduce", "x1:segment_reduce('%s', { lengths = x2, axis = 2 })" % reduce,
        lambda x, n: torch.segment_reduce(x, reduce, lengths=n, axis=1), x23, torch.tensor([[1, 2], [2, 1]]))

# slopes
places = torch.tensor([0.0, 0.5, 2.0, 2.25])
for order in 1, 2:
    case("gradient", "x1:gradient { edge_order = %d }" % order, lambda x: torch.gradient(x, edge_order=order), x34)
    case("gradient", "x1:gradient { spacing = 0.5, dim = 2, edge_order = %d }" % order,
        lambda x: torch.gradient(x, spacing=0.5, dim=1, edge_order=order), x34)
    case("gradient", "x1:gradient { spacing = { x2:detach() }, dim = 1, edge_order = %d }" % order,
        lambda x, p: torch.gradient(x, spacing=(p.detach(),), dim=0, edge_order=order), x46, places)

# what is not NaN, weights
gaps = torch.tensor([[1.0, nan, 3.5, -2.0], [nan, nan, nan, nan], [4.0, 0.5, nan, 2.0]])
for how in "linear", "lower", "higher", "midpoint", "nearest":
    case("nanquantile", "x1:nanquantile(x2, 2, { interpolation = '%s' })" % how,
        lambda x, q: x.nanquantile(q, 1, interpolation=how), gaps, torch.tensor([0.0, 0.3, 1.0]), grad=False)
case("nanquantile", "x1:nanquantile(0.4), x1:nanquantile(0.6, 1, true)",
    lambda x: (x.nanquantile(0.4), x.nanquantile(0.6, 0, True)), x34)
case("cov", "x1:cov { fweights = x2 }", lambda x, w: x.cov(fweights=w), x34, ints(1, 0, 2, 3))
case("cov", "x1:cov { aweights = x2, correction = 0 }", lambda x, w: x.cov(aweights=w, correction=0), x34,
    rand(4).abs(), grad=False)
case("cov", "x1:cov { fweights = x2, aweights = x3 }", lambda x, w, a: x.cov(fweights=w, aweights=a), x34,
    ints(1, 0, 2, 3), rand(4).abs(), grad=False)
case("cov", "x1:cov()", torch.cov, rand(1, 4))
case("corrcoef", "x1:corrcoef()", torch.corrcoef, rand(1, 4), grad=False)
case("diff", "x1:diff(0, { prepend = x1 })", lambda x: x.diff(0, prepend=x), x34)
case("logit", "x1:logit(0.6)", lambda x: x.logit(0.6), rand(5, lo=0.1, hi=0.9), grad=False)
case("polygamma", "tensor.polygamma(2, x1), tensor.polygamma(3, x1)",
    lambda x: (torch.polygamma(2, x), torch.polygamma(3, x)), torch.tensor([0.0, -1.0]), grad=False)
f.write()
