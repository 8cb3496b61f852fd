--- state_dict and load_state_dict of modules.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local deferred = require "accelerate.deferred"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local prefixes = require "accelerate.utils.prefixes"
local lists = require "accelerate.utils.lists"
local positions = require "accelerate.utils.positions"
local hooks = require "accelerate.nn.hooks"
local Module = require "accelerate.nn.module"

local fail = options.fail

-- Methods of PyTorch's that a class defines to change what is saved or loaded, and that are never
-- called here.
local OVERRIDES = {
  _load_from_state_dict = "register_load_state_dict_pre_hook",
  _save_to_state_dict = "register_state_dict_post_hook",
}

local function refuse_overrides(self)
  for name, instead in next, OVERRIDES do
    if self[name] then
      fail("%s: %s is never called; module:%s(hook) changes the table of a module", self.__name, name,
        instead)
    end
  end
end

-- Goes through a module and those below it under every path, in order of registration. What it
-- calls, where it is given:
--   enter(module, prefix)         before the module's entries
--   tensor(name, t, parameter)    for every parameter and saved buffer
--   own(module, prefix)           after its own entries
--   leave(module, prefix)         after those of the modules below it
-- A class with `_transposed = { weight = true }` has that matrix the other way round in state
-- dicts: `tensor` gets a transposed view, and the parameter.
local function walk(self, prefix, above, to)
  if above[self] then fail("state_dict: the module at '%s' contains itself", prefix) end
  above[self] = true
  Module._check_settled(self, prefix:sub(1, -2))
  refuse_overrides(self)
  if to.enter then to.enter(self, prefix) end
  if to.tensor then
    local transposed = self._transposed
    for _, item in ipairs(self:_own("parameter")) do
      local t = item[2]
      to.tensor(prefix .. item[1], transposed and transposed[item[1]] and t:detach():t() or t, t)
    end
    for _, item in ipairs(self:_own("buffer")) do
      if not self:_is_transient(item[1]) then to.tensor(prefix .. item[1], item[2], item[2]) end
    end
  end
  if to.own then to.own(self, prefix) end
  for _, item in ipairs(self:_own("module")) do walk(item[2], prefix .. item[1] .. ".", above, to) end
  if to.leave then to.leave(self, prefix) end
  above[self] = nil
end

-- Under this name is what a class's get_extra_state() returns.
local EXTRA = "_extra_state"

local OPTIONS = { destination = { "table", optional = true },
  prefix = { "string", default = "" }, keep_vars = { "boolean", default = false } }
local ORDER = { "destination", "prefix", "keep_vars" }

--- Parameters and buffers by name ("fc.weight"), sharing memory with the module. The table
--- remembers its order:
--- `for name, t in ordered.pairs(sd)` (accelerate.utils.ordered) walks it in order of registration.
--- A class may define get_extra_state(), whose result comes under the name "_extra_state", and
--- set_extra_state(state), which load_state_dict calls with it. Files of weights take tensors only.
---@param ... any destination (a table to fill, which is returned; default a new one), prefix = "",
---  keep_vars = false (true: the tensors themselves, not detached ones), or a table of them
---@return table<string, accelerate.Tensor>
function Module:state_dict(...)
  local o = options.read("state_dict", ORDER, OPTIONS, ...)
  local dict = o.destination or ordered.new()
  walk(self, o.prefix, {}, {
    enter = function(module, prefix)
      for _, handle in ipairs(hooks.of_state(module, "state_dict_pre")) do
        handle.hook(module, prefix, o.keep_vars)
      end
    end,
    tensor = function(name, t) dict[name] = o.keep_vars and t or t:detach() end,
    own = function(module, prefix)
      if module.get_extra_state then dict[prefix .. EXTRA] = module:get_extra_state() end
    end,
    leave = function(module, prefix)
      for _, handle in ipairs(hooks.of_state(module, "state_dict_post")) do
        if handle.hook(module, dict, prefix, {}) ~= nil then
          fail("%s: a hook of register_state_dict_post_hook must return nothing; it changes the table",
            module.__name)
        end
      end
    end,
  })
  return dict
end

local function begins(key, prefix) return type(key) == "string" and key:sub(1, #prefix) == prefix end

local function has(self, kind)
  for _, module in ipairs(self:modules()) do
    if hooks.of_state(module, kind)[1] then return true end
  end
  return false
end

local function copy_of(dict, prefix)
  local copy = ordered.new()
  for _, key in ipairs(ordered.keys(dict)) do
    if prefix == "" or begins(key, prefix) then copy[key] = dict[key] end
  end
  return copy
end

-- What the hooks before loading make of a state dict: a table of its own, if there are such hooks.
-- Each sees, and may change, the entries of its module.
local function prepared(self, dict, report)
  if not has(self, "load_state_dict_pre") then return dict end
  dict = copy_of(dict, "")
  walk(self, "", {}, { enter = function(module, prefix)
    local list = hooks.of_state(module, "load_state_dict_pre")
    if not list[1] then return end
    local part = copy_of(dict, prefix)
    for _, handle in ipairs(list) do
      handle.hook(module, part, prefix, {}, true, report.missing, report.unexpected, report.wrong)
    end
    for _, key in ipairs(ordered.keys(dict)) do
      if prefix == "" or begins(key, prefix) then dict[key] = nil end
    end
    for _, key in ipairs(ordered.keys(part)) do
      if prefix == "" or begins(key, prefix) then dict[key] = part[key] end
    end
  end })
  return dict
end

-- Adds to the report what of a state dict does not fit. Returns the module's tensors by name, their
-- names, the parameters by name, and { module, state } for the extra states.
local function compare(self, dict, report)
  local mine, names, satisfied, parameters, extras, known = {}, {}, {}, {}, {}, {}
  walk(self, "", {}, {
    tensor = function(name, t, parameter)
      mine[name], parameters[name] = t, parameter
      names[#names + 1] = name
      if dict[name] ~= nil then satisfied[parameter] = true end
    end,
    own = function(module, prefix)
      if not module.set_extra_state then return end
      local name = prefix .. EXTRA
      known[name] = true
      if dict[name] == nil then report.missing[#report.missing + 1] = name
      else extras[#extras + 1] = { module, dict[name] } end
    end,
  })
  local missing, wrong = report.missing, report.wrong
  for _, name in ipairs(names) do
    local value, t = dict[name], mine[name]
    if value == nil then
      -- files may hold tied weights under one of their names only
      if not satisfied[parameters[name]] then missing[#missing + 1] = name end
    elseif not core.is_tensor(value) then
      wrong[#wrong + 1] = ("'%s' must be a tensor, got %s"):format(name, options.show(value))
    elseif not lists.same(value.shape, t.shape) then
      wrong[#wrong + 1] = ("size mismatch for '%s': the state dict has %s, the module has %s"):format(
        name, lists.shape_text(value), lists.shape_text(t))
    end
  end
  for _, name in ipairs(ordered.keys(dict)) do
    if mine[name] == nil and not known[name] then
      report.unexpected[#report.unexpected + 1] = tostring(name)
    end
  end
  return mine, names, parameters, extras
end

local LOAD = { strict = { "boolean", default = true }, assign = { "boolean", default = false } }

-- Makes a module's tensor show the elements of `value`, with its type and device; the object stays,
-- and so do ties.
local function adopt(t, value)
  if t.requires_grad and not core._is_float(value) then
    fail("load_state_dict: assign: a parameter cannot become %s", value.dtype)
  end
  t.grad = nil
  t.data = value:detach()
end

-- Copies a value into a module's tensor t, which state dicts have as `shown`. One without memory,
-- as those of models that are to be cut over ranks, takes the place where a file has it.
local function copy_value(name, t, shown, value)
  if deferred.takes(t, value, not rawequal(t, shown)) then return end
  if t.device == "meta" then
    fail("load_state_dict: '%s' is on the device \"meta\", which holds no values; pass assign = true", name)
  end
  if rawequal(t, shown) then t:copy_(value) else t:copy_(value:t()) end -- t itself: it may be cut over ranks
end

-- Whether a table has all names.
local function holds(dict, names, prefix)
  for _, name in ipairs(names) do
    if dict[prefix .. tostring(name)] == nil then return false end
  end
  return true
end

-- Where the missing names stand: in a table of a checkpoint, or behind a prefix that a wrapped
-- model's names have. Returns a line to print, or nothing.
local function elsewhere(dict, report)
  local missing = report.missing
  if type(missing[1]) ~= "string" then return end -- none, or what a hook put there
  for _, key in ipairs(report.unexpected) do
    local value, text = dict[key], tostring(key)
    if type(value) == "table" and not class.of(value) and holds(value, missing, "") then
      return ("'%s' holds a state dict with these names: pass checkpoint.%s"):format(text, text)
    end
    local prefix = text:sub(1, -#missing[1] - 1)
    if text == prefix .. missing[1] and holds(dict, missing, prefix) then
      return prefixes.remedy(prefix)
    end
  end
end

-- Raises with all faults in one message, if there are any.
local function judge(self, dict, report, strict)
  local faults = {}
  if strict and #report.missing > 0 then
    faults[1] = "missing keys: " .. table.concat(report.missing, ", ")
  end
  if strict and #report.unexpected > 0 then
    faults[#faults + 1] = "unexpected keys: " .. table.concat(report.unexpected, ", ")
  end
  for _, text in ipairs(report.wrong) do faults[#faults + 1] = text end
  if strict then faults[#faults + 1] = elsewhere(dict, report) end
  if #faults > 0 then
    fail("%s", ("load_state_dict: the state dict does not fit %s:\n  %s"):format(self.__name,
      table.concat(faults, "\n  ")))
  end
end

-- Runs the hooks after loading, of modules below before those above.
local function conclude(self, result)
  walk(self, "", {}, { leave = function(module)
    for _, handle in ipairs(hooks.of_state(module, "load_state_dict_post")) do
      if handle.hook(module, result) ~= nil then
        fail("%s: a hook of register_load_state_dict_post_hook must return nothing; it changes the lists",
          module.__name)
      end
    end
  end })
end

--- Copies values into the module's parameters and buffers, cast to their types. With strict, names
--- that are missing or unknown raise; wrong shapes always do. All faults come in one message, and
--- then nothing was changed; only a module with hooks after loading, which may forgive names, is
--- loaded before missing and unknown names raise.
---@param state_dict table<string, accelerate.Tensor>
---@param ... any strict = true, assign = false, or a table of them; assign: the module's tensors
---  take the values' memory, type and device instead of a copy; do it before prepare
---@return { missing_keys: string[], unexpected_keys: string[] }
function Module:load_state_dict(state_dict, ...)
  local dict = state_dict
  local o = options.read("load_state_dict", { "strict", "assign" }, LOAD, ...)
  if type(dict) ~= "table" or class.of(dict) then
    fail("load_state_dict: expected a table of tensors by name, got %s", options.show(dict))
  end
  local report = { missing = {}, unexpected = {}, wrong = {} }
  dict = prepared(self, dict, report)
  local mine, names, parameters, extras = compare(self, dict, report)
  local late = has(self, "load_state_dict_post")
  if not late or report.wrong[1] then judge(self, dict, report, o.strict) end
  core.no_grad(function()
    for _, name in ipairs(names) do
      if dict[name] ~= nil then
        local t, value = parameters[name], dict[name]
        if not o.assign then copy_value(name, t, mine[name], value)
        else adopt(t, rawequal(t, mine[name]) and value or value:t():contiguous()) end
      end
    end
  end)
  for _, extra in ipairs(extras) do extra[1]:set_extra_state(extra[2]) end
  local result = { missing_keys = report.missing, unexpected_keys = report.unexpected }
  if late then
    conclude(self, result)
    report.missing, report.unexpected = result.missing_keys, result.unexpected_keys
    judge(self, dict, report, o.strict)
  end
  return result
end

positions.methods(Module, { load_state_dict = "state_dict [strict] [assign]" })
