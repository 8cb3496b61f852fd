"""Writes spec/reference/optim_reference.lua: what PyTorch's optimizers and schedulers do in the
scenarios of spec/accelerate/optim_trajectories_spec.lua and lr_scheduler_spec.lua. Both sides build
the same small network out of the same formulas, in float64. Run:
python3 spec/generators/gen_optim_reference.py > spec/reference/optim_reference.lua"""

import torch
from torch.optim import SGD, Adafactor, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop
from torch.optim import lr_scheduler as ls
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from transformers import optimization as tf

torch.set_default_dtype(torch.float64)
STEPS = 7


def pattern(shape, a, b):
    """Numbers that both sides compute alike: ((i * a + b) mod 17 - 8) / 16 for i = 0, 1, ..."""
    n = 1
    for s in shape:
        n *= s
    return torch.tensor([((i * a + b) % 17 - 8) / 16 for i in range(n)]).reshape(shape)


class Net:
    """x (5, 3) -> tanh(fc1) -> tanh(fc2), skipped or twice when asked -> fc3 -> (5, 2)"""

    def __init__(self, seed=0):
        shapes = [(4, 3), (4,), (4, 4), (4,), (2, 4), (2,)]
        self.p = [pattern(s, 5 + k, 3 * k + seed).requires_grad_() for k, s in enumerate(shapes)]

    def loss(self, t, repeat=1):
        w1, b1, w2, b2, w3, b3 = self.p
        h = torch.tanh(pattern((5, 3), 3, t) @ w1.T + b1)
        for _ in range(repeat):
            h = torch.tanh(h @ w2.T + b2)
        return ((h @ w3.T + b3 - pattern((5, 2), 7, 2 * t)) ** 2).mean()


def digest(*nets):
    """One number in which every parameter has another weight."""
    flat = torch.cat([p.detach().reshape(-1) for n in nets for p in n.p])
    return sum(v * ((i * 11 + 5) % 23 + 1) / 23 for i, v in enumerate(flat.tolist()))


def train(nets, optimizers, loss, before=lambda t: None, set_to_none=True, scheduler=None):
    digests = []
    for t in range(1, STEPS + 1):
        before(t)
        loss(t).backward()
        for o in optimizers:
            o.step()
        if scheduler:
            scheduler.step()
        for o in optimizers:
            o.zero_grad(set_to_none=set_to_none)
        digests.append(digest(*nets))
    return digests


class Lion(torch.optim.Optimizer):
    """PyTorch has none: Algorithm 2 of Chen et al. 2023."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                c = torch.sign(beta1 * m + (1 - beta1) * g)
                p -= group["lr"] * (c + group["weight_decay"] * p)
                m.copy_(beta2 * m + (1 - beta2) * g)


MAKERS = {
    "sgd": lambda p, **k: SGD(p, **{"lr": 0.1, **k}),
    "momentum": lambda p, **k: SGD(p, **{"lr": 0.1, "momentum": 0.9, **k}),
    "nesterov": lambda p, **k: SGD(p, **{"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.05, **k}),
    "dampening": lambda p, **k: SGD(p, **{"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02, **k}),
    "sgd_maximize": lambda p, **k: SGD(p, **{"lr": 0.01, "momentum": 0.5, "maximize": True, "weight_decay": 0.1, **k}),
    "adamw": lambda p, **k: AdamW(p, **{"lr": 0.02, **k}),
    "adamw_betas": lambda p, **k: AdamW(p, **{"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3, **k}),
    "adamw_maximize": lambda p, **k: AdamW(p, **{"lr": 0.01, "maximize": True, "weight_decay": 0.0, **k}),
}


# The options of the others, in fewer scenarios: their groups and gaps are the same code.
FEWER = {
    "adam": lambda p, **k: Adam(p, **{"lr": 0.02, "weight_decay": 0.1, **k}),
    "adam_amsgrad": lambda p, **k: Adam(p, **{"lr": 0.02, "betas": (0.5, 0.6), "amsgrad": True, **k}),
    "adam_decoupled": lambda p, **k: Adam(p, **{"lr": 0.02, "weight_decay": 0.2, "decoupled_weight_decay": True, **k}),
    "adam_maximize": lambda p, **k: Adam(p, **{"lr": 0.01, "maximize": True, "weight_decay": 0.1, **k}),
    "adamw_amsgrad": lambda p, **k: AdamW(p, **{"lr": 0.03, "betas": (0.6, 0.7), "amsgrad": True, **k}),
    "adamax": lambda p, **k: Adamax(p, **{"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1, **k}),
    "adamax_maximize": lambda p, **k: Adamax(p, **{"lr": 0.01, "maximize": True, **k}),
    "nadam": lambda p, **k: NAdam(p, **{"lr": 0.02, "weight_decay": 0.1, **k}),
    "nadam_decoupled": lambda p, **k: NAdam(
        p, **{"lr": 0.02, "betas": (0.8, 0.9), "momentum_decay": 0.2, "weight_decay": 0.3,
        "decoupled_weight_decay": True, **k}),
    "nadam_maximize": lambda p, **k: NAdam(p, **{"lr": 0.01, "maximize": True, **k}),
    "radam": lambda p, **k: RAdam(p, **{"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1, **k}),
    "radam_decoupled": lambda p, **k: RAdam(
        p, **{"lr": 0.02, "weight_decay": 0.3, "decoupled_weight_decay": True, **k}),
    "radam_maximize": lambda p, **k: RAdam(p, **{"lr": 0.01, "maximize": True, **k}),
    "adagrad": lambda p, **k: Adagrad(p, **{"lr": 0.1, **k}),
    "adagrad_decay": lambda p, **k: Adagrad(
        p, **{"lr": 0.1, "lr_decay": 0.2, "initial_accumulator_value": 0.3, "weight_decay": 0.1, "eps": 1e-3, **k}),
    "adagrad_maximize": lambda p, **k: Adagrad(p, **{"lr": 0.02, "maximize": True, **k}),
    "rmsprop": lambda p, **k: RMSprop(p, **{"lr": 0.02, "weight_decay": 0.1, **k}),
    "rmsprop_centered": lambda p, **k: RMSprop(p, **{"lr": 0.02, "alpha": 0.7, "centered": True, "eps": 1e-2, **k}),
    "rmsprop_momentum": lambda p, **k: RMSprop(p, **{"lr": 0.02, "alpha": 0.8, "momentum": 0.9, **k}),
    "rmsprop_both": lambda p, **k: RMSprop(
        p, **{"lr": 0.02, "alpha": 0.9, "momentum": 0.5, "centered": True, "eps": 1e-2, "weight_decay": 0.1, **k}),
    "rmsprop_maximize": lambda p, **k: RMSprop(p, **{"lr": 0.01, "maximize": True, **k}),
    "adafactor": lambda p, **k: Adafactor(p, **{"lr": 0.05, **k}),
    "adafactor_options": lambda p, **k: Adafactor(
        p, **{"lr": 0.6, "beta2_decay": -0.5, "eps": (0.1, 0.2), "d": 1.5, "weight_decay": 0.1, **k}),
    "adafactor_maximize": lambda p, **k: Adafactor(p, **{"lr": 0.02, "maximize": True, **k}),
    "lion": lambda p, **k: Lion(p, **{"lr": 0.02, **k}),
    "lion_options": lambda p, **k: Lion(p, **{"lr": 0.01, "betas": (0.6, 0.8), "weight_decay": 0.3, **k}),
    "lion_maximize": lambda p, **k: Lion(p, **{"lr": 0.01, "maximize": True, **k}),
}


def fewer(name, make):
    out = scenarios(make)
    names = ["plain"] if name.endswith("maximize") else ["plain", "missing", "two_groups", "cosine"]
    return {k: out[k] for k in names}


def shapes(make):
    """Digests of parameters of many shapes under gradients given by a formula."""
    sizes = [(3, 2, 4, 5), (), (7,), (700, 90), (2, 20, 1000), (40000,)]
    net = type("Params", (), {})
    net.p = [pattern(s, 5 + k, k).requires_grad_() for k, s in enumerate(sizes)]
    opt, digests = make(net.p), []
    for t in range(1, 4):
        for k, p in enumerate(net.p):
            p.grad = pattern(tuple(p.shape), 3 + k, 2 * t) * (t + 1)
        opt.step()
        digests.append(digest(net))
    return digests


def scenarios(make):
    out = {}

    net = Net()
    out["plain"] = train([net], [make(net.p)], net.loss)

    for name, none in (("missing", True), ("missing_zeroed", False)):
        net = Net()
        out[name] = train([net], [make(net.p)], lambda t: net.loss(t, 0 if t % 3 == 0 or t == 1 else 1),
            set_to_none=none)

    net = Net()
    out["tied"] = train([net], [make(net.p)], lambda t: net.loss(t, 2))

    net = Net()
    groups = [{"params": net.p[0::2], "lr": 0.04, "weight_decay": 0.2}, {"params": net.p[1::2], "weight_decay": 0.0}]
    out["two_groups"] = train([net], [make(groups)], net.loss)

    net = Net()

    def thaw(t, net=net):
        for p in net.p[:2]:
            p.requires_grad_(t > 3)

    out["frozen"] = train([net], [make(net.p)], net.loss, thaw)

    net = Net()
    opt = make(net.p[:4])

    def grow(t, net=net, opt=opt):
        if t == 4:
            opt.add_param_group({"params": net.p[4:], "lr": 0.03})
            for p in net.p[4:]:
                p.grad = None

    out["add_group"] = train([net], [opt], net.loss, grow)

    net = Net()

    def edit(t, net=net):
        if t == 4:
            with torch.no_grad():
                net.p[2].mul_(0.5)
                net.p[1].fill_(0.25)

    out["edit"] = train([net], [make(net.p)], net.loss, edit)

    net = Net()
    out["halves"] = train([net], [make(net.p[:3]), AdamW(net.p[3:], lr=0.01)], net.loss)

    a, b = Net(), Net(4)
    out["two_models"] = train([a, b], [make(a.p + b.p)], lambda t: b.loss(t) + (a.loss(t) if t % 2 == 0 else 0))

    net = Net()
    opt = make(net.p)
    out["cosine"] = train([net], [opt], net.loss, scheduler=CosineAnnealingLR(opt, T_max=5, eta_min=0.001))
    return out


def idle(Class=SGD, **options):
    """An optimizer of two groups that has nothing to do."""
    w = torch.zeros(2, requires_grad=True)
    v = torch.zeros(3, requires_grad=True)
    return Class([{"params": [w], "lr": 0.4}, {"params": [v], "lr": 0.05}], lr=1, **options)


def rates(make, n, before=None, momentum=False, opt=None):
    """The groups' learning rates (and momentum or beta1) before the first step and after each of n."""
    opt, out = opt or idle(), []
    scheduler = make(opt)
    for t in range(n + 1):
        if t > 0:
            if before:
                before(t - 1, opt)
            opt.step()
            scheduler.step()
        row = [g["lr"] for g in opt.param_groups]
        if momentum:
            row += [g["betas"][0] if "betas" in g else g["momentum"] for g in opt.param_groups]
        out.append(row)
    return out


def changed(t, opt):
    if t == 4:
        opt.param_groups[0]["lr"] = 0.2


def plateau(n=24, **options):
    """Under a metric that falls, stays, and falls again."""
    opt = idle()
    scheduler = ls.ReduceLROnPlateau(opt, **options)
    out = []
    for t in range(n):
        scheduler.step(max(3 - t / 2, 1) if t < 16 else 0.9 - t / 100)
        out.append([g["lr"] for g in opt.param_groups])
    return out


def resumed(make, at, n):
    """A scheduler that was stepped `at` times gives way to one made with last_epoch."""
    opt = idle()
    first = make(opt, -1)
    for _ in range(at):
        opt.step()
        first.step()
    return rates(lambda o: make(o, at), n, opt=opt)


def sequential(o):
    parts = [ls.ConstantLR(o, factor=0.1, total_iters=2), ls.LinearLR(o, start_factor=0.2, total_iters=3),
        ls.ExponentialLR(o, gamma=0.9)]
    return ls.SequentialLR(o, parts, milestones=[2, 6])


def warm_restarts_later(o):
    parts = [ls.LinearLR(o, start_factor=0.1, total_iters=4), ls.CosineAnnealingWarmRestarts(o, T_0=3)]
    return ls.SequentialLR(o, parts, milestones=[4])


def schedules():
    adam = lambda: idle(Adam)
    return {
        "step": rates(lambda o: StepLR(o, step_size=3, gamma=0.5), 10),
        "step_changed": rates(lambda o: StepLR(o, step_size=3, gamma=0.5), 10, changed),
        "step_resumed": resumed(lambda o, at: StepLR(o, step_size=3, gamma=0.5, last_epoch=at), 4, 6),
        "multistep": rates(lambda o: ls.MultiStepLR(o, milestones=[6, 2, 6, 3], gamma=0.5), 8),
        "multistep_resumed": resumed(lambda o, at: ls.MultiStepLR(o, milestones=[2, 6], gamma=0.5, last_epoch=at), 3,
            6),
        "exponential": rates(lambda o: ls.ExponentialLR(o, gamma=0.9), 6),
        "exponential_resumed": resumed(lambda o, at: ls.ExponentialLR(o, gamma=0.9, last_epoch=at), 3, 4),
        "constant": rates(lambda o: ls.ConstantLR(o, factor=0.25, total_iters=4), 7),
        "linear": rates(lambda o: ls.LinearLR(o, start_factor=0.2, end_factor=0.8, total_iters=4), 7),
        "linear_default": rates(lambda o: ls.LinearLR(o), 7, changed),
        "linear_resumed": resumed(lambda o, at: ls.LinearLR(o, total_iters=8, last_epoch=at), 3, 7),
        "polynomial": rates(lambda o: ls.PolynomialLR(o, total_iters=5, power=2.0), 8),
        "polynomial_resumed": resumed(lambda o, at: ls.PolynomialLR(o, total_iters=8, power=0.5, last_epoch=at), 3, 6),
        "lambda_one": rates(lambda o: LambdaLR(o, lambda t: 1 / (1 + t)), 6),
        "lambda_each": rates(lambda o: LambdaLR(o, [lambda t: 0.9**t, lambda t: min(1, (t + 1) / 4)]), 8),
        "multiplicative": rates(lambda o: ls.MultiplicativeLR(o, [lambda t: 1 - t / 10, lambda t: 1.5]), 6),
        "cosine": rates(lambda o: CosineAnnealingLR(o, T_max=4), 20),
        "cosine_min": rates(lambda o: CosineAnnealingLR(o, T_max=7, eta_min=0.01), 20),
        "cosine_changed": rates(lambda o: CosineAnnealingLR(o, T_max=7, eta_min=0.01), 20, changed),
        "cosine_resumed": resumed(lambda o, at: CosineAnnealingLR(o, T_max=7, last_epoch=at), 4, 8),
        "restarts": rates(lambda o: ls.CosineAnnealingWarmRestarts(o, T_0=3), 8),
        "restarts_longer": rates(lambda o: ls.CosineAnnealingWarmRestarts(o, T_0=2, T_mult=2, eta_min=0.01), 15),
        "one_cycle": rates(lambda o: ls.OneCycleLR(o, max_lr=0.5, total_steps=12), 12, momentum=True,
            opt=idle(momentum=0.9)),
        "one_cycle_linear": rates(
            lambda o: ls.OneCycleLR(o, max_lr=[0.5, 0.1], epochs=4, steps_per_epoch=3, anneal_strategy="linear",
                pct_start=0.5, div_factor=10.0),
            11, momentum=True, opt=adam()),
        "one_cycle_three": rates(
            lambda o: ls.OneCycleLR(o, max_lr=0.5, total_steps=14, three_phase=True, pct_start=0.4,
                final_div_factor=100.0, cycle_momentum=False), 13),
        "cyclic": rates(lambda o: ls.CyclicLR(o, base_lr=0.1, max_lr=0.5, step_size_up=3), 9, momentum=True,
            opt=idle(momentum=0.9)),
        "cyclic_half": rates(
            lambda o: ls.CyclicLR(o, base_lr=[0.1, 0.2], max_lr=0.5, step_size_up=2, step_size_down=3,
                mode="triangular2"), 11, momentum=True, opt=adam()),
        "cyclic_exp": rates(lambda o: ls.CyclicLR(o, base_lr=0.1, max_lr=0.5, step_size_up=2, mode="exp_range",
            gamma=0.9, cycle_momentum=False), 8),
        "cyclic_own": rates(
            lambda o: ls.CyclicLR(o, base_lr=0.1, max_lr=0.5, step_size_up=2, scale_fn=lambda x: 1 / (1 + x),
                scale_mode="iterations", cycle_momentum=False), 6),
        "sequential": rates(sequential, 9),
        "sequential_restarts": rates(warm_restarts_later, 11),
        "chained": rates(
            lambda o: ls.ChainedScheduler(
            [ls.ConstantLR(o, factor=0.1, total_iters=3), ls.ExponentialLR(o, gamma=0.9)]), 6),
        "plateau": plateau(factor=0.5, patience=2),
        "plateau_abs": plateau(factor=0.5, patience=1, threshold_mode="abs", threshold=0.6, cooldown=2,
            min_lr=[0.02, 0.01]),
        "plateau_max": plateau(mode="max", factor=0.3, patience=4, eps=0.01),
        "get_constant": rates(lambda o: tf.get_constant_schedule(o), 3),
        "get_constant_with_warmup": rates(lambda o: tf.get_constant_schedule_with_warmup(o, 4), 6),
        "get_linear": rates(lambda o: tf.get_linear_schedule_with_warmup(o, 3, 8), 10),
        "get_linear_resumed": resumed(lambda o, at: tf.get_linear_schedule_with_warmup(o, 3, 8, last_epoch=at), 4, 4),
        "get_cosine": rates(lambda o: tf.get_cosine_schedule_with_warmup(o, 3, 9), 11),
        "get_cosine_waves": rates(lambda o: tf.get_cosine_schedule_with_warmup(o, 2, 9, num_cycles=1.5), 11),
        "get_restarts": rates(lambda o: tf.get_cosine_with_hard_restarts_schedule_with_warmup(o, 2, 9, num_cycles=2),
            11),
        "get_polynomial": rates(lambda o: tf.get_polynomial_decay_schedule_with_warmup(o, 2, 8, lr_end=0.1, power=2.0),
            10),
        "get_inverse_sqrt": rates(lambda o: tf.get_inverse_sqrt_schedule(o, 3), 8),
        "get_inverse_sqrt_slow": rates(lambda o: tf.get_inverse_sqrt_schedule(o, 0, timescale=5), 5),
        "get_cosine_min": rates(lambda o: tf.get_cosine_with_min_lr_schedule_with_warmup(o, 2, 8, min_lr=0.2), 10),
        "get_wsd": rates(lambda o: tf.get_wsd_schedule(o, 2, 3, num_stable_steps=3, min_lr_ratio=0.1), 10),
        "get_wsd_other": rates(lambda o: tf.get_wsd_schedule(o, 3, 3, num_training_steps=9, warmup_type="cosine",
            decay_type="1-sqrt"), 11),
        "get_wsd_third": rates(lambda o: tf.get_wsd_schedule(o, 3, 3, num_training_steps=9, warmup_type="1-sqrt",
            decay_type="linear"), 11),
    }


def lua(value, depth=0):
    pad = "  " * depth
    if isinstance(value, dict):
        return "{\n" + "".join(f"{pad}  {k} = {lua(v, depth + 1)},\n" for k, v in value.items() if v != []) + pad + "}"
    if value and isinstance(value[0], list):
        return "{\n" + "".join(f"{pad}  {lua(v, depth + 1)},\n" for v in value) + pad + "}"
    text, line = "", pad + "  "
    for x in value:
        item = f"{x:.16g}, "
        if len(line) + len(item) > 120:
            text, line = text + line.rstrip() + "\n", pad + "  "
        line += item
    if not text:
        return "{ " + line.strip().rstrip(",") + " }"
    return "{\n" + text + line.rstrip() + "\n" + pad + "}"


if __name__ == "__main__":
    print("-- Written by gen_optim_reference.py with PyTorch; do not edit.")
    optim = {k: scenarios(m) for k, m in MAKERS.items()}
    optim.update({k: fewer(k, m) for k, m in FEWER.items()})
    optim["adafactor"]["shapes"] = shapes(FEWER["adafactor"])
    optim["adafactor_options"]["shapes"] = shapes(FEWER["adafactor_options"])
    print("return " + lua({"optim": optim, "schedules": schedules()}))
