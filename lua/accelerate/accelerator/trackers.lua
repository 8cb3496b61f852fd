--- An Accelerator's trackers: starting them, logging to them, ending them.  Methods of
--- accelerate.Accelerator.
---
--- An error inside a tracker never stops training. One message on stderr reports it, and the
--- tracker is not used any more. Mistakes in a call (a misspelt option, values that are not a
--- table) raise.
local core = require "accelerate.core"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

---@class accelerate.Accelerator
local Accelerator = {}

local function tracking() return require("accelerate.tracking") end
local function trackers() return require("accelerate.tracking.tracker") end

--- Calls a method of a tracker. If it raises, a message reports it and the tracker is not used any
--- more.
local function attempt(self, entry, method, ...)
  if entry.failed then return end
  local ok, err = pcall(entry.tracker[method], entry.tracker, ...)
  if ok then return end
  entry.failed = true
  local where = self._ranks > 1 and (" of rank %d"):format(self.process_index) or ""
  notice.here("tracker '%s'%s failed in %s and is left out from here on; training goes on: %s",
    tostring(entry.tracker.name), where, method, tostring(err))
end

--- Options for trackers, by the trackers' names: each name must be one of this Accelerator's.
local function by_tracker(self, where, given)
  if given == nil then return {} end
  local names = {}
  for i, wanted in ipairs(self._log_with) do names[i] = type(wanted) == "string" and wanted or wanted.name end
  for _, name in ipairs(ordered.keys(given)) do
    local known = false
    for _, one in ipairs(names) do known = known or one == name end
    if not known then
      fail("%s: '%s' is none of this Accelerator's trackers (log_with)%s", where, tostring(name),
        options.hint(name, names))
    end
    if type(given[name]) ~= "table" then
      fail("%s: the options of tracker '%s' must be a table, got %s", where, name, options.show(given[name]))
    end
  end
  return given
end

--- Returns a tracker of log_with as an object, or nil if it does not run on this process.
local function make(self, wanted, project_name, given)
  local tracking_of = tracking()
  if type(wanted) ~= "string" then
    if self.is_main_process or wanted.main_process_only == false then return wanted end
    return nil
  end
  local class = tracking_of.class_of(wanted)
  local everywhere = tracking_of.is_registered(wanted) and class.main_process_only == false
  if not (self.is_main_process or everywhere) then return nil end
  if class.requires_logging_directory then return class(project_name, self.logging_dir, given) end
  return class(project_name, given)
end

local INIT = { config = { "table", optional = true }, init_kwargs = { "table", optional = true } }

-- In Python the settings are the second argument itself.
local function refuse_settings(opts)
  local name = type(opts) == "table" and next(opts)
  if type(name) ~= "string" or opts.config ~= nil or opts.init_kwargs ~= nil then return end
  fail("init_trackers: unknown option '%s'%s; the run's settings are an option: write init_trackers(" ..
    "project_name, { config = { %s = ... } })", name, options.hint(name, { "config", "init_kwargs" }), name)
end

--- Starts a run with every tracker of log_with, and stores the run's settings with each. Names
--- become objects on the main process. Objects that the script made are used as they are, on every
--- process if their main_process_only is false.
---@param project_name string the folder, or the project, that trackers write to
---@param opts { config: table<string, any>?, init_kwargs: table<string, table>? }? config: settings
---  to keep; init_kwargs: options of trackers by their names, as in { tensorboard = { flush_secs =
---  60 } }
function Accelerator:init_trackers(project_name, opts)
  options.value("init_trackers", "project_name", project_name, { "string" })
  if project_name == "" then fail("init_trackers: project_name must not be empty") end
  refuse_settings(opts)
  opts = options.check("init_trackers", opts, INIT)
  if opts.config ~= nil then
    require("accelerate.tracking.builtin").settings("init_trackers: config", opts.config)
  end
  local given = by_tracker(self, "init_trackers: init_kwargs", opts.init_kwargs)
  local fresh = {}
  for _, wanted in ipairs(self._log_with) do
    local name = type(wanted) == "string" and wanted or wanted.name
    local there = false
    for _, entry in ipairs(self._trackers) do there = there or entry.wanted == wanted end
    if not there then
      local object = make(self, wanted, project_name, given[name])
      if object then fresh[#fresh + 1] = { wanted = wanted, tracker = object } end
    end
  end
  for _, entry in ipairs(fresh) do
    self._trackers[#self._trackers + 1] = entry
    attempt(self, entry, "start")
  end
  if opts.config ~= nil then
    for _, entry in ipairs(self._trackers) do
      attempt(self, entry, "store_init_configuration", opts.config)
    end
  end
end

local LOG = { step = { "integer", optional = true }, log_kwargs = { "table", optional = true } }

--- Sends values to every tracker. A tracker can keep numbers, texts, maps of numbers and tensors of
--- one element. It omits other values and reports that once. Does nothing on processes without
--- trackers.
---@param values table<string, any>
---@param opts { step: integer?, log_kwargs: table<string, table>? }? step: default none;
---  log_kwargs: options of trackers' `log` by their names
function Accelerator:log(values, opts)
  if type(opts) == "number" then
    fail("log: the step is an option: write log(values, { step = %.14g })", opts)
  end
  opts = options.check("log", opts, LOG)
  require("accelerate.tracking.builtin").values("log", values)
  local given = by_tracker(self, "log: log_kwargs", opts.log_kwargs)
  for _, entry in ipairs(self._trackers) do
    local own = { step = opts.step }
    -- order does not matter: keys are distinct
    for key, value in next, given[entry.tracker.name] or {} do own[key] = value end
    -- a misspelt option raises
    if entry.tracker.options_of and not entry.failed then entry.tracker.options_of("log", own) end
    attempt(self, entry, "log", values, own)
  end
end

--- Returns a tracker by its name. On processes that have none, before init_trackers, and for a
--- tracker that failed, it returns a blank tracker whose methods do nothing. Raises for a name that
--- is not in log_with.
---@param name string
---@param opts { unwrap: boolean? }? unwrap: what does the tracking inside it (its `tracker`), such
---  as TensorBoard's SummaryWriter
---@return any tracker a GeneralTracker; with unwrap the library's own object in it
function Accelerator:get_tracker(name, opts)
  options.value("get_tracker", "name", name, { "string" })
  opts = options.check("get_tracker", opts, { unwrap = { "boolean", default = false } })
  local names = {}
  for i, wanted in ipairs(self._log_with) do names[i] = type(wanted) == "string" and wanted or wanted.name end
  for _, entry in ipairs(self._trackers) do
    if entry.tracker.name == name then
      if entry.failed or entry.tracker._off then return trackers().blank end
      return opts.unwrap and trackers().unwrap(entry.tracker) or entry.tracker
    end
  end
  for _, known in ipairs(names) do
    if known == name then return trackers().blank end
  end
  if #names > 0 then
    fail("get_tracker: '%s' is none of this Accelerator's trackers%s", name, options.hint(name, names))
  end
  return trackers().blank
end

--- Ends the run. Finishes every tracker, waits for this rank's part of a checkpoint that is being
--- written, and leaves the process group, so that no rank waits for this one any more. Values
--- logged afterwards are discarded, and collectives raise. Raises when the checkpoint could not be
--- written.
function Accelerator:end_training()
  local list = self._trackers
  self._trackers = {}
  for _, entry in ipairs(list) do attempt(self, entry, "finish") end
  local written, why = pcall(core._save_wait)
  self._state:destroy_process_group()
  if not written then fail("end_training: the last checkpoint was not written: %s", why) end
end

--- Returns the trackers that are live on this process.
function Accelerator:_live_trackers()
  local list = {}
  for _, entry in ipairs(self._trackers) do
    if not entry.failed and not entry.tracker._off then list[#list + 1] = entry.tracker end
  end
  return list
end

return Accelerator
