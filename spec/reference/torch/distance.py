"""Functions of nn.functional that are made of rows: norms, distances, bilinear forms."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
f.case("normalize", "F.normalize(x1)", F.normalize, rand(3, 4))
f.case("normalize", "F.normalize(x1, { p = 1, dim = -1, eps = 3 })", lambda x: F.normalize(x, p=1, dim=-1, eps=3),
    rand(2, 3, 4))
f.case("cosine_similarity", "F.cosine_similarity(x1, x2)", F.cosine_similarity, rand(3, 4), rand(3, 4, seed=1))
f.case("cosine_similarity", "F.cosine_similarity(x1, x2, { dim = -1, eps = 0.5 })",
    lambda a, b: F.cosine_similarity(a, b, dim=-1, eps=0.5), rand(3, 1, 4), rand(2, 4, seed=1))
f.case("pairwise_distance", "F.pairwise_distance(x1, x2)", F.pairwise_distance, rand(3, 4), rand(3, 4, seed=1))
f.case("pairwise_distance", "F.pairwise_distance(x1, x2, { p = 1, keepdim = true })",
    lambda a, b: F.pairwise_distance(a, b, p=1, keepdim=True), rand(3, 4), rand(4, seed=1))
f.case("bilinear", "F.bilinear(x1, x2, x3, x4)", F.bilinear, rand(2, 3, 4), rand(2, 3, 5, seed=1),
    rand(2, 4, 5, seed=2), rand(2, seed=3))
f.case("bilinear", "F.bilinear(x1, x2, x3)", F.bilinear, rand(4), rand(5, seed=1), rand(3, 4, 5, seed=2))
f.case("softmin", "F.softmin(x1, -1)", lambda x: F.softmin(x, dim=-1), rand(3, 4))
f.case("cdist", "tensor.cdist(x1, x2)", torch.cdist, rand(3, 4), rand(2, 4, seed=1))
f.case("cdist", "F.cdist(x1, x1)", lambda a: torch.cdist(a, a), rand(3, 2))
f.case("cdist", "F.cdist(x1, x2, { p = 1 })", lambda a, b: torch.cdist(a, b, p=1), rand(2, 3, 4), rand(5, 4, seed=1))
f.case("cdist", "F.cdist(x1, x2, { p = 3 })", lambda a, b: torch.cdist(a, b, p=3), rand(3, 4), rand(2, 4, seed=1))
f.case("cdist", "F.cdist(x1, x2, { p = math.huge })", lambda a, b: torch.cdist(a, b, p=float("inf")), rand(3, 4),
    rand(2, 4, seed=1))
ties = torch.tensor([[1, 2, 0, 1], [0, 1, 0.5, 0]]), torch.tensor([[0, 1, 0.5, 0], [1, 2, 3, 1]])
f.case("cdist", "F.cdist(x1, x2, math.huge, 'use_mm_for_euclid_dist')",
    lambda a, b: torch.cdist(a, b, p=float("inf"), compute_mode="use_mm_for_euclid_dist"), *ties)
f.case("pdist", "F.pdist(x1, math.huge)", lambda x: F.pdist(x, float("inf")), torch.cat(ties))
f.case("instance_norm", "F.instance_norm(x1, nil, nil, x2, x3)", lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    rand(2, 3, 4), rand(3, seed=1), rand(3, seed=2))
f.case("instance_norm", "F.instance_norm(x1, x2, x3, nil, nil, false)",
    lambda x, m, v: F.instance_norm(x, m.detach(), v.detach(), use_input_stats=False),
       rand(2, 3, 4, 2), rand(3, seed=1), rand(3, lo=0.5, seed=2), grad=False)


def tracked(x):
    m = torch.nn.InstanceNorm2d(3, momentum=0.3, affine=True, track_running_stats=True)
    y = m(x)
    return y, m.running_mean, m.running_var, m.eval()(x)


f.case("instance_norm",
    "(function() local m = nn.InstanceNorm2d(3, { momentum = 0.3, affine = true, track_running_stats = true, "
    "dtype = 'float64' }) "
       "local y = m(x1) return y, m.running_mean, m.running_var, m:eval()(x1) end)()", tracked, rand(2, 3, 4, 2))
f.case("instance_norm", "nn.InstanceNorm1d(3)(x1)", lambda x: torch.nn.InstanceNorm1d(3)(x), rand(3, 5))
f.case("pdist", "F.pdist(x1)", F.pdist, rand(4, 3))
f.case("pdist", "F.pdist(x1, 1)", lambda x: F.pdist(x, 1), rand(3, 4))
f.case("local_response_norm", "F.local_response_norm(x1, 3)", lambda x: F.local_response_norm(x, 3), rand(2, 5, 4))
f.case("local_response_norm", "F.local_response_norm(x1, 2, { alpha = 0.5, beta = 1.5, k = 2 })",
    lambda x: F.local_response_norm(x, 2, 0.5, 1.5, 2.0), rand(2, 3, 2, 3))
f.case("channel_shuffle", "F.channel_shuffle(x1, 2)", torch.nn.ChannelShuffle(2), rand(1, 6, 2, 2))
f.case("rrelu", "F.rrelu(x1, 0.1, 0.3)", lambda x: F.rrelu(x, 0.1, 0.3), rand(3, 4))
f.write()
