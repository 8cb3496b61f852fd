"""Complex numbers, Fourier transforms, windows.  Inputs and results are real: what is complex in between is made of
two real tensors, and shown as one with a last dim of 2, so that gradients are compared in both parts."""
import re
import torch
from common import Family, rand

f = Family(__file__)
x5, x23, x34, x234 = rand(5), rand(2, 3), rand(3, 4), rand(2, 3, 4)
y5, y23, y34, y234 = rand(5, seed=1), rand(2, 3, seed=1), rand(3, 4, seed=1), rand(2, 3, 4, seed=1)
show = lambda z: torch.view_as_real(z) if z.is_complex() else z


def case(row, expression, fn, *inputs, **options): f.case(row, expression, fn, *inputs, **options)


def both(row, expression, fn, *inputs, **options):
    """expression and fn of z, which is complex(x1, x2)."""
    a, b = inputs[:2] if inputs else (x34, y34)
    rest = inputs[2:]
    lua = re.sub(r"\bz\b", "tensor.complex(x1, x2)", expression)
    case(row, lua, lambda p, q, *r: show(fn(torch.complex(p, q), *r)), a, b, *rest, **options)


# ---- forms
both("complex", "z:view_as_real()", lambda z: z)
both("view_as_real", "z:view_as_real()", lambda z: z)
case("view_as_complex", "x1:view(6, 2):view_as_complex():view_as_real()",
     lambda x: torch.view_as_real(torch.view_as_complex(x.view(6, 2))), x34)
case("polar", "tensor.polar(x1, x2):view_as_real()", lambda x, y: torch.view_as_real(torch.polar(x, y)),
     rand(2, 3, lo=0.5), y23)
both("real", "z:real()", lambda z: z.real)
case("real", "x1:real() * 1", lambda x: torch.real(x) * 1, x5)
both("imag", "z:imag()", lambda z: z.imag)
both("conj", "z:conj():view_as_real()", lambda z: z.conj().resolve_conj())
both("angle", "z:angle()", lambda z: z.angle())
case("angle", "x1:angle()", torch.angle, x5)
both("sgn", "z:sgn():view_as_real()", lambda z: z.sgn())
both("abs", "z:abs()", lambda z: z.abs())
both("abs", "(z * 0):abs()", lambda z: (z * 0).abs())
both("is_complex", "tensor({ z:is_complex() })", lambda z: torch.tensor([z.is_complex()]), grad=False)
both("isreal", "(z - z:imag() * tensor.complex(x1 * 0, x1 * 0 + 1)):isreal()",
     lambda z: (z - z.imag * 1j).isreal(), grad=False)

# ---- arithmetic, with real tensors and numbers
W = (rand(3, 4, seed=2), rand(3, 4, seed=3))
for name, sign in ("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"):
    op = getattr(torch, name)
    both(name, "(z %s tensor.complex(x3, x4)):view_as_real()" % sign,
         lambda z, p, q, op=op: op(z, torch.complex(p, q)), x34, y34, *W)
    both(name, "(z %s x3):view_as_real()" % sign, lambda z, r, op=op: op(z, r), x34, y34, rand(4, seed=5))
    both(name, "(x3 %s z):view_as_real()" % sign, lambda z, r, op=op: op(r, z), x34, y34, rand(3, 1, seed=5))
    both(name, "(z %s 1.5):view_as_real()" % sign, lambda z, op=op: op(z, 1.5))
for name in "neg", "square", "reciprocal", "exp", "log", "sqrt", "sin", "cos", "sinh", "cosh", "tanh":
    both(name, "z:%s():view_as_real()" % name, getattr(torch, name))
both("pow", "(z ^ 3):view_as_real()", lambda z: z ** 3)
both("pow", "(z ^ -1.5):view_as_real()", lambda z: z ** -1.5)
both("rsub", "tensor.sub(2, z):view_as_real()", lambda z: 2 - z)
both("eq", "z:eq(z)", lambda z: z == z, grad=False)
both("ne", "z:ne(z + 1)", lambda z: z != z + 1, grad=False)
both("isnan", "(z / 0):isnan()", lambda z: (z / 0).isnan(), grad=False)
both("isfinite", "z:isfinite()", lambda z: z.isfinite(), grad=False)
both("isinf", "(z * (1 / 0)):isinf()", lambda z: (z * float("inf")).isinf(), grad=False)
both("where", "core.where(z:real():gt(0), z, x3):view_as_real()", lambda z, r: torch.where(z.real > 0, z, r + 0j),
     x34, y34, rand(4, seed=5))
both("masked_fill", "z:masked_fill(z:real():gt(0), 2):view_as_real()", lambda z: z.masked_fill(z.real > 0, 2))

# ---- sums, products, shapes
both("sum", "z:sum():view_as_real()", lambda z: z.sum())
both("sum", "z:sum(1, true):view_as_real()", lambda z: z.sum(0, True))
both("mean", "z:mean(-1):view_as_real()", lambda z: z.mean(-1))
both("cumsum", "z:cumsum(2):view_as_real()", lambda z: z.cumsum(1))
both("norm", "z:norm()", lambda z: torch.linalg.vector_norm(z))
both("matmul", "z:matmul(tensor.complex(x3, x4):t()):view_as_real()",
     lambda z, p, q: z @ torch.complex(p, q).t(), x34, y34, *W)
both("matmul", "z:matmul(tensor.complex(x3, x4)):view_as_real()", lambda z, p, q: z @ torch.complex(p, q),
     x234, y234, rand(2, 4, 3, seed=7), rand(2, 4, 3, seed=8))
both("matmul", "z:matmul(tensor.complex(x3, x4)):view_as_real()", lambda z, p, q: z @ torch.complex(p, q),
     x234, y234, rand(4, seed=7), rand(4, seed=8))
both("dot", "z:dot(tensor.complex(x3, x4)):view_as_real()", lambda z, p, q: z.dot(torch.complex(p, q)), x5, y5,
     rand(5, seed=7), rand(5, seed=8))
for lua, fn in (("t()", lambda z: z.t()), ("flip(1)", lambda z: z.flip(0)), ("roll(1, 2)", lambda z: z.roll(1, 1)),
                ("tile(2, 1)", lambda z: z.tile(2, 1)), ("tril()", lambda z: z.tril()),
                ("diagonal()", lambda z: z.diagonal()), ("reshape(-1)", lambda z: z.reshape(-1)),
                ("pad({ 1, 2 })", lambda z: torch.nn.functional.pad(z, (1, 2)))):
    both(lua.split("(")[0], "z:%s:view_as_real()" % lua, fn)
both("cat", "core.cat({ z, z:conj() }, 1):view_as_real()", lambda z: torch.cat([z, z.conj()], 0))
both("index_select", "z:index_select(2, int64 { 0, 2, 2 }):view_as_real()",
     lambda z: z.index_select(1, torch.tensor([0, 2, 2])))
both("select", "z[2]:view_as_real()", lambda z: z[1])

# ---- transforms: even, odd and prime lengths, cut and filled up
for n in 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 30, 35, 64, 101:
    x, y = rand(n, seed=11), rand(n, seed=12)
    both("fft.fft", "tensor.fft.fft(z):view_as_real()", torch.fft.fft, x, y, tolerance=1e-8)
    case("fft.rfft", "tensor.fft.rfft(x1):view_as_real()", lambda x: show(torch.fft.rfft(x)), x, tolerance=1e-8)
for norm in "backward", "ortho", "forward":
    for name in "fft", "ifft":
        fn = getattr(torch.fft, name)
        both("fft." + name, "tensor.fft.%s(z, { norm = \"%s\" }):view_as_real()" % (name, norm),
             lambda z, fn=fn, norm=norm: fn(z, norm=norm))
    for name in "rfft", "ihfft":
        fn = getattr(torch.fft, name)
        case("fft." + name, "tensor.fft.%s(x1, 5, 2, \"%s\"):view_as_real()" % (name, norm),
             lambda x, fn=fn, norm=norm: show(fn(x, 5, 1, norm).resolve_conj()), x234)
        case("fft." + name, "tensor.fft.%s(x1, { norm = \"%s\" }):view_as_real()" % (name, norm),
             lambda x, fn=fn, norm=norm: show(fn(x, norm=norm).resolve_conj()), x234)
    for name in "irfft", "hfft":
        fn = getattr(torch.fft, name)
        both("fft." + name, "tensor.fft.%s(z, { norm = \"%s\" })" % (name, norm),
             lambda z, fn=fn, norm=norm: fn(z, norm=norm))
        both("fft." + name, "tensor.fft.%s(z, 7, 1, \"%s\")" % (name, norm),
             lambda z, fn=fn, norm=norm: fn(z, 7, 0, norm), x234, y234)
both("fft.fft", "tensor.fft.fft(z, 3, 2):view_as_real()", lambda z: torch.fft.fft(z, 3, 1))
both("fft.fft", "tensor.fft.fft(z, 6, 1):view_as_real()", lambda z: torch.fft.fft(z, 6, 0))
case("fft.fft", "tensor.fft.fft(x1):view_as_real()", lambda x: show(torch.fft.fft(x)), x34)
for name in "fft2", "ifft2", "fftn", "ifftn":
    fn = getattr(torch.fft, name)
    both("fft." + name, "tensor.fft.%s(z):view_as_real()" % name, fn, x234, y234)
    both("fft." + name, "tensor.fft.%s(z, { 3, 5 }, { 1, 3 }, \"ortho\"):view_as_real()" % name,
         lambda z, fn=fn: fn(z, (3, 5), (0, 2), "ortho"), x234, y234)
for name in "rfft2", "rfftn":
    fn = getattr(torch.fft, name)
    case("fft." + name, "tensor.fft.%s(x1):view_as_real()" % name, lambda x, fn=fn: show(fn(x)), x234)
    case("fft." + name, "tensor.fft.%s(x1, { 3, 5 }, { 3, 1 }, \"forward\"):view_as_real()" % name,
         lambda x, fn=fn: show(fn(x, (3, 5), (2, 0), "forward")), x234)
for name in "irfft2", "irfftn":
    fn = getattr(torch.fft, name)
    both("fft." + name, "tensor.fft.%s(z)" % name, fn, x234, y234)
    both("fft." + name, "tensor.fft.%s(z, { 3, 5 }, { 3, 2 }, \"ortho\")" % name,
         lambda z, fn=fn: fn(z, (3, 5), (2, 1), "ortho"), x234, y234)
for name in "hfft2", "hfftn":
    fn = getattr(torch.fft, name)
    both("fft." + name, "tensor.fft.%s(z)" % name, fn, x234, y234)
    both("fft." + name, "tensor.fft.%s(z, { 3, 5 }, { 3, 2 }, \"ortho\")" % name,
         lambda z, fn=fn: fn(z, (3, 5), (2, 1), "ortho"), x234, y234)
for name in "ihfft2", "ihfftn":
    fn = getattr(torch.fft, name)
    case("fft." + name, "tensor.fft.%s(x1):view_as_real()" % name, lambda x, fn=fn: show(fn(x).resolve_conj()), x234)
    case("fft." + name, "tensor.fft.%s(x1, { 3, 5 }, { 3, 1 }, \"forward\"):view_as_real()" % name,
         lambda x, fn=fn: show(fn(x, (3, 5), (2, 0), "forward").resolve_conj()), x234)
for n, d in (4, 1), (5, 0.25), (1, 2):
    case("fft.fftfreq", "tensor.fft.fftfreq(%d, %g, \"float64\")" % (n, d), lambda n=n, d=d: torch.fft.fftfreq(n, d))
    case("fft.rfftfreq", "tensor.fft.rfftfreq(%d, %g, \"float64\")" % (n, d), lambda n=n, d=d: torch.fft.rfftfreq(n, d))
for name in "fftshift", "ifftshift":
    fn = getattr(torch.fft, name)
    case("fft." + name, "tensor.fft.%s(x1)" % name, fn, x234)
    case("fft." + name, "tensor.fft.%s(x1, 2)" % name, lambda x, fn=fn: fn(x, 1), x234)
    both("fft." + name, "tensor.fft.%s(z):view_as_real()" % name, fn)

# ---- windows, short pieces
for name in "hann", "hamming", "blackman", "bartlett", "kaiser":
    fn = getattr(torch, name + "_window")
    for n in 1, 2, 5, 8:
        case(name + "_window", "tensor.%s_window(%d, { dtype = \"float64\" })" % (name, n), lambda fn=fn, n=n: fn(n))
        case(name + "_window", "tensor.%s_window(%d, false, { dtype = \"float64\" })" % (name, n),
             lambda fn=fn, n=n: fn(n, False))
case("hamming_window", "tensor.hamming_window(6, true, 0.6, 0.4, \"float64\")",
     lambda: torch.hamming_window(6, True, 0.6, 0.4))
case("kaiser_window", "tensor.kaiser_window(6, true, 5.5, \"float64\")", lambda: torch.kaiser_window(6, True, 5.5))

s40, w8, w6 = rand(2, 40), rand(8, lo=0.5, hi=1, seed=3), rand(6, lo=0.5, hi=1, seed=4)
stft = lambda *a, **k: show(torch.stft(*a, return_complex=True, **k))
case("stft", "x1:stft(8, { window = x2 }):view_as_real()", lambda x, w: stft(x, 8, window=w), s40, w8)
case("stft", "x1[1]:stft(8, 3, 6, x2):view_as_real()", lambda x, w: stft(x[0], 8, 3, 6, w), s40, w6)
case("stft", "x1:stft(7, { center = false, normalized = true, onesided = false, window = tensor.ones(7, "
     "{ dtype = \"float64\" }) }):view_as_real()",
     lambda x: stft(x, 7, center=False, normalized=True, onesided=False, window=torch.ones(7)), s40)
case("stft", "x1:stft(8, { pad_mode = \"constant\", window = x2, return_complex = false })",
     lambda x, w: stft(x, 8, pad_mode="constant", window=w), s40, w8)
case("istft", "x1:stft(8, { window = x2 }):istft(8, { window = x2 })",
     lambda x, w: torch.istft(torch.stft(x, 8, window=w, return_complex=True), 8, window=w), s40, w8)
p, q = rand(2, 5, 7, seed=21), rand(2, 5, 7, seed=22)
both("istft", "z:istft(8, { window = x3, length = 10 })", lambda z, w: torch.istft(z, 8, window=w, length=10), p, q, w8)
both("istft", "z:istft(8)", lambda z: torch.istft(z, 8), rand(2, 8, 5), rand(2, 8, 5, seed=1)) # both sides
both("istft", "z[1]:istft(8, 3, 6, x3, { normalized = true, center = true })",
     lambda z, w: torch.istft(z[0], 8, 3, 6, w, normalized=True), p, q, w6)
both("istft", "z:istft(9, { window = x3, center = false, length = 30 })",
     lambda z, w: torch.istft(z, 9, window=w, center=False, length=30), p, q, rand(9, lo=0.5, hi=1))
f.case("fft.fftfreq", "tensor.fft.fftfreq(0)", lambda: torch.fft.fftfreq(0, dtype=torch.float32))
f.case("fft.rfftfreq", "tensor.fft.rfftfreq(0)", lambda: torch.fft.rfftfreq(0, dtype=torch.float32))
f.write()
