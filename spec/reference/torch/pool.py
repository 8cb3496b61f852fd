"""Pooling."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
f.case("max_pool1d", "F.max_pool1d(x1, 2)", lambda x: F.max_pool1d(x, 2), rand(2, 3, 7))
f.case("max_pool1d", "F.max_pool1d(x1, 3, { stride = 1, padding = 1, dilation = 2 })",
    lambda x: F.max_pool1d(x, 3, 1, 1, 2), rand(2, 8))
f.case("max_pool2d", "F.max_pool2d(x1, 2)", lambda x: F.max_pool2d(x, 2), rand(2, 3, 5, 4))
f.case("max_pool2d", "F.max_pool2d(x1, 3, 2, 1)", lambda x: F.max_pool2d(x, 3, 2, 1), rand(1, 2, 6, 5))
f.case("max_pool2d",
    "F.max_pool2d(x1, {2, 3}, { stride = {2, 1}, padding = {1, 0}, dilation = {2, 1}, ceil_mode = true })",
       lambda x: F.max_pool2d(x, (2, 3), (2, 1), (1, 0), (2, 1), True), rand(2, 2, 6, 5))
f.case("max_pool2d", "F.max_pool2d(x1, 3, { stride = 2, ceil_mode = true })",
    lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), rand(3, 6, 6))
f.case("max_pool2d", "F.max_pool2d(x1, 2, { stride = 1 })", lambda x: F.max_pool2d(x, 2, 1), rand(2, 17, 3, 3).float(),
    tolerance=1e-6)
f.case("max_pool2d", "F.max_pool2d(x1, 2)", lambda x: F.max_pool2d(x, 2),
    torch.tensor([[[[1.0, float("nan")], [2.0, 3.0]]]]))
f.case("max_pool2d", "F.max_pool2d(x1, 2)", lambda x: F.max_pool2d(x, 2), torch.ones(1, 1, 2, 4))  # ties: the first one
f.case("max_pool2d", "F.max_pool2d(x1, 2)", lambda x: F.max_pool2d(x, 2), rand(0, 2, 4, 4))
f.case("avg_pool1d", "F.avg_pool1d(x1, 3, { stride = 2, padding = 1 })", lambda x: F.avg_pool1d(x, 3, 2, 1),
    rand(2, 3, 8))
f.case("avg_pool1d", "F.avg_pool1d(x1, 3, { padding = 1, ceil_mode = true, count_include_pad = false })",
       lambda x: F.avg_pool1d(x, 3, None, 1, True, False), rand(2, 7))
f.case("avg_pool2d", "F.avg_pool2d(x1, 2)", lambda x: F.avg_pool2d(x, 2), rand(2, 3, 5, 4))
f.case("avg_pool2d", "F.avg_pool2d(x1, 3, 2, 1)", lambda x: F.avg_pool2d(x, 3, 2, 1), rand(1, 2, 6, 5))
f.case("avg_pool2d",
    "F.avg_pool2d(x1, {3, 2}, { stride = {2, 1}, padding = {1, 0}, ceil_mode = true, count_include_pad = false })",
       lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), True, False), rand(2, 2, 6, 5))
f.case("avg_pool2d", "F.avg_pool2d(x1, 3, { stride = 2, padding = 1, ceil_mode = true })",
    lambda x: F.avg_pool2d(x, 3, 2, 1, True), rand(2, 6, 6))
f.case("avg_pool2d", "F.avg_pool2d(x1, 2, { divisor_override = 3 })", lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    rand(1, 17, 4, 4).float(), tolerance=1e-6)
f.case("adaptive_avg_pool1d", "F.adaptive_avg_pool1d(x1, 3)", lambda x: F.adaptive_avg_pool1d(x, 3), rand(2, 3, 7))
f.case("adaptive_avg_pool2d", "F.adaptive_avg_pool2d(x1, 1)", lambda x: F.adaptive_avg_pool2d(x, 1), rand(2, 3, 4, 5))
f.case("adaptive_avg_pool2d", "F.adaptive_avg_pool2d(x1, {3, 2})", lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    rand(2, 2, 5, 5))
f.case("adaptive_avg_pool2d", "F.adaptive_avg_pool2d(x1, {5, 3})", lambda x: F.adaptive_avg_pool2d(x, (5, 3)),
    rand(2, 3, 4))
f.case("adaptive_max_pool1d", "F.adaptive_max_pool1d(x1, 3)", lambda x: F.adaptive_max_pool1d(x, 3), rand(2, 3, 7))
f.case("adaptive_max_pool2d", "F.adaptive_max_pool2d(x1, {3, 2})", lambda x: F.adaptive_max_pool2d(x, (3, 2)),
    rand(2, 2, 5, 5))
# ---- places of maxima
for name, shape, lua, args in (
        ("max_pool1d", (2, 3, 7), "2", (2,)), ("max_pool1d", (2, 8), "3, 2, 1, 1, true", (3, 2, 1, 1, True)),
        ("max_pool2d", (2, 2, 5, 4), "2", (2,)), ("max_pool2d", (3, 6, 5), "{3, 2}, 2, {1, 0}", ((3, 2), 2, (1, 0)))):
    fn = getattr(F, name)
    f.case(name, "F.%s(x1, %s)" % (name + "_with_indices", lua), lambda x: fn(x, *args, return_indices=True),
        rand(*shape))
    f.case(name + "_with_indices", "F.%s(x1, %s)" % (name + "_with_indices", lua),
        lambda x: fn(x, *args, return_indices=True), rand(*shape))
f.case("max_pool2d", "F.max_pool2d(x1, 2, { return_indices = true })",
    lambda x: F.max_pool2d(x, 2, return_indices=True), rand(1, 2, 4, 4))
f.case("max_pool2d_with_indices", "F.max_pool2d_with_indices(x1, 2)",
    lambda x: F.max_pool2d(x, 2, return_indices=True), torch.ones(1, 1, 2, 4))
for dims, shape, size, lua in ((1, (2, 3, 7), 3, "3"), (2, (2, 2, 5, 7), (3, 2), "{3, 2}")):
    name = "adaptive_max_pool%dd" % dims
    f.case(name + "_with_indices", "F.%s(x1, { output_size = %s, return_indices = true })" % (name, lua),
        lambda x: getattr(F, name)(x, size, return_indices=True), rand(*shape))
# ---- volumes
volume = rand(2, 2, 4, 5, 6)
for lua, args in (("2", dict(kernel_size=2)), ("3, 2, 1", dict(kernel_size=3, stride=2, padding=1)),
        ("{2, 3, 1}, { stride = {2, 1, 2}, padding = {1, 1, 0}, dilation = {2, 1, 1}, ceil_mode = true }",
         dict(kernel_size=(2, 3, 1), stride=(2, 1, 2), padding=(1, 1, 0), dilation=(2, 1, 1), ceil_mode=True))):
    f.case("max_pool3d", "F.max_pool3d(x1, %s)" % lua, lambda x: F.max_pool3d(x, **args), volume)
    f.case("max_pool3d", "F.max_pool3d_with_indices(x1, %s)" % lua,
        lambda x: F.max_pool3d(x, return_indices=True, **args), volume)
f.case("max_pool3d", "F.max_pool3d_with_indices(x1, 2)", lambda x: F.max_pool3d(x, 2, return_indices=True),
    torch.ones(1, 2, 2, 4))
f.case("max_pool3d", "F.max_pool3d(x1:transpose(2, 5), 2)", lambda x: F.max_pool3d(x.transpose(1, 4), 2), volume)
for lua, args in (("2", dict(kernel_size=2)), ("3, 2, 1", dict(kernel_size=3, stride=2, padding=1)),
        ("{3, 2, 2}, { padding = {1, 0, 1}, ceil_mode = true, count_include_pad = false }",
         dict(kernel_size=(3, 2, 2), padding=(1, 0, 1), ceil_mode=True, count_include_pad=False)),
        ("3, { stride = 2, padding = 1, ceil_mode = true }", dict(kernel_size=3, stride=2, padding=1, ceil_mode=True)),
        ("2, { divisor_override = 3 }", dict(kernel_size=2, divisor_override=3))):
    f.case("avg_pool3d", "F.avg_pool3d(x1, %s)" % lua, lambda x: F.avg_pool3d(x, **args), volume)
f.case("avg_pool3d", "F.avg_pool3d(x1, 2)", lambda x: F.avg_pool3d(x, 2), rand(0, 2, 2, 2, 2))
for lua, size in (("1", 1), ("{3, 2, 4}", (3, 2, 4))):
    f.case("adaptive_avg_pool3d", "F.adaptive_avg_pool3d(x1, %s)" % lua, lambda x: F.adaptive_avg_pool3d(x, size),
        volume)
    f.case("adaptive_max_pool3d", "F.adaptive_max_pool3d_with_indices(x1, %s)" % lua,
        lambda x: F.adaptive_max_pool3d(x, size, return_indices=True), volume)
# ---- unpooling: x2 gives the maxima's places
for dims, shape, lua, args in (
        (1, (2, 2, 7), "2", dict(kernel_size=2)), (1, (2, 9), "3, 2, 1", dict(kernel_size=3, stride=2, padding=1)),
        (2, (1, 2, 4, 6), "2", dict(kernel_size=2)), (3, (1, 2, 2, 4, 2), "2", dict(kernel_size=2))):
    pool, unpool = getattr(F, "max_pool%dd" % dims), getattr(F, "max_unpool%dd" % dims)
    y, at = pool(rand(*shape), return_indices=True, **args)
    f.case("max_unpool%dd" % dims, "F.max_unpool%dd(x1, x2, %s)" % (dims, lua), lambda x, i: unpool(x, i, **args),
        y, at)
y, at = F.max_pool2d(rand(1, 2, 5, 5), 2, return_indices=True)
f.case("max_unpool2d", "F.max_unpool2d(x1, x2, 2, { output_size = {5, 5} })",
    lambda x, i: F.max_unpool2d(x, i, 2, output_size=(5, 5)), y, at)
for dims, shape in ((1, (2, 3, 7)), (2, (2, 2, 5, 4)), (3, (1, 2, 4, 3, 4))):
    fn = getattr(F, "lp_pool%dd" % dims)
    f.case("lp_pool%dd" % dims, "F.lp_pool%dd(x1, 2, 2)" % dims, lambda x: fn(x, 2, 2), rand(*shape))
    f.case("lp_pool%dd" % dims, "F.lp_pool%dd(x1, 3, 3, { stride = 1, ceil_mode = true })" % dims,
        lambda x: fn(x, 3, 3, 1, True), rand(*shape, lo=0.5))
# integers
WHOLE = (rand(2, 3, 5, 6) * 50).long()
for x in WHOLE, WHOLE.int(), WHOLE.abs().byte():
    f.case("max_pool2d", "F.max_pool2d(x1, 3, 2, 1, { ceil_mode = true })",
        lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), x)
f.case("max_pool2d", "F.max_pool2d(x1, 2, { return_indices = true })",
    lambda x: F.max_pool2d(x, 2, return_indices=True), WHOLE)
f.case("max_pool3d", "F.max_pool3d(x1, 2, { stride = 1, return_indices = true })",
    lambda x: F.max_pool3d(x, 2, 1, return_indices=True), WHOLE)
f.write()
