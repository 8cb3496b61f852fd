"""The module database: modules with PyTorch's parameters in accel, their results and all gradients.

accel's constructors take what is required by place and the rest by name; PyTorch's signatures say which is which.
"""
import inspect
import warnings

import torch
from torch.utils._pytree import tree_flatten, tree_map

from operators import Entry, judge, spread, tensors_in, MOST
from texts import TYPES, Sample, Unsupported, shifted, without_ignored

# by place though PyTorch has a default
BY_PLACE = {"Softmax": {"dim"}, "LogSoftmax": {"dim"}, "Softmin": {"dim"}, "ModuleList": {"modules"}}
DROPPED = {"dtype", "_random_samples"}


def named_arguments(cls, args, kwargs):
    """[(name, value, whether it is required)] of a constructor's call."""
    parameters = [p for p in inspect.signature(cls.__init__).parameters.values() if p.name != "self"]
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):  # RNN(*args): those of the base class
        parameters = [p for p in inspect.signature(cls.__mro__[1].__init__).parameters.values()
            if p.name not in ("self", "mode")]
    given = {p.name: value for p, value in zip(parameters, args)}
    given.update(kwargs)
    required = {p.name for p in parameters if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD}
    return [(name, value, name in required or name in BY_PLACE.get(cls.__name__, ()))
        for name, value in given.items() if name not in DROPPED]


def constructor(sample, cls, args, kwargs):
    places, named = [], {}
    for name, value, required in named_arguments(cls, args, without_ignored(kwargs)):
        if isinstance(value, torch.nn.Module) or callable(value):
            raise Unsupported("a module or a function as an argument")
        if value is None:
            continue
        text = sample.text(shifted(value) if name == "dim" else value)
        if required:
            places.append(text)
        else:
            named[name] = text
    return f"nn.{cls.__name__}({', '.join(places + ([sample.options(named)] if named else []))})"


def request(cls, made, dtype, entry):
    sample, forward = Sample(), made.forward_input
    try:
        text = constructor(sample, cls, made.constructor_input.args, made.constructor_input.kwargs)
        torch.manual_seed(0)
        module = cls(*made.constructor_input.args, **made.constructor_input.kwargs).to(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module(*forward.args, **forward.kwargs)  # makes the parameters of a lazy module
        module.zero_grad()
        state = {name: value.detach().clone() for name, value in module.state_dict().items()}
        results = tree_flatten(module(*forward.args, **forward.kwargs))[0]
        arguments = [sample.text(v) for v in forward.args]
        named = {name: sample.text(v) for name, v in forward.kwargs.items() if v is not None}
        if not arguments and "input" in named:
            arguments.append(named.pop("input"))
    except Unsupported as why:
        return entry.skip(str(why))
    parameters = dict(module.named_parameters())
    places, loads = {}, []
    for name, value in state.items():
        if name in parameters or "running" in name or "tracked" in name:  # weights of losses are buffers in PyTorch
            loads.append(f'["{name}"] = {sample.text(value)}')
            places[name] = len(sample.tensors)
    leaves = [x for x in tensors_in((forward.args, forward.kwargs)) if x.requires_grad]
    of = [next(i + 1 for i, x in enumerate(sample.tensors) if x is leaf) for leaf in leaves]
    taken = "".join(f'T[{places[name]}] = p["{name}"] ' for name in parameters)
    wanted = leaves + list(parameters.values())
    of += [places[name] for name in parameters]
    seeds = [(i, torch.randn(x.shape, dtype=x.dtype)) for i, x in enumerate(results)
        if isinstance(x, torch.Tensor) and x.requires_grad]
    gradients = torch.autograd.grad([results[i] for i, _ in seeds], wanted, [s for _, s in seeds],
        allow_unused=True) if seeds and wanted else []
    tensors, pairs = list(sample.tensors), []
    for i, seed in seeds if wanted else []:
        tensors.append(seed)
        pairs.append(f"{{ {i}, {len(tensors)} }}")
    call = f"{', '.join(arguments + ([sample.options(named)] if named else []))}"
    kind, lazy = TYPES[dtype], f"m({arguments[0]}:float()) " if "Lazy" in cls.__name__ else ""
    body = f"local m = {text} " + (f"{lazy}m:to('{kind}') m:load_state_dict({{ {', '.join(loads)} }}) "
        f"local p = {{}} for name, value in m:named_parameters() do p[name] = value end {taken}" if loads else "")
    differentiate = "{ " + ", ".join(pairs + [f"of = {{ {', '.join(map(str, of))} }}"]) + " }" if pairs else "{}"
    def exact():
        def wide(x):
            if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
                return x
            return x.detach().double().requires_grad_(x.requires_grad)
        args, kwargs = tree_map(wide, (forward.args, forward.kwargs))
        module.load_state_dict(state)
        module.double()
        results = tree_flatten(module(*args, **kwargs))[0]
        inputs = [x for x in tensors_in((args, kwargs)) if x.requires_grad] + list(module.parameters())
        return results, torch.autograd.grad([results[i] for i, _ in seeds], inputs, [s.double() for _, s in seeds],
            allow_unused=True) if seeds and inputs else []

    return tensors, f"{body}return m({call})", differentiate, results, gradients, f"{text}({call})", None, exact


def run(accel, wanted):
    from torch.testing._internal.common_modules import module_db
    found = []
    for info in module_db:
        name = info.name
        if wanted and name not in wanted:
            continue
        entry = Entry(name)
        found.append(entry)
        if info.module_cls.__name__ not in accel.has["functions"]["nn"]:
            entry.missing = True
            continue
        asked = []
        for dtype in torch.float32, torch.float64:
            torch.manual_seed(0)
            made = list(info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=True))
            for one in spread(made, MOST):
                if one.forward_input is None:
                    continue
                entry.drawn += 1
                try:
                    ready = request(info.module_cls, one, dtype, entry)
                except (RuntimeError, ValueError, TypeError) as problem:
                    entry.skip(f"PyTorch: {str(problem).splitlines()[0][:60]}")
                    continue
                if ready:
                    asked.append(ready)
        if asked:
            accel.ask([one[:3] for one in asked])
            for one, answer in zip(asked, accel.answers()):
                judge(info, entry, one, answer)
    return found
