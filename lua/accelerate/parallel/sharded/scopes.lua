--- Scopes in which values that are cut over ranks are whole: summon_full_params and
--- GatheredParameters, under the names of FSDP and DeepSpeed.
local core = require "accelerate.core"
local Module = require("accelerate.nn").Module
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local parallel = require "accelerate.parallel"
local scope = require "accelerate.utils.scope"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local SUMMON = { writeback = { "boolean", default = true } }

local function summoned(model, opts, fn, ...)
  return parallel.summon(model, options.check("summon_full_params", opts, SUMMON).writeback, nil, fn, ...)
end

--- Runs fn(...) with the whole values of a prepared model on every rank, and returns what it
--- returns. All ranks call it, and none may leave early. What a rank writes into its own part of a
--- parameter stays; so all ranks make the same changes. Does nothing else where values are not cut.
---@param model accelerate.nn.Module
---@param opts { writeback: boolean? }? writeback: default true; false: changes are dropped
---@param fn function
---@param ... any what fn gets
---@return any ...
function M.summon_full_params(model, ...)
  if not class.is(model, Module) then
    fail("summon_full_params: expected a module, got %s", options.show(model))
  end
  return summoned(model, scope.arguments("summon_full_params", SUMMON, ...))
end

local GATHERED = { modifier_rank = { "integer", optional = true, min = 0 },
  fwd_module = { "any", optional = true }, enabled = { "boolean", default = true } }

-- The parameters as a list.
local function list_of(params)
  options.value("GatheredParameters", "params", params, { "tensor|list" })
  if core.is_tensor(params) then return { params } end
  for i, p in ipairs(params) do
    if not core.is_tensor(p) then
      fail("GatheredParameters: entry %d of params must be a tensor, got %s", i, options.show(p))
    end
  end
  return params
end

-- fn(...), and then the values of one rank on all, of parameters that are whole anyhow; those that
-- are cut follow when their parts are taken back.
local function edited(list, from, fn, ...)
  local results = scope.pack(fn(...))
  for _, p in ipairs(from and list or {}) do
    if not parallel.is_cut(p) then core.dist.broadcast(p:detach(), from) end
  end
  return unpack(results, 1, results.n)
end

local function gathered(params, opts, fn, ...)
  local o = options.check("GatheredParameters", opts, GATHERED)
  local list, ranks = list_of(params), state.PartialState().num_processes
  if o.modifier_rank and o.modifier_rank >= ranks then
    fail("GatheredParameters: modifier_rank = %d: ranks are 0 to %d", o.modifier_rank, ranks - 1)
  end
  if not o.enabled or ranks == 1 then return fn(...) end
  return parallel.gather(list, o.modifier_rank ~= nil, o.modifier_rank, edited, list, o.modifier_rank, fn,
    ...)
end

--- Runs fn(...) with the whole values of some parameters on every rank, and returns what it
--- returns. All ranks call it, and none may leave early. With modifier_rank all ranks have what
--- that rank wrote into them, afterwards; without, changes of what is cut are dropped.
---@param params accelerate.Tensor|accelerate.Tensor[]
---@param opts { modifier_rank: integer?, fwd_module: table?, enabled: boolean? }? fwd_module:
---  without effect; enabled: default true
---@param fn function
---@param ... any what fn gets
---@return any ...
function M.GatheredParameters(params, ...)
  local opts, fn = ...
  if not scope.callable(opts) then options.value("GatheredParameters", "fn", fn, { "function" }) end
  return gathered(params, scope.arguments("GatheredParameters", GATHERED, ...))
end

return M
