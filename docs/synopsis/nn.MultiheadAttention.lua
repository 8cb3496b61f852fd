local nn, tensor = require "accelerate.nn", require "accelerate.tensor"

local attention = nn.MultiheadAttention(16, 4, { batch_first = true })
local x, memory = tensor.randn(2, 5, 16), tensor.randn(2, 7, 16)   -- (N, L, E) and (N, S, E)

-- attention(query, key, value, options) returns the result (N, L, E) and the weights (N, L, S),
-- the mean over the heads; need_weights = false leaves them out and is faster.
local y, weights = attention(x, memory, memory)
print(y.shape, weights.shape)

-- In both masks true hides a key, as in PyTorch; a mask of floats is added to the scores.  (In
-- F.scaled_dot_product_attention true means that a key is seen.)
local lengths = tensor.tensor({ 7, 4 }, { dtype = "int64" })
local padding = tensor.arange(7):view(1, 7):ge(lengths:view(2, 1))      -- key_padding_mask: (N, S)
y = attention(x, memory, memory, { key_padding_mask = padding, need_weights = false })

-- attn_mask: (L, S) or (N * heads, L, S)
local later = tensor.ones(5, 5):triu(1):bool()
y = attention(x, x, x, { attn_mask = later, is_causal = true, need_weights = false })
print(y.shape)
