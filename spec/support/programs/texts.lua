-- Classifies texts: a vocabulary, padding in a collate function, an embedding, an LSTM, metrics.
local accelerate = require "accelerate"
local nn, optim, data, tensor = accelerate.nn, accelerate.optim, accelerate.data, accelerate.tensor
accelerate.utils.set_seed(1)

local good = { "good", "great", "lovely", "fine", "bright" }
local bad = { "bad", "awful", "dull", "poor", "grim" }
local filler = { "the", "film", "was", "a", "very", "and", "story", "with", "cast" }
local samples = {}
for i = 1, 400 do
  local label = i % 2
  local words = {}
  for k = 1, math.random(3, 9) do words[k] = filler[math.random(#filler)] end
  words[math.random(#words)] = label == 1 and good[math.random(#good)] or bad[math.random(#bad)]
  samples[i] = { text = table.concat(words, " "), label = label }
end

local vocab, itos = { ["<pad>"] = 0, ["<unk>"] = 1 }, { "<pad>", "<unk>" }
local counter = {}
for _, s in ipairs(samples) do
  for word in s.text:gmatch("%w+") do counter[word] = (counter[word] or 0) + 1 end
end
for word in pairs(counter) do
  vocab[word] = #itos
  itos[#itos + 1] = word
end

local function collate(batch)
  local ids, lengths, labels = {}, {}, {}
  for i, s in ipairs(batch) do
    local row = {}
    for word in s.text:gmatch("%w+") do row[#row + 1] = vocab[word] or vocab["<unk>"] end
    ids[i] = tensor.tensor(row, { dtype = "int64" })
    lengths[i] = #row
    labels[i] = s.label
  end
  return {
    input_ids = nn.utils.rnn.pad_sequence(ids, { batch_first = true, padding_value = 0 }),
    lengths = tensor.tensor(lengths, { dtype = "int64" }),
    labels = tensor.tensor(labels, { dtype = "float32" }),
  }
end

local generator = tensor.Generator(0)
local train, valid = data.random_split(samples, { 320, 80 }, { generator = generator })
local train_loader = data.DataLoader(train, { batch_size = 16, shuffle = true, collate_fn = collate })
local valid_loader = data.DataLoader(valid, { batch_size = 40, collate_fn = collate })

local Classifier = nn.class("Classifier", nn.Module)
function Classifier:init(vocab_size, dim, hidden)
  self.embedding = nn.Embedding(vocab_size, dim, { padding_idx = 0 })
  self.lstm = nn.LSTM(dim, hidden, { batch_first = true, bidirectional = true })
  self.head = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.GELU(), nn.Dropout(0.1),
    nn.Linear(hidden, 1))
end
function Classifier:forward(batch)
  local embedded = self.embedding(batch.input_ids)
  local packed = nn.utils.rnn.pack_padded_sequence(embedded, batch.lengths,
    { batch_first = true, enforce_sorted = false })
  local _, h = self.lstm(packed)
  local hidden = h[1]
  local last = tensor.cat({ hidden[-2], hidden[-1] }, 2)
  return self.head(last):squeeze(2)
end

local accelerator = accelerate.Accelerator()
local model = Classifier(#itos, 16, 24)
print(model)
local n = 0
for _, p in ipairs(model:parameters()) do n = n + p:numel() end
print("parameters", n)
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
local criterion = nn.BCEWithLogitsLoss()
local scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, { mode = "min", patience = 1 })
model, optimizer, train_loader, valid_loader =
  accelerator:prepare(model, optimizer, train_loader, valid_loader)

for epoch = 1, 4 do
  model:train()
  for batch in accelerate.utils.tqdm(train_loader, { desc = "epoch " .. epoch }):iter() do
    optimizer:zero_grad()
    local logits = model(batch)
    local loss = criterion(logits, batch.labels)
    accelerator:backward(loss)
    nn.utils.clip_grad_norm_(model:parameters(), 5)
    optimizer:step()
  end
  model:eval()
  local losses, hits, count = {}, 0, 0
  for batch in valid_loader:iter() do
    tensor.no_grad(function()
      local logits = model(batch)
      losses[#losses + 1] = criterion(logits, batch.labels):item()
      hits = hits + (logits:sigmoid():gt(0.5):float():eq(batch.labels)):sum():item()
      count = count + batch.labels:numel()
    end)
  end
  local mean = tensor.tensor(losses):mean():item()
  scheduler:step(mean)
  print(("epoch %d: valid loss %.3f, accuracy %.3f"):format(epoch, mean, hits / count))
end
