"""Writes saving_reference.lua: small files as safetensors and torch.save write them, in hexadecimal.

    python3 gen_saving_reference.py > saving_reference.lua        (needs torch, numpy and safetensors)

With the path of accel-run as argument it checks the other direction instead: files that accel-run writes are
opened by torch.load(weights_only=True) and safetensors.
"""
import collections
import copy
import io
import subprocess
import sys
import tempfile
import zipfile

import torch
from safetensors import safe_open
from safetensors.torch import save

TYPES = dict(float32=torch.float32, float64=torch.float64, float16=torch.float16, bfloat16=torch.bfloat16,
             int64=torch.int64, int32=torch.int32, uint8=torch.uint8, bool=torch.bool)


def tensors():
    found = {}
    for name, dtype in TYPES.items():
        found[name + ".matrix"] = torch.tensor([[1, 0, 1], [0, 1, 1]]).to(dtype)
        found[name + ".scalar"] = torch.tensor(1).to(dtype)
        found[name + ".empty"] = torch.zeros(3, 0, 2, dtype=dtype)
        found[name + ".odd"] = torch.ones(1, 3, 1, 1, 5, dtype=dtype)
    return found


def saved(value, **how):
    f = io.BytesIO()
    torch.save(value, f, **how)
    return f.getvalue()


def stripped(data):
    """The archive without entries that hold nothing of the value, and without padding: a smaller reference."""
    f = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(f, "w") as new:
        for entry in old.infolist():
            new.writestr(zipfile.ZipInfo(entry.filename), old.read(entry.filename))
    return f.getvalue()


def training():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    return dict(model=model.state_dict(), optimizer=optimizer.state_dict(), scheduler=scheduler.state_dict())


def values():
    base = torch.arange(6.0).reshape(2, 3)
    shared = [1, 2]
    return dict(none=None, text="é", raw=b"\x00\xff\x80", big=2**53, negative=-300, long=2**40, pi=3.25, true=True,
                pair=(1, "two"), nested={"a": [], 7: {}, True: [shared, shared]}, base=base, turned=base.t(),
                row=base[1],
                parameter=torch.nn.Parameter(torch.ones(2)), ordered=collections.OrderedDict(z=1, a=2),
                size=torch.Size([2, 3]), leaf=torch.ones(1, requires_grad=True))


def forms():
    """What has another form in Lua."""
    return dict(counter=collections.Counter([8, 3, 8]), default=collections.defaultdict(list, a=[1]),
                eps=(None, 1e-3), lists=[1, None, [None]], none=None, dtype=torch.int8, device=torch.device("cuda", 1),
                cpu=torch.device("cpu"), layout=torch.strided, set={4}, frozen=frozenset({5}), complex=1 + 2j,
                size=torch.Size([2]), array=bytearray(b"\x00\xff"))


def mixed():
    """Weights, and beside them what has no form in Lua."""
    import argparse
    import numpy
    p = torch.nn.Parameter(torch.ones(1))
    p.note = "an attribute"
    return dict(model=dict(w=torch.ones(2)), p=p, args=argparse.Namespace(lr=0.1), numpy=[numpy.ones(1), 2],
                int8=torch.ones(3, dtype=torch.int8), float8=torch.ones(2).to(torch.float8_e5m2), inexact=2**53 + 1,
                huge=2**70, dict={(1, 2): 3, "k": 4}, function=len, deque=collections.deque([1]), last=torch.ones(1))


def moved(o, scheduler, steps):
    rows = []
    for _ in range(steps):
        o.step()
        scheduler.step()
        rows.append([round(group[key], 12) for group in o.param_groups for key in ("lr", "momentum")])
    return rows


def schedules(given=None):
    """States of schedulers after 5 steps, and the learning rates and momenta of 6 more; those from given states on,
    too."""
    s, made = torch.optim.lr_scheduler, []
    for name, make in (("multistep", lambda o: s.MultiStepLR(o, [2, 7, 7, 9], 0.5)),
                       ("multistep_first", lambda o: s.MultiStepLR(o, [1, 2, 8], 0.5)),
                       ("onecycle", lambda o: s.OneCycleLR(o, 0.4, total_steps=12)),
                       ("onecycle_three", lambda o: s.OneCycleLR(o, [0.4, 0.3], total_steps=14, three_phase=True,
                                                                 anneal_strategy="linear")),
                       ("onecycle_flat", lambda o: s.OneCycleLR(o, 0.4, total_steps=12, cycle_momentum=False)),
                       ("cyclic", lambda o: s.CyclicLR(o, 0.1, 0.4, step_size_up=3)),
                       ("lambda", lambda o: s.LambdaLR(o, lambda epoch: 0.95**epoch)),
                       ("sequence", lambda o: s.SequentialLR(o, [s.ConstantLR(o, 0.5, 3),
                                                                 s.MultiStepLR(o, [1, 2, 2], 0.5)], [7]))):
        def fresh():
            a, b = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
            o = torch.optim.SGD([dict(params=[a]), dict(params=[b], lr=0.2)], lr=0.1, momentum=0.8)
            return o, make(o)

        o, scheduler = fresh()
        moved(o, scheduler, 5)
        entry = copy.deepcopy(dict(name=name, optimizer=o.state_dict(), scheduler=scheduler.state_dict()))
        entry["rows"] = moved(o, scheduler, 6)
        if given:
            o, scheduler = fresh()
            o.load_state_dict(given[name]["optimizer"])
            scheduler.load_state_dict(given[name]["scheduler"])
            entry["loaded"] = moved(o, scheduler, 6)
        made.append(entry)
    return made


def adafactor():
    p = torch.nn.Parameter(torch.ones(2, 2))
    return torch.optim.Adafactor([p]).state_dict()


def write():
    print("-- Written by gen_saving_reference.py with PyTorch and safetensors.\nreturn {")
    print(f'  safetensors = "{save(tensors(), metadata=dict(format="pt", note="é")).hex()}",')
    print(f'  training = "{stripped(saved(training())).hex()}",')
    print(f'  types = "{stripped(saved(tensors())).hex()}",')
    print("  values = {")
    for protocol in 2, 3, 4, 5:
        print(f'    [{protocol}] = "{stripped(saved(values(), pickle_protocol=protocol)).hex()}",')
    print("  },\n  whole = \"%s\"," % saved(dict(x=torch.tensor([1.0, -2.0]))).hex())
    for name, value in ("", dict(x=torch.tensor([1.0]))), ("_values", values()), ("_types", tensors()):
        print(f'  legacy{name} = "{saved(value, _use_new_zipfile_serialization=False).hex()}",')
    print("  complex = \"%s\"," % stripped(saved(torch.ones(1, dtype=torch.complex64))).hex())
    print("  forms = {")
    for protocol in 2, 4, 5:
        print(f'    [{protocol}] = "{stripped(saved(forms(), pickle_protocol=protocol)).hex()}",')
    print("  },")
    for name, value in ("mixed", mixed()), ("schedules", schedules()), ("adafactor", adafactor()):
        print(f'  {name} = "{stripped(saved(value)).hex()}",')
    print(f'  legacy_mixed = "{saved(mixed(), _use_new_zipfile_serialization=False).hex()}",')
    print("  refused = {")
    import fractions
    for name, value in [("class", fractions.Fraction(1, 2)), ("function", len),
                        ("complex32", dict(x=torch.ones(1, dtype=torch.complex32))),
                        ("int8", dict(x=[torch.ones(1, dtype=torch.int8)])), ("huge", [2**63]),
                        ("inexact", [2**53 + 1]), ("tuple_key", {(1, 2): 3}), ("module", torch.nn.Linear(1, 1))]:
        shown = f'["{name}"]' if name == 'function' else name
        print(f'    {shown} = "{stripped(saved(value)).hex()}",')
    print("  },\n}")


WRITER = """
local core, utils, nn = require "accelerate.core", require "accelerate.utils", require "accelerate.nn"
local all = {}
for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" } do
  all[dtype .. ".matrix"] = core.tensor({ { 1, 0, 1 }, { 0, 1, 1 } }, { dtype = dtype })
  all[dtype .. ".scalar"] = core.tensor(1, { dtype = dtype })
  all[dtype .. ".empty"] = core.zeros({ 3, 0, 2 }, { dtype = dtype })
  all[dtype .. ".odd"] = core.ones({ 1, 3, 1, 1, 5 }, { dtype = dtype })
end
local folder = arg[1]
utils.save(all, folder .. "/types.safetensors")
utils.save(all, folder .. "/types.pt")
local base, shared = core.arange(6, { dtype = "float32" }):view(2, 3), { 1, 2 }
utils.save({ text = "\\195\\169", raw = "\\0\\255\\128", big = 2 ^ 53, negative = -300, long = 2 ^ 40, pi = 3.25,
  ["true"] = true, pair = { 1, "two" }, a = shared, b = shared, keys = { [7] = 1, [2.5] = 2, [true] = 3 }, inf = 1 / 0,
  base = base, turned = base:t(), row = base[2], parameter = nn.Parameter(core.ones(2)), minus = -0.0,
  leaf = core.ones(1, { requires_grad = true }) }, folder .. "/values.pt")
utils.save(utils.load(folder .. "/forms.pt"), folder .. "/forms_back.pt")
utils.save(utils.load(folder .. "/forms.pt"), folder .. "/forms.safetensors")
utils.save(utils.load(folder .. "/forms.safetensors"), folder .. "/forms_again.pt")

local optim, made = require "accelerate.optim", {}
local S = optim.lr_scheduler
local makers = {
  multistep = function(o) return S.MultiStepLR(o, { 2, 7, 7, 9 }, 0.5) end,
  multistep_first = function(o) return S.MultiStepLR(o, { 1, 2, 8 }, 0.5) end,
  onecycle = function(o) return S.OneCycleLR(o, 0.4, 12) end,
  onecycle_three = function(o)
    return S.OneCycleLR(o, { 0.4, 0.3 }, { total_steps = 14, three_phase = true, anneal_strategy = "linear" })
  end,
  onecycle_flat = function(o) return S.OneCycleLR(o, 0.4, { total_steps = 12, cycle_momentum = false }) end,
  cyclic = function(o) return S.CyclicLR(o, 0.1, 0.4, 3) end,
  sequence = function(o)
    return S.SequentialLR(o, { S.ConstantLR(o, 0.5, 3), S.MultiStepLR(o, { 1, 2, 2 }, 0.5) }, { 7 })
  end,
  lambda = function(o) return S.LambdaLR(o, function(epoch) return 0.95 ^ epoch end) end,
}
for name, make in pairs(makers) do
  local params = { nn.Parameter(core.ones(1)), nn.Parameter(core.ones(1)) }
  local groups = { { params = { params[1] } }, { params = { params[2] }, lr = 0.2 } }
  local o = optim.SGD(groups, { lr = 0.1, momentum = 0.8 })
  local scheduler = make(o)
  for _ = 1, 5 do
    o:step()
    scheduler:step()
  end
  made[name] = { optimizer = o:state_dict(), scheduler = scheduler:state_dict() }
end
utils.save(made, folder .. "/schedules.pt")
local p = nn.Parameter(core.ones(2, 2))
utils.save({ adafactor = optim.Adafactor({ p }):state_dict(), lbfgs = optim.LBFGS({ p }):state_dict() },
  folder .. "/optimizers.pt")
"""


def check_optimizers(states):
    for name, kind in ("adafactor", torch.optim.Adafactor), ("lbfgs", torch.optim.LBFGS):
        ps = [torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
        for p, load in zip(ps, (False, True)):
            o = kind([p])
            if load:
                o.load_state_dict(states[name])

            def closure():
                o.zero_grad()
                loss = (p * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).pow(2).sum()
                loss.backward()
                return loss

            for _ in range(3):
                o.step(closure)
        assert torch.equal(*ps), name


def check(host):
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/write.lua", "w") as f:
            f.write(WRITER)
        torch.save(forms(), folder + "/forms.pt")
        subprocess.run([host, folder + "/write.lua", folder], check=True)
        expected = tensors()
        with safe_open(folder + "/types.safetensors", "pt") as f:
            found = {name: f.get_tensor(name) for name in f.keys()}
        for got in found, torch.load(folder + "/types.pt", weights_only=True):
            assert sorted(got) == sorted(expected)
            for name, t in expected.items():
                assert got[name].dtype == t.dtype and got[name].shape == t.shape and torch.equal(got[name], t), name
        v = torch.load(folder + "/values.pt", weights_only=True)
        assert (v["text"], v["raw"], v["big"], v["negative"], v["long"], v["pi"], v["true"], v["pair"], v["inf"]) == (
            "é", b"\x00\xff\x80", 2**53, -300, 2**40, 3.25, True, [1, "two"], float("inf"))
        assert v["a"] == [1, 2] and v["a"] is v["b"] and v["keys"] == {7: 1, 2.5: 2, True: 3}
        assert str(v["minus"]) == "-0.0" and isinstance(v["long"], int)
        assert isinstance(v["parameter"], torch.nn.Parameter) and v["leaf"].requires_grad
        v["base"].zero_()
        assert v["row"].sum() == 0 and v["turned"].sum() == 0 and v["turned"].shape == (3, 2)
        for name in "/forms_back.pt", "/forms_again.pt":
            v = torch.load(folder + name, weights_only=True)
            assert type(v["counter"]) is collections.Counter and v["counter"] == collections.Counter([8, 3, 8])
            assert (v["eps"], v["lists"], v["none"], v["set"]) == ([None, 1e-3], [1, None, [None]], None, {4}), v
        states = torch.load(folder + "/schedules.pt", weights_only=True)
        for entry in schedules(states):
            assert entry["loaded"] == entry["rows"], entry["name"]
        check_optimizers(torch.load(folder + "/optimizers.pt", weights_only=True))
        print("torch and safetensors read what accel-run writes")


check(sys.argv[1]) if len(sys.argv) > 1 else write()
