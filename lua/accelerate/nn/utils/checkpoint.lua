--- nn.utils.checkpoint trades time for memory: intermediate results of a function are not saved for
--- backward, but computed again there.
---
---   function Net:forward(x)
---     for _, block in self.blocks:iter() do x = nn.utils.checkpoint(block, x) end
---     return self.head(x)
---   end

local core = require "accelerate.core"
local modes = require "accelerate.utils.modes"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail = options.fail

-- ---- state that the second run restores

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
  for i, g in ipairs(generators) do core._move_generator(g, states[i]) end
end

-- Runs fn with the random numbers and the automatic casting of the first run, and restores the
-- present ones however it ends.
local function with_saved_rng(saved, fn)
  local now = saved.states and states_of(saved.generators)
  local region = core.autocast_enter(saved.autocast, saved.dtype, saved.cache)
  local float8 = modes.float8
  modes.float8 = saved.float8
  if now then set_states(saved.generators, saved.states) end
  local ok, err = xpcall(fn, scope.traced)
  if now then set_states(saved.generators, now) end
  core.autocast_leave(region)
  modes.float8 = float8
  if not ok then error(err, 0) end
end

-- A tensor that requires a gradient and gets none stands in for the parameters that fn uses, which
-- are not among the arguments.
local standing

local function stand_in()
  standing = standing or core.keep(core.zeros(1, { device = "cpu", requires_grad = true }))
  return standing
end

-- ---- the function on the tape

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

-- The first run. It is recorded, as the second one is: which kernel an op takes, and with it what
-- dropout draws, may follow from what requires a gradient. The detached results let the record go.
local function first_run(fn, ...)
  local results = scope.pack(fn(...))
  for i = 1, results.n do
    if core.is_tensor(results[i]) then results[i] = results[i]:detach() end
  end
  return unpack(results, 1, results.n)
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
    local results = scope.pack(core.enable_grad(core.scope, first_run, saved.fn, ...))
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

-- ---- arguments that are tables

-- A value as a form: its tensors are numbers of a list, so that they become arguments of their own.
-- They are then kept until backward, and get their gradients. `seen`: forms of tables met before.
local function form_of(value, list, seen)
  if core.is_tensor(value) then
    list[#list + 1] = value
    return { at = #list }
  end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return { plain = value } end
  if seen[value] then return seen[value] end
  local entries = {}
  seen[value] = { entries = entries }
  for key, inner in next, value do entries[key] = form_of(inner, list, seen) end
  return seen[value]
end

local function value_of(form, list, made)
  if form.at then return list[form.at] end
  if not form.entries then return form.plain end
  if made[form] then return made[form] end
  local value = {}
  made[form] = value
  for key, inner in next, form.entries do value[key] = value_of(inner, list, made) end
  return value
end

local function is_plain(value) return type(value) == "table" and getmetatable(value) == nil end

-- fn and its arguments, with the tensors of plain tables among them as arguments.
local function opened(fn, ...)
  local any = false
  for i = 1, select("#", ...) do any = any or is_plain((select(i, ...))) end
  if not any then return fn, scope.pack(...) end
  local forms, list, seen = {}, {}, {}
  local n = select("#", ...)
  for i = 1, n do forms[i] = form_of((select(i, ...)), list, seen) end
  list.n = #list
  return function(...)
    local tensors, given, made = { ... }, {}, {}
    for i = 1, n do given[i] = value_of(forms[i], tensors, made) end
    return fn(unpack(given, 1, n))
  end, list
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
--- side effects. Checkpoints nest. Pass results of earlier ops to fn as arguments, which may stand
--- in tables: if fn took them as upvalues, its second backward pass would consume their graph. A
--- table at the end whose keys are options' names holds checkpoint_with's options, and PyTorch's
--- use_reentrant, early_stop, debug and determinism_check, which change nothing.
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
  local run, args = opened(type(fn) == "function" and fn or function(...) return fn(...) end, ...)
  local saved = { fn = run }
  saved.autocast, saved.dtype, saved.cache = core.autocast_state()
  saved.float8 = modes.float8
  if o.preserve_rng_state then
    saved.generators = generators_of(o.generators)
    saved.states = states_of(saved.generators)
  end
  return Checkpoint(saved, stand_in(), unpack(args, 1, args.n))
end

-- The forward of a checkpointed module -> { own = the one that the object had itself, or nil }. A
-- copy of the module has it, too.
local changed = setmetatable({}, { __mode = "k" })

local function former_of(module)
  local own = rawget(module, "_values").forward
  return own and changed[own]
end

--- Checkpoints every forward pass of a module from now on; false: no longer.
---@param module accelerate.nn.Module
---@param on boolean
function checkpoint.module(module, on)
  local former, forward = former_of(module), module.forward
  if (former ~= nil) == on then return end
  if not on then
    module.forward = former.own
    return
  end
  local function checkpointed(...)
    if not core.is_grad_enabled() then return forward(...) end
    return checkpoint.checkpoint(forward, ...)
  end
  changed[checkpointed] = { own = rawget(module, "_values").forward }
  module.forward = checkpointed
end

--- Returns whether `checkpoint.module` is on for a module.
---@param module accelerate.nn.Module
---@return boolean
function checkpoint.is_on(module) return former_of(module) ~= nil end

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
