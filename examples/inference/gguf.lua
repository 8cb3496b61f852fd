-- Text from a GGUF file: products read the weights in the file's blocks, a device map says which of
-- them may take memory, and the tokenizer is the file's, too.
--
--   accel-run examples/inference/gguf.lua
--   accel-run examples/inference/gguf.lua --model Qwen3-0.6B-Q8_0.gguf --prompt "Once upon a time"
--     --max_memory 400MB
--   accel-run examples/inference/gguf.lua --model Qwen3-0.6B-Q8_0.gguf --chat --temperature 0.7
--     --prompt "Name a river."
--
-- Without a model, a small one learns the alphabet on the spot, which takes some seconds, and is
-- written to a temporary file with its weights in blocks of 8 bits (Q8_0). The example prints where
-- the parts went, the plan, the text while it comes, and what a token costs; without --model its
-- last line is `the text goes on rightly, and is the whole model's`. On several ranks all do the
-- same, and the first one writes. Options, with their defaults:
--   --model FILE  --prompt abcd  --max_memory SIZE (of the CPU; default 60 % of the file)
--   --max_new_tokens 20  --temperature 0 (greedy)  --chat (the prompt is a user's message)
--   --max_steps 200 (of learning)
local accelerate = require "accelerate"
local ffi = require "ffi"
local ordered = require "accelerate.utils.ordered"
local models, optim, tensor, utils = accelerate.models, accelerate.optim, accelerate.tensor, accelerate.utils
local tokenizers = require "accelerate.tokenizers"

local options = utils.options.arguments("gguf.lua", arg, {
  model = { "string", optional = true },
  prompt = { "string", default = "abcd" },
  max_memory = { "string", optional = true },
  max_new_tokens = { "integer", default = 20, min = 1 },
  temperature = { "number", default = 0, min = 0 },
  chat = { "boolean", default = false },
  max_steps = { "integer", default = 200, min = 1 },
})
if options.chat and not options.model then error("gguf.lua: --chat needs --model", 0) end
local accelerator = accelerate.Accelerator {}
local LETTERS = "abcdefghijklmnopqrstuvwxyz"

-- ---- a small model that knows the alphabet

local function learned_model()
  utils.set_seed(0)
  local model = models.Qwen2ForCausalLM { hidden_size = 64, intermediate_size = 128, num_hidden_layers = 4,
    num_attention_heads = 4, num_key_value_heads = 2, vocab_size = #LETTERS, max_position_embeddings = 64,
    tie_word_embeddings = false }
  local optimizer = optim.AdamW(model:parameters(), { lr = 2e-3 })
  local prepared
  prepared, optimizer = accelerator:prepare(model, optimizer)
  for step = 1, options.max_steps do
    local start = tensor.randint(0, #LETTERS, { 16, 1 })
    local ids = (start + tensor.arange(32):view(1, 32)):remainder(#LETTERS):to(accelerator.device)
    local loss = prepared({ input_ids = ids, labels = ids }).loss
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    if step == 1 or step % 50 == 0 or step == options.max_steps then
      accelerator:print(("step %d: loss %.4f"):format(step, loss:item()))
    end
  end
  return model:cpu()
end

-- ---- its file

-- A number, a text or a list of texts behind the number of its kind, little-endian.
local function number(kind, value) return ffi.string(ffi.new(kind .. "[1]", value), ffi.sizeof(kind)) end
local function text(s) return number("uint64_t", #s) .. s end
local function setting(key, value)
  if type(value) == "string" then return text(key) .. number("uint32_t", 8) .. text(value) end
  if type(value) == "table" then
    local parts = { text(key), number("uint32_t", 9), number("uint32_t", 8), number("uint64_t", #value) }
    for _, item in ipairs(value) do parts[#parts + 1] = text(item) end
    return table.concat(parts)
  end
  local integer = value % 1 == 0
  return text(key) .. number("uint32_t", integer and 4 or 6) ..
    number(integer and "uint32_t" or "float", value)
end

local function bytes_of(t) return ffi.string(t:contiguous():data_ptr(), t:numel() * t:element_size()) end

-- Q8_0: each 32 numbers of a row are a float16 and 32 integers that it multiplies, -127 to 127, in
-- two's complement.
local function in_blocks(t)
  local blocks = t:reshape(-1, 32)
  local scales = blocks:abs():amax(2, true) / 127
  local codes = (blocks / scales:clamp { min = 1e-30 }):round():remainder(256):to "uint8"
  scales, codes = bytes_of(scales:to "float16"), bytes_of(codes)
  local parts = {}
  for i = 0, #codes / 32 - 1 do
    parts[2 * i + 1] = scales:sub(2 * i + 1, 2 * i + 2)
    parts[2 * i + 2] = codes:sub(32 * i + 1, 32 * i + 32)
  end
  return table.concat(parts)
end

-- The file's names for parts of Qwen2's.
local NAMES = { { "^model%.layers", "blk" }, { "^model%.embed_tokens", "token_embd" },
  { "^model%.norm", "output_norm" }, { "^lm_head", "output" }, { "self_attn%.(%l)_proj", "attn_%1" },
  { "attn_o", "attn_output" }, { "mlp%.(%l+)_proj", "ffn_%1" }, { "input_layernorm", "attn_norm" },
  { "post_attention_layernorm", "ffn_norm" } }

local function write_gguf(path, model)
  local c, letters = model.config, {}
  for letter in LETTERS:gmatch "." do letters[#letters + 1] = letter end
  local settings = {
    setting("general.architecture", "qwen2"),
    setting("qwen2.context_length", c.max_position_embeddings),
    setting("qwen2.embedding_length", c.hidden_size),
    setting("qwen2.block_count", c.num_hidden_layers),
    setting("qwen2.feed_forward_length", c.intermediate_size),
    setting("qwen2.attention.head_count", c.num_attention_heads),
    setting("qwen2.attention.head_count_kv", c.num_key_value_heads),
    setting("qwen2.attention.layer_norm_rms_epsilon", c.rms_norm_eps),
    setting("tokenizer.ggml.model", "gpt2"), setting("tokenizer.ggml.pre", "gpt-2"),
    setting("tokenizer.ggml.tokens", letters), setting("tokenizer.ggml.merges", {}),
  }
  local heads, data, at = {}, {}, 0
  for name, t in ordered.pairs(model:state_dict()) do
    for _, entry in ipairs(NAMES) do name = name:gsub(entry[1], entry[2]) end
    local matrix = t:dim() == 2
    heads[#heads + 1] = text(name) .. number("uint32_t", t:dim())
    for d = t:dim(), 1, -1 do heads[#heads + 1] = number("uint64_t", t:size(d)) end
    heads[#heads + 1] = number("uint32_t", matrix and 8 or 0) .. number("uint64_t", at) -- Q8_0, F32
    local bytes = matrix and in_blocks(t) or bytes_of(t)
    data[#data + 1] = bytes .. ("\0"):rep(-#bytes % 32)
    at = at + #data[#data]
  end
  local head = "GGUF" .. number("uint32_t", 3) .. number("uint64_t", #data) ..
    number("uint64_t", #settings) .. table.concat(settings) .. table.concat(heads)
  local file = assert(io.open(path, "wb"))
  file:write(head, ("\0"):rep(-#head % 32), table.concat(data))
  file:close()
end

-- ---- the model, and where its parts rest

local path = options.model
if not path then -- on several ranks the first one writes it
  local name = os.tmpname()
  os.remove(name) -- the name alone is needed
  path = utils.broadcast_object_list({ name })[1] .. ".gguf"
  local model = learned_model()
  if accelerator.is_main_process then write_gguf(path, model) end
  accelerator:wait_for_everyone()
end

local file, why = io.open(path, "rb")
if not file then error("gguf.lua: --model: " .. why, 0) end
local limit = options.max_memory or math.floor(0.6 * file:seek "end")
file:close()
local tokenizer = tokenizers.from_pretrained(path)
local model = models.from_pretrained(path, { device_map = "auto", max_memory = { cpu = limit } })
for name, place in ordered.pairs(model.hf_device_map) do
  accelerator:print(("  %-30s %s"):format(name == "" and "(all)" or name, tostring(place)))
end
accelerator:print(tostring(utils.plan_device_map(model)))

-- ---- text

local ids
if options.chat then
  ids = tokenizer:apply_chat_template({ { role = "user", content = options.prompt } },
    { add_generation_prompt = true })
else
  ids = tokenizer:encode(options.prompt)
end
local prompt = tensor({ ids }, { dtype = "int64" })
local how = { max_new_tokens = options.max_new_tokens, seed = 0, do_sample = options.temperature > 0,
  temperature = options.temperature > 0 and options.temperature or nil }
model(prompt) -- records the order in which weights are used
how.stream = accelerator.is_main_process and tokenizers.TextStreamer(tokenizer) or nil
accelerator:print(options.prompt)
local began = utils.time()
local tokens = model:generate(prompt, how)
accelerator:print(("%.1f ms a token"):format((utils.time() - began) / (tokens:size(2) - #ids) * 1e3))

if not options.model then
  how.stream = nil
  local same = models.from_pretrained(path):generate(prompt, how):eq(tokens):all():item()
  local written = tokenizer:decode(tokens[1]:totable())
  accelerator:wait_for_everyone()
  if accelerator.is_main_process then os.remove(path) end
  accelerator:print(("the text %s, and is %sthe whole model's"):format(
    LETTERS:rep(9):find(written, 1, true) and "goes on rightly" or "does not go on rightly",
    same and "" or "not "))
end
