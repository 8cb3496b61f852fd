--- state_dict and load_state_dict of modules.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local lists = require "accelerate.utils.lists"
local Module = require "accelerate.nn.module"

local fail = options.fail

-- Calls visit(name, tensor, parameter) for every parameter and saved buffer under every name it
-- has, in order of registration. A class with `_transposed = { weight = true }` has that matrix the
-- other way round in state dicts: visit gets a transposed view, and the parameter.
local function walk(self, prefix, above, visit)
  if above[self] then fail("state_dict: the module at '%s' contains itself", prefix) end
  above[self] = true
  Module._check_settled(self, prefix:sub(1, -2))
  local transposed = self._transposed
  for _, item in ipairs(self:_own("parameter")) do
    local t = item[2]
    visit(prefix .. item[1], transposed and transposed[item[1]] and t:detach():t() or t, t)
  end
  for _, item in ipairs(self:_own("buffer")) do
    if not self:_is_transient(item[1]) then visit(prefix .. item[1], item[2], item[2]) end
  end
  for _, item in ipairs(self:_own("module")) do walk(item[2], prefix .. item[1] .. ".", above, visit) end
  above[self] = nil
end

local OPTIONS = { destination = { "table", optional = true },
  prefix = { "string", default = "" }, keep_vars = { "boolean", default = false } }
local ORDER = { "destination", "prefix", "keep_vars" }

--- Parameters and buffers by name ("fc.weight"), sharing memory with the module. The table
--- remembers its order:
--- `for name, t in ordered.pairs(sd)` (accelerate.utils.ordered) walks it in order of registration.
---@param ... any destination (a table to fill, which is returned; default a new one), prefix = "",
---  keep_vars = false (true: the tensors themselves, not detached ones), or a table of them
---@return table<string, accelerate.Tensor>
function Module:state_dict(...)
  local o = options.read("state_dict", ORDER, OPTIONS, ...)
  local dict = o.destination or ordered.new()
  walk(self, o.prefix, {}, function(name, t) dict[name] = o.keep_vars and t or t:detach() end)
  return dict
end

local function compare(self, dict)
  local mine, names, satisfied = {}, {}, {}
  local missing, unexpected, wrong, parameters = {}, {}, {}, {}
  walk(self, "", {}, function(name, t, parameter)
    mine[name], parameters[name] = t, parameter
    names[#names + 1] = name
    if dict[name] ~= nil then satisfied[parameter] = true end
  end)
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
    if mine[name] == nil then unexpected[#unexpected + 1] = tostring(name) end
  end
  return mine, names, missing, unexpected, wrong, parameters
end

local LOAD = { strict = { "boolean", default = true }, assign = { "boolean", default = false } }

-- Makes a module's tensor show the elements of `value`, with its type and device; the object stays,
-- and so do ties.
local function adopt(t, value)
  if t.requires_grad and not core._is_float(value) then
    fail("load_state_dict: assign: a parameter cannot become %s", value.dtype)
  end
  t.grad = nil
  core.set_grad_slot(t, nil, 0)
  t.data = value:detach()
end

--- Copies values into the module's parameters and buffers, cast to their types. With strict, names
--- that are missing or unknown raise; wrong shapes always do. All faults come in one message, and
--- then nothing was changed.
---@param dict table<string, accelerate.Tensor>
---@param ... any strict = true, assign = false, or a table of them; assign: the module's tensors
---  take the values' memory, type and device instead of a copy; do it before prepare
---@return { missing_keys: string[], unexpected_keys: string[] }
function Module:load_state_dict(dict, ...)
  local o = options.read("load_state_dict", { "strict", "assign" }, LOAD, ...)
  if type(dict) ~= "table" or class.of(dict) then
    fail("load_state_dict: expected a table of tensors by name, got %s", options.show(dict))
  end
  local mine, names, missing, unexpected, wrong, parameters = compare(self, dict)
  local faults = {}
  if o.strict and #missing > 0 then faults[1] = "missing keys: " .. table.concat(missing, ", ") end
  if o.strict and #unexpected > 0 then
    faults[#faults + 1] = "unexpected keys: " .. table.concat(unexpected, ", ")
  end
  for _, text in ipairs(wrong) do faults[#faults + 1] = text end
  if #faults > 0 then
    fail("%s", ("load_state_dict: the state dict does not fit %s:\n  %s"):format(self.__name,
      table.concat(faults, "\n  ")))
  end
  core.no_grad(function()
    for _, name in ipairs(names) do
      if dict[name] ~= nil then
        local t, value = parameters[name], dict[name]
        if not o.assign then mine[name]:copy_(value)
        else adopt(t, rawequal(t, mine[name]) and value or value:t():contiguous()) end
      end
    end
  end)
  return { missing_keys = missing, unexpected_keys = unexpected }
end

return Module
