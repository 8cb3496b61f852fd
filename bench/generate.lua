-- Greedy generation with GPT-2, one row, with a cache of keys and values; one line of JSON.
--
--   accel-run --num_cpu_threads_per_process 1 bench/generate.lua [PRESET=small] [TOKENS=100]
--     [ROUNDS=5] [DTYPE=float32, of the weights] [LOOKUP=0, prompt_lookup_num_tokens]
--     [ENCODING=none, nf4, int8] [LAST=kept, encoded: the last layer]
--
-- The same work as peer/generate.py, which is Transformers: a prompt of 8 tokens, no end token.
-- Preset small has 6 layers of 256 elements, 124m is GPT-2's own size.  token_ms is the median over
-- the rounds of the time of generate over the number of tokens.  Each token reads all weights but
-- those of the positions once: weights_mb.  read_ms is the median time of a plain read of as many
-- bytes, the floor of a token; each round measures both.  New weights repeat themselves, so that
-- LOOKUP shows its best case.  With an ENCODING the model is measured in turns with itself in
-- DTYPE, whose token is plain_ms.
local tensor, models = require "accelerate.tensor", require "accelerate.models"
local utils = require "accelerate.utils"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

--               layers width heads vocab
local PRESETS = { tiny = { 2, 256, 4, 8000 }, small = { 6, 256, 4, 8000 }, medium = { 4, 512, 8, 8000 },
  wide = { 6, 768, 12, 8000 }, ["124m"] = { 12, 768, 12, 50257 }, smoke = { 1, 32, 2, 100 } }

local preset, tokens, rounds = arg[1] or "small", tonumber(arg[2]) or 100, tonumber(arg[3]) or 5
local layers, width, heads, vocab = unpack(PRESETS[preset]
  or error("the presets are tiny, small, medium, wide, 124m and smoke, got " .. preset))
local function new()
  local fresh = models.GPT2LMHeadModel { n_layer = layers, n_embd = width, n_head = heads,
    vocab_size = vocab, n_positions = 1024 }
  return fresh:to(arg[4] or "float32")
end
local model, plain = new(), nil
local encoding = arg[6] or "none"
if encoding ~= "none" then
  plain = new()
  utils.load_and_quantize_model(model, utils.BnbQuantizationConfig { load_in_8bit = encoding == "int8",
    load_in_4bit = encoding == "nf4", bnb_4bit_quant_type = "nf4", torch_dtype = arg[4] or "float32",
    bnb_4bit_compute_dtype = arg[4] or "float32", skip_modules = arg[7] == "encoded" and {} or nil })
end
local weights = 0
for _, p in ipairs(model:parameters()) do weights = weights + p:numel() * p:element_size() end
for _, b in ipairs(model:buffers()) do weights = weights + b:numel() * b:element_size() end
weights = weights - model.transformer.wpe.weight:numel() * model.transformer.wpe.weight:element_size()
local prompt = tensor.randint(0, vocab, { 1, 8 }, { generator = tensor.Generator(0) })

local drafts = tonumber(arg[5]) or 0
local function generate(of)
  return (of or model):generate(prompt, { max_new_tokens = tokens, eos_token_id = -1,
    prompt_lookup_num_tokens = drafts > 0 and drafts or nil })
end

-- A sum of each element reads as fast as memory gives. Zeros that nothing has written to would be
-- one page.
local bytes = tensor.ones(math.ceil(weights / 4))
local seconds = common.seconds

generate()
local times, plain_times, reads = {}, {}, {}
for i = 1, rounds do
  times[i] = seconds(generate) / tokens
  if plain then plain_times[i] = seconds(generate, plain) / tokens end
  for _ = 1, 5 do reads[#reads + 1] = seconds(function() return bytes:sum():item() end) end
end
common.emit { preset = preset, tokens = tokens, dtype = arg[4] or "float32", weights_mb = weights / 1e6,
  token_ms = common.median(times) * 1e3, read_ms = common.median(reads) * 1e3,
  least_ms = math.min(unpack(times)) * 1e3, encoding = encoding,
  plain_ms = plain and common.median(plain_times) * 1e3 or nil }
