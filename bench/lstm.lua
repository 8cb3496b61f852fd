-- An LSTM of two layers over token sequences that predicts the next token, AdamW at its defaults;
-- one line of JSON.
--
--   accel-run --num_cpu_threads_per_process 1 bench/lstm.lua [STEPS=20] [WARMUP=3]
--     [FLAGS of common.lua]
--
-- The same work as peer/lstm.py: 16 sequences of 64 tokens, width 256, 1000 words.
local tensor, nn, optim = require "accelerate.tensor", require "accelerate.nn", require "accelerate.optim"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local BATCH, LENGTH, WIDTH, WORDS = 16, 64, 256, 1000

local flags = common.flags(arg)
flags.steps, flags.warmup = flags.steps or tonumber(arg[1]) or 20, flags.warmup or tonumber(arg[2]) or 3

local before = common.resident()
local accelerator = common.accelerator(flags)
tensor.manual_seed(1)

local Model = nn.class("Model")
function Model:init()
  self.words = nn.Embedding(WORDS, WIDTH)
  self.lstm = nn.LSTM(WIDTH, WIDTH, { num_layers = 2, batch_first = true })
  self.head = nn.Linear(WIDTH, WORDS)
end
function Model:forward(x) return self.head((self.lstm(self.words(x)))) end

local model = Model()
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
local loss_fn = nn.CrossEntropyLoss()
model, optimizer = accelerator:prepare(model, optimizer)
local tokens = tensor.randint(0, WORDS, { BATCH, LENGTH + 1 }):to(accelerator.device)
local x, y = tokens:narrow(2, 1, LENGTH):contiguous(), tokens:narrow(2, 2, LENGTH):reshape(-1)

common.train(accelerator, flags, { before = before, units = BATCH * LENGTH }, function() return x, y end,
  function(inputs, targets)
    local loss = loss_fn(model(inputs):reshape(-1, WORDS), targets)
    optimizer:zero_grad()
    accelerator:backward(loss)
    optimizer:step()
    return loss:detach()
  end)
