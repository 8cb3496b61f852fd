"""Functions that lua/accelerate/tensor writes of rows."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
x5, x23, x33, x34, x234 = rand(5), rand(2, 3), rand(3, 3), rand(3, 4), rand(2, 3, 4)
ends = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.0, -1.0, 0.5])
ints = lambda *v: torch.tensor(v)


def case(row, expression, fn, *inputs, **options): f.case(row, expression, fn, *(inputs or (x234,)), **options)


# element by element
for name in "clip", "absolute", "negative", "fix", "arccos", "arcsin", "arctan", "arctanh", "arccosh", "arcsinh":
    x = {"arccos": x5 / 3, "arcsin": x5 / 3, "arctanh": x5 / 3, "arccosh": x5 + 4}.get(name, x5)
    if name == "clip": case(name, "x1:clip(-0.5, 0.5)", lambda x: x.clip(-0.5, 0.5), x)
    else: case(name, "x1:%s()" % name, getattr(torch, name), x)
for name in "multiply", "divide", "true_divide", "subtract", "arctan2", "greater", "greater_equal", "less", \
        "less_equal", "not_equal":
    case(name, "tensor.%s(x1, x2)" % name, getattr(torch, name), x23, rand(3, seed=4))
case("sgn", "x1:sgn()", torch.sgn, ends[3:], grad=False)
case("clamp_min", "x1:clamp_min(0.5)", lambda x: x.clamp_min(0.5), x5)
case("clamp_min", "x1:clamp_min(x2)", lambda x, y: x.clamp_min(y), x23, rand(3, seed=2))
flags = torch.tensor([True, False, True]), torch.tensor([False, False, True])
for name in "clamp_min", "clamp_max":
    case(name, "x1:%s(x2)" % name, lambda a, b: getattr(a, name)(b), *flags)
    case(name, "x1:%s(x2)" % name, lambda a, b: getattr(a, name)(b), flags[0], ints(2, -1, 0))
case("clamp_max", "x1:clamp_max(-0.25)", lambda x: x.clamp_max(-0.25), x5)
case("clamp_min_", "x1:clone():clamp_min_(0.5)", lambda x: x.clone().clamp_min_(0.5), x5)
case("clamp_max_", "x1:clone():clamp_max_(0.5)", lambda x: x.clone().clamp_max_(0.5), x5)
for name in "fmax", "fmin":
    case(name, "x1:%s(x2)" % name, getattr(torch, name), x23, rand(3, seed=2))
    case(name, "x1:%s(x2)" % name, getattr(torch, name), ends, ends.flip(0), grad=False)
case("polygamma", "x1:polygamma(2)", lambda x: x.polygamma(2), rand(5, lo=0.5, hi=3))
case("full_like", "tensor.full_like(x1, core.tensor(2.5))",
    lambda x: torch.full_like(x, torch.tensor(2.5)), rand(2, 3))
case("full_like", "tensor.full_like(x1, core.tensor(2.5), { dtype = 'int64' })",
    lambda x: torch.full_like(x, torch.tensor(2.5), dtype=torch.int64), rand(2, 3))
case("logit", "x1:logit()", torch.logit, rand(5, lo=0.1, hi=0.9))
case("logit", "x1:logit()", torch.logit, torch.tensor([0, 1, -0.5, 1.5, 0.3]))
case("logit", "x1:logit(0)", lambda x: x.logit(0.0), torch.tensor([0, 1, -0.5, 1.5, 0.3]))
case("logit", "x1:logit(0.2)", lambda x: x.logit(0.2), rand(5, lo=-0.1, hi=1.1))
case("sinc", "x1:sinc()", torch.sinc, torch.tensor([0.0, 0.5, -1.25, 2.0]))
case("deg2rad", "x1:deg2rad()", torch.deg2rad, x5)
case("rad2deg", "x1:rad2deg()", torch.rad2deg, x5)
case("positive", "x1:positive()", torch.positive, x5)
case("signbit", "x1:signbit()", torch.signbit, ends[:2], grad=False)
case("signbit", "(x1 * 0):signbit()", lambda x: (x * 0).signbit(), x5, grad=False)
case("signbit", "x1:signbit()", torch.signbit, ints(-1, 0, 3))
case("copysign", "x1:copysign(x2:detach())", lambda a, b: a.copysign(b.detach()), x23, rand(3, seed=2))
case("copysign", "x1:copysign(-2)", lambda x: x.copysign(-2.0), x5)
case("heaviside", "x1:heaviside(x2)", torch.heaviside, ends[[0, 1, 3, 4, 5]], x5, grad=False)
case("isposinf", "x1:isposinf()", torch.isposinf, ends, grad=False)
case("isneginf", "x1:isneginf()", torch.isneginf, ends, grad=False)

# whole tensors
near = x23 + 1e-6 * rand(2, 3, seed=9)
case("isclose", "x1:isclose(x2, { rtol = 1e-6, atol = 1e-6 })", lambda a, b: a.isclose(b, 1e-6, 1e-6), x23, near,
    grad=False)
case("isclose", "x1:isclose(x2)", torch.isclose, ends, ends.clone(), grad=False)
case("isclose", "x1:isclose(x2, { equal_nan = true })", lambda a, b: a.isclose(b, equal_nan=True), ends, ends.clone(),
    grad=False)
flag = lambda v: torch.tensor([v])
case("allclose", "tensor({ x1:allclose(x2) })", lambda a, b: flag(a.allclose(b)), x23, near, grad=False)
case("allclose", "tensor({ x1:allclose(x2, 0.1, 0.1) })", lambda a, b: flag(a.allclose(b, 0.1, 0.1)), x23, near,
    grad=False)
case("is_same_size", "tensor({ x1:is_same_size(x2), tensor.is_same_size(x1, x1:t()) })",
    lambda a, b: torch.tensor([a.is_same_size(b), torch.is_same_size(a, a.t())]), x23, near, grad=False)
case("equal", "tensor({ x1:equal(x2), x1:equal(x1), tensor.equal(x1, x1:t()) })",
    lambda a, b: torch.tensor([a.equal(b), a.equal(a), a.equal(a.t())]), x23, near, grad=False)

# making
case("new_zeros", "x1:new_zeros(2, 3), x1:new_zeros({ 2 }, { dtype = 'int64' })",
    lambda x: (x.new_zeros(2, 3), x.new_zeros(2, dtype=torch.int64)), x5)
case("new_ones", "x1:new_ones({ 2, 3 })", lambda x: x.new_ones(2, 3), ints(1))
case("new_full", "x1:new_full({ 2, 2 }, 1.5)", lambda x: x.new_full((2, 2), 1.5), x5)
case("new_tensor", "x1:new_tensor({ 1, 2.5 })", lambda x: x.new_tensor([1, 2.5]), x5)
case("as_tensor", "tensor.as_tensor({ 1, 2 }, { dtype = 'float64' }), tensor.as_tensor(x1)",
    lambda x: (torch.tensor([1., 2.]), x + 0), x5)
case("type_as", "x1:type_as(x2)", lambda a, b: a.type_as(b), x5, ints(1))
case("cpu", "x1:cpu()", lambda x: x.cpu(), x5)
case("nelement", "tensor({ x1:nelement() }, { dtype = 'int64' })", lambda x: ints(x.nelement()))
case("is_floating_point", "tensor({ x1:is_floating_point(), x2:is_floating_point() })",
    lambda a, b: torch.tensor([a.is_floating_point(), b.is_floating_point()]), x5, ints(1))
f.case("logspace", "tensor.logspace(-1, 2, 5, { dtype = 'float64' })", lambda: torch.logspace(-1, 2, 5))
f.case("logspace", "tensor.logspace(-1, 2, 5, 2, { dtype = 'float64' })", lambda: torch.logspace(-1, 2, 5, base=2))
f.case("tril_indices", "tensor.tril_indices(3, 4, 1)", lambda: torch.tril_indices(3, 4, 1))
f.case("triu_indices", "tensor.triu_indices(3, 4)", lambda: torch.triu_indices(3, 4))
for part in "tril", "triu":
    f.case(part + "_indices", "tensor.%s_indices(3, 4, -1, { dtype = 'int32' })" % part,
        lambda: getattr(torch, part + "_indices")(3, 4, -1, dtype=torch.int32))
for shape in (), (1, 1), (3, 1), (1, 2), (2,):
    text = "{ %s }" % ", ".join(map(str, shape))
    case("sum_to_size", "x1:sum_to_size(%s)" % text, lambda x: x.sum_to_size(shape),
        ints(1, 0, 1, 1, 1, 0).view(3, 2) > 0)
case("sum_to_size", "x1:sum_to_size({})", lambda x: x.sum_to_size(()), torch.tensor(True))
case("sum_to_size", "x1:sum_to_size({})", lambda x: x.sum_to_size(()), torch.tensor(1.5))
for name in "atleast_1d", "atleast_2d", "atleast_3d":
    for text in "{ x1, x2, x3 }", "x1, x2, x3":
        case(name, "tensor.%s(%s)" % (name, text), lambda *x: getattr(torch, name)(x), rand(), x5, x23)
case("std", "x1:std(2, true, { unbiased = false })", lambda x: x.std(1, keepdim=True, unbiased=False), x34)
case("var", "x1:var(2, false, { unbiased = true })", lambda x: x.var(1, keepdim=False, unbiased=True), x34)
for name in "var_mean", "std_mean":
    case(name, "tensor.%s(x1, 2, true, { unbiased = false })" % name,
        lambda x: getattr(torch, name)(x, 1, keepdim=True, unbiased=False), x34)
case("ldexp", "x1:ldexp(x2)", torch.ldexp, x5.float(), ints(-2, 0, 1, 3, 9), tolerance=1e-6)
types = [(n, getattr(torch, n)) for n in ("float64", "float32", "float16", "bfloat16")]
for n, t in types:
    i = torch.finfo(t)
    f.case("finfo", "(function() local f = tensor.finfo('%s'); return tensor({ f.bits, f.eps, f.max, f.min, f.tiny, "
        "f.smallest_normal, f.resolution }, { dtype = 'float64' }) end)()" % n,
        lambda: torch.tensor([i.bits, i.eps, i.max, i.min, i.tiny, i.smallest_normal, i.resolution]))
for n in "int32", "uint8":
    i = torch.iinfo(getattr(torch, n))
    f.case("iinfo", "(function() local f = tensor.iinfo('%s'); return tensor({ f.bits, f.min, f.max }, "
        "{ dtype = 'int64' }) end)()" % n, lambda: ints(i.bits, i.min, i.max))

# joining
parts = x23, rand(2, 3, seed=1)
for name in "hstack", "vstack", "row_stack", "dstack", "column_stack":
    case(name, "tensor.%s({ x1, x2 })" % name, lambda *l: getattr(torch, name)(l), *parts)
    case(name, "tensor.%s({ x1, x2 })" % name, lambda *l: getattr(torch, name)(l), rand(3), rand(3, seed=1))
    case(name, "tensor.%s({ x1, x2 })" % name, lambda *l: getattr(torch, name)(l), rand(), rand(seed=1))
for n in "123":
    for x in rand(), rand(2), x23, x234:
        case("atleast_%sd" % n, "tensor.atleast_%sd(x1)" % n, getattr(torch, "atleast_%sd" % n), x)
case("block_diag", "tensor.block_diag({ x1, x2, x3 })", torch.block_diag, x23, rand(2), rand())
case("cartesian_prod", "tensor.cartesian_prod({ x1, x2 })", torch.cartesian_prod, rand(2), rand(3, seed=1))
case("combinations", "x1:combinations()", torch.combinations, x5)
case("combinations", "x1:combinations(3)", lambda x: torch.combinations(x, 3), x5)
case("combinations", "x1:combinations({ r = 2, with_replacement = true })",
    lambda x: torch.combinations(x, 2, True), rand(3))
case("broadcast_tensors", "tensor.broadcast_tensors({ x1, x2 })", torch.broadcast_tensors, rand(2, 1), rand(3))
f.case("broadcast_shapes", "tensor(tensor.broadcast_shapes({ 2, 1 }, { 3 }, { 4, 1, 1 }), { dtype = 'int64' })",
    lambda: torch.tensor(torch.broadcast_shapes((2, 1), (3,), (4, 1, 1))))
case("tensor_split", "x1:tensor_split(3)", lambda x: x.tensor_split(3), x5)
case("tensor_split", "x1:tensor_split(4, -1)", lambda x: x.tensor_split(4, -1), x23)
case("tensor_split", "x1:tensor_split({ 1, 3 }, 3)", lambda x: x.tensor_split((1, 3), 2))
case("tensor_split", "x1:tensor_split({ 3, 2, 9 }, 1)", lambda x: x.tensor_split((3, 2, 9), 0), x5)

# rearranging
case("T", "x1.T", lambda x: x.T, x23)
case("T", "x1.T", lambda x: x.permute(2, 1, 0))
case("mT", "x1.mT", lambda x: x.mT)
case("ravel", "x1:ravel()", torch.ravel)
case("argwhere", "x1:gt(0):argwhere()", lambda x: x.gt(0).argwhere(), x23, grad=False)
case("msort", "x1:msort()", torch.msort, x33)
case("fliplr", "x1:fliplr()", torch.fliplr, x23)
case("flipud", "x1:flipud()", torch.flipud, x23)
for k in -1, 0, 1, 2, 3, 5:
    case("rot90", "x1:rot90(%d)" % k, lambda x: x.rot90(k), x23)
case("rot90", "x1:rot90({ dims = { 2, 3 } })", lambda x: x.rot90(1, (1, 2)))
case("take", "x1:take(x2)", lambda x, i: x.take(i), x23, ints(0, 5, -1, 5).view(2, 2))
for shape in (3, 3), (7, 3), (3, 5), (2, 2, 2):
    case("fill_diagonal_", "x1:clone():fill_diagonal_(9)", lambda x: x.clone().fill_diagonal_(9), rand(*shape))
    if len(shape) == 2:
        case("fill_diagonal_", "x1:clone():fill_diagonal_(9, true)", lambda x: x.clone().fill_diagonal_(9, True),
            rand(*shape))
case("unique_consecutive", "x1:unique_consecutive(true, true)", lambda x: x.unique_consecutive(True, True),
    ints(1, 1, 2, 2, 2, 1, 3, 3))
case("unique_consecutive", "(x1:unique_consecutive())", lambda x: x.unique_consecutive(), ints(4))

# statistics
case("diff", "x1:diff()", torch.diff)
case("diff", "x1:diff(2, 2)", lambda x: x.diff(2, 1))
case("diff", "x1:diff({ dim = 1, prepend = x2, append = x2 })", lambda x, y: x.diff(dim=0, prepend=y, append=y), x23,
    rand(1, 3, seed=5))
case("diff", "x1:diff(9)", lambda x: x.diff(n=9), x5)
case("diff", "x1:gt(0):diff()", lambda x: x.gt(0).diff(), x23, grad=False)
for name in "trapezoid", "trapz", "cumulative_trapezoid":
    case(name, "tensor.%s(x1)" % name, getattr(torch, name), x23)
    case(name, "tensor.%s(x1, { dx = 0.5, dim = 1 })" % name, lambda y: getattr(torch, name)(y, dx=0.5, dim=0), x23)
    case(name, "tensor.%s(x1, x2)" % name, lambda y, x: getattr(torch, name)(y, x), x23, rand(3, seed=3))
    case(name, "tensor.%s(x1, x2, { dim = 2 })" % name, lambda y, x: getattr(torch, name)(y, x, dim=1), x234,
        rand(2, 3, 4, seed=3))
for name in "var_mean", "std_mean":
    case(name, "tensor.%s(x1)" % name, getattr(torch, name), x23)
    case(name, "x1:%s({ dim = { 1, 3 }, keepdim = true })" % name,
        lambda x: getattr(torch, name)(x, dim=(0, 2), keepdim=True))
    case(name, "x1:%s(2, { correction = 0 })" % name, lambda x: getattr(torch, name)(x, dim=1, correction=0))
case("aminmax", "x1:aminmax()", lambda x: tuple(x.aminmax()), x23)
case("aminmax", "x1:aminmax(2, true)", lambda x: tuple(x.aminmax(dim=1, keepdim=True)), x23)
holes = torch.tensor([[1.0, float("nan"), 3.0], [float("nan")] * 3])
case("nanmean", "x1:nanmean()", torch.nanmean, holes, grad=False)
case("nanmean", "x1:nanmean(2, true)", lambda x: x.nanmean(1, True), holes, grad=False)
case("quantile", "x1:quantile(0.3)", lambda x: x.quantile(0.3), x234)
for way in "linear", "lower", "higher", "midpoint", "nearest":
    case("quantile", "x1:quantile(x2:detach(), { dim = 2, interpolation = '%s' })" % way,
        lambda x, q: x.quantile(q.detach(), dim=1, interpolation=way), rand(2, 5, 3),
        torch.tensor([0.1, 0.5, 0.77, 1.0]))
case("quantile", "x1:quantile(0.5, 1, true)", lambda x: x.quantile(0.5, 0, True), x23)
case("quantile", "x1:quantile(x2:detach(), 2, true)", lambda x, q: x.quantile(q.detach(), 1, True), x23,
    torch.tensor([0.2, 0.9]))
case("quantile", "x1:quantile(0.5, { keepdim = true })", lambda x: x.quantile(0.5, keepdim=True), x23)
case("quantile", "x1:quantile(0.5, 2)", lambda x: x.quantile(0.5, 1), holes, grad=False)
case("histc", "x1:histc()", torch.histc, x234, grad=False)
case("histc", "x1:histc(4, -1, 1)", lambda x: x.histc(4, -1, 1), x234, grad=False)
case("histc", "x1:histc(3)", lambda x: x.histc(3), torch.tensor([2.0, 2.0]), grad=False)
case("cov", "x1:cov()", torch.cov, x34)
case("cov", "x1:cov({ correction = 0 })", lambda x: x.cov(correction=0), x34)
case("cov", "x1:cov()", torch.cov, x5)
case("corrcoef", "x1:corrcoef()", torch.corrcoef, x34)

# products
case("inner", "x1:inner(x2)", torch.inner, x234, rand(5, 4))
case("inner", "x1:inner(x2)", torch.inner, x5, rand(5, seed=1))
case("inner", "x1:inner(x2)", torch.inner, x5, rand())
case("vdot", "x1:vdot(x2)", torch.vdot, x5, rand(5, seed=1))
case("ger", "x1:ger(x2)", torch.ger, rand(2), rand(3))
case("addr", "x1:addr(x2, x3)", torch.addr, x23, rand(2), rand(3))
case("addr", "x1:addr(x2, x3, { beta = 0.5, alpha = 2 })", lambda *a: torch.addr(*a, beta=0.5, alpha=2), x23, rand(2),
    rand(3))
case("addbmm", "x1:addbmm(x2, x3, { beta = 0.5, alpha = 2 })", lambda *a: torch.addbmm(*a, beta=0.5, alpha=2), x33,
    rand(2, 3, 4), rand(2, 4, 3))
case("kron", "x1:kron(x2)", torch.kron, x23, rand(3, 2))
case("kron", "x1:kron(x2)", torch.kron, rand(3), rand(2, 2, seed=1))
case("cross", "x1:cross(x2)", torch.linalg.cross, x23, rand(2, 3, seed=1))
case("cross", "x1:cross(x2, 1)", lambda a, b: torch.linalg.cross(a, b, dim=0), x34, rand(3, 1, seed=1))
for p in "1", "2", "3":
    case("dist", "x1:dist(x2, %s)" % p, lambda a, b: a.dist(b, int(p)), x23, rand(2, 3, seed=1))
case("dist", "x1:dist(x2, math.huge)", lambda a, b: a.dist(b, float("inf")), x23, rand(3, seed=1))
case("cosine_similarity", "tensor.cosine_similarity(x1, x2)", torch.cosine_similarity, x23, rand(2, 3, seed=1))
case("pairwise_distance", "tensor.pairwise_distance(x1, x2)", torch.pairwise_distance, x23, rand(2, 3, seed=1))
case("cdist", "tensor.cdist(x1, x2)", torch.cdist, x23, rand(4, 3, seed=1))

# names that PyTorch does not have as functions of values, or that depend on draws or devices:
# spec/core/composed_spec.lua
# what scripts carry along
flag_of = lambda *v: torch.tensor(v)
case("is_complex", "tensor({ x1:is_complex() })", lambda x: flag_of(x.is_complex()), x5)
case("is_signed", "tensor({ x1:is_signed(), x2:is_signed() })", lambda a, b: flag_of(a.is_signed(), b.is_signed()), x5,
    torch.tensor([1], dtype=torch.uint8))
case("isreal", "x1:isreal()", torch.isreal, x23, grad=False)
case("numel", "tensor(tensor.numel(x1), { dtype = 'int64' })", lambda x: torch.tensor(torch.numel(x)), x23)
case("ndimension", "tensor(x1:ndimension(), { dtype = 'int64' })", lambda x: torch.tensor(x.ndimension()), x23)
case("get_device", "tensor(x1:get_device(), { dtype = 'int64' })", lambda x: torch.tensor(x.get_device()), x23)
case("type", "x1:type('float32')", lambda x: x.type(torch.float32), x23, tolerance=1e-6)
case("is_nonzero", "tensor({ tensor.is_nonzero(x1) })", lambda x: flag_of(torch.is_nonzero(x)), rand())
case("itemsize", "tensor({ x1.itemsize, x2.itemsize }, { dtype = 'int64' })",
    lambda a, b: ints(a.itemsize, b.itemsize), x5, torch.tensor([True]))
for name in "zeros_like", "ones_like":
    case(name, "x1:%s(), x1:%s({ dtype = 'int64' })" % (name, name),
        lambda x: (getattr(torch, name)(x), getattr(torch, name)(x, dtype=torch.int64)), x23)
case("full_like", "x1:full_like(2.5)", lambda x: torch.full_like(x, 2.5), x23)
f.case("scalar_tensor", "tensor.scalar_tensor(2.5, { dtype = 'float64' })", lambda: torch.scalar_tensor(2.5))
case("diagflat", "x1:diagflat(), x1:diagflat(-1)", lambda x: (x.diagflat(), x.diagflat(-1)), x23)
case("vander", "tensor.vander(x1)", torch.vander, x5, grad=False)
case("vander", "tensor.vander(x1, { N = 3, increasing = true })", lambda x: torch.vander(x, 3, True), x5, grad=False)
case("vander", "tensor.vander(x1)", torch.vander, ints(1, 2, 3))
case("hsplit", "x1:hsplit(2)", lambda x: x.hsplit(2), x34)
case("hsplit", "x1:hsplit(2)", lambda x: x.hsplit(2), rand(4))
case("vsplit", "x1:vsplit({ 1, 2 })", lambda x: x.vsplit([1, 2]), x34)
case("dsplit", "x1:dsplit(2)", lambda x: x.dsplit(2), x234)
case("select_scatter", "x1:select_scatter(x2, 2, 3)", lambda x, s: x.select_scatter(s, 1, 2), x34, rand(3, seed=1))
case("slice_scatter", "x1:slice_scatter(x2, { dim = 2, start = 2, stop = 4, step = 2 })",
    lambda x, s: x.slice_scatter(s, 1, 1, 4, 2), x34, rand(3, 2, seed=1))
case("diagonal_scatter", "x1:diagonal_scatter(x2, 1)", lambda x, s: x.diagonal_scatter(s, 1), x34, rand(3, seed=1))
case("masked_scatter_", "(x1 * 1):masked_scatter_(x1.data:gt(0), x2)",
    lambda x, s: (x * 1).masked_scatter_(x > 0, s), x34, rand(12, seed=1))
case("sum_to_size", "x1:sum_to_size(3, 1), x1:sum_to_size({ 1, 4 })",
    lambda x: (x.sum_to_size(3, 1), x.sum_to_size(1, 4)),
    x234)
case("unravel_index", "tensor.unravel_index(x1, { 2, 3, 4 })",
    lambda i: torch.unravel_index(i, (2, 3, 4)), ints(0, 23, 7))
case("rsub", "x1:rsub(1), tensor.rsub(x1, x2, { alpha = 2 })",
    lambda a, b: (torch.rsub(a, 1), torch.rsub(a, b, alpha=2)),
    x23, rand(2, 3, seed=1))
case("float_power", "x1:float_power(3), x1:float_power(x2)",
    lambda a, b: (a.float_power(3), a.float_power(b)), x5.abs(),
    rand(5, seed=1))
case("ldexp", "x1:ldexp(x2)", torch.ldexp, x5, ints(1, -2, 3, 0, 4))
case("logaddexp2", "x1:logaddexp2(x2)", torch.logaddexp2, x5, rand(5, seed=1))
case("randint_like", "x1:randint_like(1)", lambda x: torch.randint_like(x, 1), ints(3, 4))
# special functions
wide = torch.tensor([-3.5, -2.25, -0.3, 0.1, 0.5, 1.0, 2.5, 7.75, 12.0, 40.0], dtype=torch.float64)
upper = wide[3:]
case("polygamma", "tensor.polygamma(0, x1), tensor.polygamma(1, x1), tensor.polygamma(2, x1)",
    lambda x: (torch.polygamma(0, x), torch.polygamma(1, x), torch.polygamma(2, x)), upper)
case("polygamma", "tensor.polygamma(1, x1), tensor.polygamma(2, x1), tensor.polygamma(9, x1)",
    lambda x: (torch.polygamma(1, x), torch.polygamma(2, x), torch.polygamma(9, x)),
    torch.tensor([-7.4, -0.75, -0.2, 1e-3, 3.0, 90.0]))
case("mvlgamma", "x1:mvlgamma(3)", lambda x: x.mvlgamma(3), upper + 1)
unit = torch.tensor([-1 + 1e-9, -0.9, -0.3, 0.0, 0.2, 0.7, 0.999], dtype=torch.float64)
case("i0", "x1:i0()", torch.i0, wide[:-1])
for name in "erfcx", "ndtr", "log_ndtr", "i0e", "i1", "i1e":
    case("special." + name, "tensor.special.%s(x1)" % name, getattr(torch.special, name), wide[:-1])
case("special.ndtri", "tensor.special.ndtri(x1)", torch.special.ndtri, unit[3:] / 2 + 0.25)
case("special.ndtri", "tensor.special.ndtri(x1)", torch.special.ndtri,
    torch.tensor([1e-12, 0.0, 1.0, -1.0, 0.5], dtype=torch.float64), grad=False)
case("special.entr", "tensor.special.entr(x1)", torch.special.entr, upper)
case("special.entr", "tensor.special.entr(x1)", torch.special.entr, torch.tensor([0.0, -1.0, 2.0]), grad=False)

# running extremes, modes, ranks
ties = torch.tensor([[1.0, 3.0, 2.0, 3.0, 0.0, 7.0, 7.0], [5.0, float("nan"), 7.0, 1.0, 2.0, 1.0, 9.0]])
for name in "cummax", "cummin":
    case(name, "x1:%s(1)" % name, lambda x, name=name: tuple(getattr(x, name)(0)), x34)
    case(name, "x1:%s(-1)" % name, lambda x, name=name: tuple(getattr(x, name)(-1)), x34)
    case(name, "x1:%s(2)" % name, lambda x, name=name: tuple(getattr(x, name)(1)), ties, grad=False)
case("logcumsumexp", "x1:logcumsumexp(2), x1:logcumsumexp(-1)",
    lambda x: (x.logcumsumexp(1), x.logcumsumexp(-1)), x234)
case("mode", "(x1:mode(2))", lambda x: x.mode(1).values, torch.nan_to_num(ties), grad=False)
case("nanmedian", "x1:nanmedian(2)", lambda x: tuple(x.nanmedian(1)), ties, grad=False)
case("nanmedian", "x1:nanmedian(), x1:nanmedian(1, true)", lambda x: (x.nanmedian(), *x.nanmedian(0, True)), ties,
    grad=False)
case("nanmedian", "x1:nanmedian()", torch.nanmedian, x34)
case("gcd", "tensor.gcd(x1, x2)", torch.gcd, ints(12, -18, 0, 7, 0), ints(8, 27, 5, 0, 0))
case("lcm", "tensor.lcm(x1, x2)", torch.lcm, ints(12, -18, 0, 7, 0), ints(8, 27, 5, 0, 0))
case("renorm", "x1:renorm(2, 1, 1.5), x1:renorm(1, 2, 2)", lambda x: (x.renorm(2, 0, 1.5), x.renorm(1, 1, 2)), x234)
f.not_in_torch("is_sparse", "rand_like", "randn_like", "empty_like", "result_type", "retain_grad",
    "retains_grad", "set_printoptions", "get_printoptions")
f.not_in_torch("cuda", "is_cuda", "is_cpu", "get_rng_state", "set_rng_state", "initial_seed", "seed", "new_empty",
    "promote_types", "inference_mode", "uniform_", "normal_", "log_normal_", "exponential_",
    "cauchy_", "geometric_", "random_", "bernoulli_", "bernoulli", "normal", "multinomial", "poisson", "gumbel_softmax")
f.write()
