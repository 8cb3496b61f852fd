local nn, tensor = require "accelerate.nn", require "accelerate.tensor"
local rnn = nn.utils.rnn

local lstm = nn.LSTM(4, 8, { batch_first = true })
local sequences = { tensor.randn(5, 4), tensor.randn(7, 4), tensor.randn(2, 4) }
local x = rnn.pad_sequence(sequences, { batch_first = true })                -- (3, 7, 4)

local packed = rnn.pack_padded_sequence(x, { 5, 7, 2 }, { batch_first = true, enforce_sorted = false })
local y, state = lstm(packed)                                                -- y is packed, too
local out, lengths = rnn.pad_packed_sequence(y, { batch_first = true })
print(out.shape, lengths)                                                    -- (3, 7, 8); 5, 7, 2

-- The last state of each sequence, in the order of x: no padding is read.
print(state[1][-1].shape)                                                    -- (3, 8)
print(out[{ 3, { 3, 7 } }]:abs():sum():item())                               -- 0: behind the end
