"""Writes module_prints.lua: what PyTorch prints for modules, for spec/accelerate/nn_module_spec.lua.  Dims that modules print count from 1 here,
so modules with dims are not among them."""
import os
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Dropout(0.25))
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 4, bias=False), "b": nn.Identity()})
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)] + [nn.Linear(4, 4), nn.Linear(4, 5)])
        self.rnn = nn.LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True)

    def extra_repr(self): return "one\ntwo"


cases = [
    ("nn.Linear(20, 10)", nn.Linear(20, 10)), ("nn.Linear(20, 10, { bias = false })", nn.Linear(20, 10, bias=False)), ("nn.ReLU()", nn.ReLU()),
    ("nn.Tanh()", nn.Tanh()), ("nn.Sigmoid()", nn.Sigmoid()), ("nn.Identity()", nn.Identity()), ("nn.Dropout(0.25)", nn.Dropout(0.25)),
    ("nn.Sequential()", nn.Sequential()), ("nn.ModuleList()", nn.ModuleList()), ("nn.Sequential(nn.Linear(1, 2))", nn.Sequential(nn.Linear(1, 2))),
    ("nn.RNN(3, 4)", nn.RNN(3, 4)), ("nn.GRU(3, 4, { bias = false })", nn.GRU(3, 4, bias=False)),
    ("nn.LSTM(3, 4, { proj_size = 2 })", nn.LSTM(3, 4, proj_size=2)), ("nn.RNNCell(3, 4, { nonlinearity = 'relu' })", nn.RNNCell(3, 4, nonlinearity="relu")),
    ("nn.GRUCell(3, 4)", nn.GRUCell(3, 4)), ("nn.LSTMCell(3, 4, { bias = false })", nn.LSTMCell(3, 4, bias=False)), ("nn.Bilinear(2, 3, 4)", nn.Bilinear(2, 3, 4)), ("nn.CosineSimilarity()", nn.CosineSimilarity()), ("nn.PairwiseDistance()", nn.PairwiseDistance()), ("Net()", Net()),
]
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "module_prints.lua"), "w") as f:
    f.write("-- Written by module_prints.py with PyTorch %s.\nreturn {\n" % torch.__version__)
    for expression, module in cases: f.write("{ [[%s]], [[%s]] },\n" % (expression, module))
    f.write("}\n")
