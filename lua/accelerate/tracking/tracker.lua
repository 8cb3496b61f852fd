--- GeneralTracker: the base of every tracker, and what a script's own tracker must have.
---
---   local MyTracker = tracking.class("MyTracker")
---   MyTracker.name = "my_tracker"
---   MyTracker.requires_logging_directory = false
---   function MyTracker:init(run_name) self.tracker = io.open(run_name .. ".txt", "w") end
---   function MyTracker:log(values, opts)
---     self.tracker:write(opts.step or "", " ", values.loss, "\n")
---   end
---   function MyTracker:finish() self.tracker:close() end
---   local accelerator = accelerate.Accelerator{ log_with = MyTracker("run") }
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

---@class accelerate.GeneralTracker
---@field name string name in log_with, get_tracker, init_kwargs and log_kwargs; a field of the
---  class
---@field requires_logging_directory boolean whether it needs Accelerator's logging_dir (or
---  project_dir); a field of the class
---@field tracker any the underlying object (a writer, a connection): a field, or a method that
---  returns it
---@field main_process_only boolean default true; false: its methods are called on every process
local GeneralTracker = class("GeneralTracker")
GeneralTracker.main_process_only = true
M.GeneralTracker = GeneralTracker

--- Opens files and connections. `accelerator:init_trackers` calls it first.
function GeneralTracker:start() end

--- Stores the settings of the run.
---@param values table<string, any>
function GeneralTracker:store_init_configuration(values) end -- luacheck: ignore 212/values

--- Stores values: numbers, texts, maps of numbers, tensors of one element.
---@param values table<string, any>
---@param opts table `step`, and the entry of log_kwargs under this tracker's name; an Accelerator
---  never passes nil
function GeneralTracker:log(values, opts) end -- luacheck: ignore 212/values 212/opts

--- Stores pictures.
---@param values table<string, accelerate.Tensor|accelerate.Tensor[]>
---@param opts table?
function GeneralTracker:log_images(values, opts) end -- luacheck: ignore 212/values 212/opts

--- Stores a table.
---@param name string
---@param opts { columns: string[], data: any[][], step: integer? }
function GeneralTracker:log_table(name, opts) end -- luacheck: ignore 212/name 212/opts

--- Closes files and connections. `accelerator:end_training` calls it.
function GeneralTracker:finish() end

local NEEDED = { "name", "requires_logging_directory", "tracker" }

--- Raises an error that names the members that `object` lacks.
---@param object table an object of a class derived from GeneralTracker
function M.check(object)
  local missing = {}
  for _, member in ipairs(NEEDED) do
    if object[member] == nil then missing[#missing + 1] = "`" .. member .. "`" end
  end
  if #missing > 0 then
    fail("%s: the tracker lacks %s: `name` (text) and `requires_logging_directory` (true or false) are " ..
      "fields of the class, `tracker` " ..
      "(what does the tracking) is a field that init sets or a method", getmetatable(object).__name
      or "GeneralTracker",
      table.concat(missing, ", "))
  end
end

-- A base without init ignores arguments: an Accelerator gives every tracker the project's name.
function GeneralTracker:init() end
GeneralTracker.__made = M.check

--- Makes a class of trackers. Calling the class makes a tracker: `init` gets the arguments (from an
--- Accelerator: the project's name, the logging directory where it is required, and the options
--- from init_kwargs). The tracker must then have `name`, `requires_logging_directory` and
--- `tracker`; otherwise an error names what is missing.
---@param name string name of the class in messages
---@param base? table a class of trackers; default GeneralTracker
---@return table class
function M.class(name, base)
  if type(name) ~= "string" or name == "" then
    fail("tracking.class: expected a name, got %s", options.show(name))
  end
  if base ~= nil and not class.derives(base, GeneralTracker) then
    fail("tracking.class: the base of '%s' must be a class of trackers, got %s", name, options.show(base))
  end
  return class.open(name, base or GeneralTracker)
end

function M.is(value) return class.is(value, GeneralTracker) end

--- Returns the underlying object of a tracker.
function M.unwrap(object)
  local inner = object.tracker
  if type(inner) == "function" then return inner(object) end
  return inner
end

--- Wraps a method of a tracker: it does nothing outside the main process, unless the tracker's
--- main_process_only is false.
---@param method function
---@return function
function M.on_main_process(method)
  if type(method) ~= "function" then
    fail("on_main_process: expected a function to wrap, got %s", options.show(method))
  end
  return function(self, ...)
    if self.main_process_only and not require("accelerate.state").PartialState().is_main_process then
      return
    end
    return method(self, ...)
  end
end

local function nothing() end

local Blank = class("GeneralTracker", GeneralTracker)
Blank.__made = nothing
function Blank.__index(_, key)
  if key == "name" or (type(key) == "string" and key:sub(1, 1) == "_") then return nil end
  if key == "main_process_only" then return true end
  return nothing
end

--- The tracker outside the main process and before init_trackers: every method does nothing.
M.blank = Blank()

return M
