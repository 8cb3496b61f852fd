--- MLflow's file store: its folder, its experiments, and the meta.yaml of a run.
local env = require "accelerate.utils.environment"
local file = require "accelerate.tracking.file"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"
local yaml = require "accelerate.utils.yaml"

local M = {}

local RUNNING, FINISHED, LOCAL = 1, 3, 4  -- RunStatus and SourceType of mlflow/protos/service.proto

function M.milliseconds() return math.floor(file.now() * 1000) end

-- ---- addresses

local function absolute(path)
  if path:sub(1, 1) == "/" then return path end
  return fs.join(fs.real(".") or ".", path)
end

local function uri_of(path)
  return "file://" .. absolute(path):gsub("[^%w/%._~%-]", function(c) return ("%%%02X"):format(c:byte()) end)
end

--- Returns the path of "file:///a/b", "file:a/b" or "a/b"; nil for an address of another kind.
local function path_of(uri)
  if not uri:find "^%a[%w+.-]*:" then return uri end
  local path = uri:match "^file://(/.*)$" or uri:match "^file:([^/].*)$" or uri:match "^file:(/[^/].*)$"
  return path and path:gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)
end

--- Returns the folder of a tracking address. Raises for addresses of servers and databases.
---@param uri string
---@return string
function M.folder(uri)
  local path = path_of(uri)
  if not path then
    options.fail(
      "MLflowTracker: the tracking address must be a folder (a path, or file:///a/path), because " ..
      "accel writes MLflow's file store only; got '%s'. `mlflow migrate-filestore` moves " ..
      "such a store into a database", uri)
  end
  return (path:gsub("(.)/+$", "%1"))
end

--- Returns the folder for the artifacts of a new experiment. Raises for a server's address.
---@param logging_dir string
---@return string
function M.artifact_location(logging_dir)
  local path = path_of(logging_dir)
  if not path then
    options.fail("MLflowTracker: logging_dir must be a folder, because accel does not write artifacts to " ..
      "servers, got '%s'", logging_dir)
  end
  return absolute(path)
end

-- ---- meta.yaml

local function read_meta(dir)
  local text = fs.read(dir .. "/meta.yaml")
  local ok, meta = pcall(yaml.decode, text or "", dir .. "/meta.yaml")
  return ok and type(meta) == "table" and meta or nil
end

local function save_meta(dir, meta) file.save(dir .. "/meta.yaml", yaml.encode(meta)) end

--- Returns the id and the meta.yaml of the experiment with a name; nil when there is none.
local function find_experiment(root, name)
  for _, id in ipairs(fs.list(root) or {}) do
    local meta = id ~= ".trash" and read_meta(root .. "/" .. id)
    if meta and meta.name == name and meta.lifecycle_stage ~= "deleted" then return id, meta end
  end
end

local function create_experiment(root, id, name, location)
  local dir, now = root .. "/" .. id, M.milliseconds()
  file.make_dirs(dir)
  local meta = { artifact_location = location or uri_of(dir), creation_time = now, experiment_id = id,
    last_update_time = now, lifecycle_stage = "active", name = name }
  save_meta(dir, meta)
  return id, meta
end

--- Returns 18 digits at random, which do not begin with 0.
local function fresh_id()
  local digits = file.random_hex(9):gsub("%a", function(c) return c:byte() % 10 end)
  return (digits:gsub("^0", "1"))
end

local function opened(dir, meta)
  local folder = path_of(meta.artifact_uri or "")
  return { id = meta.run_id, dir = dir, meta = meta, tables = {}, artifacts = folder ~= "" and folder or nil }
end

--- Makes a run in the experiment `name`, which is made where it is missing.
---@param root string the store
---@param name string the experiment
---@param o table logging_dir (absolute) of a new experiment, run_name
---@return table run id, dir, meta, artifacts (the folder; nil when they go to a server)
function M.create(root, name, o)
  if not fs.exists(root) then create_experiment(root, "0", "Default") end
  local experiment, about = find_experiment(root, name)
  if not experiment then experiment, about = create_experiment(root, fresh_id(), name, o.logging_dir) end
  local id = file.random_hex(16)
  local dir = ("%s/%s/%s"):format(root, experiment, id)
  for _, folder in ipairs { "artifacts", "metrics", "params", "tags" } do
    file.make_dirs(dir .. "/" .. folder)
  end
  local base = (about.artifact_location or uri_of(root .. "/" .. experiment)):gsub("/+$", "")
  local meta = {
    artifact_uri = ("%s/%s/artifacts"):format(base, id), end_time = yaml.null, entry_point_name = "",
    experiment_id = experiment, lifecycle_stage = "active", run_id = id,
    run_name = o.run_name or "run-" .. id:sub(1, 8), source_name = "", source_type = LOCAL,
    source_version = "", start_time = M.milliseconds(), status = RUNNING, tags = {},
    user_id = env.text("USER", "unknown"),
  }
  save_meta(dir, meta)
  return opened(dir, meta)
end

--- Goes on with a run of the store. Fails when there is none of that id.
function M.resume(root, id)
  if fs.is_plain_name(id) then
    for _, experiment in ipairs(fs.list(root) or {}) do
      local dir = ("%s/%s/%s"):format(root, experiment, id)
      local meta = experiment ~= ".trash" and read_meta(dir)
      if meta and meta.run_id == id then
        meta.status, meta.end_time = RUNNING, yaml.null
        save_meta(dir, meta)
        return opened(dir, meta)
      end
    end
  end
  file.fail("MLflowTracker: run_id (or MLFLOW_RUN_ID) names a run of the store, " ..
    "and there is no run '%s' in %s", id, root)
end

--- Marks a run as finished.
function M.finish(run)
  run.meta.status, run.meta.end_time = FINISHED, M.milliseconds()
  save_meta(run.dir, run.meta)
end

return M
