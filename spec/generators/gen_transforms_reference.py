"""Writes spec/reference/transforms_reference.json: what torchvision's transforms make of a small picture.

    pip install torch torchvision && python spec/generators/gen_transforms_reference.py
"""
import json, torch
from torchvision import __version__
from torchvision.transforms import RandomRotation, ColorJitter, InterpolationMode
from torchvision.utils import make_grid

torch.manual_seed(0)
picture = (torch.rand(3, 5, 7) * 256).to(torch.uint8)
floats = (picture.float() / 255)
cases = []


def case(name, arguments, made, kind):
    cases.append({"name": name, "arguments": arguments, "kind": kind, "shape": list(made.shape),
        "values": [round(v, 7) for v in made.flatten().tolist()]})


MODES = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR}
for kind, image in ("uint8", picture), ("float32", floats):
    for degrees in 30, 90, -40, 200:  # 45 has places half-way between pixels, which rounding decides
        for mode in MODES:
            for more in {}, {"expand": True}, {"fill": 7 if kind == "uint8" else 0.5}, {"center": [1, 2]}:
                made = RandomRotation((degrees, degrees), interpolation=MODES[mode], **more)(image)
                case("RandomRotation", [[degrees, degrees], {"interpolation": mode, **more}], made, kind)
    for name in "brightness", "contrast", "saturation", "hue":
        for factor in ((-0.4, 0.1, 0.5) if name == "hue" else (0, 0.3, 1.7)):
            case("ColorJitter", [{name: [factor, factor]}], ColorJitter(**{name: (factor, factor)})(image), kind)
batch = torch.rand(5, 1, 2, 3)
for options in {}, {"nrow": 2}, {"nrow": 3, "padding": 1, "pad_value": 0.5}, {"normalize": True}, {
        "normalize": True, "scale_each": True}, {"normalize": True, "value_range": [0.25, 0.75]}:
    case("make_grid", [options], make_grid(batch, **{k: tuple(v) if k == "value_range" else v
        for k, v in options.items()}), "batch")
json.dump({"torchvision": __version__, "picture": picture.flatten().tolist(), "batch": batch.flatten().tolist(),
    "cases": cases}, open("spec/reference/transforms_reference.json", "w"))
