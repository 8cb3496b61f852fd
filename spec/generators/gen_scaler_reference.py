"""Writes random programs around PyTorch's GradScaler and what they give: several optimizers, accumulation, clipping,
overflow in one of two, steps that are left out, calls that are refused.

    python3 spec/generators/gen_scaler_reference.py > spec/reference/scaler_reference.lua
    python3 spec/generators/gen_scaler_reference.py 2000 7 > more.lua       # other programs: their number, a seed
    build/accel-run spec/support/scaler_programs.lua more.lua            # compares
"""
import random
import sys

import torch

START = [[0.5, -1.25], [2.0, 0.75], [-0.25, 1.5]]
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.02),
}


class Run:
    """Runs a program's actions as they are made; `actions` is the program."""

    def __init__(self, pick):
        self.scale, self.interval = 2.0 ** pick.randint(0, 16), pick.randint(1, 4)
        self.names = [pick.choice(sorted(OPTIMIZERS)) for _ in range(pick.randint(1, 3))]
        self.params = [torch.tensor(start, requires_grad=True) for start in START[:len(self.names)]]
        self.optimizers = [OPTIMIZERS[name]([p]) for name, p in zip(self.names, self.params)]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale, growth_interval=self.interval)
        self.actions, self.seen = [], []

    def do(self, name, *args):
        self.actions.append([name, *args])
        return getattr(self, name)(*args)

    def backward(self, *factors):
        loss = sum((p * p).sum() * f for p, f in zip(self.params, factors) if f != 0)
        self.scaler.scale(loss).backward()

    def zero_grad(self, i):
        self.optimizers[i].zero_grad()

    def unscale(self, i):
        self.scaler.unscale_(self.optimizers[i])

    def clip_norm(self, i, limit):
        self.seen.append(torch.nn.utils.clip_grad_norm_([self.params[i]], limit).item())

    def clip_value(self, i, limit):
        torch.nn.utils.clip_grad_value_([self.params[i]], limit)

    def step(self, i):
        self.scaler.step(self.optimizers[i])

    def update(self, *scale):
        self.scaler.update(*scale)
        self.seen.append(self.scaler.get_scale())

    def refused(self, name, *args):
        self.actions.append(["refused", name, *args])
        try:
            getattr(self, name)(*args)
        except (RuntimeError, AssertionError):
            return
        sys.exit("%s %s is not refused" % (name, args))


def step_of(run, pick, i):
    """What a loop does with the gradients of one optimizer. Returns whether the scaler has looked at them."""
    looked = pick.random() < 0.6
    if looked:
        run.do("unscale", i)
        if pick.random() < 0.1:
            run.refused("unscale", i)
        if pick.random() < 0.6:
            run.do("clip_norm", i, pick.choice([0.25, 1.0, 100.0]))
        if pick.random() < 0.3:
            run.do("clip_value", i, pick.choice([0.125, 0.5]))
    if pick.random() < 0.75:
        run.do("step", i)
        looked = True
        if pick.random() < 0.1:
            run.refused(pick.choice(["step", "unscale"]), i)
    return looked


def iteration(run, pick):
    ids = list(range(len(run.params)))
    for _ in range(pick.choice([1, 1, 2, 3])):
        run.do("backward", *[pick.choice([0.5, 1.0, -0.25]) for _ in ids])
    if pick.random() < 0.25:
        run.do("backward", *[pick.choice([0.0, "inf"]) if k else "inf" for k in pick.sample(ids, len(ids))])
    pick.shuffle(ids)
    if any([step_of(run, pick, i) for i in ids]):
        run.do("update", *([2.0 ** pick.randint(0, 10)] if pick.random() < 0.1 else []))
        if pick.random() < 0.1:
            run.refused("update")
    pick.shuffle(ids)
    for i in ids:
        run.do("zero_grad", i)


def lua(value):
    if isinstance(value, list):
        return "{ " + ", ".join(lua(v) for v in value) + " }" if value else "{}"
    if isinstance(value, str):
        return '"%s"' % value
    return "math.huge" if value == float("inf") else "0 / 0" if value != value else "%.9g" % value


def program(pick):
    run = Run(pick)
    plain = run.backward
    run.backward = lambda *factors: plain(*[float(f) for f in factors])
    for _ in range(pick.randint(3, 8)):
        iteration(run, pick)
    yield "scale = %s, interval = %d, optimizers = %s," % (lua(run.scale), run.interval, lua(run.names))
    yield "actions = {"
    line = " "
    for action in run.actions:
        words = lua([a + 1 if k == (2 if action[0] == "refused" else 1) and isinstance(a, int) else a
                     for k, a in enumerate(action)]) + ","
        words = words.replace('"inf"', "math.huge")
        if len(line) + len(words) > 98:
            yield line
            line = " "
        line += " " + words
    yield line
    yield "},"
    yield "seen = %s," % lua(run.seen)
    yield "values = %s," % lua([p.tolist() for p in run.params])


def main(count=50, seed=1):
    pick = random.Random(seed)
    print("-- Made by gen_scaler_reference.py. `seen`: the norm of each clip_norm and the scale after each update.")
    print("return {")
    for _ in range(count):
        print("  {")
        for line in program(pick):
            print("    " + line)
        print("  },")
    print("}")


main(*[int(a) for a in sys.argv[1:]])
