--- Which modules of a model are units of their own: a unit's values are acquired together before it
--- computes, and its gradients are reduced together.
---
--- A parameter belongs to the innermost unit that has it; one that several units share belongs to
--- the innermost unit around all of them, at the latest the model itself.
local class = require "accelerate.utils.class"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local regex = require "accelerate.utils.regex"

local fail = options.fail

local M = {}

-- Lists of modules, which have no forward of their own.
local LISTS = { ModuleList = true, ModuleDict = true }
-- Modules that a policy does not look into.
local LEAVES = { MultiheadAttention = true }

local function is_list(module) return LISTS[class.of(module).__name] or false end

-- The elements of a module's parameters, each counted once, without the ignored ones.
local function elements(module, ignored)
  local n = 0
  for _, p in ipairs(module:parameters()) do
    if not ignored[p] then n = n + p:numel() end
  end
  return n
end

-- The chosen modules in the order of the model's modules.
local function in_order(model, chosen)
  local list = {}
  for _, module in ipairs(model:modules()) do
    if chosen[module] and module ~= model then list[#list + 1] = module end
  end
  return list
end

-- ---- by class

-- The classes of a model's modules by name; the first one of a name counts.
local function classes_of(model)
  local classes, names = {}, {}
  for _, module in ipairs(model:modules()) do
    local Class = class.of(module)
    if not classes[Class.__name] then
      classes[Class.__name] = Class
      names[#names + 1] = Class.__name
    end
  end
  return classes, names
end

-- A field of a model, or of the first model inside it that has one.
local function field_of(model, name)
  for _, module in ipairs(model:modules()) do
    local value = module[name]
    if value ~= nil then return value end
  end
end

local function class_named(model, name, classes, names, where)
  local ours = field_of(model, "_transformers_names") or {}
  local Class = classes[name] or classes[ours[name]]
  if Class then return Class end
  fail("%s: the model (%s) has no module of the class '%s'%s", where, class.of(model).__name, name,
    options.hint(name, names))
end

--- Returns the modules of some classes, or of classes derived from them.
---@param model accelerate.nn.Module
---@param names string[]? Transformers' names are taken, too; nil: the model's own _no_split_modules
---@param where string what messages begin with: the setting
---@return accelerate.nn.Module[]
function M.by_class(model, names, where)
  if names == nil then
    names = field_of(model, "_no_split_modules")
    if names == nil then
      notice.main_once(
        "%s: no class is named, and %s has no _no_split_modules, " ..
        "so that the whole model is one unit", where, class.of(model).__name)
    end
  end
  local wanted, chosen = {}, {}
  local classes, known = classes_of(model)
  for _, name in ipairs(names or {}) do
    wanted[#wanted + 1] = class_named(model, name, classes, known, where)
  end
  for _, module in ipairs(model:modules()) do
    for _, Class in ipairs(wanted) do
      if class.is(module, Class) then chosen[module] = true end
    end
  end
  return in_order(model, chosen)
end

-- ---- by a policy

--- Returns the modules that a policy chooses, from the leaves up: policy(module, true, n) says
--- whether to look inside, policy(module, false, n) whether the module is a unit; n: elements that
--- no unit inside has.
---@param model accelerate.nn.Module
---@param policy fun(module: accelerate.nn.Module, recurse: boolean, nonwrapped_numel: integer):
---  boolean
---@param ignored table<accelerate.Tensor, boolean>
---@return accelerate.nn.Module[]
function M.by_policy(model, policy, ignored)
  local chosen, covered = {}, {}
  local function look_into(module)
    if covered[module] then return covered[module] end
    local n, inside = elements(module, ignored), 0
    covered[module] = 0
    if policy(module, true, n) then
      for _, child in ipairs(module:children()) do inside = inside + look_into(child) end
      if module ~= model and policy(module, false, n - inside) then
        chosen[module], inside = true, n
      end
      covered[module] = inside
    end
    return covered[module]
  end
  look_into(model)
  return in_order(model, chosen)
end

--- Returns the modules that have at least `least` elements in no smaller unit, as FSDP1 chooses
--- them.
---@return accelerate.nn.Module[]
function M.by_rest(model, least, ignored)
  return M.by_policy(model, function(module, recurse, n)
    if n < least then return false end
    if recurse then return not LEAVES[class.of(module).__name] end
    return not is_list(module)
  end, ignored)
end

--- Returns the modules that have more than `limit` elements, as FSDP2 chooses them.
---@return accelerate.nn.Module[]
function M.by_size(model, limit)
  local chosen = {}
  for _, module in ipairs(model:modules()) do
    if not is_list(module) and elements(module, {}) > limit then chosen[module] = true end
  end
  return in_order(model, chosen)
end

-- ---- what is left out

--- Returns the parameters of some modules.
---@param model accelerate.nn.Module
---@param ignored accelerate.nn.Module[]|string|nil modules, or a regular expression that matches
---  their whole names
---@return table<accelerate.Tensor, boolean>
function M.parameters_of(model, ignored)
  local set, modules = {}, ignored or {}
  if type(ignored) == "string" then
    local matches = regex.full_match(ignored, "ignored_modules")
    modules = {}
    for name, module in model:named_modules() do
      if matches(name) then modules[#modules + 1] = module end
    end
    if #modules == 0 then
      notice.main_once("ignored_modules = '%s' matches no module of %s", ignored, class.of(model).__name)
    end
  end
  for _, module in ipairs(modules) do
    for _, p in ipairs(module:parameters()) do set[p] = true end
  end
  return set
end

-- ---- parameters

local WEAK = { __mode = "v" }

---@class accelerate.ShardedUnit
---@field held { module: accelerate.nn.Module } weak: a unit does not keep its model alive
---@field name string its name in the model; "" for the model itself
---@field root boolean whether it is the model itself
---@field flats accelerate.Flat[]

-- Module -> list of the units around it, the model first, itself last.
local function around(model, modules)
  local is_unit, chains = { [model] = true }, {}
  for _, module in ipairs(modules) do is_unit[module] = true end
  local function walk(module, name, chain)
    if is_unit[module] then
      local longer = { unpack(chain) }
      longer[#longer + 1] = { module = module, name = name }
      chain = longer
    end
    chains[#chains + 1] = { module = module, chain = chain }
    for child_name, child in module:named_children() do
      walk(child, name == "" and child_name or name .. "." .. child_name, chain)
    end
  end
  walk(model, "", {})
  return chains
end

-- The longest beginning that two chains have in common.
local function common(a, b)
  local n = 0
  while a[n + 1] and b[n + 1] and a[n + 1].module == b[n + 1].module do n = n + 1 end
  return { unpack(a, 1, n) }
end

--- Divides a model: the units in the order of the model, itself first, and the unit of each
--- parameter.
---@param model accelerate.nn.Module
---@param modules accelerate.nn.Module[] those that are units of their own
---@return accelerate.ShardedUnit[] units
---@return table<accelerate.Tensor, accelerate.ShardedUnit> of
function M.divide(model, modules)
  local chain_of, order = {}, {}
  for _, entry in ipairs(around(model, modules)) do
    for _, p in entry.module:named_parameters { recurse = false } do
      if not chain_of[p] then order[#order + 1] = p end
      chain_of[p] = chain_of[p] and common(chain_of[p], entry.chain) or entry.chain
    end
  end
  local units, of, known = {}, {}, {}
  local function unit(place)
    local made = known[place.module]
    if not made then
      made = { held = setmetatable({ module = place.module }, WEAK), name = place.name,
        root = place.module == model, flats = {} }
      known[place.module], units[#units + 1] = made, made
    end
    return made
  end
  unit { module = model, name = "" }
  for _, p in ipairs(order) do
    local chain = chain_of[p]
    of[p] = unit(chain[#chain])
  end
  return units, of
end

return M
