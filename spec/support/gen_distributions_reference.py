"""Writes spec/support/distributions_reference.json: PyTorch's values of distributions.

    python3 spec/support/gen_distributions_reference.py > spec/support/distributions_reference.json
"""
import json

import torch
from torch import distributions as D

torch.set_default_dtype(torch.float64)

PAIRS = [[0.5, 1.5, 3.0], [0.7, 2.5, 12.0]]
SIMPLEX = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]
POSITIVE = [[0.3, 1.0, 2.5], [4.0, 9.5, 20.0]]
CASES = [
    ("Normal", {"loc": [0.5, -1.0, 3.0], "scale": PAIRS}, {"loc": [0.0, 1.0, 2.0], "scale": [1.0, 2.0, 0.5]},
     [0.1, -2.0, 5.0]),
    ("LogNormal", {"loc": [0.5, -1.0, 0.3], "scale": [0.5, 1.5, 0.7]},
     {"loc": [0.0, 1.0, 2.0], "scale": [1.0, 2.0, 0.5]}, [0.1, 2.0, 5.0]),
    ("Laplace", {"loc": [0.5, -1.0, 3.0], "scale": PAIRS}, {"loc": [0.0, 1.0, 2.0], "scale": [1.0, 2.0, 0.5]},
     [0.1, -2.0, 5.0]),
    ("Uniform", {"low": [0.0, -1.0, 3.0], "high": [1.0, 1.5, 7.0]}, {"low": [0.0, -2.0, 4.0], "high": [2.0, 2.0, 7.0]},
     [0.1, 1.25, 6.0]),
    ("Exponential", {"rate": PAIRS}, {"rate": [1.0, 2.0, 0.5]}, [0.1, 2.0, 5.0]),
    ("Gamma", {"concentration": POSITIVE, "rate": [1.0, 2.0, 0.5]},
     {"concentration": [1.5, 0.4, 30.0], "rate": [2.0, 1.0, 1.0]}, [0.1, 2.0, 5.0]),
    ("Beta", {"concentration1": POSITIVE, "concentration0": [0.5, 2.0, 3.0]},
     {"concentration1": [1.5, 0.4, 3.0], "concentration0": [2.0, 1.0, 1.0]}, [0.1, 0.5, 0.9]),
    ("Dirichlet", {"concentration": POSITIVE}, {"concentration": [1.5, 0.4, 3.0]}, SIMPLEX),
    ("Bernoulli", {"probs": [0.1, 0.5, 0.8]}, {"probs": [0.4, 0.25, 0.8]}, [1.0, 0.0, 1.0]),
    ("Bernoulli", {"logits": [-3.0, 0.5, 20.0]}, {"logits": [0.4, -0.25, 0.8]}, [1.0, 0.0, 1.0]),
    ("Categorical", {"probs": [[1.0, 2.0, 1.0], [0.2, 0.5, 0.3]]}, {"probs": [0.2, 0.5, 0.3]}, [1, 2]),
    ("Categorical", {"logits": [[1.0, 2.0, -1.0], [0.2, 0.5, 0.3]]}, {"logits": [0.2, 0.5, 0.3]}, [1, 2]),
    ("Multinomial", {"probs": [[1.0, 2.0, 1.0], [0.2, 0.5, 0.3]]}, None, [[1.0, 3.0, 1.0], [0.0, 5.0, 0.0]]),
]


def values(x):
    return [None if v != v else v for v in x.reshape(-1).tolist()]


def build(name, parameters):
    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in parameters.items()}
    extra = {"total_count": 5} if name == "Multinomial" else {}
    return getattr(D, name)(**tensors, **extra), tensors


rows = []
for name, parameters, other, value in CASES:
    d, tensors = build(name, parameters)
    x = torch.tensor(value)
    log_prob = d.log_prob(x)
    row = {"name": name, "parameters": parameters, "value": value, "log_prob": values(log_prob),
           "batch_shape": list(d.batch_shape), "event_shape": list(d.event_shape)}
    grads = torch.autograd.grad(log_prob.sum(), list(tensors.values()))
    row["gradients"] = {k: values(g) for k, g in zip(tensors, grads)}
    if name != "Categorical":
        row["mean"], row["variance"] = values(d.mean), values(d.variance)
    if name != "Multinomial":
        row["entropy"] = values(d.entropy())
    if name in ("Normal", "LogNormal", "Laplace", "Uniform", "Exponential"):
        row["cdf"] = values(d.cdf(x))
        row["p"] = [0.05, 0.5, 0.93]
        row["icdf"] = values(d.icdf(torch.tensor(row["p"])))
    if other:
        q, _ = build(name, other)
        row["other"] = other
        row["kl"] = [("inf" if v == float("inf") else v) for v in D.kl_divergence(d, q).reshape(-1).tolist()]
    rows.append(row)
print(json.dumps(rows, separators=(",", ":")))
