local nn, tensor = require "accelerate.nn", require "accelerate.tensor"
local rnn = nn.utils.rnn

local lstm = nn.LSTM(8, 16, { num_layers = 2, bidirectional = true, batch_first = true })
local y, state = lstm(tensor.randn(3, 5, 8))      -- the state begins as zeros where none is given
print(y.shape, state[1].shape, state[2].shape)    -- (N, L, 2 * 16); h and c: (2 * layers, N, 16)
y, state = lstm(tensor.randn(3, 5, 8), state)     -- goes on from there

-- Rows of several lengths: what lies behind a row's end is not computed.
local padded = rnn.pad_sequence({ tensor.randn(4, 8), tensor.randn(2, 8) }, { batch_first = true })
local packed = rnn.pack_padded_sequence(padded, { 4, 2 }, { batch_first = true })
local out, lengths = rnn.pad_packed_sequence((lstm(packed)), { batch_first = true })
print(out.shape, lengths)
