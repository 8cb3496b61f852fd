"""Rows of reduce.def: all dims, one, several, none left, kept; equal elements, NaN, zero-size."""
import torch
from common import Family, rand

f = Family(__file__)
inf, nan = float("inf"), float("nan")
X, EMPTY, ONE = rand(2, 3, 4), torch.zeros(2, 0, 3), rand()
INTS = torch.tensor([[3, -1, 2], [3, 0, 2]])
TIES = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, nan]])

for name in "sum mean prod amax amin logsumexp var std".split():
    fn = getattr(torch, name)
    alldims = (0, 1, 2)

    def call(x, dim=None, keepdim=False, fn=fn, name=name):
        if name == "prod":  # one dim at a time
            if dim is None: return fn(x)
            for d in sorted([d % x.dim() for d in (dim if isinstance(dim, tuple) else (dim,))], reverse=True): x = fn(
                x, d, keepdim=keepdim)
            return x
        if dim is None: dim = tuple(range(x.dim()))
        return fn(x, dim=dim, keepdim=keepdim)
    f.case(name, "x1:%s()" % name, lambda x: call(x), X)
    f.case(name, "x1:%s(2)" % name, lambda x: call(x, 1), X)
    f.case(name, "x1:%s { dim = { 1, 3 }, keepdim = true }" % name, lambda x: call(x, (0, 2), True), X)
    f.case(name, "x1:transpose(1, 3):%s { 1, 2 }" % name, lambda x: call(x.transpose(0, 2), (0, 1)), X)
    if name not in ("amax", "amin"): f.case(name, "x1:%s(2)" % name, lambda x: call(x, 1), EMPTY,
        grad=name not in ("var", "std", "mean"))
    f.case(name, "x1:%s(-1)" % name, lambda x: call(x, -1), torch.tensor([[1.0, inf], [nan, 2.0], [-inf, -inf]]),
        grad=False)
for name in "sum prod amax amin".split():
    f.case(name, "x1:%s()" % name, getattr(torch, name), INTS)
    f.case(name, "x1:%s(1)" % name, lambda x, name=name: getattr(torch, name)(x, dim=0), INTS)
f.case("sum", "x1:sum()", torch.sum, torch.tensor([True, False, True]))
f.case("sum", "x1:sum()", torch.sum, ONE)
f.case("prod", "x1:prod()", torch.prod, torch.tensor([2.0, 0.0, 3.0, 5.0]))
f.case("prod", "x1:prod()", torch.prod, torch.tensor([2.0, 0.0, 3.0, 0.0]))
f.case("amax", "x1:amax(2)", lambda x: torch.amax(x, 1), TIES[:1])
f.case("amin", "x1:amin()", torch.amin, TIES[:1])
f.case("amax", "x1:amax(2)", lambda x: torch.amax(x, 1), TIES, grad=False)
f.case("var", "x1:var { dim = 2, correction = 0 }", lambda x: torch.var(x, 1, correction=0), X)
f.case("var", "x1:var { correction = 2 }", lambda x: torch.var(x, correction=2), X)
f.case("std", "x1:std { dim = { 1, 2 }, correction = 0, keepdim = true }",
    lambda x: torch.std(x, (0, 1), correction=0, keepdim=True), X)
f.case("std", "x1:std(1)", lambda x: torch.std(x, 0), torch.full((3, 2), 1.5))
f.case("std", "x1:std()", torch.std, torch.tensor([2.0]), grad=False)
f.case("logsumexp", "x1:logsumexp(1)", lambda x: torch.logsumexp(x, 0), torch.tensor([1000.0, 1001.0]))
for x in INTS, INTS.int(), INTS > 0:
    f.case("logsumexp", "x1:logsumexp(2)", lambda x: torch.logsumexp(x.float(), 1), x, tolerance=1e-6)
f.case("prod", "x1:prod()", torch.prod, EMPTY)
f.case("prod", "x1:prod(2)", lambda x: x.prod(1), EMPTY)
f.case("prod", "x1:prod(1, true)", lambda x: x.prod(0, True), EMPTY)
for p in (2, 1, 0, 3, 0.5, inf, -inf):
    text = {inf: "math.huge", -inf: "-math.huge"}.get(p, "%g" % p)
    f.case("norm", "x1:norm(%s)" % text, lambda x, p=p: torch.linalg.vector_norm(x, p), X)
    f.case("norm", "x1:norm { p = %s, dim = { 1, 3 }, keepdim = true }" % text,
        lambda x, p=p: torch.linalg.vector_norm(x, p, dim=(0, 2), keepdim=True), X)
    if p not in (inf, -inf): f.case("norm", "x1:norm { p = %s, dim = 2 }" % text,
        lambda x, p=p: torch.linalg.vector_norm(x, p, dim=1), EMPTY)
f.case("norm", "x1:norm { dim = 2 }", lambda x: torch.linalg.vector_norm(x, 2, dim=1),
    torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
f.case("norm", "x1:norm(math.huge)", lambda x: torch.linalg.vector_norm(x, inf), torch.tensor([-3.0, 3.0, 1.0]))
f.case("norm", "x1:norm(1.5)", lambda x: torch.linalg.vector_norm(x, 1.5), torch.tensor([0.0, 3.0, -1.0]))
for name in ("max", "min"):
    fn = getattr(torch, name)
    f.case(name, "x1:%s()" % name, fn, X)
    f.case(name, "x1:%s { dim = 2 }" % name, lambda x, fn=fn: fn(x, 1), X)
    f.case(name, "x1:%s { dim = -1, keepdim = true }" % name, lambda x, fn=fn: fn(x, -1, keepdim=True), X)
    f.case(name, "x1:%s(2)" % name, lambda x, fn=fn: fn(x, 1), TIES, grad=False)
    f.case(name, "x1:%s()" % name, fn, TIES[:1])
    f.case(name, "x1:%s(1)" % name, lambda x, fn=fn: fn(x, 0), INTS)
    f.case("arg" + name, "x1:arg%s()" % name, getattr(torch, "arg" + name), X, grad=False)
    f.case("arg" + name, "x1:arg%s { dim = 3, keepdim = true }" % name,
        lambda x, name=name: getattr(torch, "arg" + name)(x, 2, keepdim=True), X, grad=False)
    f.case("arg" + name, "x1:arg%s(2)" % name, lambda x, name=name: getattr(torch, "arg" + name)(x, 1), TIES,
        grad=False)
for name in ("any", "all"):
    fn = getattr(torch, name)
    f.case(name, "x1:%s()" % name, fn, INTS)
    f.case(name, "x1:%s { dim = { 1, 2 } }" % name, lambda x, fn=fn: fn(x, dim=(0, 1)), INTS)
    f.case(name, "x1:%s { dim = 1, keepdim = true }" % name, lambda x, fn=fn: fn(x, dim=0, keepdim=True), TIES,
        grad=False)
    f.case(name, "x1:%s(2)" % name, lambda x, fn=fn: fn(x, dim=1), EMPTY, grad=False)
f.case("count_nonzero", "x1:count_nonzero()", torch.count_nonzero, INTS)
f.case("count_nonzero", "x1:count_nonzero { 1 }", lambda x: torch.count_nonzero(x, dim=0),
    torch.tensor([[0.0, nan], [2.0, 0.0]]), grad=False)
f.case("nansum", "x1:nansum()", torch.nansum, TIES)
f.case("nansum", "x1:nansum { dim = 1, keepdim = true }", lambda x: torch.nansum(x, 0, keepdim=True), TIES)
for name in ("cumsum", "cumprod"):
    fn = getattr(torch, name)
    f.case(name, "x1:%s(2)" % name, lambda x, fn=fn: fn(x, 1), X)
    f.case(name, "x1:%s(-1)" % name, lambda x, fn=fn: fn(x, -1), X)
    f.case(name, "x1:transpose(1, 3):%s(1)" % name, lambda x, fn=fn: fn(x.transpose(0, 2), 0), X)
    f.case(name, "x1:%s(1)" % name, lambda x, fn=fn: fn(x, 0), INTS)
    f.case(name, "x1:%s(2)" % name, lambda x, fn=fn: fn(x, 1), EMPTY)
    f.case(name, "x1:%s(1)" % name, lambda x, fn=fn: fn(x, 0), torch.tensor([2.0, 0.0, 3.0, 0.0, 4.0]))
f.write()
