local nn, tensor = require "accelerate.nn", require "accelerate.tensor"

local layer = nn.TransformerEncoderLayer(16, 4,
  { dim_feedforward = 32, batch_first = true, norm_first = true })
local encoder = nn.TransformerEncoder(layer, 3, { norm = nn.LayerNorm(16) })   -- three copies of the layer
local x = tensor.randn(2, 6, 16)
local causal = nn.Transformer.generate_square_subsequent_mask(6)
print(encoder(x, { mask = causal, is_causal = true }).shape)
