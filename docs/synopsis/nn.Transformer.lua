local nn, tensor = require "accelerate.nn", require "accelerate.tensor"

local model = nn.Transformer { d_model = 16, nhead = 4, num_encoder_layers = 2, num_decoder_layers = 2,
  dim_feedforward = 32, batch_first = true }
local src, tgt = tensor.randn(2, 7, 16), tensor.randn(2, 5, 16)

-- Masks hide where they are true (or -inf): ..._mask by place, (L, S), for all rows alike;
-- ..._key_padding_mask by row, (N, S).
local padding = tensor.tensor { { 0, 0, 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0, 1, 1 } }:bool()
local y = model(src, tgt, {
  tgt_mask = model:generate_square_subsequent_mask(5), tgt_is_causal = true,
  src_key_padding_mask = padding, memory_key_padding_mask = padding,
})
print(y.shape)                                                          -- (N, L, d_model) of tgt
