"""Writes module_prints.lua: what PyTorch prints for modules, for
spec/accelerate/nn_module_spec.lua.  Dims that modules print count from 1 here, so modules with dims
are not among them."""
import os
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Dropout(0.25))
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 4, bias=False), "b": nn.Identity()})
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)] + [nn.Linear(4, 4),
            nn.Linear(4, 5)])
        self.rnn = nn.LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True)

    def extra_repr(self): return "one\ntwo"


cases = [
    ("nn.Linear(20, 10)", nn.Linear(20, 10)), ("nn.Linear(20, 10, { bias = false })", nn.Linear(20, 10, bias=False)),
        ("nn.ReLU()", nn.ReLU()),
    ("nn.Tanh()", nn.Tanh()), ("nn.Sigmoid()", nn.Sigmoid()), ("nn.Identity()", nn.Identity()),
        ("nn.Dropout(0.25)", nn.Dropout(0.25)),
    ("nn.Sequential()", nn.Sequential()), ("nn.ModuleList()", nn.ModuleList()),
        ("nn.Sequential(nn.Linear(1, 2))", nn.Sequential(nn.Linear(1, 2))),
    ("nn.RNN(3, 4)", nn.RNN(3, 4)), ("nn.GRU(3, 4, { bias = false })", nn.GRU(3, 4, bias=False)),
    ("nn.LSTM(3, 4, { proj_size = 2 })", nn.LSTM(3, 4, proj_size=2)),
        ("nn.RNNCell(3, 4, { nonlinearity = 'relu' })", nn.RNNCell(3, 4, nonlinearity="relu")),
    ("nn.GRUCell(3, 4)", nn.GRUCell(3, 4)), ("nn.LSTMCell(3, 4, { bias = false })", nn.LSTMCell(3, 4, bias=False)),
        ("nn.Bilinear(2, 3, 4)", nn.Bilinear(2, 3, 4)), ("nn.CosineSimilarity()", nn.CosineSimilarity()),
        ("nn.PairwiseDistance()", nn.PairwiseDistance()), ("Net()", Net()),
]
# The classes of other files; PyTorch's name for MultiheadAttention's projection is an inner detail.
cases += [
    ("nn.Conv1d(3, 4, 3)", nn.Conv1d(3,4,3)),
        ("nn.Conv2d(3, 8, 3, { padding = 1, bias = false })", nn.Conv2d(3,8,3,padding=1,bias=False)),
    ("nn.Conv2d(4, 8, { 3, 5 }, { stride = 2, dilation = 2, groups = 2 })",
        nn.Conv2d(4,8,(3,5),stride=2,dilation=2,groups=2)),
    ("nn.ConvTranspose2d(4, 8, 3, { stride = 2, padding = 1, output_padding = 1 })",
        nn.ConvTranspose2d(4,8,3,stride=2,padding=1,output_padding=1)),
    ("nn.MaxPool2d(2)", nn.MaxPool2d(2)),
        ("nn.MaxPool2d(3, { stride = 2, padding = 1 })", nn.MaxPool2d(3,stride=2,padding=1)),
        ("nn.AvgPool2d(2)", nn.AvgPool2d(2)),
    ("nn.AdaptiveAvgPool2d(1)", nn.AdaptiveAvgPool2d(1)),
        ("nn.AdaptiveAvgPool2d({ 5, 7 })", nn.AdaptiveAvgPool2d((5,7))),
    ("nn.BatchNorm2d(8)", nn.BatchNorm2d(8)), ("nn.BatchNorm1d(8, { affine = false })", nn.BatchNorm1d(8,affine=False)),
    ("nn.LayerNorm(5)", nn.LayerNorm(5)),
        ("nn.LayerNorm({ 3, 4 }, { elementwise_affine = false })", nn.LayerNorm((3,4),elementwise_affine=False)),
    ("nn.RMSNorm(5)", nn.RMSNorm(5)), ("nn.GroupNorm(2, 8)", nn.GroupNorm(2,8)),
    ("nn.Embedding(10, 3)", nn.Embedding(10,3)),
        ("nn.Embedding(10, 3, { padding_idx = 0 })", nn.Embedding(10,3,padding_idx=0)),
    ("nn.MultiheadAttention(8, 2)", nn.MultiheadAttention(8,2)),
    ("nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16 })", nn.TransformerEncoderLayer(8,2,dim_feedforward=16)),
    ("nn.TransformerDecoderLayer(8, 2, { dim_feedforward = 16 })", nn.TransformerDecoderLayer(8,2,dim_feedforward=16)),
    ("nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16 }), 2)",
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8,2,dim_feedforward=16),2)),
    ("nn.GELU()", nn.GELU()), ("nn.GELU({ approximate = 'tanh' })", nn.GELU(approximate="tanh")),
        ("nn.LeakyReLU(0.2)", nn.LeakyReLU(0.2)), ("nn.ELU()", nn.ELU()), ("nn.SiLU()", nn.SiLU()),
        ("nn.Softplus()", nn.Softplus()),
    ("nn.ReLU({ inplace = true })", nn.ReLU(inplace=True)), ("nn.CrossEntropyLoss()", nn.CrossEntropyLoss()),
        ("nn.MSELoss()", nn.MSELoss()),
    ("nn.Upsample({ scale_factor = 2 })", nn.Upsample(scale_factor=2)), ("nn.PReLU()", nn.PReLU()),
        ("nn.Dropout2d(0.5)", nn.Dropout2d(0.5)),
    ("nn.AlphaDropout(0.25)", nn.AlphaDropout(0.25)), ("nn.InstanceNorm1d(3)", nn.InstanceNorm1d(3)),
    ("nn.InstanceNorm2d(4, { affine = true, track_running_stats = true, momentum = 0.2 })",
        nn.InstanceNorm2d(4,affine=True,track_running_stats=True,momentum=0.2)),
]
cases += [
    ("nn.Conv3d(2, 4, 3, { padding = 1 })", nn.Conv3d(2, 4, 3, padding=1)),
    ("nn.ConvTranspose3d(2, 4, 3, { stride = 2, output_padding = 1 })",
        nn.ConvTranspose3d(2, 4, 3, 2, output_padding=1)),
    ("nn.MaxPool3d(3)", nn.MaxPool3d(3)), ("nn.AvgPool3d({ 1, 2, 3 })", nn.AvgPool3d((1, 2, 3))),
    ("nn.AdaptiveAvgPool3d(2)", nn.AdaptiveAvgPool3d(2)),
    ("nn.AdaptiveMaxPool3d({ 1, 2, 3 })", nn.AdaptiveMaxPool3d((1, 2, 3))),
    ("nn.MaxUnpool2d(2)", nn.MaxUnpool2d(2)), ("nn.LPPool2d(2, 3)", nn.LPPool2d(2, 3)),
    ("nn.BatchNorm3d(4, { bias = false })", nn.BatchNorm3d(4, bias=False)),
    ("nn.InstanceNorm3d(4)", nn.InstanceNorm3d(4)),
    ("nn.SyncBatchNorm(3)", nn.SyncBatchNorm(3)), ("nn.Dropout3d(0.25)", nn.Dropout3d(0.25)),
    ("nn.FeatureAlphaDropout(0.25)", nn.FeatureAlphaDropout(0.25)), ("nn.Unfold(3)", nn.Unfold(3)),
    ("nn.Fold(4, 2, { stride = 2 })", nn.Fold(4, 2, stride=2)), ("nn.ChannelShuffle(2)", nn.ChannelShuffle(2)),
    ("nn.EmbeddingBag(3, 4, { padding_idx = 1, max_norm = 1 })", nn.EmbeddingBag(3, 4, max_norm=1, padding_idx=1)),
    ("nn.Embedding(3, 4, { max_norm = 1, scale_grad_by_freq = true })",
        nn.Embedding(3, 4, max_norm=1, scale_grad_by_freq=True)),
    ("nn.LocalResponseNorm(2)", nn.LocalResponseNorm(2)), ("nn.RReLU()", nn.RReLU()), ("nn.CTCLoss()", nn.CTCLoss()),
    ("nn.UpsamplingNearest2d({ scale_factor = 2 })", nn.UpsamplingNearest2d(scale_factor=2)),
    ("nn.UpsamplingBilinear2d(4)", nn.UpsamplingBilinear2d(4)),
    ("nn.TripletMarginWithDistanceLoss()", nn.TripletMarginWithDistanceLoss()),
    ("nn.LazyLinear(3)", nn.LazyLinear(3)), ("nn.LazyConv2d(3, 2)", nn.LazyConv2d(3, 2)),
    ("nn.LazyBatchNorm2d()", nn.LazyBatchNorm2d()),
    ("nn.FractionalMaxPool2d(2, { output_size = 3 })", nn.FractionalMaxPool2d(2, output_size=3)),
    ("nn.FractionalMaxPool3d(2, { output_ratio = 0.5 })", nn.FractionalMaxPool3d(2, output_ratio=0.5)),
    ("nn.AdaptiveLogSoftmaxWithLoss(8, 10, { 3, 6 }, { div_value = 2, head_bias = true })",
        nn.AdaptiveLogSoftmaxWithLoss(8, 10, [3, 6], div_value=2, head_bias=True)),
]
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "module_prints.lua"), "w") as f:
    f.write("-- Written by module_prints.py with PyTorch %s.\nreturn {\n" % torch.__version__)
    for expression, module in cases: f.write(
        "{ [[%s]], [[%s]] },\n" % (expression, str(module).replace("NonDynamicallyQuantizableLinear", "Linear")))
    f.write("}\n")
