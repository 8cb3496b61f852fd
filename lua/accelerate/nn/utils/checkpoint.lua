--- nn.utils.checkpoint trades time for memory: intermediate results of a function are not saved for
--- backward, but computed again there.
---
---   function Net:forward(x)
---     for _, block in self.blocks:iter() do x = nn.utils.checkpoint(block, x) end
---     return self.head(x)
---   end

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail = options.fail

-- ---- state that the second run restores ---------------------------------------------------------

local function generators_of(list)
  local all = { core.default_generator() }
  for i, g in ipairs(list or {}) do all[i + 1] = g end
  return all
end

local function states_of(generators)
  local states = {}
  for i, g in ipairs(generators) do states[i] = g:get_state() end
  return states
end

local function set_states(generators, states)
  for i, g in ipairs(generators) do g:set_state(states[i]) end
end

-- Runs fn with the random numbers and the automatic casting of the first run, and restores the
-- present ones however it ends.
local function with_saved_rng(saved, fn)
  local now = saved.states and states_of(saved.generators)
  local region = core.autocast_enter(saved.autocast, saved.dtype, saved.cache)
  if now then set_states(saved.generators, saved.states) end
  local ok, err = xpcall(fn, scope.traced)
  if now then set_states(saved.generators, now) end
  core.autocast_leave(region)
  if not ok then error(err, 0) end
end

-- ---- the function on the tape -------------------------------------------------------------------

local floating = core._is_float

local function text_of(t) return ("%s [%s]"):format(t.dtype, table.concat(t.shape, ", ")) end

-- Describes results without their memory, to check that the second run's are alike.
local function describe(values)
  local list = { n = values.n }
  for i = 1, values.n do list[i] = core.is_tensor(values[i]) and text_of(values[i]) or "no tensor" end
  return list
end

local function compare(first, second)
  if first.n ~= second.n then
    fail("checkpoint: the function gave %d results, and %d when it ran again for the gradient", first.n,
      second.n)
  end
  for i = 1, first.n do
    if first[i] ~= second[i] then
      fail("checkpoint: result %d was %s, and %s when the function ran again for the gradient; it must " ..
        "do the same both times", i, first[i], second[i])
    end
  end
end

-- Runs the function again on detached arguments, recording gradients, and then its backward pass.
-- Leaves inside get their gradients; the arguments' gradients are returned.
local function again(saved, args, grads)
  local given, wanted = { n = args.n }, {}
  for i = 1, args.n do
    local v = args[i]
    given[i] = v
    if core.is_tensor(v) then
      given[i] = v:detach()
      if saved.needs[i] then
        given[i].requires_grad = true
        wanted[i] = given[i]
      end
    end
  end
  core.enable_grad(function()
    core.scope(function()
      local results
      with_saved_rng(saved, function() results = scope.pack(saved.fn(unpack(given, 1, given.n))) end)
      compare(saved.results, describe(results))
      local roots, seeds, k = {}, {}, 0
      for i = 1, results.n do
        if core.is_tensor(results[i]) and floating(results[i]) then
          k = k + 1
          if results[i].requires_grad then
            roots[#roots + 1] = results[i]
            seeds[#seeds + 1] = grads[k]
          end
        end
      end
      if #roots > 0 then core._backward(roots, seeds) end
    end)
  end)
  local found = { n = args.n }
  for i = 1, args.n do found[i] = wanted[i] and wanted[i].grad end
  return found
end

local Checkpoint = core.Function {
  name = "checkpoint",
  forward = function(ctx, saved, _, ...)
    local args = scope.pack(...)
    saved.needs = {}
    for i = 1, args.n do saved.needs[i] = ctx.needs_input_grad[i + 2] end
    saved.n, saved.plain = args.n, {}
    local keep = {}
    for i = 1, args.n do
      if core.is_tensor(args[i]) then keep[i] = args[i] else saved.plain[i] = args[i] end
    end
    ctx.saved = saved
    ctx:save_for_backward(unpack(keep, 1, args.n))
    local results = scope.pack(core.scope(saved.fn, ...))  -- frees the intermediate results at once
    for i = 1, results.n do
      for k = 1, args.n do  -- a result that is an argument must not share the argument's place in the graph
        if core.is_tensor(results[i]) and rawequal(results[i], args[k]) then
          results[i] = results[i]:detach()
        end
      end
    end
    saved.results = describe(results)
    return unpack(results, 1, results.n)
  end,
  backward = function(ctx, ...)
    local saved = ctx.saved
    if core.is_grad_enabled() then
      fail("checkpoint: create_graph is not available through a checkpoint: what is computed again ends " ..
        "at its arguments; run that part without one")
    end
    if core._backward_collects() then
      fail("checkpoint: tensor.grad is not available through a checkpoint, whose parameters get their " ..
        "gradients while it is computed again; call backward")
    end
    local args = scope.pack(ctx:saved_tensors())
    args.n = saved.n
    for i = 1, saved.n do
      if args[i] == nil then args[i] = saved.plain[i] end
    end
    local found = again(saved, args, { ... })
    return nil, nil, unpack(found, 1, found.n)
  end,
}

-- A tensor with history inside a table would keep it, and the second run's backward pass would
-- enter it.
local function check_tables(...)
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if type(value) == "table" and getmetatable(value) == nil then
      for _, t in next, value do  -- any one will do
        if core.is_tensor(t) and t.grad_fn then
          fail("checkpoint: argument %d is a table with a tensor that has a history; give such tensors " ..
            "as arguments of their own", i)
        end
      end
    end
  end
end

local FLAG = { "boolean", optional = true }

-- The first two say what is done; the others are PyTorch's and say how.
local OPTIONS = {
  preserve_rng_state = { "boolean", default = true }, generators = { "list", optional = true },
  use_reentrant = FLAG, early_stop = FLAG, debug = FLAG, determinism_check = { "string", optional = true },
  context_fn = { "any", optional = true },
}

-- Takes a table of options off the end of the arguments: one whose keys are all options' names.
local function with_options(...)
  local args = scope.pack(...)
  local last = args[args.n]
  if type(last) ~= "table" or getmetatable(last) ~= nil or next(last) == nil then return {}, args end
  for name in next, last do
    if not OPTIONS[name] then return {}, args end
  end
  args[args.n] = nil
  args.n = args.n - 1
  return last, args
end

---@class accelerate.nn.utils.checkpoint
local checkpoint = {}

--- Returns fn(...). Intermediate results are freed at once and computed again in backward, with the
--- same random numbers (dropout) and automatic casting, so gradients have the same bits. Parameters
--- that fn uses get gradients as usual. fn must compute equal results both times and should have no
--- side effects. Checkpoints nest. Pass results of earlier ops to fn as arguments: if fn took them
--- as upvalues, its second backward pass would consume their graph. A table at the end whose keys
--- are options' names holds checkpoint_with's options, and PyTorch's use_reentrant, early_stop,
--- debug and determinism_check, which change nothing.
---@param fn function|accelerate.nn.Module
---@param ... any its arguments
---@return any ... its results
function checkpoint.checkpoint(fn, ...)
  local opts, args = with_options(...)
  return checkpoint.with(opts, fn, unpack(args, 1, args.n))
end

--- Calls `checkpoint.checkpoint(fn, ...)` with options: `checkpoint.with({ generators = { g } },
--- fn, ...)`.
---@param opts { preserve_rng_state: boolean, generators: accelerate.Generator[] }
---  preserve_rng_state (default true): restore the states of the default generator and of
---  `generators`, the generators that dropouts have of their own
---@param fn function|accelerate.nn.Module
function checkpoint.with(opts, fn, ...)
  local o = options.check("checkpoint", opts, OPTIONS)
  if o.context_fn ~= nil then
    fail("checkpoint: context_fn is not there: enter what is needed in the function itself")
  end
  if type(fn) ~= "function"
    and not (type(fn) == "table" and getmetatable(fn) and getmetatable(fn).__call) then
    fail("checkpoint: expected a function or a module first, got %s", options.show(fn))
  end
  if not core.is_grad_enabled() then return fn(...) end
  check_tables(...)
  local saved = { fn = type(fn) == "function" and fn or function(...) return fn(...) end }
  saved.autocast, saved.dtype, saved.cache = core.autocast_state()
  if o.preserve_rng_state then
    saved.generators = generators_of(o.generators)
    saved.states = states_of(saved.generators)
  end
  -- A tensor that requires a gradient stands in for the parameters that fn uses, which are not
  -- among the arguments.
  return Checkpoint(saved, core.zeros(1, { requires_grad = true }), ...)
end

--- Runs a Sequential (or a list of functions) in `segments` parts of about equal length, and
--- checkpoints all but the last one.
---@param functions accelerate.nn.Sequential|function[]
---@param segments integer
---@param ... any arguments of the first function; at the end, options as checkpoint has them
function checkpoint.sequential(functions, segments, ...)
  local list = {}
  if type(functions) == "table" and getmetatable(functions) == nil then list = functions
  elseif type(functions) == "table" and functions.iter then
    for i, module in functions:iter() do list[i] = module end
  else fail("checkpoint_sequential: expected a Sequential or a list of functions, got %s",
    options.show(functions)) end
  options.value("checkpoint_sequential", "segments", segments,
    { "integer", min = 1, max = math.max(#list, 1) })
  local function part(first, last)
    return function(...)
      local x = scope.pack(...)
      for i = first, last do x = scope.pack(list[i](unpack(x, 1, x.n))) end
      return unpack(x, 1, x.n)
    end
  end
  local opts, x = with_options(...)
  local size, at = math.floor(#list / segments), 1
  for _ = 1, segments - 1 do
    x = scope.pack(checkpoint.with(opts, part(at, at + size - 1), unpack(x, 1, x.n)))
    at = at + size
  end
  return part(at, #list)(unpack(x, 1, x.n))
end

return checkpoint
