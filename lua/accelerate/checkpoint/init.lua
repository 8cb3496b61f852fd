--- Checkpoints: the whole state of a run in a directory, from which it goes on with the same bits.
---
---   manifest   what makes a checkpoint whole    commit     how it appears in one step
---   contents   what is in it                    automatic  checkpoint_<iteration>
---   sharded    models that are cut over ranks   resharded  how any number of ranks loads them
---   intervals  files of pieces                  dcp        PyTorch's distributed checkpoints
---
--- The ranks meet four times in a save, each time with what went wrong on any of them:
---
---   to begin   the save before has ended everywhere, and the ranks that lead know the folder
---   the draft  is there; the script's hooks come before it, so that one that fails leaves nothing
---   written    each rank has its files in the draft, or its thread can begin
---   committed  the folder has its name, or the threads run
---
--- Inside the last one the rank that leads waits for the files themselves (host/core/io/commit.c).
local automatic = require "accelerate.checkpoint.automatic"
local commit = require "accelerate.checkpoint.commit"
local contents = require "accelerate.checkpoint.contents"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "accelerate.host"
local manifest = require "accelerate.checkpoint.manifest"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local sharded = require "accelerate.checkpoint.sharded"

local fail = options.fail

local M = {}

-- ---- saving

-- A folder as the script names it, "~" being the user's home.
local function folder_of(where, what, given)
  options.value(where, what, given, { "string" })
  if given == "" or given:find "%z" then
    fail("%s: %s must be the path of a folder, got %s", where, what, options.show(given))
  end
  return host.expand_user(given)
end

-- Where the next checkpoint goes.
local function destination(project, given)
  if not project.automatic_checkpoint_naming then return folder_of("save_state", "output_dir", given) end
  if not project.project_dir then
    fail("save_state: automatic_checkpoint_naming needs a project_dir; give the Accelerator one")
  end
  local path = automatic.path(project, project.iteration)
  if fs.exists(path) and not automatic.is_superseded(project, path) then
    fail("save_state: %s is there already; set the ProjectConfiguration's iteration to a number that is " ..
      "free, as after load_state() of an earlier checkpoint", path)
  end
  automatic.warn_of_higher(project)
  return path
end

---@class accelerate.checkpoint.Save
---@field draft string the directory that all ranks write into
---@field files userdata from core._save_new: what this rank writes
---@field async boolean a thread writes it

-- Collects all that this rank writes.
local function collect(accelerator, draft, weights, opts)
  local save = { draft = draft, files = core._save_new(draft, accelerator.process_index), async = opts.async }
  local kind = accelerator:_strategy():state_dict_type()
  if kind then sharded.save(accelerator, save, kind, weights) end
  if accelerator:_writes() then
    if not kind then contents.save_weights(weights, save, opts) end
    contents.save_shared(accelerator, save, kind ~= nil)
  end
  contents.save_own(accelerator, save)
  return save
end

-- What the rank that leads does when all files are written.
local function commit_of(accelerator, draft, path)
  local project, first = accelerator._project_configuration, accelerator:_writer()
  local ranks = project.save_on_each_node and core.dist.local_world_size() or accelerator.num_processes
  local automatic_names = project.automatic_checkpoint_naming and project.total_limit
  return commit.plan(draft, path, manifest.circumstances(accelerator.state), first, ranks,
    automatic_names and automatic.surplus(project, project.total_limit) or {})
end

-- Writes and commits, or lets a thread do so.
local function write(accelerator, draft, path, weights, opts)
  local first, save, plan, note = accelerator:_writes(), nil, nil, nil
  commit.together("save_state", function()
    save = collect(accelerator, draft, weights, opts)
    plan = first and commit_of(accelerator, draft, path)
    if not opts.async then save.files:write() end
  end)
  if opts.async then
    commit.together("save_state", function() save.files:start(plan or nil) end)
  else
    note = commit.on_leaders("save_state", accelerator, function() return core._save_commit(plan) end)
  end
  if note and first then notice.here("save_state: %s", note) end
end

--- Waits until the checkpoint that is being written is whole. On all ranks; raises what went wrong
--- on any.
function M.wait()
  for _, note in ipairs(commit.together("save_state", function() return core._save_wait() end)) do
    if note then notice.main("save_state: %s", note) end
  end
end

-- Ends the save before, and settles where this one goes. Returns the folder as the script names it,
-- and its place.
local function begin(accelerator, output_dir)
  local found = commit.together("save_state", function()
    local note = core._save_wait()
    if note then notice.here("save_state: %s", note) end
    if not accelerator:_writes() then return nil end
    local path = destination(accelerator._project_configuration, output_dir)
    return { path = path, place = commit.place_of(path) }
  end)
  local own = found[accelerator:_writer() + 1]
  return own.path, own.place
end

--- Writes the state of a run. See Accelerator:save_state.
---@return string path
function M.save(accelerator, output_dir, opts)
  local project, first = accelerator._project_configuration, accelerator:_writes()
  local path, place = begin(accelerator, output_dir)
  local weights = contents.weights_of(accelerator._models)
  contents.note_local(accelerator._models)
  for _, hook in ipairs(accelerator._save_state_pre_hooks) do hook[1](accelerator._models, weights, path) end
  local draft = commit.on_leaders("save_state", accelerator, function()
    if project.automatic_checkpoint_naming then automatic.sweep(project) end
    return commit.begin(place)
  end)
  local ok, why = pcall(write, accelerator, draft, place, weights, opts)
  if not ok then
    if first then commit.abandon(place) end
    automatic.supersede(project, path)
    error(why, 0)
  end
  project.iteration = project.iteration + 1
  return path
end

-- ---- loading

local function find_newest(project)
  if not project.automatic_checkpoint_naming then
    fail("load_state: input_dir is missing, and automatic_checkpoint_naming is off; give the directory")
  end
  local path, passed_over = automatic.newest(project)
  if not path then
    local lines = {}
    for i, one in ipairs(passed_over) do lines[i] = ("\n  - %s: %s"):format(one.path, one.why) end
    fail("load_state: there is no whole checkpoint in %s%s", automatic.root(project),
      #lines > 0 and ":" .. table.concat(lines) or "")
  end
  return { path = path, passed_over = passed_over }
end

-- Files of checkpoints that Accelerate itself writes, without a manifest, and what takes them.
local FOREIGN = {
  { "pytorch_model_fsdp_0", "utils.load_fsdp_model and utils.load_fsdp_optimizer take its folders" },
  { "pytorch_model_fsdp.bin", "utils.load_fsdp_model and utils.load_fsdp_optimizer take its files" },
  { "model.safetensors", "accelerate.load_checkpoint_in_model takes its weights" },
  { "pytorch_model.bin", "accelerate.load_checkpoint_in_model takes its weights" },
}

local function foreign_hint(path)
  if fs.exists(fs.join(path, manifest.NAME)) then return "" end
  for _, file in ipairs(FOREIGN) do
    if fs.exists(fs.join(path, file[1])) then
      return (", or it was Accelerate's, which writes none: %s"):format(file[2])
    end
  end
  return ""
end

local function check_given(path)
  if not fs.is_dir(path) then fail("load_state: there is no directory %s", path) end
  local whole, why = manifest.verify(path)
  if not whole then fail("load_state: %s is no whole checkpoint: %s%s", path, why, foreign_hint(path)) end
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

-- Reads the files of a whole checkpoint, and then changes the run's state. Returns its manifest.
local function take_over(accelerator, path, opts, models)
  local source, values
  commit.together("load_state", function()
    source = assert(manifest.read(path))
    source.path = path
    values = contents.read(accelerator, source)
  end)
  commit.together("load_state", function() contents.restore(accelerator, source, values, opts, models) end)
  return source
end

--- Reads the state of a run. See Accelerator:load_state.
---@return string path
function M.load(accelerator, input_dir, opts)
  M.wait()
  local project = accelerator._project_configuration
  local own, first = commit.on_leaders("load_state", accelerator, function()
    if project.automatic_checkpoint_naming then automatic.finish_removals(project) end
    if input_dir == nil then return find_newest(project) end
    return check_given(folder_of("load_state", "input_dir", input_dir))
  end)
  local found = input_dir and own or first -- all machines go on from one checkpoint
  for _, one in ipairs(found.passed_over or {}) do
    automatic.supersede(project, one.path)
    notice.main("load_state: passed over %s: %s", one.path, one.why)
  end
  local models = { unpack(accelerator._models) }
  for _, hook in ipairs(accelerator._load_state_pre_hooks) do hook[1](models, found.path) end
  local ok, source = pcall(take_over, accelerator, found.path, opts, models)
  fs.forget_kept()
  if not ok then error(source, 0) end
  report_differences(accelerator, found.path, source.saved_by)
  return found.path
end

return M
