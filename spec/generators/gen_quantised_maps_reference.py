"""Writes quantised_maps_reference.json beside device_maps_reference.json: the device maps that Accelerate's
load_and_quantize_model makes for random models and limits, and which layers it replaces; and maps for other types.

Run with a Python that has torch, bitsandbytes and accelerate (1.15).  A model is written as ["linear", inputs, outputs,
bias], ["norm", n], ["embedding", rows, n] or [class, [[child, model]], elements of a buffer]; ties are pairs of
weights' names, of which the second becomes the first.  Maps of 4 bits are those without the error that Accelerate
raises for layers on the CPU or on disk.
"""
import json
import os
import random
import warnings

import accelerate
import torch
from accelerate.utils import bnb, modeling
from accelerate.utils.dataclasses import BnbQuantizationConfig, CustomDtype
from gen_device_maps_reference import CLASSES, plain

warnings.simplefilter("ignore")
NAMES = ["lin", "proj", "norm", "emb", "0", "1", "attn", "mlp", "head", "lm_head"]


def draw(depth):
    if depth == 0:
        kind, n = random.choice(["linear", "linear", "linear", "norm", "embedding"]), random.choice([4, 8, 16])
        if kind == "norm":
            return [kind, n]
        return [kind, n, random.choice([4, 8, 16, 24])] + ([random.random() < 0.6] if kind == "linear" else [])
    names = random.sample(NAMES, random.randint(2, 4))
    buffer = random.choice([0, 0, 0, 5, 12])
    return [random.choice(CLASSES), [[name, draw(random.randint(0, depth - 1))] for name in names], buffer]


def build(tree):
    if tree[0] == "linear":
        return torch.nn.Linear(tree[1], tree[2], bias=tree[3])
    if tree[0] == "norm":
        return torch.nn.LayerNorm(tree[1])
    if tree[0] == "embedding":
        return torch.nn.Embedding(tree[1], tree[2])
    module = type(tree[0], (torch.nn.Module,), {})()
    if tree[2]:
        module.register_buffer("mask", torch.zeros(tree[2]))
    for name, child in tree[1]:
        module.add_module(name, build(child))
    return module


def tie(model):
    weights = [(name, p.shape) for name, p in model.named_parameters() if name.endswith("weight") and p.dim() == 2]
    alike = [[a, b] for i, (a, shape) in enumerate(weights) for b, other in weights[i + 1:] if shape == other]
    return [random.choice(alike)] if alike and random.random() < 0.6 else []


def make(tree, ties):
    with accelerate.init_empty_weights():
        model = build(tree)
    for first, second in ties:
        model.get_submodule(second.rpartition(".")[0]).weight = model.get_parameter(first)
    return model


def without_refusal(config, found):
    """What finds the map, with the layers' classes noted, and without the refusal of 4 bits off the GPU."""
    former = bnb.get_quantized_model_device_map

    def get(model, *arguments, **options):
        found["layers"] = [name for name, module in model.named_modules()
                           if type(module).__name__ in ("Linear4bit", "Linear8bitLt")]
        config.load_in_4bit = False
        try:
            found["map"] = former(model, *arguments, **options)
        finally:
            config.load_in_4bit = four
        return found["map"]

    four = config.load_in_4bit
    return former, get


def limits(total):
    result = {i: int(total * random.uniform(0.05, 0.7)) for i in range(random.choice([0, 1, 1, 2, 3]))}
    result["cpu"] = int(total * random.uniform(0.1, 1.5))
    return result


def some(model, odds):
    names = sorted({part for name, _ in model.named_modules() if name for part in (name, name.rpartition(".")[2])})
    return random.sample(names, min(len(names), random.randint(1, 2))) if random.random() < odds else None


def case(tree, ties):
    model, found = make(tree, ties), {}
    four = random.random() < 0.5
    given = {"load_in_4bit": four, "load_in_8bit": not four, "torch_dtype": random.choice(["fp16", "bf16", "fp32"]),
             "skip_modules": some(model, 0.6), "keep_in_fp32_modules": some(model, 0.4)}
    options = {"device_map": random.choice(["auto", "balanced", "balanced_low_0", "sequential"]),
               "max_memory": limits(sum(p.numel() for p in model.parameters())),
               "no_split_module_classes": random.sample(CLASSES, random.randint(0, 2))}
    config = BnbQuantizationConfig(**json.loads(json.dumps(given)))
    former, bnb.get_quantized_model_device_map = without_refusal(config, found)
    try:
        bnb.load_and_quantize_model(model, config, "nowhere", **{**options, "max_memory": dict(options["max_memory"])})
    except (IndexError, AttributeError):  # its own: a tied parameter whose module is placed; limits of half bytes
        return None
    finally:
        bnb.get_quantized_model_device_map = former
    given = {key: value for key, value in given.items() if value is not None}
    return {"config": given, "options": {**options, "max_memory": plain(options["max_memory"])},
            "layers": found["layers"], "map": plain(found["map"])}


TYPES = {"int8": torch.int8, "float16": torch.float16, **{d.value: d for d in CustomDtype}}


def types_case(tree, ties):
    """A map with types of tensors that bitsandbytes' configuration does not have."""
    model = make(tree, ties)
    special = {name: random.choice(list(TYPES)) for name, _ in model.named_parameters() if random.random() < 0.4}
    dtype = random.choice(list(TYPES))
    options = {"dtype": TYPES[dtype], "special_dtypes": {name: TYPES[d] for name, d in special.items()}}
    sizes = modeling.compute_module_sizes(model, **options)
    memory, classes = limits(int(sizes[""]) + 2), random.sample(CLASSES, random.randint(0, 2))
    try:
        found = modeling.infer_auto_device_map(model, dict(memory), no_split_module_classes=classes, **options)
    except (IndexError, AttributeError):  # its own
        return None
    return {"dtype": dtype, "special_dtypes": special, "max_memory": plain(memory), "no_split_module_classes": classes,
            "sizes": dict(sizes), "map": plain(found)}


def main():
    random.seed(246)
    bnb.load_checkpoint_in_model = lambda *arguments, **options: None
    bnb.dispatch_model = lambda model, **options: model
    models = []
    while len(models) < 60:
        tree = draw(random.randint(1, 3))
        if not 3 <= len(list(build(tree).modules())) <= 16:
            continue
        ties = tie(build(tree))
        models.append({"model": tree, "ties": ties, "cases": [c for c in (case(tree, ties) for _ in range(5)) if c],
                       "types": [c for c in (types_case(tree, ties) for _ in range(2)) if c]})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/quantised_maps_reference.json")
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in models) + "\n]\n")
    print(len(models), "models,", *[sum(len(entry[key]) for entry in models) for key in ("cases", "types")])


main()
