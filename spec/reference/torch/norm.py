"""Normalisation."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
f.case("layer_norm", "core.layer_norm(x1, {5}, x2, x3)", lambda x, w, b: F.layer_norm(x, (5,), w, b), rand(2, 3, 5),
    rand(5, seed=1), rand(5, seed=2))
f.case("layer_norm", "F.layer_norm(x1, {3, 4}, { weight = x2, eps = 0.1 })",
    lambda x, w: F.layer_norm(x, (3, 4), w, None, 0.1), rand(2, 3, 4), rand(3, 4, seed=1))
f.case("layer_norm", "core.layer_norm(x1, {70})", lambda x: F.layer_norm(x, (70,)), rand(2, 70))
f.case("layer_norm", "core.layer_norm(x1, {4})", lambda x: F.layer_norm(x, (4,)), rand(0, 4))
f.case("layer_norm", "core.layer_norm(x1:transpose(1, 3), {2}, x2, x3)",
    lambda x, w, b: F.layer_norm(x.transpose(0, 2), (2,), w, b),
       rand(2, 3, 4), rand(2, seed=1), rand(2, seed=2))
f.case("layer_norm", "core.layer_norm(x1, {130}, x2, x3)", lambda x, w, b: F.layer_norm(x, (130,), w, b),
    rand(2, 130).float(), rand(130, seed=1).float(),
       rand(130, seed=2).float(), tolerance=2e-5)
f.case("rms_norm", "core.rms_norm(x1, {5}, x2)", lambda x, w: F.rms_norm(x, (5,), w), rand(2, 3, 5), rand(5, seed=1))
f.case("rms_norm", "F.rms_norm(x1, {3, 4}, { eps = 0.2 })", lambda x: F.rms_norm(x, (3, 4), None, 0.2), rand(2, 3, 4))
f.case("rms_norm", "core.rms_norm(x1 * 1e-4, {70})", lambda x: F.rms_norm(x * 1e-4, (70,)), rand(2, 70).float(),
    tolerance=2e-5)
f.case("group_norm", "core.group_norm(x1, 2, x2, x3)", lambda x, w, b: F.group_norm(x, 2, w, b), rand(2, 4, 3, 2),
    rand(4, seed=1), rand(4, seed=2))
f.case("group_norm", "F.group_norm(x1, 1, { bias = x2, eps = 0.1 })", lambda x, b: F.group_norm(x, 1, None, b, 0.1),
    rand(3, 2), rand(2, seed=2))
f.case("group_norm", "core.group_norm(x1, 3)", lambda x: F.group_norm(x, 3), rand(1, 3, 66))
f.case("group_norm", "core.group_norm(x1, 3, x2)", lambda x, w: F.group_norm(x, 3, w), rand(2, 3, 5).float(),
    rand(3, seed=1).float(), tolerance=2e-5)
f.write()
