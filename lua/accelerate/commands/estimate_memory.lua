--- `accel-run estimate-memory`: what weights need to be loaded, and to be trained with Adam, on one
--- rank or sharded over several.
local columns = require "accelerate.messages.columns"
local commands = require "accelerate.commands"
local core = require "accelerate.core"
local files = require "accelerate.utils"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"
local plans = require "accelerate.parallel.plan"
local sharding = require "accelerate.parallel.plan.table"
local sizes = require "accelerate.utils.sizes"

local M = {}

-- Bytes of an element when the model is held in a type.
local BYTES = { float32 = 4, float16 = 2, bfloat16 = 2, int8 = 1, int4 = 0.5 }
-- Bytes of an element in training: parameters, gradients and two states in float32; under mixed
-- precision a working copy too. Integer types are not trained.
local TRAINING = { float32 = 16, float16 = 18, bfloat16 = 18 }

-- The safetensors files of a path.
local function weights_at(path)
  if not fs.exists(path) then commands.fail("there is no file or folder %s", path) end
  if not fs.is_dir(path) then return { path } end
  local list = {}
  for _, name in ipairs(assert(fs.list(path))) do
    if name:match "%.safetensors$" then list[#list + 1] = fs.join(path, name) end
  end
  if #list == 0 then commands.fail("%s has no file that ends in .safetensors", path) end
  return list
end

-- The block that a tensor is in: its name up to the first number, "h.3" of "h.3.mlp.fc.weight"; ""
-- for one in none.
local function block_of(name) return name:match "^(.-%.?%d+)%." or "" end

--- Returns the number of elements of all tensors, of the largest layer (the tensors whose names
--- differ in their last part alone: layer.weight, layer.bias), and of each block, the tensors in
--- none of them first.
---@param path string a safetensors file, or a folder with some
---@return { tensors: integer, elements: number, largest: number, layer: string, blocks: number[] }
function M.measure(path)
  local layers, seen, sum = {}, {}, { tensors = 0, elements = 0, largest = 0, layer = "none", blocks = { 0 } }
  local block_at = { [""] = 1 }
  for _, file in ipairs(weights_at(path)) do
    local ok, opened = pcall(files.safe_open, file)
    if not ok then commands.fail("%s", (tostring(opened):gsub("\nstack traceback.*", ""))) end
    for _, name in ipairs(opened:keys()) do
      local n = 1
      for _, size in ipairs(opened:get_shape(name)) do n = n * size end
      if seen[name] then commands.fail("%s: the tensor %s is in %s too", file, name, seen[name]) end
      seen[name] = file
      local layer = name:match "^(.*)%.[^.]*$" or name
      layers[layer] = (layers[layer] or 0) + n
      sum.tensors, sum.elements = sum.tensors + 1, sum.elements + n
      local block = block_of(name)
      block_at[block] = block_at[block] or #sum.blocks + 1
      sum.blocks[block_at[block]] = (sum.blocks[block_at[block]] or 0) + n
      if layers[layer] > sum.largest or layers[layer] == sum.largest and layer < sum.layer then
        sum.largest, sum.layer = layers[layer], layer
      end
    end
    opened:close()
  end
  return sum
end

local function print_table(rows)
  local lines = {}
  columns.append(lines, rows)
  print(table.concat(lines, "\n"))
end

-- ---- sharded

-- In the order of the table.
local STRATEGIES = { "NO_SHARD", "ZeRO-1", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD",
  "HYBRID_SHARD_ZERO2" }
-- DeepSpeed's names of what FSDP has another one for.
local ALIASES = { ["ZERO-0"] = "NO_SHARD", ["ZERO-1"] = "ZeRO-1", ["ZERO-2"] = "SHARD_GRAD_OP",
  ["ZERO-3"] = "FULL_SHARD" }

local function strategy_named(word)
  local name = word:upper():gsub("_", "-")
  for _, known in ipairs(STRATEGIES) do
    if known:upper():gsub("_", "-") == name then return known end
  end
  if ALIASES[name] then return ALIASES[name] end
  commands.usage("--strategy: expected %s, or ZeRO-0 to ZeRO-3, got '%s'%s", table.concat(STRATEGIES, ", "),
    word,
    options.hint(word:upper(), STRATEGIES):gsub("^; known.*", ""))
end

local function count_named(found, name, default)
  local n = found[name] and tonumber(found[name]) or default
  if not n or n % 1 ~= 0 or n < 1 then
    commands.usage("--%s: expected a whole number of at least 1, got '%s'", name, found[name])
  end
  return n
end

-- The plan of a strategy; nil: it needs several copies, and there is one.
local function plan_of(strategy, ranks, copies, dtype)
  local hybrid = strategy:find "^HYBRID" ~= nil
  if hybrid and copies == 1 then return nil end
  local replicate = strategy == "NO_SHARD" and ranks or hybrid and copies or 1
  return plans.new(strategy, { replicate = replicate, shard = ranks / replicate,
    param_dtype = dtype ~= "float32" and dtype or nil }, ranks)
end

--- Returns the table of bytes of a rank in training with Adam, by strategy.
---@param m table what `measure` returned
---@param strategies string[]
---@param ranks integer
---@param copies integer of HYBRID strategies
---@param dtype string what units compute in; values rest in float32
---@return string[][]
function M.sharded(m, strategies, ranks, copies, dtype)
  local bytes, units = sizes.text, {}
  for i, n in ipairs(m.blocks) do
    units[i] = { values = { float32 = n }, trained = { float32 = n }, eight = 0 }
  end
  local rows = { { "strategy", "values", "gradients", "states", "units' buffers", "a rank", "all ranks" } }
  for _, strategy in ipairs(strategies) do
    local plan = plan_of(strategy, ranks, copies, dtype)
    if plan then
      local sum = sharding.bytes(plan, units, 2)
      rows[#rows + 1] = { strategy, bytes(sum.values + sum.working), bytes(sum.gradients), bytes(sum.states),
        bytes(sum.whole_values.total + sum.whole_gradients.total), bytes(sum.total),
        bytes(sum.total * ranks) }
    end
  end
  return rows
end

-- The ranks, copies and strategies that were given; nil: none were.
local function sharding_of(found)
  if not (found.num_processes or found.strategy or found.dp_replicate_size) then return nil end
  local given = { ranks = count_named(found, "num_processes", 1), strategies = {},
    copies = count_named(found, "dp_replicate_size", 1) }
  if given.ranks % given.copies ~= 0 then
    commands.usage("--dp_replicate_size %d does not divide --num_processes %d", given.copies, given.ranks)
  end
  for i, word in ipairs(found.strategy or STRATEGIES) do
    given.strategies[i] = strategy_named(word)
    if found.strategy and given.copies == 1 and given.strategies[i]:find "^HYBRID" then
      commands.usage("--strategy %s: it needs --dp_replicate_size above 1", given.strategies[i])
    end
  end
  return given
end

local function print_sharded(m, given, dtypes)
  for _, dtype in ipairs(dtypes) do
    if TRAINING[dtype] then
      print(("\ntraining with Adam on %d rank%s, computing in %s"):format(given.ranks,
        given.ranks == 1 and "" or "s", dtype))
      print_table(M.sharded(m, given.strategies, given.ranks, given.copies, dtype))
    end
  end
  print(("units: %d blocks, and the rest of the model; activations come on top"):format(#m.blocks - 1))
end

--- Runs the command.
---@param words string[]
function M.run(words)
  local found = commands.arguments(words, {
    usage = "estimate-memory PATH [--dtypes TYPE ...] [--num_processes N [--strategy NAME ...]]",
    summary = "Prints what the weights in PATH, a safetensors file or a folder with some, need: the " ..
      "largest layer, all of\n" ..
      "them, and training with Adam on one rank (activations come on top). Only the files' headers are " ..
      "read.\n" ..
      "With --num_processes or --strategy also what a rank has when training is sharded.",
    options = { dtypes = { kind = "list", argument = "TYPE ...",
      one_of = { "float32", "float16", "bfloat16", "int8", "int4" },
      help = "default: float32 float16 bfloat16 int8 int4" },
      num_processes = { argument = "N", help = "ranks that training is sharded over" },
      dp_replicate_size = { argument = "N",
        help = "copies of the HYBRID strategies; default 1: they are left out" },
      strategy = { kind = "list", argument = "NAME ...",
      help = "default all: " .. table.concat(STRATEGIES, " ") ..
        "; ZeRO-2 and ZeRO-3 " ..
        "are SHARD_GRAD_OP and FULL_SHARD" } },
    positions = { "PATH" } })
  if not found then return end
  local sharded = sharding_of(found)
  local m, bytes = M.measure(found.PATH), sizes.text
  local rows = { { "dtype", "largest layer", "total size", "training with Adam" } }
  for _, dtype in ipairs(found.dtypes or { "float32", "float16", "bfloat16", "int8", "int4" }) do
    rows[#rows + 1] = { dtype, bytes(m.largest * BYTES[dtype]), bytes(m.elements * BYTES[dtype]),
      TRAINING[dtype] and bytes(m.elements * TRAINING[dtype]) or "not trained" }
  end
  commands.say("%s: %d tensors, %.0f parameters; the largest layer is %s", found.PATH, m.tensors, m.elements,
    m.layer)
  print_table(rows)
  if sharded then print_sharded(m, sharded, found.dtypes or { "float32", "bfloat16" }) end
  print(("memory for tensors of a process here: %s"):format(bytes(core.memory_stats().limit_bytes)))
end

return M
