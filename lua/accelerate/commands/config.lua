--- `accel-run config`, `config default`, `config update`: the configuration file, as Accelerate has
--- it.
local commands = require "accelerate.commands"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local machine = require "accelerate.machine"
local menu = require "accelerate.commands.menu"
local options = require "accelerate.utils.options"
local yaml = require "accelerate.utils.yaml"

local M = {}

local MOST_VALUES = 10000 -- of a configuration

-- What Accelerate writes for every configuration.
local DEFAULTS = {
  compute_environment = "LOCAL_MACHINE", debug = false, downcast_bf16 = false, enable_cpu_affinity = false,
  machine_rank = 0, main_training_function = "main", num_machines = 1, rdzv_backend = "static",
  same_network = false, tpu_use_cluster = false, tpu_use_sudo = false, use_cpu = false,
}

-- Keys that have no value unless one is given.
local OTHERS = {}
for name in ([[distributed_type mixed_precision num_processes gpu_ids main_process_ip
  main_process_port fp8_config deepspeed_config fsdp_config parallelism_config
  megatron_lm_config mpirun_config dynamo_config tpu_name tpu_zone command_file commands
  tpu_vm tpu_env]]):gmatch "%S+" do OTHERS[name] = true end

-- What Accelerate has had as distributed_type, on local machines.
local TYPES = { "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA",
  "MULTI_SDAA", "MULTI_HPU", "MULTI_NEURON", "MPS", "TPU", "XLA", "TP", "FSDP", "DEEPSPEED", "MEGATRON_LM" }

-- ---- reading and writing

-- What is left of a number of values after those of a map or list. Aliases make a few lines stand
-- for any number of values, and each would be written.
local function spend(value, left)
  if type(value) ~= "table" then return left - 1 end
  for _, item in pairs(value) do
    left = spend(item, left)
    if left < 0 then return left end
  end
  return left
end

--- Reads a file into a map; JSON by the ending, else YAML.
---@param path string
---@return table
function M.read(path)
  local text, why = fs.read(path)
  if not text then commands.fail("%s", why) end
  local ok, value = pcall(yaml.decode, text, path, path:match "%.json$" ~= nil)
  if not ok then commands.fail("%s", value) end
  if type(value) ~= "table" or value[1] ~= nil then commands.fail("%s: expected keys with values", path) end
  if spend(value, MOST_VALUES) < 0 then
    commands.fail("%s: it stands for more than %d values, with its aliases written out", path, MOST_VALUES)
  end
  return value
end

-- Without what stands for nothing: null, {} and [].
local function without_empty(value)
  if type(value) ~= "table" then return value end
  local kept = {}
  for key, item in pairs(value) do
    if item ~= yaml.null and not (type(item) == "table" and next(item) == nil) then
      kept[key] = without_empty(item)
    end
  end
  return kept
end

--- Writes a map, keys sorted, without empty values; JSON by the ending, else YAML.
---@param path string
---@param config table
function M.write(path, config)
  local folder = path:match "^(.*)/[^/]*$"
  local made, why = true, nil
  if folder and folder ~= "" then made, why = fs.make_dirs(folder) end
  if not made then commands.fail("%s", why) end
  config = without_empty(config)
  local text = path:match "%.json$" and json.encode(config, 2) .. "\n" or yaml.encode(config)
  local ok, problem = fs.write(path, text)
  if not ok then commands.fail("%s", problem) end
end

local function path_of(found)
  return found.config_file or require("accelerate.utils.environment").text("ACCELERATE_CONFIG_FILE")
    or machine.default_config_file() or commands.fail("you have no home folder; give --config_file FILE")
end

-- ---- questions

local function ask_machines(config)
  config.num_machines = menu.ask("How many machines will take part?", 1, menu.integer(1, 65536))
  if config.num_machines == 1 then return end
  config.machine_rank = menu.ask("What is the number of this machine, from 0?", 0,
    menu.integer(0, config.num_machines - 1))
  config.main_process_ip = menu.ask "What is the address of machine 0?"
  config.main_process_port = menu.ask("Which port will machine 0 listen at?", 29500, menu.integer(1, 65535))
  config.same_network = true
end

local function ask_gpus(config, gpus)
  config.gpu_ids = menu.ask("Which GPUs of this machine, by number (0,2), or all?", "all", function(text)
    if text == "all" or text:match "^%d+[%d,]*$" then return text end
    return nil, "all, or numbers divided by commas"
  end)
  if menu.confirm("Should each rank stay on the processors near its GPU?", false) then
    config.enable_cpu_affinity = true
  end
  if menu.confirm("Should training steps be recorded as CUDA graphs?", false) then
    config.dynamo_config = { dynamo_backend = "CUDAGRAPHS" }
  end
  return math.max(gpus, 1)
end

local function ask_distributed(config, gpus)
  ask_machines(config)
  config.debug = menu.confirm("Should collectives be checked more closely, which is slower?", false)
  local ranks = config.distributed_type == "MULTI_GPU" and ask_gpus(config, gpus) or 2
  config.num_processes = menu.ask("How many ranks, of all machines together?", ranks * config.num_machines,
    menu.integer(config.num_machines, 256))
end

--- Asks the questions, and returns the configuration.
---@return table
function M.questions()
  local config, _, gpus = {}, machine.get_gpu_info()
  for key, value in pairs(DEFAULTS) do config[key] = value end
  local kind = menu.choose("Which type of machine are you using?",
    { "No distributed training", "multi-CPU", "multi-GPU" }, gpus > 1 and 3 or 1)
  config.distributed_type = ({ "NO", "MULTI_CPU", "MULTI_GPU" })[kind]
  config.num_processes = 1
  if kind == 1 then
    config.use_cpu = menu.confirm("Should the CPU be used where there is a GPU, too?", false)
  else
    config.use_cpu = kind == 2
    ask_distributed(config, gpus)
  end
  local precisions = { "no", "fp16", "bf16" }
  config.mixed_precision = precisions[menu.choose("Which type should prepared models compute in?", precisions,
    1)]
  if kind ~= 1 then require("accelerate.commands.config_fsdp").ask(config) end
  if kind ~= 1 and config.distributed_type ~= "FSDP" then
    require("accelerate.commands.config_deepspeed").ask(config)
  end
  return config
end

-- ---- config, config default, config update

local FILE = { argument = "FILE",
  help = "the file to write; default: where Accelerate keeps its own. JSON by the " ..
  "ending .json, else YAML" }

local function ask(words)
  local found = commands.arguments(words, { usage = "config [default|update] [--config_file FILE]",
    summary = "Asks how this machine trains, and writes a configuration file that accel-run and " ..
    "Accelerate read.\n" ..
      "config default writes one without questions; config update brings one up to date.",
    options = { config_file = FILE } })
  if not found then return end
  local path = path_of(found)
  M.write(path, M.questions())
  commands.say("accel-run: the configuration is in %s", path)
end

local function default(words)
  local found = commands.arguments(words,
    { usage = "config default [--config_file FILE] [--mixed_precision TYPE]",
    summary = "Writes a configuration for this machine. An existing file is left as it is.",
    options = { config_file = FILE,
      mixed_precision = { argument = "no|fp16|bf16", one_of = { "no", "fp16", "bf16" },
      help = "the type that prepared models compute in; default no" } } })
  if not found then return end
  local fine, path = pcall(machine.write_basic_config, found.mixed_precision or "no", path_of(found))
  if not fine then commands.fail("%s", (path:gsub("^.-write_basic_config: ", ""))) end
  if path then commands.say("accel-run: the configuration is in %s", path) end
end

local function check_keys(path, config)
  local known, unknown = {}, {}
  for _, set in ipairs { DEFAULTS, OTHERS } do
    for key in pairs(set) do known[#known + 1] = key end
  end
  table.sort(known)
  for key in pairs(config) do
    if DEFAULTS[key] == nil and not OTHERS[key] then
      local near = options.nearest(tostring(key), known)
      unknown[#unknown + 1] = tostring(key) .. (near and (" (nearest: %s)"):format(near) or "")
    end
  end
  table.sort(unknown)
  if #unknown > 0 then
    commands.fail("%s has keys that are not known: %s", path, table.concat(unknown, ", "))
  end
end

local function check_type(path, config)
  local given = config.distributed_type
  for _, name in ipairs(TYPES) do
    if given == name then return end
  end
  local near = options.nearest(tostring(given), TYPES)
  commands.fail("%s: distributed_type: expected %s, got '%s'%s", path, table.concat(TYPES, ", "),
    tostring(given), near and ("; did you mean %s?"):format(near) or "")
end

--- Replaces keys of earlier versions, and adds the defaults of what is missing.
---@param config table changed in place
function M.bring_up_to_date(config)
  if config.mixed_precision == nil then config.mixed_precision = config.fp16 == true and "fp16" or "no" end
  if config.mixed_precision == false then config.mixed_precision = "no" end -- an unquoted no
  if config.distributed_type == false then config.distributed_type = "NO" end
  config.fp16 = nil
  config.ipex_config = nil -- it is gone from Accelerate, too
  if type(config.tp_config) == "table" and config.parallelism_config == nil then
    config.parallelism_config = { parallelism_config_tp_size = config.tp_config.tp_size }
  end
  config.tp_config = nil
  if config.dynamo_backend ~= nil then
    local backend = config.dynamo_backend
    config.dynamo_config = (backend == "NO" or backend == false) and {} or { dynamo_backend = backend }
    config.dynamo_backend = nil
  end
  if config.num_processes == nil then config.num_processes = config.distributed_type == "NO" and 1 or -1 end
  for key, value in pairs(DEFAULTS) do
    if config[key] == nil then config[key] = value end
  end
end

local function update(words)
  local found = commands.arguments(words, { usage = "config update [--config_file FILE]",
    summary = "Writes a configuration file again, with keys of earlier versions replaced and defaults added.",
    options = { config_file = FILE } })
  if not found then return end
  local path = path_of(found)
  local config = M.read(path)
  if config.distributed_type == nil then commands.fail("%s: the key distributed_type is missing", path) end
  M.bring_up_to_date(config)
  check_keys(path, config)
  check_type(path, config)
  M.write(path, config)
  commands.say("accel-run: the configuration is up to date: %s", path)
end

--- Runs the command.
---@param words string[]
function M.run(words)
  local parts = { default = default, update = update }
  local part = parts[words[1]]
  if part then table.remove(words, 1) end
  return (part or ask)(words)
end

return M
