--- Automatic naming: <project_dir>/checkpoints/checkpoint_<iteration>.
local fs = require "accelerate.utils.fs"
local manifest = require "accelerate.checkpoint.manifest"

local M = {}

local superseded = setmetatable({}, { __mode = "k" }) -- project -> set of paths

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

--- Lets the next save take the place of what is at `path`: a checkpoint that load_state passed
--- over, or the rest of a save that failed.
function M.supersede(project, path)
  superseded[project] = superseded[project] or {}
  superseded[project][path] = true
end

---@return boolean
function M.is_superseded(project, path)
  return superseded[project] ~= nil and superseded[project][path] ~= nil
end

--- Returns the newest whole checkpoint, and for each newer one why it was passed over.
---@return string? path
---@return { path: string, why: string }[] passed_over
function M.newest(project)
  local numbers, passed_over = M.numbers(project), {}
  for i = #numbers, 1, -1 do
    local path = M.path(project, numbers[i])
    local whole, why = manifest.verify(path)
    if whole then return path, passed_over end
    passed_over[#passed_over + 1] = { path = path, why = why }
  end
  return nil, passed_over
end

--- Returns the paths of the oldest checkpoints that are one too many when the one of this iteration
--- is there, too.
---@return string[]
function M.surplus(project, limit)
  local others, paths = {}, {}
  for _, number in ipairs(M.numbers(project)) do
    if number ~= project.iteration then others[#others + 1] = number end
  end
  for i = 1, #others + 1 - limit do paths[i] = M.path(project, others[i]) end
  return paths
end

-- Calls fn with the path of each name that has the pattern.
local function each(project, pattern, fn)
  for _, name in ipairs(fs.list(M.root(project)) or {}) do
    if name:match(pattern) then fn(fs.join(M.root(project), name)) end
  end
end

--- Removes what a save that was killed has left.
function M.sweep(project)
  local function remove(path)
    local ok, why = fs.remove_tree(path)
    if not ok then error(why, 0) end
  end
  each(project, "^%.checkpoint_%d+%.saving$", remove)
  each(project, "^%.checkpoint_%d+%.removed$", remove)
end

--- Ends the removals that a save which was killed had begun: after the last save of a run nothing
--- else would. It leaves drafts, because the run that writes one may be alive, and folders that
--- this process may not change.
function M.finish_removals(project)
  each(project, "^%.checkpoint_%d+%.removed$", fs.remove_tree)
end

return M
