"""Recurrent cells and layers; packed batches through torch.nn.utils.rnn."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence
from common import Family, rand

f = Family(__file__)
I, H, B, T = 3, 2, 2, 4


def cell_inputs(gates, states):
    return [rand(B, I), *[rand(B, H, seed=k + 1) for k in range(states)], rand(gates * H, I, seed=5),
        rand(gates * H, H, seed=6),
            rand(gates * H, seed=7), rand(gates * H, seed=8)]


f.case("lstm_cell", "core.lstm_cell(x1, x2, x3, x4, x5, x6, x7)", lambda x, h, c, *w: torch.lstm_cell(x, (h, c), *w),
    *cell_inputs(4, 2))
f.case("lstm_cell", "core.lstm_cell(x1, x2, x3, x4, x5)", lambda x, h, c, a, b: torch.lstm_cell(x, (h, c), a, b),
    *cell_inputs(4, 2)[:5])
f.case("gru_cell", "core.gru_cell(x1, x2, x3, x4, x5, x6)", torch.gru_cell, *cell_inputs(3, 1))
f.case("gru_cell", "core.gru_cell(x1, x2, x3, x4)", torch.gru_cell, *cell_inputs(3, 1)[:4])
f.case("rnn_cell", "core.rnn_cell(x1, x2, x3, x4, x5, x6)", torch.rnn_tanh_cell, *cell_inputs(1, 1))
f.case("rnn_cell", "core.rnn_cell(x1, x2, x3, x4, x5, x6, 'relu')", torch.rnn_relu_cell, *cell_inputs(1, 1))

# gx (T, B, gates * H) stands for x w_ih^T + b: w_ih is the identity there.


def layer(kind, gates, bias, **options):
    width = gates * H

    def run(gx, w, *rest):
        rest = list(rest)
        b = rest.pop(0) if bias else None
        m = kind(width, H, bias=bias, bidirectional=options.get("reverse", False),
            nonlinearity=options["nonlinearity"]) \
            if kind is nn.RNN else kind(width, H, bias=bias, bidirectional=options.get("reverse", False))
        names = ["weight_ih_l0", "weight_hh_l0"] + (["bias_ih_l0", "bias_hh_l0"] if bias else [])
        suffix = "_reverse" if options.get("reverse") else ""
        values = {"weight_ih_l0": torch.eye(width), "weight_hh_l0": w}
        if bias: values.update(bias_ih_l0=torch.zeros(width), bias_hh_l0=b)
        for name in list(values):
            if suffix:
                values[name + suffix] = values[name]
        state = [torch.stack([s, s]) if suffix else s.unsqueeze(0) for s in rest]
        x = pack_padded_sequence(gx, options["lengths"]) if "lengths" in options else gx
        y, last = torch.func.functional_call(m, values, (x, tuple(state) if kind is nn.LSTM else state[0]))
        if "lengths" in options: y = y.data
        y = y[..., H:] if suffix else y
        return (y, last[1][-1]) if kind is nn.LSTM else y
    return run


for reverse in (False, True):
    lua = ", { reverse = true }" if reverse else ""
    f.case("lstm_layer", "core.lstm_layer(x1, x2, x3, x4%s)" % lua, layer(nn.LSTM, 4, False, reverse=reverse),
        rand(T, B, 4 * H), rand(4 * H, H, seed=1),
           rand(B, H, seed=2), rand(B, H, seed=3))
    f.case("gru_layer", "core.gru_layer(x1, x2, x3, x4%s)" % lua, layer(nn.GRU, 3, True, reverse=reverse),
        rand(T, B, 3 * H), rand(3 * H, H, seed=1),
           rand(3 * H, seed=2), rand(B, H, seed=3))
    for act in ("tanh", "relu"):
        f.case("rnn_layer", "core.rnn_layer(x1, x2, x3, { nonlinearity = '%s', reverse = %s })" % (
            act, "true" if reverse else "false"),
               layer(nn.RNN, 1, False, reverse=reverse, nonlinearity=act), rand(T, B, H), rand(H, H, seed=1),
                   rand(B, H, seed=2))
f.write()
