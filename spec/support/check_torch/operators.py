"""The operator database: draws samples, has accel run them, compares."""
import os
import warnings

import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_flatten, tree_map

import calls
from comparing import differs
from texts import TYPES as LUA_TYPES, Sample, Unsupported, arguments

TYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]
MOST = os.environ.get("SAMPLES", "40")


class Entry:
    """What came of an entry of a database."""

    def __init__(self, name):
        self.name, self.missing = name, False
        self.drawn = self.agree = 0
        self.refused, self.wrong, self.skipped = [], [], {}

    def skip(self, why):
        self.skipped[why] = self.skipped.get(why, 0) + 1


def spread(items, most):
    if most == "all" or len(items) <= int(most):
        return items
    return [items[i * len(items) // int(most)] for i in range(int(most))]


def samples_of(op, dtype):
    torch.manual_seed(0)
    wants = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    return spread(list(op.sample_inputs("cpu", dtype, requires_grad=wants)), MOST)


def tensors_in(value):
    return [x for x in tree_flatten(value)[0] if isinstance(x, torch.Tensor)]


def expected(op, sample, seeds=None):
    """PyTorch's results, gradients of the results (drawn, or `seeds`) and those of the inputs."""
    def fresh(x):
        return x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x

    inputs = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(0)
    results = op(inputs[0], *inputs[1], **inputs[2])
    flat = tree_flatten(results)[0]
    wanted = [x for x in tensors_in(inputs) if x.requires_grad]
    made = [(i, x) for i, x in enumerate(flat) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not wanted or not made:
        return flat, [], []
    seeds = [(i, s.to(x.dtype)) for (i, s), (_, x) in zip(seeds, made)] if seeds \
        else [(i, torch.randn(x.shape, dtype=x.dtype)) for i, x in made]
    found = torch.autograd.grad([x for _, x in made], wanted, [s for _, s in seeds], allow_unused=True)
    return flat, seeds, found


def call_text(accel, op, sample):
    """The call in Lua, and the tensors that it uses."""
    out = Sample()
    how = calls.find(op.name, op.variant_test_name, accel.has)
    if callable(how):
        return out, how(out, sample.input, sample.args, sample.kwargs)
    path, signature = how
    texts = arguments(out, signature, (sample.input, *sample.args), sample.kwargs, calls.RENAMED)
    if path.startswith("x:"):
        first, _, rest = texts.partition(", ")
        return out, f"{first}:{path[2:]}({rest})"
    return out, f"{path}({texts})"


def doubled(sample):
    """The sample with twice the precision, for what is right where two results differ."""
    twice = {torch.float32: torch.float64, torch.complex64: torch.complex128}

    def wide(x):
        if isinstance(x, torch.Tensor) and x.dtype in twice:
            return x.detach().to(twice[x.dtype]).requires_grad_(x.requires_grad)
        return twice.get(x, x) if isinstance(x, torch.dtype) else x
    return SampleInput(wide(sample.input), args=tree_map(wide, sample.args), kwargs=tree_map(wide, sample.kwargs))


def request(accel, op, sample, entry):
    """A sample for accel with what PyTorch makes of it, or None where it cannot be compared."""
    try:
        said, call = call_text(accel, op, sample)
    except Unsupported as why:
        return entry.skip(str(why))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results, seeds, gradients = expected(op, sample)
    except Exception as problem:  # samples that PyTorch itself refuses on this machine
        return entry.skip(f"PyTorch: {str(problem).splitlines()[0][:60]}")
    if any(isinstance(x, torch.Tensor) and x.layout != torch.strided for x in results):
        return entry.skip("a sparse result")
    for x in results:
        if isinstance(x, torch.Tensor) and x.dtype not in LUA_TYPES:
            return entry.skip(f"a result of type {str(x.dtype)[6:]}")
    of = [i + 1 for i, x in enumerate(said.tensors) if x.requires_grad]
    # what PyTorch differentiates in its order, by its place among the tensors of the call
    asked = [x for x in tensors_in((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
    places = [next((i + 1 for i, x in enumerate(said.tensors) if x is y), None) for y in asked]
    tensors = list(said.tensors)
    pairs = []
    for i, seed in seeds:
        tensors.append(seed)
        pairs.append(f"{{ {i}, {len(tensors)} }}")
    if None in places:
        pairs = []
    wanted = "{ " + ", ".join(pairs + [f"of = {{ {', '.join(map(str, places or of))} }}"]) + " }" if pairs else "{}"
    return (tensors, call if call.startswith("local ") or " return " in call else "return " + call, wanted,
        results, gradients if pairs else [], call, sample, lambda: expected(op, doubled(sample), seeds)[::2])


def apart(ours, theirs, how):
    """What differs between an answer's tensors and PyTorch's, or None."""
    for place, (a, b) in enumerate(zip(ours, theirs)):
        if isinstance(a, str) and a == "none":  # no gradient, which is the gradient 0
            far = None if b is None or not b.any() else f"none; PyTorch: {b.flatten()[:4].tolist()}"
        elif b is None:
            far = "a gradient; PyTorch: none" if not isinstance(a, torch.Tensor) or a.any() else None
        else:
            far = differs(a, b, how)
        if far:
            return (f"number {place + 1}: " if len(theirs) > 1 else "") + far
    return None


def tied(sample, answer, results):
    """Whether positions differ only among equal elements: results are values and positions along a dim, or positions
    alone."""
    x, ours, theirs = sample.input, answer["results"], results
    if not isinstance(x, torch.Tensor) or x.ndim == 0 or not all(isinstance(r, torch.Tensor) for r in ours) \
            or ours[-1].dtype != torch.int64 or len(ours) > 1 and apart(ours[:-1], theirs[:-1], "values"):
        return False
    mine, other = ours[-1], theirs[-1]
    for dim in range(x.ndim):
        for shaped in (lambda r: r, lambda r: r.unsqueeze(dim)):
            try:
                a, b = (torch.take_along_dim(x, shaped(r), dim) for r in (mine, other))
            except (RuntimeError, IndexError):
                continue
            if a.shape[dim] <= x.shape[dim] and torch.equal(a, b):
                return True
    return False


def right(exact, answer, results, gradients):
    """Whether float32 results that differ from PyTorch's are as near as PyTorch's to float64's."""
    if not any(isinstance(x, torch.Tensor) and x.dtype in (torch.float32, torch.complex64) for x in results):
        return False
    try:
        truths, slopes = exact()
    except Exception:  # there is no float64 form of the sample
        return False
    for ours, theirs, truth in ((answer["results"], results, truths), (answer["gradients"], gradients, slopes)):
        for a, b, t in zip(ours, theirs, truth):
            if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or t is None or not a.numel():
                continue
            if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.isfinite(), b.isfinite()):
                return False
            keep = b.isfinite() & t.isfinite()
            far, near = ((x[keep] - t[keep]).abs() for x in (a, b))
            if far.numel() and far.max() > 2 * near.max() + 2e-5 * t[keep].abs().max():
                return False
    return True


def judge(op, entry, asked, answer):
    tensors, _, _, results, gradients, call, sample, exact = asked
    if "error" in answer:
        entry.refused.append((answer["error"].splitlines()[0], call, tensors))
        return
    how = "shapes" if op and op.name in calls.DRAWN or "dropout_p = 0.5" in call else "values"
    ours = answer["results"]
    problem = f"{len(ours)} results; PyTorch: {len(results)}" if len(ours) != len(results) \
        else apart(ours, results, how)
    if not problem and answer.get("gradient_error") and how == "values":
        entry.refused.append(("gradient: " + answer["gradient_error"].splitlines()[0], call, tensors))
        return
    if not problem and how == "values":
        problem = apart(answer["gradients"], gradients, how)
        problem = problem and "gradient: " + problem
    if problem and not (len(ours) == len(results) and (sample and tied(sample, answer, results)
            or exact and right(exact, answer, results, gradients))):
        entry.wrong.append((problem, call, tensors))
    else:
        entry.agree += 1


def run(accel, wanted):
    from torch.testing._internal.common_methods_invocations import op_db
    found, waiting = [], None

    def settle():
        if waiting:
            for asked, answer in zip(waiting[2], accel.answers()):
                judge(waiting[0], waiting[1], asked, answer)

    for op in op_db:
        name = op.name + (f" [{op.variant_test_name}]" if op.variant_test_name else "")
        if wanted and name not in wanted and op.name not in wanted:
            continue
        entry = Entry(name)
        found.append(entry)
        if calls.find(op.name, op.variant_test_name, accel.has) is None:
            entry.missing = True
            continue
        asked = []
        for dtype in TYPES:
            if dtype not in op.dtypes:
                continue
            for sample in samples_of(op, dtype):
                entry.drawn += 1
                made = request(accel, op, sample, entry)
                if made:
                    asked.append(made)
        settle()
        waiting = None
        if asked:
            accel.ask([one[:3] for one in asked])
            waiting = (op, entry, asked)
    settle()
    return found
