--- The manifest of a checkpoint: its files with their sizes and checksums, and what the bits of a
--- resumed run depend on. It is written last, so a checkpoint without it is not whole. Its last
--- line is the checksum of the lines above.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local ordered = require "accelerate.utils.ordered"

local M = {}

M.NAME = "accelerate_manifest.json"
local FORMAT = 2

--- Returns what the bits of this run depend on besides the script.
---@param state accelerate.PartialState
---@return table<string, any>
function M.circumstances(state)
  local kernels = core.backend_info()
  return {
    accel = core.version, num_processes = state.num_processes, num_threads = core.get_num_threads(),
    device = state.device:match "^%a+", processor_level = kernels.level,
    library = kernels.description:match "^[^,]+",
  }
end

--- Returns the members of a manifest's JSON besides `files`.
---@param facts table<string, any>
---@return string
function M.facts(facts) return ('"format": %d,\n "saved_by": %s'):format(FORMAT, json.encode(facts)) end

--- Returns the manifest of a directory, or nil and why there is none that can be used.
---@param directory string
---@return table?
---@return string? why
function M.read(directory)
  local path = fs.join(directory, M.NAME)
  if not fs.exists(path) then return nil, ("it has no %s: the save did not end"):format(M.NAME) end
  local text, why = fs.read(path)
  if not text then return nil, why end
  local ok, manifest = pcall(json.decode, text)
  if not ok or type(manifest) ~= "table" or type(manifest.files) ~= "table" then
    return nil, ("its %s is damaged"):format(M.NAME)
  end
  if manifest.format ~= FORMAT then
    return nil, ("its %s has format %s, and this accel reads %d"):format(M.NAME, tostring(manifest.format),
      FORMAT)
  end
  local lines, crc = text:match('^(.*\n) "crc32c": (%d+)\n}\n$')
  if not lines or core._crc32c(lines) ~= tonumber(crc) then
    return nil, ("its %s is damaged: its bytes are not those that were saved"):format(M.NAME)
  end
  return manifest
end

--- Compares a directory's files with its manifest. Returns the manifest, or nil and the first
--- difference. The files stay mapped for those who read them next, until fs.forget_kept.
---@param directory string
---@return table?
---@return string? why
function M.verify(directory)
  fs.forget_kept()
  local manifest, why = M.read(directory)
  if not manifest then return nil, why end
  local threads = core._cores() -- all of them: the ranks wait meanwhile
  for _, name in ipairs(ordered.sorted_keys(manifest.files)) do
    local expected = manifest.files[name]
    if type(expected) ~= "table" or type(expected.bytes) ~= "number" or type(expected.crc32c) ~= "number" then
      return nil, ("its %s is damaged"):format(M.NAME)
    end
    local bytes, crc = fs.digest(fs.join(directory, name), threads, true)
    if not bytes then return nil, ("%s lists %s: %s"):format(M.NAME, name, crc) end
    if bytes ~= expected.bytes then
      return nil, ("%s has %d bytes, and had %d when it was saved, says %s"):format(name, bytes,
        expected.bytes,
        M.NAME)
    end
    if crc ~= expected.crc32c then
      return nil, ("%s is damaged: its bytes are not those that were saved (CRC-32C %08x, %s says %08x)")
        :format(name, crc, M.NAME, expected.crc32c)
    end
  end
  return manifest
end

return M
