--- Optimizers and schedulers that scripts write.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local Optimizer = require "accelerate.optim.optimizer"
local LRScheduler = require("accelerate.optim.lr_scheduler.base").LRScheduler
local TableOptimizer = require "accelerate.optim.tables"

local fail = options.fail

--- The base of optimizers that scripts derive from Optimizer: their options are what `defaults`
--- names, and `state` holds what they put there.
---@class accelerate.optim.CustomOptimizer : accelerate.optim.TableOptimizer
local Custom = class("Optimizer", TableOptimizer)

Custom._kind, Custom._schema = "custom", {}

-- A parameter's table is made when it is first read, as PyTorch's is.
local Fresh = {}
function Fresh.__index(state, p)
  local kept = {}
  if core.is_tensor(p) then rawset(state, p, kept) end
  return kept
end

function Custom:_begin()
  self.state = setmetatable({}, Fresh)
end

local function scalar(value)
  return core.is_tensor(value) and value:numel() == 1 and value:item() or value
end

-- Every option is one that the class itself reads.
function Custom:_checked(given)
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    fail("%s: the defaults must be a table, got %s", self.__name, options.show(given))
  end
  local made = {}
  for name, value in next, given do made[name] = lists.copied(value) end
  if made.lr ~= nil then
    made.lr = options.value(self.__name, "option 'lr'", scalar(made.lr), { "number" })
  end
  return made
end

function Custom:_group_schema() return {} end

-- A script's step works on complex parameters as they are.
function Custom:_real(p) return p end

function Custom:_own_entries() return {} end

function Custom:_has_state()
  for _, kept in next, self.state do
    if next(kept) ~= nil then return true end
  end
  return false
end

function Custom:_kept(group, index)
  local kept = rawget(self.state, group.params[index])
  return kept and next(kept) ~= nil and kept or nil
end

function Custom:_check_entry(entry, _, number)
  if type(entry) ~= "table" then
    fail("%s:load_state_dict: the state of parameter %d must be a table, got %s", self.__name, number,
      options.show(entry))
  end
end

function Custom:_check_saved() end

function Custom:_read(entry) return entry end

-- The step is a count, whatever the parameter's type is.
function Custom:_load(items, commit)
  TableOptimizer._load(self, items, commit)
  for _, item in ipairs(items) do
    local step = item.entry.step
    if step ~= nil then self.state[item.p].step = core.is_tensor(step) and core.keep(step:clone()) or step end
  end
  setmetatable(self.state, Fresh)
end

function Custom:_merged(_, saved)
  local merged = {}
  for name, value in next, saved do
    if name ~= "params" then merged[name] = lists.copied(value) end
  end
  return self:_checked(merged)
end

--- Updates the parameters once: the business of the class.
function Custom:step()
  fail("%s: the class has no method step, which updates the parameters", self.__name)
end

--- Makes a class of optimizers: `local Plain = optim.class("Plain")`. Its init calls
--- `optim.Optimizer.init(self, params, defaults)`, with the options' names and defaults; its step
--- goes through self.param_groups. self.state[p] is a table for what the class keeps of a
--- parameter; it is saved and loaded. With a base, a class of optimizers derived from another one,
--- or of schedulers: `optim.class("Warmup", optim.lr_scheduler.LRScheduler)`, which calls
--- `LRScheduler.init(self, optimizer, last_epoch)` and defines get_lr.
---@param name string what print and messages call it
---@param base? table default optim.Optimizer
---@return table Class
local function make(name, base)
  if type(name) ~= "string" or name == "" then
    fail("optim.class: expected a name, got %s", options.show(name))
  end
  if base == nil or base == Optimizer then base = Custom end
  if not class.derives(base, Optimizer) and not class.derives(base, LRScheduler) then
    fail("optim.class: the base of '%s' must be a class of optimizers or of schedulers, got %s", name,
      class.itself(base) and tostring(base) or options.show(base))
  end
  return class.open(name, base)
end

return { class = make }
