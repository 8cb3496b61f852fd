--- What is kept by optimizers that step in Lua: plain tables by parameter, in `state`. Methods that
--- take the place of accelerate.optim.Optimizer's.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local cut = require "accelerate.optim.cut"
local parameter = require "accelerate.nn.parameter"
local parts = require "accelerate.nn.parts"
local Optimizer = require "accelerate.optim.optimizer"

---@class accelerate.optim.TableOptimizer : accelerate.optim.Optimizer
---@field state table<accelerate.Tensor, table>
local TableOptimizer = class("TableOptimizer", Optimizer)
TableOptimizer.__newindex = nil -- `state` is a plain field: the tables themselves are kept

TableOptimizer._row = { states = {}, hyper = {} }

function TableOptimizer:_begin() self.state = {} end

function TableOptimizer:_needs() return 2 ^ #self._row.states - 1 end

function TableOptimizer:_settle() end

function TableOptimizer:_real(p) return p end

function TableOptimizer:_has_state() return next(self.state) ~= nil end

function TableOptimizer:_kept(group, index) return self.state[group.params[index]] end

-- A copy of what is kept, of p's type and on its device.
local function copied(value, place)
  if core.is_tensor(value) then return core.keep(value:detach():to(place):clone()) end
  if type(value) ~= "table" then return value end
  local copy = {}
  for name, part in next, value do copy[name] = copied(part, place) end
  return copy
end

-- What is kept of p, with this rank's elements of those states that have one for each of p's.
local function own(self, p, kept)
  if not cut.part(p) then return kept end
  local list = {}
  for name, value in next, kept do list[name] = value end
  for _, row in ipairs(self._row.states) do
    if row.form == "each" and kept[row.name] then list[row.name] = cut.own(p, kept[row.name]) end
  end
  return list
end

function TableOptimizer:_load(items, commit)
  local state = {}
  for _, item in ipairs(items) do
    state[item.p] = copied(own(self, item.p, item.kept), { dtype = parts.of(item.p).dtype,
      device = item.p.device })
  end
  commit()
  self.state = state
end

function TableOptimizer:_relayout()
  for p, kept in next, self.state do
    local fitting = own(self, p, kept)
    for name, value in next, fitting do
      if core.is_tensor(value) and (value.device ~= p.device or not rawequal(value, kept[name])) then
        self.state[p] = copied(fitting, { device = p.device })
        break
      end
    end
  end
end

--- Drops the gradients, or with set_to_none = false fills them with zeros.
---@param set_to_none? boolean|{ set_to_none: boolean } default true
function TableOptimizer:zero_grad(set_to_none)
  for _, group in ipairs(self.param_groups) do parameter.zero_grad(group.params, set_to_none) end
end

function TableOptimizer:_skips_on_device() return false end

return TableOptimizer
