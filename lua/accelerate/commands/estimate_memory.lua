--- `accel-run estimate-memory`: what weights need to be loaded, and to be trained with Adam.
local commands = require "accelerate.commands"
local core = require "accelerate.core"
local files = require "accelerate.utils"
local fs = require "accelerate.utils.fs"

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

--- Returns the number of elements of all tensors, and of the largest layer: of the tensors whose
--- names differ in their last part alone (layer.weight, layer.bias).
---@param path string a safetensors file, or a folder with some
---@return { tensors: integer, elements: number, largest: number, layer: string }
function M.measure(path)
  local layers, seen, sum = {}, {}, { tensors = 0, elements = 0, largest = 0, layer = "none" }
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
      if layers[layer] > sum.largest or layers[layer] == sum.largest and layer < sum.layer then
        sum.largest, sum.layer = layers[layer], layer
      end
    end
    opened:close()
  end
  return sum
end

local function print_table(rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for k, text in ipairs(row) do widths[k] = math.max(widths[k] or 0, #text) end
  end
  for _, row in ipairs(rows) do
    local cells = {}
    for k, text in ipairs(row) do cells[k] = text .. (" "):rep(widths[k] - #text) end
    print((table.concat(cells, "  "):gsub("%s+$", "")))
  end
end

--- Runs the command.
---@param words string[]
function M.run(words)
  local found = commands.arguments(words, {
    usage = "estimate-memory PATH [--dtypes TYPE ...]",
    summary = "Prints what the weights in PATH, a safetensors file or a folder with some, need: the " ..
      "largest layer, all of\n" ..
      "them, and training with Adam on one rank (activations come on top). Only the files' headers are read.",
    options = { dtypes = { kind = "list", argument = "TYPE ...",
      one_of = { "float32", "float16", "bfloat16", "int8", "int4" },
      help = "default: float32 float16 bfloat16 int8 int4" } },
    positions = { "PATH" } })
  if not found then return end
  local m, bytes = M.measure(found.PATH), files.convert_bytes
  local rows = { { "dtype", "largest layer", "total size", "training with Adam" } }
  for _, dtype in ipairs(found.dtypes or { "float32", "float16", "bfloat16", "int8", "int4" }) do
    rows[#rows + 1] = { dtype, bytes(m.largest * BYTES[dtype]), bytes(m.elements * BYTES[dtype]),
      TRAINING[dtype] and bytes(m.elements * TRAINING[dtype]) or "not trained" }
  end
  commands.say("%s: %d tensors, %.0f parameters; the largest layer is %s", found.PATH, m.tensors, m.elements,
    m.layer)
  print_table(rows)
  print(("memory for tensors of a process here: %s"):format(bytes(core.memory_stats().limit_bytes)))
end

return M
