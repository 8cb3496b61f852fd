"""Sparse tensors: accelerate.sparse, and the rows of sparse.def."""
import torch
from common import Family, rand

f = Family(__file__)
torch.sparse.check_sparse_tensor_invariants.enable()
coo, at = torch.sparse_coo_tensor, torch.tensor
places = at([[0, 2, 2, 0, 2], [1, 0, 3, 3, 3]])  # of a 3 x 4 matrix: row 1 is empty, (2, 3) occurs twice
values, x43, x32, x34 = rand(5), rand(4, 3, seed=1), rand(3, 2, seed=2), rand(3, 4, seed=3)
LUA = "tensor.sparse_coo_tensor(x1, x2, { 3, 4 })"
mat = lambda i, v: coo(i, v, (3, 4))


def case(row, expression, fn, *inputs, **options): f.case(row, expression, fn, places, values, *inputs, **options)


case("sparse.mm", "sparse.mm(%s, x3)" % LUA, lambda i, v, x: torch.sparse.mm(mat(i, v), x), x43)
case("_sparse_product", LUA + ":coalesce():mm(x3)", lambda i, v, x: torch.sparse.mm(mat(i, v).coalesce(), x), x43)
case("_sparse_product", LUA + ":t():matmul(x3)", lambda i, v, x: torch.sparse.mm(mat(i, v).t(), x), x32)
case("_sparse_product", LUA + ":transpose(1, 2):t():mv(x3)",
    lambda i, v, x: mat(i, v).to_dense() @ x, rand(4, seed=4))
case("_sparse_product", "sparse.mm(x3, " + LUA + ")", lambda i, v, x: x @ mat(i, v).to_dense(), rand(2, 3, seed=5))
case("_sparse_product", LUA + ":mm(x3)", lambda i, v, x: torch.sparse.mm(mat(i, v), x), rand(4, 40, seed=6))
case("_sparse_product", LUA + ":mm(x3)", lambda i, v, x: torch.sparse.mm(mat(i, v), x), rand(4, 0))
case("sparse.addmm", "sparse.addmm(x3, " + LUA + ", x4, { beta = 0.5, alpha = -2 })",
    lambda i, v, m, x: torch.sparse.addmm(m, mat(i, v), x, beta=0.5, alpha=-2), rand(3, 3, seed=7), x43)
case("_sparse_product", LUA + ":mm(" + LUA + ":t()):to_dense()",
    lambda i, v: torch.sparse.mm(mat(i, v), mat(i, v).t()).to_dense())
sampled = lambda i, v, a, b, beta, alpha: (mat(i, v).to_dense() * beta + alpha * (a @ b)) * (mat(i, v).to_dense() != 0)
case("sparse.sampled_addmm", "sparse.sampled_addmm(" + LUA + ", x3, x4, { beta = 0.5, alpha = 3 }):to_dense()",
    lambda i, v, a, b: sampled(i, v, a, b, 0.5, 3), x32, rand(2, 4, seed=8))
case("_sparse_dots", "sparse.sampled_addmm(" + LUA + ", x3, x4, { beta = 0 }):to_dense()",
    lambda i, v, a, b: sampled(i, v.detach(), a, b, 0, 1), rand(3, 40, seed=2), rand(40, 4, seed=8))

case("sparse.sparse_coo_tensor", LUA + ":to_dense()", lambda i, v: mat(i, v).to_dense())
case("sparse_coo_tensor", "tensor.sparse_coo_tensor(x1, x2):coalesce():values()",
    lambda i, v: coo(i, v).coalesce().values())
case("sparse_coo_tensor", LUA + ":coalesce():indices()", lambda i, v: mat(i, v).coalesce().indices())
case("spmm", "tensor.spmm(" + LUA + ", x3)", lambda i, v, x: torch.spmm(mat(i, v), x), x43)
case("sparse.spmm", "sparse.spmm(" + LUA + ", x3)", lambda i, v, x: torch.spmm(mat(i, v), x), x43)
wide = rand(5, 2, seed=9)
WIDE = "tensor.sparse_coo_tensor(x1, x3, { 3, 4, 2 })"
hybrid = lambda i, w: coo(i, w, (3, 4, 2))
case("sparse_coo_tensor", WIDE + ":to_dense()", lambda i, v, w: hybrid(i, w).to_dense(), wide)
case("sparse_coo_tensor", WIDE + ":coalesce():transpose(1, 2):coalesce():values()",
    lambda i, v, w: hybrid(i, w).coalesce().transpose(0, 1).coalesce().values(), wide)
for lua, dim in ("1", 0), ("2", 1), ("-1", 2), ("{ 1, 3 }", (0, 2)), ("{ 1, 2 }", (0, 1)), ("{ 2, 3 }", (1, 2)):
    dense = dim == (0, 1)
    case("sparse.sum", "sparse.sum(%s, %s)%s" % (WIDE, lua, "" if dense else ":to_dense()"),
        lambda i, v, w: torch.sparse.sum(hybrid(i, w), dim).to_dense() if not dense else
        torch.sparse.sum(hybrid(i, w), dim), wide)
case("sparse.sum", "sparse.sum(%s)" % WIDE, lambda i, v, w: torch.sparse.sum(hybrid(i, w)), wide)
for name in "softmax", "log_softmax":
    fn = getattr(torch.sparse, name)
    for d in 0, 1:
        case("sparse." + name, "sparse.%s(%s, %d):to_dense()" % (name, LUA, d + 1),
            lambda i, v: fn(mat(i, v), d).to_dense())
    case("sparse." + name, "sparse.%s(%s, 3):to_dense()" % (name, WIDE),
        lambda i, v, w: fn(hybrid(i, w), 2).to_dense(), wide)
    case("sparse." + name, "sparse.%s(%s, 1):to_dense()" % (name, WIDE),
        lambda i, v, w: fn(hybrid(i, w), 0).to_dense(), wide)

OTHER = "tensor.sparse_coo_tensor(x1:roll(1, 2), x2 * 2, { 3, 4 })"
other = lambda i, v: coo(i.roll(1, 1), v * 2, (3, 4))
for name, sign, fn in (("add", "+", lambda a, b: a + b), ("sub", "-", lambda a, b: a - b), ("mul", "*",
    lambda a, b: a * b)):
    case("sparse.to_sparse", "(%s %s %s):to_dense()" % (LUA, sign, OTHER),
        lambda i, v: fn(mat(i, v), other(i, v)).to_dense())
case("sparse.to_sparse", "(%s:coalesce() + %s:coalesce()):values()" % (LUA, OTHER),
    lambda i, v: (mat(i, v).coalesce() + other(i, v).coalesce()).coalesce().values())
case("sparse.to_sparse", "%s + x3" % LUA, lambda i, v, x: mat(i, v).to_dense() + x, x34)
case("sparse.to_sparse", "(%s * x3):to_dense()" % LUA, lambda i, v, x: mat(i, v).to_dense() * x, x34)
case("sparse.to_sparse", "(-%s * 3 / 2):to_dense()" % LUA, lambda i, v: (-mat(i, v) * 3 / 2).to_dense())
for name in "abs", "sin", "tanh", "expm1", "relu":
    case("sparse.to_sparse", "%s:%s():to_dense()" % (LUA, name), lambda i, v: getattr(mat(i, v).to_dense(), name)())
kept = rand(3, 4, seed=3).where(rand(3, 4, seed=11) > 0, torch.zeros(()))
f.case("to_sparse", "x1:to_sparse():values()", lambda x: x.to_sparse().values(), kept)
f.case("to_sparse", "x1:to_sparse():indices()", lambda x: x.to_sparse().indices(), kept, grad=False)
f.case("to_sparse", "x1:to_sparse(1):values()", lambda x: x.to_sparse(1).values(), kept)
f.case("to_dense", "x1:to_dense()", lambda x: x.to_dense(), kept)
f.case("sparse.spdiags", "sparse.spdiags(x1, { 0, -1, 2 }, { 3, 4 }):to_dense()",
    lambda d: torch.sparse.spdiags(d, at([0, -1, 2]), (3, 4)).to_dense(), torch.arange(9.).view(3, 3), grad=False)
f.case("sparse.spdiags", "sparse.spdiags(x1, { -2, 3 }, { 3, 5 }):to_dense()",
    lambda d: torch.sparse.spdiags(d, at([-2, 3]), (3, 5)).to_dense(), torch.arange(8.).view(2, 4) + 1, grad=False)
is_sparse = "tensor.tensor(sparse.is_sparse(%s) and 1 or 0)"
f.case("sparse.is_sparse", is_sparse % "x1" + ", " + is_sparse % "x1:to_sparse()",
    lambda x: tuple(torch.tensor(float(v.is_sparse)).float() for v in (x, x.to_sparse())), kept, grad=False)
f.not_in_torch("layout", "sparse.SparseTensor")
f.write()
