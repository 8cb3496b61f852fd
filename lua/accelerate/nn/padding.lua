--- Modules that surround their input, and nn.Unflatten: ConstantPad1d .. 3d, ZeroPad,
--- ReflectionPad, ReplicationPad, CircularPad.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"

local M = {}

-- One size for all sides, or {before, after} of the last dim, then of the one before it, and so on.
local function margins(name, padding, dims)
  if type(padding) == "number" then
    local all = {}
    for k = 1, 2 * dims do all[k] = padding end
    padding = all
  end
  if type(padding) ~= "table" or #padding ~= 2 * dims then
    options.fail("%s: padding must be an integer or a list of %d, got %s", name, 2 * dims,
      options.show(padding))
  end
  local list = {}
  for k = 1, 2 * dims do list[k] = options.value(name, "padding", padding[k], { "integer" }) end
  return list
end

local pad = core.pad

local function padding_module(kind, mode, dims, takes_value)
  local name = ("%s%dd"):format(kind, dims)
  local Class = class(name, Module)
  Class._builtin = true

  function Class:init(padding, value, opts)
    self.padding = margins(name, padding, dims)
    if takes_value then
      options.check(name, opts, {})
      self.value = options.value(name, "value", value, { "number" })
    elseif value ~= nil then
      options.fail("%s: takes the padding alone, got also %s", name, options.show(value))
    end
  end

  function Class:forward(x)
    local values = self._values
    return self:_run(pad, x, values.padding, mode, values.value or 0)
  end

  function Class:extra_repr()
    local text = ("(%s)"):format(table.concat(self.padding, ", "))
    return takes_value and ("padding=%s, value=%s"):format(text, ("%.12g"):format(self.value)) or text
  end
  M[name] = Class
end

for dims = 1, 3 do
  --- Surrounds with `value`: `nn.ConstantPad2d(padding, value)`.  padding: one size for all sides,
  --- or { before, after } of the last dim, then of the one before it, and so on; so it is for all
  --- of these.
  padding_module("ConstantPad", "constant", dims, true)
  --- Surrounds with zeros.
  padding_module("ZeroPad", "constant", dims)
  --- Surrounds with the mirrored input, the edge itself not repeated.
  padding_module("ReflectionPad", "reflect", dims)
  --- Surrounds with the edge, repeated.
  padding_module("ReplicationPad", "replicate", dims)
  --- Surrounds with elements of the opposite edge.
  padding_module("CircularPad", "circular", dims)
end

---@class accelerate.nn.Unflatten : accelerate.nn.Module
local Unflatten = class("Unflatten", Module)
Unflatten._builtin = true

--- One dim as several.
---@param dim integer
---@param sizes integer[] of the new dims; one may be -1
function Unflatten:init(dim, sizes)
  self.dim = options.value("Unflatten", "dim", dim, { "integer" })
  if type(sizes) ~= "table" or #sizes == 0 then
    options.fail("Unflatten: sizes must be a list of integers, got %s", options.show(sizes))
  end
  self.sizes = { unpack(sizes) }
end

local unflatten = core.unflatten

function Unflatten:forward(x)
  local values = self._values
  return self:_run(unflatten, x, values.dim, values.sizes)
end

function Unflatten:extra_repr()
  return ("dim=%d, unflattened_size=(%s)"):format(self.dim, table.concat(self.sizes, ", "))
end

M.Unflatten = Unflatten

return M
