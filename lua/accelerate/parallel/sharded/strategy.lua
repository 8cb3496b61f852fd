--- The strategy that cuts values, gradients or optimizer states over ranks, as a plan says. Buffers
--- that the plan leaves whole are replicated. accelerate.parallel.sharded works on the parts.
local Replicated = require "accelerate.parallel.replicated"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local pieces = require "accelerate.parallel.pieces"
local places = require "accelerate.parallel.sharded.places"
local records = require "accelerate.parallel.record"
local sharded = require "accelerate.parallel.sharded"

local fail = options.fail

---@class accelerate.Sharded: accelerate.Replicated
local Sharded = class("Sharded", Replicated)

Sharded.serves = sharded.applies

function Sharded:init(plan, handler)
  Replicated.init(self, plan, handler)
  self.replicas = false
end

function Sharded:follows() return self.ranks > 1 or places.on_host(self.plan) end

function Sharded:check_optimizer(optimizer)
  if optimizer.fuses_backward then
    fail("prepare_optimizer: %s applies each gradient inside backward, before the units of %s have " ..
      "reduced theirs, and keeps neither gradients nor states that ranks could divide; use another " ..
      "optimizer, or leave the plan out", optimizer.__name, self.plan.name)
  end
  places.check_optimizer(self.plan, optimizer)
  sharded.check_optimizer(self.plan, optimizer)
end

-- ---- preparing

function Sharded:begin(record, model)
  Replicated.begin(self, record, model)
  sharded.begin(record, model, self.plan, self.handler)
end

function Sharded:divided(record, model) return sharded.units_of(record, model) end

function Sharded:place(record, model, made)
  if record.delivers then records.watch(record) end
  sharded.cut(record, model, made)
end

-- ---- a backward pass

-- Whether gradients that are cut are delivered in a pass.
local function delivers_now(record, pass)
  return record.delivers and (pass.due and record.no_sync_depth == 0 or not record.plan.whole_in_no_sync)
end

function Sharded:begin_pass(record, pass)
  if pass.history then sharded.check_history(record) end
  record.captures, record.reduced_at = false, nil
  record.history = record.history or pass.history
  if record.delivers then sharded.expect(record, pass.alone and delivers_now(record, pass)) end
end

function Sharded:finish_pass(record, model, pass)
  if not (delivers_now(record, pass) and pass.reached) then
    return Replicated.finish_pass(self, record, model, pass)
  end
  if record.reduced_at ~= records.reached(record) then self:reduce(record, model) end -- no replay has
  return pass.due
end

function Sharded:reduce_gradients(record, model)
  if record.delivers then return sharded.reduce(record) end
  Replicated.reduce_gradients(self, record, model)
end

function Sharded:rest(record) sharded.finish(record) end

function Sharded:recorded_reduction(record, model)
  sharded.check_recorded(self.plan)
  local whole = Replicated.recorded_reduction(self, record, model)
  if not whole or not record.delivers then return whole end
  return {
    due = function() return true end,
    run = function(pass)
      sharded.expect(record, true)
      pass()
      self:reduce(record, model)
    end,
    replayed = function(reduces)
      if reduces then sharded.ignore(record) end
      whole.replayed(reduces)
      if reduces then records.untouch(record) end
    end,
  }
end

-- ---- a step

function Sharded:before_step(record) sharded.steps(record) end

function Sharded:after_step(record, groups) sharded.stepped(record, groups) end

-- ---- values

function Sharded:cuts_values() return sharded.is_cut(self.plan, "values") end

function Sharded:summon(record, write, from, fn, ...) return sharded.summon(record, write, from, fn, ...) end

function Sharded:meet(record) pieces.meet(record) end

return Sharded
