"""Convolutions."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)


def w(*shape): return rand(*shape, seed=1, lo=-1, hi=1)


f.case("conv1d", "F.conv1d(x1, x2, x3)", F.conv1d, rand(2, 3, 7), w(4, 3, 3), rand(4, seed=2))
f.case("conv1d", "F.conv1d(x1, x2, nil, { stride = 2, padding = 1, dilation = 2, groups = 2 })",
       lambda x, k: F.conv1d(x, k, None, 2, 1, 2, 2), rand(1, 4, 9), w(2, 2, 3))
f.case("conv1d", "x1:conv1d(x2, x3)", F.conv1d, rand(3, 5), w(2, 3, 2), rand(2, seed=2))
f.case("conv2d", "F.conv2d(x1, x2, x3)", F.conv2d, rand(2, 3, 5, 4), w(2, 3, 3, 2), rand(2, seed=2))
f.case("conv2d", "F.conv2d(x1, x2, x3, 1, 1)", lambda x, k, b: F.conv2d(x, k, b, 1, 1), rand(1, 2, 4, 5),
    w(3, 2, 3, 3), rand(3, seed=2))
f.case("conv2d", "F.conv2d(x1, x2, nil, { stride = {2, 1}, padding = {0, 2}, dilation = {1, 2} })",
       lambda x, k: F.conv2d(x, k, None, (2, 1), (0, 2), (1, 2)), rand(2, 2, 5, 5), w(3, 2, 3, 3))
f.case("conv2d", "F.conv2d(x1, x2, x3, { groups = 2, padding = 1 })", lambda x, k, b: F.conv2d(x, k, b, 1, 1, 1, 2),
    rand(2, 4, 4, 3), w(2, 2, 3, 3), rand(2, seed=2))
# depthwise
f.case("conv2d", "F.conv2d(x1, x2, nil, { groups = 3 })", lambda x, k: F.conv2d(x, k, None, groups=3),
    rand(1, 3, 4, 4), w(6, 1, 2, 2))
f.case("conv2d", "F.conv2d(x1, x2, x3)", F.conv2d, rand(3, 4, 4), w(2, 3, 1, 1), rand(2, seed=2))
f.case("conv2d", "F.conv2d(x1, x2, x3, { padding = \"same\" })", lambda x, k, b: F.conv2d(x, k, b, padding="same"),
    rand(1, 2, 4, 5), w(2, 2, 3, 2), rand(2, seed=2))
f.case("conv2d", "F.conv2d(x1, x2, x3)", F.conv2d, rand(0, 2, 4, 4), w(3, 2, 3, 3), rand(3, seed=2))
f.case("conv2d", "F.conv2d(x1:transpose(3, 4), x2:transpose(3, 4))",
    lambda x, k: F.conv2d(x.transpose(2, 3), k.transpose(2, 3)), rand(2, 2, 5, 3), w(2, 2, 3, 2))
for dtype, tolerance in ((torch.float32, 2e-5),):  # through oneDNN, and through Winograd's transforms where they apply
    f.case("conv2d", "F.conv2d(x1, x2, x3, 1, 1)", lambda x, k, b: F.conv2d(x, k, b, 1, 1), rand(1, 3, 5, 5).to(dtype),
        w(4, 3, 3, 3).to(dtype),
           rand(4, seed=2).to(dtype), tolerance=tolerance)
    f.case("conv2d", "F.conv2d(x1, x2, x3, 2)", lambda x, k, b: F.conv2d(x, k, b, 2), rand(2, 2, 6, 5).to(dtype),
        w(3, 2, 2, 2).to(dtype),
           rand(3, seed=2).to(dtype), tolerance=tolerance)
f.case("conv_transpose1d", "F.conv_transpose1d(x1, x2, x3, { stride = 2, padding = 1, output_padding = 1 })",
       lambda x, k, b: F.conv_transpose1d(x, k, b, 2, 1, 1), rand(2, 3, 4), w(3, 2, 3), rand(2, seed=2))
f.case("conv_transpose2d", "F.conv_transpose2d(x1, x2, x3)", F.conv_transpose2d, rand(2, 3, 3, 4), w(3, 2, 2, 3),
    rand(2, seed=2))
f.case("conv_transpose2d",
    "F.conv_transpose2d(x1, x2, nil, { stride = {2, 3}, padding = 1, output_padding = {1, 2}, groups = 2, "
    "dilation = {2, 1} })",
       lambda x, k: F.conv_transpose2d(x, k, None, (2, 3), 1, (1, 2), 2, (2, 1)), rand(1, 4, 3, 2), w(4, 2, 3, 3))
f.case("conv_transpose2d", "F.conv_transpose2d(x1, x2, x3, 2)", lambda x, k, b: F.conv_transpose2d(x, k, b, 2),
    rand(2, 3, 3), w(2, 3, 2, 2), rand(3, seed=2))
f.case("conv_transpose2d", "F.conv_transpose2d(x1, x2, x3, 2)", lambda x, k, b: F.conv_transpose2d(x, k, b, 2),
    rand(2, 2, 3, 3).float(), w(2, 3, 2, 2).float(),
       rand(3, seed=2).float(), tolerance=2e-5)
f.case("conv3d", "F.conv3d(x1, x2, x3)", F.conv3d, rand(2, 3, 4, 5, 4), w(2, 3, 3, 2, 2), rand(2, seed=2))
f.case("conv3d", "F.conv3d(x1, x2, nil, { stride = {2, 1, 2}, padding = {0, 2, 1}, dilation = {1, 2, 1}, groups = 2 })",
       lambda x, k: F.conv3d(x, k, None, (2, 1, 2), (0, 2, 1), (1, 2, 1), 2), rand(1, 4, 5, 4, 5), w(2, 2, 2, 3, 2))
f.case("conv3d", "F.conv3d(x1, x2, x3, { padding = \"same\" })", lambda x, k, b: F.conv3d(x, k, b, padding="same"),
    rand(2, 3, 4, 3), w(2, 2, 2, 3, 1), rand(2, seed=2))
f.case("conv3d", "F.conv3d(x1, x2, x3)", F.conv3d, rand(0, 2, 3, 3, 3), w(3, 2, 2, 2, 2), rand(3, seed=2))
f.case("conv3d", "F.conv3d(x1:transpose(3, 5), x2)", lambda x, k: F.conv3d(x.transpose(2, 4), k),
    rand(1, 2, 3, 4, 5), w(2, 2, 2, 2, 2))
f.case("conv3d", "F.conv3d(x1, x2, x3, 1, 1)", lambda x, k, b: F.conv3d(x, k, b, 1, 1), rand(2, 3, 3, 4, 5).float(),
    w(4, 3, 3, 3, 3).float(), rand(4, seed=2).float(), tolerance=2e-5)  # through oneDNN
f.case("conv3d", "F.conv3d(x1, x2, nil, { stride = 2, groups = 2 })", lambda x, k: F.conv3d(x, k, None, 2, groups=2),
    rand(1, 4, 5, 4, 5).float(), w(4, 2, 2, 3, 2).float(), tolerance=2e-5)
f.case("conv_transpose3d", "F.conv_transpose3d(x1, x2, x3)", F.conv_transpose3d, rand(2, 3, 2, 3, 2), w(3, 2, 2, 2, 3),
    rand(2, seed=2))
f.case("conv_transpose3d",
    "F.conv_transpose3d(x1, x2, nil, { stride = {2, 3, 1}, padding = 1, output_padding = {1, 2, 0}, groups = 2, "
    "dilation = {2, 1, 1} })",
       lambda x, k: F.conv_transpose3d(x, k, None, (2, 3, 1), 1, (1, 2, 0), 2, (2, 1, 1)), rand(1, 4, 3, 2, 3),
    w(4, 2, 2, 3, 3))
f.case("conv_transpose3d", "F.conv_transpose3d(x1, x2, x3, 2)", lambda x, k, b: F.conv_transpose3d(x, k, b, 2),
    rand(2, 2, 3, 2).float(), w(2, 3, 2, 2, 2).float(), rand(3, seed=2).float(), tolerance=2e-5)

# a stride below the dilation, and an output_padding that only the dilation allows
STRIDE, CUT, EXTRA, APART = [2, 1, 1], [0, 2, 1], [2, 2, 1], [3, 3, 2]
for n in 1, 2, 3:
    name, of = "conv_transpose%dd" % n, [v[:n] for v in (STRIDE, CUT, EXTRA, APART)]
    text = ["{ %s }" % ", ".join(map(str, v)) if n > 1 else str(v[0]) for v in of]
    f.case(name, "F.%s(x1, x2, x3, %s, %s, %s, 1, %s)" % (name, *text),
        lambda x, k, b: getattr(F, name)(x, k, b, *of[:3], 1, of[3]), rand(2, 3, *[4, 3, 5][:n]),
        w(3, 2, *[2, 3, 2][:n]), rand(2, seed=2))
f.case("conv_transpose1d", "F.conv_transpose1d(x1, x2, nil, { padding = 3, output_padding = 1, dilation = 2 })",
    lambda x, k: F.conv_transpose1d(x, k, None, 1, 3, 1, 1, 2), rand(1, 2, 4), w(2, 2, 3))


# integers
def whole(*shape, seed=0, dtype=torch.int64): return (rand(*shape, seed=seed) * 50).to(dtype)


f.case("conv1d", "F.conv1d(x1, x2, x3, { padding = 1 })", lambda x, k, b: F.conv1d(x, k, b, padding=1), whole(2, 3, 6),
    whole(2, 3, 3, seed=1), whole(2, seed=2))
for dtype in torch.int64, torch.int32:
    f.case("conv2d", "F.conv2d(x1, x2, nil, { stride = 2, groups = 2 })",
        lambda x, k: F.conv2d(x, k, None, 2, groups=2), whole(4, 5, 4, dtype=dtype),
        whole(2, 2, 2, 3, seed=1, dtype=dtype))
f.case("conv3d", "F.conv3d(x1, x2)", F.conv3d, whole(1, 2, 3, 4, 3), whole(2, 2, 2, 2, 2, seed=1))
f.case("conv_transpose2d", "F.conv_transpose2d(x1, x2, x3, 2)", lambda x, k, b: F.conv_transpose2d(x, k, b, 2),
    whole(2, 3, 3, 4), whole(3, 2, 2, 3, seed=1), whole(2, seed=2))
f.write()
