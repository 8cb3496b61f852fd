"""Rows of loss.def: every reduction, weights, smoothing, ignored labels, probabilities, more dims, zero-size."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
X = rand(4, 5)
LABEL, SOME = torch.tensor([2, 0, 4, 1]), torch.tensor([2, -100, 4, -100])
WEIGHT = torch.tensor([0.3, 1.1, 0.7, 2.0, 0.5])
PROBABLE = torch.softmax(rand(4, 5, seed=3), 1).mul(1e4).round().div(1e4)
for name in ("softmax", "log_softmax"):
    fn = getattr(F, name)
    for x, dim in ((X, 1), (X, 0), (rand(2, 3, 4), 1), (rand(3), -1), (torch.zeros(0, 3), 1)):
        f.case(name, "F.%s(x1, %d)" % (name, dim + 1 if dim >= 0 else dim), lambda x, fn=fn, dim=dim: fn(x, dim), x)
    f.case(name, "F.%s(x1, 1)" % name, lambda x, fn=fn: fn(x, 0), torch.tensor([1000.0, -float("inf"), 999.0]))


def options(**o):
    parts = []
    for k, v in o.items(): parts.append(
        "%s = %s" % (k, '"%s"' % v if isinstance(v, str) else "true" if v is True else v))
    return "{ %s }" % ", ".join(parts)


for r in ("mean", "sum", "none"):
    o = options(reduction=r)
    f.case("cross_entropy", "F.cross_entropy(x1, x2, %s)" % o, lambda x, t, r=r: F.cross_entropy(x, t, reduction=r), X,
        LABEL)
    f.case("cross_entropy", "F.cross_entropy(x1, x2, %s)" % o, lambda x, t, r=r: F.cross_entropy(x, t, reduction=r), X,
        SOME)
    f.case("cross_entropy",
        "F.cross_entropy(x1, x2, { reduction = \"%s\", weight = x3:detach(), label_smoothing = 0.2 })" % r,
           lambda x, t, w, r=r: F.cross_entropy(x, t, w.detach(), reduction=r, label_smoothing=0.2), X, SOME, WEIGHT)
    f.case("cross_entropy", "F.cross_entropy(x1, x2, { reduction = \"%s\", label_smoothing = 0.3, ignore_index = 4 })"
        % r,
           lambda x, t, r=r: F.cross_entropy(x, t, reduction=r, label_smoothing=0.3, ignore_index=4), X, LABEL)
    f.case("cross_entropy", "F.cross_entropy(x1, x2, %s)" % o, lambda x, t, r=r: F.cross_entropy(x, t, reduction=r),
        rand(2, 3, 2, 2), torch.tensor([[[0, 1], [2, 0]], [[1, -100], [2, 2]]]))
    f.case("cross_entropy", "F.cross_entropy(x1, x2, %s)" % o, lambda x, t, r=r: F.cross_entropy(x, t, reduction=r), X,
        PROBABLE)
    f.case("cross_entropy",
        "F.cross_entropy(x1, x2, { reduction = \"%s\", weight = x3:detach(), label_smoothing = 0.2 })" % r,
           lambda x, t, w, r=r: F.cross_entropy(x, t, w.detach(), reduction=r, label_smoothing=0.2), X, PROBABLE,
               WEIGHT)
    f.case("cross_entropy", "F.cross_entropy(x1, x2, %s)" % o, lambda x, t, r=r: F.cross_entropy(x, t, reduction=r),
        rand(2, 3, 2), rand(2, 3, 2, lo=0.1, hi=1, seed=1))
    f.case("nll_loss", "F.nll_loss(x1, x2, %s)" % o, lambda x, t, r=r: F.nll_loss(x, t, reduction=r), X, SOME)
    f.case("nll_loss", "F.nll_loss(x1, x2, { reduction = \"%s\", weight = x3:detach(), ignore_index = 0 })" % r,
           lambda x, t, w, r=r: F.nll_loss(x, t, w.detach(), reduction=r, ignore_index=0), X, LABEL, WEIGHT)
    f.case("nll_loss", "F.nll_loss(x1, x2, %s)" % o, lambda x, t, r=r: F.nll_loss(x, t, reduction=r), rand(2, 3, 2),
        torch.tensor([[0, 1], [2, 2]]))
    A, B = rand(3, 4), rand(3, 4, seed=1)
    P, Q = rand(3, 4, lo=0.05, hi=0.95), rand(3, 4, lo=0.0, hi=1.0, seed=1)
    pairs = [("mse_loss", "", {}, A, B), ("l1_loss", "", {}, A, B), ("smooth_l1_loss", "", {}, A, B),
        ("smooth_l1_loss", ", beta = 0.3", dict(beta=0.3), A, B),
             ("smooth_l1_loss", ", beta = 0", dict(beta=0.0), A, B), ("huber_loss", "", {}, A, B),
                 ("huber_loss", ", delta = 0.3", dict(delta=0.3), A, B),
             ("binary_cross_entropy", "", {}, P, Q), ("binary_cross_entropy_with_logits", "", {}, A, Q),
             ("kl_div", "", {}, A, Q), ("kl_div", ", log_target = true", dict(log_target=True), A, B)]
    for name, text, extra, a, b in pairs:
        f.case(name, "F.%s(x1, x2, { reduction = \"%s\"%s })" % (name, r, text),
            lambda x, t, name=name, extra=extra, r=r: getattr(F, name)(x, t, reduction=r, **extra), a, b)
    f.case("binary_cross_entropy", "F.binary_cross_entropy(x1, x2, { reduction = \"%s\", weight = x3 })" % r,
           lambda x, t, w, r=r: F.binary_cross_entropy(x, t, w.detach(), reduction=r), P, Q,
               torch.tensor([1.0, 0.2, 3.0, 0.5]), grad=True)
    f.case("binary_cross_entropy_with_logits",
        "F.binary_cross_entropy_with_logits(x1, x2, { reduction = \"%s\", weight = x3:detach(), "
        "pos_weight = x4:detach() })" % r,
           lambda x, t, w, p, r=r: F.binary_cross_entropy_with_logits(x, t, w.detach(), reduction=r,
               pos_weight=p.detach()), A, Q,
           torch.tensor([1.0, 0.2, 3.0, 0.5]), torch.tensor([2.0, 1.0, 0.5, 3.0]))
f.case("cross_entropy", "F.cross_entropy(x1, x2)", F.cross_entropy, rand(5), torch.tensor(3))
f.case("cross_entropy", "F.cross_entropy(x1, x2, { label_smoothing = 0.1 })",
    lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), rand(5), torch.tensor(3))
f.case("cross_entropy", "F.cross_entropy(x1, x2)", F.cross_entropy, rand(5), torch.softmax(rand(5, seed=1), 0))
f.case("cross_entropy", "F.cross_entropy(x1, x2, { reduction = \"sum\" })",
    lambda x, t: F.cross_entropy(x, t, reduction="sum"), torch.zeros(0, 3), torch.zeros(0).long())
f.case("nll_loss", "F.nll_loss(x1, x2)", F.nll_loss, rand(5), torch.tensor(3))
f.case("kl_div", 'F.kl_div(x1, x2, { reduction = "batchmean" })', lambda x, t: F.kl_div(x, t, reduction="batchmean"),
    rand(3, 4), rand(3, 4, lo=0.1, hi=0.9, seed=1))
f.case("mse_loss", "F.mse_loss(x1, x2, { reduction = \"sum\" })", lambda x, t: F.mse_loss(x, t, reduction="sum"),
    torch.zeros(0, 3), torch.zeros(0, 3))
f.case("mse_loss", "F.mse_loss(x1, x2)", F.mse_loss, rand(), rand(seed=1))
f.case("binary_cross_entropy", "F.binary_cross_entropy(x1, x2)", F.binary_cross_entropy,
    torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0]), grad=False)
f.case("binary_cross_entropy_with_logits", "F.binary_cross_entropy_with_logits(x1, x2)",
    F.binary_cross_entropy_with_logits,
       torch.tensor([100.0, -100.0, 800.0]), torch.tensor([1.0, 1.0, 0.3]))
# ---- connectionist temporal classification; log_softmax gives what its gradient assumes
def ctc(targets, lengths, targets_of, **options):
    return lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor(targets), lengths, targets_of, **options)


for reduction in "mean", "sum", "none":
    f.case("ctc_loss", "F.ctc_loss(x1:log_softmax(-1), int64 { { 1, 2, 2 }, { 3, 1, 0 } }, { 6, 5 }, { 3, 2 }, "
        "{ reduction = \"%s\" })" % reduction,
        ctc([[1, 2, 2], [3, 1, 0]], [6, 5], [3, 2], reduction=reduction), rand(6, 2, 4))
f.case("ctc_loss", "F.ctc_loss(x1:log_softmax(-1), int64 { 1, 2, 0, 1, 1 }, { 6, 5, 6 }, { 2, 0, 3 }, 3)",
    ctc([1, 2, 0, 1, 1], [6, 5, 6], [2, 0, 3], blank=3), rand(6, 3, 4))
f.case("ctc_loss", "F.ctc_loss(x1:log_softmax(-1), int64 { 1, 2 }, 5, 2)", lambda x: F.ctc_loss(x.log_softmax(-1),
    torch.tensor([1, 2]), torch.tensor(5), torch.tensor(2)), rand(5, 3))
# no way to read the second target
f.case("ctc_loss", "F.ctc_loss(x1:log_softmax(-1), int64 { { 1, 2 }, { 1, 1 } }, { 3, 2 }, { 2, 2 }, "
    "{ zero_infinity = true })", ctc([[1, 2], [1, 1]], [3, 2], [2, 2], zero_infinity=True), rand(3, 2, 3))
f.case("ctc_loss", "F.ctc_loss(x1:log_softmax(-1), int64 { { 1, 2 }, { 1, 1 } }, { 3, 2 }, { 2, 2 }, "
    "{ reduction = \"none\" })", ctc([[1, 2], [1, 1]], [3, 2], [2, 2], reduction="none"), rand(3, 2, 3), grad=False)
f.write()
