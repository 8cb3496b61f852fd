--- In which order the constructors of modules take their arguments, where they do not read it
--- themselves: PyTorch's. See accelerate.utils.positions for the rule and how an order is written.

local RECURRENT = "input_size hidden_size [num_layers] [bias] [batch_first] [dropout] [bidirectional]"
local RUNNING = "[eps] [momentum] [affine] [track_running_stats]"
local LAYER = "d_model nhead [dim_feedforward] [dropout] [activation] [layer_norm_eps] [batch_first] " ..
  "[norm_first] [bias]"
local BAG = "num_embeddings embedding_dim [max_norm] [norm_type] [scale_grad_by_freq] [mode] [sparse]"
local REDUCED = "[size_average] [reduce] [reduction]" -- see accelerate.nn.reduction

local orders = {
  Linear = "in_features out_features [bias]",
  LazyLinear = "out_features [bias]",
  Bilinear = "in1_features in2_features out_features [bias]",
  Embedding = "num_embeddings embedding_dim [padding_idx] [max_norm] [norm_type] " ..
    "[scale_grad_by_freq] [sparse]",
  EmbeddingBag = BAG,
  AdaptiveLogSoftmaxWithLoss = "in_features n_classes cutoffs [div_value] [head_bias]",

  RNN = (RECURRENT:gsub("%[bias%]", "[nonlinearity] [bias]")),
  GRU = RECURRENT,
  LSTM = RECURRENT,
  RNNCell = "input_size hidden_size [bias] [nonlinearity]",
  GRUCell = "input_size hidden_size [bias]",
  LSTMCell = "input_size hidden_size [bias]",
  MultiheadAttention = "embed_dim num_heads [dropout] [bias] [add_bias_kv] [add_zero_attn] " ..
    "[kdim] [vdim] [batch_first]",
  TransformerEncoderLayer = LAYER,
  TransformerDecoderLayer = LAYER,
  TransformerEncoder = "encoder_layer num_layers [norm] [enable_nested_tensor] [mask_check]",
  TransformerDecoder = "decoder_layer num_layers [norm]",
  Transformer = "[d_model] [nhead] [num_encoder_layers] [num_decoder_layers] [dim_feedforward] " ..
    "[dropout] [activation]",

  LayerNorm = "normalized_shape [eps] [elementwise_affine] [bias]",
  RMSNorm = "normalized_shape [eps] [elementwise_affine]",
  GroupNorm = "num_groups num_channels [eps] [affine]",
  SyncBatchNorm = "num_features " .. RUNNING,

  ReLU = "[inplace]",
  ReLU6 = "[inplace]",
  SELU = "[inplace]",
  SiLU = "[inplace]",
  Mish = "[inplace]",
  Hardsigmoid = "[inplace]",
  Hardswish = "[inplace]",
  LeakyReLU = "[negative_slope] [inplace]",
  ELU = "[alpha] [inplace]",
  CELU = "[alpha] [inplace]",
  Hardtanh = "[min_val] [max_val] [inplace]",
  Threshold = "+threshold +value [inplace]",
  PReLU = "[num_parameters] [init]",
  Softmax = "+dim",
  Softmin = "+dim",
  LogSoftmax = "+dim",
  Flatten = "[start_dim] [end_dim]",
  ChannelShuffle = "groups",
  Unfold = "kernel_size ...",
  Fold = "output_size kernel_size ...",
  Upsample = "[size] [scale_factor] [mode] [align_corners]",

  CosineSimilarity = "[dim] [eps]",
  PairwiseDistance = "[p] [eps] [keepdim]",
  CrossEntropyLoss = "[weight] [size_average] [ignore_index] [reduce] [reduction] [label_smoothing]",
  NLLLoss = "[weight] [size_average] [ignore_index] [reduce] [reduction]",
  MSELoss = REDUCED,
  L1Loss = REDUCED,
  SmoothL1Loss = REDUCED .. " [beta]",
  HuberLoss = "[reduction] [delta]",
  KLDivLoss = REDUCED .. " [log_target]",
  BCELoss = "[weight] " .. REDUCED,
  BCEWithLogitsLoss = "[weight] " .. REDUCED .. " [pos_weight]",
  SoftMarginLoss = REDUCED,
  MultiLabelMarginLoss = REDUCED,
  MultiLabelSoftMarginLoss = "[weight] " .. REDUCED,
  CosineEmbeddingLoss = "[margin] " .. REDUCED,
  HingeEmbeddingLoss = "[margin] " .. REDUCED,
  MarginRankingLoss = "[margin] " .. REDUCED,
  MultiMarginLoss = "[p] [margin] [weight] " .. REDUCED,
  TripletMarginLoss = "[margin] [p] [eps] [swap] " .. REDUCED,
  PoissonNLLLoss = "[log_input] [full] [size_average] [eps] [reduce] [reduction]",
  CTCLoss = "[blank] [reduction] [zero_infinity]",
}

for dims = 1, 3 do
  for _, name in ipairs { "BatchNorm", "InstanceNorm" } do
    orders[("%s%dd"):format(name, dims)] = "num_features " .. RUNNING
    orders[("Lazy%s%dd"):format(name, dims)] = RUNNING
  end
  -- these read the rest themselves
  for _, name in ipairs { "Conv", "ConvTranspose" } do
    orders[("%s%dd"):format(name, dims)] = "in_channels out_channels kernel_size ..."
    orders[("Lazy%s%dd"):format(name, dims)] = "out_channels kernel_size ..."
  end
  for _, name in ipairs { "MaxPool", "AvgPool", "MaxUnpool" } do
    orders[("%s%dd"):format(name, dims)] = "kernel_size ..."
  end
  orders[("LPPool%dd"):format(dims)] = "norm_type kernel_size ..."
  orders[("ConstantPad%dd"):format(dims)] = "padding value"
end

return orders
