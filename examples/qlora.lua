-- QLoRA: the weights of a small GPT-2 rest in 4 bits and do not change, adapters (LoRA) learn
-- another text.
--
--   accel-run examples/qlora.lua
--   accel-run --num_processes 2 examples/qlora.lua --quantise none
--
-- The model first learns the letters of one licence that every Debian and Ubuntu system carries,
-- then its layers are encoded, and adapters learn another licence.  The last line is `loss x.xxxx`,
-- about 2.53; over float32 weights (--quantise none) it is within a percent of that.  Options, with
-- their defaults:
--   --quantise nf4 (or fp4, int8, none)  --base_steps 120  --max_steps 120  --rank 8  --lr 5e-3
--   --batch_size 8  --seed 0  --save FOLDER (the adapter's, not saved; PEFT opens it)
local accelerate = require "accelerate"
local peft = require "accelerate.peft"
local data, models, optim, tensor, utils = accelerate.data, accelerate.models, accelerate.optim,
  accelerate.tensor, accelerate.utils

local options = utils.options.arguments("qlora.lua", arg, {
  quantise = { "string", default = "nf4", one_of = { "nf4", "fp4", "int8", "none" } },
  base_steps = { "integer", default = 120, min = 1 },
  max_steps = { "integer", default = 120, min = 1 },
  rank = { "integer", default = 8, min = 1 },
  lr = { "number", default = 5e-3, above = 0 },
  batch_size = { "integer", default = 8, min = 1 },
  seed = { "integer", default = 0, min = 0 },
  save = { "string", optional = true },
})
utils.set_seed(options.seed)
local CONTEXT = 64

-- ---- letters: rows, and the same rows one letter later

local function licence(name)
  local file = assert(io.open("/usr/share/common-licenses/" .. name))
  local ids = {}
  for c in file:read("*a"):gmatch "." do ids[#ids + 1] = c:byte() end
  file:close()
  local count = math.floor(#ids / (CONTEXT + 1))
  local rows = tensor(ids, { dtype = "int64" }):narrow(1, 1, count * (CONTEXT + 1)):view(count, CONTEXT + 1)
  local set = data.TensorDataset(rows:narrow(2, 1, CONTEXT), rows:narrow(2, 2, CONTEXT))
  return data.DataLoader(set, { batch_size = options.batch_size, shuffle = true, drop_last = true })
end

-- Trains what requires a gradient; returns the mean loss of the last 10 steps.
local accelerator = accelerate.Accelerator()
local function train(model, name, steps, lr)
  local trained = {}
  for _, p in ipairs(model:parameters()) do
    if p.requires_grad then trained[#trained + 1] = p end
  end
  local prepared, optimizer, loader = accelerator:prepare(model, optim.AdamW(trained, { lr = lr }),
    licence(name))
  prepared:train()
  local step, sum = 0, 0
  while step < steps do
    for x, y in loader:iter() do
      local loss = prepared(x).logits
      loss = tensor.cross_entropy(loss:reshape(-1, loss:size(-1)), y:reshape(-1))
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      step = step + 1
      if step > steps - 10 then sum = sum + loss:item() end
      if step == 1 or step % 40 == 0 then
        accelerator:print(("%s, step %d: loss %.4f"):format(name, step, loss:item()))
      end
      if step == steps then break end
    end
  end
  return sum / math.min(steps, 10)
end

-- ---- a model, its encoding, its adapters

local model = models.GPT2LMHeadModel { vocab_size = 256, n_positions = CONTEXT, n_embd = 128, n_layer = 2,
  n_head = 4,
  resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 }
train(model, "Apache-2.0", options.base_steps, 1e-3)
model = accelerator:unwrap_model(model)
accelerator:free_memory()

if options.quantise ~= "none" then
  local four = options.quantise ~= "int8"
  model = utils.load_and_quantize_model(model, utils.BnbQuantizationConfig {
    load_in_4bit = four, load_in_8bit = not four, bnb_4bit_quant_type = four and options.quantise or nil,
    bnb_4bit_use_double_quant = four, bnb_4bit_compute_dtype = "fp32", torch_dtype = "fp32",
  })
end
local adapted = peft.get_peft_model(model, peft.LoraConfig { r = options.rank, lora_alpha = 2 * options.rank,
  target_modules = { "c_attn", "c_proj", "c_fc" } })
if accelerator.is_main_process then adapted:print_trainable_parameters() end
local loss = train(adapted, "GPL-3", options.max_steps, options.lr)
if options.save then adapted:save_pretrained(options.save) end
accelerator:print(("loss %.4f"):format(loss))
