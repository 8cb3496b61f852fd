"""Python values as Lua text: what a call of PyTorch's is in accel.

A parameter of a function of accel has a kind (host/core/ops/ops.def lists them): a dim counts from 1 there, a dtype is
a word, and so on. `auto` is the kind of a parameter that no signature describes.
"""
import math

import torch

TYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.int64: "int64", torch.int32: "int32", torch.uint8: "uint8", torch.bool: "bool",
    torch.complex64: "complex64", torch.complex128: "complex128"}
# parameters without a signature that name positions
DIMS = {"dim", "dims", "axis", "dim0", "dim1", "dim2"}


class Unsupported(Exception):
    """A sample that cannot be said in Lua: a type that accel does not have, a memory format."""


def shifted(dim):
    return dim + 1 if dim >= 0 else dim


class Sample:
    """The text of one sample, and the tensors that it uses."""

    def __init__(self):
        self.tensors = []

    def tensor(self, value):
        for place, known in enumerate(self.tensors):
            if known is value:
                return f"T[{place + 1}]"
        if value.dtype not in TYPES:
            raise Unsupported(f"type {str(value.dtype)[6:]}")
        if value.layout != torch.strided:
            raise Unsupported(f"layout {str(value.layout)[6:]}")
        self.tensors.append(value)
        return f"T[{len(self.tensors)}]"

    def text(self, value, kind="auto"):
        """A value as a parameter of a kind gets it."""
        kind = kind.rstrip("?")
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if value is None:
            return "nil"
        if isinstance(value, bool) and kind not in ("num", "int"):
            return "true" if value else "false"
        if isinstance(value, (list, tuple)) and kind in ("int", "int2", "int3") and len(value) == 1:
            value = value[0]
        if isinstance(value, (list, tuple)) and None in value:
            raise Unsupported("None in a list")
        if isinstance(value, (list, tuple, torch.Size)):
            return "{ " + ", ".join(self.text(v, kind) for v in value) + " }" if len(value) else "{}"
        if kind in ("dim", "dim+", "dims", "pos", "pos+") and isinstance(value, int):
            value = shifted(value)
        return self.plain(value)

    def plain(self, value):
        if isinstance(value, (int, float)):
            value = int(value) if isinstance(value, bool) else value
            if math.isinf(value):
                return "huge" if value > 0 else "-huge"
            return "nan" if math.isnan(value) else repr(value)
        if isinstance(value, complex):
            raise Unsupported("a complex number, which Lua does not have")
        if isinstance(value, str):
            return '"' + value + '"'
        if isinstance(value, torch.dtype):
            if value not in TYPES:
                raise Unsupported(f"type {str(value)[6:]}")
            return f'"{TYPES[value]}"'
        if isinstance(value, torch.device):
            return f'"{value}"'
        if isinstance(value, (torch.memory_format, torch.layout)):
            raise Unsupported(str(value)[6:])
        raise Unsupported(type(value).__name__)

    def options(self, named):
        """{ name = text } as the table that ends a call."""
        return "{ " + ", ".join(f"{name} = {text}" for name, text in named.items()) + " }"


# what says nothing about the result here: all samples are on the CPU and dense
IGNORED = {"device": "cpu", "layout": torch.strided, "pin_memory": False, "memory_format": None,
    "non_blocking": None, "requires_grad": False}


def parameters(signature):
    """ "x:T dim:dims? + dtype:dtype? -> y" as [(name, kind)]; names after `|` are given by name alone."""
    words, named, out = signature.split("->")[0].split(), False, []
    for word in words:
        if word == "|":
            named = True
        if ":" not in word:
            continue
        name, kind = word.split("=")[0].split(":", 1)
        out.append((name, kind, named))
    return out


def without_ignored(kwargs):
    out = {}
    for name, value in kwargs.items():
        if name == "memory_format" and value in (torch.contiguous_format, torch.preserve_format):
            continue
        if name not in IGNORED or value is not None and IGNORED[name] not in (value, str(value)):
            out[name] = value
    return out


def arguments(sample, signature, args, kwargs, renamed):
    """The arguments of a call as Lua text: what comes first by place, what comes after a gap by name."""
    kwargs = without_ignored(kwargs)
    if signature is None:
        named = {name: sample.text(value, "dim" if name in DIMS else "auto")
            for name, value in kwargs.items() if value is not None}
        texts = [sample.text(value) for value in args]
        while texts and texts[-1] == "nil":
            texts.pop()
        return ", ".join(texts + ([sample.options(named)] if named else []))
    known = parameters(signature)
    if len(args) > len(known):
        raise Unsupported(f"more arguments than {signature!r} has")
    given = {known[i][0]: value for i, value in enumerate(args) if value is not None}
    names = {name for name, _, _ in known}
    for name, value in kwargs.items():
        name = renamed.get(name, name)
        if value is None:
            continue
        if name not in names:
            raise Unsupported(f"no argument {name}")
        given[name] = value
    texts, named, by_place = [], {}, True
    for name, kind, by_name in known:
        by_place = by_place and not by_name and name in given
        if name not in given:
            continue
        text = sample.text(given[name], kind)
        if by_place:
            texts.append(text)
        else:
            named[name] = text
    return ", ".join(texts + ([sample.options(named)] if named else []))
