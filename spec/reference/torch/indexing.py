"""x[key], x[key] = value and index_put, with keys that are put together at random."""
import random
import torch
from common import Family, rand

f = Family(__file__)
SHAPE = (3, 2, 4, 2)
x = rand(*SHAPE)
draw = random.Random(7)


def lua_list(v): return "{ %s }" % ", ".join(lua_list(e) if isinstance(e, list) else str(e).lower() for e in v)


def position(size):
    at = draw.randrange(size)
    return (str(at + 1), at) if draw.random() < 0.5 else (str(at - size), at - size)


def reach(size):
    first = draw.randrange(size)
    last = draw.randrange(first - 1, size)
    step = draw.choice([1, 1, 2, 3])
    shown = "%d" % (last + 1) if draw.random() < 0.5 or last < 0 else "%d" % (last - size)
    return "{ %d, %s, %d }" % (first + 1, shown, step), slice(first, last + 1, step)


def mask(shape):
    m = torch.rand(shape, generator=torch.Generator().manual_seed(draw.randrange(1000))) < 0.5
    return m, "tensor(%s)" % (lua_list(m.tolist()) if m.dim() else str(m.item()).lower())


def entries(unique):
    """One key as Lua text and as Python has it.  unique: no place twice,
        and all lists of positions have one length."""
    lua, python, dim, rested, length = [], [], 0, False, draw.choice([1, 2])
    grow = not unique and draw.random() < 0.3  # lists of positions that broadcast
    while dim < 4 and draw.random() < 0.9:
        kind = draw.choice(["at", "range", "all", "rest", "new", "list", "list", "list", "mask"])
        size = SHAPE[dim]
        if kind == "at": one = position(size)
        elif kind == "range": one = reach(size)
        elif kind == "all": one = ("{}", slice(None))
        elif kind == "new" and lua.count("tensor.newaxis") < 2:
            lua.append("tensor.newaxis")
            python.append(None)
            continue
        elif kind == "rest" and not rested:
            rested = True
            left = 4 - dim
            keep = draw.randrange(left)
            lua.append('"..."')
            python.append(Ellipsis)
            dim += left - keep
            continue
        elif kind == "list":
            p = draw.sample(range(size), length) if unique else [draw.randrange(size) for _ in range(length)]
            shape = draw.choice([(length,), (length, 1), (1, length), (1,), ()]) if grow else (length,)
            t = torch.tensor(p[:1] if shape in ((1,), ()) else p).view(shape)
            one = ("int64(%s)" % (lua_list(t.tolist()) if t.dim() else t.item()), t)
        elif kind == "mask" and not any("tensor" in e or "int64" in e for e in lua) and draw.random() < 0.7:
            many = draw.randrange(1, min(3, 5 - dim))
            m, text = mask(SHAPE[dim:dim + many])
            lua.append(text)
            python.append(m)
            dim += many
            if rested or draw.random() < 0.5: break
            continue
        else: continue
        lua.append(one[0])
        python.append(one[1])
        dim += 1
    # what "..." stood for must be what is left
    if rested and dim < 4:
        for size in SHAPE[dim:]:
            text, at = position(size)
            lua.append(text)
            python.append(at)
    return "{ %s }" % ", ".join(lua), tuple(python)


def keys(n, unique):
    found = 0
    while found < n:
        text, key = entries(unique)
        try: place = x[key]
        except IndexError: continue  # a mask beside positions of another number
        if unique and place.numel() == x.numel(): continue  # the former value has no part in the result
        found += 1
        yield text, key, place.shape


for text, key, _ in keys(40, False):
    f.case("index_put", "x1[%s]" % text, lambda x: x[key] + 0, x)

WRITE = "(function() local y = x1 * 1; y[%s] = %s; return y end)()"


def write(x, key, v):
    y = x * 1
    y[key] = v
    return y


for text, key, shape in keys(35, True):
    kind = draw.choice(["number", "tensor", "tensor", "last", "one"])
    if kind == "number": f.case("index_put_", WRITE % (text, "-7.5"), lambda x: write(x, key, -7.5), x)
    else:
        shape = {"tensor": tuple(shape), "last": tuple(shape[-1:]), "one": ()}[kind]
        f.case("index_put_", WRITE % (text, "x2"), lambda x, v: write(x, key, v), x, rand(*shape, seed=3))


def put(x, key, v):
    """PyTorch's takes index tensors alone: the key is applied to the numbers of the elements first."""
    numbers = torch.arange(x.numel()).view(x.shape)[key]
    return x.reshape(-1).index_put((numbers,), v.expand(numbers.shape), accumulate=True).view(x.shape)


for text, key, shape in keys(25, False):
    shape = draw.choice([tuple(shape), tuple(shape[-1:]), ()])
    f.case("index_put", "x1:index_put(%s, x2, { accumulate = true })" % text, lambda x, v: put(x, key, v), x,
        rand(*shape, seed=4))
rows, columns = torch.tensor([0, 2, 0]), torch.tensor([1, 0, 1])
small = rand(3, 4)
f.case("index_put", "x1:index_put({ x2, x3 }, x4, { accumulate = true })",
    lambda x, r, c, v: x.index_put((r, c), v, accumulate=True), small, rows, columns, rand(3, seed=2))
f.case("index_put", "tensor.index_put(x1, { x2 }, x3)", lambda x, r, v: x.index_put((r,), v), small, rows[1:],
    rand(2, 4, seed=2))
f.case("index_put_", "(x1 * 1):index_put_({ x1.data:gt(0) }, 3)",
    lambda x: (x * 1).index_put_((x > 0,), torch.tensor(3.)), small)
f.case("index_put_", "(x1 * 1):index_put_({ x2 }, 1, { accumulate = true })",
    lambda x, r: (x * 1).index_put_((r,), torch.tensor(1.), accumulate=True), small, rows)
f.case("index_put_", WRITE % ("{ { 1, 3, 2 } }", "{ { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }"),
    lambda x: write(x, slice(0, 3, 2), torch.arange(1., 9).view(2, 4)), small)
f.write()
