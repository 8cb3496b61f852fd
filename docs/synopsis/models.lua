local models, tensor = require "accelerate.models", require "accelerate.tensor"

-- models.from_pretrained "path/to/gpt2" reads a folder in Hugging Face's layout
local model = models.from_config { model_type = "gpt2", architectures = { "GPT2LMHeadModel" }, n_embd = 64,
  n_layer = 2, n_head = 2, vocab_size = 100 }
local prompt = tensor({ { 5, 17, 42 } }, { dtype = "int64" })
print(model { input_ids = prompt, labels = prompt }.loss:item())
print(model:generate(prompt, { max_new_tokens = 8, do_sample = true, top_p = 0.9, seed = 1 }))
