"""Rows of index.def: picking, writing and ordering by position."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
x34, x234 = rand(3, 4), rand(2, 3, 4)


def at(*v): return torch.tensor(v)


def case(row, expression, fn, *inputs, **options): f.case(row, expression, fn, *inputs, **options)


def ties(*shape): return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(5))


case("index_select", "x1:index_select(2, x2)", lambda x, i: x.index_select(1, i), x34, at(3, 0, 0, 2))
case("index_select", "x1:index_select(-2, x2)", lambda x, i: x.index_select(-2, i), x234, at(1))
case("index_select", "x1:index_select(1, x2)", lambda x, i: x.index_select(0, i), x34, torch.zeros(0).long())
case("masked_select", "x1:masked_select(x2:gt(0))", lambda x, m: x.masked_select(m > 0), x234, rand(3, 1, seed=2),
    grad=False)
case("masked_select", "x1:masked_select(x1.data:lt(-9))", lambda x: x.masked_select(x < -9), x34)

picks = [
    ("2", 1, at(0, 3, 1, 2, 2, 0).view(3, 2)),
    ("1", 0, at(2, 0, 1, 1).view(1, 4)),
    ("-1", -1, at(3).view(1, 1)),
    ("1", 0, at(0, 2, 0, 1).view(2, 2)),
]
for dim, d, i in picks:
    src = rand(*i.shape, seed=3)
    case("gather", "x1:gather(%s, x2)" % dim, lambda x, i: x.gather(d, i), x34, i)
    case("scatter_add", "x1:scatter_add(%s, x2, x3)" % dim, lambda x, i, s: x.scatter_add(d, i, s), x34, i, src)
    case("scatter", "x1:scatter(%s, x2, 0.5)" % dim, lambda x, i: x.scatter(d, i, 0.5), x34, i)
case("gather", "x1:gather(2, x2)", lambda x, i: x.gather(1, i), x234, at(0, 2, 1, 0, 0, 2, 1, 1).view(2, 2, 2))
case("gather", "x1:gather(1, x2)", lambda x, i: x.gather(0, i), rand(), at(0).view(()))
case("gather", "x1:gather(2, x2)", lambda x, i: x.gather(1, i), x34, torch.zeros(3, 0).long())
case("gather", "x1:gather(2, x2:expand(2, 2, 4))", lambda x, i: x.gather(1, i.expand(2, 2, 4)), x234,
    at(2, 0, 1, 1).view(2, 2, 1))
case("scatter", "x1:scatter(2, x2, x3)", lambda x, i, s: x.scatter(1, i, s), x34, at(1, 0, 3, 2, 0, 1).view(3, 2),
    rand(3, 2, seed=1))
case("scatter", "x1:scatter(1, x2, x3)", lambda x, i, s: x.scatter(0, i, s), x34, at(1, 0, 2).view(1, 3),
    rand(1, 3, seed=1))
case("scatter", "x1:scatter({ dim = 3, index = x2, src = 9 })", lambda x, i: x.scatter(2, i, 9),
    torch.zeros(2, 3, 4).long(), at(3, 1).view(2, 1, 1))
case("take_along_dim", "x1:take_along_dim(x2, 2)", lambda x, i: x.take_along_dim(i, 1), x34, at(3, 0).view(1, 2))
case("take_along_dim", "x1:take_along_dim(x2)", lambda x, i: x.take_along_dim(i), x34, at(11, 0, 5, 5))
case("take_along_dim", "x1:take_along_dim(x1.data:argsort(1), 1)", lambda x: x.take_along_dim(x.argsort(0), 0), x34)
case("index_add", "x1:index_add(1, x2, x3)", lambda x, i, s: x.index_add(0, i, s), x34, at(2, 0, 2), rand(3, 4, seed=1))
case("index_add", "x1:index_add(-1, x2, x3, { alpha = -0.5 })", lambda x, i, s: x.index_add(-1, i, s, alpha=-0.5), x34,
    at(1, 1), rand(3, 2, seed=1))
case("index_add", "x1:index_add(1, x2, x3)", lambda x, i, s: x.index_add(0, i, s), torch.ones(3, 2).long(), at(0, 0),
    torch.arange(4).view(2, 2))
case("index_copy", "x1:index_copy(2, x2, x3)", lambda x, i, s: x.index_copy(1, i, s), x34, at(3, 0), rand(3, 2, seed=1))
case("index_copy", "x1:index_copy(2, x2, x3)", lambda x, i, s: x.index_copy(1, i, s), x234, at(2, 0),
    rand(2, 2, 4, seed=1))
case("index_fill", "x1:index_fill(1, x2, 2.5)", lambda x, i: x.index_fill(0, i, 2.5), x34, at(2, 2, 0))
case("index_fill", "x1:index_fill(2, x2, -1)", lambda x, i: x.index_fill(1, i, -1), torch.arange(6).view(2, 3), at(1))
case("masked_scatter", "x1:masked_scatter(x2:gt(0), x3)", lambda x, m, s: x.masked_scatter(m > 0, s), x34,
    rand(3, 4, seed=2), rand(14, seed=3))
case("masked_scatter", "x1:masked_scatter(x2:gt(0), x3)", lambda x, m, s: x.masked_scatter(m > 0, s), x34,
    torch.tensor([1, 0, 0, 1]), rand(2, 4, seed=3))
case("nonzero", "x1:nonzero()", torch.nonzero, torch.tensor([[0, 1, 0], [2, 0, 3]]))
case("nonzero", "x1:gt(0):nonzero()", lambda x: (x > 0).nonzero(), x234, grad=False)
case("nonzero", "x1:nonzero()", torch.nonzero, torch.zeros(2, 0).long())
case("nonzero", "x1:nonzero()", torch.nonzero, at(3).view(()))
case("embedding", "F.embedding(x1, x2)", F.embedding, at(0, 4, 1, 4, 4, 2).view(2, 3), rand(5, 3))
case("embedding", "F.embedding(x1, x2, { padding_idx = 4 })", lambda i, w: F.embedding(i, w, 4), at(0, 4, 1, 4, 0),
    rand(5, 3))
case("embedding", "F.embedding(x1, x2, -5)", lambda i, w: F.embedding(i, w, -5), at(0, 3, 0, 1), rand(5, 2))
case("embedding", "F.embedding(x1, x2)", F.embedding, torch.zeros(0, 2).long(), rand(5, 3), grad=False)
case("embedding", "F.embedding(x1, x2)", F.embedding, at(1).view(()), rand(2, 3))
case("one_hot", "F.one_hot(x1)", F.one_hot, at(1, 0, 3, 1))
case("one_hot", "F.one_hot(x1, 5)", lambda x: F.one_hot(x, 5), at(1, 0, 4, 2).view(2, 2))
case("one_hot", "F.one_hot(x1, { num_classes = 3 })", lambda x: F.one_hot(x, 3), torch.zeros(0, 2).long())
case("bincount", "x1:bincount()", torch.bincount, at(1, 0, 3, 1, 1))
case("bincount", "x1:bincount(x2, 6)", lambda x, w: torch.bincount(x, w, 6), at(1, 0, 3, 1), rand(4), grad=False)
case("bincount", "x1:bincount({ minlength = 2 })", lambda x: torch.bincount(x, minlength=2), torch.zeros(0).long())

odd = torch.tensor([2.0, float("nan"), -1.0, float("inf"), 0.5, float("-inf"), -0.5])
for name in ("false", "true"):
    falling = name == "true"
    case("sort", "x1:sort(2, %s)" % name, lambda x: x.sort(dim=1, descending=falling, stable=True), x34)
    case("sort", "x1:sort({ dim = -2, descending = %s })" % name,
        lambda x: x.sort(dim=-2, descending=falling, stable=True), x234)
    case("sort", "x1:sort(1, %s)" % name, lambda x: x.sort(dim=0, descending=falling, stable=True), ties(60, 2))
    case("sort", "x1:sort(1, %s)" % name, lambda x: x.sort(dim=0, descending=falling, stable=True), odd, grad=False)
    case("argsort", "x1:argsort(-1, %s)" % name, lambda x: x.argsort(dim=-1, descending=falling, stable=True),
        ties(3, 5))
    case("topk", "x1:topk(2, 1, %s)" % name, lambda x: x.topk(2, 0, falling), x34)
    case("topk", "x1:topk(3, { largest = %s })" % name, lambda x: x.topk(3, largest=falling), x234)
    case("topk", "x1:topk(2, -1, %s)" % name, lambda x: x.topk(2, -1, falling), odd, grad=False)
case("sort", "x1:sort()", lambda x: x.sort(stable=True), rand(90, seed=9))
case("sort", "x1:sort()", lambda x: x.sort(stable=True), rand())
case("sort", "x1:sort(2)", lambda x: x.sort(1), rand(2, 0, 3))
case("sort", "x1:sort()", lambda x: x.sort(stable=True), torch.tensor([3, 0, 255, 7, 0], dtype=torch.uint8))
case("sort", "x1:sort()", lambda x: x.sort(stable=True), torch.tensor([2**40, -5, 0, -2**50, 2**40 + 1, 3]))
case("topk", "x1:topk(0)", lambda x: x.topk(0), x34, grad=False)
case("kthvalue", "x1:kthvalue(2)", lambda x: x.kthvalue(2), x34)
case("kthvalue", "x1:kthvalue(3, 1, true)", lambda x: x.kthvalue(3, 0, True), x34)
case("kthvalue", "x1:kthvalue(4, 1)", lambda x: x.kthvalue(4, 0), odd, grad=False)
case("median", "x1:median()", torch.median, rand(5))
case("median", "x1:median(2)", lambda x: x.median(1), x34)
case("median", "x1:median({ dim = 1, keepdim = true })", lambda x: x.median(0, True), x34)
case("median", "x1:median(1)", lambda x: x.median(0), odd, grad=False)
for right in ("false", "true"):
    r = right == "true"
    case("searchsorted", "core.searchsorted(x1, x2, %s)" % right, lambda s, v: torch.searchsorted(s, v, right=r),
        at(1, 3, 3, 7), at(0, 3, 4, 9, 7, 1).view(2, 3))
    case("searchsorted", "core.searchsorted(x1, x2, { right = %s })" % right,
        lambda s, v: torch.searchsorted(s, v, right=r),
         x34.sort(1)[0], rand(3, 2, seed=1), grad=False)
    case("searchsorted", "core.searchsorted(x1, 3, %s)" % right, lambda s: torch.searchsorted(s, 3, right=r),
        at(1, 3, 3, 7))
    case("bucketize", "core.bucketize(x1, x2, %s)" % right, lambda x, b: torch.bucketize(x, b, right=r), x34,
        torch.tensor([-1.0, 0.0, 0.5]), grad=False)
mixed = torch.tensor([[3, 1, 3], [0, 1, 1]])
case("unique", "x1:unique()", torch.unique, mixed)
case("unique", "x1:unique(true, true)", lambda x: x.unique(return_inverse=True), mixed)
case("unique", "x1:unique({ return_counts = true })", lambda x: x.unique(return_counts=True),
    torch.tensor([0.5, -1.0, 0.5, float("nan"), 0.0]), grad=False)
case("unique", "x1:unique(true, true, true)", lambda x: x.unique(return_inverse=True, return_counts=True), ties(40))
case("unique", "x1:unique(true, true, true)", lambda x: x.unique(return_inverse=True, return_counts=True),
    torch.zeros(0, 2).long())
case("isin", "x1:isin(x2)", torch.isin, mixed, at(1, 7, 0))
case("isin", "x1:isin(x2)", torch.isin, torch.tensor([0.5, float("nan"), 2.0]), torch.tensor([[2.0, float("nan")]]),
    grad=False)
# ---- bags of rows
def ints(*v): return torch.tensor(v, dtype=torch.int64)


def bag(**options):
    return lambda i, w, *rest: F.embedding_bag(i, w, *rest, **options)


table, numbers, starts = rand(6, 3), ints(1, 4, 4, 0, 5, 2, 4), ints(0, 3, 3, 5)
for mode in "sum", "mean", "max":
    f.case("embedding_bag", "F.embedding_bag(x1, x2, x3, { mode = \"%s\" })" % mode, bag(mode=mode), numbers, table,
        starts)
    f.case("embedding_bag", "F.embedding_bag(x1, x2, { mode = \"%s\", padding_idx = 4 })" % mode,
        bag(mode=mode, padding_idx=4), ints(1, 4, 2, 0, 5, 5).view(2, 3), table)
    f.case("embedding_bag",
        "F.embedding_bag(x1, x2, x3, { mode = \"%s\", padding_idx = -2, include_last_offset = true })"
        % mode, bag(mode=mode, padding_idx=-2, include_last_offset=True), numbers, table, ints(0, 1, 3, 7))
f.case("embedding_bag", "F.embedding_bag(x1, x2, x3, { mode = \"sum\", per_sample_weights = x4 })",
    lambda i, w, o, p: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=p), numbers, table, starts, rand(7,
        seed=3))
f.case("embedding_bag", "F.embedding_bag(x1, x2, x3, { mode = \"sum\", scale_grad_by_freq = true })",
    bag(mode="sum", scale_grad_by_freq=True), numbers, table, starts)
f.case("embedding_bag", "F.embedding_bag(x1, x2, x3)", bag(), ints(), table, ints(0, 0))
f.case("embedding", "F.embedding(x1, x2, { scale_grad_by_freq = true })",
    lambda i, w: F.embedding(i, w, scale_grad_by_freq=True), ints(1, 1, 3, 0), table)
f.case("embedding", "F.embedding(x1, x2:clone(), { max_norm = 1.5 })", lambda i, w: F.embedding(i, w.clone(),
    max_norm=1.5),
    ints(1, 1, 3, 0), table, grad=False)
f.case("embedding", "F.embedding(x1, x2:clone(), nil, 1, 1)", lambda i, w: F.embedding(i, w.clone(), None, 1.0, 1.0),
    ints(1, 1, 3, 0).view(2, 2), table, grad=False)
f.write()
