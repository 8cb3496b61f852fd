--- `accel-run to-fsdp2`: a configuration file of Accelerate, from FSDP1's keys to FSDP2's.
local commands = require "accelerate.commands"
local config_file = require "accelerate.commands.config"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"

local M = {}

-- Keys that FSDP2 has not; why.
local GONE = {
  fsdp_backward_prefetch = "FSDP2 has it no more", fsdp_sync_module_states = "FSDP2 has it no more",
  fsdp_use_orig_params = "FSDP2 has it no more", fsdp_forward_prefetch = "FSDP2 does not have it yet",
}
-- Whether parameters are freed after the forward pass.
local RESHARD = { FULL_SHARD = true, SHARD_GRAD_OP = false, HYBRID_SHARD = true, HYBRID_SHARD_ZERO2 = false,
  NO_SHARD = false }

--- Returns the configuration with FSDP2's keys, and a line for each key that was left out.
---@param config table
---@return table config a copy; the map itself where there is nothing to convert
---@return string[] notes
function M.convert(config)
  local old = config.fsdp_config
  if type(old) ~= "table" or next(old) == nil then
    return config, { "it has no fsdp_config; nothing to convert" }
  end
  if tonumber(old.fsdp_version) == 2 then
    return config, { "its fsdp_version is 2 already; nothing to convert" }
  end
  local new, notes, copy = {}, {}, {}
  for key, value in pairs(old) do
    if GONE[key] then
      notes[#notes + 1] = ("%s is left out: %s"):format(key, GONE[key])
    elseif key == "fsdp_sharding_strategy" or key == "fsdp_reshard_after_forward" then
      local reshard = RESHARD[value]
      if reshard == nil then reshard = value end
      if key == "fsdp_sharding_strategy" or new.fsdp_reshard_after_forward == nil then
        new.fsdp_reshard_after_forward = reshard
      end
    else
      new[key] = value
    end
  end
  new.fsdp_version = 2
  for key, value in pairs(config) do copy[key] = value end
  copy.fsdp_config = new
  table.sort(notes)
  return copy, notes
end

--- Runs the command.
---@param words string[]
function M.run(words)
  local found = commands.arguments(words, {
    usage = "to-fsdp2 --config_file FILE [--output_file FILE] [--overwrite]",
    summary = "Converts a configuration file of Accelerate, or of accel-run, from FSDP1 to FSDP2.",
    options = {
      config_file = { argument = "FILE", help = "the file to convert" },
      output_file = { argument = "FILE",
        help = "where to write the result; with --overwrite the default is the file itself" },
      overwrite = { kind = "switch", help = "replace a file that is there" },
    } })
  if not found then return end
  if not found.config_file then commands.usage "--config_file is missing: the file to convert" end
  local to = found.output_file or found.overwrite and found.config_file
  if not to then commands.usage "give --output_file FILE, or --overwrite to replace the file itself" end
  if fs.exists(to) and not found.overwrite then
    commands.fail("%s is there already; --overwrite replaces it", to)
  end
  local converted, notes = M.convert(config_file.read(found.config_file))
  for _, note in ipairs(notes) do
    io.stderr:write(options.clean(("accel-run to-fsdp2: %s: %s\n"):format(found.config_file, note)))
  end
  config_file.write(to, converted)
  commands.say("accel-run: the configuration is in %s", to)
end

return M
