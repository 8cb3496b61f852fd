"""Writes device_maps_reference.json beside this file: what Accelerate's device-map functions return for random models.

Run with a Python that has torch and accelerate (1.15).  A model is written as
[class, [[parameter, elements, dtype]], [[buffer, elements, dtype, persistent]], [[child, model]]];
ties are pairs of parameters' names, of which the second becomes the first.
"""
import json
import os
import random
import warnings

import torch
from accelerate.utils import modeling as m

warnings.simplefilter("ignore")
random.seed(46)
CLASSES = ["Block", "Layer", "Stack", "Head"]
NAMES = ["lin", "lin2", "proj", "norm", "emb", "a", "b", "0", "1", "attn", "mlp", "out"]


def draw(depth):
    names = random.sample(NAMES, random.randint(1, 4))
    parameters, buffers, children = [], [], []
    if depth == 0 or random.random() < 0.3:
        dtype = random.choice(["float32", "float32", "float16"])
        parameters.append(["weight", random.choice([4, 8, 12, 30, 64]), dtype])
        if random.random() < 0.5:
            parameters.append(["bias", random.randint(1, 9), "float32"])
    if random.random() < 0.25:
        dtype = random.choice(["float32", "int64", "bool"])
        buffers.append(["mask", random.randint(1, 40), dtype, random.random() < 0.7])
    if depth > 0:
        for name in names:
            children.append([name, draw(random.randint(0, depth - 1))])
    return [random.choice(CLASSES) if depth > 0 else "Linear", parameters, buffers, children]


def build(tree, base=torch.nn.Module):
    module = type(tree[0], (base,), {})()
    for name, n, dtype in tree[1]:
        module.register_parameter(name, torch.nn.Parameter(torch.zeros(n, dtype=getattr(torch, dtype)), False))
    for name, n, dtype, persistent in tree[2]:
        module.register_buffer(name, torch.zeros(n, dtype=getattr(torch, dtype)), persistent=persistent)
    for name, child in tree[3]:
        module.add_module(name, build(child, base))
    return module


def owner(model, name):
    path, _, last = name.rpartition(".")
    return (model.get_submodule(path) if path else model), last


def tie(model, wanted):
    """Ties random pairs of weights of equal size, in different modules."""
    ties, names = [], [n for n, _ in model.named_parameters() if "." in n]
    for _ in range(wanted):
        if len(names) < 2:
            break
        first, second = random.sample(names, 2)
        a, b = owner(model, first), owner(model, second)
        if getattr(*a).shape != getattr(*b).shape or getattr(*a).dtype != getattr(*b).dtype:
            continue
        setattr(b[0], b[1], getattr(*a))
        ties.append([first, second])
    return ties


def limits(total):
    gpus = random.choice([0, 1, 1, 2, 3, 4])
    result = {i: int(total * random.uniform(0.02, 0.6)) for i in range(gpus)}
    if random.random() < 0.9:
        result["cpu"] = int(total * random.uniform(0.05, 1.2))
    if random.random() < 0.1:
        result["disk"] = int(total)
    return result or {"cpu": int(total)}


def plain(mapping):
    return {str(key): value for key, value in mapping.items()}


def case(model, total):
    options = {"max_memory": limits(total)}
    if random.random() < 0.5:
        options["no_split_module_classes"] = random.sample(CLASSES + ["Linear"], random.randint(1, 2))
    if random.random() < 0.3:
        options["dtype"] = random.choice(["float16", "float32", "bfloat16"])
    given = {**options, "max_memory": plain(options["max_memory"])}
    shared = dict(options)
    for flag in ("clean_result", "fallback_allocation", "offload_buffers"):
        if random.random() < 0.4:
            options[flag] = given[flag] = flag != "clean_result"
    low_zero = random.random() < 0.3
    try:
        found = m.infer_auto_device_map(model, **{**options, "max_memory": dict(options["max_memory"])})
    except (IndexError, AttributeError):  # its own: a tied parameter whose module is placed; limits of half bytes
        return None
    shared["max_memory"] = {k: v for k, v in shared["max_memory"].items() if k != "disk"}  # which it raises for
    balanced = m.get_balanced_memory(model, low_zero=low_zero, **shared)
    return {"options": given, "map": plain(found), "low_zero": low_zero, "balanced": plain(balanced)}


def main():
    models = []
    while len(models) < 75:
        tree = draw(random.randint(1, 3))
        model = build(tree)
        ties = tie(model, random.choice([0, 0, 2, 5]))
        sizes = m.compute_module_sizes(model)
        if sizes[""] < 40 or len(sizes) > 60:
            continue
        cases = [c for c in (case(model, sizes[""]) for _ in range(5)) if c]
        total, (largest, layers) = m.calculate_maximum_sizes(model)
        models.append({
            "model": tree, "ties": ties, "tied": sorted(m.find_tied_parameters(model)), "sizes": dict(sizes),
            "halves": m.compute_module_sizes(model, dtype="float16")[""],
            "buffers": m.compute_module_total_buffer_size(model), "largest": [largest, layers], "cases": cases,
        })
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/device_maps_reference.json")
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in models) + "\n]\n")
    print(len(models), "models,", sum(len(entry["cases"]) for entry in models), "cases")


if __name__ == "__main__":
    main()
