--- How a tensor without memory was drawn: the edits that were made of it, in their order, each with
--- the state that its generator had. Made again, on the whole tensor or for a run of its elements,
--- they give the bits that the tensor would have.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local edits = require "accelerate.deferred.edits"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local fail = options.fail
local COMMON = core._common_generator() -- the same numbers on all ranks, also in an unseeded run

---@class accelerate.deferred.Step
---@field edit string of edits.lua; "to": a conversion
---@field a any[] its arguments
---@field state string? its generator's, before it drew
---@field on "cpu"|"cuda" where it was made
---@field dtype string the tensor's type then; of a conversion, afterwards
---@field at integer? of an edit of a part: its first element in the flattened tensor, from 0
---@field shape integer[]? of that part
---@field strides integer[]? of a part whose elements do not follow each other

---@class accelerate.deferred.Drawn
---@field shape integer[]
---@field dtype string
---@field device string
---@field steps accelerate.deferred.Step[]
---@field lost string? why the values cannot be made
local Drawn = class("Drawn")
class.optional(Drawn, "lost")

-- The most elements that an edit keeps of a tensor: of a larger one the values may as well be kept.
local MOST_KEPT = 2 ^ 18

-- Elements that are made at a time: a multiple of the block that draws come in.
local RUN = 2 ^ 18

-- Edits in place, with numbers, that change each element by itself.
local EACH = { add_ = true, sub_ = true, mul_ = true, div_ = true, fill_ = true, zero_ = true, copy_ = true,
  neg_ = true, abs_ = true, clamp_ = true, pow_ = true, sqrt_ = true, exp_ = true, log_ = true, tanh_ = true,
  sigmoid_ = true, square_ = true, sign_ = true, clamp_min_ = true, clamp_max_ = true }

local function kind_of(device) return device:match "^%a+" end

function Drawn:init(shape, dtype, device)
  self.shape, self.dtype, self.device, self.steps = shape, dtype, device, {}
end

--- Returns a copy, which is changed by itself.
---@return accelerate.deferred.Drawn
function Drawn:copy()
  local copy = Drawn(self.shape, self.dtype, self.device)
  copy.steps, copy.lost = { unpack(self.steps) }, self.lost
  return copy
end

--- Returns the recipe of the values after a conversion.
---@param dtype string
---@param device string
---@return accelerate.deferred.Drawn
function Drawn:to(dtype, device)
  local result = self:copy()
  result.steps[#result.steps + 1] = { edit = "to", a = {}, on = kind_of(device), dtype = dtype }
  result.dtype, result.device = dtype, device
  return result
end

-- ---- noting edits

-- Where the elements of t, the tensor or a view of it, stand; nil: it is the whole.
local function place_of(self, t)
  local at, n = t:storage_offset(), t:numel()
  if t:is_contiguous() then
    if at == 0 and n == lists.product(self.shape) then return nil end
    return at, t.shape
  end
  local strides = {}
  for d = 1, t:dim() do strides[d] = t:stride(d) end
  return at, t.shape, strides
end

--- Notes an edit of a tensor, or of a view of it.
---@param t accelerate.Tensor
---@param name string of edits.lua
---@param a any[]
---@param generator userdata? what it draws from, which moves on; nil: the common one
function Drawn:note(t, name, a, generator)
  local edit = edits[name]
  local at, shape, strides = place_of(self, t)
  local step = { edit = name, a = a, at = at, shape = shape, strides = strides, on = kind_of(self.device),
    dtype = self.dtype }
  local draws = type(edit.draws) == "function" and edit.draws(t.shape, a) or edit.draws
  if draws > 0 then
    step.state = generator and generator:get_state() or core.default_generator():get_state():sub(1, 16)
    for _ = 1, draws do core.rand(1, { generator = generator or COMMON }) end
  end
  if edit.overwrites and not at then self.steps, self.lost = {}, nil end -- earlier edits do not matter
  self.steps[#self.steps + 1] = step
end

-- Whether an argument of a call can be kept: numbers, texts, small tensors, plain tables of these.
local function kept(value, tensors)
  if core.is_tensor(value) then
    if value:numel() > MOST_KEPT or value.device == "meta" or value.requires_grad then return nil end
    tensors[1] = true
    return value:clone()
  end
  if type(value) ~= "table" then
    if type(value) == "userdata" or type(value) == "function" then return nil end
    return value
  end
  local copy = {}
  if getmetatable(value) ~= nil then return nil end
  for key, inner in next, value do
    copy[key] = kept(inner, tensors)
    if copy[key] == nil then return nil end
  end
  return copy
end

--- Notes an edit in place that a script makes: t:name(...). Returns whether it could.
---@param name string "mul_"; "index" for t[key] = value
---@param t accelerate.Tensor the tensor or a view of it
---@return boolean
function Drawn:edit(name, t, ...)
  local a, tensors = { name, n = select("#", ...) + 1 }, {}
  for i = 1, a.n - 1 do
    local given = select(i, ...)
    a[i + 1] = core.no_grad(kept, given, tensors)
    if given ~= nil and a[i + 1] == nil then return false end
  end
  a.tensors = tensors[1]
  local fills = name == "fill_" or name == "zero_" or name == "copy_"
  if fills and not tensors[1] then
    self:note(t, "constant", { name == "zero_" and 0 or a[2] })
  else
    self:note(t, EACH[name] and not tensors[1] and "each" or "call", a)
  end
  return true
end

-- ---- making the values

local function generator_of(step)
  if not step.state then return nil end
  return core.Generator():set_state(step.state)
end

local function device_of(self, step) return step.on == "cpu" and "cpu" or self.device end

-- The step that the others build on: the last one that writes all elements; 0: none does.
local function first_step(self)
  for i = #self.steps, 1, -1 do
    local step = self.steps[i]
    if step.edit ~= "to" and edits[step.edit].overwrites and not step.at then return i end
  end
  return 0
end

-- Whether the steps can be made for a run of elements.
local function in_parts(self, first)
  if self.dtype:find "^complex" then return false end
  for i = math.max(first, 1), #self.steps do
    local step = self.steps[i]
    if step.edit ~= "to" and (not edits[step.edit].part or step.strides) then return false end
  end
  return true
end

-- Elements from, from + 1 .. of `out` after a step.
local function part_after(self, step, out, from)
  if step.edit == "to" then return out:to({ dtype = step.dtype, device = device_of(self, step) }) end
  local edit, first, last = edits[step.edit], from, from + out:numel()
  if step.at then
    first, last = math.max(first, step.at), math.min(last, step.at + lists.product(step.shape))
    if first >= last then return out end
  end
  edit.part(out:narrow(1, first - from + 1, last - first), first - (step.at or 0), generator_of(step), step.a)
  return out
end

-- The whole tensor after a step.
local function whole_after(self, step, out)
  if step.edit == "to" then return out:to({ dtype = step.dtype, device = device_of(self, step) }) end
  local edit, t = edits[step.edit], out
  if step.strides then t = out:as_strided_copy(step.shape, step.strides, step.at)
  elseif step.at then t = out:view(-1):narrow(1, step.at + 1, lists.product(step.shape)):view(step.shape) end
  edit.whole(t, generator_of(step), step.a)
  return step.strides and out:as_strided_scatter(t, step.shape, step.strides, step.at) or out
end

local function run(self, first, out, after, from)
  for i = math.max(first, 1), #self.steps do out = after(self, self.steps[i], out, from) end
  return out
end

-- Where the first of the steps that count is made, and in which type.
local function beginning(self, first)
  local step = self.steps[math.max(first, 1)]
  if not step or step.edit == "to" then return { dtype = self.dtype, device = self.device } end
  return { dtype = step.dtype, device = device_of(self, step) }
end

-- A run of elements at a time, so that intermediate results take little memory.
local function fill_parts(self, first, into, from, place)
  local empty, here = first == 0 and core.zeros or core.empty, first > 0 and into.dtype == place.dtype
    and into.device == place.device
  for at = 0, into:numel() - 1, RUN do
    local some = into:narrow(1, at + 1, math.min(RUN, into:numel() - at))
    local out = run(self, first, here and some or empty({ some:numel() }, place), part_after, from + at)
    if not rawequal(out, some) then some:copy_(out) end
  end
end

--- Writes the elements from `from` (from 0) on of the flattened tensor.
---@param into accelerate.Tensor 1-d, contiguous
---@param from integer
function Drawn:fill(into, from)
  if self.lost then fail("the values of a parameter cannot be made: %s", self.lost) end
  local first = first_step(self)
  local place = beginning(self, first)
  core.no_grad(core.scope, function() -- intermediate results are freed at once
    if in_parts(self, first) then return fill_parts(self, first, into, from, place) end
    local whole = run(self, first, (first == 0 and core.zeros or core.empty)(self.shape, place), whole_after)
    into:copy_(whole:reshape(-1):narrow(1, from + 1, into:numel()))
  end)
end

--- Makes all values: called by the first use.
---@param into accelerate.Tensor 1-d
function Drawn:make(into) self:fill(into, 0) end

-- ---- between ranks

--- Returns the steps as plain values, from which another rank makes the same bits; nil where
--- tensors or functions are among them.
---@return table?
function Drawn:describe()
  if self.lost then return nil end
  for _, step in ipairs(self.steps) do
    if step.a.tensors or step.edit ~= "to" and edits[step.edit].opaque then return nil end
  end
  return { dtype = self.dtype, steps = self.steps }
end

--- Returns the draws that another rank described, for a tensor of this rank.
---@param described table
---@param shape integer[]
---@param device string
---@return accelerate.deferred.Drawn
function Drawn.of_description(described, shape, device)
  local result = Drawn(shape, described.dtype, device)
  result.steps = described.steps
  return result
end

return Drawn
