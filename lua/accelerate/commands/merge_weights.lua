--- `accel-run merge-weights`: sharded weights into one file.
local commands = require "accelerate.commands"
local fs = require "accelerate.utils.fs"

local M = {}

--- Runs the command.
---@param words string[]
function M.run(words)
  local found = commands.arguments(words, {
    usage = "merge-weights FOLDER OUTPUT [--unsafe_serialization] [--remove_checkpoint_dir]",
    summary = "Reads the sharded weights in FOLDER (an index, *.index.json, and its files) and writes " ..
      "one file into the\n" ..
      "folder OUTPUT: model.safetensors. OUTPUT may also be a file's name that ends in .safetensors or .bin.",
    options = {
      unsafe_serialization = { kind = "switch", help = "write PyTorch's format: pytorch_model.bin" },
      remove_checkpoint_dir = { kind = "switch", help = "remove FOLDER afterwards" },
    },
    positions = { "FOLDER", "OUTPUT" } })
  if not found then return end
  local weights = require "accelerate.weights"
  if not fs.exists(found.FOLDER) then commands.fail("there is no folder %s", found.FOLDER) end
  local ok, dict = pcall(weights.read_checkpoint, found.FOLDER)
  if not ok then commands.fail("%s", (tostring(dict):gsub("^load_checkpoint_in_model: ", ""))) end
  local safe, to = not found.unsafe_serialization, found.OUTPUT
  if to:match "%.safetensors$" or to:match "%.bin$" then
    safe = to:match "%.bin$" == nil
  else
    local made, why = fs.make_dirs(to)
    if not made then commands.fail("%s", why) end
    to = fs.join(to, safe and "model.safetensors" or "pytorch_model.bin")
  end
  weights.save(dict, to, safe)
  commands.say("accel-run: the weights are in %s", to)
  if found.remove_checkpoint_dir and fs.is_dir(found.FOLDER) then
    local inside, folder = assert(fs.real(to)), assert(fs.real(found.FOLDER))
    if inside:sub(1, #folder + 1) == folder .. "/" then
      commands.fail("%s is not removed: the merged weights are in it", found.FOLDER)
    end
    local removed, why = fs.remove_tree(found.FOLDER)
    if not removed then commands.fail("%s", why) end
  end
end

return M
