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
f.write()
