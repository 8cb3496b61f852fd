--- Reading the manifest of a checkpoint: its files with their sizes and checksums, and what the
--- bits of a resumed run depend on. The core writes it, last, and knows its name, its format and
--- whether it is whole (host/manifest.h); a checkpoint without it is not whole.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local M = {}

local FORMAT
M.NAME, FORMAT = core._manifest()
local MOST = 2 ^ 26 -- bytes of a manifest that is read: a line of a file has about 80

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

local function damaged(why, ...)
  return nil, ("its %s is damaged%s"):format(M.NAME, why and ": " .. why:format(...) or "")
end

-- Is it a file of the folder, or of a folder in it?
local function is_name(name)
  local above, below = tostring(name):match "^([^/]*)/([^/]*)$"
  if above then return fs.is_plain_name(above) and fs.is_plain_name(below) end
  return fs.is_plain_name(name)
end

-- The names become paths that are read, and removed when the folder is saved into again, so each
-- one stays in the folder.
local function check_files(files)
  for name, entry in pairs(files) do
    if not is_name(name) or name == M.NAME then
      return damaged("it lists %s, which is no name of a file of a checkpoint", options.show(name))
    end
    if type(entry) ~= "table" or type(entry.bytes) ~= "number" or type(entry.crc32c) ~= "number" then
      return damaged("it does not say the bytes and the CRC-32C of %s", name)
    end
  end
  return true
end

-- The value of a manifest's text, or nil and what is wrong with it.
local function decode(text)
  local ok, manifest = pcall(json.decode, text)
  if not ok or type(manifest) ~= "table" or type(manifest.files) ~= "table" then return damaged() end
  if manifest.format ~= FORMAT then
    return nil, ("its %s has format %s, and this accel reads %d"):format(M.NAME,
      options.show(manifest.format), FORMAT)
  end
  if not core._manifest_is_whole(text) then
    return damaged "its bytes are not those that were saved"
  end
  if type(manifest.saved_by) ~= "table" then return damaged "it does not say what saved it" end
  local fine, why = check_files(manifest.files)
  return fine and manifest, why
end

--- Returns the manifest of a directory, or nil and why there is none that can be used.
---@param directory string
---@return table?
---@return string? why
function M.read(directory)
  local path = fs.join(directory, M.NAME)
  if not fs.exists(path) then return nil, ("it has no %s: the save did not end"):format(M.NAME) end
  local text, why = fs.read(path, MOST)
  if not text then return nil, why end
  return decode(text)
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
