"""Products."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)


def case(row, expression, fn, *inputs, **options): f.case(row, expression, fn, *inputs, **options)


def ints(*shape): return torch.arange(torch.Size(shape).numel()).view(shape) - 3


case("mm", "core.mm(x1, x2)", torch.mm, rand(3, 5), rand(5, 4, seed=1))
case("mm", "x1:t():mm(x2:t())", lambda a, b: a.t().mm(b.t()), rand(5, 3), rand(4, 5, seed=1))
case("mm", "x1:mm(x2)", torch.mm, rand(3, 0), rand(0, 2))
case("mm", "x1:mm(x2)", torch.mm, ints(2, 3), ints(3, 2))
case("bmm", "core.bmm(x1, x2)", torch.bmm, rand(2, 3, 5), rand(2, 5, 4, seed=1))
case("bmm", "x1:bmm(x2:transpose(2, 3))", lambda a, b: a.bmm(b.mT), rand(2, 1, 5), rand(2, 1, 5, seed=1))
case("bmm", "x1:expand(3, 2, 4):bmm(x2)", lambda a, b: a.expand(3, 2, 4).bmm(b), rand(1, 2, 4), rand(3, 4, 2, seed=1))
case("matmul", "x1:matmul(x2)", torch.matmul, rand(2, 1, 3, 5), rand(4, 5, 2, seed=1))
case("matmul", "x1:matmul(x2)", torch.matmul, rand(5), rand(2, 5, 3, seed=1))
case("matmul", "x1:matmul(x2)", torch.matmul, rand(2, 3, 5), rand(5, seed=1))
case("matmul", "x1:matmul(x2)", torch.matmul, rand(4), rand(4, seed=1))
case("matmul", "x1:transpose(2, 3):matmul(x2:transpose(2, 3):transpose(3, 4))",
    lambda a, b: a.transpose(1, 2).matmul(b.transpose(1, 2).mT),
     rand(2, 3, 2, 4), rand(2, 3, 2, 4, seed=1))
case("matmul", "x1:matmul(x2)", torch.matmul, rand(1, 2, 2, 3), rand(3, 1, 3, 2, seed=1))
case("matmul", "x1:matmul(x2)", torch.matmul, rand(2, 0, 3, 4), rand(2, 1, 4, 2))
case("matmul", "x1:matmul(x2)", torch.matmul, rand(3, 2), rand(2, 2, 3, seed=1))
case("linear", "F.linear(x1, x2, x3)", F.linear, rand(2, 3, 5), rand(4, 5, seed=1), rand(4, seed=2))
case("linear", "F.linear(x1, x2)", F.linear, rand(5), rand(4, 5, seed=1))
for shape in (5,), (3, 5), (2, 3, 5), (0, 5): # a weight of one dim
    case("linear", "F.linear(x1, x2)", F.linear, rand(*shape), rand(5, seed=1))
case("linear_gelu", "F.linear_gelu(x1, x2, x3)", lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
    rand(2, 3, 5), rand(4, 5, seed=1), rand(4, seed=2))
case("linear_gelu", "F.linear_gelu(x1, x2)", lambda x, w: F.gelu(F.linear(x, w), approximate="tanh"), rand(5),
    rand(4, 5, seed=1))
case("addmm", "core.addmm(x1, x2, x3)", torch.addmm, rand(4), rand(3, 5), rand(5, 4, seed=1))
case("addmm", "core.addmm(x1, x2, x3, { beta = 0.5, alpha = -2 })",
    lambda i, a, b: torch.addmm(i, a, b, beta=0.5, alpha=-2), rand(3, 1), rand(3, 5), rand(5, 4, seed=1))
case("addmm", "core.addmm(x1, x2, x3, 0, 3)", lambda i, a, b: torch.addmm(i, a, b, beta=0, alpha=3), rand(3, 4),
    rand(3, 2), rand(2, 4, seed=1))
case("addmm", "core.addmm(x1, x2, x3, 2)", lambda i, a, b: torch.addmm(i, a, b, beta=2), rand(2, 3), rand(2, 0),
    rand(0, 3))
case("addmm", "core.addmm(x1, x2, x3, 2, 3)", lambda i, a, b: torch.addmm(i, a, b, beta=2, alpha=3), ints(2, 2),
    ints(2, 3), ints(3, 2))
case("baddbmm", "core.baddbmm(x1, x2, x3)", torch.baddbmm, rand(2, 3, 4), rand(2, 3, 5), rand(2, 5, 4, seed=1))
case("baddbmm", "core.baddbmm(x1, x2, x3, { alpha = 0.25 })", lambda i, a, b: torch.baddbmm(i, a, b, alpha=0.25),
    rand(3, 1), rand(2, 3, 2), rand(2, 2, 4, seed=1))
case("addmv", "core.addmv(x1, x2, x3)", torch.addmv, rand(3), rand(3, 4), rand(4, seed=1))
case("addmv", "core.addmv(x1, x2, x3, 0.5, 2)", lambda i, a, b: torch.addmv(i, a, b, beta=0.5, alpha=2), rand(1),
    rand(3, 4), rand(4, seed=1))
case("mv", "x1:mv(x2)", torch.mv, rand(3, 4), rand(4, seed=1))
case("dot", "x1:dot(x2)", torch.dot, rand(40), rand(40, seed=1))
case("dot", "x1:dot(x2)", torch.dot, rand(0), rand(0))
case("outer", "x1:outer(x2)", torch.outer, rand(3), rand(2, seed=1))
case("trace", "x1:trace()", torch.trace, rand(3, 4))
case("tensordot", "core.tensordot(x1, x2)", torch.tensordot, rand(2, 3, 4), rand(3, 4, 2, seed=1))
case("tensordot", "core.tensordot(x1, x2, 1)", lambda a, b: torch.tensordot(a, b, 1), rand(2, 3), rand(3, 2, 2, seed=1))
case("tensordot", "core.tensordot(x1, x2, 0)", lambda a, b: torch.tensordot(a, b, 0), rand(2), rand(3, seed=1))


def einsum(equation, *inputs):
    names = ", ".join("x%d" % (k + 1) for k in range(len(inputs)))
    case("einsum", "core.einsum('%s', %s)" % (equation, names), lambda *x: torch.einsum(equation, *x), *inputs)


a23, b34, c34 = rand(2, 3), rand(3, 4, seed=1), rand(3, 4, seed=2)
einsum("ij,jk->ik", a23, b34)
einsum("ij,jk", a23, b34)
einsum("ij , jk -> ki", a23, b34)
einsum("bij,bjk->bik", rand(2, 3, 4), rand(2, 4, 2, seed=1))
einsum("bij,bkj->bki", rand(2, 3, 4), rand(2, 2, 4, seed=1))
einsum("bthd,bshd->bhts", rand(2, 3, 2, 4), rand(2, 2, 2, 4, seed=1))
einsum("bhts,bshd->bthd", rand(2, 2, 3, 2), rand(2, 2, 2, 4, seed=1))
einsum("...ij,...jk->...ik", rand(2, 1, 2, 3), rand(4, 3, 2, seed=1))
einsum("i...,...j", rand(2, 3), rand(3, 4, seed=1))
einsum("b...d,...d->b...", rand(2, 3, 4), rand(3, 4, seed=1))
einsum("...i->...", rand(2, 3, 4))
einsum("i,j->ij", rand(3), rand(2, seed=1))
einsum("i,i->", rand(4), rand(4, seed=1))
einsum("ij,ij->i", b34, c34)
einsum("ij,ij->", b34, c34)
einsum("ij->ji", a23)
einsum("ij->", a23)
einsum("ij->j", a23)
einsum("ba", a23)
einsum("ii->i", rand(3, 3))
einsum("ii", rand(3, 3))
einsum("iji->j", rand(3, 2, 3))
einsum("ii,ij->j", rand(3, 3), rand(3, 2, seed=1))
einsum("iij,jk->ik", rand(2, 2, 3), rand(3, 2, seed=1))
einsum("ij,jk,kl->il", rand(2, 3), rand(3, 2, seed=1), rand(2, 4, seed=2))
einsum("ij,ik,il->jkl", rand(3, 2), rand(3, 2, seed=1), rand(3, 2, seed=2))
einsum("bn,anm,bm->ba", rand(2, 3), rand(4, 3, 2, seed=1), rand(2, 2, seed=2))
einsum("ij,jk->ik", rand(2, 1), rand(3, 2, seed=1))
einsum("ij,ij->ij", rand(1, 3), rand(2, 1, seed=1))
einsum("ijk,jl->il", rand(2, 3, 4), rand(3, 2, seed=1))
einsum("ij,jk->ik", rand(0, 3), rand(3, 2))
einsum("ij,jk->ik", rand(2, 0), rand(0, 2))
einsum("aB,Bc->ac", rand(2, 3), rand(3, 2, seed=1))
einsum("BA", a23)
einsum(",ij->ij", rand(), a23)
f.write()
