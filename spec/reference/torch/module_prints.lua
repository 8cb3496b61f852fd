-- Written by module_prints.py with PyTorch 2.15.0+cu132.
return {
{ [[nn.Linear(20, 10)]], [[Linear(in_features=20, out_features=10, bias=True)]] },
{ [[nn.Linear(20, 10, { bias = false })]], [[Linear(in_features=20, out_features=10, bias=False)]] },
{ [[nn.ReLU()]], [[ReLU()]] },
{ [[nn.Tanh()]], [[Tanh()]] },
{ [[nn.Sigmoid()]], [[Sigmoid()]] },
{ [[nn.Identity()]], [[Identity()]] },
{ [[nn.Dropout(0.25)]], [[Dropout(p=0.25, inplace=False)]] },
{ [[nn.Sequential()]], [[Sequential()]] },
{ [[nn.ModuleList()]], [[ModuleList()]] },
{ [[nn.Sequential(nn.Linear(1, 2))]], [[Sequential(
  (0): Linear(in_features=1, out_features=2, bias=True)
)]] },
{ [[nn.RNN(3, 4)]], [[RNN(3, 4)]] },
{ [[nn.GRU(3, 4, { bias = false })]], [[GRU(3, 4, bias=False)]] },
{ [[nn.LSTM(3, 4, { proj_size = 2 })]], [[LSTM(3, 4, proj_size=2)]] },
{ [[nn.RNNCell(3, 4, { nonlinearity = 'relu' })]], [[RNNCell(3, 4, nonlinearity=relu)]] },
{ [[nn.GRUCell(3, 4)]], [[GRUCell(3, 4)]] },
{ [[nn.LSTMCell(3, 4, { bias = false })]], [[LSTMCell(3, 4, bias=False)]] },
{ [[nn.Bilinear(2, 3, 4)]], [[Bilinear(in1_features=2, in2_features=3, out_features=4, bias=True)]] },
{ [[nn.CosineSimilarity()]], [[CosineSimilarity()]] },
{ [[nn.PairwiseDistance()]], [[PairwiseDistance()]] },
{ [[Net()]], [[Net(
  one
  two
  (body): Sequential(
    (0): Linear(in_features=2, out_features=3, bias=True)
    (1): ReLU()
    (2): Dropout(p=0.25, inplace=False)
  )
  (heads): ModuleDict(
    (a): Linear(in_features=3, out_features=4, bias=False)
    (b): Identity()
  )
  (blocks): ModuleList(
    (0-2): 3 x Sequential(
      (0): Linear(in_features=4, out_features=4, bias=True)
      (1): Tanh()
    )
    (3): Linear(in_features=4, out_features=4, bias=True)
    (4): Linear(in_features=4, out_features=5, bias=True)
  )
  (rnn): LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True)
)]] },
{ [[nn.Conv1d(3, 4, 3)]], [[Conv1d(3, 4, kernel_size=(3,), stride=(1,))]] },
{ [[nn.Conv2d(3, 8, 3, { padding = 1, bias = false })]],
  [[Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)]] },
{ [[nn.Conv2d(4, 8, { 3, 5 }, { stride = 2, dilation = 2, groups = 2 })]],
  [[Conv2d(4, 8, kernel_size=(3, 5), stride=(2, 2), dilation=(2, 2), groups=2)]] },
{ [[nn.ConvTranspose2d(4, 8, 3, { stride = 2, padding = 1, output_padding = 1 })]],
  [[ConvTranspose2d(4, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), output_padding=(1, 1))]] },
{ [[nn.MaxPool2d(2)]], [[MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)]] },
{ [[nn.MaxPool2d(3, { stride = 2, padding = 1 })]],
  [[MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)]] },
{ [[nn.AvgPool2d(2)]], [[AvgPool2d(kernel_size=2, stride=2, padding=0)]] },
{ [[nn.AdaptiveAvgPool2d(1)]], [[AdaptiveAvgPool2d(output_size=1)]] },
{ [[nn.AdaptiveAvgPool2d({ 5, 7 })]], [[AdaptiveAvgPool2d(output_size=(5, 7))]] },
{ [[nn.BatchNorm2d(8)]],
  [[BatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)]] },
{ [[nn.BatchNorm1d(8, { affine = false })]],
  [[BatchNorm1d(8, eps=1e-05, momentum=0.1, affine=False, bias=False, track_running_stats=True)]] },
{ [[nn.LayerNorm(5)]], [[LayerNorm((5,), eps=1e-05, elementwise_affine=True, bias=True)]] },
{ [[nn.LayerNorm({ 3, 4 }, { elementwise_affine = false })]],
  [[LayerNorm((3, 4), eps=1e-05, elementwise_affine=False, bias=False)]] },
{ [[nn.RMSNorm(5)]], [[RMSNorm((5,), eps=None, elementwise_affine=True)]] },
{ [[nn.GroupNorm(2, 8)]], [[GroupNorm(2, 8, eps=1e-05, affine=True, bias=True)]] },
{ [[nn.Embedding(10, 3)]], [[Embedding(10, 3)]] },
{ [[nn.Embedding(10, 3, { padding_idx = 0 })]], [[Embedding(10, 3, padding_idx=0)]] },
{ [[nn.MultiheadAttention(8, 2)]], [[MultiheadAttention(
  (out_proj): Linear(in_features=8, out_features=8, bias=True)
)]] },
{ [[nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16 })]], [[TransformerEncoderLayer(
  (self_attn): MultiheadAttention(
    (out_proj): Linear(in_features=8, out_features=8, bias=True)
  )
  (linear1): Linear(in_features=8, out_features=16, bias=True)
  (dropout): Dropout(p=0.1, inplace=False)
  (linear2): Linear(in_features=16, out_features=8, bias=True)
  (norm1): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
  (norm2): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
  (dropout1): Dropout(p=0.1, inplace=False)
  (dropout2): Dropout(p=0.1, inplace=False)
)]] },
{ [[nn.TransformerDecoderLayer(8, 2, { dim_feedforward = 16 })]], [[TransformerDecoderLayer(
  (self_attn): MultiheadAttention(
    (out_proj): Linear(in_features=8, out_features=8, bias=True)
  )
  (multihead_attn): MultiheadAttention(
    (out_proj): Linear(in_features=8, out_features=8, bias=True)
  )
  (linear1): Linear(in_features=8, out_features=16, bias=True)
  (dropout): Dropout(p=0.1, inplace=False)
  (linear2): Linear(in_features=16, out_features=8, bias=True)
  (norm1): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
  (norm2): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
  (norm3): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
  (dropout1): Dropout(p=0.1, inplace=False)
  (dropout2): Dropout(p=0.1, inplace=False)
  (dropout3): Dropout(p=0.1, inplace=False)
)]] },
{ [[nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16 }), 2)]], [[TransformerEncoder(
  (layers): ModuleList(
    (0-1): 2 x TransformerEncoderLayer(
      (self_attn): MultiheadAttention(
        (out_proj): Linear(in_features=8, out_features=8, bias=True)
      )
      (linear1): Linear(in_features=8, out_features=16, bias=True)
      (dropout): Dropout(p=0.1, inplace=False)
      (linear2): Linear(in_features=16, out_features=8, bias=True)
      (norm1): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
      (norm2): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
      (dropout1): Dropout(p=0.1, inplace=False)
      (dropout2): Dropout(p=0.1, inplace=False)
    )
  )
)]] },
{ [[nn.GELU()]], [[GELU(approximate='none')]] },
{ [[nn.GELU({ approximate = 'tanh' })]], [[GELU(approximate='tanh')]] },
{ [[nn.LeakyReLU(0.2)]], [[LeakyReLU(negative_slope=0.2)]] },
{ [[nn.ELU()]], [[ELU(alpha=1.0)]] },
{ [[nn.SiLU()]], [[SiLU()]] },
{ [[nn.Softplus()]], [[Softplus(beta=1.0, threshold=20.0)]] },
{ [[nn.ReLU({ inplace = true })]], [[ReLU(inplace=True)]] },
{ [[nn.CrossEntropyLoss()]], [[CrossEntropyLoss()]] },
{ [[nn.MSELoss()]], [[MSELoss()]] },
{ [[nn.Upsample({ scale_factor = 2 })]], [[Upsample(scale_factor=2.0, mode='nearest')]] },
{ [[nn.PReLU()]], [[PReLU(num_parameters=1)]] },
{ [[nn.Dropout2d(0.5)]], [[Dropout2d(p=0.5, inplace=False)]] },
{ [[nn.AlphaDropout(0.25)]], [[AlphaDropout(p=0.25, inplace=False)]] },
{ [[nn.InstanceNorm1d(3)]],
  [[InstanceNorm1d(3, eps=1e-05, momentum=0.1, affine=False, bias=False, track_running_stats=False)]] },
{ [[nn.InstanceNorm2d(4, { affine = true, track_running_stats = true, momentum = 0.2 })]],
  [[InstanceNorm2d(4, eps=1e-05, momentum=0.2, affine=True, bias=True, track_running_stats=True)]] },
{ [[nn.Conv3d(2, 4, 3, { padding = 1 })]],
  [[Conv3d(2, 4, kernel_size=(3, 3, 3), stride=(1, 1, 1), padding=(1, 1, 1))]] },
{ [[nn.ConvTranspose3d(2, 4, 3, { stride = 2, output_padding = 1 })]],
  [[ConvTranspose3d(2, 4, kernel_size=(3, 3, 3), stride=(2, 2, 2), output_padding=(1, 1, 1))]] },
{ [[nn.MaxPool3d(3)]], [[MaxPool3d(kernel_size=3, stride=3, padding=0, dilation=1, ceil_mode=False)]] },
{ [[nn.AvgPool3d({ 1, 2, 3 })]], [[AvgPool3d(kernel_size=(1, 2, 3), stride=(1, 2, 3), padding=0)]] },
{ [[nn.AdaptiveAvgPool3d(2)]], [[AdaptiveAvgPool3d(output_size=2)]] },
{ [[nn.AdaptiveMaxPool3d({ 1, 2, 3 })]], [[AdaptiveMaxPool3d(output_size=(1, 2, 3))]] },
{ [[nn.MaxUnpool2d(2)]], [[MaxUnpool2d(kernel_size=(2, 2), stride=(2, 2), padding=(0, 0))]] },
{ [[nn.LPPool2d(2, 3)]], [[LPPool2d(norm_type=2, kernel_size=3, stride=None, ceil_mode=False)]] },
{ [[nn.BatchNorm3d(4, { bias = false })]],
  [[BatchNorm3d(4, eps=1e-05, momentum=0.1, affine=True, bias=False, track_running_stats=True)]] },
{ [[nn.InstanceNorm3d(4)]],
  [[InstanceNorm3d(4, eps=1e-05, momentum=0.1, affine=False, bias=False, track_running_stats=False)]] },
{ [[nn.SyncBatchNorm(3)]],
  [[SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)]] },
{ [[nn.Dropout3d(0.25)]], [[Dropout3d(p=0.25, inplace=False)]] },
{ [[nn.FeatureAlphaDropout(0.25)]], [[FeatureAlphaDropout(p=0.25, inplace=False)]] },
{ [[nn.Unfold(3)]], [[Unfold(kernel_size=3, dilation=1, padding=0, stride=1)]] },
{ [[nn.Fold(4, 2, { stride = 2 })]],
  [[Fold(output_size=4, kernel_size=2, dilation=1, padding=0, stride=2)]] },
{ [[nn.ChannelShuffle(2)]], [[ChannelShuffle(groups=2)]] },
{ [[nn.EmbeddingBag(3, 4, { padding_idx = 1, max_norm = 1 })]],
  [[EmbeddingBag(3, 4, max_norm=1, mode='mean', padding_idx=1)]] },
{ [[nn.Embedding(3, 4, { max_norm = 1, scale_grad_by_freq = true })]],
  [[Embedding(3, 4, max_norm=1, scale_grad_by_freq=True)]] },
{ [[nn.LocalResponseNorm(2)]], [[LocalResponseNorm(2, alpha=0.0001, beta=0.75, k=1.0)]] },
{ [[nn.RReLU()]], [[RReLU(lower=0.125, upper=0.3333333333333333)]] },
{ [[nn.CTCLoss()]], [[CTCLoss()]] },
{ [[nn.UpsamplingNearest2d({ scale_factor = 2 })]],
  [[UpsamplingNearest2d(scale_factor=2.0, mode='nearest')]] },
{ [[nn.UpsamplingBilinear2d(4)]], [[UpsamplingBilinear2d(size=4, mode='bilinear')]] },
{ [[nn.TripletMarginWithDistanceLoss()]], [[TripletMarginWithDistanceLoss(
  (distance_function): PairwiseDistance()
)]] },
{ [[nn.LazyLinear(3)]], [[LazyLinear(in_features=0, out_features=3, bias=True)]] },
{ [[nn.LazyConv2d(3, 2)]], [[LazyConv2d(0, 3, kernel_size=(2, 2), stride=(1, 1))]] },
{ [[nn.LazyBatchNorm2d()]],
  [[LazyBatchNorm2d(0, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)]] },
{ [[nn.FractionalMaxPool2d(2, { output_size = 3 })]], [[FractionalMaxPool2d()]] },
{ [[nn.FractionalMaxPool3d(2, { output_ratio = 0.5 })]], [[FractionalMaxPool3d()]] },
{ [[nn.AdaptiveLogSoftmaxWithLoss(8, 10, { 3, 6 }, { div_value = 2, head_bias = true })]], [[AdaptiveLogSoftmaxWithLoss(
  (head): Linear(in_features=8, out_features=5, bias=True)
  (tail): ModuleList(
    (0): Sequential(
      (0): Linear(in_features=8, out_features=4, bias=False)
      (1): Linear(in_features=4, out_features=3, bias=False)
    )
    (1): Sequential(
      (0): Linear(in_features=8, out_features=2, bias=False)
      (1): Linear(in_features=2, out_features=4, bias=False)
    )
  )
)]] },
}
