--- Linear layers that compute in eight bits: their products take inputs and weights in
--- float8_e4m3fn, and gradients in float8_e5m2, each times a scale that makes its largest size the
--- type's. Sums are float32, results the type of the inputs.
---
--- A scale follows from the tensor itself, or from the sizes of earlier ones
--- (accelerate.precision.float8_scales).
---
--- Of a weight that ranks gather nothing whole stays between the forward pass and the backward one.
--- Where it is gathered in eight bits (host/eight.h) the backward pass gathers it once more, and
--- turns it; otherwise the backward pass casts it once more.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local modes = require "accelerate.utils.modes"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local cast, product, lower = core._row "_float8_cast", core._row "_float8_product", core._row "_lower"
local linear = core.linear

---@class accelerate.Float8Recipe
---@field forward accelerate.DType of inputs and weights
---@field backward accelerate.DType of gradients
---@field high { fprop: boolean, dgrad: boolean, wgrad: boolean } products that are not in eight
---  bits
---@field pads boolean whether any number of rows will do; else it must be a multiple of 16
---@field scales accelerate.Float8Scales? nil: each tensor has its own
---@field always boolean whether layers compute so wherever they are called; else inside the
---  forward of the model alone

-- What a layer's tensors are to its scales.
local INPUT, WEIGHT, GRADIENT = 1, 2, 3

-- A layer of a model: its recipe, and its number among the model's.
---@class accelerate.Float8Use
---@field recipe accelerate.Float8Recipe
---@field at integer

-- t in eight bits, its transpose if it is `turned`, and the factor that makes t of it again.
local function rounded(use, which, t, turned)
  local recipe = use.recipe
  local dtype = which == GRADIENT and recipe.backward or recipe.forward
  local scales, mode = recipe.scales, modes.float8
  local values, across, numbers = cast(t, scales and scales:of(use.at, which), dtype, turned)
  -- (in a backward pass there is no mode: the forward pass had one)
  if scales and (which == GRADIENT or mode.notes) then scales:note(use.at, which, numbers) end
  return values, across, numbers
end

-- How a product has its weight.
---@class accelerate.Float8Weight
---@field eight accelerate.Tensor? the weight in eight bits, as it was gathered
---@field factor accelerate.Tensor? what makes the weight of it again
---@field again boolean? whether the backward pass casts it once more
local KEPT, AGAIN = {}, { again = true } -- KEPT: its transpose in eight bits is kept for that pass

-- Returns the weight in eight bits; what backward keeps where its product is `turned`; the weight's
-- factor where it is made here.
local function weight_for(ctx, form, use, weight, turned)
  if form.eight then return form.eight, turned and weight or nil end -- which shows whether it was edited
  local scales = use.recipe.scales
  if form.again and scales then ctx.scale = scales:of(use.at, WEIGHT):clone() end -- the next pass has another
  local values, across, numbers = rounded(use, WEIGHT, weight, turned and not form.again)
  return values, turned and (form.again and weight or across) or nil, numbers
end

-- The transpose of the weight in eight bits, made from what weight_for kept for backward.
local function turned_weight(ctx, kept)
  if ctx.form.eight then return ctx.form.eight:t():contiguous() end
  if not ctx.form.again then return kept end
  local _, across = cast(kept, ctx.scale, ctx.use.recipe.forward, true)
  return across
end

local function as(dtype, t)
  t = lower(t)
  return t.dtype == dtype and t or t:to(dtype)
end

-- Its arguments are the parameters themselves. A cast outside would be part of the graph, and hold
-- the parameter's place in it until it is collected, so that gradients arrived in an order that
-- differs between ranks.
local Product = core.Function {
  name = "float8_linear",
  forward = function(ctx, x, weight, bias, use, form)
    ctx.weight_dtype, ctx.bias_dtype = weight.dtype, bias and bias.dtype
    weight, bias = form.eight and weight or lower(weight), bias and as(x.dtype, bias)
    local need, high = ctx.needs_input_grad, use.recipe.high
    local turns_x, turns_weight = need[2] and not high.wgrad, need[1] and not high.dgrad
    local x8, x8t, xs, w8, kept, ws
    if turns_x or not high.fprop then x8, x8t, xs = rounded(use, INPUT, x, turns_x) end
    if turns_weight or not high.fprop then
      w8, kept, ws = weight_for(ctx, form, use, weight, turns_weight)
    end
    ctx.use, ctx.form, ctx.x_dtype = use, form, x.dtype
    ctx:save_for_backward(turns_x and x8t or nil, xs, kept, ws,
      need[2] and high.wgrad and x or nil, need[1] and high.dgrad and weight or nil)
    if high.fprop then return linear(x, weight, bias) end
    return product(x8, w8, xs, form.factor or ws, bias, x.dtype, true)
  end,
  backward = function(ctx, g)
    local need, use = ctx.needs_input_grad, ctx.use
    local high = use.recipe.high
    if core.is_grad_enabled() then
      fail("float8_linear: create_graph is not available through a layer in eight bits: rounding has no " ..
        "gradient of its own")
    end
    local x8t, xs, kept, ws, x, weight = ctx:saved_tensors()
    local in_dx, in_dw = need[1] and not high.dgrad, need[2] and not high.wgrad
    local g8, g8t, gs, dx, dw
    if in_dx or in_dw then g8, g8t, gs = rounded(use, GRADIENT, g, in_dw) end
    if in_dx then dx = product(g8, turned_weight(ctx, kept), gs, ctx.form.factor or ws, nil,
      ctx.x_dtype, false)
    elseif need[1] then dx = g:matmul(weight) end
    if in_dw then dw = product(g8t, x8t, gs, xs, nil, ctx.x_dtype, false):to(ctx.weight_dtype)
    elseif need[2] then dw = g:t():matmul(x):to(ctx.weight_dtype) end
    return dx, dw, need[3] and g:sum(1):to(ctx.bias_dtype) or nil
  end,
}

local function check_rows(layer, rows)
  if rows % 16 == 0 then return end
  fail("%s: the input has %d rows, and with pad_inner_dim = false their number must be a multiple of 16",
    layer:_brief(), rows)
end

local FLOATS = { float32 = true, bfloat16 = true, float16 = true }

-- Whether a weight stands for one of `dtype` here: it is, or automatic casting makes it so.
local function computes_in(dtype, weight)
  if weight.dtype == dtype then return true end
  local casts, lowered = core.autocast_state()
  return casts and lowered == dtype and weight.dtype == "float32"
end

-- How a layer's weight comes to a product of inputs of `dtype`; nil: not at all.
local function form_of(use, weight, dtype)
  if not computes_in(dtype, weight) then return nil end
  if not use.recipe.scales then
    local eight, factor = core.flat_in_eight(weight, dtype)
    if eight then return { eight = eight, factor = factor } end
  end
  return core.flat_is_gathered(weight, dtype) and AGAIN or KEPT
end

-- y = x W^T + b over the last dim.
local function run(layer, use, x)
  local values = layer._values
  if not FLOATS[x.dtype] then return linear(x, values.weight, values.bias) end
  local weight, bias = values.weight, values.bias
  x = lower(x)
  local form = form_of(use, weight, x.dtype)
  if not form then return linear(x, weight, bias) end
  local shape, cols = x.shape, weight:size(2)
  if shape[#shape] ~= cols then return linear(x, weight, bias) end -- its error
  if #shape ~= 2 then x = x:reshape(-1, cols) end
  if not use.recipe.pads then check_rows(layer, x:size(1)) end
  local y = Product(x, weight, bias, use, form)
  if #shape == 2 then return y end
  shape[#shape] = weight:size(1)
  return y:view(shape)
end

-- ---- layers

-- Layer -> how it is used. A copy of a layer has none, and computes as its former class does.
local uses = setmetatable({}, { __mode = "k" })
-- Class of layers -> the class that they become.
local classes = setmetatable({}, { __mode = "k" })

local function class_for(Source)
  local Class = classes[Source]
  if Class then return Class end
  Class = class("Float8" .. Source.__name, Source)
  Class._builtin, Class._float8 = false, Source
  function Class:forward(x)
    local use, mode = uses[self], modes.float8
    if use and core.is_tensor(x) and (use.recipe.always or mode and mode.recipe == use.recipe) then
      return self:_run(run, self, use, x)
    end
    return Source.forward(self, x)
  end
  classes[Source] = Class
  return Class
end

--- Makes a Linear compute in eight bits, in place.
---@param layer accelerate.nn.Linear
---@param recipe accelerate.Float8Recipe
---@param at integer its number among the layers of the recipe, from 1
function M.convert(layer, recipe, at)
  local Class = class.of(layer)
  if not Class._float8 then setmetatable(layer, class_for(Class)) end
  uses[layer] = { recipe = recipe, at = at }
end

--- Returns whether a module computes in eight bits.
---@param module any
---@return accelerate.Float8Use?
function M.use_of(module) return uses[module] end

return M
