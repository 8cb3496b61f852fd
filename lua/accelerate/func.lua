--- Functions of functions: what `torch.func` and `torch.autograd.functional` have.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local fail = options.fail

---@class accelerate.func
local M = {}

-- Inputs as a list of leaves of their own, and whether one tensor was given.
local function leaves_of(where, inputs)
  local one = core.is_tensor(inputs)
  if not one and (type(inputs) ~= "table" or #inputs == 0) then
    fail("%s: inputs: expected a tensor or a list of tensors, got %s", where, options.show(inputs))
  end
  local list = {}
  for i, x in ipairs(one and { inputs } or inputs) do
    if not core._is_float(x) then
      fail("%s: input %d: expected a tensor of a floating type, got %s", where, i, options.show(x))
    end
    -- within another gradient the record of x goes on
    list[i] = x.requires_grad and x:view(x.shape) or x:detach():requires_grad_()
  end
  return list, one
end

-- All results of fn, which are tensors.
local function results_of(where, fn, ...)
  options.value(where, "fn", fn, { "function|table" })
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
--- list of numbers one value for each); it can be differentiated. Another name of it is jacfwd:
--- both take a backward pass for each element of the result.
---@param fn fun(...: accelerate.Tensor): accelerate.Tensor
---@param argnum? integer|integer[]
---@return fun(...: accelerate.Tensor): accelerate.Tensor
function M.jacrev(fn, argnum)
  local numbers, one = numbers_of("jacrev", read_argnum("jacrev", argnum, ARGNUM))
  return function(...)
    local given, n, chosen = { ... }, select("#", ...), {}
    for i, number in ipairs(numbers) do chosen[i] = given[number] or false end
    return M.jacobian(function(...)
      for i, number in ipairs(numbers) do given[number] = (select(i, ...)) end
      return fn(unpack(given, 1, n))
    end, one and chosen[1] or chosen, { create_graph = true })
  end
end

M.jacfwd = M.jacrev

--- The Hessian of fn, which gives one number, at one input: a tensor of the input's dims twice. At
--- a list of inputs: a list for each, of the derivatives of its gradient by each. Without an input:
--- a function of the input, which can be differentiated.
---@param fn fun(...: accelerate.Tensor): accelerate.Tensor
---@param input? accelerate.Tensor|accelerate.Tensor[]
---@param opts? { create_graph: boolean, strict: boolean, vectorize: boolean }
---@return accelerate.Tensor|accelerate.Tensor[][]|function
function M.hessian(fn, input, opts)
  if input == nil and opts == nil then
    options.value("hessian", "fn", fn, { "function|table" })
    return function(x) return M.hessian(fn, x, { create_graph = true }) end
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

--- fn's result, and a function that maps a gradient of the result to those of the inputs.
---@param fn fun(...: accelerate.Tensor): accelerate.Tensor
---@param ... accelerate.Tensor
---@return accelerate.Tensor, fun(gradient: accelerate.Tensor): ...
function M.vjp(fn, ...)
  local given = { ... }
  return core.enable_grad(function()
    local leaves = leaves_of("vjp", given)
    local out = result_of("vjp", fn, unpack(leaves))
    return out, function(gradient)
      local grads = { core.grad(out, leaves, { grad_outputs = gradient, retain_graph = true,
        create_graph = core.is_grad_enabled(), allow_unused = true }) }
      for k, leaf in ipairs(leaves) do grads[k] = grads[k] or core.zeros_like(leaf) end
      return unpack(grads)
    end
  end)
end

--- fn's result at the inputs, and its derivative along the tangents, by two backward passes.
---@param fn fun(...: accelerate.Tensor): accelerate.Tensor
---@param inputs accelerate.Tensor|accelerate.Tensor[]
---@param tangents accelerate.Tensor|accelerate.Tensor[] of the inputs' shapes
---@return accelerate.Tensor, accelerate.Tensor
function M.jvp(fn, inputs, tangents)
  return core.enable_grad(function()
    local leaves = leaves_of("jvp", inputs)
    if core.is_tensor(tangents) then tangents = { tangents } end
    options.value("jvp", "tangents", tangents, { "list" })
    if #tangents ~= #leaves then fail("jvp: %d inputs, but %d tangents", #leaves, #tangents) end
    for k, leaf in ipairs(leaves) do
      if not core.is_tensor(tangents[k]) or not lists.same(tangents[k].shape, leaf.shape) then
        fail("jvp: tangent %d: expected a tensor of shape %s, as its input, got %s", k,
          lists.shape_text(leaf), options.show(tangents[k]))
      end
    end
    local out = result_of("jvp", fn, unpack(leaves))
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
--- of a number from 1; of a list of numbers the list of gradients). With has_aux fn's other results
--- follow it.
---@param fn fun(...: accelerate.Tensor): accelerate.Tensor
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
    local given, n, chosen = { ... }, select("#", ...), {}
    for i, number in ipairs(numbers) do chosen[i] = given[number] or false end
    return core.enable_grad(function()
      local leaves = leaves_of("grad", chosen)
      for i, number in ipairs(numbers) do given[number] = leaves[i] end
      options.value("grad", "fn", fn, { "function|table" })
      local results = { fn(unpack(given, 1, n)) }
      local out = results[1]
      if not core.is_tensor(out) or out:numel() ~= 1 then
        fail("grad: expected the function to return one number, got %s", options.show(out))
      end
      local grads = out.requires_grad
        and { core.grad(out:sum(), leaves, { create_graph = true, allow_unused = true }) } or {}
      for i, leaf in ipairs(leaves) do grads[i] = grads[i] or core.zeros_like(leaf) end
      local grad = one and grads[1] or grads
      if o.has_aux then return grad, unpack(results) end
      return grad, out
    end)
  end
end

-- ---- vmap

-- chunk_size and randomness say how PyTorch computes: fn is called for one position at a time here,
-- and draws anew each time.
local VMAP = { in_dims = { "integer|table", default = 1 }, out_dims = { "integer|table", default = 1 },
  chunk_size = { "integer", optional = true, min = 1 },
  randomness = { "string", default = "different", one_of = { "error", "different" } } }

local function dim_at(dims, i)
  if type(dims) ~= "table" then return dims end
  return dims[i] or nil
end

--- A function that calls fn once for each position of dim 1 of its tensors and stacks the results.
--- It is a loop: fn runs as often as the dim is long.
---@param fn fun(...): ...
---@param opts? { in_dims: integer|table, out_dims: integer|table, chunk_size: integer,
---  randomness: string } dims that are mapped: one for all arguments, or a list; false in the list:
---  the argument is given as it is. chunk_size changes nothing
---@return fun(...): ...
function M.vmap(fn, opts)
  local o = options.check("vmap", opts, VMAP)
  options.value("vmap", "fn", fn, { "function|table" })
  return function(...)
    local given, n, size = { ... }, select("#", ...), nil
    for i = 1, n do
      local dim = dim_at(o.in_dims, i)
      if dim and core.is_tensor(given[i]) then
        local x = given[i]
        if dim == 0 or dim > x.ndim or -dim > x.ndim then
          fail("vmap: in_dims: dim %d of argument %d, which has shape %s", dim, i, lists.shape_text(x))
        end
        local length = x:size(dim)
        if size and size ~= length then
          fail("vmap: argument %d has %d positions to map over, those before it %d", i, length, size)
        end
        size = length
      end
    end
    if not size then fail("vmap: no argument is a tensor to map over") end
    if size == 0 then fail("vmap: there is no position to map over") end
    local columns, count = {}, 0
    for at = 1, size do
      local args = {}
      for i = 1, n do
        local dim = dim_at(o.in_dims, i)
        args[i] = dim and core.is_tensor(given[i]) and given[i]:select(dim, at) or given[i]
      end
      local results = { fn(unpack(args, 1, n)) }
      count = #results
      for k, result in ipairs(results) do
        if not core.is_tensor(result) then
          fail("vmap: expected the function to return tensors, result %d is %s", k, options.show(result))
        end
        columns[k] = columns[k] or {}
        columns[k][at] = result
      end
    end
    local stacked = {}
    for k = 1, count do stacked[k] = core.stack(columns[k], dim_at(o.out_dims, k) or 1) end
    return unpack(stacked, 1, count)
  end
end

-- ---- modules

-- The names of values, in order; a list of tables is one table.
local function joined_values(values)
  local all, names = {}, {}
  for _, list in ipairs(values[1] ~= nil and values or { values }) do
    options.value("functional_call", "values", list, { "table" })
    for name, value in next, list do
      if type(name) ~= "string" or not core.is_tensor(value) then
        fail("functional_call: values: expected tensors by name, got %s = %s", options.show(name),
          options.show(value))
      end
      if all[name] == nil then names[#names + 1] = name end
      all[name] = value
    end
  end
  table.sort(names)
  return all, names
end

--- Calls the module with other parameters and buffers, which need not be leaves. Those that are not
--- named stay its own; a tensor that the module has under several names is replaced under each.
---@param module accelerate.nn.Module
---@param values table<string, accelerate.Tensor>|table[] by the names of named_parameters and
---  named_buffers, or a list of such tables
---@param ... any the module's arguments
---@return any ...
function M.functional_call(module, values, ...)
  if type(module) ~= "table" or type(module.get_submodule) ~= "function" then
    fail("functional_call: module: expected a module, got %s", options.show(module))
  end
  options.value("functional_call", "values", values, { "table" })
  local former, all, names = {}, joined_values(values)
  local function swap()
    local new, named = {}, {} -- the tensors that go -> those that come; modules -> keys that were named
    for _, name in ipairs(names) do
      local path, key = name:match "^(.*)%.([^.]+)$"
      local owner = module:get_submodule(path or "")
      key = key or name
      local old = owner._values[key]
      if not core.is_tensor(old) then
        fail("functional_call: the module has no parameter or buffer %s", name)
      end
      named[owner] = named[owner] or {}
      named[owner][key] = all[name]
      new[old] = all[name]
    end
    for _, owner in ipairs(module:modules()) do
      for key, old in next, owner._values do
        local value = named[owner] and named[owner][key] or core.is_tensor(old) and new[old]
        if value then former[#former + 1] = { owner, key, old, value } end
      end
    end
    for _, entry in ipairs(former) do entry[1]._values[entry[2]] = entry[4] end
  end
  local function restore()
    for i = #former, 1, -1 do former[i][1]._values[former[i][2]] = former[i][3] end
  end
  local args, n = { ... }, select("#", ...)
  return require("accelerate.utils.scope").run(function() end, restore, function()
    swap()
    return module(unpack(args, 1, n))
  end)
end

return M
