"""Options that choose another form of an op: dtype, alpha, rounding_mode, reduce, side ..."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
x5, x23, x34, x234 = rand(5), rand(2, 3), rand(3, 4), rand(2, 3, 4)
y34 = rand(3, 4, seed=2)


def at(*v): return torch.tensor(v)


def case(row, expression, fn, *inputs, **options): f.case(row, expression, fn, *inputs, **options)


# dtype
n34 = torch.arange(12).view(3, 4)
for name in "sum", "prod", "nansum", "mean":
    fn = getattr(torch, name)
    case(name, "x1:%s({ dtype = 'float64' })" % name, lambda x: fn(x, dtype=torch.float64), n34)
    case(name, "x1:%s({ dim = 2, keepdim = true, dtype = 'float32' })" % name,
        lambda x: fn(x, dim=1, keepdim=True, dtype=torch.float32), x34, tolerance=1e-5)
case("sum", "x1:sum({ dtype = 'int32' })", lambda x: x.sum(dtype=torch.int32), n34)
for name in "cumsum", "cumprod":
    case(name, "x1:%s(1, { dtype = 'float64' })" % name, lambda x: getattr(x, name)(0, dtype=torch.float64), n34)
for name in "softmax", "log_softmax":
    case(name, "x1:%s(2, { dtype = 'float32' })" % name, lambda x: getattr(x, name)(1, dtype=torch.float32), x34,
        tolerance=1e-5)
    case(name, "F.%s(x1, { dim = -1, dtype = 'float64' })" % name,
        lambda x: getattr(F, name)(x, -1, dtype=torch.float64),
        n34)
case("nanmean", "x1:nanmean({ dim = 1, dtype = 'float64' })", lambda x: x.nanmean(0, dtype=torch.float64), x34)
case("var", "x1:var({ dim = 1, unbiased = false })", lambda x: x.var(0, unbiased=False), x34)
case("std", "x1:std({ unbiased = false })", lambda x: x.std(unbiased=False), x34)

# arithmetic
case("add", "x1:add(x2, { alpha = -1.5 })", lambda a, b: a.add(b, alpha=-1.5), x34, y34)
case("add", "tensor.add(x1, 3, { alpha = 2 })", lambda a: torch.add(a, 3, alpha=2), n34)
case("add", "(x1 * 1):add_(x2, { alpha = 2 })", lambda a, b: (a * 1).add_(b, alpha=2), x34, rand(4, seed=1))
case("add", "x1:add(x2:gt(0), { alpha = 2 })", lambda a, b: a.add(b > 0, alpha=2), x34, y34, grad=False)
case("sub", "x1:sub(x2, { alpha = 0.5 })", lambda a, b: a.sub(b, alpha=0.5), x34, y34)
case("sub", "(x1 * 1):sub_(x2, { alpha = 2 })", lambda a, b: (a * 1).sub_(b, alpha=2), x34, y34)
signed = at(7, -7, 8, -8, 0, 5)
for mode in "floor", "trunc":
    case("div", "x1:div(2, { rounding_mode = '%s' })" % mode, lambda x: x.div(2, rounding_mode=mode), signed)
    case("div", "x1:div(x2, { rounding_mode = '%s' })" % mode, lambda x, y: x.div(y, rounding_mode=mode), signed,
        at(2, 2, -3, -3, 4, 5))
    case("div", "x1:div(0.7, { rounding_mode = '%s' })" % mode,
        lambda x: x.div(0.7, rounding_mode=mode), signed.double())
    case("div", "x1:div(x2, { rounding_mode = '%s' })" % mode, lambda x, y: x.div(y, rounding_mode=mode), x34, y34)
    case("div", "(x1 * 1):div_(x2, { rounding_mode = '%s' })" % mode,
        lambda x, y: (x * 1).div_(y, rounding_mode=mode), x34, y34)
    case("div", "(x1 * 1):div_(3, { rounding_mode = '%s' })" % mode,
        lambda x: (x * 1).div_(3, rounding_mode=mode), signed)
for decimals in 0, 1, 3, -2:
    case("round", "x1:round({ decimals = %d })" % decimals, lambda x: x.round(decimals=decimals),
        torch.tensor([1.25, -0.15, 149.9994, 250.0, -350.0, 0.0005]))
case("round", "(x1 * 1):round_({ decimals = 1 })", lambda x: (x * 1).round_(decimals=1), x5)
for name in "max", "min":
    case(name, "x1:%s(x2)" % name, getattr(torch, name), x34, rand(4, seed=3))
    case(name, "tensor.%s(x1, x2)" % name, getattr(torch, name), n34, at(2, 5, 7, 1))

# values as tensors
case("masked_fill", "x1:masked_fill(x1.data:gt(0), x2)", lambda x, v: x.masked_fill(x > 0, v), x34, rand())
case("masked_fill", "x1:masked_fill({ mask = x1:gt(3), value = x2 })",
    lambda x, v: x.masked_fill(x > 3, v), n34, at(9)[0])
case("masked_fill", "(x1 * 1):masked_fill_(x1.data:gt(0), x2)",
    lambda x, v: (x * 1).masked_fill_(x > 0, v), x34, rand())
case("index_fill", "x1:index_fill(1, x2, x3)", lambda x, i, v: x.index_fill(0, i, v), x34, at(2, 0), rand())
case("index_fill", "(x1 * 1):index_fill_(2, x2, x3)",
    lambda x, i, v: (x * 1).index_fill_(1, i, v), x34, at(3), rand())

# positions
i34, i24 = at(2, 0, 1, 1, 0, 2, 2, 0, 0, 0, 1, 2).view(3, 4), at(2, 0, 1, 1, 0, 0, 2, 0).view(2, 4)
case("scatter", "x1:scatter(1, x2, x3, { reduce = 'add' })", lambda x, i, s: x.scatter_add(0, i, s), x34, i34, y34)
case("scatter", "x1:scatter(1, x2, 2, { reduce = 'add' })", lambda x, i: x.scatter(0, i, 2, reduce="add"), x34, i34,
    grad=False)
case("scatter", "(x1 * 1):scatter_(1, x2, x3, { reduce = 'multiply' })",
    lambda x, i, s: (x * 1).scatter_(0, i, s, reduce="multiply"), x34, i34, y34, grad=False)
zeros34 = x34.clone()
zeros34[0, 0] = zeros34[1, 2] = zeros34[2, 1] = 0
factors = y34.clone()
factors[0, 1] = factors[1, 0] = factors[2, 0] = factors[1, 2] = factors[2, 3] = 0
ties = torch.tensor([[1., 2, 2, 1], [2, 2, 1, 1], [1, 1, 2, 2]])
for reduce in "sum", "prod", "mean", "amax", "amin":
    for own in "true", "false":
        case("scatter_reduce", "x1:scatter_reduce(1, x2, x3, '%s', { include_self = %s })" % (reduce, own),
            lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=own == "true"), x34, i34, y34)
        case("scatter_reduce", "x1:scatter_reduce(1, x2, x3, '%s', %s)" % (reduce, own),
            lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=own == "true"), x34, i24, y34, grad=False)
    case("scatter_reduce", "x1:scatter_reduce(1, x2, x3, '%s')" % reduce,
        lambda x, i, s: x.scatter_reduce(0, i, s, reduce), zeros34, i34, factors)
    case("scatter_reduce", "x1:scatter_reduce(2, x2, x3, '%s')" % reduce,
        lambda x, i, s: x.scatter_reduce(1, i, s, reduce), n34, i34, n34 - 5)
    case("scatter_reduce", "x1:scatter_reduce(1, x2, x3, '%s')" % reduce,
        lambda x, i, s: x.scatter_reduce(0, i, s, reduce), x34, i34[:, :0], y34, grad=False)
    case("scatter_reduce", "x1:scatter_reduce(3, x2, x3, '%s')" % reduce,
        lambda x, i, s: x.scatter_reduce(2, i, s, reduce), x234, i34.view(2, 3, 2), rand(2, 3, 2, seed=4))
    case("scatter_reduce_", "(x1 * 1):scatter_reduce_(1, x2, x3, '%s')" % reduce,
        lambda x, i, s: (x * 1).scatter_reduce_(0, i, s, reduce), x34, i34, y34, grad=reduce != "mean")
case("scatter_reduce", "x1:scatter_reduce(1, x2, x3, 'amax')",
    lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), ties,
    i34, ties.flip(0))
odd = torch.tensor([1.0, float("nan"), float("inf"), -1.0])
for reduce in "amax", "amin":
    case("scatter_reduce", "x1:scatter_reduce(1, x2, x3, '%s')" % reduce,
        lambda x, i, s: x.scatter_reduce(0, i, s, reduce), odd, at(0, 1, 2, 3), odd.flip(0), grad=False)
for reduce in "prod", "mean", "amax", "amin":
    case("index_reduce", "x1:index_reduce(1, x2, x3, '%s')" % reduce,
        lambda x, i, s: x.index_reduce(0, i, s, reduce), x34,
        at(2, 0, 2), y34)
    case("index_reduce_", "(x1 * 1):index_reduce_(2, x2, x3, '%s', { include_self = false })" % reduce,
        lambda x, i, s: (x * 1).index_reduce_(1, i, s, reduce, include_self=False), x34, at(3, 0), rand(3, 2, seed=5),
        grad=False)
case("nonzero", "x1:nonzero({ as_tuple = true })", lambda x: x.nonzero(as_tuple=True), at(0, 3, 0, 2).view(2, 2))
case("nonzero", "x1:nonzero({ as_tuple = true })", lambda x: x.nonzero(as_tuple=True), at(1)[0])
sequence, values = at(1, 3, 5, 7, 9), at(3, 6, 9, 0)
case("searchsorted", "tensor.searchsorted(x1, x2, { side = 'right' })",
    lambda s, v: torch.searchsorted(s, v, side="right"), sequence, values)
case("searchsorted", "tensor.searchsorted(x1, x2, { side = 'left', out_int32 = true })",
    lambda s, v: torch.searchsorted(s, v, side="left", out_int32=True), sequence, values)
case("searchsorted", "tensor.searchsorted(x1, x2, { sorter = x1:argsort() })",
    lambda s, v: torch.searchsorted(s, v, sorter=s.argsort()), sequence.flip(0), values)
case("bucketize", "x2:bucketize(x1, { out_int32 = true })",
    lambda s, v: torch.bucketize(v, s, out_int32=True), sequence,
    values)
case("repeat_interleave", "x1:repeat_interleave(x2, { dim = 1, output_size = 6 })",
    lambda x, r: x.repeat_interleave(r, 0, output_size=6), x34, at(1, 2, 3))
rows = at(3, 1, 3, 1, 0, 2, 3, 1, 0, 2, 0, 2).view(6, 2)
cube = at(1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0).view(2, 3, 2)
for row, given, fn in ("unique", "", torch.unique), ("unique_consecutive", "", torch.unique_consecutive):
    for x in rows, cube:
        for dim in range(x.dim()):
            case(row, "x1:%s({ dim = %d, return_inverse = true, return_counts = true })" % (row, dim + 1),
                lambda x: fn(x, return_inverse=True, return_counts=True, dim=dim), x)
    case(row, "x1:%s({ dim = 1 })" % row, lambda x: fn(x, dim=0), rand(3, 2).repeat(2, 1), grad=False)
case("unique", "x1:unique({ sorted = true })", lambda x: x.unique(sorted=True), rows)
a, b = rand(2, 3, 4), rand(4, 3, 5, seed=2)
for lua, dims in ("{ { 3, 2 }, { 1, 2 } }", ([2, 1], [0, 1])), ("{ { -1 }, { 1 } }", ([-1], [0])), ("{ 2, 2 }",
    ([1], [1])):
    case("tensordot", "tensor.tensordot(x1, x2, %s)" % lua, lambda a, b: torch.tensordot(a, b, dims), a, b)
case("tensordot", "tensor.tensordot(x1, x2, { { 1, 2 }, { 3, 1 } })", # a size of 1 is broadcast
    lambda a, b: torch.tensordot(a, b, ([0, 1], [2, 0])), rand(1, 1, 3), rand(2, 4, 2, seed=2))
case("tensordot", "tensor.tensordot(x1, x2, { { 3, 2 }, { 1, 2 } })",
    lambda a, b: torch.tensordot(a, b, ([2, 1], [0, 1])), rand(2, 3, 4), rand(1, 3, 5, seed=2))
case("tensordot", "tensor.tensordot(x1, x2, { dims = { {}, {} } })",
    lambda a, b: torch.tensordot(a, b, ([], [])), x23, x5)

# losses
for name in "mse_loss", "l1_loss", "huber_loss":
    for reduction in "mean", "sum", "none":
        case(name, "F.%s(x1, x2, { weight = x3, reduction = '%s' })" % (name, reduction),
            lambda a, b, w: getattr(F, name)(a, b, weight=w, reduction=reduction), x34, y34, rand(3, 4, lo=0, seed=5))
for swap in "true", "false":
    case("pairwise_distance", "F.triplet_margin_loss(x1, x2, x3, { swap = %s, reduction = 'none' })" % swap,
        lambda a, p, n: F.triplet_margin_loss(a, p, n, swap=swap == "true", reduction="none"), x34, y34,
        rand(3, 4, seed=8))
    case("pairwise_distance", "F.triplet_margin_with_distance_loss(x1, x2, x3, { swap = %s, margin = 2 })" % swap,
        lambda a, p, n: F.triplet_margin_with_distance_loss(a, p, n, swap=swap == "true", margin=2.0), x34, y34,
        rand(3, 4, seed=8))
labels = at(1, 3, -1, 0, 2, -1, 3, 1, 0, 1, 2, 3).view(3, 4)
for reduction in "mean", "sum", "none":
    case("gather", "F.multi_margin_loss(x1, x2, { p = 2, weight = x3, reduction = '%s' })" % reduction,
        lambda x, t, w: F.multi_margin_loss(x, t, p=2, weight=w.detach(), reduction=reduction), x34, at(3, 0, 1),
        torch.tensor([1., 2, 3, 4]), grad=False)
    case("gather", "F.multilabel_margin_loss(x1, x2, { reduction = '%s' })" % reduction,
        lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), x34, labels)
    case("logsigmoid", "F.multilabel_soft_margin_loss(x1, x2, { weight = x3, reduction = '%s' })" % reduction,
        lambda x, t, w: F.multilabel_soft_margin_loss(x, t, weight=w, reduction=reduction), x34, rand(3, 4, lo=0,
            hi=1),
        rand(4, lo=0))
case("gather", "F.multi_margin_loss(x1, x2)", F.multi_margin_loss, x34, at(3, 0, 1))
case("gather", "F.multi_margin_loss(x1, x2, { margin = 0.5 })", lambda x, t: F.multi_margin_loss(x, t, margin=0.5),
    rand(4), at(2)[0])
case("softmax", "nn.Softmin(2)(x1)", torch.nn.Softmin(1), x34)
case("softmax", "nn.Softmax2d()(x1)", torch.nn.Softmax2d(), x234)
case("group_norm",
    "func.functional_call(nn.GroupNorm(2, 4, { bias = false, dtype = 'float64' }), { weight = x2 }, x1)",
    lambda x, w: F.group_norm(x, 2, w), rand(2, 4, 3), rand(4, seed=1))
CONV = "func.functional_call(nn.Conv%dd(2, 3, %s, { %s, padding_mode = '%s', dtype = 'float64' }), " \
    "{ weight = x2, bias = x3 }, x1)"
for mode in "reflect", "replicate", "circular":
    case("conv2d", CONV % (2, "{ 3, 4 }", "padding = { 1, 2 }, stride = { 2, 1 }", mode),
        lambda x, w, b: F.conv2d(F.pad(x, (2, 2, 1, 1), mode), w, b, stride=(2, 1)), rand(2, 2, 5, 6),
        rand(3, 2, 3, 4, seed=1), rand(3))
    case("conv2d", CONV % (2, "{ 3, 4 }", "padding = 'same'", mode),
        lambda x, w, b: F.conv2d(F.pad(x, (1, 2, 1, 1), mode), w, b), rand(2, 2, 5, 6), rand(3, 2, 3, 4, seed=1),
            rand(3))
    case("conv1d", CONV % (1, "3", "padding = 2, dilation = 2", mode),
        lambda x, w, b: F.conv1d(F.pad(x, (2, 2), mode), w, b, dilation=2), rand(2, 2, 6), rand(3, 2, 3, seed=1),
            rand(3))
case("adaptive_avg_pool2d", "F.interpolate(x1, { size = { 2, 3 }, mode = 'area' })",
    lambda x: F.interpolate(x, size=(2, 3), mode="area"), rand(1, 2, 5, 4))
case("adaptive_avg_pool2d", "F.interpolate(x1, { scale_factor = 1.5, mode = 'area' })",
    lambda x: F.interpolate(x, scale_factor=1.5, mode="area"), rand(1, 2, 4, 4))
case("adaptive_avg_pool1d", "F.interpolate(x1, { size = 2, mode = 'area' })",
    lambda x: F.interpolate(x, size=2, mode="area"), rand(1, 2, 5))
f.write()
