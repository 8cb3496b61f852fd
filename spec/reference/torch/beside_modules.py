"""Functions that nn.functional has beside the modules, and modules that are written of rows."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
case = f.case
x34, image, volume = rand(3, 4), rand(2, 3, 7, 6), rand(2, 2, 5, 6, 7)
for name, lua, args in (
        ("relu_", "", ()), ("elu_", ", 0.7", (0.7,)), ("celu_", ", 0.7", (0.7,)), ("selu_", "", ()),
        ("hardtanh_", ", -0.5, 1.5", (-0.5, 1.5)), ("leaky_relu_", ", 0.2", (0.2,)),
        ("threshold_", ", 0.5, 3", (0.5, 3)),
        ("rrelu_", "", ())):
    case("F." + name, "F.%s(x1 * 1%s)" % (name, lua), lambda x: getattr(F, name)(x * 1, *args), x34,
        tolerance=1e-7 if name == "celu_" else 1e-9)  # celu_'s alpha is a float32 in PyTorch

sample2, sample3 = rand(2, 3, 2, lo=0, hi=1), rand(2, 2, 3, lo=0, hi=1, seed=4)
for lua, size, kernel in (("{ 3, 2 }", (3, 2), (2, 3)), ("{ 6, 1 }", (6, 1), (2, 3)), ("{ 4, 4 }", (4, 4), (3, 2))):
    window = "{ %d, %d }" % kernel
    case("F.fractional_max_pool2d",
        "F.fractional_max_pool2d(x1, %s, { output_size = %s, return_indices = true, "
        "_random_samples = x2 })" % (window, lua),
        lambda x, u: F.fractional_max_pool2d(x, kernel, size, return_indices=True, _random_samples=u.detach()),
        image, sample2)
case("F.fractional_max_pool2d", "F.fractional_max_pool2d(x1, 2, { output_ratio = { 0.5, 0.7 }, _random_samples = x2 })",
    lambda x, u: F.fractional_max_pool2d(x, 2, output_ratio=(0.5, 0.7), _random_samples=u.detach()), image, sample2)
case("F.fractional_max_pool2d", "F.fractional_max_pool2d(x1, 2, { output_size = 3, _random_samples = x2 })",
    lambda x, u: F.fractional_max_pool2d(x, 2, 3, _random_samples=u.detach()), image[0], sample2[:1])
case("F.fractional_max_pool3d",
    "F.fractional_max_pool3d_with_indices(x1, { 2, 3, 2 }, { output_size = { 3, 2, 4 }, _random_samples = x2 })",
    lambda x, u: F.fractional_max_pool3d(x, (2, 3, 2), (3, 2, 4), return_indices=True, _random_samples=u.detach()),
    volume, sample3)
case("F.fractional_max_pool3d", "nn.FractionalMaxPool3d(2, { output_ratio = 0.5, _random_samples = x2.data })(x1)",
    lambda x, u: torch.nn.FractionalMaxPool3d(2, output_ratio=0.5, _random_samples=u.detach())(x), volume, sample3)

case("F.conv_tbc", "F.conv_tbc(x1, x2, x3, 1)", lambda x, w, b: F.conv_tbc(x, w, b, 1), rand(5, 2, 3), rand(3, 3, 4),
    rand(4))
case("F.upsample_nearest", "F.upsample_nearest(x1, { size = { 9, 4 } })", lambda x: F.upsample_nearest(x, (9, 4)),
    image)
case("F.upsample_bilinear", "F.upsample_bilinear(x1, { scale_factor = 2 })",
    lambda x: F.upsample_bilinear(x, scale_factor=2), image)

target = torch.tensor([1, 4, 0])
case("F.linear_cross_entropy", "F.linear_cross_entropy(x1, x2, x3)", F.linear_cross_entropy, x34, rand(5, 4), target)
case("F.linear_cross_entropy", "F.linear_cross_entropy(x1, x2, x3, { linear_bias = x4, label_smoothing = 0.1, "
    "reduction = 'sum', weight = x5.data, ignore_index = 4 })",
    lambda x, w, t, b, c: F.linear_cross_entropy(
        x, w, t, linear_bias=b, label_smoothing=0.1, reduction="sum", weight=c.detach(), ignore_index=4),
    x34, rand(5, 4), target, rand(5), rand(5, lo=0.5, seed=3))
case("F.linear_cross_entropy", "F.linear_cross_entropy(x1, x2, x3, { linear_bias = x4, reduction = 'none' })",
    lambda x, w, t, b: F.linear_cross_entropy(x, w, t, linear_bias=b, reduction="none"), x34, rand(5, 2, 4),
    torch.tensor([[1, 4], [0, 2], [3, 3]]), rand(5, 2))
case("F.linear_cross_entropy", "F.linear_cross_entropy(x1, x2, x3)", F.linear_cross_entropy, rand(4), rand(5, 4),
    torch.tensor(2))


def adaptive(x, t, head, bias, *tail):
    m = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 10, [3, 6], div_value=2, head_bias=True)
    names = ["head.weight", "head.bias", "tail.0.0.weight", "tail.0.1.weight", "tail.1.0.weight", "tail.1.1.weight"]
    return lambda fn: torch.func.functional_call(m, dict(zip(names, (head, bias) + tail)), fn(x, t))


LUA = """(function() local m = nn.AdaptiveLogSoftmaxWithLoss(8, 10, { 3, 6 }, { div_value = 2, head_bias = true,
  dtype = "float64" }) local function all(...) return func.functional_call(m, {
  ["head.weight"] = x3, ["head.bias"] = x4, ["tail.0.0.weight"] = x5,
  ["tail.0.1.weight"] = x6, ["tail.1.0.weight"] = x7, ["tail.1.1.weight"] = x8 }, ...) end
  return all(%s) end)()"""
weights = rand(5, 8), rand(5), rand(4, 8), rand(3, 4), rand(2, 8), rand(4, 2)
classes = torch.tensor([0, 9, 3, 2, 5, 7])
case("nn.AdaptiveLogSoftmaxWithLoss", LUA % "x1, x2", lambda *a: tuple(adaptive(*a)(lambda x, t: (x, t))), rand(6, 8),
    classes, *weights)
case("nn.AdaptiveLogSoftmaxWithLoss", LUA % "x1, x2", lambda *a: tuple(adaptive(*a)(lambda x, t: (x, t))), rand(8),
    torch.tensor(4), *weights)


def attention(q, k, v, w, b, o, c, mask):
    return F.multi_head_attention_forward(
        q, k, v, 4, 2, w, b, None, None, False, 0.0, o, c, training=True, key_padding_mask=None, need_weights=True,
        attn_mask=mask)


case("F.multi_head_attention_forward", "F.multi_head_attention_forward(x1, x2, x3, 4, 2, { in_proj_weight = x4, "
    "in_proj_bias = x5, out_proj_weight = x6, out_proj_bias = x7, attn_mask = x8.data })",
    lambda *a: attention(*a[:7], a[7].detach()), rand(3, 2, 4), rand(5, 2, 4), rand(5, 2, 4, seed=2), rand(12, 4),
    rand(12), rand(4, 4), rand(4), rand(3, 5))
f.write()
