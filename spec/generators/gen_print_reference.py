# Writes print_reference.lua: what PyTorch prints.  Run it where torch is installed:
#   python3 spec/generators/gen_print_reference.py > spec/reference/print_reference.lua
import math

import torch

NAN, INF = float("nan"), float("inf")


def lua(v):
    if isinstance(v, list):
        return "{" + ",".join(lua(x) for x in v) + "}"
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, float) and math.isnan(v):
        return "0/0"
    if isinstance(v, float) and math.isinf(v):
        return "1/0" if v > 0 else "-1/0"
    return repr(v)


VALUES = [
    [1.0, 2.0, 3.0], [[1.0, 2.0], [3.0, 4.0]], [1.5, 2.25, -3.125], [1e-5, 1.0], [1e9, 1.0], [1e8], [100000.5],
        [0.0, 0.0],
    [NAN, 1.0], [INF, -INF, 2.5], [NAN], [-0.0, 1.0], 3.5, 7.0, 1e-10, 5, True, [True, False], [[True], [False]],
        [1, 2, 3],
    [[1, -200], [3, 4]], ([1, 2], torch.int32), ([1, 255], torch.uint8), ([1.5, 2], torch.float64),
        ([1.5, 1000.25], torch.float16),
    ([1.5, 1e-3], torch.bfloat16), [], [[], []], [9007199254740992], [1e38, 1e-38], [0.1, 0.2, 0.3333333],
    [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.5]]], [0.001, 1.0, 10.0], [0.0001, 0.1], [1234567.0, 1.0],
        [12345.678],
    ([], torch.int32),
]
SHAPES = [(1000,), (1001,), (50, 50), (7, 200), (3, 4, 100), (2, 3, 4), (6, 300), (11, 10, 10), (2, 2, 2, 2), (40,),
    (5, 30)]
OTHERS = [
    ("tensor.zeros(0,3)", torch.zeros(0, 3)),
    ("tensor.zeros(2,0,{dtype='int64'})", torch.zeros(2, 0, dtype=torch.int64)),
    ("T({1,2},{requires_grad=true})", torch.tensor([1.0, 2.0], requires_grad=True)),
    ("tensor.ones(3,2,{dtype='float64',requires_grad=true})",
        torch.ones(3, 2, dtype=torch.float64, requires_grad=True)),
    ("tensor.full({12},0.123456789,{dtype='float64',requires_grad=true})",
     torch.full((12,), 0.123456789, dtype=torch.float64, requires_grad=True)),
    ("tensor.full({8},0.123456789,{dtype='float64',requires_grad=true})",
     torch.full((8,), 0.123456789, dtype=torch.float64, requires_grad=True)),
]


def cases():
    for value in VALUES:
        value, dtype = value if isinstance(value, tuple) else (value, None)
        t = torch.tensor(value, dtype=dtype)
        yield f"T({lua(value)}, {{dtype='{str(t.dtype)[6:]}'}})", t
    for shape in SHAPES:
        n, sizes = math.prod(shape), "{" + ",".join(map(str, shape)) + "}"
        t = torch.arange(n).view(shape)
        yield f"A({n}):view({sizes})", t
        yield f"A({n}):float():view({sizes}):mul(0.37)", t.float() * 0.37
        yield f"A({n}):double():view({sizes})", t.double()
    yield from OTHERS


print(f'-- What PyTorch prints (torch {torch.__version__.split("+")[0]}), '
      'written by gen_print_reference.py: an expression and a text.'
      ' Names of element types lack "torch.".\nreturn {')
for expression, t in cases():
    print(f'  {{ "{expression}",\n    [=[\n{str(t).replace("torch.", "")}]=] }},')
print("}")
