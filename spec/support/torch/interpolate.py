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
f.write()
