--- Deferred values: parameters that have no memory until they are used. What is known of one is how
--- it was drawn (drawn.lua) or where it is in a file (in_file.lua); its first use makes all of it.
--- A model that is prepared under a plan that cuts its values makes this rank's elements alone.
---
--- On the device "meta" a tensor carries the same knowledge, and `settle` brings it to a device.
local core = require "accelerate.core"
local Drawn = require "accelerate.deferred.drawn"
local InFile = require "accelerate.deferred.in_file"
local edits = require "accelerate.deferred.edits"
local env = require "accelerate.utils.environment"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local COMMON = core._common_generator() -- the same numbers on all ranks, also in an unseeded run

-- Elements of the tensor behind a parameter on meta that are kept, where nothing draws it.
local MOST_KEPT = 2 ^ 18

-- ---- when

local requested -- by an Accelerator

--- Requests that parameters are deferred from now on, or no longer.
---@param wanted fun(): boolean
function M.request(wanted) requested = wanted end

--- Returns whether parameters that are drawn or loaded now are deferred: the ranks are going to cut
--- them.
---@return boolean
function M.is_wanted()
  if core.dist.world_size() == 1 then return false end
  if requested then return requested() end
  return env.flag("ACCELERATE_USE_FSDP", false) and env.flag("FSDP_CPU_RAM_EFFICIENT_LOADING", false)
end

-- ---- tensors without memory

--- Returns where the values of a tensor, or of the tensor under a view, come from; nil: the tensor
--- has its values.
---@param t accelerate.Tensor
---@return accelerate.deferred.Drawn|accelerate.deferred.InFile|nil
function M.of(t) return core._deferred(t) end

--- Returns a new tensor whose values are deferred.
---@param shape integer[]
---@param dtype string
---@param device string
---@param recipe accelerate.deferred.Drawn|accelerate.deferred.InFile
---@return accelerate.Tensor
function M.new(shape, dtype, device, recipe) return core._deferred_new(shape, dtype, device, recipe) end

--- Returns a copy of a deferred tensor, or one of another type or on another device, deferred too.
---@param t accelerate.Tensor
---@param dtype string?
---@param device string?
---@return accelerate.Tensor
function M.converted(t, dtype, device)
  local recipe = core._deferred(t)
  dtype, device = dtype or t.dtype, device or t.device
  local same = dtype == recipe.dtype and (device == "meta" or device == recipe.device)
  local copy = same and recipe:copy() or recipe:to(dtype, device == "meta" and recipe.device or device)
  return M.new(t.shape, dtype, device, copy)
end

--- Makes an edit of edits.lua, inside no_grad: of a tensor without values it is noted.
---@param t accelerate.Tensor
---@param name string
---@param a any[]
---@param generator userdata? nil: the one that is common to all ranks
---@param may_begin boolean? whether the tensor may give up its values, which the edit replaces
function M.edit(t, name, a, generator, may_begin)
  local recipe = core._deferred(t)
  local notes = recipe and recipe.note
  if not notes and edits[name].overwrites and (recipe or t.device == "meta"
    or may_begin and core._is_float(t) and M.is_wanted()) then
    local begun = Drawn(t.shape, t.dtype, t.device == "meta" and "cpu" or t.device)
    if core._defer(t, begun) then recipe, notes = begun, true end
  end
  if notes then recipe:note(t, name, a, generator)
  elseif t.device ~= "meta" then core.no_grad(edits[name].whole, t, generator or COMMON, a) end
end

--- Returns the values that an edit copies into a tensor.
---@param name string of edits.lua
---@param t accelerate.Tensor
---@param generator userdata?
---@param a any[]
---@return accelerate.Tensor
function M.values(name, t, generator, a) return edits[name].values(t, generator, a) end

-- ---- files

local lent = setmetatable({}, { __mode = "k" })  -- tensor over a mapped file -> its source

--- Notes that a tensor is over a mapped file, which nobody changes.
---@param t accelerate.Tensor
---@param source accelerate.deferred.Source
---@return accelerate.deferred.Source source
function M.lend(t, source)
  lent[t] = source
  return source
end

--- Returns whether a tensor without memory now has the values that `value` shows in a file.
---@param t accelerate.Tensor
---@param value accelerate.Tensor of t's shape, or transposed
---@param transposed boolean
---@return boolean
function M.takes(t, value, transposed)
  local source = lent[value]
  if not source or not core._is_float(t) then return false end
  if t.device ~= "meta" and not core._deferred(t) then return false end
  source.taken = core._defer(t, InFile(source, t.dtype, t.device == "meta" and "cpu" or t.device, transposed))
    or source.taken
  return core._deferred(t) ~= nil
end

-- ---- the device meta

local skipped = false

--- Returns whether nn.init leaves tensors as they are.
function M.is_skipped() return skipped end

-- Returns fn(...), in which nn.init writes nothing: the values come from a file afterwards.
local function restored(former, ok, ...)
  skipped = former
  if not ok then error((...), 0) end
  return ...
end

--- Returns fn(...), in which nn.init does nothing: the values come from a file afterwards.
function M.skip(fn, ...)
  local former = skipped
  skipped = true
  return restored(former, pcall(fn, ...))
end

--- Frees a large tensor inside `skip`, where its values are to be written later, for ranks that are
--- going to cut it.
---@param t accelerate.Tensor
function M.leave(t)
  if not skipped or t.device == "meta" or t:numel() <= MOST_KEPT or not core._is_float(t)
    or not M.is_wanted() then return end
  local recipe = Drawn(t.shape, t.dtype, t.device)
  recipe.lost = "nothing has drawn it yet"
  core._defer(t, recipe)
end

--- Returns a tensor of the device "meta" in the place of `t`. It carries t's values where they
--- are few; where they are many, it carries the calls that draw them.
---@param t accelerate.Tensor
---@return accelerate.Tensor
function M.on_meta(t)
  local result = core.empty(t.shape, { dtype = t.dtype, device = "meta" })
  if skipped or t.device == "meta" then return result end
  local recipe = Drawn(t.shape, t.dtype, t.device)
  if t:numel() <= MOST_KEPT then recipe:note(result, "given", { t:detach() })
  else
    recipe.lost = ("it was made from a tensor of shape %s, which is not kept; " ..
      "draw it with nn.init, or in place"):format(lists.shape_text(t))
  end
  core._defer(result, recipe)
  return result
end

-- Gives a tensor of a module other memory; the object stays.
local function adopt(t, value)
  t.grad = nil
  t.data = value:detach()
end

local function refuse(where, name, recipe)
  fail("%s: '%s' is on the device \"meta\", and %s; load values into it (load_checkpoint_in_model), or " ..
    "make the model in init_empty_weights, which notes how its weights are drawn", where, name,
    recipe and recipe.lost or "nothing says what its values are")
end

--- Brings tensors of a model that are on the device "meta" to a device: its parameters are deferred
--- there, its buffers get their values. Raises for a tensor about which nothing is known.
---@param where string what messages begin with
---@param model accelerate.nn.Module
---@param device string
function M.settle(where, model, device)
  for name, p in model:named_parameters() do
    local recipe = p.device == "meta" and core._deferred(p)
    if recipe and not recipe.lost then adopt(p, M.converted(p, nil, device))
    elseif p.device == "meta" then refuse(where, name, recipe) end
  end
  for name, b in model:named_buffers() do
    local recipe = b.device == "meta" and core._deferred(b)
    if recipe and not recipe.lost then
      local value = core.empty(b.shape, { dtype = b.dtype, device = device })
      recipe:fill(value:view(-1), 0)
      adopt(b, value)
    elseif b.device == "meta" then refuse(where, name, recipe) end
  end
end

return M
