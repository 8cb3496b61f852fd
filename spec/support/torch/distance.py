"""Functions of nn.functional that are made of rows: norms, distances, bilinear forms."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
f.case("normalize", "F.normalize(x1)", F.normalize, rand(3, 4))
f.case("normalize", "F.normalize(x1, { p = 1, dim = -1, eps = 3 })", lambda x: F.normalize(x, p=1, dim=-1, eps=3), rand(2, 3, 4))
f.case("cosine_similarity", "F.cosine_similarity(x1, x2)", F.cosine_similarity, rand(3, 4), rand(3, 4, seed=1))
f.case("cosine_similarity", "F.cosine_similarity(x1, x2, { dim = -1, eps = 0.5 })", lambda a, b: F.cosine_similarity(a, b, dim=-1, eps=0.5), rand(3, 1, 4), rand(2, 4, seed=1))
f.case("pairwise_distance", "F.pairwise_distance(x1, x2)", F.pairwise_distance, rand(3, 4), rand(3, 4, seed=1))
f.case("pairwise_distance", "F.pairwise_distance(x1, x2, { p = 1, keepdim = true })", lambda a, b: F.pairwise_distance(a, b, p=1, keepdim=True), rand(3, 4), rand(4, seed=1))
f.case("bilinear", "F.bilinear(x1, x2, x3, x4)", F.bilinear, rand(2, 3, 4), rand(2, 3, 5, seed=1), rand(2, 4, 5, seed=2), rand(2, seed=3))
f.case("bilinear", "F.bilinear(x1, x2, x3)", F.bilinear, rand(4), rand(5, seed=1), rand(3, 4, 5, seed=2))
f.case("softmin", "F.softmin(x1, -1)", lambda x: F.softmin(x, dim=-1), rand(3, 4))
f.write()
