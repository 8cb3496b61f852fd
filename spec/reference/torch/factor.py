"""Linear algebra: tensor.linalg, and its names beside it.  Vectors whose signs are not determined are compared by
what does not depend on them."""
import torch
from common import Family, rand

f = Family(__file__)
L = torch.linalg


def case(row, expression, fn, *inputs, **options): f.case(row, expression, fn, *inputs, **options)


def regular(*shape, seed=0): return (rand(*shape, seed=seed) + 5 * torch.eye(shape[-1])).round(decimals=4)


def symmetric(*shape, seed=0):
    x = rand(*shape, seed=seed)
    return ((x + x.mT) / 2 + torch.diag(torch.arange(shape[-1]) * 3.0)).round(decimals=4)


def positive(*shape, seed=0):
    x = rand(*shape, seed=seed)
    return (x @ x.mT + torch.eye(shape[-1])).round(decimals=4)


def local(results, call, use): return "(function() local %s = %s; return %s end)()" % (results, call, use)


a3, a33, a233, a2333 = regular(3, 3), regular(3, 3, seed=4), regular(2, 3, 3), regular(2, 1, 3, 3)
p3, p23, s3, s23 = positive(3, 3), positive(2, 3, 3), symmetric(3, 3), symmetric(2, 3, 3)
low = symmetric(3, 3, seed=8).tril()
b3, b32, b232 = rand(3, seed=1), rand(3, 2, seed=2), rand(2, 3, 2, seed=3)
tall, wide, talls = rand(4, 3), rand(3, 5), rand(2, 4, 2)
none = torch.zeros(0, 0), torch.zeros(2, 0, 0), torch.zeros(0, 3, 3)

# Cholesky.  The triangle that is not read has no gradient here; PyTorch's is that of a full matrix.
for upper in False, True:
    t = str(upper).lower()
    # through x + x^T: which triangle counts is no question then
    case("linalg.cholesky", "tensor.linalg.cholesky((x1 + x1.mT) / 2, { upper = %s })" % t,
        lambda x: L.cholesky((x + x.mT) / 2, upper=upper), p23)
    case("cholesky", "((x1 + x1.mT) / 2):cholesky(%s)" % t, lambda x: L.cholesky((x + x.mT) / 2, upper=upper), p3)
    case("cholesky_solve", "x1:cholesky_solve(x2, %s)" % t,
        lambda b, l: torch.cholesky_solve(b, l.triu() if upper else l.tril(), upper), b32,
        a3.triu() if upper else a3.tril())
    case("cholesky_inverse", "x1:cholesky_inverse(%s)" % t,
        lambda l: torch.cholesky_inverse(l.triu() if upper else l.tril(), upper), a3.triu() if upper else a3.tril())
case("linalg.cholesky", "tensor.linalg.cholesky(x1)", L.cholesky, low + low.tril(-1).mT + 5 * torch.eye(3))
case("linalg.cholesky_ex", "tensor.linalg.cholesky_ex(x1)", lambda x: tuple(L.cholesky_ex(x)), p23)
case("linalg.cholesky_ex", "select(2, tensor.linalg.cholesky_ex(x1))", lambda x: L.cholesky_ex(x).info,
    torch.stack([p3, torch.diag(torch.tensor([1., -1, 2]))]), grad=False)
case("cholesky_solve", "x1:cholesky_solve(x2)", lambda b, l: torch.cholesky_solve(b, l.tril()), b232, a3.tril())
for x in none: case("linalg.cholesky", "tensor.linalg.cholesky(x1)", L.cholesky, x)

# linear systems
for a, b in (a3, b3), (a3, b32), (a233, b232), (a233, rand(2, 3, seed=5)), (a3, b232), (a2333, b232), (a233, b32), \
        (torch.zeros(0, 3, 3), torch.zeros(0, 3, 2)), (torch.zeros(2, 0, 0), torch.zeros(2, 0, 4)), \
        (a3, torch.zeros(3, 0)), (a3, torch.zeros(0, 3, 2)):
    case("linalg.solve", "tensor.linalg.solve(x1, x2)", L.solve, a, b)
case("linalg.solve", "tensor.linalg.solve(x1:t(), x2:t())", lambda a, b: L.solve(a.t(), b.t()), a3, rand(2, 3))
case("linalg.solve", "tensor.linalg.solve(x1, x2, { left = false })", lambda a, b: L.solve(a, b, left=False), a233,
    rand(2, 4, 3))
case("linalg.solve", "tensor.linalg.solve(x1, x2, { left = false })", lambda a, b: L.solve(a, b, left=False), a3,
    rand(2, 4, 3))
case("linalg.solve_ex", "tensor.linalg.solve_ex(x1, x2)", lambda a, b: tuple(L.solve_ex(a, b)), a233, b232)
for upper in False, True:
    for left in True, False:
        for unit in False, True:
            t = "upper = %s, left = %s, unitriangular = %s" % (upper, left, unit)
            case("linalg.solve_triangular", "tensor.linalg.solve_triangular(x1, x2, { %s })" % t.lower(),
                lambda a, b: L.solve_triangular(a.triu() if upper else a.tril(), b, upper=upper, left=left,
                    unitriangular=unit), a233, b232 if left else rand(2, 4, 3))
    case("linalg.solve_triangular", "tensor.linalg.solve_triangular(x1, x2, { upper = %s })" % str(upper).lower(),
        lambda a, b: L.solve_triangular(a.triu() if upper else a.tril(), b, upper=upper), a3, b232)
    for transpose in False, True:
        case("triangular_solve", "x1:triangular_solve(x2, { upper = %s, transpose = %s })" % (str(upper).lower(),
            str(transpose).lower()), lambda b, a: tuple(torch.triangular_solve(b, a, upper, transpose)), b32,
            a3.triu() if upper else a3.tril())
singular = torch.tensor([[1., 2], [2, 4]])
holes = torch.stack([torch.eye(2), torch.full((2, 2), float("nan"))])
for name, short in ("inv", "inverse"), ("det", "det"):
    for x in (a3, a233, a2333) + none:
        case("linalg." + name, "tensor.linalg.%s(x1)" % name, getattr(L, name), x)
    case(short, "x1:%s()" % short, getattr(torch, short), a3)
    case("linalg." + name, "tensor.linalg.%s(x1:transpose(1, 3))" % name,
        lambda x: getattr(L, name)(x.transpose(0, 2)), regular(3, 3, 3))
    case("linalg." + name, "tensor.linalg.%s(x1)" % name, getattr(L, name), holes, grad=False)
# singular: minors written out, since PyTorch's gradient is 0 where a pivot is exactly 0
def minors(x):
    a, b, c = x
    return (a * torch.linalg.cross(b, c)).sum()


case("linalg.det", "tensor.linalg.det(x1)", lambda x: x[0, 0] * x[1, 1] - x[0, 1] * x[1, 0], singular)
case("linalg.det", "tensor.linalg.det(x1)", L.det, torch.zeros(2, 2))
for x in [[0., 1, 0], [0, 0, 2], [0, 0, 0]], [[1., 2, 3], [4, 5, 6], [5, 7, 9]], [[1., 1, 1]] * 3:
    case("linalg.det", "tensor.linalg.det(x1)", minors, torch.tensor(x))
case("linalg.inv_ex", "tensor.linalg.inv_ex(x1)", lambda x: tuple(L.inv_ex(x)), a233)
case("linalg.inv_ex", "select(2, tensor.linalg.inv_ex(x1))", lambda x: L.inv_ex(x).info,
    torch.stack([torch.eye(2), singular]), grad=False)
for name in "linalg.slogdet", "slogdet":
    for x in (a3, a233, -a33) + none[:2]:
        case(name, "tensor.%s(x1)" % name, lambda x: tuple(L.slogdet(x)), x)
case("linalg.slogdet", "tensor.linalg.slogdet(x1)", lambda x: tuple(L.slogdet(x)), singular, grad=False)
case("logdet", "x1:logdet()", torch.logdet, a233)
case("logdet", "x1:logdet()", torch.logdet, torch.stack([torch.eye(2), -torch.diag(torch.tensor([-1., 1])),
    torch.zeros(2, 2)]), grad=False)

# LU
for x in a3, a233, tall, wide, talls, torch.zeros(2, 0, 3):
    case("linalg.lu_factor", "tensor.linalg.lu_factor(x1)", lambda x: tuple(L.lu_factor(x)), x)
    case("linalg.lu", "tensor.linalg.lu(x1)", lambda x: tuple(L.lu(x)), x)
case("linalg.lu_factor_ex", "tensor.linalg.lu_factor_ex(x1)", lambda x: tuple(L.lu_factor_ex(x)), a233)
case("linalg.lu_factor_ex", "tensor.linalg.lu_factor_ex(x1)", lambda x: tuple(L.lu_factor_ex(x)), singular, grad=False)
case("lu", "x1:lu({ get_infos = true })", lambda x: tuple(torch.lu(x, get_infos=True)), a233)
case("lu_unpack", "tensor.lu_unpack(x1:lu())", lambda x: tuple(torch.lu_unpack(*torch.lu(x))), tall)
for adjoint in False, True:
    for left in True, False:
        t = ("adjoint = %s, left = %s" % (adjoint, left)).lower()
        case("linalg.lu_solve", local("LU, p", "tensor.linalg.lu_factor(x1)",
            "tensor.linalg.lu_solve(LU, p, x2, { %s })" % t),
            lambda a, b: L.lu_solve(*L.lu_factor(a), b, adjoint=adjoint, left=left), a233,
            b232 if left else rand(2, 2, 3))
        case("linalg.lu_solve", local("LU, p", "tensor.linalg.lu_factor(x1:detach())",
            "tensor.linalg.lu_solve(LU, p, x2, { %s })" % t),
            lambda a, b: L.lu_solve(*L.lu_factor(a.detach()), b, adjoint=adjoint, left=left), a3,
            b232 if left else rand(2, 2, 3))
case("lu_solve", "x1:lu_solve(x2:lu())", lambda b, a: b.lu_solve(*torch.lu(a)), b232, a233)

# QR
for x in tall, wide, talls, a233, rand(2, 3, 4), torch.zeros(3, 0), torch.zeros(0, 3):
    case("linalg.qr", "tensor.linalg.qr(x1)", lambda x: tuple(L.qr(x)), x)
    case("linalg.qr", "tensor.linalg.qr(x1, 'complete')", lambda x: tuple(L.qr(x, "complete")), x,
        grad=x.shape[-2] <= x.shape[-1])
    case("linalg.qr", "tensor.linalg.qr(x1, { mode = 'r' })", lambda x: tuple(L.qr(x, "r")), x, grad=False)
case("qr", "x1:qr()", lambda x: tuple(L.qr(x)), tall)
case("qr", "x1:qr(false)", lambda x: tuple(L.qr(x, "complete")), wide)

# singular values
for x in tall, wide, talls, rand(2, 3, 3), torch.zeros(2, 0, 3), torch.zeros(0, 2, 3):
    for full in False, True:
        k = min(x.shape[-2:])
        case("linalg.svd", local("u, s, vh", "tensor.linalg.svd(x1, { full_matrices = %s })" % str(full).lower(),
            "u:narrow(-1, 1, %d):abs(), s, vh:narrow(-2, 1, %d):abs()" % (k, k)),
            lambda x: (lambda u, s, vh: (u[..., :k].abs(), s, vh[..., :k, :].abs()))(*L.svd(x, full)), x)
        case("linalg.svd", "tensor.tensor((tensor.linalg.svd(x1, %s)).shape), "
            "tensor.tensor(select(3, tensor.linalg.svd(x1, %s)).shape)" % ((str(full).lower(),) * 2),
            lambda x: (torch.tensor(L.svd(x, full)[0].shape, dtype=torch.float32),
                torch.tensor(L.svd(x, full)[2].shape, dtype=torch.float32)), x, grad=False)
    case("linalg.svdvals", "tensor.linalg.svdvals(x1)", L.svdvals, x)
case("svd", local("u, s, v", "x1:svd()", "u:abs(), s, v:abs()"),
    lambda x: (lambda u, s, v: (u.abs(), s, v.abs()))(*torch.svd(x)), tall)
case("svd", "x1:svd({ compute_uv = false })", lambda x: tuple(torch.svd(x, compute_uv=False)), talls)

# symmetric eigenvalues
for x in s3, s23, torch.zeros(2, 0, 0), torch.zeros(0, 3, 3):
    for uplo in "L", "U":
        case("linalg.eigh", local("l, v", "tensor.linalg.eigh((x1 + x1.mT) / 2, '%s')" % uplo, "l, v:abs()"),
            lambda x: (lambda l, v: (l, v.abs()))(*L.eigh((x + x.mT) / 2, uplo)), x)
        case("linalg.eigvalsh", "tensor.linalg.eigvalsh((x1 + x1.mT) / 2, '%s')" % uplo,
            lambda x: L.eigvalsh((x + x.mT) / 2, uplo), x)
        case("linalg.eigvalsh", "tensor.linalg.eigvalsh(x1, '%s')" % uplo, lambda x: L.eigvalsh(x, uplo),
            rand(3, 3) if x.numel() else x)

# rank, pseudoinverse, least squares, condition
flat = tall[:, :2] @ rand(2, 5, seed=6)
for x in tall, flat, s3, torch.stack([torch.eye(2), singular, torch.zeros(2, 2)]), torch.zeros(2, 0, 3):
    case("linalg.matrix_rank", "tensor.linalg.matrix_rank(x1)", L.matrix_rank, x)
case("linalg.matrix_rank", "tensor.linalg.matrix_rank(x1, { hermitian = true })",
    lambda x: L.matrix_rank(x, hermitian=True), s23)
case("linalg.matrix_rank", "tensor.linalg.matrix_rank(x1, { atol = 1.5 })", lambda x: L.matrix_rank(x, atol=1.5), tall)
case("linalg.matrix_rank", "tensor.linalg.matrix_rank(x1, { rtol = 0.5 })", lambda x: L.matrix_rank(x, rtol=0.5), talls)
case("linalg.matrix_rank", "tensor.linalg.matrix_rank(x1, { atol = x2 })", lambda x, t: L.matrix_rank(x, atol=t), talls,
    torch.tensor([0.0, 2.0]), grad=False)
for x in tall, wide, talls, flat, a233, torch.zeros(2, 0, 3):
    case("linalg.pinv", "tensor.linalg.pinv(x1)", L.pinv, x)
case("linalg.pinv", "tensor.linalg.pinv(x1, { rtol = 0.4 })", lambda x: L.pinv(x, rtol=0.4), talls)
case("linalg.pinv", "tensor.linalg.pinv((x1 + x1.mT) / 2, { hermitian = true })",
    lambda x: L.pinv((x + x.mT) / 2, hermitian=True), s23)
case("pinverse", "x1:pinverse()", torch.pinverse, tall)
for driver in "gels", "gelsy", "gelsd", "gelss":
    for a, b in (tall, rand(4, 2)), (talls, rand(2, 4, 3)), (wide, rand(3, 2)), (tall, rand(4)), (talls, rand(2, 4)), \
            (a3, b32):
        case("linalg.lstsq", "tensor.linalg.lstsq(x1, x2, { driver = '%s' })" % driver,
            lambda a, b: tuple(L.lstsq(a, b, driver=driver)), a, b)
case("linalg.lstsq", "tensor.linalg.lstsq(x1, x2)", lambda a, b: tuple(L.lstsq(a, b)), tall, rand(4, 2))
case("linalg.lstsq", "tensor.linalg.lstsq(x1, x2)", lambda a, b: tuple(L.lstsq(a, b)), flat, rand(4, 2), grad=False)
for p in None, 2, -2, 1, -1, float("inf"), float("-inf"), "fro", "nuc":
    t = {None: "", float("inf"): ", math.huge", float("-inf"): ", -math.huge"}.get(p,
        ", '%s'" % p if isinstance(p, str) else ", %s" % p)
    # the norms one by one: PyTorch's cond fails in its backward pass
    case("linalg.cond", "tensor.linalg.cond(x1%s)" % t, lambda x: L.matrix_norm(x, p or 2) * L.matrix_norm(L.inv(x),
        p or 2) if p != -2 else L.cond(x, p), a233)
    case("linalg.cond", "tensor.linalg.cond(x1%s)" % t, lambda x: L.cond(x, p), a233, grad=False)
    case("linalg.cond", "tensor.linalg.cond(x1%s)" % t, lambda x: L.cond(x, p), torch.zeros(2, 0, 0))
    if p not in (None, 2, -2):
        case("linalg.cond", "tensor.linalg.cond(x1%s)" % t, lambda x: L.cond(x, p), torch.stack([torch.eye(2),
            torch.diag(torch.tensor([1.0, 0]))]), grad=False)
    else: case("linalg.cond", "tensor.linalg.cond(x1%s)" % t, lambda x: L.cond(x, p), talls)
    # norms
    for name in "norm", "matrix_norm":
        if p is None and name == "matrix_norm": t = ""
        args = () if p is None else (p,)
        case("linalg." + name, "tensor.linalg.%s(x1%s)" % (name, t), lambda x: getattr(L, name)(x, *args), tall)
        if p is not None:
            case("linalg." + name, "tensor.linalg.%s(x1%s, { dim = { 3, 1 } })" % (name, t),
                lambda x: getattr(L, name)(x, p, dim=(2, 0)), rand(2, 3, 4))
            case("linalg." + name, "tensor.linalg.%s(x1%s, { dim = { 1, 3 }, keepdim = true })" % (name, t),
                lambda x: getattr(L, name)(x, p, dim=(0, 2), keepdim=True), rand(2, 3, 4))
for p in 2, 0, 1, 3, -1, 0.5, float("inf"), float("-inf"):
    t = "math.huge" if p == float("inf") else "-math.huge" if p == float("-inf") else str(p)
    case("linalg.vector_norm", "tensor.linalg.vector_norm(x1, %s)" % t, lambda x: L.vector_norm(x, p), rand(2, 3))
    case("linalg.vector_norm", "tensor.linalg.vector_norm(x1, %s, 2, true)" % t,
        lambda x: L.vector_norm(x, p, 1, True), rand(2, 3, 2))
    case("linalg.vector_norm", "tensor.linalg.vector_norm(x1, %s, { 1, 3 })" % t,
        lambda x: L.vector_norm(x, p, (0, 2)), rand(2, 3, 2))
    case("linalg.norm", "tensor.linalg.norm(x1, %s)" % t, lambda x: L.norm(x, p), b3)
    case("linalg.norm", "tensor.linalg.norm(x1, %s, 1)" % t, lambda x: L.norm(x, p, 0), rand(2, 3, 2))
for shape, of in ((0, 5), (1, -1, 2, float("inf"))), ((2, 5, 0), (1, 2, float("inf"), float("-inf"))):
    for p in of: # the largest of nothing is 0
        t = "math.huge" if p == float("inf") else "-math.huge" if p == float("-inf") else str(p)
        for keepdim in False, True:
            case("linalg.matrix_norm",
                "tensor.linalg.matrix_norm(x1, %s, { keepdim = %s })" % (t, str(keepdim).lower()),
                lambda x: L.matrix_norm(x, p, keepdim=keepdim), torch.zeros(shape), grad=False)
case("linalg.vector_norm", "tensor.linalg.vector_norm(x1)", L.vector_norm, rand())
case("linalg.vector_norm", "tensor.linalg.vector_norm(x1)", L.vector_norm, torch.zeros(0))
case("linalg.vector_norm", "tensor.linalg.vector_norm(x1, { dtype = 'float64' })",
    lambda x: L.vector_norm(x, dtype=torch.float64), rand(4).float(), grad=False)
case("linalg.norm", "tensor.linalg.norm(x1, nil, { 1, 2 })", lambda x: L.norm(x, None, (0, 1)), rand(2, 3, 2))

# powers, chains, products
for n in 0, 1, 2, 3, 7, -1, -3:
    case("linalg.matrix_power", "tensor.linalg.matrix_power(x1, %d)" % n, lambda x: L.matrix_power(x, n), a233)
case("matrix_power", "x1:matrix_power(3)", lambda x: x.matrix_power(3), a3)
for x in rand(3, 3), rand(2, 3, 3) * 4, rand(2, 2) * 1e-3, torch.zeros(2, 0, 0), torch.zeros(2, 2):
    case("linalg.matrix_exp", "tensor.linalg.matrix_exp(x1)", L.matrix_exp, x)
case("matrix_exp", "x1:matrix_exp()", torch.matrix_exp, rand(2, 2))
m = rand(2, 5), rand(5, 3), rand(3, 4), rand(4, 2)
case("linalg.multi_dot", "tensor.linalg.multi_dot({ x1, x2 })", lambda *x: L.multi_dot(x), *m[:2])
case("linalg.multi_dot", "tensor.linalg.multi_dot({ x1, x2, x3, x4 })", lambda *x: L.multi_dot(x), *m)
case("linalg.multi_dot", "tensor.linalg.multi_dot({ x1, x2, x3 })", lambda *x: L.multi_dot(x), rand(5), m[1], m[2])
case("linalg.multi_dot", "tensor.linalg.multi_dot({ x1, x2, x3 })", lambda *x: L.multi_dot(x), m[0], m[1], rand(3))
case("linalg.multi_dot", "tensor.linalg.multi_dot({ x1, x2 })", lambda *x: L.multi_dot(x), rand(3), rand(3, seed=1))
case("chain_matmul", "tensor.chain_matmul({ x1, x2, x3 })", lambda *x: L.multi_dot(x), *m[:3])
case("linalg.cross", "tensor.linalg.cross(x1, x2)", L.cross, rand(2, 3), rand(1, 3))
case("linalg.cross", "tensor.linalg.cross(x1, x2, { dim = 1 })", lambda a, b: L.cross(a, b, dim=0), rand(3, 2),
    rand(3, 2, seed=1))
case("linalg.vecdot", "tensor.linalg.vecdot(x1, x2)", L.vecdot, rand(2, 3), rand(3))
case("linalg.vecdot", "tensor.linalg.vecdot(x1, x2, { dim = 1 })", lambda a, b: L.vecdot(a, b, dim=0), rand(2, 3),
    rand(2, 3, seed=1))
# powers one by one: PyTorch's vander fails in its backward pass
def powers(x, n): return torch.stack([x ** k for k in range(n)], -1)


case("linalg.vander", "tensor.linalg.vander(x1)", lambda x: powers(x, 3), rand(2, 3))
case("linalg.vander", "tensor.linalg.vander(x1, { N = 5 })", lambda x: powers(x, 5), b3)
case("linalg.vander", "tensor.linalg.vander(x1, { N = 5 })", lambda x: L.vander(x, N=5), b3, grad=False)
case("linalg.vander", "tensor.linalg.vander(x1, { N = 4 })", lambda x: L.vander(x, N=4), rand(), grad=False)
case("vander", "tensor.vander(x1)", lambda x: powers(x, 3).flip(-1), b3)
case("vander", "tensor.vander(x1, 4, true)", lambda x: torch.vander(x, 4, True), b3, grad=False)
case("vander", "tensor.vander(x1)", torch.vander, b3, grad=False)
case("linalg.tensorinv", "tensor.linalg.tensorinv(x1)", L.tensorinv, regular(6, 6).view(2, 3, 6))
case("linalg.tensorinv", "tensor.linalg.tensorinv(x1, { ind = 1 })", lambda x: L.tensorinv(x, 1),
    regular(6, 6).view(6, 2, 3))
case("linalg.tensorsolve", "tensor.linalg.tensorsolve(x1, x2)", L.tensorsolve, regular(6, 6).view(2, 3, 6), rand(2, 3))
case("linalg.tensorsolve", "tensor.linalg.tensorsolve(x1, x2, { 1, 3 })",
    lambda a, b: L.tensorsolve(a, b, dims=(0, 2)), rand(2, 6, 3), rand(6))
case("linalg.matmul", "tensor.linalg.matmul(x1, x2)", L.matmul, rand(2, 3, 4), rand(4, 2))
case("linalg.diagonal", "tensor.linalg.diagonal(x1, { offset = 1 })", lambda x: L.diagonal(x, offset=1), rand(2, 3, 4))

# eigenvalues of any matrix: compared by what depends neither on their order nor on the angles of vectors
cplx = lambda x, y: torch.complex(x, y)
real = lambda z: torch.view_as_real(z.resolve_conj())


def eig_sums(x):
    l, v = L.eig(x)
    return real((l ** 3).sum(-1)), (v.abs() ** 4).sum(-1), (v.abs() ** 2 * l.abs().unsqueeze(-2)).sum(-1)


EIG = local("l, v", "tensor.linalg.eig(%s)", "(l * l * l):sum(-1):view_as_real(), v:abs():pow(4):sum(-1), "
    "(v:abs():square() * l:abs():unsqueeze(-2)):sum(-1)")
for x in rand(3, 3), rand(2, 4, 4), rand(5, 5, seed=3), torch.tensor([[1., 2, 0], [-2, 1, 0], [0, 0, 3]]):
    case("linalg.eig", EIG % "x1", eig_sums, x)
    case("linalg.eigvals", "(tensor.linalg.eigvals(x1):exp()):sum(-1):view_as_real()",
        lambda x: real(L.eigvals(x).exp().sum(-1)), x)
case("linalg.eig", EIG % "tensor.complex(x1, x2)", lambda x, y: eig_sums(cplx(x, y)), rand(2, 3, 3),
    rand(2, 3, 3, seed=5))
case("linalg.eigvals", "(tensor.linalg.eigvals(tensor.complex(x1, x2)):square()):sum(-1):view_as_real()",
    lambda x, y: real(L.eigvals(cplx(x, y)).square().sum(-1)), rand(3, 3), rand(3, 3, seed=5))
for x in none: case("linalg.eigvals", "tensor.linalg.eigvals(x1):view_as_real()", lambda x: real(L.eigvals(x)), x)

# complex systems
case("linalg.solve", "tensor.linalg.solve(tensor.complex(x1, x2), tensor.complex(x3, x4)):view_as_real()",
    lambda a, b, c, d: real(L.solve(cplx(a, b), cplx(c, d))), a233, rand(2, 3, 3, seed=9), b232,
    rand(2, 3, 2, seed=10))
case("linalg.solve", "tensor.linalg.solve(tensor.complex(x1, x2), tensor.complex(x3, x3)):view_as_real()",
    lambda a, b, c: real(L.solve(cplx(a, b), cplx(c, c))), a3, rand(3, 3, seed=9), b3)
case("linalg.solve", "tensor.linalg.solve(tensor.complex(x1, x2), tensor.complex(x3, x3), { left = false })"
    ":view_as_real()", lambda a, b, c: real(L.solve(cplx(a, b), cplx(c, c), left=False)), a3, rand(3, 3, seed=9),
    rand(2, 4, 3))
for x in a3, a233: case("linalg.inv", "tensor.linalg.inv(tensor.complex(x1, x2)):view_as_real()",
    lambda x, y: real(L.inv(cplx(x, y))), x, rand(*x.shape, seed=9))

# square roots, polar form
for x in p3, p23:
    case("linalg.matrix_sqrth", "tensor.linalg.matrix_sqrth((x1 + x1.mT) / 2)",
        lambda x: L.matrix_sqrth((x + x.mT) / 2), x)
for x in tall, talls, a233: case("linalg.polar", "tensor.linalg.polar(x1)", lambda x: tuple(L.polar(x)), x)

# reflections
for x in tall, talls, wide, a233:
    case("geqrf", "x1:geqrf()", lambda x: tuple(torch.geqrf(x)), x, grad=False)
for x, k in (tall, 3), (talls, 2), (a233, 3), (tall, 2):
    t = rand(*x.shape[:-2], k, lo=0.1, hi=0.9, seed=4)
    case("linalg.householder_product", "tensor.linalg.householder_product(x1, x2)", L.householder_product, x, t)
case("orgqr", "tensor.orgqr(x1, x2)", torch.orgqr, tall, rand(3, lo=0.1, hi=0.9))
for left in True, False:
    for transpose in True, False:
        for x, k, other in (tall, 3, rand(4, 2)), (talls, 2, rand(2, 4, 3)):
            t = rand(*x.shape[:-2], k, lo=0.1, hi=0.9, seed=4)
            other = other if left else other.mT.contiguous()
            case("ormqr", "x1:ormqr(x2, x3, %s)" % ("%s, %s" % (left, transpose)).lower(),
                lambda x, t, o: torch.ormqr(x, t, o, left, transpose), x, t, other, grad=False)

for left in True, False: # wide ones: as many columns are read as there are factors
    for x, k, other in (rand(2, 5), 2, rand(2, 4)), (rand(2, 2, 5), 2, rand(2, 2, 3)):
        t = rand(*x.shape[:-2], k, lo=0.1, hi=0.9, seed=4)
        other = other if left else other.mT.contiguous()
        case("ormqr", "x1:ormqr(x2, x3, %s)" % str(left).lower(), lambda x, t, o: torch.ormqr(x, t, o, left), x, t,
            other, grad=False)

# L D L^T
for x in s3, s23 - 3 * torch.eye(3), torch.tensor([[0., 2, 3], [2, 0, 5], [3, 5, 0]]), none[0]:
    case("linalg.ldl_factor", "tensor.linalg.ldl_factor(x1)", lambda x: tuple(L.ldl_factor(x)), x, grad=False)
    case("linalg.ldl_factor_ex", "tensor.linalg.ldl_factor_ex(x1)", lambda x: tuple(L.ldl_factor_ex(x)), x, grad=False)
    b = rand(*x.shape[:-1], 2)
    case("linalg.ldl_solve", local("LD, p", "tensor.linalg.ldl_factor(x1)", "tensor.linalg.ldl_solve(LD, p, x2)"),
        lambda x, b: L.ldl_solve(*L.ldl_factor(x), b), x, b, grad=False)

# few singular values: of matrices of rank 2 they are exact
flat_wide = rand(2, 5, 2) @ rand(2, 2, 6, seed=2)
for x in flat_wide, flat_wide.mT.contiguous():
    case("svd_lowrank", local("u, s, v", "x1:svd_lowrank(2)", "(u * s:unsqueeze(-2)):matmul(v.mT), s"),
        lambda x: (x.clone(), L.svdvals(x)[..., :2]), x, grad=False)
case("svd_lowrank", "select(2, x1:svd_lowrank({ q = 3, niter = 4, M = x2 }))",
    lambda x, m: L.svdvals(x - m)[..., :3], flat_wide, rand(6), grad=False)
case("pca_lowrank", "select(2, x1:pca_lowrank(2))", lambda x: torch.linalg.svdvals(x - x.mean(-2, True))[..., :2],
    flat_wide, grad=False)
case("pca_lowrank", "select(2, x1:pca_lowrank({ center = false }))", lambda x: L.svdvals(x), tall, grad=False)

f.write()
