--- Accelerator:join_uneven_inputs: which models, loaders and objects take part. How ranks go on
--- with one another is accelerate.parallel's business. Methods of accelerate.Accelerator.
local kinds = require "accelerate.accelerator.types"
local loaders = require "accelerate.data_loader.prepare"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local parallel = require "accelerate.parallel"
local scope = require "accelerate.utils.scope"

local fail = options.fail

---@class accelerate.Accelerator
local Accelerator = {}

local JOIN = { even_batches = { "boolean", optional = true } }

local function check_models(joinables)
  if kinds.is_model(joinables) then joinables = { joinables } end
  if type(joinables) ~= "table" or getmetatable(joinables) ~= nil or #joinables == 0 then
    fail("join_uneven_inputs: expected a list of prepared models, got %s", options.show(joinables))
  end
  for i, model in ipairs(joinables) do
    if not kinds.is_model(model) then
      fail("join_uneven_inputs: entry %d of the joinables must be a prepared model, got %s", i,
        options.show(model))
    end
  end
  parallel.check_joinable(joinables)
  return joinables
end

-- The objects whose state ranks that finished early take from a rank that did not.
local function objects_of(self)
  local list = {}
  for _, objects in ipairs { self._optimizers, self._schedulers, { self._scaler } } do
    for _, object in ipairs(objects) do list[#list + 1] = object end
  end
  return list
end

local function run(self, models, fn, ...)
  if self._has_lomo_optimizer then
    fail("join_uneven_inputs: a prepared LOMO optimizer exchanges gradients inside backward, which ranks " ..
      "that are done cannot follow")
  end
  return parallel.join(models, objects_of(self), fn, ...)
end

-- Sets even_batches of the prepared loaders. Returns the setting, and a function that restores it.
local function override(self, even)
  if even == nil then return self.even_batches, function() end end
  local undo, refused = loaders.override_even_batches(self._dataloaders, even)
  if refused > 0 then
    notice.main("join_uneven_inputs: even_batches is for loaders that read a data set with get(i) by " ..
      "ranks; %d of the prepared ones %s", refused,
      refused == 1 and "is dispatched and left as it is" or "are dispatched and left as they are")
  end
  return even, undo
end

local function join(self, joinables, opts, fn, ...)
  opts = options.check("join_uneven_inputs", opts, JOIN)
  if self._ranks == 1 then return fn(...) end
  local models = check_models(joinables)
  local even, undo = override(self, opts.even_batches)
  return scope.run(nil, undo, function(...)
    if even then return fn(...) end
    return run(self, models, fn, ...)
  end, ...)
end

--- Runs fn(...) with ranks that may have different numbers of batches, and returns what it returns.
--- Joining is on exactly when even_batches is false. A rank that is done with `fn` then takes part
--- in the gradient reductions of the others, with zeros, until all are done; means are over all
--- ranks, as before. It ends with the parameters, and the state of prepared optimizers and
--- schedulers, of a rank that was not done first. Other collectives inside `fn` must be the same on
--- all ranks.
---
--- even_batches applies to all prepared loaders that read a data set with get(i) by ranks, until
--- `fn` is done. Dispatched loaders do not support it, and one notice reports that. By default the
--- loaders keep their setting. On one process this only calls `fn`.
---@param joinables accelerate.nn.Module[]|accelerate.nn.Module the prepared models whose gradients
---  are reduced inside
---@param opts { even_batches: boolean? }?
---@param fn function
---@param ... any what fn gets
---@return any ... what fn returns
function Accelerator:join_uneven_inputs(joinables, ...)
  return join(self, joinables, scope.arguments("join_uneven_inputs", JOIN, ...))
end

return Accelerator
