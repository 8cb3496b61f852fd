--- accelerate.tokenizers: texts to token ids and back, as Hugging Face's `tokenizers` does it.
---
---   local tokenizers = require "accelerate.tokenizers"
---   local tokenizer = tokenizers.from_pretrained "path/to/bert"
---   local batch = tokenizer({ "One text.", "And another one." },
---     { padding = true, truncation = true, return_tensors = "pt" })
---   print(tokenizer:decode(batch.input_ids[1], { skip_special_tokens = true }))
---
--- docs/tokenizers.md says what parts of a tokenizer.json are understood.
return require("accelerate.utils.properties").lazy("accelerate.tokenizers", {
  Tokenizer = "accelerate.tokenizers.tokenizer",
  from_file = "accelerate.tokenizers.loading:from_file",
  from_pretrained = "accelerate.tokenizers.loading:from_pretrained",
  train_bpe = "accelerate.tokenizers.loading:train_bpe",
  TextStreamer = "accelerate.tokenizers.streamer:TextStreamer",
})
