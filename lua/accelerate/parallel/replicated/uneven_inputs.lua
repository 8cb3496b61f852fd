--- Ranks with different numbers of batches: Accelerator:join_uneven_inputs. A rank that is done
--- takes part in the other ranks' reductions, without gradients, until all are done; which ones
--- these are, ranks announce (announcements).
local announcements = require "accelerate.parallel.replicated.announcements"
local core = require "accelerate.core"
local operations = require "accelerate.collectives.operations"
local options = require "accelerate.utils.options"
local records = require "accelerate.parallel.record"
local windows = require "accelerate.parallel.windows"

local fail = options.fail

local M = {}

-- Calls fn(parameter) for the parameters of a prepared model.
local function each_parameter(model, fn)
  for _, flat in ipairs(records.of(model).flats) do
    for _, p in ipairs(flat.params) do fn(p) end
  end
end

--- Takes part in the other ranks' reductions until they are done.
local function follow(self)
  self.follows = true
  local kept = {} -- unused gradients of this rank, which must not be reduced
  for _, model in ipairs(self.models) do
    each_parameter(model, function(p)
      local grad = p.grad
      if grad then kept[p], p.grad = grad:clone(), nil end
    end)
  end
  while true do
    local what = announcements.exchange(self)
    if not what then break end
    local kind, index = what:match("^(%a+) model (%d+)$")
    local model = self.models[tonumber(index)]
    local record = records.of(model)
    windows.drop_window(model)
    record.strategy[kind](record.strategy, record, model)
    windows.drop_window(model)
    each_parameter(model, function(p) p.grad = nil end)
  end
  for p, grad in pairs(kept) do p.grad = grad end
end

-- Gives every rank the current parameters and buffers of rank `root`.
local function share_from(model, root)
  core.no_grad(function()
    each_parameter(model, function(p)
      local received = p:detach():clone()
      core.dist.broadcast(received, root)
      p:copy_(received) -- not into the buffer: the parameter's version must change
    end)
    for _, p in ipairs(model:parameters()) do
      if not core.flat_of(p) then core.dist.broadcast(p.data, root) end
    end
    for _, buffer in ipairs(model:buffers()) do core.dist.broadcast(buffer, root) end
  end)
end

-- Gives every rank the state of a rank that finished last. Otherwise the optimizers of ranks that
-- finished early would be behind, and so would the models of later epochs. Loss scales that differ
-- would weigh the ranks' gradients, and each rank would divide their mean by its own.
local function catch_up(self, objects)
  local root = self.latest
  if not root then return end
  for _, model in ipairs(self.models) do share_from(model, root) end
  for _, object in ipairs(objects) do
    local here = core.dist.rank() == root
    local text = core.dist.broadcast_bytes(here and operations.serialize(object:state_dict(), "the state")
      or nil, root)
    if not here then object:load_state_dict(operations.deserialize(text)) end
  end
end

-- Parts of a cut model are on ranks that would be done: no rank can go on without them.
local function check(models)
  for i, model in ipairs(models) do
    local record = records.of(model)
    if not record then
      fail("join_uneven_inputs: entry %d of the joinables must be a prepared model, " ..
        "got one that is not prepared", i)
    end
    if not record.strategy.replicas then
      fail("join_uneven_inputs: under %s ranks step parts of the model, and no rank can train it without " ..
        "the others (FSDP has no join either); use even_batches = true", record.strategy.plan.name)
    end
  end
end

--- Runs fn(...) with ranks that may run different numbers of batches, and returns what it returns.
--- At its end all ranks have the parameters of a rank that was not done first, and its state of
--- some objects.
---@param models accelerate.nn.Module[] whose gradients are reduced inside
---@param objects table[] with state_dict and load_state_dict
---@param fn function
---@return any ...
function M.join(models, objects, fn, ...)
  return announcements.run(models, function(self, ...)
    return (function(...)
      follow(self)
      catch_up(self, objects)
      return ...
    end)(fn(...))
  end, ...)
end

M.check = check

return M
