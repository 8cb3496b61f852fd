--- Gradients: what `torch.autograd` has, also as `tensor.autograd`.
local core = require "accelerate.core"
local calls = require "accelerate.autograd.calls"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local scope = require "accelerate.utils.scope"

local fail = options.fail

---@class accelerate.autograd
---@field grad function `tensor.grad(outputs, inputs, { grad_outputs, retain_graph, create_graph,
---  only_inputs, allow_unused, materialize_grads })`
---@field Function function `tensor.Function { forward, backward, setup_context }`: a differentiable
---  function
---@field no_grad function `no_grad(fn, ...)`
---@field enable_grad function `enable_grad(fn, ...)`
---@field set_grad_enabled function `set_grad_enabled(on)`, or `set_grad_enabled(on, fn, ...)`
---@field inference_mode function `no_grad` under another name; `inference_mode(false, fn, ...)` is
---  `enable_grad`
---@field once_differentiable fun(backward: function): function makes a backward function of
---  tensor.Function that must not be differentiated itself: a pass that records (create_graph)
---  raises when it comes to its gradients
local M = {
  grad = calls.grad, Function = calls.Function, no_grad = core.no_grad,
  enable_grad = core.enable_grad, set_grad_enabled = calls.set_grad_enabled,
  inference_mode = calls.inference_mode, once_differentiable = calls.once_differentiable,
}

local function list_of(where, name, value)
  if core.is_tensor(value) then return { value } end
  local given = value
  value = type(value) == "table" and lists.walked(value) or {}
  if #value == 0 then
    fail("%s: %s: expected a tensor or a list of tensors, got %s", where, name, options.show(given))
  end
  for i, t in ipairs(value) do
    if not core.is_tensor(t) then
      fail("%s: %s, entry %d: expected a tensor, got %s", where, name, i, options.show(t))
    end
  end
  return value
end

local ANY, FLAG = { "any", optional = true }, { "boolean", optional = true }
local BACKWARD = { tensors = ANY, grad_tensors = ANY, retain_graph = FLAG, create_graph = FLAG, inputs = ANY }

-- Adds the gradients of total to those of the inputs alone.
local function backward_to(total, inputs, o)
  local list, seen = {}, {}
  for i, x in ipairs(inputs) do
    if not x.requires_grad then
      fail("backward: inputs, entry %d: expected a tensor that requires a gradient, got %s", i,
        options.show(x))
    end
    if not seen[x] then list[#list + 1], seen[x] = x, true end
  end
  local grads = { core.grad(total, list, { retain_graph = o.retain_graph, create_graph = o.create_graph,
    allow_unused = true }) }
  local function add()
    for i, x in ipairs(list) do
      local g = grads[i]
      if g then
        g = x.grad and x.grad + g or g:clone() -- several inputs may have one tensor as gradient
        if x.is_leaf then x.grad = g else core._keep_grad(x, g) end
      end
    end
  end
  if o.create_graph then add() else core.no_grad(add) end
end

--- Adds the gradients of the sum of tensors to their leaves, or to the tensors in `inputs` alone,
--- which need not be leaves; no hook for sums of gradients runs then. By name, too: backward {
--- tensors = loss, inputs = x }.
---@param tensors accelerate.Tensor|accelerate.Tensor[]
---@param grad_tensors? accelerate.Tensor|accelerate.Tensor[] gradients of the tensors; those of one
---  element need none
---@param ... any retain_graph, create_graph by position, or a table of these and inputs (a tensor
---  or a list of tensors)
function M.backward(tensors, grad_tensors, ...)
  local o = calls.read("backward", { "tensors", "grad_tensors", "retain_graph", "create_graph" }, 1, BACKWARD,
    tensors, grad_tensors, ...)
  tensors = list_of("backward", "tensors", o.tensors)
  local seeds = o.grad_tensors ~= nil and list_of("backward", "grad_tensors", o.grad_tensors) or {}
  local inputs = o.inputs ~= nil and list_of("backward", "inputs", o.inputs)
  local total
  for i, t in ipairs(tensors) do
    if not seeds[i] and t:numel() ~= 1 then
      fail("backward: tensor %d has %d elements: give its gradient in grad_tensors", i, t:numel())
    end
    if seeds[i] and not lists.same(seeds[i].shape, t.shape) then
      fail("backward: grad_tensors, entry %d: expected shape %s, as its tensor's, got %s", i,
        lists.shape_text(t), lists.shape_text(seeds[i]))
    end
    local part = t
    if seeds[i] then part = t * seeds[i]:conj() end
    if part:is_complex() and seeds[i] then part = core.real(part) end
    part = part:sum()
    total = total and total + part or part
  end
  if inputs then return backward_to(total, inputs, o) end
  total:backward { retain_graph = o.retain_graph, create_graph = o.create_graph }
end

--- Runs fn(...) and returns what it returns. A backward pass inside that makes a NaN raises at once
--- and names the op whose gradient it is. Each gradient is waited for: passes are slow.
---@param fn function
---@param ... any
---@return any ...
function M.detect_anomaly(fn, ...)
  options.value("detect_anomaly", "fn", fn, { "function" })
  local former = core._detect_anomaly(true)
  return scope.run(nil, function() core._detect_anomaly(former) end, fn, ...)
end

--- Turns the watch of detect_anomaly on or off; returns the former setting. With a function: runs
--- fn(...) with the watch on or off, and returns what it returns.
---@param on boolean
---@param ... any fn and its arguments
---@return any ...
function M.set_detect_anomaly(on, ...)
  options.value("set_detect_anomaly", "on", on, { "boolean" })
  if select("#", ...) == 0 then return core._detect_anomaly(on) end
  if not scope.callable((...)) then scope.refuse("set_detect_anomaly", "argument 2 (fn)", (...)) end
  local former = core._detect_anomaly(on)
  return scope.run(nil, function() core._detect_anomaly(former) end, ...)
end

-- ---- gradients against finite differences

local CHECK = {
  eps = { "number", default = 1e-6, above = 0 },
  atol = { "number", default = 1e-5, min = 0 },
  rtol = { "number", default = 1e-3, min = 0 },
  raise_exception = { "boolean", default = true },
}

local function has_gradient(x) return core.is_tensor(x) and (core._is_float(x) or x:is_complex()) end

local function floating_results(where, fn, inputs)
  local list = {}
  for _, out in ipairs { fn(unpack(inputs)) } do
    if has_gradient(out) then list[#list + 1] = out end
  end
  if #list == 0 then fail("%s: the function gave no tensor of a floating or complex type", where) end
  return list
end

local PARTS = { ", real part", ", imaginary part" }

-- The real numbers of the results: { values, of a vector, result =, part = }, one for the real and
-- one for the imaginary part of complex results.
local function real_parts(results)
  local list = {}
  for number, out in ipairs(results) do
    if out:is_complex() then
      list[#list + 1] = { core.real(out):reshape(-1), result = number, part = PARTS[1] }
      list[#list + 1] = { core.imag(out):reshape(-1), result = number, part = PARTS[2] }
    else
      list[#list + 1] = { out:reshape(-1), result = number, part = "" }
    end
  end
  return list
end

-- The tensor with a last dim for the real and the imaginary part, where it has these.
local function as_real(x) return x:is_complex() and core.view_as_real(x) or x end

-- The element of x at a place of the flat order, counted from 0, as a view of 0 dims.
local function cell_of(x, place)
  for d = x.ndim, 1, -1 do
    local size = x.shape[d]
    x, place = x:select(d, place % size + 1), math.floor(place / size)
  end
  return x
end

-- The slope of each real number of the results in a real number of an input, by central
-- differences.
local function slopes(where, fn, inputs, cell, eps)
  local value = cell:item()
  local function results_at(v)
    cell:fill_(v)
    local list = {}
    for k, part in ipairs(real_parts(floating_results(where, fn, inputs))) do
      list[k] = part[1]:detach():double()
    end
    return list
  end
  local above, below = results_at(value + eps), results_at(value - eps)
  cell:fill_(value)
  for k = 1, #above do above[k] = (above[k] - below[k]) / (2 * eps) end
  return above
end

local function check_input(where, fn, inputs, number, o)
  local input = inputs[number]
  local parts = real_parts(floating_results(where, fn, inputs))
  local data = as_real(input.data)
  local analytic = {} -- by part: (numbers of the part, numbers of the input)
  for k, part in ipairs(parts) do
    local rows, flat_out = {}, part[1]
    for i = 1, flat_out:numel() do
      local g = flat_out.requires_grad
        and core.grad(flat_out[i], input, { retain_graph = true, allow_unused = true }) or nil
      rows[i] = as_real(g or core.zeros_like(input)):double():reshape(-1)
    end
    analytic[k] = #rows > 0 and core.stack(rows, 1) or core.zeros(0, data:numel())
  end
  return core.no_grad(function()
    for j = 1, data:numel() do
      for k, numeric in ipairs(slopes(where, fn, inputs, cell_of(data, j - 1), o.eps)) do
        local column = analytic[k]:select(2, j)
        local off = (column - numeric):abs():gt(numeric:abs() * o.rtol + o.atol):logical_or(column:isnan())
        if off:any():item() then
          local i = off:to("uint8"):argmax():item() + 1
          local element, part = j, ""
          if input:is_complex() then element, part = math.ceil(j / 2), PARTS[(j - 1) % 2 + 1] end
          return ("the gradient of result %d (element %d%s) in input %d (element %d%s) is %.8g, finite " ..
            "differences give %.8g"):format(parts[k].result, i, parts[k].part, number, element, part,
            column[i]:item(), numeric[i]:item())
        end
      end
    end
  end)
end

-- Raises where the elements of a leaf cannot be changed one by one.
local function check_leaf(number, input)
  if not input.is_leaf then
    fail("gradcheck: input %d: expected a leaf, got %s, the result of %s", number, options.show(input),
      tostring(input.grad_fn))
  end
  local strides = { input:stride() }
  if type(strides[1]) == "table" then strides = strides[1] end
  for d, size in ipairs(input.shape) do
    if size > 1 and strides[d] == 0 then
      fail("gradcheck: input %d: expected elements of their own, but those along dim %d of %s are one; " ..
        "take x:contiguous()", number, d, options.show(input))
    end
  end
end

--- Compares the gradients of fn(inputs...) with finite differences. Inputs that require a gradient
--- are looked at; they should be float64 or complex128. Of complex numbers the slopes are those of
--- the real and the imaginary parts, along 1 and along i.
---@param fn fun(...: accelerate.Tensor): ...
---@param inputs accelerate.Tensor|accelerate.Tensor[]
---@param opts? { eps: number, atol: number, rtol: number, raise_exception: boolean } distance of
---  the differences 1e-6; allowed error atol 1e-5 + rtol 1e-3 of the slope; raise_exception =
---  false: return false
---@return boolean, string? # true, or false and what differs
function M.gradcheck(fn, inputs, opts)
  local o = options.check("gradcheck", opts, CHECK)
  options.value("gradcheck", "fn", fn, { "function" })
  inputs = list_of("gradcheck", "inputs", inputs)
  local looked
  for number, input in ipairs(inputs) do
    if input.requires_grad then
      looked = true
      check_leaf(number, input)
      local message = check_input("gradcheck", fn, inputs, number, o)
      if message and o.raise_exception then fail("gradcheck: %s", message) end
      if message then return false, message end
    end
  end
  if not looked then fail("gradcheck: no input requires a gradient") end
  return true
end

--- Compares second gradients of fn(inputs...) with finite differences of the first.
---@param fn fun(...: accelerate.Tensor): ...
---@param inputs accelerate.Tensor|accelerate.Tensor[]
---@param opts? { eps: number, atol: number, rtol: number, raise_exception: boolean }
---@return boolean, string?
function M.gradgradcheck(fn, inputs, opts)
  inputs = list_of("gradgradcheck", "inputs", inputs)
  local wanted = {}
  for _, input in ipairs(inputs) do if input.requires_grad then wanted[#wanted + 1] = input end end
  if #wanted == 0 then fail("gradgradcheck: no input requires a gradient") end
  return M.gradcheck(function(...)
    local given = { ... }
    return core.enable_grad(function()
      local total
      for k, values in ipairs(real_parts(floating_results("gradgradcheck", fn, given))) do
        local out = values[1]
        local weight = (core.arange(out:numel(), { device = out.device }):to(out.dtype) * 1.7 + k):sin() + 0.3
        local part = (out * weight):sum()
        total = total and total + part or part
      end
      local grads = { core.grad(total, wanted, { create_graph = true, allow_unused = true }) }
      local list = {}
      for i = 1, #wanted do if grads[i] then list[#list + 1] = grads[i] end end
      return unpack(list)
    end)
  end, inputs, opts)
end

-- ---- torch.autograd.functional

local functional = {}

local function leaves_of(where, inputs)
  local leaves = {}
  for i, x in ipairs(list_of(where, "inputs", inputs)) do
    if not core._is_float(x) then
      fail("%s: inputs, entry %d: expected a tensor of a floating type, got %s", where, i, options.show(x))
    end
    leaves[i] = x.requires_grad and x:view(x.shape) or x:detach():requires_grad_()
  end
  return leaves
end

-- The vector v for tensors: of their shapes; 1 where there is one number and none is given.
local function vectors_of(where, v, tensors)
  if v == nil and #tensors == 1 and tensors[1]:numel() == 1 then return { core.ones_like(tensors[1]) } end
  local list = list_of(where, "v", v)
  if #list ~= #tensors then fail("%s: v: expected %d tensors, got %d", where, #tensors, #list) end
  for i, t in ipairs(tensors) do
    if not lists.same(list[i].shape, t.shape) then
      fail("%s: v, entry %d: expected shape %s, got %s", where, i, lists.shape_text(t),
        lists.shape_text(list[i]))
    end
  end
  return list
end

local function gradients(outs, leaves, seeds, create_graph)
  local used, weights = {}, {}
  for i, out in ipairs(outs) do
    if core.is_tensor(out) and out.requires_grad then
      used[#used + 1], weights[#weights + 1] = out, seeds[i]
    end
  end
  local grads = #used > 0 and { core.grad(used, leaves, { grad_outputs = weights,
    create_graph = create_graph, allow_unused = true }) } or {}
  for k, leaf in ipairs(leaves) do grads[k] = grads[k] or core.zeros_like(leaf) end
  return grads
end

-- As PyTorch has it: one tensor for one input, a list for a list.
local function as_given(inputs, grads) return core.is_tensor(inputs) and grads[1] or grads end

local function number_at(where, fn, leaves)
  local out = fn(unpack(leaves))
  if not core.is_tensor(out) or out:numel() ~= 1 then
    fail("%s: expected the function to return one number, got %s", where, options.show(out))
  end
  return out
end

function functional.vjp(fn, inputs, v)
  options.value("vjp", "fn", fn, { "function|table" })
  return core.enable_grad(function()
    local leaves = leaves_of("vjp", inputs)
    local out = fn(unpack(leaves))
    if not core.is_tensor(out) then
      fail("vjp: expected the function to return a tensor, got %s", options.show(out))
    end
    local grads = gradients({ out }, leaves, vectors_of("vjp", v, { out }), false)
    return out:detach(), as_given(inputs, grads)
  end)
end

-- The Hessian of fn times v, which it also is from the left.
local function hessian_product(where, fn, inputs, v)
  options.value(where, "fn", fn, { "function|table" })
  return core.enable_grad(function()
    local leaves = leaves_of(where, inputs)
    local out = number_at(where, fn, leaves)
    v = vectors_of(where, v, leaves)
    local first = gradients({ out }, leaves, { core.ones_like(out) }, true)
    return out:detach(), as_given(inputs, gradients(first, leaves, v, false))
  end)
end
function functional.vhp(fn, inputs, v) return hessian_product("vhp", fn, inputs, v) end
function functional.hvp(fn, inputs, v) return hessian_product("hvp", fn, inputs, v) end

--- Whole Jacobians and Hessians of accelerate.func, and PyTorch's `vjp(fn, inputs, v)`,
--- `vhp(fn, inputs, v)` and `hvp(fn, inputs, v)`: fn's result, and the product with its Jacobian or
--- Hessian.
M.functional = functional
for _, name in ipairs { "jacobian", "hessian", "jvp" } do
  functional[name] = require("accelerate.func")[name]
end
properties.strict("accelerate.autograd.functional", functional)

return properties.strict("accelerate.autograd", M)
