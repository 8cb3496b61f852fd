--- Checkpoints: the whole state of a run in a directory, from which it goes on with the same bits.
---
---   manifest   what makes a checkpoint whole    commit    how it appears in one step
---   contents   what is in it                    automatic checkpoint_<iteration>
local automatic = require "accelerate.checkpoint.automatic"
local commit = require "accelerate.checkpoint.commit"
local contents = require "accelerate.checkpoint.contents"
local fs = require "accelerate.utils.fs"
local manifest = require "accelerate.checkpoint.manifest"
local notice = require "accelerate.utils.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

-- ---- saving -------------------------------------------------------------------------------------

local function leads(accelerator)
  if accelerator._project_configuration.save_on_each_node then return accelerator.is_local_main_process end
  return accelerator.is_main_process
end

-- Where the next checkpoint goes.
local function destination(project, given)
  if not project.automatic_checkpoint_naming then
    options.value("save_state", "output_dir", given, { "string" })
    return given
  end
  if not project.project_dir then
    fail("save_state: automatic_checkpoint_naming needs a project_dir; give the Accelerator one")
  end
  local path = automatic.path(project, project.iteration)
  if fs.exists(path) then
    fail("save_state: %s is there already; set the ProjectConfiguration's iteration to a number that is " ..
      "free, as after load_state() of an earlier checkpoint", path)
  end
  return path
end

local function names_in(directory)
  local names = fs.list(directory)
  if not names then error(("cannot read %s"):format(directory), 0) end
  return names
end

-- All that ranks write. Returns the names of the files that are this rank's own.
local function write(accelerator, draft, weights, safe)
  if leads(accelerator) then
    contents.save_weights(weights, draft, safe)
    contents.save_shared(accelerator, draft)
  end
  return contents.save_own(accelerator, draft)
end

--- Writes the state of a run. See Accelerator:save_state.
---@return string path
function M.save(accelerator, output_dir, opts)
  local project, first = accelerator._project_configuration, leads(accelerator)
  local path = commit.on_leaders("save_state", true, function() return destination(project, output_dir) end)
  local weights = contents.weights_of(accelerator._models)
  for _, hook in ipairs(accelerator._save_state_pre_hooks) do hook[1](accelerator._models, weights, path) end
  local draft = commit.on_leaders("save_state", first, function() return commit.begin(path) end)
  local ok, why = pcall(commit.together, "save_state", function()
    return write(accelerator, draft, weights, opts.safe_serialization)
  end)
  if ok then
    ok, why = pcall(commit.on_leaders, "save_state", first, function()
      commit.finish(draft, path, manifest.describe(draft, names_in(draft)),
        manifest.circumstances(accelerator.state))
    end)
  end
  if not ok then
    if first then commit.abandon(path) end
    error(why, 0)
  end
  if project.automatic_checkpoint_naming and project.total_limit then
    commit.on_leaders("save_state", first, function() automatic.prune(project, project.total_limit) end)
  end
  project.iteration = project.iteration + 1
  return path
end

-- ---- loading ------------------------------------------------------------------------------------

local function find_newest(project)
  if not project.automatic_checkpoint_naming then
    fail("load_state: input_dir is missing, and automatic_checkpoint_naming is off; give the directory")
  end
  local path, passed_over = automatic.newest(project)
  if not path then
    fail("load_state: there is no whole checkpoint in %s%s", automatic.root(project),
      #passed_over > 0 and ":\n  - " .. table.concat(passed_over, "\n  - ") or "")
  end
  return { path = path, passed_over = passed_over }
end

local function check_given(path)
  if not fs.is_dir(path) then fail("load_state: there is no directory %s", path) end
  local whole, why = manifest.verify(path)
  if not whole then fail("load_state: %s is no whole checkpoint: %s", path, why) end
  return { path = path }
end

local function report_differences(accelerator, path, saved)
  local differing = {}
  for name, value in ordered.pairs(manifest.circumstances(accelerator.state)) do
    if saved[name] ~= nil and saved[name] ~= value then
      differing[#differing + 1] = ("%s was %s and is %s"):format(name, tostring(saved[name]), tostring(value))
    end
  end
  if #differing == 0 then return end
  table.sort(differing)
  notice.main("load_state: %s; the run goes on, but not with the bits of the run that saved %s",
    table.concat(differing, ", "), path)
end

--- Reads the state of a run. See Accelerator:load_state.
---@return string path
function M.load(accelerator, input_dir, opts)
  local project = accelerator._project_configuration
  local found = commit.on_leaders("load_state", leads(accelerator), function()
    if input_dir == nil then return find_newest(project) end
    return check_given(options.value("load_state", "input_dir", input_dir, { "string" }))
  end)
  for _, text in ipairs(found.passed_over or {}) do notice.main("load_state: passed over %s", text) end
  local models = { unpack(accelerator._models) }
  for _, hook in ipairs(accelerator._load_state_pre_hooks) do hook[1](models, found.path) end
  local source, values
  commit.together("load_state", function()
    source = assert(manifest.read(found.path))
    source.path = found.path
    values = contents.read(accelerator, source)
  end)
  commit.together("load_state", function() contents.restore(accelerator, source, values, opts, models) end)
  report_differences(accelerator, found.path, source.saved_by)
  return found.path
end

return M
