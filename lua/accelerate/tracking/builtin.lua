--- Base of the built-in trackers. Their methods run on the main process only (unless
--- main_process_only is false). A failure outside the script (a full disk, a removed directory)
--- gives one notice and turns the tracker off. A mistake of the script raises an error.
local file = require "accelerate.tracking.file"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local notice = require "accelerate.messages.notice"
local tracker = require "accelerate.tracking.tracker"
local values = require "accelerate.tracking.values"

local M = {}

local function outcome(self, ok, ...)
  if ok then return ... end
  local why = file.failure((...))
  if not why then error((...), 0) end
  self._off = true
  notice.here("tracker '%s' failed and is left out from here on; training goes on: %s", self.name, why)
end

local function guard(method)
  return tracker.on_main_process(function(self, ...)
    if self._off then return end
    return outcome(self, pcall(method, self, ...))
  end)
end

local STEP = { step = { "integer", optional = true } }

--- Makes a class of built-in trackers. Its methods are guarded: a failure turns the tracker off.
---@param label string the class name
---@param fields { name: string, requires_logging_directory: boolean, main_process_only: boolean? }
---@param accepts table<string, table|function> schemas (utils.options) by method: the options
---  besides `step`; `init`: those of the constructor; `check`: a function that gets the tracker and
---  raises for options of the constructor that no run can have
---@param methods table<string, function> start, log and so on
function M.class(label, fields, accepts, methods)
  local Class = tracker.class(label)
  for key, value in next, fields do Class[key] = value end  -- order does not matter: keys are distinct
  Class.tracker = false  -- until start
  for key, method in next, methods do Class[key] = guard(method) end
  for _, name in ipairs { "log", "log_images", "log_table" } do
    local schema = {}
    for key, entry in next, accepts[name] or {} do schema[key] = entry end
    schema.step = STEP.step
    accepts[name] = schema
  end

  --- Checks the options of a call.
  function Class.options_of(method, opts)
    if type(opts) == "number" then
      options.fail("%s:%s: the step is an option: write %s(values, { step = %.14g })", label, method, method,
        opts)
    end
    return options.check(label .. ":" .. method, opts, accepts[method])
  end

  local function set_up(self, run_name, opts)
    options.value(label, "run_name", run_name, { "string" })
    self.run_name = run_name
    self.init_kwargs = options.check(label, opts, accepts.init or {})
    if accepts.check then accepts.check(self) end
  end

  if fields.requires_logging_directory then
    function Class:init(run_name, logging_dir, opts)
      options.value(label, "run_name", run_name, { "string" })
      options.value(label, "logging_dir", logging_dir, { "string" })
      self.logging_dir_param = logging_dir
      set_up(self, run_name, opts)
    end
  else
    function Class:init(run_name, opts) set_up(self, run_name, opts) end
  end
  return Class
end

--- Checks the values of a log call: a table with names. `where` begins messages.
function M.values(where, given)
  if type(given) ~= "table" then
    options.fail("%s: values must be a table of values by name, got %s", where, options.show(given))
  end
  for key in next, given do
    if type(key) ~= "string" and type(key) ~= "number" then
      options.fail("%s: the names of values must be texts, got %s as one", where, options.show(key))
    end
  end
  return given
end

--- Returns the settings of a run as plain nested values. Raises unless they are a table with names.
function M.settings(where, config)
  if type(config) ~= "table" or getmetatable(config) ~= nil and not ordered.is_ordered(config)
    or #config > 0 then
    options.fail("%s: expected a table of settings by name, got %s", where, options.show(config))
  end
  return values.settings(M.values(where, config))
end

--- Checks the columns and rows of log_table, and returns both.
function M.table_of(where, name, opts)
  options.value(where, "name", name, { "string" })
  for i, column in ipairs(opts.columns) do
    if type(column) ~= "string" then
      options.fail("%s: columns: entry %d must be a text, got %s", where, i, options.show(column))
    end
  end
  for i, row in ipairs(opts.data) do
    if type(row) ~= "table" or #row ~= #opts.columns then
      options.fail("%s: data: row %d must be a list of %d values, one for each column, got %s", where, i,
        #opts.columns,
        type(row) == "table" and ("%d values"):format(#row) or options.show(row))
    end
  end
  return opts.columns, opts.data
end

--- The schema of log_table's options.
M.TABLE = { columns = { "list" }, data = { "list" } }

return M
