"""Writes spec/reference/optim_steps_reference.lua: 20 steps of PyTorch's and schedulefree's optimizers
on the network of gen_optim_reference.py, for spec/accelerate/optim_steps_spec.lua. Run: python3
spec/generators/gen_optim_steps_reference.py > spec/reference/optim_steps_reference.lua"""

import schedulefree
import torch
from gen_optim_reference import Net, digest, lua
from torch.optim import ASGD, LBFGS, Adadelta, Muon, Rprop
from torch.optim.lr_scheduler import CosineAnnealingLR

STEPS = 20

MAKERS = {
    "adadelta": lambda p: Adadelta(p),
    "adadelta_options": lambda p: Adadelta(p, lr=0.5, rho=0.7, eps=1e-4, weight_decay=0.1),
    "adadelta_maximize": lambda p: Adadelta(p, maximize=True),
    "rprop": lambda p: Rprop(p),
    "rprop_options": lambda p: Rprop(p, lr=0.02, etas=(0.3, 1.5), step_sizes=(1e-3, 0.05)),
    "rprop_maximize": lambda p: Rprop(p, lr=1e-3, maximize=True),
    "asgd": lambda p: ASGD(p),
    "asgd_options": lambda p: ASGD(p, lr=0.1, lambd=0.05, alpha=0.6, t0=5, weight_decay=0.1),
    "asgd_maximize": lambda p: ASGD(p, lr=0.02, t0=0, maximize=True),
}


def with_options(Class, **options):
    return lambda p: Class(p, **options)


LBFGS_MAKERS = {
    "lbfgs": with_options(LBFGS, lr=0.3, max_iter=3),
    "lbfgs_wolfe": with_options(LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
    "lbfgs_short": with_options(LBFGS, lr=0.1, max_iter=4, max_eval=3, history_size=2),
    "lbfgs_bounds": with_options(
        LBFGS, lr=2, max_iter=6, history_size=3, tolerance_grad=1e-3, tolerance_change=1e-4,
        line_search_fn="strong_wolfe"),
    "lbfgs_maximize": with_options(LBFGS, lr=0.01, max_iter=2, maximize=True),
}

FREE_MAKERS = {
    "sgd_free": with_options(schedulefree.SGDScheduleFree, lr=0.2),
    "sgd_free_options": with_options(
        schedulefree.SGDScheduleFree, lr=0.3, momentum=0.7, weight_decay=0.05, warmup_steps=4, r=0.5,
        weight_lr_power=1.5),
    "adamw_free": with_options(schedulefree.AdamWScheduleFree, lr=0.02),
    "adamw_free_options": with_options(
        schedulefree.AdamWScheduleFree, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, warmup_steps=6,
        r=1.0, weight_lr_power=1.0),
}

MUON_MAKERS = {
    "muon": with_options(Muon, lr=0.02),
    "muon_options": with_options(
        Muon, lr=0.05, weight_decay=0.3, momentum=0.8, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw"),
    "muon_spectral": with_options(Muon, lr=0.02, adjust_lr_fn="spectral_unclamped"),
}



def train(make, only=lambda p: p, scheduled=True):
    net = Net()
    opt = make(only(net.p))
    schedule = CosineAnnealingLR(opt, T_max=9, eta_min=0.001) if scheduled else None
    digests = []
    for t in range(1, STEPS + 1):
        net.loss(t, 0 if t % 3 == 0 else 1).backward()  # every third step leaves p[2], p[3] alone
        opt.step()
        if schedule:
            schedule.step()
        for p in net.p:
            p.grad = None
        digests.append(digest(net))
    return digests


def minimize(make):
    net = Net()
    opt = make(net.p)

    def closure():
        opt.zero_grad()
        loss = net.loss(1)
        loss.backward()
        return loss

    digests = []
    for _ in range(STEPS):
        opt.step(closure)
        digests.append(digest(net))
    state = opt.state[net.p[0]]
    return {"digests": digests, "counts": [state["n_iter"], state["func_evals"]]}


def schedule_free(make):
    """Trains 10 steps, evaluates, trains 10 more, evaluates."""
    net = Net()
    opt = make(net.p)
    digests = []
    for t in range(1, STEPS + 1):
        opt.train()
        net.loss(t, 0 if t % 3 == 0 else 1).backward()
        opt.step()
        opt.zero_grad()
        digests.append(digest(net))
        if t % 10 == 0:
            opt.eval()
            digests.append(digest(net))
    return digests


if __name__ == "__main__":
    print("-- Written by gen_optim_steps_reference.py with PyTorch and schedulefree; do not edit.")
    print("return " + lua({
        "trained": {k: train(m) for k, m in MAKERS.items()},
        "plain": {k: train(MAKERS[k], scheduled=False) for k in ("asgd", "asgd_options", "adadelta", "rprop")},
        "minimized": {k: minimize(m) for k, m in LBFGS_MAKERS.items()},
        "free": {k: schedule_free(m) for k, m in FREE_MAKERS.items()},
        "muon": {k: train(m, lambda p: p[0::2], False) for k, m in MUON_MAKERS.items()},
    }))
