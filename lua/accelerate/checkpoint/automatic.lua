--- Automatic naming: <project_dir>/checkpoints/checkpoint_<iteration>.
local fs = require "accelerate.utils.fs"
local manifest = require "accelerate.checkpoint.manifest"

local M = {}

---@param project accelerate.ProjectConfiguration
---@return string
function M.root(project) return fs.join(project.project_dir, "checkpoints") end

---@return string
function M.path(project, iteration)
  return fs.join(M.root(project), ("checkpoint_%d"):format(iteration))
end

--- Returns the numbers of the checkpoints that there are, the lowest first.
---@return integer[]
function M.numbers(project)
  local found = {}
  for _, name in ipairs(fs.list(M.root(project)) or {}) do
    local number = tonumber(name:match "^checkpoint_(%d+)$")
    if number then found[#found + 1] = number end
  end
  table.sort(found)
  return found
end

--- Returns the newest whole checkpoint, and for each newer one why it was passed over.
---@return string? path
---@return string[] passed_over "checkpoint_7: its manifest is damaged"
function M.newest(project)
  local numbers, passed_over = M.numbers(project), {}
  for i = #numbers, 1, -1 do
    local path = M.path(project, numbers[i])
    local whole, why = manifest.verify(path)
    if whole then return path, passed_over end
    passed_over[#passed_over + 1] = ("%s: %s"):format(path, why)
  end
  return nil, passed_over
end

--- Returns the paths of the oldest checkpoints that are one too many when another one is there.
---@return string[]
function M.surplus(project, limit)
  local numbers, paths = M.numbers(project), {}
  for i = 1, #numbers + 1 - limit do paths[i] = M.path(project, numbers[i]) end
  return paths
end

return M
