-- An LSTM learns to copy: it reads `length` random symbols, then blanks, and must say the symbols
-- again, in order.  What it says can only come out of its memory.
--
--   accel-run examples/lstm_copy.lua
--   accel-run --num_processes 2 examples/lstm_copy.lua --length 12
--
-- The last line is `copied 0.xxxx`, the share of symbols that it says right on sequences that it
-- has not seen.  Chance is 0.125; after 2,000 steps (12 seconds of one core) it is 0.994, with a
-- loss of 0.008.  Options, with their defaults:
--   --max_steps 2000  --length 8  --symbols 8  --hidden 128  --batch_size 64 (of each process)
--   --lr 1e-2  --seed 0
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local tensor, utils = require "accelerate.tensor", require "accelerate.utils"

local options = utils.options.arguments("lstm_copy.lua", arg, {
  max_steps = { "integer", default = 2000, min = 1 },
  length = { "integer", default = 8, min = 1 },
  symbols = { "integer", default = 8, min = 2 },
  hidden = { "integer", default = 128, min = 1 },
  batch_size = { "integer", default = 64, min = 1 },
  lr = { "number", default = 1e-2, above = 0 },
  seed = { "integer", default = 0, min = 0 },
})
utils.set_seed(options.seed)
local accelerator = accelerate.Accelerator {}

-- The symbols are 1 .. symbols; 0 is the blank.
local Copy = nn.class("Copy")

function Copy:init(symbols, hidden)
  self.symbols = symbols
  self.lstm = nn.LSTM(symbols + 1, hidden, { batch_first = true })
  self.head = nn.Linear(hidden, symbols)
end

-- words (B, L) -> logits (B, L, symbols), of the second half of the steps
function Copy:forward(words)
  local batch, length = words:size(1), words:size(2)
  local blanks = tensor.zeros(batch, length, { dtype = "int64", device = words.device })
  local input = tensor.cat({ words, blanks }, 2)
  local y = self.lstm(nn.functional.one_hot(input, self.symbols + 1):float())
  return self.head(y:narrow(2, length + 1, length))
end

local function sequences(n, seed)
  return data.TensorDataset(tensor.randint(1, options.symbols + 1, { n, options.length },
    { generator = tensor.Generator(seed) }))
end

local model = Copy(options.symbols, options.hidden)
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr, weight_decay = 0 })
local train = data.DataLoader(sequences(20000, options.seed),
  { batch_size = options.batch_size, shuffle = true })
local test = data.DataLoader(sequences(1000, options.seed + 1), { batch_size = 250 })
local loss_fn = nn.CrossEntropyLoss()
model, optimizer, train, test = accelerator:prepare(model, optimizer, train, test)
local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = options.max_steps })

local function flat(logits, words)
  return logits:reshape(-1, options.symbols), (words - 1):reshape(-1)
end

local step = 0
while step < options.max_steps do
  for words in train:iter() do
    accelerator:accumulate(model, function()
      local loss = loss_fn(flat(model(words), words))
      accelerator:backward(loss)
      accelerator:clip_grad_norm_(model:parameters(), 1.0)
      optimizer:step()
      scheduler:step()
      optimizer:zero_grad()
      step = step + 1
      if step == 1 or step % 100 == 0 or step == options.max_steps then
        accelerator:print(("step %d, loss %.4f"):format(step,
          accelerator:reduce(loss:detach(), "mean"):item()))
      end
    end)
    if step >= options.max_steps then break end
  end
end

model:eval()
local right, seen = 0, 0
tensor.no_grad(function()
  for words in test:iter() do
    local logits, wanted = flat(model(words), words)
    local hits = accelerator:gather_for_metrics(logits:argmax(2):eq(wanted):view(words.shape))
    right = right + hits:sum():item()
    seen = seen + hits:numel()
  end
end)
accelerator:print(("copied %.4f"):format(right / seen))
