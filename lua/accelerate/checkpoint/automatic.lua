--- Automatic naming: <project_dir>/checkpoints/checkpoint_<iteration>.
local fs = require "accelerate.utils.fs"
local manifest = require "accelerate.checkpoint.manifest"
local notice = require "accelerate.messages.notice"

local M = {}

local superseded = setmetatable({}, { __mode = "k" }) -- project -> set of paths
local warned_of = setmetatable({}, { __mode = "k" }) -- project -> path

---@param project accelerate.ProjectConfiguration
---@return string
function M.root(project) return fs.join(project.project_dir, "checkpoints") end

---@return string
function M.path(project, iteration)
  return fs.join(M.root(project), ("checkpoint_%.0f"):format(iteration))
end

---@class accelerate.checkpoint.Numbered
---@field number number beyond 2^53 not exact, so `path` says which folder it is
---@field path string

--- Returns the checkpoints that there are, the lowest number first.
---@return accelerate.checkpoint.Numbered[]
local function numbered(project)
  local found, root = {}, M.root(project)
  for _, name in ipairs(fs.list(root) or {}) do
    local number = tonumber(name:match "^checkpoint_(%d+)$", 10)
    if number then found[#found + 1] = { number = number, path = fs.join(root, name) } end
  end
  table.sort(found, function(a, b)
    if a.number ~= b.number then return a.number < b.number end
    return a.path < b.path
  end)
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
  local found, passed_over = numbered(project), {}
  for i = #found, 1, -1 do
    local path = found[i].path
    local whole, why = manifest.verify(path)
    if whole then return path, passed_over end
    passed_over[#passed_over + 1] = { path = path, why = why }
  end
  return nil, passed_over
end

--- Returns the names of the oldest checkpoints that are one too many when the one of this iteration
--- is there, too.
---@return string[]
function M.surplus(project, limit)
  local others, names = {}, {}
  for _, one in ipairs(numbered(project)) do
    if one.number ~= project.iteration then others[#others + 1] = one.path:match "[^/]+$" end
  end
  for i = 1, #others + 1 - limit do names[i] = others[i] end
  return names
end

--- Says that a checkpoint with a higher number than the next one's is there: load_state() goes on
--- taking the higher one, and total_limit removes the lower ones first. Once for each such one.
---@param project accelerate.ProjectConfiguration
function M.warn_of_higher(project)
  local found = numbered(project)
  local highest = found[#found]
  if not highest or highest.number <= project.iteration or M.is_superseded(project, highest.path)
    or warned_of[project] == highest.path then return end
  warned_of[project] = highest.path
  local name = highest.path:match "[^/]+$"
  local removed = project.total_limit and ", and total_limit removes the lowest numbers first" or ""
  notice.main("save_state: %s is there; this is checkpoint_%.0f: load_state() without a folder takes " ..
    "%s%s; set project_configuration.iteration to %.0f, as after load_state() of %s, to go on behind it",
    name, project.iteration, name, removed, highest.number + 1, name)
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
