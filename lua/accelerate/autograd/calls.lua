--- Gradients under PyTorch's calls: whether they are recorded, `grad`, and functions with a
--- gradient of their own.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

-- ---- whether gradients are recorded

local function in_mode(where, on, fn, ...)
  if not scope.callable(fn) then scope.refuse(where, "argument 2 (fn)", fn) end
  return (on and core.enable_grad or core.no_grad)(fn, ...)
end

--- Says whether gradients are recorded from now on, and returns the former setting. With a
--- function: runs fn(...) in that setting, and returns what it returns.
---@param on boolean
---@param ... any fn and its arguments
---@return any ...
function M.set_grad_enabled(on, ...)
  if select("#", ...) == 0 then return core.set_grad_enabled(on) end
  options.value("set_grad_enabled", "argument 1 (on)", on, { "boolean" })
  return in_mode("set_grad_enabled", on, ...)
end

--- Runs fn(...) with nothing recorded, as no_grad; inference_mode(false, fn, ...) records, as
--- enable_grad.
---@param mode boolean|function the function, or whether nothing is recorded
---@param ... any
---@return any ...
function M.inference_mode(mode, ...)
  if type(mode) == "boolean" then return in_mode("inference_mode", not mode, ...) end
  if not scope.callable(mode) then scope.refuse("inference_mode", "argument 1 (fn)", mode) end
  return core.no_grad(mode, ...)
end

-- ---- grad

local NAMES = { "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs",
  "allow_unused",
  "is_grads_batched", "materialize_grads" }
local FLAG = { "boolean", optional = true }
local ANY = { "any", optional = true }
local GRAD = { outputs = ANY, inputs = ANY, grad_outputs = ANY,
  retain_graph = FLAG, create_graph = FLAG, only_inputs = FLAG, allow_unused = FLAG,
  is_grads_batched = FLAG, materialize_grads = FLAG }

-- A table of options: no object and no list, which may begin with a nil.
local function is_named(value)
  return type(value) == "table" and getmetatable(value) == nil
    and (next(value) == nil or type((next(value))) == "string")
end

--- Arguments as PyTorch takes them: by position, those from `least` + 1 on in a table at the end,
--- or all in one table.
---@param where string
---@param names string[] in the order of positions
---@param least integer
---@param schema table<string, table>
---@param ... any
---@return table<string, any>
function M.read(where, names, least, schema, ...)
  local given, n, found = { ... }, select("#", ...), {}
  while n > 1 and given[n] == nil do n = n - 1 end
  if n == 1 and is_named(given[1]) then return options.check(where, given[1], schema) end
  if n > least and is_named(given[n]) then
    for name, value in next, given[n] do found[name] = value end
    n = n - 1
  end
  if n > #names then fail("%s: %d arguments given, at most %d expected", where, n, #names) end
  for i = 1, n do
    local name = names[i]
    if given[i] ~= nil and found[name] ~= nil then
      fail("%s: %s is given twice, by position and by name", where, name)
    end
    if given[i] ~= nil then found[name] = given[i] end
  end
  return options.check(where, found, schema)
end

-- An object that holds tensors, a ParameterList say, as a plain list; what else is given as it is.
local function plain(value) return type(value) == "table" and lists.walked(value) or value end

--- The gradients of outputs with respect to inputs, as several values; nothing is added to `grad`
--- of leaves. By name, too: grad { outputs = u, inputs = x }.
---@param outputs accelerate.Tensor|accelerate.Tensor[]
---@param inputs accelerate.Tensor|accelerate.Tensor[]|accelerate.nn.ParameterList
---@param ... any grad_outputs (gradients of the outputs), retain_graph, create_graph, only_inputs
---  (only true), allow_unused (nil for an input that the outputs do not come from),
---  is_grads_batched (only false), materialize_grads (zeros for such an input), by position or in a
---  table at the end
---@return accelerate.Tensor ...
function M.grad(outputs, inputs, ...)
  if inputs ~= nil and select("#", ...) == 0 then return core.grad(plain(outputs), plain(inputs)) end
  local o = M.read("grad", NAMES, 2, GRAD, outputs, inputs, ...)
  if o.only_inputs == false then
    fail("grad: only_inputs must be true: use autograd.backward to add up gradients of other leaves")
  end
  if o.is_grads_batched then
    fail("grad: is_grads_batched must be false: call grad for each gradient, with retain_graph = true")
  end
  local zeros = o.materialize_grads
  if zeros and o.allow_unused == false then
    fail("grad: with materialize_grads = true allow_unused must be true or left out, got false")
  end
  o.outputs, o.inputs = plain(o.outputs), plain(o.inputs)
  local given = { grad_outputs = plain(o.grad_outputs), retain_graph = o.retain_graph,
    create_graph = o.create_graph, allow_unused = o.allow_unused or zeros }
  if not zeros then return core.grad(o.outputs, o.inputs, given) end
  local list = core.is_tensor(o.inputs) and { o.inputs } or o.inputs
  local grads = { core.grad(o.outputs, list, given) }
  for i, x in ipairs(list) do
    if not grads[i] then grads[i] = core.zeros_like(x, { requires_grad = false }) end
  end
  return unpack(grads, 1, #list)
end

-- ---- functions with a gradient of their own

-- What stands behind the gradients of a once_differentiable function.
local Once = core.Function {
  name = "once_differentiable",
  forward = function(_, x) return x end,
  backward = function()
    fail("once_differentiable: this gradient cannot be differentiated again: the backward function of its " ..
      "tensor.Function was made by once_differentiable")
  end,
}

-- What is marked must be known where the call returns, which has no context.
local function mark_non_differentiable(ctx, ...)
  for i = 1, select("#", ...) do
    local x = (select(i, ...))
    if not core.is_tensor(x) then
      fail("mark_non_differentiable: argument %d: expected a tensor, got %s", i, options.show(x))
    end
    ctx._unrecorded = ctx._unrecorded or {}
    ctx._unrecorded[x] = true
  end
end

local function set_materialize_grads(ctx, on)
  ctx._bare = not options.value("set_materialize_grads", "value", on, { "boolean" })
end

local function mark_dirty()
  fail("mark_dirty: a Function cannot write into its argument: return a new tensor in forward, and " ..
    "write x:copy_(f(x)) where it is called")
end

--- Makes a backward function of tensor.Function that must not be differentiated itself: a backward
--- pass that records (create_graph) raises when it comes to its gradients. PyTorch has it as a
--- decorator: `backward = autograd.once_differentiable(function(ctx, grad) ... end)`.
---@param backward function
---@return function
function M.once_differentiable(backward)
  options.value("once_differentiable", "backward", backward, { "function" })
  return function(ctx, ...)
    if not core.is_grad_enabled() then return backward(ctx, ...) end
    local recorded = false
    for i = 1, select("#", ...) do
      local g = (select(i, ...))
      recorded = recorded or core.is_tensor(g) and g.requires_grad
    end
    local list = ctx.saved_tensors
    for i = 1, list.n do recorded = recorded or core.is_tensor(list[i]) and list[i].requires_grad end
    local grads = scope.pack(core.no_grad(backward, ctx, ...))
    if recorded then
      local once = core.zeros(1, { requires_grad = true })
      for i = 1, grads.n do
        if core.is_tensor(grads[i]) then grads[i] = Once(grads[i], once) end
      end
    end
    return unpack(grads, 1, grads.n)
  end
end

--- A differentiable function: forward(ctx, ...) gives its results, backward(ctx, ...) gets their
--- gradients and gives those of the arguments. With setup_context(ctx, inputs, output), forward
--- gets the arguments alone, and what backward needs is kept there; inputs is a list, output the
--- result, or the list of several.
---@param definition { forward: function, backward: function, setup_context: function?, name:
---  string? }
---@return table function call it, or its `apply`
function M.Function(definition)
  if type(definition) ~= "table" then return core.Function(definition) end -- which refuses it
  local given, forward, set = {}, definition.forward, definition.setup_context
  for name, value in next, definition do given[name] = value end
  given.setup_context = nil
  options.value("Function", "option 'setup_context'", set, { "function", optional = true })
  local marked -- positions of results of the call that has just ended

  local function ended(ctx, ...)
    local list = ctx._unrecorded
    if list then
      marked = {}
      for i = 1, select("#", ...) do marked[i] = list[(select(i, ...))] end
    end
    return ...
  end
  local function set_up(ctx, inputs, ...)
    local output = ...
    if select("#", ...) ~= 1 then output = { ... } end
    set(ctx, inputs, output)
    return ended(ctx, ...)
  end
  if type(forward) == "function" then
    given.forward = function(ctx, ...)
      ctx.mark_non_differentiable, ctx.mark_dirty = mark_non_differentiable, mark_dirty
      ctx.set_materialize_grads = set_materialize_grads
      if set then return set_up(ctx, { ... }, forward(...)) end
      return ended(ctx, forward(ctx, ...))
    end
  end
  local inner = core.Function(given)
  local function finish(...)
    if not marked then return ... end
    local results, n = { ... }, select("#", ...)
    for i in pairs(marked) do results[i] = results[i]:detach() end
    marked = nil
    return unpack(results, 1, n)
  end
  local object = {}
  local function call(...)
    marked = nil
    return finish(inner(...))
  end
  -- f.apply(x) and f:apply(x) are both in use
  function object.apply(first, ...)
    if first == object then return call(...) end
    return call(first, ...)
  end
  return setmetatable(object, { __call = function(_, ...) return call(...) end })
end

return M
