"""Writes spec/reference/distributions_reference.json: PyTorch's values of distributions.

    python3 spec/generators/gen_distributions_reference.py > spec/reference/distributions_reference.json
"""
import json

import torch
from torch import distributions as D
from torch.distributions import relaxed_categorical

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
    ("Cauchy", {"loc": [0.5, -1.0, 3.0], "scale": PAIRS}, {"loc": [0.0, 1.0, 2.0], "scale": [1.0, 2.0, 0.5]},
     [0.1, -2.0, 5.0]),
    ("StudentT", {"df": [0.5, 1.5, 7.0], "loc": [0.5, -1.0, 3.0], "scale": PAIRS}, None, [0.1, -2.0, 5.0]),
    ("Gumbel", {"loc": [0.5, -1.0, 3.0], "scale": PAIRS}, {"loc": [0.0, 1.0, 2.0], "scale": [1.0, 2.0, 0.5]},
     [0.1, -2.0, 5.0]),
    ("HalfNormal", {"scale": PAIRS}, {"scale": [1.0, 2.0, 0.5]}, [0.1, 2.0, 5.0]),
    ("Chi2", {"df": POSITIVE}, {"df": [1.5, 0.4, 3.0]}, [0.1, 2.0, 5.0]),
    ("HalfCauchy", {"scale": PAIRS}, {"scale": [1.0, 2.0, 0.5]}, [0.1, 2.0, 5.0]),
    ("Pareto", {"scale": [0.5, 1.5, 3.0], "alpha": [5.0, 6.5, 12.0]}, {"scale": [0.4, 2.0, 3.0], "alpha": 2.0},
     [0.6, 2.0, 5.0]),
    ("Pareto", {"scale": 1.5, "alpha": [0.5, 1.0, 1.5]}, None, [1.6, 2.0, 50.0]),
    ("GeneralizedPareto", {"loc": [0.5, -1.0, 3.0], "scale": [0.5, 1.5, 3.0], "concentration": [0.1, 0.0, -0.4]},
     None, [0.6, 2.0, 5.0]),
    ("GeneralizedPareto", {"loc": 0.5, "scale": [0.5, 1.5, 3.0], "concentration": [0.7, 1.3, -1.0]}, None,
     [0.6, 2.0, 1.0]),
    ("Weibull", {"scale": PAIRS, "concentration": [1.5, 1.0, 4.0]}, None, [0.1, 2.0, 5.0]),
    ("Weibull", {"scale": [1.5, 2.0], "concentration": [0.7, 2.0]}, None, [0.1, 2.0]),
    ("InverseGamma", {"concentration": [5.5, 7.0, 9.0], "rate": PAIRS}, {"concentration": 2.0, "rate": [1.0, 2.0, 3.0]},
     [0.1, 2.0, 5.0]),
    ("InverseGamma", {"concentration": [0.5, 1.5, 2.5], "rate": 2.0}, None, [0.1, 2.0, 5.0]),
    ("FisherSnedecor", {"df1": [2.5, 7.0, 30.0], "df2": [12.0, 14.0, 20.0]}, None, [0.1, 2.0, 5.0]),
    ("FisherSnedecor", {"df1": [0.5, 2.0, 3.0], "df2": [1.0, 3.0, 4.5]}, None, [0.1, 2.0, 5.0]),
    ("Kumaraswamy", {"concentration1": [0.5, 1.5, 3.0], "concentration0": [0.7, 2.5, 12.0]}, None, [0.1, 0.4, 0.7]),
    ("ContinuousBernoulli", {"probs": [0.1, 0.4995, 0.8]}, {"probs": [0.4, 0.25, 0.5005]}, [0.1, 0.4, 0.9]),
    ("ContinuousBernoulli", {"logits": [-3.0, 0.001, 2.0]}, {"logits": [0.4, -0.25, 0.8]}, [0.1, 0.4, 0.9]),
    ("VonMises", {"loc": [0.5, -1.0, 3.0], "concentration": [[0.1, 1.5, 3.7], [3.8, 12.0, 70.0]]}, None,
     [0.1, -2.0, 2.8]),
    ("Poisson", {"rate": [0.3, 4.0, 60.0]}, {"rate": [1.0, 3.0, 50.0]}, [0.0, 3.0, 70.0]),
    ("Geometric", {"probs": [0.1, 0.5, 0.8]}, {"probs": [0.4, 0.25, 0.8]}, [3.0, 0.0, 1.0]),
    ("Geometric", {"logits": [-1.0, 0.5, 2.0]}, {"logits": [0.4, -0.25, 0.8]}, [3.0, 0.0, 1.0]),
    ("NegativeBinomial", {"total_count": [0.5, 3.0, 10.0], "probs": [0.1, 0.5, 0.8]}, None, [3.0, 0.0, 41.0]),
    ("NegativeBinomial", {"total_count": [0.5, 3.0, 10.0], "logits": [-1.0, 0.5, 1.0]}, None, [3.0, 0.0, 41.0]),
    ("OneHotCategorical", {"probs": [[1.0, 2.0, 1.0], [0.2, 0.5, 0.3]]}, {"probs": [0.2, 0.5, 0.3]},
     [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
    ("OneHotCategoricalStraightThrough", {"logits": [[1.0, 2.0, 1.0], [0.2, 0.5, 0.3]]},
     {"logits": [0.2, 0.5, 0.3]}, [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
    ("ExpRelaxedCategorical", {"temperature": 0.7, "logits": [[1.0, 2.0, 1.0], [0.2, 0.5, 0.3]]}, None,
     [[-0.5, -1.5, -3.0], [-2.0, -0.4, -2.5]]),
    ("RelaxedOneHotCategorical", {"temperature": [0.7], "probs": [0.2, 0.5, 0.3]}, None, SIMPLEX),
    ("RelaxedOneHotCategorical", {"temperature": 1.7, "logits": [[1.0, 2.0, 1.0], [0.2, 0.5, 0.3]]}, None, SIMPLEX),
    ("Binomial", {"total_count": [40.0, 40.0, 40.0], "probs": [0.1, 0.5, 0.8]},
     {"total_count": 40.0, "probs": [0.3, 0.4, 0.9]}, [3.0, 0.0, 31.0]),
    ("Binomial", {"total_count": [0.0, 3.0, 100.0], "logits": [-1.0, 0.0, 1.5]},
     {"total_count": [0.0, 2.0, 100.0], "logits": [1.0, 0.0, 0.5]}, [0.0, 2.0, 80.0]),
    ("RelaxedBernoulli", {"temperature": [0.5, 1.0, 2.0], "probs": [0.1, 0.5, 0.8]}, None, [0.1, 0.4, 0.99]),
    ("RelaxedBernoulli", {"temperature": [0.5, 1.0, 2.0], "logits": [-1.0, 0.5, 1.0]}, None, [0.1, 0.4, 0.99]),
    ("MultivariateNormal", {"loc": [1.0, -2.0], "covariance_matrix": [[2.0, 0.5], [0.5, 1.0]]},
     {"loc": [0.5, 1.0], "covariance_matrix": [[1.0, 0.2], [0.2, 3.0]]}, [[0.1, 0.4], [2.0, -3.0]]),
    ("MultivariateNormal", {"loc": [[1.0, -2.0], [0.0, 3.0]], "scale_tril": [[2.0, 0.0], [0.5, 1.0]]},
     {"loc": [0.5, 1.0], "scale_tril": [[[1.0, 0.0], [0.2, 3.0]], [[0.3, 0.0], [-1.0, 0.5]]]},
     [[0.1, 0.4], [2.0, -3.0]]),
    ("MultivariateNormal", {"loc": [1.0, -2.0, 0.5],
                            "precision_matrix": [[2.0, 0.5, 0.1], [0.5, 1.0, 0.0], [0.1, 0.0, 3.0]]},
     {"loc": [0.5, 1.0, 0.0], "precision_matrix": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.3], [0.0, 0.3, 1.0]]},
     [0.1, 0.4, 1.0]),
    ("LowRankMultivariateNormal", {"loc": [1.0, -2.0, 0.5], "cov_factor": [[1.0, 0.3], [0.5, -0.2], [0.0, 2.0]],
                                   "cov_diag": [0.3, 0.4, 1.0]},
     {"loc": [[0.0, 1.0, -0.5], [0.0, 0.0, 0.0]], "cov_factor": [[2.0], [0.5], [-1.0]],
      "cov_diag": [[1.0, 2.0, 0.1], [1.0, 1.0, 1.0]]}, [[0.1, -2.0, 1.5], [1.0, 0.0, 0.0]]),
    ("LowRankMultivariateNormal", {"loc": [[1.0, -2.0], [0.0, 0.0]], "cov_factor": [[1.0], [0.5]],
                                   "cov_diag": [[0.3, 0.4], [1.0, 2.0]]}, None, [0.1, -2.0]),
    ("LKJCholesky", {"concentration": [0.5, 1.0, 4.0]}, None,
     [[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.48, 0.36, 0.8]]),
    # PyTorch's divergence sums too much over a batch of Wishart distributions.
    ("Wishart", {"df": [4.5, 9.0], "scale_tril": [[1.0, 0.0], [0.5, 2.0]]}, None, [[2.0, 0.5], [0.5, 7.0]]),
    ("Wishart", {"df": 4.5, "scale_tril": [[1.0, 0.0], [0.5, 2.0]]},
     {"df": 6.0, "scale_tril": [[1.5, 0.0], [-0.5, 1.0]]}, [[2.0, 0.5], [0.5, 7.0]]),
    ("Wishart", {"df": 3.5, "covariance_matrix": [[1.0, 0.3, 0.0], [0.3, 2.0, 0.1], [0.0, 0.1, 0.5]]},
     {"df": 4.0, "covariance_matrix": [[1.0, 0.0, 0.0], [0.0, 2.0, 0.1], [0.0, 0.1, 0.7]]},
     [[2.0, 0.5, 0.0], [0.5, 7.0, 0.3], [0.0, 0.3, 1.0]]),
    ("NormalMixture", {"probs": [0.2, 0.5, 0.3], "loc": [-1.0, 0.0, 4.0], "scale": [0.5, 1.0, 2.0]}, None,
     [0.1, -2.0, 5.0]),
    ("VectorMixture", {"logits": [0.5, 1.0], "loc": [[-1.0, 0.0], [4.0, 1.0]], "scale": [[0.5, 1.0], [2.0, 1.0]]}, None,
     [[0.1, -2.0], [5.0, 1.0]]),
    ("FallingLogNormal", {"loc": [0.5, -1.0, 0.3], "scale": [0.5, 1.5, 0.7]}, None, [0.1, 2.0, 5.0]),
    ("SquashedNormal", {"loc": [0.5, -1.0, 0.3], "scale": [0.5, 1.5, 0.7]}, None, [0.1, -0.9, 0.5]),
    ("SigmoidPower", {"loc": [0.5, -1.0], "scale": [0.5, 1.5]}, None, [0.1, 0.8]),
    ("SoftplusNormal", {"loc": [0.5, -1.0], "scale": [0.5, 1.5]}, None, [0.1, 3.0]),
    ("LogisticNormal", {"loc": [[0.5, -1.0], [0.0, 0.3]], "scale": [0.5, 1.5]},
     {"loc": [0.0, 1.0], "scale": [1.0, 2.0]}, SIMPLEX),
    ("NormalCorrelation", {"loc": [0.5, -1.0, 0.3], "scale": [0.5, 1.5, 0.7]}, None,
     [[[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.48, 0.36, 0.8]], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.6, 0.8]]]),
    ("ReshapedLogNormal", {"loc": [0.5, -1.0, 0.3, 0.0], "scale": [0.5, 1.5, 0.7, 1.0]}, None,
     [[0.5, 1.5], [0.7, 1.0]]),
    ("IndependentAffine", {"loc": [0.5, -1.0], "scale": [[0.5, 1.5], [0.7, 1.0], [1.0, 1.0]]}, None, [0.1, 3.0]),
    ("Multinomial", {"probs": [[1.0, 2.0, 1.0], [0.2, 0.5, 0.3]]}, None, [[1.0, 3.0, 1.0], [0.0, 5.0, 0.0]]),
]


# Distributions of several parts, which spec/accelerate/distributions_spec.lua builds alike.
BUILT = {
    "NormalMixture": lambda probs, loc, scale: D.MixtureSameFamily(D.Categorical(probs), D.Normal(loc, scale)),
    "VectorMixture": lambda logits, loc, scale: D.MixtureSameFamily(
        D.Categorical(logits=logits), D.Independent(D.Normal(loc, scale), 1)),
    "FallingLogNormal": lambda loc, scale: D.TransformedDistribution(
        D.Normal(loc, scale), [D.AffineTransform(1.0, -2.0), D.ExpTransform()]),
    "SquashedNormal": lambda loc, scale: D.TransformedDistribution(D.Normal(loc, scale), D.TanhTransform()),
    "SigmoidPower": lambda loc, scale: D.TransformedDistribution(
        D.Normal(loc, scale), [D.SigmoidTransform(), D.PowerTransform(torch.tensor(2.0))]),
    "NormalCorrelation": lambda loc, scale: D.TransformedDistribution(D.Normal(loc, scale), D.CorrCholeskyTransform()),
    "ReshapedLogNormal": lambda loc, scale: D.TransformedDistribution(
        D.LogNormal(loc, scale), [D.ReshapeTransform((4,), (2, 2))]),
    "IndependentAffine": lambda loc, scale: D.TransformedDistribution(
        D.Independent(D.Normal(loc, scale), 1), [D.AffineTransform(torch.tensor([1.0, 2.0]), 3.0)]),
    "SoftplusNormal": lambda loc, scale: D.TransformedDistribution(D.Normal(loc, scale), D.SoftplusTransform()),
}
CDF = ("Normal", "LogNormal", "Laplace", "Uniform", "Exponential", "Cauchy", "Gumbel", "HalfNormal", "FallingLogNormal",
       "HalfCauchy", "Pareto", "GeneralizedPareto", "Weibull", "Kumaraswamy", "ContinuousBernoulli",
       "SquashedNormal", "SigmoidPower", "SoftplusNormal")
NO_MOMENTS = ("Categorical", "LKJCholesky", "RelaxedBernoulli", "ExpRelaxedCategorical", "RelaxedOneHotCategorical",
              "FallingLogNormal", "SquashedNormal", "SigmoidPower", "SoftplusNormal",
              "LogisticNormal", "NormalCorrelation", "ReshapedLogNormal", "IndependentAffine")
NO_MODE = NO_MOMENTS[1:] + ("Multinomial", "ContinuousBernoulli", "Kumaraswamy", "NormalMixture", "VectorMixture")
NO_ENTROPY = NO_MOMENTS[1:] + ("FisherSnedecor", "VonMises", "Multinomial", "Poisson", "NegativeBinomial",
                                "NormalMixture", "VectorMixture")
# Draws of standard gamma variables with their derivatives by the concentration.
DRAWS = [(a, z) for a in (0.05, 0.3, 1.0) for z in (0.05, 0.5, 3.0)] + [
    (a, a + k * a**0.5) for a in (2.5, 9.0, 40.0, 300.0, 2500.0) for k in (-1.3, 0.0, 2.5)]
PAIRS_OF_TWO = [("Uniform", [0.0, 2.0], "Normal", [0.5, 2.0]), ("Laplace", [0.5, 2.0], "Normal", [0.5, 2.0]),
                ("Exponential", [0.7], "Normal", [0.5, 2.0]), ("Gamma", [2.5, 0.7], "Normal", [0.5, 2.0]),
                ("Gumbel", [0.5, 2.0], "Normal", [0.5, 2.0]), ("Beta", [2.5, 0.7], "Normal", [0.5, 2.0]),
                ("Gamma", [2.5, 0.7], "Exponential", [0.4]), ("Beta", [2.5, 0.7], "Exponential", [0.4]),
                ("Exponential", [0.4], "Gamma", [2.5, 0.7]), ("Normal", [0.5, 2.0], "Gamma", [2.5, 0.7]),
                ("Exponential", [0.4], "Uniform", [0.0, 2.0]),
                ("Beta", [1.5, 2.5], "Gamma", [2.5, 0.7]), ("Beta", [1.5, 2.5], "Uniform", [-0.5, 1.0]),
                ("Beta", [1.5, 2.5], "Uniform", [0.1, 1.0]), ("Beta", [1.5, 2.5], "Chi2", [3.0]),
                ("Uniform", [0.2, 0.7], "Beta", [1.5, 2.5]), ("Uniform", [0.0, 1.0], "Beta", [1.5, 2.5]),
                ("Uniform", [-0.2, 0.7], "Beta", [1.5, 2.5]), ("Uniform", [0.5, 3.0], "Gamma", [2.5, 0.7]),
                ("Uniform", [-0.5, 3.0], "Gamma", [2.5, 0.7]), ("Uniform", [0.0, 3.0], "Exponential", [0.4]),
                ("Uniform", [-0.5, 3.0], "Exponential", [0.4]), ("Uniform", [-0.5, 3.0], "Gumbel", [0.7, 1.3]),
                ("Uniform", [0.5, 3.0], "Chi2", [3.0]), ("Exponential", [0.4], "Gumbel", [0.7, 1.3]),
                ("Gamma", [2.5, 0.7], "Gumbel", [0.7, 1.3]), ("Chi2", [3.0], "Gumbel", [0.7, 1.3]),
                ("Normal", [0.5, 2.0], "Gumbel", [0.7, 1.3]), ("Normal", [0.5, 2.0], "Laplace", [-1.0, 0.6]),
                ("Bernoulli", [0.3], "Poisson", [1.7]), ("Poisson", [1.7], "Bernoulli", [0.3]),
                ("Poisson", [1.7], "Binomial", [3.0, 0.3]),
                ("Pareto", [0.4, 2.5], "Normal", [0.5, 2.0]), ("Pareto", [0.4, 1.5], "Normal", [0.5, 2.0]),
                ("Pareto", [0.4, 2.5], "Exponential", [0.7]), ("Pareto", [0.4, 0.5], "Exponential", [0.7]),
                ("Pareto", [0.4, 2.5], "Gamma", [2.5, 0.7]), ("Pareto", [0.4, 0.5], "Gamma", [2.5, 0.7]),
                ("Pareto", [0.4, 2.5], "Beta", [2.5, 0.7]), ("Beta", [2.5, 0.7], "Pareto", [0.4, 0.5]),
                ("Normal", [2.5, 0.7], "Pareto", [0.4, 0.5]), ("Chi2", [2.5], "Pareto", [0.4, 0.5]),
                ("Uniform", [0.5, 3.0], "Pareto", [0.4, 2.5]), ("Uniform", [0.3, 3.0], "Pareto", [0.4, 2.5]),
                ("ContinuousBernoulli", [0.3], "Normal", [0.5, 2.0]),
                ("ContinuousBernoulli", [0.3], "Exponential", [0.7]),
                ("ContinuousBernoulli", [0.3], "Pareto", [0.7, 1.0]),
                ("ContinuousBernoulli", [0.3], "Uniform", [-0.5, 1.5]),
                ("ContinuousBernoulli", [0.3], "Uniform", [0.5, 1.5]),
                ("Beta", [2.5, 0.7], "ContinuousBernoulli", [0.3]),
                ("Uniform", [0.2, 0.7], "ContinuousBernoulli", [0.3]),
                ("Uniform", [-0.2, 0.7], "ContinuousBernoulli", [0.3]),
                ("Laplace", [0.2, 0.7], "ContinuousBernoulli", [0.3])]


def values(x):
    return ["nan" if v != v else "inf" if v == float("inf") else v for v in x.reshape(-1).tolist()]


def build(name, parameters):
    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in parameters.items()}
    extra = {"Multinomial": {"total_count": 5}, "LKJCholesky": {"dim": 3}}.get(name, {})
    return BUILT.get(name, getattr(D, name, None) or getattr(relaxed_categorical, name, None))(
        **tensors, **extra), tensors


# Transforms by their names in spec/accelerate/distribution_transforms_spec.lua, with a value to transform.
VECTORS = [[0.3, -1.2, 0.8], [2.0, 0.0, -0.5]]
MATRICES = [[[0.3, -1.2], [0.8, -0.4]], [[0.5, 0.1], [0.2, 1.0]]]
TRANSFORMS = [
    ("softmax", D.SoftmaxTransform(), VECTORS), ("stick", D.StickBreakingTransform(), VECTORS),
    ("one_stick", D.StickBreakingTransform(), [0.7]), ("lower", D.LowerCholeskyTransform(), MATRICES),
    ("definite", D.PositiveDefiniteTransform(), MATRICES), ("correlation", D.CorrCholeskyTransform(), VECTORS),
    ("two_correlations", D.CorrCholeskyTransform(), [0.7]),
    ("many_correlations", D.CorrCholeskyTransform(), [[0.3, -1.2, 0.8, 0.1, -0.4, 1.3]]),
    ("cat", D.CatTransform([D.ExpTransform(), D.AffineTransform(1.0, 2.0)], -1, [2, 1]), VECTORS),
    ("cat_rows", D.CatTransform([D.ExpTransform(), D.TanhTransform()]), VECTORS),
    ("cat_vectors", D.CatTransform([D.StickBreakingTransform(), D.StickBreakingTransform()], -2), VECTORS),
    ("cat_within", D.CatTransform([D.IndependentTransform(D.ExpTransform(), 1),
                                   D.IndependentTransform(D.TanhTransform(), 1)], -1, [1, 2]), VECTORS),
    ("stack", D.StackTransform([D.ExpTransform(), D.AffineTransform(1.0, 2.0), D.TanhTransform()], -1), VECTORS),
    ("stack_rows", D.StackTransform([D.ExpTransform(), D.SigmoidTransform()]), VECTORS),
    ("reshape", D.ReshapeTransform((3,), (3, 1)), VECTORS), ("rows", D.ReshapeTransform((2, 2), (4,)), MATRICES),
    ("independent", D.IndependentTransform(D.TanhTransform(), 1), VECTORS),
    ("matrix", D.IndependentTransform(D.ExpTransform(), 2), MATRICES),
    ("cumulative", D.CumulativeDistributionTransform(D.Normal(0.5, 2.0)), VECTORS),
    ("affine", D.AffineTransform(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-0.5, 2.0, 1.0]), 1), VECTORS),
    ("chain", D.ComposeTransform([D.AffineTransform(1.0, 2.0), D.StickBreakingTransform(), D.ExpTransform()]), VECTORS),
    ("folded", D.ComposeTransform([D.ReshapeTransform((2, 2), (4,)), D.TanhTransform(), D.StickBreakingTransform()]),
     MATRICES),
    ("one", D.ComposeTransform([]), VECTORS),
]
changes = []
for name, t, value in TRANSFORMS:
    x = torch.tensor(value, requires_grad=True)
    y = t(x)
    row = {"name": name, "x": value, "y": values(y), "shape": list(y.shape), "back": values(t.inv(y)),
           "bijective": t.bijective}
    if not isinstance(t, (D.CatTransform, D.StackTransform)):
        row["dims"] = [t.domain.event_dim, t.codomain.event_dim]
        row["shapes"] = [list(t.forward_shape(x.shape)), list(t.inverse_shape(y.shape))]
    weights = torch.arange(1, y.numel() + 1).reshape(y.shape)
    row["gradient"] = values(torch.autograd.grad((y * weights).sum(), x, retain_graph=True)[0])
    if name not in ("softmax", "lower", "definite"):
        jacobian = t.log_abs_det_jacobian(x, y)
        row["jacobian"], row["jacobian_shape"] = values(jacobian), list(jacobian.shape)
    changes.append(row)

rows = []
for name, parameters, other, value in CASES:
    d, tensors = build(name, parameters)
    x = torch.tensor(value)
    log_prob = d.log_prob(x)
    row = {"name": name, "parameters": parameters, "value": value, "log_prob": values(log_prob),
           "batch_shape": list(d.batch_shape), "event_shape": list(d.event_shape)}
    grads = torch.autograd.grad(log_prob.sum(), list(tensors.values()))
    # Nothing is read above the diagonal of a factor; PyTorch has gradients there for Wishart.
    row["gradients"] = {k: values(g.tril() if k == "scale_tril" else g) for k, g in zip(tensors, grads)}
    if name not in NO_MOMENTS:
        row["mean"], row["variance"] = values(d.mean), values(d.variance)
    if name not in NO_MODE:
        row["mode"] = values(d.mode)
    if name not in NO_ENTROPY and not (name == "Binomial" and len(set(parameters["total_count"])) > 1):
        row["entropy"] = values(d.entropy())
    if name == "NormalMixture":
        row["cdf"] = values(d.cdf(x))
    if name in CDF:
        row["cdf"] = values(d.cdf(x))
        row["p"] = [0.05, 0.5, 0.93][:len(row["cdf"])] if d.batch_shape[-1] < 3 else [0.05, 0.5, 0.93]
        row["icdf"] = values(d.icdf(torch.tensor(row["p"])))
    if other:
        q, _ = build(name, other)
        row["other"] = other
        row["kl"] = [("inf" if v == float("inf") else v) for v in D.kl_divergence(d, q).reshape(-1).tolist()]
    rows.append(row)
draws = [{"a": a, "z": z, "slope": torch._standard_gamma_grad(torch.tensor(a), torch.tensor(z)).item()}
         for a, z in DRAWS]
pairs = [{"p": a, "of_p": x, "q": b, "of_q": y, "kl": values(D.kl_divergence(
    getattr(D, a)(*x, validate_args=False), getattr(D, b)(*y, validate_args=False)))} for a, x, b, y in PAIRS_OF_TWO]
rows = {"cases": rows, "gamma": draws, "pairs": pairs, "transforms": changes}
print(json.dumps(rows, separators=(",", ":")))
