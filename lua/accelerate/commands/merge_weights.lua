--- `accel-run merge-weights`: sharded weights into one file.
local commands = require "accelerate.commands"
local fs = require "accelerate.utils.fs"

local M = {}

--- Runs the command.
---@param words string[]
function M.run(words)
  local found = commands.arguments(words, {
    usage = "merge-weights FOLDER OUTPUT [--unsafe_serialization] [--remove_checkpoint_dir]",
    summary = "Reads the sharded weights in FOLDER and writes one file into the folder OUTPUT: " ..
      "model.safetensors. OUTPUT may\n" ..
      "also be a file's name that ends in .safetensors or .bin. FOLDER has a distributed checkpoint of " ..
      "PyTorch's\n" ..
      "(pytorch_model_fsdp_0 of a checkpoint), files of pieces, or an index (*.index.json) and its files.",
    options = {
      unsafe_serialization = { kind = "switch", help = "write PyTorch's format: pytorch_model.bin" },
      remove_checkpoint_dir = { kind = "switch", help = "remove FOLDER afterwards" },
    },
    positions = { "FOLDER", "OUTPUT" } })
  if not found then return end
  local merging = require "accelerate.checkpoint.fsdp_files"
  if not fs.exists(found.FOLDER) then commands.fail("there is no folder %s", found.FOLDER) end
  local function try(fn, ...)
    local ok, result = pcall(fn, ...)
    if ok then return result end
    local text = tostring(result):gsub("^[^:\n]*:%d+: ", "")
    commands.fail("%s", (text:gsub("^load_checkpoint_in_model: ", ""):gsub("^merge_fsdp_weights: ", "")))
  end
  local to = try(merging.write_merged, try(merging.read_sharded, found.FOLDER), found.OUTPUT,
    not found.unsafe_serialization)
  commands.say("accel-run: the weights are in %s", to)
  if found.remove_checkpoint_dir and fs.is_dir(found.FOLDER) then
    try(merging.remove_merged, found.FOLDER, to)
  end
end

return M
