-- Gradient accumulation where batches have different numbers of tokens: the loss is the mean over
-- the tokens of the whole window and of all ranks, not the mean of the batches' means.
--
--   accel-run examples/by_feature/gradient_accumulation_for_autoregressive_models.lua
--   accel-run --num_processes 2
--     examples/by_feature/gradient_accumulation_for_autoregressive_models.lua
--
-- `accelerator:backward(sum, { weight = tokens })` does it: at the end of a window the sum of the
-- gradients is divided by the sum of the weights.  A small GPT-2 learns to count: rows of different
-- lengths in which each token is one more than the one before.  The loss falls from about 3.5 to
-- below 1.  Options, with their defaults:
--   --max_steps 160 (batches)  --batch_size 8 (of each process)  --accumulate 2  --lr 3e-3
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("gradient_accumulation_for_autoregressive_models.lua", arg, {
  max_steps = { "integer", default = 160, min = 1 }, batch_size = { "integer", default = 8, min = 1 },
  accumulate = { "integer", default = 2, min = 1 }, lr = { "number", default = 3e-3, above = 0 },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator { gradient_accumulation_steps = options.accumulate }
local VOCABULARY, LONGEST = 32, 24
local model = accelerate.models.GPT2LMHeadModel { vocab_size = VOCABULARY, n_positions = LONGEST, n_embd = 32,
  n_layer = 2, n_head = 2 }
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })

-- Rows that count on from somewhere; labels of -100 have no loss.
local rows = {}
for i = 1, 1024 do
  local first, length = math.random(0, VOCABULARY - 1), math.random(4, LONGEST)
  local at = tensor.arange(LONGEST)
  local ids = (at + first) % VOCABULARY
  rows[i] = { ids, ids:masked_fill(at:ge(length), -100) }
end
local set = { len = function() return #rows end, get = function(_, i) return rows[i][1], rows[i][2] end }
local loader = data.DataLoader(set, { batch_size = options.batch_size, shuffle = true })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

local step = 0
repeat
  for ids, labels in loader:iter() do
    accelerator:accumulate(model, function()
      local logits = model(ids).logits
      local wanted = labels:narrow(2, 2, LONGEST - 1)
      local tokens = wanted:ne(-100):sum():item()
      local sum = nn.functional.cross_entropy(logits:narrow(2, 1, LONGEST - 1):reshape(-1, VOCABULARY),
        wanted:reshape(-1), { reduction = "sum" })
      accelerator:backward(sum, { weight = tokens })
      optimizer:step()
      optimizer:zero_grad()
      step = step + 1
      if step % 40 == 1 or step == options.max_steps then
        accelerator:print(("batch %d: loss %.4f"):format(step, sum:item() / tokens))
      end
    end)
    if step == options.max_steps then break end
  end
until step == options.max_steps
