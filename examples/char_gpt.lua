-- Trains a small GPT on characters of real text: the licences that every Debian and Ubuntu system
-- carries, or a file of yours.
--
--   accel-run examples/char_gpt.lua
--   accel-run --num_processes 2 --mixed_precision bf16 examples/char_gpt.lua --max_steps 300
--
-- The last line is `validation loss x.xxxx` (nats per character): 2.07 after the 600 steps on one
-- process; the same model in PyTorch (bench/peer/char_gpt.py) comes to 2.12 with its own seed.
-- Untrained it is 4.5.  Before that line comes some text that the model wrote.  Options, with their
-- defaults:
--   --text FILE (the licences)  --max_steps 600  --batch_size 16 (of each process)  --lr 1e-3
--   --width 128  --layers 4  --heads 4  --context 128  --seed 0
--   --sample 300 (characters to write; 0: none)  --save DIRECTORY (not saved)
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local tensor, utils = require "accelerate.tensor", require "accelerate.utils"
local F = nn.functional

local options = utils.options.arguments("char_gpt.lua", arg, {
  text = { "string", optional = true },
  max_steps = { "integer", default = 600, min = 1 },
  batch_size = { "integer", default = 16, min = 1 },
  lr = { "number", default = 1e-3, above = 0 },
  width = { "integer", default = 128, min = 1 },
  layers = { "integer", default = 4, min = 1 },
  heads = { "integer", default = 4, min = 1 },
  context = { "integer", default = 128, min = 2 },
  sample = { "integer", default = 300, min = 0 },
  seed = { "integer", default = 0, min = 0 },
  save = { "string", optional = true },
})
if options.width % options.heads ~= 0 then
  error(("char_gpt.lua: --width must be a multiple of --heads, got %d and %d"):format(options.width,
    options.heads), 0)
end
utils.set_seed(options.seed)

-- ---- the text: printable ASCII is 0..94, a newline 95, anything else a question mark

local LICENCES = { "Apache-2.0", "Artistic", "BSD", "CC0-1.0", "GFDL-1.2", "GFDL-1.3", "GPL-1", "GPL-2",
  "GPL-3", "LGPL-2", "LGPL-2.1",
  "LGPL-3", "MPL-1.1", "MPL-2.0" }
local VOCABULARY = 96

local function read_text()
  local parts = {}
  for i, name in ipairs(options.text and { options.text } or LICENCES) do
    local file, why = io.open(options.text or "/usr/share/common-licenses/" .. name)
    if file then
      parts[#parts + 1] = file:read("*a")
      file:close()
    elseif options.text or i == #LICENCES and #parts == 0 then
      error(("no text to learn from: %s; name a file with --text"):format(why), 0)
    end
  end
  return table.concat(parts)
end

local function encode(text)
  local ids = {}
  for i = 1, #text do
    local c = text:byte(i)
    ids[i] = c == 10 and 95 or (c >= 32 and c < 127) and c - 32 or 31
  end
  return tensor.tensor(ids, { dtype = "int64" })
end

local function decode(id) return id == 95 and "\n" or string.char(id + 32) end

-- Every tenth piece of 4096 characters is for validation; the others are joined.
local PIECE = 4096

local function split(text)
  local train, held = {}, {}
  for i = 0, math.ceil(#text / PIECE) - 1 do
    local piece = text:sub(i * PIECE + 1, (i + 1) * PIECE)
    local to = i % 10 == 9 and held or train
    to[#to + 1] = piece
  end
  return table.concat(train), table.concat(held)
end

-- Rows of context + 1 characters, each starting `step` after the one before.
local function rows(text, step)
  local ids, length = encode(text), options.context + 1
  local count = math.floor((ids:numel() - length) / step) + 1
  if count < 1 then
    error(("the text is too short: %d characters for rows of %d"):format(ids:numel(), length), 0)
  end
  local at = (tensor.arange(count) * step):view(count, 1) + tensor.arange(length)
  return data.TensorDataset(ids:index_select(1, at:view(-1)):view(count, length))
end

-- ---- the model

local Block = nn.class("Block")

function Block:init(width, heads)
  self.heads = heads
  self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
  self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
  self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
end

function Block:attend(x)
  local q, k, v = self.qkv(x):split_heads(self.heads)  -- (N, T, 3 E) -> three times (N, H, T, D)
  local y = F.scaled_dot_product_attention(q, k, v, { is_causal = true })
  return self.proj(y:transpose(2, 3):reshape(x.shape))
end

function Block:forward(x)
  return tensor.scope(function()
    x = x + self:attend(self.ln1(x))
    return x + self.down(self.up(self.ln2(x)):gelu("tanh"))
  end)
end

local GPT = nn.class("GPT")

function GPT:init(layers, width, heads, context)
  self.tok, self.pos = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
  local blocks = {}
  for i = 1, layers do blocks[i] = Block(width, heads) end
  self.blocks = nn.Sequential(blocks)
  self.ln = nn.LayerNorm(width)
  for name, p in self:named_parameters() do
    if p:dim() == 2 then
      local last = name:match("proj%.weight$") or name:match("down%.weight$")
      nn.init.normal_(p, 0, last and 0.02 / math.sqrt(2 * layers) or 0.02)
    elseif name:match("bias$") then
      nn.init.zeros_(p)
    end
  end
end

-- ids (N, T) -> scores (N, T, VOCABULARY); the table of tokens is the last layer too
function GPT:forward(ids)
  return tensor.scope(function()
    local x = self.tok(ids) + self.pos.weight:narrow(1, 1, ids.shape[2])
    return F.linear(self.ln(self.blocks(x)), self.tok.weight)
  end)
end

-- ---- training

local accelerator = accelerate.Accelerator {}
local known, held = split(read_text())
local context = options.context
local model = GPT(options.layers, options.width, options.heads, context)
local optimizer = optim.AdamW(model:parameters(),
  { lr = options.lr, weight_decay = 0.1, betas = { 0.9, 0.95 } })
local train = data.DataLoader(rows(known, math.ceil(context / 2)),
  { batch_size = options.batch_size, shuffle = true, drop_last = true })
local validation = data.DataLoader(rows(held, context), { batch_size = 32 })
model, optimizer, train, validation = accelerator:prepare(model, optimizer, train, validation)

-- Up over the first twentieth of the steps, then down along a cosine to a tenth.
local warm = math.max(1, math.floor(options.max_steps / 20))
local scheduler = optim.lr_scheduler.LambdaLR(optimizer, function(step)
  -- a prepared scheduler counts the steps of all ranks; here each rank's are meant
  step = math.floor(step / accelerator.num_processes)
  if step < warm then return (step + 1) / warm end
  return 0.1 + 0.45 * (1 + math.cos(math.pi * math.min(1, (step - warm) / (options.max_steps - warm))))
end)
scheduler = accelerator:prepare(scheduler)

local function loss_of(batch)
  local scores = model(batch:narrow(2, 1, context))
  return F.cross_entropy(scores:reshape(-1, VOCABULARY), batch:narrow(2, 2, context):reshape(-1))
end

local function validate()
  model:eval()
  local sum, count = 0, 0
  tensor.no_grad(function()
    for batch in validation:iter() do
      local loss = accelerator:gather_for_metrics(loss_of(batch):view(1))
      sum, count = sum + loss:sum():item(), count + loss:numel()
    end
  end)
  model:train()
  return sum / count
end

local function learn()
  local bar = utils.tqdm(options.max_steps, { desc = "learning" })
  local done = 0
  while true do
    for batch in train:iter() do
      local loss = loss_of(batch)
      accelerator:backward(loss)
      accelerator:clip_grad_norm_(model:parameters(), 1.0)
      optimizer:step()
      scheduler:step()
      optimizer:zero_grad()
      done = done + 1
      if done == 1 or done % 50 == 0 or done == options.max_steps then
        accelerator:print(("step %d: loss %.4f"):format(done,
          accelerator:gather(loss:detach():view(1)):mean():item()))
      end
      bar:set_postfix { loss = loss }
      bar:update()
      if done == options.max_steps then
        bar:close()
        return
      end
    end
  end
end

-- Characters drawn one by one, each from what the model makes of those before it.
local function write(length)
  model:eval()
  local ids, text = { 52 }, {}  -- T
  local generator = tensor.Generator(options.seed)
  tensor.no_grad(function()
    for _ = 1, length do
      local last = { unpack(ids, math.max(1, #ids - context + 1)) }
      local scores = model(tensor.tensor({ last }, { dtype = "int64", device = accelerator.device }))
      local chances = scores[1][#last]:float():softmax(1):totable()
      local draw, id = tensor.rand(1, { generator = generator }):item(), 0
      while id < VOCABULARY - 1 and draw >= chances[id + 1] do
        draw = draw - chances[id + 1]
        id = id + 1
      end
      ids[#ids + 1] = id
      text[#text + 1] = decode(id)
    end
  end)
  return "T" .. table.concat(text)
end

learn()
local loss = validate()
if options.sample > 0 and accelerator.is_main_process then print(write(options.sample)) end
accelerator:wait_for_everyone()
if options.save then accelerator:save_model(model, options.save) end
accelerator:print(("validation loss %.4f"):format(loss))
