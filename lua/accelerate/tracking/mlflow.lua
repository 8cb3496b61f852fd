--- `log_with = "mlflow"`: a run in MLflow's file store, for `mlflow ui` (MLflow 3 needs
--- MLFLOW_ALLOW_FILE_STORE=true) and for `mlflow migrate-filestore`. Nothing is sent from here.
---
--- The store is the folder of MLFLOW_TRACKING_URI, or mlruns in the working directory. A run is
--- <store>/<experiment_id>/<run_id> with meta.yaml, a file for each of its params, tags and
--- metrics, and the folder artifacts. A metric's file has a line "<milliseconds> <value> <step>"
--- for each value. A killed run keeps the status RUNNING; `run_id` goes on with it.
local builtin = require "accelerate.tracking.builtin"
local env = require "accelerate.utils.environment"
local file = require "accelerate.tracking.file"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local png = require "accelerate.plot.png"
local store = require "accelerate.tracking.mlflow_store"
local values = require "accelerate.tracking.values"

local Class

local NAME_SIZE, PARAM_SIZE, TAG_SIZE = 250, 6000, 8000  -- MLflow's limits, in bytes

--- Returns whether MLflow takes a name: it is a path below the folder of its kind.
local function is_name(name)
  if #name > NAME_SIZE or not name:find "^[%w_%.%- :/\128-\255]+$" then return false end
  for part in (name .. "/"):gmatch "([^/]*)/" do
    if part == "" or part == "." or part == ".." then return false end
  end
  return true
end

--- Returns the path of a param, tag or metric, below folders that are there; nil, with a notice,
--- for a name that MLflow does not take, or that is a folder of other names (m beside m/a).
local function place(self, kind, name)
  local path = ("%s/%s/%s"):format(self.tracker.dir, kind, name)
  local why
  if not is_name(name) then
    why = "has more than 250 bytes, characters other than letters, " ..
      "digits and _-.:/ or a part that no file has"
  elseif fs.is_dir(path) or not fs.make_dirs(path:match "^(.*)/") then
    why = "is also the beginning of another name, as in 'm' beside 'm/a'"
  end
  if not why then return path end
  notice.here_once("mlflow: the name '%s' is left out of %s, because it %s", name, kind, why)
end

--- Returns a value as MLflow's Python client writes it.
local function text_of(value)
  if type(value) == "boolean" then return value and "True" or "False" end
  return type(value) == "string" and value or values.json(value)
end

local function tag(self, name, value)
  local path = place(self, "tags", name)
  if path then file.save(path, text_of(value):sub(1, TAG_SIZE)) end
end

--- Writes a param. MLflow never changes one, and compares runs by them.
local function param(self, name, value)
  local text = text_of(value)
  if #text > PARAM_SIZE then
    notice.here_once("mlflow: the setting '%s' has %d bytes, and MLflow takes %d: it is left out", name,
      #text,
      PARAM_SIZE)
    return
  end
  local path = place(self, "params", name)
  if not path then return end
  local former = fs.read(path)
  if not former then file.save(path, text)
  elseif former ~= text then
    notice.here_once(
      "mlflow: the setting '%s' of this run is '%s' and stays so, because MLflow's params do " ..
      "not change; '%s' is left out", name, former, text)
  end
end

local function append(path, line)
  local out = file.open(path)
  out:write(line)
  out:close()
end

local function number_of(value)
  if value ~= value then return "nan" end
  if value == math.huge then return "inf" end
  if value == -math.huge then return "-inf" end
  return json.encode(value)
end

local function metric(self, name, value, opts)
  if type(value) == "boolean" then value = value and 1 or 0 end
  local path = place(self, "metrics", name)
  if not path then return end
  append(path, ("%d %s %d\n"):format(opts.timestamp or store.milliseconds(), number_of(value), opts.step
    or 0))
end

--- Returns the path of an artifact, in a folder that is there; nil, with a notice, when artifacts
--- go to a server.
local function artifact(self, where, name)
  local folder = self.tracker.artifacts
  if not folder then
    notice.here_once(
      "%s: the artifacts of this experiment go to %s, " ..
      "and accel writes to folders only: they are left out", where, self.tracker.meta.artifact_uri)
    return
  end
  for part in (name .. "/"):gmatch "([^/]*)/" do
    if part == "" or part == "." or part == ".." then
      options.fail("%s: an artifact's path lies below the run's folder, got '%s'", where, name)
    end
  end
  local path = folder .. "/" .. name
  file.make_dirs(path:match "^(.*)/")
  return path
end

local function copy_tree(self, where, from, name)
  if not fs.is_dir(from) then
    local path = artifact(self, where, name)
    if path then file.copy(from, path) end
    return
  end
  local names, why = fs.list(from)
  if not names then file.fail("%s", why) end
  for _, inner in ipairs(names) do copy_tree(self, where, fs.join(from, inner), name .. "/" .. inner) end
end

-- ---- starting

--- Returns tags as a table. MLFLOW_TAGS, and texts, are JSON.
local function tags_of(given)
  local tags = env.text("MLFLOW_TAGS", given)
  if type(tags) ~= "string" then return tags end
  local read, why = json.decode(tags)
  if type(read) == "table" then return read end
  options.fail("MLflowTracker: tags (or MLFLOW_TAGS) must be a JSON object, got '%s'%s", tags,
    why and ": " .. why or "")
end

--- Settles the options: as in Accelerate, variables of the environment come first.
local function settle(self)
  local o = self.init_kwargs
  if env.flag("MLFLOW_NESTED_RUN", o.nested_run) then
    options.fail("MLflowTracker: nested_run (or MLFLOW_NESTED_RUN) needs a run that is active in this " ..
      'process, and there is none: write tags = { ["mlflow.parentRunId"] = "<run_id>" } instead')
  end
  o.run_id = env.text("MLFLOW_RUN_ID", o.run_id)
  o.tags = tags_of(o.tags)
  o.root = store.folder(o.tracking_uri or env.text("MLFLOW_TRACKING_URI", "mlruns"))
  o.logging_dir = o.logging_dir and store.artifact_location(o.logging_dir)
end

--- Sets the tags that every run has, and those of the options.
local function describe(self, o)
  local facts = ordered.new()
  if not o.run_id then
    facts["mlflow.user"] = self.tracker.meta.user_id
    facts["mlflow.source.name"] = arg and arg[0] or "accel-run"
    facts["mlflow.source.type"] = "LOCAL"
    facts["mlflow.runName"] = self.tracker.meta.run_name
  end
  facts["mlflow.note.content"] = o.description
  for _, name in ipairs(ordered.keys(o.tags or {})) do facts[tostring(name)] = o.tags[name] end
  for name, value in ordered.pairs(facts) do tag(self, name, values.settings(value)) end
end

local function start(self)
  local o = self.init_kwargs
  local name = env.text("MLFLOW_EXPERIMENT_NAME", self.run_name)
  self.tracker = o.run_id and store.resume(o.root, o.run_id) or store.create(o.root, name, o)
  describe(self, o)
end

Class = builtin.class("MLflowTracker", { name = "mlflow", requires_logging_directory = false }, {
  init = {
    logging_dir = { "string", optional = true }, run_id = { "string", optional = true },
    tags = { "table|string", optional = true }, nested_run = { "boolean", default = false },
    run_name = { "string", optional = true }, description = { "string", optional = true },
    tracking_uri = { "string", optional = true },
  },
  check = settle,
  log = { timestamp = { "integer", optional = true, min = 0 } },
  log_images = { dataformats = { "string", optional = true } },
  log_table = builtin.TABLE,
}, {
  start = start,
  store_init_configuration = function(self, config)
    builtin.settings("MLflowTracker:store_init_configuration", config)
    for _, entry in ipairs(values.flat(config)) do param(self, entry[1], entry[2]) end
  end,
  log = function(self, given, opts)
    opts = Class.options_of("log", opts)
    for _, entry in ipairs(values.read("mlflow", builtin.values("MLflowTracker:log", given))) do
      local name, value = entry[1], entry[2]
      if type(value) == "string" then
        notice.here_once("mlflow: the value of '%s' is a text, " ..
          "and MLflow's metrics are numbers: it is left out",
          name)
      elseif type(value) == "table" then
        for _, key in ipairs(ordered.keys(value)) do metric(self, name .. "/" .. key, value[key], opts) end
      else
        metric(self, name, value, opts)
      end
    end
  end,
  log_images = function(self, given, opts)
    opts = Class.options_of("log_images", opts)
    local where = "MLflowTracker:log_images"
    for _, name in ipairs(ordered.keys(builtin.values(where, given))) do
      for i, bytes in ipairs((png.files(where .. ": " .. name, given[name], opts.dataformats))) do
        local path = artifact(self, where, ("images/%s_%s_%d.png"):format(file.safe_name(name), opts.step
          or "x",
          i))
        if path then file.save(path, bytes) end
      end
    end
  end,
  log_table = function(self, name, opts)
    opts = Class.options_of("log_table", opts)
    local columns, data = builtin.table_of("MLflowTracker:log_table", name, opts)
    local file_name = file.safe_name(name) .. (opts.step and "_" .. opts.step or "") .. ".json"
    local path = artifact(self, "MLflowTracker:log_table", file_name)
    if not path then return end
    file.save(path, values.json({ columns = columns, data = values.settings(data) }))
    local tables = self.tracker.tables
    tables[#tables + 1] = { path = file_name, type = "table" }
    tag(self, "mlflow.loggedArtifacts", values.json(tables))
  end,

  --- Saves a figure of accelerate.utils.plot as an artifact.
  ---@param figure accelerate.Figure
  ---@param artifact_file string a path below the run's artifacts that ends in .png, .svg or .txt
  log_figure = function(self, figure, artifact_file)
    local where = "MLflowTracker:log_figure"
    options.value(where, "artifact_file", artifact_file, { "string" })
    if type(figure) ~= "table" or type(figure.save) ~= "function" then
      options.fail("%s: expected a figure of accelerate.utils.plot, got %s", where, options.show(figure))
    end
    local path = artifact(self, where, artifact_file)
    if path then figure:save(path) end
  end,
  --- Copies a file into the run's artifacts.
  ---@param local_path string
  ---@param opts string|{ artifact_path: string? }? the folder below the run's artifacts; default:
  ---  these
  log_artifact = function(self, local_path, opts)
    local where = "MLflowTracker:log_artifact"
    options.value(where, "local_path", local_path, { "string" })
    if not fs.is_file(local_path) then
      options.fail("%s: local_path must be a file%s, got '%s'", where,
        fs.is_dir(local_path) and " (log_artifacts takes a folder)" or " that is there", local_path)
    end
    local o = options.read(where, { "artifact_path" }, { artifact_path = { "string", optional = true } },
      opts)
    local name = local_path:match "[^/]*$"
    copy_tree(self, where, local_path, o.artifact_path and o.artifact_path .. "/" .. name or name)
  end,
  --- Copies all that is in a folder into the run's artifacts.
  ---@param local_dir string
  ---@param opts string|{ artifact_path: string? }? the folder below the run's artifacts; default:
  ---  these
  log_artifacts = function(self, local_dir, opts)
    local where = "MLflowTracker:log_artifacts"
    options.value(where, "local_dir", local_dir, { "string" })
    local names = fs.is_dir(local_dir) and fs.list(local_dir)
    if not names then options.fail("%s: local_dir must be a folder, got '%s'", where, local_dir) end
    local o = options.read(where, { "artifact_path" }, { artifact_path = { "string", optional = true } },
      opts)
    for _, name in ipairs(names) do
      copy_tree(self, where, fs.join(local_dir, name), o.artifact_path and o.artifact_path .. "/" .. name
        or name)
    end
  end,
  finish = function(self)
    if self.tracker then store.finish(self.tracker) end
  end,
})

return Class
