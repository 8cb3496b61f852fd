"""Batch normalisation, running statistics among the results."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)


def train(momentum=0.1, eps=1e-5, after=lambda y: y):
    def run(x, mean, var, *params):
        mean, var = mean.detach().clone(), var.detach().clone()
        y = F.batch_norm(x, mean, var, *(params + (None,) * (2 - len(params))), True, momentum, eps)
        return after(y), mean, var
    return run


RUNNING = ("(function() local m, v = x2:detach():clone(), x3:detach():clone(); "
    "return F.batch_norm(x1, m, v, %s), m, v end)()")


def stats(n): return rand(n, seed=3), rand(n, seed=4, lo=0.5, hi=2)


f.case("batch_norm", RUNNING % "x4, x5, { training = true }", train(), rand(3, 2, 2, 3), *stats(2), rand(2, seed=1),
    rand(2, seed=2))
f.case("batch_norm", RUNNING % "x4, x5, { training = true, momentum = 0.3, eps = 0.1 }", train(0.3, 0.1), rand(5, 4),
    *stats(4), rand(4, seed=1), rand(4, seed=2))
f.case("batch_norm", RUNNING % "{ training = true }", train(), rand(2, 3, 4), *stats(3))
f.case("batch_norm", RUNNING % "x4, x5, { training = true, activation = \"relu\" }", train(after=torch.relu),
    rand(3, 2, 2, 3), *stats(2), rand(2, seed=1), rand(2, seed=2))
f.case("batch_norm", RUNNING % "x4, x5, { training = true }", train(), rand(3, 18, 2, 2).float(),
    *(t.float() for t in stats(18)), rand(18, seed=1).float(),
       rand(18, seed=2).float(), tolerance=3e-5)
f.case("batch_norm", "F.batch_norm(x1 + 1000, nil, nil, { training = true })",
    lambda x: F.batch_norm(x + 1000, None, None, training=True), rand(70, 2, 5).float(),
       tolerance=3e-3)  # a mean far from 0
f.case("batch_norm", "F.batch_norm(x1, nil, nil, x2, x3, { training = true, residual = x4, activation = \"relu\" })",
       lambda x, w, b, z: torch.relu(F.batch_norm(x, None, None, w, b, True) + z), rand(2, 3, 2, 2), rand(3, seed=1),
           rand(3, seed=2), rand(2, 3, 2, 2, seed=5))
f.case("batch_norm", "F.batch_norm(x1, x2, x3, x4, x5)", lambda x, m, v, w, b: F.batch_norm(x, m.detach(), v.detach(),
    w, b), rand(3, 2, 2, 3), *stats(2), rand(2, seed=1),
       rand(2, seed=2))
f.case("batch_norm", "F.batch_norm(x1, x2, x3, { eps = 0.1, residual = x4, activation = \"relu\" })",
       lambda x, m, v, z: torch.relu(F.batch_norm(x, m.detach(), v.detach(), eps=0.1) + z), rand(2, 3, 4), *stats(3),
           rand(2, 3, 4, seed=5))
f.write()
