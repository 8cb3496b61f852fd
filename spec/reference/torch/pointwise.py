"""Rows of pointwise.def: each at ordinary values with gradients (0-d and zero-size among them),
broadcast, with numbers, and at the corners."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
inf, nan = float("inf"), float("nan")
CORNERS = torch.tensor([inf, -inf, nan, 0.0, 1.0, -1.0, 30.0, -30.0, 1e-3])
EMPTY = torch.zeros(2, 0)


def unary(name, fn=None, lo=-2.0, hi=2.0, corners=True, expression=None):
    fn = fn or getattr(torch, name)
    expression = expression or "core.%s(x1)" % name
    f.case(name, expression, fn, rand(2, 3, lo=lo, hi=hi))
    f.case(name, expression, fn, EMPTY)
    if corners: f.case(name, expression, fn, CORNERS, grad=False)


def binary(name, fn=None, lo=-2.0, hi=2.0, blo=None, bhi=None, number=1.5, left=True, corners=True):
    fn = fn or getattr(torch, name)
    blo, bhi = lo if blo is None else blo, hi if bhi is None else bhi
    f.case(name, "core.%s(x1, x2)" % name, fn, rand(2, 1, 3, lo=lo, hi=hi), rand(4, 1, lo=blo, hi=bhi, seed=1))
    f.case(name, "core.%s(x1, %g)" % (name, number), lambda x: fn(x, torch.tensor(number)), rand(5, lo=lo, hi=hi))
    if left: f.case(name, "core.%s(%g, x1)" % (name, number), lambda x: fn(torch.tensor(number), x),
        rand(5, lo=blo, hi=bhi))
    if corners: f.case(name, "core.%s(x1, x2)" % name, fn, CORNERS.view(-1, 1),
        torch.tensor([0.0, 1.5, -2.0, inf, nan]), grad=False)


for name in "add sub mul maximum minimum".split(): binary(name)
binary("div", blo=0.5)
binary("pow", lo=0.2)
f.case("pow", "x1 ^ 2", lambda x: x ** 2, CORNERS[3:])
f.case("pow", "x1 ^ 3", lambda x: x ** 3, rand(4))
f.case("pow", "x1 ^ 0", lambda x: x ** 0, rand(4))
f.case("pow", "x1 ^ 0.5", lambda x: x ** 0.5, rand(4, lo=0.1))
binary("remainder", lo=-5, hi=5, blo=1.1, bhi=1.9)
binary("fmod", lo=-5, hi=5, blo=1.1, bhi=1.9)
f.case("floor_divide", "core.floor_divide(x1, x2)", torch.floor_divide, rand(3, 4, lo=-5, hi=5), rand(4, seed=1),
    grad=False)
f.case("floor_divide", "core.floor_divide(x1, x2)", torch.floor_divide, torch.tensor([7, -7, 7, -7, 6]),
    torch.tensor([2, 2, -2, -2, 3]))
f.case("floor_divide", "core.floor_divide(x1, x2)", torch.floor_divide, torch.tensor([1.0, -1.0, 6.0, 0.3]),
    torch.tensor([0.1, 0.1, -0.1, 0.1]), grad=False)
f.case("remainder", "core.remainder(x1, x2)", torch.remainder, torch.tensor([7, -7, 7, -7]),
    torch.tensor([3, 3, -3, -3]))
f.case("fmod", "core.fmod(x1, x2)", torch.fmod, torch.tensor([7, -7, 7, -7]), torch.tensor([3, 3, -3, -3]))
binary("atan2", number=0.7)
binary("logaddexp")
binary("xlogy", blo=0.3)
binary("hypot")
for name in ("neg abs sign square floor ceil round trunc frac sin cos tan atan sinh cosh asinh tanh sigmoid relu "
        "erf erfc exp expm1 exp2").split():
    unary(name, corners=name not in ("sinh", "cosh") or True)
unary("reciprocal", lo=0.5)
unary("erfinv", lo=-0.999, hi=0.999)
for name in "lgamma", "digamma":
    f.case(name, "core.%s(x1)" % name, getattr(torch, name),
        torch.tensor([-20.7, -3.5, -2.25, -0.3, 1e-5, 0.1, 0.5, 1.0, 1.5, 2.5, 7.75, 8.25, 12.0, 40.0, 1e6]))
    f.case(name, "core.%s(x1)" % name, getattr(torch, name), CORNERS, grad=False)
    f.case(name, "core.%s(x1)" % name, getattr(torch, name), torch.tensor([-0.0, -2.0, -2.5]), grad=False)
for name in "log log1p log2 log10 sqrt rsqrt".split(): unary(name, lo=0.2)
for name in "asin acos atanh".split(): unary(name, lo=-0.9, hi=0.9)
unary("acosh", lo=1.2, hi=4)
f.case("round", "x1:round()", torch.round, torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]), grad=False)
f.case("tanh", "x1:tanh()", torch.tanh, rand())
f.case("clamp", "x1:clamp { min = -0.5, max = 0.7 }", lambda x: x.clamp(-0.5, 0.7), rand(2, 4))
f.case("_clamp_tensor", "x1:clamp(x2, x3)", torch.clamp, rand(3, 4), rand(4, lo=-1, hi=1, seed=1),
    rand(3, 1, lo=-0.5, hi=2, seed=2))
f.case("_clamp_tensor", "x1:clamp { min = x2, max = 1 }", lambda x, lo: x.clamp(lo, torch.tensor(1.0)),
    torch.tensor([0.5, 1, 2, 0.9, -inf]), torch.tensor([0.5, 0.25, 0, 0, -3]))
f.case("_clamp_tensor", "(x1 * 1):clamp_(nil, x2)", lambda x, hi: x.clamp(max=hi), rand(2, 3), rand(3, seed=1))
f.case("_clamp_tensor", "x1:clamp { min = x2 }", lambda x, lo: x.clamp(min=lo), torch.tensor([1, 5, 3]),
    torch.tensor([2, 2, 2]))
f.case("clamp", "x1:clamp { max = 0.7 }", lambda x: x.clamp(max=0.7), torch.tensor([0.7, 0.6, 0.8, inf, -inf]))
f.case("clamp", "x1:clamp { min = 1 }", lambda x: x.clamp(min=1), torch.tensor([0, 1, 2]))
f.case("nan_to_num", "x1:nan_to_num()", torch.nan_to_num, CORNERS)
f.case("nan_to_num", "x1:nan_to_num(1, 2, 3)", lambda x: torch.nan_to_num(x, 1, 2, 3), CORNERS)
f.case("addcmul", "x1:addcmul(x2, x3, { value = 0.5 })", lambda x, a, b: torch.addcmul(x, a, b, value=0.5), rand(2, 3),
    rand(3, seed=1), rand(2, 1, seed=2))
f.case("addcmul", "x1:addcmul(x2, x3, 2)", lambda x, a, b: torch.addcmul(x, a, b, value=2), torch.arange(3),
    torch.arange(3), torch.arange(3))
f.case("addcdiv", "x1:addcdiv(x2, x3, { value = -0.5 })", lambda x, a, b: torch.addcdiv(x, a, b, value=-0.5),
    rand(2, 3), rand(3, seed=1), rand(2, 1, seed=2))
f.case("lerp", "x1:lerp(x2, x3)", torch.lerp, rand(2, 3), rand(2, 3, seed=1), rand(2, 3, lo=0, hi=1, seed=2))
f.case("lerp", "x1:lerp(x2, 0.3)", lambda x, y: torch.lerp(x, y, 0.3), rand(2, 3), rand(3, seed=1))

# activations
WIDE = rand(3, 5, lo=-7.0, hi=7.0)


def activation(name, expression, fn, tolerance=1e-9, infinite=True):
    f.case(name, expression, fn, WIDE, tolerance=tolerance)
    f.case(name, expression, fn, EMPTY)
    f.case(name, expression, fn, CORNERS[3:], tolerance=tolerance)
    if infinite: f.case(name, expression, fn, CORNERS[:3], grad=False)


activation("gelu", "F.gelu(x1)", F.gelu)
activation("gelu", 'F.gelu(x1, "tanh")', lambda x: F.gelu(x, approximate="tanh"))
activation("silu", "F.silu(x1)", F.silu)
activation("mish", "F.mish(x1)", F.mish)
activation("leaky_relu", "F.leaky_relu(x1)", F.leaky_relu)
activation("leaky_relu", "F.leaky_relu(x1, 0.2)", lambda x: F.leaky_relu(x, 0.2))
activation("elu", "F.elu(x1)", F.elu)
activation("elu", "F.elu(x1, { alpha = 0.7 })", lambda x: F.elu(x, 0.7))
activation("selu", "F.selu(x1)", F.selu)
activation("celu", "F.celu(x1, 1.7)", lambda x: F.celu(x, 1.7), tolerance=1e-7)  # PyTorch has 1 / 1.7 in float32
activation("softplus", "F.softplus(x1)", F.softplus)
activation("softplus", "F.softplus(x1, { beta = 2, threshold = 5 })", lambda x: F.softplus(x, 2, 5))
activation("logsigmoid", "F.logsigmoid(x1)", F.logsigmoid)
activation("hardtanh", "F.hardtanh(x1)", F.hardtanh)
activation("hardtanh", "F.hardtanh(x1, -2, 3)", lambda x: F.hardtanh(x, -2, 3))
activation("relu6", "F.relu6(x1)", F.relu6)
activation("hardsigmoid", "F.hardsigmoid(x1)", F.hardsigmoid, tolerance=1e-7)  # and 1 / 6
activation("hardswish", "F.hardswish(x1)", F.hardswish, infinite=False)  # -inf gives NaN there, 0 here
activation("softshrink", "F.softshrink(x1, 0.7)", lambda x: F.softshrink(x, 0.7))
activation("hardshrink", "F.hardshrink(x1)", F.hardshrink)
activation("threshold", "F.threshold(x1, 0.3, -1)", lambda x: F.threshold(x, 0.3, -1))
# integers keep their type; the numbers lose what is behind their point
WHOLE = torch.tensor([-9, -3, -2, -1, 0, 1, 3, 4, 6, 7])
for x in WHOLE, WHOLE.int(), WHOLE[4:].byte(), torch.zeros(0, 3, dtype=torch.int64):
    f.case("hardtanh", "F.hardtanh(x1)", F.hardtanh, x)
    f.case("hardtanh", "F.hardtanh(x1, -2.7, 3.9)", lambda x: F.hardtanh(x, -2.7, 3.9), x)
    f.case("relu6", "F.relu6(x1)", F.relu6, x)
    f.case("threshold", "F.threshold(x1, 5.5, 1.5)", lambda x: F.threshold(x, 5.5, 1.5), x)
f.case("threshold", "F.threshold(x1, -0.5, -3)", lambda x: F.threshold(x, -0.5, -3), WHOLE)
FLAGS = torch.tensor([True, False, True])
f.case("square", "x1:square()", torch.square, FLAGS)
f.case("clamp", "x1:clamp(0, 1)", lambda x: x.clamp(0, 1), FLAGS)
f.case("clamp", "x1:clamp { min = 1 }", lambda x: x.clamp(min=1), FLAGS)
activation("softsign", "F.softsign(x1)", F.softsign)
activation("tanhshrink", "F.tanhshrink(x1)", F.tanhshrink)
f.case("prelu", "F.prelu(x1, x2)", F.prelu, rand(2, 3, 2), rand(3, lo=0.1, hi=0.5, seed=1))
f.case("prelu", "F.prelu(x1, x2)", F.prelu, rand(4), torch.tensor([0.25]))
f.case("glu", "F.glu(x1)", F.glu, rand(2, 6))
f.case("glu", "F.glu(x1, 1)", lambda x: F.glu(x, 0), rand(4, 3))

# comparison, logic, bits, choice
for name in "eq ne lt le gt ge".split():
    f.case(name, "core.%s(x1, x2)" % name, getattr(torch, name), CORNERS.view(-1, 1),
        torch.tensor([0.0, 1.0, inf, nan]), grad=False)
    f.case(name, "core.%s(x1, 2)" % name, lambda x, name=name: getattr(torch, name)(x, 2), torch.tensor([1, 2, 3]))
for name in "logical_and logical_or logical_xor".split():
    f.case(name, "core.%s(x1, x2)" % name, getattr(torch, name), torch.tensor([0.0, 2.0, nan]).view(3, 1),
        torch.tensor([0, 1]), grad=False)
f.case("logical_not", "core.logical_not(x1)", torch.logical_not, torch.tensor([0.0, 2.0, nan]), grad=False)
for name in "isnan isinf isfinite".split(): f.case(name, "core.%s(x1)" % name, getattr(torch, name), CORNERS,
    grad=False)
for name in "bitwise_and bitwise_or bitwise_xor".split():
    f.case(name, "core.%s(x1, x2)" % name, getattr(torch, name), torch.tensor([12, -5, 7]).view(3, 1),
        torch.tensor([10, 3]))
    f.case(name, "core.%s(x1, x2)" % name, getattr(torch, name), torch.tensor([True, False]).view(2, 1),
        torch.tensor([True, False]))
f.case("bitwise_not", "x1:bitwise_not()", torch.bitwise_not, torch.tensor([12, -5, 0]))
f.case("bitwise_not", "x1:bitwise_not()", torch.bitwise_not, torch.tensor([True, False]))
f.case("bitwise_left_shift", "core.bitwise_left_shift(x1, x2)", torch.bitwise_left_shift, torch.tensor([1, -3, 5]),
    torch.tensor([4, 2, 0]))
f.case("bitwise_right_shift", "core.bitwise_right_shift(x1, x2)", torch.bitwise_right_shift, torch.tensor([64, -9, 5]),
    torch.tensor([4, 2, 0]))
f.case("where", "core.where(x1, x2, x3)", torch.where, torch.tensor([True, False, True]), rand(2, 3),
    rand(2, 1, seed=1))
f.case("where", "core.where(x1, x2, 0)", lambda c, x: torch.where(c, x, 0.0), torch.tensor([True, False, True]),
    rand(2, 3))
f.case("masked_fill", "x1:masked_fill(x2, -1)", lambda x, m: x.masked_fill(m, -1), rand(2, 3),
    torch.tensor([True, False, True]))
f.write()
