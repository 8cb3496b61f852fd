--- Configuration objects: plain records with checked names and values.
---
---   local plugin = accelerate.GradientAccumulationPlugin{ num_steps = 4, sync_with_dataloader =
---     false }
---   local accelerator = accelerate.Accelerator{ gradient_accumulation_plugin = plugin }
local classes = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local properties = require "accelerate.utils.properties"

local fail = options.fail

local M = {}

-- ---- records

local function equal(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, value in pairs(a) do
    if not equal(value, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

--- Returns one field's value as the record stores it, or raises with the field's name.
local function checked(name, spec, field, value)
  value = options.value(name, ("option '%s'"):format(field), value, spec.fields[field])
  local also = spec.checks and spec.checks[field]
  if also and value ~= nil then return also(value) end
  return value
end

-- A field's value in an object's text; plain tables with what is in them.
local function shown(value)
  if type(value) ~= "table" or getmetatable(value) ~= nil then return tostring(value) end
  local parts = {}
  for i, item in ipairs(value) do parts[i] = tostring(item) end
  for _, key in ipairs(#value == 0 and ordered.sorted_keys(value) or {}) do
    parts[#parts + 1] = ("%s=%s"):format(key, tostring(value[key]))
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

--- Makes a record class. The fields of its objects can be read and assigned. An unknown name and an
--- unfit value raise.
---@param spec { fields: table, checks: table<string, fun(value: any): any>?, init: fun(self:
---  table)?, methods: table?, get: table?, assign: (fun(self: table, field: string, value: any))? }
---  fields: a schema of utils.options; checks: conditions of single fields beyond the schema; init:
---  conditions of several fields; get: computed fields; assign: what an assignment does after the
---  schema's check, instead of storing the value
local function record(name, spec)
  local get, set = {}, {}
  local names = ordered.sorted_keys(spec.fields)
  for _, field in ipairs(names) do
    get[field] = function(self) return self._values[field] end
    set[field] = function(self, value)
      value = checked(name, spec, field, value)
      if spec.assign then return spec.assign(self, field, value) end
      self._values[field] = value
    end
  end
  for field, read in pairs(spec.get or {}) do get[field] = read end
  local class = properties.define(name, {
    get = get, set = set, methods = spec.methods,
    tostring = function(self)
      local parts = {}
      for i, field in ipairs(names) do parts[i] = field .. "=" .. shown(self._values[field]) end
      return ("%s(%s)"):format(name, table.concat(parts, ", "))
    end,
  })
  class.__deepcopy = classes.copied
  return properties.callable(name, function(given)
    if given ~= nil and type(given) ~= "table" then
      fail("%s: expected a table of options, got %s", name, options.show(given))
    end
    local values = options.check(name, given, spec.fields)
    local self = class.new()
    self._values, self._given = {}, {}  -- _given: the fields that the caller named
    for _, field in ipairs(names) do
      self._values[field] = checked(name, spec, field, values[field])
      self._given[field] = given ~= nil and given[field] ~= nil or nil
    end
    if spec.init then spec.init(self) end
    return self
  end, { _class = class, _schema = spec.fields, _fields = names })
end

--- Returns whether `value` is an object of the record class.
function M.is(value, class)
  return type(value) == "table" and getmetatable(value) == class._class
end

--- Makes a record class with `to_kwargs`, which returns what differs from the defaults.
local function handler(name, spec)
  local own, class = spec.methods or {}, nil
  local left_out = spec.left_out or {}
  spec.methods = properties.merge({
    --- Returns every field by name.
    ---@return table
    to_dict = function(self)
      local dict = {}
      for _, field in ipairs(class._fields) do
        if not left_out[field] then dict[field] = self._values[field] end
      end
      return dict
    end,
    --- Returns only the fields that differ from the class's defaults.
    ---@return table
    to_kwargs = function(self)
      local defaults, differing = class():to_dict(), {}
      for field, value in pairs(self:to_dict()) do
        if not equal(value, defaults[field]) then differing[field] = value end
      end
      return differing
    end,
  }, own)
  class = record(name, spec)
  return class
end

-- ---- configurations

--- Options of prepared loaders.
M.DataLoaderConfiguration = record("DataLoaderConfiguration", { fields = {
  split_batches = { "boolean", default = false },  -- a loader's batch is cut into one piece for each rank
  -- rank 0 reads and sends; nil: for iterable data sets only
  dispatch_batches = { "boolean", optional = true },
  even_batches = { "boolean", default = true },  -- all ranks get equally many batches, filled from the start
  -- a RandomSampler's order depends on data_seed and the pass only
  use_seedable_sampler = { "boolean", default = false },
  data_seed = { "integer", optional = true },  -- nil: the default generator's seed
  -- pinned batches are read when the copy runs, so do not change them; no effect on a CPU
  non_blocking = { "boolean", default = false },
  -- accepted for compatibility: prepared loaders always have state_dict()
  use_stateful_dataloader = { "boolean", default = false },
} })

--- Folders of a run.
M.ProjectConfiguration = record("ProjectConfiguration", {
  fields = {
    project_dir = { "string", optional = true },
    logging_dir = { "string", optional = true },
    automatic_checkpoint_naming = { "boolean", default = false },
    total_limit = { "integer", min = 1, optional = true },
    iteration = { "integer", default = 0, min = 0 },
    save_on_each_node = { "boolean", default = false },
  },
  methods = {
    --- Sets the project's directory, and the logging directory if it is not set.
    ---@param dir string?
    set_directories = function(self, dir)
      self.project_dir = dir
      if self.logging_dir == nil then self.logging_dir = dir end
    end,
  },
  init = function(self) self:set_directories(self.project_dir) end,
})

--- Options of gradient accumulation. adjust_scheduler is Accelerate's, and has no effect there
--- either.
M.GradientAccumulationPlugin = handler("GradientAccumulationPlugin", { fields = {
  num_steps = { "integer", min = 1, optional = true },  -- nil: 1
  adjust_scheduler = { "boolean", default = true },
  sync_with_dataloader = { "boolean", default = true },  -- a loader's last batch ends the window
  -- reduce after every batch, although steps wait for the window's end
  sync_each_batch = { "boolean", default = false },
} })

-- For the files of plugins.
M._record = record

--- For kwargs_handlers.lua: makes a class with `to_kwargs`.
M._handler = handler

-- The handlers and enums are loaded at first use: most scripts use none.
return setmetatable(M, { __index = function(_, name)
  if type(name) ~= "string" or name:sub(1, 1) == "_" then return nil end
  for key, value in pairs(require("accelerate.config.kwargs_handlers")) do
    if rawget(M, key) == nil then rawset(M, key, value) end
  end
  return rawget(M, name)
end })
