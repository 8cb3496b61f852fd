--- The values of a sharded model's units come with the forward of the unit and go with it.
local core = require "accelerate.core"

local M = {}

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
---  backward; the values of the model's own unit are kept, since its backward begins next
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
