--- Parameters: tensors that modules register when they are assigned to them.

local core = require "accelerate.core"
local deferred = require "accelerate.deferred"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local parameter = {}

-- The tensors made by nn.Parameter. A mark and not a type: they are ordinary tensors everywhere
-- else.
local marked = setmetatable({}, { __mode = "k" })

--- Returns whether `value` was made by nn.Parameter.
---@param value any
---@return boolean
function parameter.is(value)
  return value ~= nil and marked[value] == true
end

-- Tensors that keep their type in Module:to, whatever it converts.
local of_one_type = setmetatable({}, { __mode = "k" })

--- Marks a tensor of a module, such as the scales of encoded weights: Module:to moves it, and does
--- not convert it.
---@param t accelerate.Tensor
---@return accelerate.Tensor t
function parameter.keep_type(t)
  of_one_type[t] = true
  return t
end

--- Returns whether a tensor keeps its type in Module:to.
---@param t accelerate.Tensor
---@return boolean
function parameter.keeps_type(t) return of_one_type[t] == true end

--- Gives a copy of a tensor the tensor's marks: a parameter, a tensor that keeps its type.
---@param copy accelerate.Tensor
---@param t accelerate.Tensor
function parameter.mark_as(copy, t) marked[copy], of_one_type[copy] = marked[t], of_one_type[t] end

-- The device that init_on_device is for, whether for buffers too, and whether one is set.
local place

-- Returns a new tensor as it is to be under init_on_device.
local function placed(t)
  if place.device ~= "meta" then return t:to(place.device) end
  return deferred.on_meta(t)
end

--- Returns a buffer as it is to be under init_on_device.
---@param t accelerate.Tensor
---@return accelerate.Tensor
function parameter.buffer(t) return place and place.buffers and placed(t) or t end

--- Runs fn(...), in which parameters, and with `buffers` also buffers, are made on `device`.
---@param device string
---@param buffers boolean
---@param fn function
---@param ... any
function parameter.on_device(device, buffers, fn, ...)
  local former = place
  return scope.run(function() place = { device = device, buffers = buffers } end,
    function() place = former end, fn, ...)
end

local OPTIONS = { requires_grad = { "boolean", default = true } }

--- A leaf with the elements of `data` (shared with it) that becomes a parameter of the module it is
--- assigned to.
---@param data accelerate.Tensor
---@param opts? { requires_grad: boolean } default true
---@return accelerate.Tensor
function parameter.new(data, opts)
  local o = options.check("Parameter", opts, OPTIONS)
  if not core.is_tensor(data) then
    options.fail("Parameter: expected a tensor, got %s", options.show(data))
  end
  if o.requires_grad and not (core._is_float(data) or data:is_complex()) then
    options.fail("Parameter: only floating-point and complex tensors can require gradients, got %s; " ..
      "pass requires_grad = false", data.dtype)
  end
  if place then data = placed(data) else deferred.leave(data) end
  local p = data:detach()
  if o.requires_grad then p.requires_grad = true end
  marked[p] = true
  return p
end

--- Returns a parameter whose elements are to be drawn. Under init_empty_weights it never has
--- memory, so a layer may be larger than the machine's.
---@param shape integer[]
---@param opts? { dtype: string, device: string }
---@return accelerate.Tensor
function parameter.empty(shape, opts)
  if place then opts = { dtype = opts and opts.dtype, device = place.device } end
  return parameter.new(core.empty(shape, opts))
end

local ZERO_GRAD = { set_to_none = { "boolean", default = true } }

--- Drops the gradients of a list of tensors; set_to_none = false zeroes them in place.
---@param params accelerate.Tensor[]
---@param set_to_none? boolean|{ set_to_none: boolean } default true
function parameter.zero_grad(params, set_to_none, ...)
  if set_to_none == nil and select("#", ...) == 0 then
    set_to_none = true
  else
    set_to_none = options.read("zero_grad", { "set_to_none" }, ZERO_GRAD, set_to_none, ...).set_to_none
  end
  if set_to_none then
    for i = 1, #params do params[i].grad = nil end
    return
  end
  for i = 1, #params do
    local grad = params[i].grad
    if grad and grad.is_sparse then
      params[i].grad = nil
    elseif grad then
      if grad.grad_fn or grad.requires_grad then
        params[i].grad = core.zeros_like(grad)  -- its history ends here, as a detached gradient's would
      else
        grad:zero_()
      end
    end
  end
end

local FLOATS = { float16 = true, bfloat16 = true, float32 = true, float64 = true, float8_e4m3fn = true,
  float8_e5m2 = true }
local COMPLEX = { complex64 = true, complex128 = true }
local PLACE = { dtype = { "string", optional = true }, device = { "string", optional = true },
  non_blocking = { "boolean", optional = true } }
local DTYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
  "bool" }

local function is_device(word) return word == "cpu" or word == "meta" or word:match("^cuda") ~= nil end

local function refuse_word(where, word)
  for _, known in ipairs(DTYPES) do
    if word == known then
      options.fail("%s:to: parameters can only become of a floating or complex type, got '%s'", where, word)
    end
  end
  options.fail("%s:to: '%s' is neither a dtype nor a device%s", where, word,
    options.hint(word, { "float32", "float64", "float16", "bfloat16", "complex64", "complex128", "cpu",
      "cuda", "meta" }))
end

-- The arguments of Module:to as a list: tensors and tables of options give theirs.
local function words_of(where, ...)
  local words = {}
  for i = 1, select("#", ...) do
    local given = (select(i, ...))
    if core.is_tensor(given) then
      words[#words + 1] = given.dtype
      words[#words + 1] = given.device
    elseif type(given) == "table" and getmetatable(given) == nil then
      if given.memory_format ~= nil then
        options.fail("%s:to: memory_format is not there: layers choose how they lay out what they " ..
          "compute; leave it out", where)
      end
      local o = options.check(where .. ":to", given, PLACE)
      words[#words + 1] = o.dtype
      words[#words + 1] = o.device
    elseif given ~= nil and (type(given) ~= "boolean" or i == 1) then -- a boolean is non_blocking
      words[#words + 1] = given
    end
  end
  return words
end

--- Reads the arguments of Module:to: a dtype, a device, both in either order, a tensor that has
--- them, then non_blocking; or a table of these at the end.
---@return string? dtype
---@return string? device
function parameter.destination(where, ...)
  local dtype, device
  for _, word in ipairs(words_of(where, ...)) do
    if type(word) ~= "string" then
      options.fail("%s:to: expected a dtype or a device, got %s", where, options.show(word))
    end
    if FLOATS[word] or COMPLEX[word] then dtype = word
    elseif is_device(word) then device = word
    else refuse_word(where, word) end
  end
  if not dtype and not device then options.fail("%s:to: give a dtype or a device", where) end
  return dtype, device
end

--- Converts a tensor and its gradient; the object stays the same. Integers keep their type, and
--- complex numbers do not become real ones.
---@param t accelerate.Tensor
---@param dtype string?
---@param device string?
function parameter.convert(t, dtype, device)
  if of_one_type[t] then dtype = nil end
  if dtype and not FLOATS[t.dtype] and not (COMPLEX[t.dtype] and COMPLEX[dtype]) then dtype = nil end
  local target = { dtype = dtype or t.dtype, device = device or t.device }
  if target.dtype == t.dtype and target.device == t.device then return end
  local grad = t.grad
  -- before anything is changed: it may fail.  Values that are not there are converted when they are
  -- made
  local data = deferred.of(t) and deferred.converted(t, dtype, device) or t:detach():to(target)
  local new_grad = grad and grad:detach():to(target)
  if grad then t.grad = nil end
  t.data = data
  if new_grad then t.grad = new_grad end
end

return parameter
