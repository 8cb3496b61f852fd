--- Experiment trackers: where `accelerator:log` writes to.
---
---   local accelerator = accelerate.Accelerator{ log_with = { "tensorboard", "jsonl" },
---     project_dir = "runs" }
---   accelerator:init_trackers("my_project", { config = { lr = 1e-3 } })
---   accelerator:log({ loss = loss }, { step = 1 })
---   accelerator:end_training()
---
--- Built in are tensorboard, jsonl and csv, the folders of mlflow and dvclive, and wandb, comet_ml
--- and clearml in offline forms that their own tools upload later. trackio, swanlab and aim keep
--- databases and logs that change with their versions: they are left out with a notice, and read
--- what tensorboard wrote.
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local properties = require "accelerate.utils.properties"
local notice = require "accelerate.messages.notice"
local tracker = require "accelerate.tracking.tracker"

local fail = options.fail

-- The names that log_with knows (Accelerate's and ours), and the modules of the available ones in
-- the order of "all".
local NAMES = { "tensorboard", "wandb", "comet_ml", "jsonl", "csv", "trackio", "aim", "mlflow", "clearml",
  "dvclive", "swanlab" }
local MODULES = {
  tensorboard = "accelerate.tracking.tensorboard", wandb = "accelerate.tracking.wandb",
  comet_ml = "accelerate.tracking.comet_ml",
  jsonl = "accelerate.tracking.jsonl", csv = "accelerate.tracking.csv",
  mlflow = "accelerate.tracking.mlflow", clearml = "accelerate.tracking.clearml",
  dvclive = "accelerate.tracking.dvclive",
}
-- Why a tracker's own files are not written, and how it reads those of another.
local INSTEAD = {
  trackio = "its files are an SQLite database that changes with its version; use tensorboard, " ..
    "and read the files with trackio.import_tf_events(folder, project)",
  swanlab = "its files are a binary log that changes with its version; use tensorboard, " ..
    "and read the files, less its histograms, with `swanlab convert -t tensorboard --tb-log-dir FOLDER`",
  aim = "its files are a RocksDB database; use tensorboard, " ..
    "and read the files with `aim convert tensorboard --logdir FOLDER`",
}
local AVAILABLE = {}
for _, name in ipairs(NAMES) do
  if MODULES[name] then AVAILABLE[#AVAILABLE + 1] = name end
end

local registered = {}  -- a script's own classes, by name

local M = {}

--- Names that log_with takes.
M.LoggerType = properties.enum("LoggerType", { "all", unpack(NAMES) })

M.GeneralTracker = tracker.GeneralTracker
M.class = tracker.class
M.on_main_process = tracker.on_main_process

--- Returns the names of the available trackers.
---@return string[] a fresh list
function M.get_available_trackers() return { unpack(AVAILABLE) } end

--- Returns the class behind a name, or nil.
---@param name string
function M.class_of(name)
  if registered[name] then return registered[name] end
  return MODULES[name] and require(MODULES[name])
end

--- Returns whether the class of a name is a script's own.
function M.is_registered(name) return registered[name] ~= nil end

--- Registers a class under its `name`, for log_with. Call it before making the Accelerator that
--- uses it. The class is called with the project's name, the logging directory where it requires
--- one, and its options from init_kwargs. Replacing an existing name gives a warning.
---@param tracker_class table derived from GeneralTracker, with `name` and
---  `requires_logging_directory`
function M.register_tracker_class(tracker_class)
  if not class.derives(tracker_class, tracker.GeneralTracker) then
    fail("register_tracker_class: expected a class derived from GeneralTracker (tracking.class), got %s",
      tracker.is(tracker_class) and "an object of one: give its class" or options.show(tracker_class))
  end
  local name = tracker_class.name
  if type(name) ~= "string" or name == "" then
    fail("register_tracker_class: %s.name must be a text that is not empty, got %s", tracker_class.__name,
      options.show(name))
  end
  if type(tracker_class.requires_logging_directory) ~= "boolean" then
    fail("register_tracker_class: %s.requires_logging_directory must be true or false, got %s",
      tracker_class.__name,
      options.show(tracker_class.requires_logging_directory))
  end
  if name == "all" then
    fail("register_tracker_class: the name 'all' stands for all trackers; call %s something else",
      tracker_class.__name)
  end
  local former = registered[name] or M.class_of(name)
  if former and former ~= tracker_class then
    notice.main("register_tracker_class: the tracker '%s' is replaced by %s", name, tracker_class.__name)
  end
  registered[name] = tracker_class
end

local function known_names()
  local names = { "all", unpack(NAMES) }
  for _, name in ipairs(ordered.sorted_keys(registered)) do
    if not MODULES[name] then names[#names + 1] = name end
  end
  return names
end

local function check_name(name)
  local names = known_names()
  for _, known in ipairs(names) do
    if name == known then return end
  end
  local near = options.nearest(name, names)
  fail("log_with: there is no tracker '%s'%s; choose between %s, or give an object of a class derived " ..
    "from GeneralTracker", name,
    near and (", did you mean '%s'?"):format(near) or "", table.concat(names, ", "))
end

--- Returns the usable trackers of `log_with`: available names, once each, and tracker objects as
--- they are. "all" stands for every available name. Raises for an unknown name, and for a tracker
--- that needs a directory when there is none. Leaves out a known but unavailable name with a
--- warning.
---@param log_with string|accelerate.GeneralTracker|(string|accelerate.GeneralTracker)[]|nil
---@param logging_dir string?
---@return (string|accelerate.GeneralTracker)[]
function M.filter_trackers(log_with, logging_dir)
  if log_with == nil then return {} end
  if type(log_with) == "string" or tracker.is(log_with) then log_with = { log_with } end
  if type(log_with) ~= "table" or getmetatable(log_with) ~= nil or not ordered.is_list(log_with) then
    fail("log_with: expected a name, a tracker or a list of them, got %s", options.show(log_with))
  end
  if logging_dir ~= nil then options.value("filter_trackers", "logging_dir", logging_dir, { "string" }) end
  local wanted, all, seen = {}, false, {}
  for i, entry in ipairs(log_with) do
    if type(entry) == "string" then
      check_name(entry)
      all = all or entry == "all"
    elseif tracker.is(entry) then
      tracker.check(entry)
    else
      fail("log_with: entry %d must be a name or a tracker%s, got %s", i,
        class.itself(entry) and " (call the class to make one)" or "",
        options.show(entry))
    end
  end
  local function take(entry)
    if seen[entry] then return end
    seen[entry] = true
    if type(entry) == "string" then
      local Class = M.class_of(entry)
      if not Class then
        notice.main("log_with: the tracker '%s' is left out, because %s. There are %s", entry, INSTEAD[entry],
          table.concat(AVAILABLE, ", "))
        return
      end
      if Class.requires_logging_directory and logging_dir == nil then
        fail("log_with: the tracker '%s' writes files and needs a place for them: give Accelerator a " ..
          "project_dir, or a project_config " ..
          "with a logging_dir", entry)
      end
    end
    wanted[#wanted + 1] = entry
  end
  for _, entry in ipairs(log_with) do
    if not all or type(entry) ~= "string" then take(entry) end
  end
  if all then
    for _, name in ipairs(AVAILABLE) do take(name) end
    for _, name in ipairs(ordered.sorted_keys(registered)) do take(name) end
  end
  if #wanted == 0 and #log_with > 0 then
    notice.main("log_with: no tracker is left; accelerator:log will write nothing")
  end
  return wanted
end

-- Classes of available trackers, loaded at first use.
local LAZY = {
  TensorBoardTracker = "tensorboard", WandBTracker = "wandb", CometMLTracker = "comet_ml",
  JSONLTracker = "jsonl", CSVTracker = "csv", MLflowTracker = "mlflow", DVCLiveTracker = "dvclive",
  ClearMLTracker = "clearml",
  SummaryWriter = "summary_writer",
}
local MEMBERS = { "GeneralTracker", "LoggerType", "class", "filter_trackers", "get_available_trackers",
  "on_main_process",
  "register_tracker_class", unpack(ordered.sorted_keys(LAZY)) }

return setmetatable(M, {
  __members = MEMBERS,
  __index = function(self, key)
    if not LAZY[key] then
      error(("accelerate.tracking has no '%s'%s"):format(tostring(key), options.hint(key, MEMBERS)), 2)
    end
    local value = require("accelerate.tracking." .. LAZY[key])
    rawset(self, key, value)
    return value
  end,
})
