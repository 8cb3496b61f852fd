--- What the NVIDIA driver says of the machine's GPUs, in its files and by its tool, without
--- touching a device.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"

local M = {}

local FOLDER = "/proc/driver/nvidia/gpus"

--- Returns the lines that the driver's tool prints; none where there is no such tool.
---@param query string
---@param bus? string the address of one GPU on the PCI bus; nil: all GPUs
---@return string[]
function M.ask(query, bus)
  local one = bus and (" --id=%s"):format(bus) or ""
  local pipe = io.popen(("nvidia-smi --query-gpu=%s%s --format=csv,noheader 2>/dev/null"):format(query, one))
  local lines = {}
  if not pipe then return lines end
  for line in pipe:lines() do lines[#lines + 1] = line:match("^%s*(.-)%s*$") end
  local ok = pipe:close()
  return ok ~= nil and ok ~= false and lines or {}
end

local function model_of(entry)
  local text = fs.read(fs.join(FOLDER, entry) .. "/information") or ""
  return text:match "Model:%s*([^\n]-)%s*\n"
end

--- Returns the names of all GPUs, from the driver's files; none where there are no such files.
---@return string[]
function M.names()
  local names = {}
  for _, entry in ipairs(fs.list(FOLDER) or {}) do names[#names + 1] = model_of(entry) or "unknown" end
  return names
end

--- Returns the name of a GPU that this process can use; nil where the driver does not say it.
---@param device string "cuda:0"
---@return string?
function M.name_of(device)
  local bus = core._device_bus(device)
  return bus and (model_of(bus:lower()) or M.ask("name", bus)[1])
end

--- Returns the compute capability of a GPU that this process can use; nil where there is no tool to
--- say it.
---@param device string "cuda:0"
---@return integer? major
---@return integer? minor
function M.capability_of(device)
  local bus = core._device_bus(device)
  local major, minor = (bus and M.ask("compute_cap", bus)[1] or ""):match "^(%d+)%.(%d+)"
  return tonumber(major), tonumber(minor)
end

return M
