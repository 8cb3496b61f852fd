--- Units of a sharded model: the modules whose parameters are gathered, and given back, together.
---
--- Each unit's parameters are in layouts of their own. A parameter belongs to the innermost unit
--- that has it; one that several units share belongs to the innermost unit around all of them, at
--- the latest the model itself.
local core = require "accelerate.core"

local M = {}

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

-- "h.3 (GPTBlock)"
local function title(unit)
  return ("%s (%s)"):format(unit.root and "the model itself" or unit.name, unit.held.module.__name
    or "Module")
end

--- Gives the layouts of a unit names for messages.
---@param unit accelerate.ShardedUnit
---@param flat accelerate.Flat
---@param names table<accelerate.Tensor, string>
function M.name(unit, flat, names)
  local list = {}
  for i, p in ipairs(flat.params) do list[i] = names[p] or "a parameter" end
  flat.names = list
  flat.layout:set_names(title(unit), list)
end

-- The hooks of one unit: its values are whole while its forward runs. A copy of the module has the
-- hooks, too, but not the values. A recording of the model's forward, which these hooks are around,
-- gathers for itself.
local function around_forward(record, unit, keeps)
  unit.held.module:register_forward_pre_hook(function(module)
    if not rawequal(module, unit.held.module) or (unit.root and record.captured) then return end
    for _, flat in ipairs(unit.flats) do flat.layout:acquire "compute" end
  end)
  unit.held.module:register_forward_hook(function(module)
    if not rawequal(module, unit.held.module) then return end
    local keep = core.is_grad_enabled() and keeps
    for _, flat in ipairs(unit.flats) do flat.layout:let_go(keep) end
  end, { always_call = true })
end

--- Makes the units' values come with their forward and go with it. Inside the model's forward, a
--- unit whose parameter is used elsewhere is gathered by the use.
---@param record accelerate.ModelRecord
---@param reshard boolean whether values are given back after a unit's forward, and not kept for its
---  backward; those of the model itself are kept, since its backward begins next
function M.install(record, reshard)
  local units = record.units
  local root = units[1]
  local function computes(on)
    for _, unit in ipairs(units) do
      for _, flat in ipairs(unit.flats) do flat.layout:computes(on) end
    end
  end
  root.held.module:register_forward_pre_hook(function(module)
    if rawequal(module, root.held.module) then computes(true) end
  end)
  for _, unit in ipairs(units) do around_forward(record, unit, unit.root or not reshard) end
  root.held.module:register_forward_hook(function(module)
    if rawequal(module, root.held.module) then computes(false) end
  end, { always_call = true })
end

return M
