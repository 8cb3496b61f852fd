--- Making a checkpoint appear whole or not at all, on all ranks or on none.
---
--- Ranks write into a directory beside the final one. When all have written, the rank that leads
--- adds the manifest, gives the directory its name in one step and syncs the parent. A process that
--- is killed at any moment leaves the former checkpoint, or the new one.
local fs = require "accelerate.utils.fs"
local manifest = require "accelerate.checkpoint.manifest"
local operations = require "accelerate.collectives.operations"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

-- An error without the script's line and the name of the method, which `fail` adds.
local function bare(where, message)
  message = tostring(message)
  local start = message:find(where .. ": ", 1, true)
  return start and message:sub(start + #where + 2) or message
end

--- Runs fn() on this rank, and raises on every rank where it failed on any.
---@param where string what messages begin with
---@param fn fun(): any its result: plain data
---@return any[] results of all ranks, by rank from 1
function M.together(where, fn)
  local ok, result = pcall(fn)
  local reports = operations.gather_object { { ok = ok, value = ok and (result or false)
    or bare(where, result) } }
  local faults, results = {}, {}
  for i, report in ipairs(reports) do
    results[i] = report.value
    if not report.ok then
      faults[#faults + 1] = (#reports > 1 and ("rank %d: "):format(i - 1) or "") .. report.value
    end
  end
  if #faults > 0 then fail("%s: %s", where, table.concat(faults, "; ")) end
  return results
end

--- Runs fn() on the ranks that lead: rank 0, or one of each machine. Returns rank 0's result on
--- every rank, and raises on every rank where it failed on any.
---@param where string
---@param leads boolean whether this rank does
---@param fn fun(): any
---@return any
function M.on_leaders(where, leads, fn)
  return M.together(where, function() return leads and fn() or nil end)[1]
end

local function parts(path)
  path = path:gsub("/+$", "")
  local parent, name = path:match "^(.*/)([^/]+)$"
  return parent or "./", name or path
end

-- The directory in which a checkpoint is written before it has its name.
local function draft_of(path)
  local parent, name = parts(path)
  return parent .. "." .. name .. ".saving"
end

local function must(ok, why)
  if not ok then error(why, 0) end
end

--- Begins a checkpoint at `path`: returns the directory to write into. On ranks that lead.
---@param path string
---@return string draft
function M.begin(path)
  local draft = draft_of(path)
  must(fs.remove_tree(draft)) -- of a save that was killed
  must(fs.make_dirs(draft))
  return draft
end

-- Whether all that is in a directory was written by a checkpoint.
local function is_checkpoint(path)
  local known = manifest.read(path)
  if not known then return false end
  for _, name in ipairs(fs.list(path) or {}) do
    if name ~= manifest.NAME and not known.files[name] then return false end
  end
  return true
end

-- Into a directory that has other files, too, a checkpoint's are moved one by one, and those of the
-- former checkpoint go. Without the manifest, which comes last, nobody takes it for whole.
local function move_into(draft, path)
  local former, names = manifest.read(path), assert(fs.list(draft))
  must(fs.remove_tree(fs.join(path, manifest.NAME)))
  fs.sync_dir(path)
  for name in pairs(former and former.files or {}) do must(fs.remove_tree(fs.join(path, name))) end
  for _, name in ipairs(names) do
    if name ~= manifest.NAME then must(fs.rename(fs.join(draft, name), fs.join(path, name))) end
  end
  fs.sync_dir(path)
  must(fs.rename(fs.join(draft, manifest.NAME), fs.join(path, manifest.NAME)))
  fs.sync_dir(path)
end

-- Gives the draft its name. A former checkpoint of that name changes places with it first.
local function put_in_place(draft, path)
  if not fs.exists(path) or #(fs.list(path) or { "" }) == 0 then return must(fs.rename(draft, path)) end
  if not fs.is_dir(path) then error(("%s is a file, not a directory"):format(path), 0) end
  if is_checkpoint(path) and fs.exchange(draft, path) then return end
  move_into(draft, path)
end

--- Ends a checkpoint: adds the manifest and gives the directory its name. On ranks that lead.
---@param draft string
---@param path string
---@param files table<string, { bytes: integer, crc32c: integer }>
---@param facts table<string, any>
function M.finish(draft, path, files, facts)
  manifest.write(draft, files, facts)
  fs.sync_dir(draft)
  put_in_place(draft, path)
  fs.sync_dir((parts(path)))
  must(fs.remove_tree(draft))
end

--- Removes what a save that failed has written. On ranks that lead.
function M.abandon(path) fs.remove_tree(draft_of(path)) end

return M
