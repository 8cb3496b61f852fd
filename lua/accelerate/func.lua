--- Functions of functions: what `torch.func` and `torch.autograd.functional` have.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

---@class accelerate.func
local M = {}

local function is_nested(value) return nested.is_container(value) and next(value) ~= nil end

-- A leaf of its own for an input; within another gradient the record of x goes on.
local function leaf_of(where, number, x, path)
  if not core._is_float(x) then
    fail("%s: input %d%s: expected a tensor of a floating type, got %s", where, number,
      path and path ~= "" and " at " .. path or "", options.show(x))
  end
  return x.requires_grad and x:view(x.shape) or x:detach():requires_grad_()
end

-- An argument, a tensor or nested tables of them, with leaves in place of its tensors; they follow
-- those in the list.
local function opened(where, number, value, leaves)
  local function open(x, path)
    leaves[#leaves + 1] = leaf_of(where, number, x, path)
    return leaves[#leaves]
  end
  if not is_nested(value) then return open(value) end
  return nested.recursively_apply(open, value, function(x) return not is_nested(x) end)
end

-- The same with the next values of the list in place of its leaves; at: how many were used.
local function closed(value, list, at)
  return nested.recursively_apply(function()
    at[1] = at[1] + 1
    return list[at[1]]
  end, value)
end

-- Values in the form of the arguments `numbers`, one for each.
local function formed(given, numbers, list)
  local at, values = { 0 }, {}
  for i, number in ipairs(numbers) do values[i] = closed(given[number], list, at) end
  return values
end

-- Inputs as a list of leaves of their own, and whether one tensor was given.
local function leaves_of(where, inputs)
  local one = core.is_tensor(inputs)
  local given = one and { inputs } or type(inputs) == "table" and lists.walked(inputs) or {}
  if #given == 0 then
    fail("%s: inputs: expected a tensor or a list of tensors, got %s", where, options.show(inputs))
  end
  local list = {}
  for i, x in ipairs(given) do
    list[i] = leaf_of(where, i, x)
  end
  return list, one
end

-- All results of fn, which are tensors.
local function results_of(where, fn, ...)
  options.value(where, "fn", fn, { "function" })
  local results = { fn(...) }
  for i = 1, math.max(1, #results) do
    if not core.is_tensor(results[i]) then
      fail("%s: expected the function to return a tensor, got %s%s", where, options.show(results[i]),
        i > 1 and (" as result %d"):format(i) or "")
    end
  end
  return results
end

local function result_of(where, fn, ...)
  local results = results_of(where, fn, ...)
  if #results > 1 then
    fail("%s: expected the function to return one tensor, got %d results", where, #results)
  end
  return results[1]
end

local function joined(a, b)
  local shape = {}
  for _, size in ipairs(a) do shape[#shape + 1] = size end
  for _, size in ipairs(b) do shape[#shape + 1] = size end
  return shape
end

-- d out / d each leaf, of shape (out's dims, the leaf's dims).
local function jacobians(out, leaves, create_graph)
  local rows = {}
  for k = 1, #leaves do rows[k] = {} end
  local flat = out:reshape(-1)
  for i = 1, out:numel() do
    local grads = out.requires_grad and { core.grad(flat[i], leaves, { retain_graph = true,
      create_graph = create_graph, allow_unused = true }) } or {}
    for k, leaf in ipairs(leaves) do rows[k][i] = grads[k] or core.zeros_like(leaf) end
  end
  local list = {}
  for k, leaf in ipairs(leaves) do
    local shape = joined(out.shape, leaf.shape)
    list[k] = #rows[k] > 0 and core.stack(rows[k], 1):reshape(shape)
      or core.zeros(shape, { dtype = leaf.dtype, device = leaf.device })
  end
  return list
end

-- Raises where a result does not depend on an input, for the option strict.
local function check_used(where, out, leaves, number)
  local grads = out.requires_grad and out:numel() > 0
    and { core.grad(out:sum(), leaves, { retain_graph = true, allow_unused = true }) } or {}
  for k = 1, #leaves do
    if not grads[k] then
      fail("%s: strict: result %d of the function does not depend on input %d", where, number, k)
    end
  end
end

-- vectorize says how PyTorch computes; it changes nothing here.
local GRAPH = { create_graph = { "boolean", default = false }, strict = { "boolean", default = false },
  vectorize = { "boolean", default = false } }

--- The Jacobian of fn at inputs: of a tensor a tensor of shape (dims of the result, dims of the
--- input), of a list one value for each. It takes a backward pass for each element of the result.
--- Where fn returns several tensors there is one value for each of them: the Jacobian, or for a
--- list of inputs the list of Jacobians.
---@param fn fun(...: accelerate.Tensor): accelerate.Tensor
---@param inputs accelerate.Tensor|accelerate.Tensor[]
---@param opts? { create_graph: boolean, strict: boolean, vectorize: boolean } create_graph: the
---  Jacobian can be differentiated; strict: an input that fn does not use is an error, not zeros
---@return accelerate.Tensor ...
function M.jacobian(fn, inputs, opts)
  local o = options.check("jacobian", opts, GRAPH)
  return core.enable_grad(function()
    local leaves, one = leaves_of("jacobian", inputs)
    local results, found = results_of("jacobian", fn, unpack(leaves)), {}
    for i, out in ipairs(results) do
      if o.strict then check_used("jacobian", out, leaves, i) end
      found[i] = jacobians(out, leaves, o.create_graph)
    end
    if #found == 1 then return unpack(found[1]) end
    for i, list in ipairs(found) do found[i] = one and list[1] or list end
    return unpack(found)
  end)
end

-- The numbers of the arguments to differentiate in, and whether one alone was given.
local function numbers_of(where, o)
  local given = o.argnums or o.argnum
  if type(given) == "number" then return { given }, true end
  if #given == 0 then fail("%s: argnum: expected a number or a list of numbers, got {}", where) end
  for _, v in ipairs(given) do
    options.value(where, "an entry of argnum", v, { "integer", min = 1 })
  end
  return given, false
end

-- The option argnum: a number, a list of numbers, or a table of options.
local function read_argnum(where, argnum, schema)
  if type(argnum) == "table" and argnum[1] ~= nil then argnum = { argnum = argnum } end
  return options.check(where, options.gather(where, { "argnum" }, argnum), schema)
end

local ARGNUM = { argnum = { "integer|list", default = 1, min = 1 },
  argnums = { "integer|list", optional = true, min = 1 } }

--- A function that gives the Jacobian of fn in its first argument (or that of a number from 1; of a
--- list of numbers one value for each); it can be differentiated. An argument may be nested tables
--- of tensors, as parameters by name: the Jacobian has their form; fn's result may be, too: each of
--- its tensors becomes a Jacobian. Another name of it is jacfwd: both take a backward pass for each
--- element of the result.
---@param fn fun(...: any): any
---@param argnum? integer|integer[]
---@return fun(...: any): any ...
function M.jacrev(fn, argnum)
  local numbers, one = numbers_of("jacrev", read_argnum("jacrev", argnum, ARGNUM))
  options.value("jacrev", "fn", fn, { "function" })
  return function(...)
    local given, n, leaves = { ... }, select("#", ...), {}
    return core.enable_grad(function()
      for _, number in ipairs(numbers) do
        given[number] = opened("jacrev", number, given[number], leaves)
      end
      local results = { fn(unpack(given, 1, n)) }
      local several = not one and #results == 1 and core.is_tensor(results[1])
      for i = 1, math.max(1, #results) do
        results[i] = nested.recursively_apply(function(out)
          local values = formed(given, numbers, jacobians(out, leaves, true))
          return one and values[1] or values
        end, results[i], nil, "jacrev: the function's result")
      end
      return unpack(several and results[1] or results)
    end)
  end
end

M.jacfwd = M.jacrev

--- The Hessian of fn, which gives one number, at one input: a tensor of the input's dims twice. At
--- a list of inputs: a list for each, of the derivatives of its gradient by each. Without an input:
--- a function of the input, which can be differentiated; the input may be parameters by name, whose
--- Hessian has a table by name for each, and fn may give several numbers, whose dims come first.
---@param fn fun(...: accelerate.Tensor): accelerate.Tensor
---@param input? accelerate.Tensor|accelerate.Tensor[]
---@param opts? { create_graph: boolean, strict: boolean, vectorize: boolean }
---@return accelerate.Tensor|accelerate.Tensor[][]|function
function M.hessian(fn, input, opts)
  if input == nil and opts == nil then
    options.value("hessian", "fn", fn, { "function" })
    local whole = M.jacrev(M.jacrev(fn))
    return function(x, ...)
      if is_nested(x) and x[1] ~= nil then return M.hessian(fn, x, { create_graph = true }) end
      return whole(x, ...)
    end
  end
  local o = options.check("hessian", opts, GRAPH)
  return core.enable_grad(function()
    local leaves, one = leaves_of("hessian", input)
    local out = result_of("hessian", fn, unpack(leaves))
    if out:numel() ~= 1 then
      fail("hessian: expected the function to return one number, got %s", options.show(out))
    end
    if o.strict then check_used("hessian", out, leaves, 1) end
    local grads = out.requires_grad
      and { core.grad(out:sum(), leaves, { create_graph = true, allow_unused = true }) } or {}
    local rows = {}
    for k, leaf in ipairs(leaves) do
      rows[k] = jacobians(grads[k] or core.zeros_like(leaf), leaves, o.create_graph)
    end
    return one and rows[1][1] or rows
  end)
end

--- fn's result, and a function that maps a gradient of the result to those of the inputs, which
--- have their form.
---@param fn fun(...: any): accelerate.Tensor
---@param ... any tensors, or nested tables of them
---@return accelerate.Tensor, fun(gradient: accelerate.Tensor): ...
function M.vjp(fn, ...)
  local given, numbers, leaves = { ... }, {}, {}
  if #given == 0 then fail("vjp: expected at least one input") end
  return core.enable_grad(function()
    for k = 1, #given do numbers[k], given[k] = k, opened("vjp", k, given[k], leaves) end
    local out = result_of("vjp", fn, unpack(given))
    return out, function(gradient)
      local grads = { core.grad(out, leaves, { grad_outputs = gradient, retain_graph = true,
        create_graph = core.is_grad_enabled(), allow_unused = true }) }
      for k, leaf in ipairs(leaves) do grads[k] = grads[k] or core.zeros_like(leaf) end
      return unpack(formed(given, numbers, grads))
    end
  end)
end

-- The tensors of tangents, in the order of the leaves of the inputs.
local function tangents_of(inputs, tangents)
  local list = {}
  local function walk(x, t, path)
    if is_nested(x) then
      for _, key in ipairs(ordered.keys(x)) do
        walk(x[key], type(t) == "table" and t[key] or nil, path .. "." .. tostring(key))
      end
      return
    end
    if not core.is_tensor(t) or not lists.same(t.shape, x.shape) then
      fail("jvp: tangent %s: expected a tensor of shape %s, as its input, got %s", path, lists.shape_text(x),
        options.show(t))
    end
    list[#list + 1] = t
  end
  for i, x in ipairs(inputs) do walk(x, tangents[i], tostring(i)) end
  return list
end

--- fn's result at the inputs, and its derivative along the tangents, by two backward passes.
---@param fn fun(...: any): accelerate.Tensor
---@param inputs accelerate.Tensor|any[] a tensor, or a list of fn's arguments: tensors, or nested
---  tables of them
---@param tangents accelerate.Tensor|any[] of the inputs' form and shapes
---@return accelerate.Tensor, accelerate.Tensor
function M.jvp(fn, inputs, tangents)
  return core.enable_grad(function()
    local given, leaves = {}, {}
    if core.is_tensor(inputs) then inputs = { inputs } end
    options.value("jvp", "inputs", inputs, { "list" })
    if core.is_tensor(tangents) then tangents = { tangents } end
    options.value("jvp", "tangents", tangents, { "list" })
    if #tangents ~= #inputs then fail("jvp: %d inputs, but %d tangents", #inputs, #tangents) end
    for k, x in ipairs(inputs) do given[k] = opened("jvp", k, x, leaves) end
    tangents = tangents_of(given, tangents)
    local out = result_of("jvp", fn, unpack(given))
    if not out.requires_grad then return out, core.zeros_like(out) end
    local seed = core.zeros_like(out):requires_grad_() -- the first pass is linear in it
    local grads = { core.grad(out, leaves,
      { grad_outputs = seed, create_graph = true, allow_unused = true }) }
    local along
    for k = 1, #leaves do
      if grads[k] and grads[k].requires_grad then
        local part = (grads[k] * tangents[k]):sum()
        along = along and along + part or part
      end
    end
    if not along then return out, core.zeros_like(out) end
    return out, core.grad(along, seed, { create_graph = true, allow_unused = true }) or core.zeros_like(out)
  end)
end

local AUX = { argnum = ARGNUM.argnum, argnums = ARGNUM.argnums, has_aux = { "boolean", default = false } }

--- A function that gives the gradient of fn, which gives one number, in its first argument (or that
--- of a number from 1; of a list of numbers the list of gradients). An argument may be nested
--- tables of tensors, as parameters by name; its gradient has their form. With has_aux fn's other
--- results follow it.
---@param fn fun(...: any): accelerate.Tensor
---@param argnum? integer|integer[]|{ argnum: integer|integer[], has_aux: boolean } argnums is
---  another name of argnum
---@return fun(...: accelerate.Tensor): accelerate.Tensor
function M.grad(fn, argnum)
  local o = read_argnum("grad", argnum, AUX)
  local both = M.grad_and_value(fn, o)
  if o.has_aux then
    return function(...)
      local function without_value(g, _, ...) return g, ... end
      return without_value(both(...))
    end
  end
  return function(...) return (both(...)) end
end

--- Likewise, with fn's result as a second value.
---@param fn fun(...: accelerate.Tensor): accelerate.Tensor
---@param argnum? integer|integer[]|{ argnum: integer|integer[], has_aux: boolean }
---@return fun(...: accelerate.Tensor): accelerate.Tensor, accelerate.Tensor
function M.grad_and_value(fn, argnum)
  local o = read_argnum("grad_and_value", argnum, AUX)
  local numbers, one = numbers_of("grad", o)
  return function(...)
    local given, n, leaves = { ... }, select("#", ...), {}
    return core.enable_grad(function()
      for _, number in ipairs(numbers) do given[number] = opened("grad", number, given[number], leaves) end
      options.value("grad", "fn", fn, { "function" })
      local results = { fn(unpack(given, 1, n)) }
      local out = results[1]
      if not core.is_tensor(out) or out:numel() ~= 1 then
        fail("grad: expected the function to return one number, got %s", options.show(out))
      end
      local grads = out.requires_grad
        and { core.grad(out:sum(), leaves, { create_graph = true, allow_unused = true }) } or {}
      for i, leaf in ipairs(leaves) do grads[i] = grads[i] or core.zeros_like(leaf) end
      grads = formed(given, numbers, grads)
      local grad = one and grads[1] or grads
      if o.has_aux then return grad, unpack(results) end
      return grad, out
    end)
  end
end

for _, part in ipairs { "mapping", "modules" } do
  for name, fn in pairs(require("accelerate.func." .. part)) do M[name] = fn end
end

return require("accelerate.utils.properties").strict("accelerate.func", M)
