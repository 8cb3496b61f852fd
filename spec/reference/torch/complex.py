"""Rows over complex numbers, beside those of fft.py.  Inputs and results are real: what is complex in between is made
of two real tensors, and shown as one with a last dim of 2, so that gradients are compared in both parts."""
import re
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
x5, x34, x234 = rand(5), rand(3, 4), rand(2, 3, 4)
y5, y34, y234 = rand(5, seed=1), rand(3, 4, seed=1), rand(2, 3, 4, seed=1)
show = lambda z: torch.view_as_real(z) if z.is_complex() else z
cplx = torch.complex


def case(row, lua, fn, *inputs, **options):
    """lua and fn of z, which is complex(x1, x2), w, which is complex(x3, x4), and v, complex(x5, x6)."""
    inputs = inputs or (x34, y34)
    for i, name in enumerate("zwv"):
        lua = re.sub(r"\b%s\b" % name, "tensor.complex(x%d, x%d)" % (2 * i + 1, 2 * i + 2), lua)
    f.case(row, lua, lambda *p: show(fn(*(cplx(a, b) for a, b in zip(p[::2], p[1::2])))), *inputs,
           **options)


def shown(row, lua, fn, *inputs, **options): case(row, lua + ":view_as_real()", fn, *inputs, **options)


# ---- functions, on both sides of their branch cuts
for name in "tan asin acos atan asinh acosh atanh log2 log10 log1p expm1 exp2 sigmoid rsqrt".split():
    shown(name, "z:%s()" % name, getattr(torch, name))
    shown(name, "z:%s()" % name, getattr(torch, name), rand(3, 4, seed=21) * 2, -y34)
for name in "softsign", "tanhshrink":
    shown(name, "F.%s(z)" % name, getattr(F, name))
shown("silu", "F.silu(z)", lambda z: z * z.sigmoid())  # PyTorch's own has no gradient
shown("expm1", "z:expm1()", torch.expm1, x5 * 1e-6, y5 * 1e-6, grad=False, tolerance=1e-14)
shown("log1p", "z:log1p()", torch.log1p, x5 * 1e-6, y5 * 1e-6, grad=False, tolerance=1e-14)
shown("pow", "z:pow(w)", torch.pow, x34, y34, rand(3, 4, seed=2), rand(3, 4, seed=3))
shown("pow", "(2 ^ z)", lambda z: 2 ** z)
shown("float_power", "z:float_power(2.5)", lambda z: z.float_power(2.5))
shown("logaddexp", "core.logaddexp(z, w)", torch.logaddexp, x34, y34, rand(3, 4, seed=2), rand(3, 4, seed=3))
shown("nan_to_num", "(z / 0):nan_to_num(1, 2, 3)", lambda z: (z / 0).nan_to_num(1, 2, 3), x5, y5, grad=False)
THREE = (x34, y34, rand(3, 4, seed=2), rand(3, 4, seed=3), rand(4, seed=4), rand(4, seed=5))
shown("addcmul", "z:addcmul(w, v, 0.5)", lambda z, w, v: z.addcmul(w, v, value=0.5), *THREE)
shown("addcdiv", "z:addcdiv(w, v, 0.5)", lambda z, w, v: z.addcdiv(w, v, value=0.5), *THREE)
shown("lerp", "core.lerp(z, w, v)", torch.lerp, *THREE)
shown("lerp", "core.lerp(z, w, 0.75)", lambda z, w: z.lerp(w, 0.75), *THREE[:4])

# ---- logic and comparisons
Z = (torch.tensor([0., 1, 0, 0]), torch.tensor([0., 0, 2, 0]), torch.tensor([0., 0, 0, 3]), torch.tensor([0., 1, 0, 0]))
for name in "logical_and", "logical_or", "logical_xor":
    case(name, "z:%s(w)" % name, getattr(torch, name), *Z, grad=False)
for name in "logical_not", "all", "any", "count_nonzero", "nonzero":
    case(name, "z:%s()" % name, getattr(torch, name), *Z[:2], grad=False)
case("_cast", "z:to(\"bool\")", lambda z: z.bool(), *Z[:2], grad=False)
case("isclose", "z:isclose(z + w * 1e-9)", lambda z, w: z.isclose(z + w * 1e-9), *Z, grad=False)

# ---- reductions and running products
for lua, args in (("", {}), ("2", {"dim": 1}), ("{ 1, 2 }, true", {"dim": (0, 1), "keepdim": True})):
    for name in "var", "std":
        options = lua.replace("{ 1, 2 }, true", "{ dim = { 1, 2 }, keepdim = true }")
        case(name, "z:%s(%s)" % (name, options), lambda z, name=name, args=args: getattr(z, name)(**args))
    if lua != "":
        shown("logsumexp", "z:logsumexp(%s)" % lua, lambda z, args=args: torch.logsumexp(z, **args))
case("var", "z:var(1, { correction = 0 })", lambda z: z.var(0, correction=0))
case("std", "(z * 0):std(1)", lambda z: (z * 0).std(0))
case("var_mean", "(tensor.var_mean(z, 2))", lambda z: torch.var_mean(z, 1)[0])
shown("prod", "z:prod()", lambda z: z.prod())
shown("prod", "z:prod(2)", lambda z: z.prod(1))
shown("prod", "(z * tensor.tensor({ 0, 1, 1, 1 }):double()):prod(2)",
      lambda z: (z * torch.tensor([0., 1, 1, 1], dtype=torch.float64)).prod(1))
shown("cumprod", "z:cumprod(1)", lambda z: z.cumprod(0))
shown("logcumsumexp", "z:logcumsumexp(2)", lambda z: z.logcumsumexp(1))

# ---- positions
INDEX = "int64 { { 0, 2, 2 }, { 1, 0, 3 }, { 3, 3, 3 } }"
at = torch.tensor([[0, 2, 2], [1, 0, 3], [3, 3, 3]])
PART = (x34, y34, rand(3, 3, seed=2), rand(3, 3, seed=3))
shown("gather", "z:gather(2, %s)" % INDEX, lambda z: z.gather(1, at))
shown("gather", "z:gather(1, int64(0))", lambda z: z.gather(0, torch.tensor(0)), torch.tensor(1.5), torch.tensor(2.5))
shown("take_along_dim", "z:take_along_dim(%s, 2)" % INDEX, lambda z: z.take_along_dim(at, 1))
shown("scatter", "z:scatter(2, int64 { { 0, 2 }, { 1, 0 } }, w)",
      lambda z, w: z.scatter(1, torch.tensor([[0, 2], [1, 0]]), w), x34, y34, rand(2, 2, seed=2), rand(2, 2, seed=3))
shown("scatter", "z:scatter(2, %s, 1.5)" % INDEX, lambda z: z.scatter(1, at, 1.5))
shown("scatter_add", "z:scatter_add(2, %s, w)" % INDEX, lambda z, w: z.scatter_add(1, at, w), *PART)
shown("index_add", "z:index_add(2, int64 { 0, 2, 2 }, w, { alpha = 2 })",
      lambda z, w: z.index_add(1, torch.tensor([0, 2, 2]), w, alpha=2), *PART)
shown("index_copy", "z:index_copy(2, int64 { 0, 2, 1 }, w)", lambda z, w: z.index_copy(1, torch.tensor([0, 2, 1]), w),
      *PART)
shown("index_fill", "z:index_fill(2, int64 { 0, 2 }, 3)", lambda z: z.index_fill(1, torch.tensor([0, 2]), 3))
shown("masked_scatter", "z:masked_scatter(z:real():gt(0), w)", lambda z, w: z.masked_scatter(z.real > 0, w), *PART)
shown("masked_select", "z:masked_select(z:real():gt(0))", lambda z: z[z.real > 0])
shown("repeat_interleave", "z:repeat_interleave(2, 1)", lambda z: z.repeat_interleave(2, 0))
shown("unfold", "z:unfold(2, 2, 1)", lambda z: z.unfold(1, 2, 1))
shown("index_put", "z:index_put({ int64 { 0, 2, 0 } }, w, { accumulate = true })",
      lambda z, w: z.index_put((torch.tensor([0, 2, 0]),), w, accumulate=True), x34, y34, rand(4, seed=2),
      rand(4, seed=3))

ONE = torch.tensor(1.5), torch.tensor(2.5), torch.tensor(0.5), torch.tensor(-1.0)
shown("index_add", "z:index_add(1, int64 { 0 }, w, { alpha = 2 })",
      lambda z, w: z.index_add(0, torch.tensor([0]), w, alpha=2), *ONE)
shown("index_copy", "z:index_copy(1, int64 { 0 }, w)", lambda z, w: z.index_copy(0, torch.tensor([0]), w), *ONE)
shown("index_select", "z:index_select(1, int64 { 0 })", lambda z: z.index_select(0, torch.tensor([0])), *ONE[:2])
shown("sinc", "z:sinc()", torch.sinc)
shown("ldexp", "z:ldexp(x3)", lambda z, w: torch.ldexp(z, w.real), x5, y5, rand(5, seed=2), rand(5, seed=3),
      grad=False)
shown("pixel_shuffle", "F.pixel_shuffle(z, 2)", lambda z: F.pixel_shuffle(z, 2), rand(2, 8, 2, 3),
      rand(2, 8, 2, 3, seed=1))
shown("pixel_unshuffle", "F.pixel_unshuffle(z, 2)", lambda z: F.pixel_unshuffle(z, 2), rand(2, 2, 4, 2),
      rand(2, 2, 4, 2, seed=1))
MASK = torch.tensor([[True, False, True, True], [False, True, True, True], [True, True, False, True]])
mask_text = "tensor.tensor { { true, false, true, true }, { false, true, true, true }, { true, true, false, true } }"
for name in "var", "std", "logsumexp", "mean":
    shown("masked." + name, "tensor.masked.%s(z, { dim = 2, mask = %s })" % (name, mask_text),
          lambda z, name=name: getattr(torch.masked, name)(z, dim=1, mask=MASK), grad=False)

# ---- products
L = (x34, y34, rand(2, 4, seed=2), rand(2, 4, seed=3), rand(2, seed=4), rand(2, seed=5))
shown("linear", "F.linear(z, w)", F.linear, x34, y34, rand(4, seed=2), rand(4, seed=3))
shown("linear", "F.linear(z, w, v)", F.linear, *L)
shown("linear", "F.linear(z, w)", F.linear, x234, y234, *L[2:4])
M = (rand(3, 2, seed=6), rand(3, 2, seed=7), x34, y34, rand(4, 2, seed=2), rand(4, 2, seed=3))
shown("addmm", "core.addmm(z, w, v, 0.5, 2)", lambda z, w, v: torch.addmm(z, w, v, beta=0.5, alpha=2), *M)
shown("addmm", "core.addmm(z, w, v, 0)", lambda z, w, v: torch.addmm(z, w, v, beta=0), *M)
shown("addmv", "core.addmv(z, w, v)", torch.addmv, rand(3, seed=6), rand(3, seed=7), x34, y34, rand(4, seed=2),
      rand(4, seed=3))
shown("baddbmm", "core.baddbmm(z, w, v)", torch.baddbmm, rand(3, 2, seed=6), rand(3, 2, seed=7), x234, y234,
      rand(2, 4, 2, seed=2), rand(2, 4, 2, seed=3))
shown("addbmm", "tensor.addbmm(z, w, v)", torch.addbmm, rand(3, 2, seed=6), rand(3, 2, seed=7), x234, y234,
      rand(2, 4, 2, seed=2), rand(2, 4, 2, seed=3))
shown("tensordot", "core.tensordot(z, w, 1)", lambda z, w: torch.tensordot(z, w, 1), x34, y34, *M[4:])
shown("einsum", "core.einsum(\"bij,jk->bik\", z, w)",
      lambda z, w: torch.einsum("bij,jk->bik", z, w), x234, y234, *M[4:])
shown("kron", "z:kron(w)", torch.kron, *M[4:], *M[4:])
shown("vdot", "z:vdot(w)", torch.vdot, x5, y5, rand(5, seed=2), rand(5, seed=3))
shown("inner", "z:inner(w)", torch.inner, x5, y5, rand(5, seed=2), rand(5, seed=3))
C = (rand(2, 2, 5, seed=1), rand(2, 2, 5, seed=2), rand(3, 2, 2, seed=3), rand(3, 2, 2, seed=4), rand(3, seed=5),
     rand(3, seed=6))
shown("conv1d", "F.conv1d(z, w, v, { stride = 2, padding = 1 })", lambda z, w, v: F.conv1d(z, w, v, 2, 1), *C)
shown("conv_transpose1d", "F.conv_transpose1d(z, w:transpose(1, 2), v)",
      lambda z, w, v: F.conv_transpose1d(z, w.transpose(0, 1), v), *C)
D = (rand(1, 2, 4, 4, seed=1), rand(1, 2, 4, 4, seed=2), rand(3, 2, 2, 2, seed=3), rand(3, 2, 2, 2, seed=4), *C[4:])
shown("conv2d", "F.conv2d(z, w, v)", F.conv2d, *D)
shown("conv3d", "F.conv3d(z:unsqueeze(3), w:unsqueeze(3), v)",
      lambda z, w, v: F.conv3d(z.unsqueeze(2), w.unsqueeze(2), v), *D)
case("l1_loss", "F.l1_loss(z, w)", F.l1_loss, x34, y34, rand(3, 4, seed=2), rand(3, 4, seed=3))
case("l1_loss", "F.l1_loss(z, w, { reduction = \"none\" })", lambda z, w: F.l1_loss(z, w, reduction="none"), x34, y34,
     rand(3, 4, seed=2), rand(3, 4, seed=3))

# ---- factorisations: what they multiply to, or what does not depend on angles
A = (rand(2, 3, 3, seed=31), rand(2, 3, 3, seed=32))
AB = (*A, rand(2, 3, 2, seed=33), rand(2, 3, 2, seed=34))
la = torch.linalg
shown("linalg.solve", "tensor.linalg.solve(z, w)", la.solve, *AB)
shown("linalg.inv", "tensor.linalg.inv(z)", la.inv, *A)
shown("linalg.det", "tensor.linalg.det(z)", la.det, *A)
case("linalg.slogdet", "select(2, tensor.linalg.slogdet(z))", lambda z: la.slogdet(z)[1], *A)
shown("linalg.slogdet", "(tensor.linalg.slogdet(z))", lambda z: la.slogdet(z)[0], *A)
shown("linalg.solve_triangular", "tensor.linalg.solve_triangular(z, w, { upper = true })",
      lambda z, w: la.solve_triangular(z, w, upper=True), *AB)
shown("linalg.lu_factor", "(tensor.linalg.lu_factor(z))", lambda z: la.lu_factor(z)[0], *A)
POSITIVE = "(z:matmul(z:transpose(-2, -1):conj()) + tensor.eye(3):double())"
positive = lambda z: z @ z.mH + torch.eye(3)
for upper in "false", "true":
    shown("linalg.cholesky", "tensor.linalg.cholesky(%s, { upper = %s })" % (POSITIVE, upper),
          lambda z, upper=upper: la.cholesky(positive(z), upper=upper == "true"), *A)
shown("linalg.qr", "(tensor.linalg.qr(z))", lambda z: la.qr(z)[0], *A)
shown("linalg.qr", "select(2, tensor.linalg.qr(z))", lambda z: la.qr(z)[1], *A)
for shape in (3, 2), (2, 3), (3, 3):
    x, y = rand(*shape, seed=35), rand(*shape, seed=36)
    case("linalg.svd", "(tensor.linalg.svd(z, { full_matrices = false })):abs()", lambda z: la.svd(z, False)[0].abs(),
         x, y, tolerance=1e-8)
    case("linalg.svd", "(select(3, tensor.linalg.svd(z, { full_matrices = false }))):abs()",
         lambda z: la.svd(z, False)[2].abs(), x, y, tolerance=1e-8)
    case("linalg.svdvals", "tensor.linalg.svdvals(z)", la.svdvals, x, y)
    shown("linalg.pinv", "tensor.linalg.pinv(z)", la.pinv, x, y)
case("linalg.eigh", "(select(2, tensor.linalg.eigh(%s))):abs()" % POSITIVE, lambda z: la.eigh(positive(z))[1].abs(), *A,
     tolerance=1e-8)
case("linalg.eigvalsh", "tensor.linalg.eigvalsh(%s)" % POSITIVE, lambda z: la.eigvalsh(positive(z)), *A)
shown("linalg.lstsq", "(tensor.linalg.lstsq(z, w))", lambda z, w: la.lstsq(z, w)[0], rand(4, 2, seed=1),
      rand(4, 2, seed=2), rand(4, 1, seed=3), rand(4, 1, seed=4))
shown("linalg.matrix_power", "tensor.linalg.matrix_power(z, -2)", lambda z: la.matrix_power(z, -2), *A, tolerance=1e-8)
shown("linalg.multi_dot", "tensor.linalg.multi_dot({ z, w, z })", lambda z, w: la.multi_dot([z, w, z]), x34, y34,
      rand(4, 3, seed=2), rand(4, 3, seed=3))
shown("linalg.vecdot", "tensor.linalg.vecdot(z, w)", la.vecdot, x34, y34, rand(3, 4, seed=2), rand(3, 4, seed=3))
for p, text in (1, "1"), (float("inf"), "math.huge"), ("nuc", "\"nuc\""), (2, "2"), ("fro", "\"fro\""):
    case("linalg.matrix_norm", "tensor.linalg.matrix_norm(z, %s)" % text, lambda z, p=p: la.matrix_norm(z, p))
for p in 1, 2, 3:
    case("linalg.vector_norm", "tensor.linalg.vector_norm(z, %d)" % p, lambda z, p=p: la.vector_norm(z, p), x5, y5)
f.write()
