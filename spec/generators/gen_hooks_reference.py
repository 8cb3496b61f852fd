"""Writes hooks_reference.json beside device_maps_reference.json: which hooks Accelerate puts on random models, and what
happens in a forward pass.

Run with a Python that has torch and accelerate (1.15).  Models are written as gen_device_maps_reference.py writes them.
Devices are "cpu" and "meta", written as c and m.  A hook is [device that computes, offload, io_same_device,
offload_buffers, place_submodules, skip_keys], a list of hooks a sequence, "mark" one of the spec's own.
"""
import json
import os
import random
import warnings

import accelerate
import torch
from accelerate import hooks as h
from gen_device_maps_reference import CLASSES, build, draw, tie

warnings.simplefilter("ignore")
EVENTS = []


class Node(torch.nn.Module):
    def forward(self, x):
        EVENTS.append(f"run {self.path} {devices_of(self)}")
        for child in self.children():
            x = child(x)
        return x


class Mark(h.ModelHook):
    pass


def own_tensors(module):
    return list(module._parameters.items()) + list(module._buffers.items())


def devices_of(module):
    return "".join(t.device.type[0] for _, t in own_tensors(module))


def all_devices(model):
    return " ".join(devices_of(module) for _, module in model.named_modules())


def describe(hook):
    if isinstance(hook, h.SequentialHook):
        return [describe(one) for one in hook.hooks]
    if isinstance(hook, Mark):
        return "mark"
    return [hook.execution_device, hook.offload, hook.io_same_device, hook.offload_buffers, hook.place_submodules,
            hook.skip_keys]


def leaves(hook):
    return sum((leaves(one) for one in hook.hooks), []) if isinstance(hook, h.SequentialHook) else [hook]


def watch(hook, path, number):
    for name in ("pre", "post"):
        former = getattr(hook, name + "_forward")

        def told(*args, name=name, former=former, **kwargs):
            EVENTS.append(f"{name} {path} {number}")
            return former(*args, **kwargs)
        setattr(hook, name + "_forward", told)


def some(values, odds=0.5):
    return [value for value in values if random.random() < odds]


def arguments(kind, model):
    """The options of a call; those that are left out are its defaults."""
    paths = [name for name, _ in model.named_modules()]
    o = {}
    if random.random() < 0.3:
        o["skip_keys"] = random.choice(["past", ["past", "cache"]])
    if random.random() < 0.4:
        o["preload_module_classes"] = random.sample(CLASSES, random.randint(1, 2))
    if kind == "execution":
        return {**o, "execution_device": "cpu"}
    if random.random() < 0.5:
        o["offload_buffers"] = True
    if kind == "align":
        o["offload"] = random.random() < 0.8
        if random.random() < 0.8:
            o["execution_device"] = "cpu"
        return o
    names = some(paths, 0.4) or [""]
    o["execution_device"] = random.choice(["cpu", {name: "cpu" for name in names}])
    o["offload"] = random.choice([True, False, {name: random.random() < 0.6 for name in names}])
    return o


CALLS = {"align": h.attach_align_device_hook, "blocks": h.attach_align_device_hook_on_blocks}


def case(tree, pairs):
    model = build(tree, Node)
    for first, second in pairs:
        (a, b), (c, d) = [(model.get_submodule(n.rpartition(".")[0]), n.rpartition(".")[2]) for n in (first, second)]
        setattr(c, d, getattr(a, b))
    for path, module in model.named_modules():
        module.path = path
    kind = random.choice(["align", "blocks", "blocks", "execution"])
    o, given = arguments(kind, model), {}
    marked = some([path for path, _ in model.named_modules()], 0.15)
    for path in marked:
        h.add_hook_to_module(model.get_submodule(path), Mark())
    offloads = kind != "execution" and (isinstance(o.get("offload"), dict) or o.get("offload"))
    if offloads and random.random() < 0.6:
        given["weights_map"] = {(path + "." if path else "") + name: t.detach().clone()
                                for path, module in model.named_modules() for name, t in own_tensors(module)}
    EVENTS.clear()
    try:
        if kind == "execution":
            rest = {k: v for k, v in o.items() if k != "execution_device"}
            h.attach_execution_device_hook(model, o["execution_device"], **rest)
        else:
            CALLS[kind](model, **o, **given)
        result = {"call": kind, "options": o, "map": bool(given), "marked": marked}
        found = {}
        for path, module in model.named_modules():
            if hasattr(module, "_hf_hook"):
                found[path] = describe(module._hf_hook)
                for number, hook in enumerate(leaves(module._hf_hook)):
                    watch(hook, path, number)
        result["hooks"], result["attached"] = found, all_devices(model)
        model(torch.zeros(1))
        result["events"], result["left"] = list(EVENTS), all_devices(model)
        h.remove_hook_from_submodules(model)
        result["removed"] = all_devices(model)
    except (ValueError, KeyError, TypeError, NotImplementedError, RuntimeError):  # its own
        return None
    return result


# ---- one module, several hooks

class Told(h.ModelHook):
    def __init__(self, name):
        self.name = name

    def init_hook(self, module):
        EVENTS.append("init " + self.name)
        return module

    def pre_forward(self, module, *args, **kwargs):
        EVENTS.append("pre " + self.name)
        return args, kwargs

    def post_forward(self, module, output):
        EVENTS.append("post " + self.name)
        return output

    def detach_hook(self, module):
        EVENTS.append("detach " + self.name)
        return module


def sequence():
    module, steps = torch.nn.Identity(), []
    EVENTS.clear()
    for i in range(random.randint(3, 8)):
        step = random.choice(["add", "append", "append", "both", "remove", "call", "call"])
        steps.append(step)
        if step in ("add", "append"):
            h.add_hook_to_module(module, Told(str(i)), append=step == "append")
        elif step == "both":
            h.add_hook_to_module(module, h.SequentialHook(Told(f"{i}a"), Told(f"{i}b")), append=True)
        elif step == "remove":
            h.remove_hook_from_module(module)
        else:
            module(torch.zeros(1))
    return {"steps": steps, "events": list(EVENTS)}


# ---- models that take turns on a device

class Mover(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.weight = number, torch.nn.Parameter(torch.zeros(2))

    def to(self, device):
        EVENTS.append(f"{self.number} to {torch.device(device).type}")
        return self.to_empty(device=device)

    def forward(self):
        EVENTS.append(f"{self.number} runs on {self.weight.device.type}")


def turns():
    models, held, steps, hook = [Mover(i) for i in range(3)], [], [], None
    EVENTS.clear()
    for model in models:
        _, hook = accelerate.cpu_offload_with_hook(model, torch.device("meta"), hook)
        held.append(hook)
    for _ in range(random.randint(4, 9)):
        number, step = random.randrange(3), random.choice(["call", "call", "call", "offload", "remove"])
        steps.append([step, number])
        if step == "call":
            models[number]()
        elif step == "offload":
            held[number].offload()
        else:
            held[number].remove()
    return {"steps": steps, "events": list(EVENTS)}


def main():
    random.seed(146)
    models = []
    while len(models) < 45:
        tree = draw(random.randint(1, 3))
        model = build(tree, Node)
        if not 3 <= len(list(model.modules())) <= 9:
            continue
        pairs = tie(model, random.choice([0, 0, 2]))
        models.append({"model": tree, "ties": pairs, "cases": [c for c in (case(tree, pairs) for _ in range(5)) if c]})
    lines = {"models": models, "sequences": [sequence() for _ in range(40)], "turns": [turns() for _ in range(30)]}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/hooks_reference.json")
    with open(path, "w") as f:
        f.write("{\n" + ",\n".join(f'"{key}": [\n' + ",\n".join(json.dumps(entry, separators=(",", ":"))
            for entry in entries) + "\n]" for key, entries in lines.items()) + "\n}\n")
    print(len(models), "models,", sum(len(entry["cases"]) for entry in models), "cases")


if __name__ == "__main__":
    main()
