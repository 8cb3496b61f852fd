local tokenizers = require "accelerate.tokenizers"

local texts = { "The quick brown fox jumps over the lazy dog.", "The dog sleeps.", "The fox does not." }
local tokenizer = tokenizers.train_bpe(texts, { vocab_size = 300, special_tokens = { "<|end|>" },
  eos_token = "<|end|>" })

local batch = tokenizer(texts, { padding = true, return_tensors = true })
print(batch.input_ids.shape[1], batch.attention_mask:dim())
print(tokenizer:decode(tokenizer:encode "The lazy fox"))
