--- Configuration objects: plain records with checked names and values.
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"

local fail = options.fail

local M = {}

--- Makes a record class from a schema of utils.options.  An object's fields can be read and assigned; a name that the
--- schema lacks raises, and so does a value that does not fit.
local function record(name, schema, methods, init)
  methods = methods or {}
  local get, set = {}, {}
  for field in pairs(schema) do
    get[field] = function(self) return self._values[field] end
    set[field] = function(self, value)
      if value == nil then
        self._values[field] = nil
      else
        self._values[field] = options.check(name, { [field] = value }, { [field] = schema[field] })[field]
      end
    end
  end
  local class = properties.define(name, {
    get = get, set = set, methods = methods,
    tostring = function(self)
      local names, parts = {}, {}
      for field in pairs(schema) do names[#names + 1] = field end
      table.sort(names)
      for i, field in ipairs(names) do parts[i] = field .. "=" .. tostring(self._values[field]) end
      return ("%s(%s)"):format(name, table.concat(parts, ", "))
    end,
  })
  return properties.callable(name, function(given)
    if given ~= nil and type(given) ~= "table" then fail("%s: expected a table of options, got a %s", name, type(given)) end
    local self = class.new()
    self._values = options.check(name, given or {}, schema)
    self._given = {}  -- which fields the user named
    for field in pairs(given or {}) do self._given[field] = true end
    if init then init(self) end
    return self
  end, { _class = class, _schema = schema })
end

--- Is `value` an object of the record class?
function M.is(value, class)
  return type(value) == "table" and getmetatable(value) == class._class
end

--- How prepared loaders behave.
M.DataLoaderConfiguration = record("DataLoaderConfiguration", {
  split_batches = { "boolean", default = false },
  dispatch_batches = { "boolean", optional = true },
  even_batches = { "boolean", default = true },
  use_seedable_sampler = { "boolean", default = false },
  data_seed = { "integer", optional = true },
  non_blocking = { "boolean", default = false },
  use_stateful_dataloader = { "boolean", default = false },
}, nil, function(self)
  if self.use_stateful_dataloader then
    fail("DataLoaderConfiguration: use_stateful_dataloader = true is not there yet: a loader's position is not saved so far")
  end
end)

--- Where a run keeps its files.
M.ProjectConfiguration = record("ProjectConfiguration", {
  project_dir = { "string", optional = true },
  logging_dir = { "string", optional = true },
  automatic_checkpoint_naming = { "boolean", default = false },
  total_limit = { "integer", min = 1, optional = true },
  iteration = { "integer", default = 0, min = 0 },
  save_on_each_node = { "boolean", default = false },
}, {
  --- Sets the project's directory, and the logs' where that has none yet.
  set_directories = function(self, dir)
    self.project_dir = dir
    if self.logging_dir == nil then self.logging_dir = dir end
  end,
}, function(self) self:set_directories(self.project_dir) end)

--- How gradients are accumulated.
M.GradientAccumulationPlugin = record("GradientAccumulationPlugin", {
  num_steps = { "integer", min = 1, optional = true },
  adjust_scheduler = { "boolean", default = true },
  sync_with_dataloader = { "boolean", default = true },
  sync_each_batch = { "boolean", default = false },
})

--- How `Accelerator:autocast` and prepared models cast: a handler for Accelerator's kwargs_handlers.
M.AutocastKwargs = record("AutocastKwargs", {
  enabled = { "boolean", default = true },
  cache_enabled = { "boolean", optional = true },  -- nil: as autocast has it, which is true
})

return M
