"""nn.RNN, nn.LSTM, nn.GRU and their cells: whole modules, also over packed batches.  Weights and
inputs come from a formula that spec/accelerate/nn_rnn_spec.lua knows too (element i of the k-th
tensor, both from 0: sin(0.7 i + 1.3 k) / 2), so only results are stored: y, the states, the
gradient of x, and for each parameter the sum of its gradient times 0.5 + (i % 7) / 8.

    python3 spec/reference/torch/rnn_modules.py        (needs PyTorch)
"""
import os
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.set_default_dtype(torch.float64)
cases = []


def formula(k, *shape):
    n = 1
    for s in shape: n *= s
    return (torch.sin(0.7 * torch.arange(n, dtype=torch.float64) + 1.3 * k) / 2).view(*shape)


def weights(t): return (0.5 + (torch.arange(t.numel()) % 7).double() / 8).view(t.shape)


def text(t):
    return "{s={%s},v={%s}}" % (",".join(map(str, t.shape)),
        ",".join("%.12g" % v for v in t.detach().contiguous().flatten().tolist()))


def lua(options):
    def value(v): return "true" if v is True else "false" if v is False else '"%s"' % v if isinstance(
        v, str) else repr(v)
    return "{" + ",".join("%s=%s" % (k, value(v)) for k, v in options.items()) + "}"


def case(kind, sizes, shape, states=(), lengths=None, **options):
    m = getattr(nn, kind)(*sizes, **options)
    m.eval()
    with torch.no_grad():
        for k, p in enumerate(m.parameters()): p.copy_(formula(k, *p.shape))
    x = formula(100, *shape).requires_grad_()
    given = [formula(200 + k, *s).requires_grad_() for k, s in enumerate(states)]
    hx = (tuple(given) if "LSTM" in kind else given[0]) if given else None
    if lengths:
        packed = pack_padded_sequence(x, lengths, batch_first=options.get("batch_first", False), enforce_sorted=False)
        out = m(packed, hx) if hx is not None else m(packed)
        y = pad_packed_sequence(out[0], batch_first=options.get("batch_first", False), padding_value=0.25)[0]
        out = (y, out[1])
    else:
        out = m(x, hx) if hx is not None else m(x)
    if torch.is_tensor(out): out = [out]
    flat = []
    for o in out: flat += list(o) if isinstance(o, tuple) else [o]
    sum((o * weights(o)).sum() for o in flat).backward()
    cases.append("{kind='%s',sizes={%s},options=%s,x={%s},states={%s},lengths=%s,print=%s,\n names={%s},\n out={%s},\n "
        "grad_x=%s,grad_states={%s},sums={%s}}" % (
        kind, ",".join(map(str, sizes)), lua(options), ",".join(map(str, shape)),
            ",".join("{%s}" % ",".join(map(str, s)) for s in states),
        "{%s}" % ",".join(map(str, lengths)) if lengths else "nil", '"%s"' % m,
            ",".join('"%s"' % n for n, _ in m.named_parameters()),
        ",".join(text(o) for o in flat), text(x.grad), ",".join(text(g.grad) for g in given),
        ",".join("%.12g" % (p.grad * weights(p.grad)).sum().item() for p in m.parameters())))


for kind, s in (("RNN", 1), ("GRU", 1), ("LSTM", 2)):
    case(kind, (3, 2), (4, 2, 3))
    case(kind, (3, 2), (4, 2, 3), [(1, 2, 2)] * s, bias=False)
    case(kind, (3, 2), (2, 4, 3), [(4, 2, 2)] * s, num_layers=2, bidirectional=True, batch_first=True)
    case(kind, (3, 2), (4, 3), [(2, 2)] * s, num_layers=2)
    case(kind, (3, 2), (4, 3, 3), [(2, 3, 2)] * s, lengths=[2, 4, 1], bidirectional=True)
    case(kind, (3, 2), (3, 4, 3), lengths=[4, 3, 3], num_layers=2, batch_first=True)
    case(kind + "Cell", (3, 2), (2, 3), [(2, 2)] * s)
    case(kind + "Cell", (3, 2), (3,), bias=False)
case("RNN", (3, 2), (4, 2, 3), nonlinearity="relu")
case("RNNCell", (3, 2), (2, 3), nonlinearity="relu")
case("LSTM", (3, 4), (4, 2, 3), [(4, 2, 2), (4, 2, 4)], num_layers=2, proj_size=2, bidirectional=True)
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "rnn_modules.lua"), "w") as f:
    f.write("-- Written by rnn_modules.py with PyTorch %s.\nreturn {\n%s\n}\n" % (torch.__version__, ",\n".join(cases)))
print(len(cases), "cases")
