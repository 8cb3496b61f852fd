"""Bessel functions, orthogonal polynomials and the rest of tensor.special. PyTorch's Bessel functions are good to six
digits between 5 and 8, so their values here are mpmath's."""
import mpmath
import torch
from common import Family, rand

f = Family(__file__)
mpmath.mp.dps = 30
inf, nan = float("inf"), float("nan")


def exact(fn):
    return lambda x: torch.tensor([float(fn(mpmath.mpf(v))) for v in x.tolist()])


def case(name, fn, *inputs, **options):
    arguments = ", ".join("x%d" % (i + 1) for i in range(len(inputs)))
    f.case("special." + name, "tensor.special.%s(%s)" % (name, arguments), fn, *inputs, **options)


near = torch.tensor([1e-9, 0.01, 0.7, 2.0, 4.75, 5.5, 7.25, 13.0, 24.5, 25.5, 80.0])
both = torch.cat([near, -near])
ends = torch.tensor([0.0, inf, nan, -1.0])
for n in 0, 1:
    case("bessel_j%d" % n, exact(lambda x: mpmath.besselj(n, x)), both, grad=False)
    case("bessel_y%d" % n, exact(lambda x: mpmath.bessely(n, x)), near, grad=False)
    case("modified_bessel_k%d" % n, exact(lambda x: mpmath.besselk(n, x)), near, grad=False)
    case("scaled_modified_bessel_k%d" % n, exact(lambda x: mpmath.exp(x) * mpmath.besselk(n, x)), near, grad=False)
    case("modified_bessel_i%d" % n, exact(lambda x: mpmath.besseli(n, x)), both[:8], grad=False)
    case("bessel_y%d" % n, getattr(torch.special, "bessel_y%d" % n), ends[[0, 2, 3]], grad=False)
    case("modified_bessel_k%d" % n, getattr(torch.special, "modified_bessel_k%d" % n), ends[[0, 2, 3]], grad=False)
case("airy_ai", exact(mpmath.airyai), torch.cat([both, torch.tensor([-9.9, -10.1, 0.99, 1.01, 12.0])]), grad=False)
case("spherical_bessel_j0", exact(mpmath.sinc), torch.cat([both, ends[:1]]), grad=False)

x, degrees = torch.tensor([-1.3, -1.0, -0.4, 0.0, 0.6, 1.0, 2.25]), torch.arange(-1, 10).double()
for name in ["chebyshev_polynomial_" + k for k in "tuvw"] + ["shifted_chebyshev_polynomial_" + k for k in "tuvw"] + [
        "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]:
    case(name, getattr(torch.special, name), x, degrees.unsqueeze(1), grad=False)
    f.case("special." + name, "tensor.special.%s(x1, 3)" % name, lambda v: getattr(torch.special, name)(v, 3), x,
        grad=False)

s, q = torch.tensor([1.5, 2.0, 3.25, 8.0]), torch.tensor([[0.25], [1.0], [7.5], [40.0]])
f.case("special.zeta", "tensor.special.zeta(x1:detach(), x2)", lambda a, b: torch.special.zeta(a.detach(), b), s, q)
case("zeta", torch.special.zeta, torch.tensor([2.0, 1.5, 2.0, 0.5, 1.0, 2.0]),
    torch.tensor([-1.0, -1.5, -1.5, 2.0, 2.0, 0.0]), grad=False)
case("xlog1py", torch.special.xlog1py, torch.tensor([0.0, 0.0, 1.5, -2.0]), torch.tensor([2.0, -0.5, 0.25, 3.0]))
case("xlog1py", torch.special.xlog1py, torch.tensor([0.0, 0.0, 1.0]), torch.tensor([-1.0, nan, -1.0]), grad=False)
f.write()
