"""Products."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
f.case("mm", "core.mm(x1, x2)", torch.mm, rand(3, 5), rand(5, 4, seed=1))
f.case("bmm", "core.bmm(x1, x2)", torch.bmm, rand(2, 3, 5), rand(2, 5, 4, seed=1))
f.case("matmul", "x1:matmul(x2)", torch.matmul, rand(2, 1, 3, 5), rand(4, 5, 2, seed=1))
f.case("matmul", "x1:matmul(x2)", torch.matmul, rand(5), rand(2, 5, 3, seed=1))
f.case("linear", "F.linear(x1, x2, x3)", F.linear, rand(2, 3, 5), rand(4, 5, seed=1), rand(4, seed=2))
f.write()
