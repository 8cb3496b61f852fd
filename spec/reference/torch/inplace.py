"""In-place ops on views while gradients are recorded: written cases, and programs drawn at random
that run here and there.

A program works on b = 2 x1 (or a detached copy of x1), makes views of it and of views, changes some
in place and uses others in between."""
import random
import torch
from common import Family, rand

f = Family(__file__)


def lua(*lines):
    return "(function() %s end)()" % " ".join(lines)


def setitem(x, v):
    b = torch.zeros(3, 3)
    b[0] = x
    b[1:3] = v
    b[2].mul_(b[0].clone())
    return b


def rows(x):
    b = torch.zeros(4, 3)
    h = x
    for i in range(4):
        b[i] = h
        h = torch.tanh(h * x)
    return b.cumsum(0)


def old_view(x, v):
    b = x * 1
    first, last = b[0], b[-1]
    b.mul_(v)
    first.add_(last)
    return b, first, last


def change(x, how):
    b = x * 2
    row = b[0]
    return how(b).mul_(x[0].sum()), row


def unbound(x):
    b = x * 1
    p, q = b[1], b[2]
    p.mul_(q.clone())
    q.add_(p)
    return b


f.case("_copy", lua("local b = tensor.zeros({ 3, 3 }, { dtype = 'float64' })", "b[1] = x1", "b[{ { 2, 3 } }] = x2",
    "b[3]:mul_(b[1]:clone())", "return b"),
       setitem, rand(3), rand(2, 3, seed=1))
f.case("_copy", lua("local b, h = tensor.zeros({ 4, 3 }, { dtype = 'float64' }), x1",
    "for i = 1, 4 do b[i] = h h = (h * x1):tanh() end", "return b:cumsum(1)"),
       rows, rand(3))
f.case("mul", lua("local b = x1 * 1", "local first, last = b[1], b[-1]", "b:mul_(x2)", "first:add_(last)",
    "return b, first, last"),
       old_view, rand(3, 2), rand(2, seed=1))
f.case("mul", lua("local b = x1 * 1", "local p, q = b:narrow(1, 2, 2):unbind(1)", "p:mul_(q:clone())", "q:add_(p)",
    "return b"),
       unbound, rand(3, 2))  # PyTorch refuses unbind's results and says to index instead: it does
f.case("exp", lua("local b = x1 * 2", "b:narrow(2, 1, 2):exp_()", "return b"),
       lambda x: (lambda b: (b.narrow(1, 0, 2).exp_(), b)[-1])(x * 2), rand(2, 3))
f.case("masked_fill", lua("local b = x1 * 2", "b:narrow(2, 1, 2):masked_fill_(x2:gt(0), 3)", "return b * b"),
       lambda x, m: (lambda b: (b.narrow(1, 0, 2).masked_fill_(m > 0, 3), b * b)[-1])(x * 2), rand(2, 3),
           rand(2, 2, seed=2))
f.case("index_add",
    lua("local b = x1 * 2", "b:transpose(1, 2):index_add_(1, tensor.tensor({ 2, 0 }, { dtype = 'int64' }), x2)",
    "return b"),
       lambda x, s: (lambda b: (b.t().index_add_(0, torch.tensor([2, 0]), s), b)[-1])(x * 2), rand(2, 3),
           rand(2, 2, seed=3))
f.case("diagonal", lua("local b = x1 * 2", "b:diagonal():mul_(x2)", "return b:exp()"),
       lambda x, s: (lambda b: (b.diagonal().mul_(s), b.exp())[-1])(x * 2), rand(3, 3), rand(3, seed=3))
f.case("_copy", lua("local b = x1:clone():detach()", "local v = b:view(3, 2)", "v[2]:copy_(x2)", "return b * x1"),
       lambda x, s: (lambda b: (b.view(3, 2)[1].copy_(s), b * x)[-1])(x.detach().clone()), rand(2, 3), rand(2, seed=3))
f.case("_copy", lua("local b = x1:detach():transpose(1, 2)", "local d = b:clone():narrow(1, 2, 2):detach()",
    "d[1]:mul_(x2)", "return d"),
       lambda x, s: (lambda d: (d[0].mul_(s), d)[-1])(x.detach().t().clone()[1:3].detach()), rand(2, 3),
           rand(2, seed=3))


class Program:
    """Lines in both languages at once; `shapes` by name of variable."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.py, self.lu, self.shapes = [], [], {}
        if self.r.random() < 0.7: self.both("b", "x1 * 2", "x1 * 2", (3, 4))
        else: self.both("b", "x1:detach():clone()", "x1.detach().clone()", (3, 4))
        self.both("acc", "x2:sum()", "x2.sum()", ())
        self.views = ["b"]
        for _ in range(self.r.randint(5, 12)): self.r.choice(
            [self.view, self.view, self.change, self.change, self.use])()
        self.change()
        self.results = ["b", "acc"] + self.r.sample(self.views, min(2, len(self.views)))

    def both(self, name, lu, py, shape=None):
        self.lu.append("local %s = %s" % (name, lu) if name and name not in self.shapes else "%s = %s" % (name, lu)
            if name else lu)
        self.py.append("%s = %s" % (name, py) if name else py)
        if name: self.shapes[name] = shape

    def pick(self):
        return self.r.choice(self.views)

    def view(self):
        of = self.pick()
        s, name = list(self.shapes[of]), "v%d" % len(self.views)
        if not s: return
        d = self.r.randrange(len(s))
        kind = self.r.choice(["narrow", "select", "transpose", "unsqueeze", "step", "flat"])
        if kind == "narrow":
            start = self.r.randrange(s[d])
            n = self.r.randint(1, s[d] - start)
            lu, py = "%s:narrow(%d, %d, %d)" % (of, d + 1, start + 1, n), "%s.narrow(%d, %d, %d)" % (of, d, start, n)
            s[d] = n
        elif kind == "select" and len(s) > 1:
            at = self.r.randrange(s[d])
            lu, py = "%s:select(%d, %d)" % (of, d + 1, at + 1), "%s.select(%d, %d)" % (of, d, at)
            del s[d]
        elif kind == "transpose" and len(s) > 1:
            e = (d + 1) % len(s)
            lu, py = "%s:transpose(%d, %d)" % (of, d + 1, e + 1), "%s.transpose(%d, %d)" % (of, d, e)
            s[d], s[e] = s[e], s[d]
        elif kind == "unsqueeze" and len(s) < 4:
            lu, py = "%s:unsqueeze(%d)" % (of, d + 1), "%s.unsqueeze(%d)" % (of, d)
            s.insert(d, 1)
        elif kind == "step" and s[0] > 1:
            lu, py = "%s[{ { 1, -1, 2 } }]" % of, "%s[::2]" % of
            s[0] = (s[0] + 1) // 2
        elif kind == "flat" and of == "b":
            lu, py, s = "b:view(-1)", "b.view(-1)", [12]
        else: return
        self.both(name, lu, py, tuple(s))
        self.views.append(name)

    def change(self):
        v = self.pick()
        s = self.shapes[v]
        kind = self.r.choice(["number", "leaf", "element", "zero", "swap"])
        if kind == "number": self.both(None, "%s:mul_(1.5)" % v, "%s.mul_(1.5)" % v)
        elif kind == "leaf" and s and s[-1] == 4: self.both(None, "%s:mul_(x2)" % v, "%s.mul_(x2)" % v)
        elif kind == "element": self.both(None, "%s:add_(x2[2] * x1[1][1])" % v, "%s.add_(x2[1] * x1[0][0])" % v)
        elif kind == "zero" and v != "b":  # of all of b: that leaves x1 no gradient here, and zeros in PyTorch
            self.both(None, "%s:zero_()" % v, "%s.zero_()" % v)
        elif kind == "swap":
            others = [o for o in self.views if self.shapes[o] == s]
            o = self.r.choice(others)
            self.both(None, "%s:copy_((%s * 0.7 + x2[1]):sin())" % (v, o),
                "%s.copy_((%s * 0.7 + x2[0]).sin())" % (v, o))

    def use(self):
        v = self.pick()
        self.both("acc", "acc + (%s * 0.5):sum()" % v, "acc + (%s * 0.5).sum()" % v, ())


def program(seed):
    p = Program(seed)
    scope = {"torch": torch}
    exec("def run(x1, x2):\n  %s\n  return %s" % ("\n  ".join(p.py), ", ".join(p.results)), scope)
    try:
        f.case("_copy", lua(*p.lu, "return " + ", ".join(p.results)), scope["run"], rand(3, 4, seed=seed),
            rand(4, seed=seed))
    except RuntimeError as e:  # PyTorch refuses to zero a view whose base has got a history since
        if "a leaf Variable that requires grad" not in str(e): raise


for seed in range(1, 41): program(seed)

# Another shape in place. PyTorch counts dims from 0.
for name, here, there in [("squeeze_", "2", "1"), ("unsqueeze_", "1", "0"), ("transpose_", "1, 3", "0, 2"),
                          ("swapaxes_", "1, 3", "0, 2"), ("swapdims_", "2, -1", "1, -1"), ("t_", "", "")]:
    shape = (2, 3) if name == "t_" else (2, 1, 3)
    f.case(name, lua("local b = x1 * 2", "local row = b[1]", "b:%s(%s):mul_(x1[1]:sum())" % (name, here),
               "return b, row"),
           eval("lambda x: change(x, lambda b: b.%s(%s))" % (name, there)), rand(*shape))
f.write()
