-- A model that need not fit into memory: a device map says where its weights rest, and those on
-- disk stay in their safetensors file, from which the CPU computes and a GPU is fed.
--
--   accel-run examples/inference/offload.lua
--   accel-run examples/inference/offload.lua --model_dir Llama-3.2-1B --max_memory 1GB
--
-- --model_dir is a folder of a causal language model in Hugging Face's layout; the prompt is then
-- three token ids. Without a model, one with new weights is written to a temporary folder. The
-- example prints where the parts went, the plan, and what a token costs; without --model_dir its
-- last line is
-- `the tokens are those of the whole model`. Options, with their defaults:
--   --model_dir FOLDER  --max_memory SIZE (of the CPU; default 60 % of the weights)
--   --max_new_tokens 16
local accelerate = require "accelerate"
local ordered = require "accelerate.utils.ordered"
local models, tensor, utils = accelerate.models, accelerate.tensor, accelerate.utils

local options = utils.options.arguments("offload.lua", arg, {
  model_dir = { "string", optional = true },
  max_memory = { "string", optional = true },
  max_new_tokens = { "integer", default = 16, min = 1 },
})

local state = accelerate.PartialState {}
local folder = options.model_dir
if not folder then -- on several ranks the first one writes it
  local name = os.tmpname()
  os.remove(name) -- the name alone is needed
  folder = utils.broadcast_object_list({ name })[1] .. ".llama"
  utils.set_seed(0)
  models.LlamaForCausalLM { hidden_size = 128, intermediate_size = 256, num_hidden_layers = 8,
    num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 500,
    max_position_embeddings = 128 }:save_pretrained(folder)
  state:wait_for_everyone()
end

-- What the weights need, from a model that takes no memory.
local file = assert(io.open(folder .. "/config.json"))
local config = utils.json.decode(file:read "*a")
file:close()
local empty = accelerate.init_empty_weights(models.from_config, config)
local bytes = utils.compute_module_sizes(empty)[""]
local limit = options.max_memory or math.floor(0.6 * bytes)

local model = models.from_pretrained(folder, { device_map = "auto", max_memory = { cpu = limit } })
state:print(("%.1f MB of weights, at most %s bytes of them in memory"):format(bytes / 1e6, tostring(limit)))
for name, place in ordered.pairs(model.hf_device_map) do
  state:print(("  %-30s %s"):format(name == "" and "(all)" or name, tostring(place)))
end
state:print(tostring(utils.plan_device_map(model)))

local prompt = tensor({ { 5, 17, 42 } }):long()
local how = { max_new_tokens = options.max_new_tokens, do_sample = false, eos_token_id = -1 }
model(prompt) -- records the order in which weights are used
local began = utils.time()
local tokens = model:generate(prompt, how)
state:print(("%.1f ms a token"):format((utils.time() - began) / options.max_new_tokens * 1e3))

if not options.model_dir then
  local whole = models.from_pretrained(folder)
  local same = whole:generate(prompt, how):eq(tokens):all():item()
  state:wait_for_everyone()
  if state.is_main_process then os.execute(("rm -r '%s'"):format(folder)) end
  state:print(same and "the tokens are those of the whole model" or "the tokens differ")
end
