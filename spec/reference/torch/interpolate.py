"""Resampling."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
for size in ((5, 7), (2, 2), (3, 4)):
    lua = "{%d, %d}" % size
    f.case("interpolate", "F.interpolate(x1, { size = %s })" % lua, lambda x: F.interpolate(x, size), rand(2, 2, 3, 4))
    f.case("interpolate", "F.interpolate(x1, { size = %s, mode = \"bilinear\" })" % lua,
        lambda x: F.interpolate(x, size, mode="bilinear"), rand(2, 2, 3, 4))
    f.case("interpolate", "F.interpolate(x1, { size = %s, mode = \"bilinear\", align_corners = true })" % lua,
           lambda x: F.interpolate(x, size, mode="bilinear", align_corners=True), rand(2, 2, 3, 4))
f.case("interpolate", "F.interpolate(x1, { scale_factor = 2 })", lambda x: F.interpolate(x, scale_factor=2),
    rand(1, 2, 3, 2))
f.case("interpolate", "F.interpolate(x1, { scale_factor = {1.7, 0.6}, mode = \"bilinear\" })",
       lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"), rand(1, 2, 4, 5))
f.case("interpolate", "F.interpolate(x1, { size = 7, mode = \"linear\" })",
    lambda x: F.interpolate(x, 7, mode="linear"), rand(2, 3, 4))
f.case("interpolate", "F.interpolate(x1, { scale_factor = 2 })", lambda x: F.interpolate(x, scale_factor=2),
    rand(2, 3, 4))
f.case("interpolate", "F.interpolate(x1, { scale_factor = 2, mode = \"bilinear\" })",
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
       rand(1, 17, 3, 2).float(), tolerance=1e-5)
f.case("pixel_shuffle", "F.pixel_shuffle(x1, 2)", lambda x: F.pixel_shuffle(x, 2), rand(2, 8, 2, 3))
f.case("pixel_unshuffle", "F.pixel_unshuffle(x1, 2)", lambda x: F.pixel_unshuffle(x, 2), rand(3, 4, 6))
# ---- other modes and dims
image, volume = rand(2, 2, 4, 5), rand(1, 2, 3, 4, 5)
for size in ((7, 3), (2, 9)):
    lua = "{%d, %d}" % size
    for mode in "bicubic", "nearest-exact", "area":
        f.case("interpolate", "F.interpolate(x1, { size = %s, mode = \"%s\" })" % (lua, mode),
            lambda x: F.interpolate(x, size, mode=mode), image)
    f.case("interpolate", "F.interpolate(x1, { size = %s, mode = \"bicubic\", align_corners = true })" % lua,
        lambda x: F.interpolate(x, size, mode="bicubic", align_corners=True), image)
    for mode in "bilinear", "bicubic":
        f.case("interpolate", "F.interpolate(x1, { size = %s, mode = \"%s\", antialias = true })" % (lua, mode),
            lambda x: F.interpolate(x, size, mode=mode, antialias=True), image)
f.case("interpolate",
    "F.interpolate(x1, { size = {3, 4}, mode = \"bilinear\", antialias = true, align_corners = true })",
    lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True, align_corners=True), rand(1, 1, 9, 8))
f.case("interpolate", "F.interpolate(x1, { scale_factor = {0.3, 1.6}, mode = \"bicubic\", antialias = true })",
    lambda x: F.interpolate(x, scale_factor=(0.3, 1.6), mode="bicubic", antialias=True), rand(1, 1, 9, 5))
f.case("interpolate", "F.interpolate(x1, { scale_factor = {1.7, 0.6}, mode = \"bicubic\" })",
    lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bicubic"), image)
f.case("interpolate",
    "F.interpolate(x1, { scale_factor = {1.7, 0.6}, mode = \"bilinear\", recompute_scale_factor = true })",
    lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear", recompute_scale_factor=True), image)
for size in ((5, 3, 2), (2, 4, 7)):
    lua = "{%d, %d, %d}" % size
    for mode in "nearest", "nearest-exact", "area", "trilinear":
        f.case("interpolate", "F.interpolate(x1, { size = %s, mode = \"%s\" })" % (lua, mode),
            lambda x: F.interpolate(x, size, mode=mode), volume)
    f.case("interpolate", "F.interpolate(x1, { size = %s, mode = \"trilinear\", align_corners = true })" % lua,
        lambda x: F.interpolate(x, size, mode="trilinear", align_corners=True), volume)
f.case("interpolate", "F.interpolate(x1, { scale_factor = 1.5, mode = \"trilinear\" })",
    lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear"), volume)
f.case("interpolate", "F.interpolate(x1, { size = 5, mode = \"nearest-exact\" })",
    lambda x: F.interpolate(x, 5, mode="nearest-exact"), rand(2, 3, 4))
# ---- positions
for dims, size in ((2, (2, 1, 3, 4)), (2, (1, 1, 1, 2)), (3, (2, 1, 2, 3, 2))):
    lua = "{%s}" % ", ".join(map(str, size))
    for align in False, True:
        f.case("affine_grid", "F.affine_grid(x1, %s, %s)" % (lua, str(align).lower()),
            lambda t: F.affine_grid(t, size, align_corners=align), rand(size[0], dims, dims + 1))
modes = [(m, p, a) for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection")
    for a in (False, True)]
for mode, padding, align in modes:
    options = "{ mode = \"%s\", padding_mode = \"%s\", align_corners = %s }" % (mode, padding, str(align).lower())
    f.case("grid_sample", "F.grid_sample(x1, x2, %s)" % options,
        lambda x, g: F.grid_sample(x, g, mode, padding, align), rand(2, 2, 4, 5), rand(2, 3, 4, 2, lo=-1.6, hi=1.6))
    f.case("grid_sample", "F.grid_sample(x1, x2, %s)" % options,
        lambda x, g: F.grid_sample(x, g, mode, padding, align), rand(1, 2, 3, 4, 2),
        rand(1, 2, 2, 3, 3, lo=-1.6, hi=1.6))
f.case("grid_sample", "F.grid_sample(x1, x2)", lambda x, g: F.grid_sample(x, g, align_corners=False), rand(1, 17, 4,
    4).float(),
    rand(1, 3, 3, 2).float(), tolerance=2e-5)
f.case("grid_sample", "F.grid_sample(x1, x2)", lambda x, g: F.grid_sample(x, g, align_corners=False), rand(1, 2, 4, 4),
    torch.tensor([[[[1e30, -0.25], [-1e30, 0.5], [0.25, 1e30]]]]), grad=False)
# ---- windows
for lua, args in (("2", dict(kernel_size=2)), ("{2, 3}, { stride = {2, 1}, padding = {1, 2}, dilation = {1, 2} }",
        dict(kernel_size=(2, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2)))):
    f.case("unfold", "F.unfold(x1, %s)" % lua, lambda x: F.unfold(x, **args), rand(2, 2, 4, 6))
    f.case("unfold", "F.unfold(x1, %s)" % lua, lambda x: F.unfold(x, **args), rand(2, 4, 5))
    y = F.unfold(rand(2, 2, 4, 6), **args)
    f.case("fold", "F.fold(x1, {4, 6}, %s)" % lua, lambda x: F.fold(x, (4, 6), **args), y)
    f.case("fold", "F.fold(x1, {4, 6}, %s)" % lua, lambda x: F.fold(x, (4, 6), **args), y[0])
# ---- the rows that unfold and fold call
odd = dict(kernel_size=(2, 3), dilation=(1, 2), padding=(1, 2), stride=(2, 1))
lua = "{2, 3}, {1, 2}, {1, 2}, {2, 1}"
image = rand(2, 2, 4, 6)
f.case("im2col", "x1:im2col(%s)" % lua, lambda x: torch.ops.aten.im2col(x, *odd.values()), image)
f.case("col2im", "x1:col2im({4, 6}, %s)" % lua, lambda x: torch.ops.aten.col2im(x, (4, 6), *odd.values()),
    F.unfold(image, **odd))
f.write()
