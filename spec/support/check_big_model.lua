-- A model of 4 GB under a memory limit of 1 GB, beside the same one without a limit.
--
--   accel-run spec/support/check_big_model.lua [GB=4] [LIMIT_MB=1000] [FOLDER=a temporary one]
--
-- The model is a Llama of random weights, which is made block by block, each in a file of its own.
-- Three processes generate from it: without a limit, the model in memory; with the limit
-- (setrlimit, RLIMIT_DATA: what a process may write to, so that mapped files do not count) from
-- disk, in float32 and in bfloat16, whose weights are cast when they are used.  The tokens and the
-- scores must be the same to the bit.  It takes some minutes, GB of disk and twice GB of memory for
-- the first one.
local ffi = require "ffi"
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local models, utils = accelerate.models, accelerate.utils

local gb, limit, given = tonumber(arg[1]) or 4, tonumber(arg[2]) or 1000, arg[3]
local SHAPE = { hidden_size = 2048, intermediate_size = 5632, num_attention_heads = 16,
  num_key_value_heads = 16, vocab_size = 2000, max_position_embeddings = 64 }
local BLOCK = (4 * SHAPE.hidden_size ^ 2 + 3 * SHAPE.hidden_size * SHAPE.intermediate_size) * 4

ffi.cdef [[
  struct ax_limit { unsigned long now, most; };
  int setrlimit(int resource, const struct ax_limit *l);
  int getpid(void);
]]
local RLIMIT_DATA = 2

-- ---- a process that generates

local function private_bytes()
  local sum = 0
  for kb in (fs.read "/proc/self/smaps_rollup"):gmatch "Private_Dirty:%s*(%d+) kB" do
    sum = sum + kb * 1024
  end
  return sum
end

if arg[4] then
  local where, dtype = arg[4], arg[5]
  if where == "disk" then
    local l = ffi.new("struct ax_limit", { limit * 1e6, limit * 1e6 })
    assert(ffi.C.setrlimit(RLIMIT_DATA, l) == 0, "setrlimit failed")
  end
  local model = models.from_pretrained(given, { dtype = dtype, device_map = { [""] = where } })
  if where == "disk" then require("accelerate.big_modeling.homes").tighten(model) end
  local ids = core.tensor({ { 5, 17, 42 } }, { dtype = "int64" })
  local out = model:generate(ids, { max_new_tokens = 4, eos_token_id = -1, return_dict_in_generate = true,
    output_scores = true })
  local sums = {}
  for i, scores in ipairs(out.scores) do sums[i] = ("%.17g"):format(scores:double():square():sum():item()) end
  print(json.encode { tokens = out.sequences:tolist()[1], sums = sums, private = private_bytes() })
  return
end

-- ---- the model

local function make(folder, layers)
  local config = { num_hidden_layers = layers }
  for key, value in pairs(SHAPE) do config[key] = value end
  local empty = accelerate.init_empty_weights(models.LlamaForCausalLM, config)
  local files, map, total = {}, {}, 0
  for name, p in empty:named_parameters() do
    local block = name:match "^model%.layers%.(%d+)%." or "others"
    files[block] = files[block] or {}
    files[block][name] = p.shape
  end
  core.manual_seed(0)
  for block, shapes in pairs(files) do
    local dict, file = {}, ("model-%s.safetensors"):format(block)
    for name, shape in pairs(shapes) do
      dict[name] = #shape == 1 and core.ones(shape) or core.randn(shape) * (0.7 / SHAPE.hidden_size ^ 0.5)
      map[name], total = file, total + dict[name]:numel() * 4
    end
    utils.save(dict, fs.join(folder, file))
    collectgarbage() collectgarbage()
  end
  assert(fs.write(fs.join(folder, "model.safetensors.index.json"),
    json.encode { metadata = { total_size = total }, weight_map = map }))
  config.model_type, config.architectures = "llama", json.list { "LlamaForCausalLM" }
  assert(fs.write(fs.join(folder, "config.json"), json.encode(config)))
  return total
end

local folder = given or os.tmpname() .. ".model"
assert(fs.make_dirs(folder))
local total = make(folder, math.ceil(gb * 1e9 / BLOCK))
print(("%.2f GB of weights in %s"):format(total / 1e9, folder))

local function generated(where, dtype)
  local began = core._wall()
  local command = ("/proc/%d/exe %s %g %g %s %s %s"):format(ffi.C.getpid(), arg[0], gb, limit, folder, where,
    dtype)
  local pipe = io.popen(command)
  local result = json.decode(pipe:read "*a")
  pipe:close()
  assert(result, "the process failed: " .. command)
  print(("%-5s %-9s %6.2f GB of private memory, %.0f s, tokens %s"):format(where, dtype,
    result.private / 1e9, core._wall() - began, table.concat(result.tokens, " ")))
  return result
end

local failed = false
for _, dtype in ipairs { "float32", "bfloat16" } do
  local whole, limited = generated("cpu", dtype), generated("disk", dtype)
  local same = json.encode { whole.tokens, whole.sums } == json.encode { limited.tokens, limited.sums }
  failed = failed or not same
  print(dtype .. ": " .. (same and "the same bits" or "other bits"))
end
if not given then os.execute(("rm -r '%s'"):format(folder)) end
os.exit(failed and 1 or 0)
