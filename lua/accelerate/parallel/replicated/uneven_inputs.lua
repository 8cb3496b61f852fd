--- Ranks with different numbers of batches: Accelerator:join_uneven_inputs.
---
--- Before each reduction the ranks exchange a short message. A rank that still has batches sends
--- which reduction it is about to make. A rank that is done sends "done", and takes part in that
--- reduction without gradients of its own. When all ranks send "done", it is over. (PyTorch's Join
--- counts the ranks in this way.)
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local kinds = require "accelerate.accelerator.types"
local loaders = require "accelerate.data_loader.prepare"
local operations = require "accelerate.collectives.operations"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local records = require "accelerate.parallel.record"
local scope = require "accelerate.utils.scope"
local windows = require "accelerate.parallel.windows"

local fail = options.fail

local M = {}

---@class accelerate.UnevenInputs
---@field models accelerate.nn.Module[]
---@field root integer first rank that takes part in the current reduction with gradients of its own
---@field latest integer? a rank that continued after another one was done
local UnevenInputs = class.open("UnevenInputs")
class.optional(UnevenInputs, "latest")

function UnevenInputs:init(models) self.models, self.root = models, 0 end

-- The reductions that a rank that is done takes part in.
local REDUCTIONS = { reduce = records.reduce, divide = windows.divide }

-- prefix of the messages, which objects that a script gathers do not have
local MARK, DONE = "join: ", "join: done"

--- Exchanges what every rank is about to do. Returns the common text; nil when all ranks are done.
---@param mine string? nil: this rank is done
local function exchange(self, mine)
  local all, common, root, done = core.dist.all_gather_bytes(mine and MARK .. mine or DONE), nil, nil, false
  for i, text in ipairs(all) do
    if text:sub(1, #MARK) ~= MARK then
      fail("join_uneven_inputs: rank %d gathers objects while this rank %s; only reductions of gradients " ..
        "go on when a rank is done", i - 1,
        mine and "is about to " .. mine or "is done")
    end
    text = text:sub(#MARK + 1)
    if text == "done" then
      done = true
    elseif common and text ~= common then
      fail("join_uneven_inputs: rank %d is about to %s, rank %d to %s: ranks that have batches must do " ..
        "the same", root, common,
        i - 1, text)
    elseif not common then
      common, root = text, i - 1
    end
  end
  self.root = root or 0
  if common and done then self.latest = root end
  return common
end

--- Announces a reduction of a model to the other ranks.
---@param kind "reduce"|"divide"
function UnevenInputs:announce(kind, model)
  if self.shadowing then return end
  for i, known in ipairs(self.models) do
    if known == model then
      exchange(self, ("%s model %d"):format(kind, i))
      return
    end
  end
  fail("join_uneven_inputs: the gradients of a prepared model that is not among the joinables are " ..
    "reduced inside; add it to them")
end

--- Takes part in the other ranks' reductions until they are done.
local function shadow(self)
  self.shadowing = true
  local kept = {} -- unused gradients of this rank, which must not be reduced
  for _, model in ipairs(self.models) do
    records.each_parameter(model, function(p)
      local grad = p.grad
      if grad then kept[p], p.grad = grad:clone(), nil end
    end)
  end
  while true do
    local what = exchange(self)
    if not what then break end
    local kind, index = what:match("^(%a+) model (%d+)$")
    local model = self.models[tonumber(index)]
    windows.drop_window(model)
    REDUCTIONS[kind](model)
    windows.drop_window(model)
    records.each_parameter(model, function(p) p.grad = nil end)
  end
  for p, grad in pairs(kept) do p.grad = grad end
end

-- Gives every rank the state of a rank that finished last. Otherwise the optimizers of ranks that
-- finished early would be behind, and so would the models of later epochs. Loss scales that differ
-- would weigh the ranks' gradients, and each rank would divide their mean by its own.
local function catch_up(self, accelerator)
  local root = self.latest
  if not root then return end
  for _, model in ipairs(self.models) do records.share_from(model, root) end
  for _, list in ipairs { accelerator._optimizers, accelerator._schedulers, { accelerator._scaler } } do
    for _, object in ipairs(list) do
      local here = core.dist.rank() == root
      local text = core.dist.broadcast_bytes(here and operations.serialize(object:state_dict(), "the state")
        or nil, root)
      if not here then object:load_state_dict(operations.deserialize(text)) end
    end
  end
end

local function check_models(joinables)
  if kinds.is_model(joinables) then joinables = { joinables } end
  if type(joinables) ~= "table" or getmetatable(joinables) ~= nil or #joinables == 0 then
    fail("join_uneven_inputs: expected a list of prepared models, got %s", options.show(joinables))
  end
  for i, model in ipairs(joinables) do
    if not kinds.is_model(model) or not records.of(model) then
      fail("join_uneven_inputs: entry %d of the joinables must be a prepared model, got %s", i,
        kinds.is_model(model) and "one that is not prepared" or options.show(model))
    end
  end
  return joinables
end

local function run(accelerator, models, fn, ...)
  if records.uneven_inputs then fail("join_uneven_inputs: called inside another join_uneven_inputs") end
  if accelerator._has_lomo_optimizer then
    fail("join_uneven_inputs: a prepared LOMO optimizer exchanges gradients inside backward, which ranks " ..
      "that are done cannot follow")
  end
  local self = UnevenInputs(models)
  return scope.with(records, "uneven_inputs", self, function(...)
    return (function(...)
      shadow(self)
      catch_up(self, accelerator)
      return ...
    end)(fn(...))
  end, ...)
end

-- Parts of a cut model are on ranks that would be done: no rank can go on without them.
local function refuse_cut(models)
  for _, model in ipairs(models) do
    local one = records.of(model)
    if one.plan then
      fail("join_uneven_inputs: the model is cut over ranks (%s), and no rank can train it without the " ..
        "others; "
        .. "use even_batches = true", one.plan.name)
    end
  end
end

--- See Accelerator:join_uneven_inputs.
---@param accelerator accelerate.Accelerator
---@param even boolean?
function M.join(accelerator, joinables, even, fn, ...)
  local models = check_models(joinables)
  refuse_cut(models)
  local undo = function() end
  if even ~= nil then
    local refused
    undo, refused = loaders.override_even_batches(accelerator._dataloaders, even)
    if refused > 0 then
      notice.main("join_uneven_inputs: even_batches is for loaders that read a data set with get(i) by " ..
        "ranks; %d of the prepared ones %s",
        refused, refused == 1 and "is dispatched and left as it is" or "are dispatched and left as they are")
    end
  else
    even = accelerator.even_batches
  end
  return scope.run(nil, undo, function(...)
    if even then return fn(...) end
    return run(accelerator, models, fn, ...)
  end, ...)
end

return M
