"""The optimizer database, and PyTorch's schedulers: parameters after some steps, rates after each."""
import torch

from operators import Entry, judge
from texts import Sample, Unsupported

STEPS = 6
BODY = """local p, q, t = {p}, {q}, {t} local o = optim.{name}({{ p, q }}, {options})
for _ = 1, {steps} do o:step(function() o:zero_grad()
local l = (((p - t) ^ 2):mean() + ((q - p:sum()) ^ 2):mean()) * {sign}
l:backward() return l end) end return p:detach(), q:detach()""".replace("\n", " ")

# (name, PyTorch's constructor of the optimizer, Lua's): rates of 30 steps
S = torch.optim.lr_scheduler
SCHEDULERS = [
    ("LambdaLR", lambda o: S.LambdaLR(o, lambda e: 0.9 ** e), "LambdaLR(o, function(e) return 0.9 ^ e end)"),
    ("MultiplicativeLR", lambda o: S.MultiplicativeLR(o, lambda e: 0.9),
        "MultiplicativeLR(o, function() return 0.9 end)"),
    ("StepLR", lambda o: S.StepLR(o, 7, gamma=0.3), "StepLR(o, { step_size = 7, gamma = 0.3 })"),
    ("MultiStepLR", lambda o: S.MultiStepLR(o, [3, 3, 11], gamma=0.4),
        "MultiStepLR(o, { milestones = { 3, 3, 11 }, gamma = 0.4 })"),
    ("ConstantLR", lambda o: S.ConstantLR(o, 0.25, 6), "ConstantLR(o, { factor = 0.25, total_iters = 6 })"),
    ("LinearLR", lambda o: S.LinearLR(o, 0.2, 0.9, 8),
        "LinearLR(o, { start_factor = 0.2, end_factor = 0.9, total_iters = 8 })"),
    ("ExponentialLR", lambda o: S.ExponentialLR(o, 0.85), "ExponentialLR(o, { gamma = 0.85 })"),
    ("CosineAnnealingLR", lambda o: S.CosineAnnealingLR(o, 9, eta_min=0.01),
        "CosineAnnealingLR(o, { T_max = 9, eta_min = 0.01 })"),
    ("CosineAnnealingWarmRestarts", lambda o: S.CosineAnnealingWarmRestarts(o, 4, T_mult=2, eta_min=0.01),
        "CosineAnnealingWarmRestarts(o, { T_0 = 4, T_mult = 2, eta_min = 0.01 })"),
    ("PolynomialLR", lambda o: S.PolynomialLR(o, 12, 2.0), "PolynomialLR(o, { total_iters = 12, power = 2 })"),
    ("CyclicLR", lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=5, step_size_down=3, mode="triangular2"),
        "CyclicLR(o, { base_lr = 0.01, max_lr = 0.2, step_size_up = 5, step_size_down = 3, mode = 'triangular2' })"),
    ("CyclicLR [exp_range]", lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=4, mode="exp_range", gamma=0.9),
        "CyclicLR(o, { base_lr = 0.01, max_lr = 0.2, step_size_up = 4, mode = 'exp_range', gamma = 0.9 })"),
    ("OneCycleLR", lambda o: S.OneCycleLR(o, 0.5, total_steps=40, pct_start=0.4),
        "OneCycleLR(o, { max_lr = 0.5, total_steps = 40, pct_start = 0.4 })"),
    ("OneCycleLR [three_phase]",
        lambda o: S.OneCycleLR(o, 0.5, total_steps=40, three_phase=True, anneal_strategy="linear"),
        "OneCycleLR(o, { max_lr = 0.5, total_steps = 40, three_phase = true, anneal_strategy = 'linear' })"),
    ("SequentialLR", lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1, 4), S.ExponentialLR(o, 0.9)], [4]),
        "SequentialLR(o, { schedulers = { S.ConstantLR(o, { factor = 0.1, total_iters = 4 }), "
        "S.ExponentialLR(o, { gamma = 0.9 }) }, milestones = { 4 } })"),
    ("ChainedScheduler", lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 4), S.ExponentialLR(o, 0.9)]),
        "ChainedScheduler({ S.ConstantLR(o, { factor = 0.1, total_iters = 4 }), "
        "S.ExponentialLR(o, { gamma = 0.9 }) })"),
    ("ReduceLROnPlateau", lambda o: S.ReduceLROnPlateau(o, factor=0.3, patience=2, cooldown=1, min_lr=1e-3),
        "ReduceLROnPlateau(o, { factor = 0.3, patience = 2, cooldown = 1, min_lr = 1e-3 })"),
]


def optimizer_request(info, options, dtype):
    sample, steps = Sample(), STEPS
    if info.optim_cls is torch.optim.LBFGS and dtype == torch.float32:
        # the next iteration makes the rounding of the first three a thousand times as large
        steps, options = 1, {"max_iter": 3, **options}
    torch.manual_seed(1)
    p, q = (torch.randn(4, 3, dtype=dtype, requires_grad=True) for _ in range(2))
    t = torch.randn(4, 3, dtype=dtype)
    sign = -1 if options.get("maximize") else 1
    named = {}
    for name, value in options.items():
        if isinstance(value, torch.nn.Parameter):
            raise Unsupported("a parameter as an option")
        named[name] = sample.text(value)
    text = BODY.format(name=info.optim_cls.__name__, options=sample.options(named), steps=steps, sign=sign,
        p=sample.text(p.detach().clone().requires_grad_()), q=sample.text(q.detach().clone().requires_grad_()),
        t=sample.text(t))
    optimizer = info.optim_cls([p, q], **options)

    def closure():
        optimizer.zero_grad()
        loss = (((p - t) ** 2).mean() + ((q - p.sum()) ** 2).mean()) * sign
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return sample.tensors, text, "{}", [p.detach(), q.detach()], [], \
        f"optim.{info.optim_cls.__name__}({sample.options(named)})", None, None


def scheduler_request(make, text):
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    scheduler, rates = make(optimizer), []
    for step in range(30):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if isinstance(scheduler, S.ReduceLROnPlateau):
            scheduler.step(1 / (1 + min(step, 8)))
        else:
            scheduler.step()
    body = "local S = lr_scheduler local o = optim.SGD({ T[1] }, { lr = 0.1, momentum = 0.9 }) " \
        f"local s, rates = S.{text}, {{}} T[1].grad = T[1].data * 0 for step = 0, 29 do " \
        "rates[step + 1] = o.param_groups[1].lr o:step() " + \
        ("s:step(1 / (1 + math.min(step, 8)))" if "Plateau" in text else "s:step()") + \
        " end return tensor(rates, { dtype = 'float64' })"
    return [weight], body, "{}", [torch.tensor(rates, dtype=torch.float64)], [], f"lr_scheduler.{text}", None, None


def settle(accel, entry, asked):
    if asked:
        accel.ask([one[:3] for one in asked])
        for one, answer in zip(asked, accel.answers()):
            judge(None, entry, one, answer)


def run(accel, wanted):
    from torch.testing._internal.common_optimizers import optim_db
    found = []
    for info in optim_db:
        name = "optim." + info.optim_cls.__name__
        if wanted and name not in wanted:
            continue
        entry = Entry(name)
        found.append(entry)
        if info.optim_cls.__name__ not in accel.has["functions"]["optim"]:
            entry.missing = True
            continue
        asked = []
        for dtype in torch.float32, torch.float64:
            for made in info.optim_inputs_func(device="cpu"):
                entry.drawn += 1
                try:
                    asked.append(optimizer_request(info, made.kwargs, dtype))
                except (Unsupported, RuntimeError) as why:
                    entry.skip(str(why).splitlines()[0][:60])
        settle(accel, entry, asked)
    for name, make, text in SCHEDULERS:
        full = "lr_scheduler." + name
        if wanted and full not in wanted:
            continue
        entry = Entry(full)
        entry.drawn = 1
        found.append(entry)
        if name.partition(" ")[0] not in accel.has["functions"]["lr_scheduler"]:
            entry.missing = True
        else:
            settle(accel, entry, [scheduler_request(make, text)])
    covered = {name.partition(" ")[0] for name, _, _ in SCHEDULERS} | {"LRScheduler"}
    for name in [] if wanted else sorted(set(S.__all__) - covered):  # new ones of a later PyTorch
        entry = Entry("lr_scheduler." + name)
        entry.missing = True
        found.append(entry)
    return found
