--- Drawn numbers and tensors for random programs: shapes, types, strides, values.
local tensor = require "accelerate.tensor"
local bit = require "bit"

local M = {}

local DTYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" }
local FLOATS = { float32 = true, float64 = true, float16 = true, bfloat16 = true }
local SPECIAL = { 0, -0.0, 1, -1, 0 / 0, math.huge, -math.huge, 1e30, -1e30, 1e-40, 65504, 255, -128, 2 ^ 53,
  -2 ^ 53, 2 ^ 31, 0.5, 2.5 }

-- ---- chance: xorshift, so that runs are alike on every machine

local Chance = {}
Chance.__index = Chance

local function chance(seed)
  local c = setmetatable({ state = bit.bxor(seed, 0x5bd1e995) }, Chance)
  if c.state == 0 then c.state = 1 end
  for _ = 1, 8 do c:int(1) end
  return c
end

--- 1 .. n
function Chance:int(n)
  local s = self.state
  s = bit.bxor(s, bit.lshift(s, 13))
  s = bit.bxor(s, bit.rshift(s, 17))
  s = bit.bxor(s, bit.lshift(s, 5))
  self.state = s
  return s % 2 ^ 32 % n + 1
end
function Chance:once_in(n) return self:int(n) == 1 end
function Chance:of(list) return list[self:int(#list)] end
function Chance:real() return (self:int(20001) - 10001) / 3333 end

-- ---- tensors

local function some_shape(c)
  if c:once_in(12) then return c:of { { 70, 33 }, { 3000 }, { 5, 700 }, { 1100, 3 }, { 2, 65, 65 } } end
  local ndim = c:once_in(8) and c:int(8) or c:int(5) - 1
  local shape, numel = {}, 1
  for d = 1, ndim do
    local size = c:of(numel > 300 and { 1, 1, 2 } or { 1, 1, 2, 2, 3, 3, 4, 5, 7, 16, 17 })
    if c:once_in(25) then size = 0 end
    shape[d] = size
    numel = numel * math.max(size, 1)
  end
  return shape
end

local function fill(c, t)
  local flat = t:view(-1)
  for i = 1, math.min(t:numel(), 40) do
    local v = c:once_in(6) and c:of(SPECIAL) or c:real()
    if t.dtype == "bool" then v = c:once_in(2)
    elseif not FLOATS[t.dtype] then
      if v ~= v or math.abs(v) > 2 ^ 53 then v = 0 end
      v = math.floor(v)
      if t.dtype == "uint8" then
        v = v % 256
      elseif t.dtype == "int32" and math.abs(v) >= 2 ^ 31 then
        v = 7
      end
    end
    flat[i] = v
  end
end

-- The same elements or some of them in another layout.
local function relaid(c, t)
  local kind = c:int(6)
  t = t:detach()
  if kind == 1 and t.ndim > 1 then
    local order = {}
    for d = 1, t.ndim do table.insert(order, c:int(d), d) end
    return t:permute(order)
  elseif kind == 2 and t.ndim > 0 then
    local d = c:int(t.ndim)
    local size = t.shape[d]
    if size > 1 then return t:narrow(d, c:int(size), 1) end
  elseif kind == 3 and t.ndim > 0 and t.shape[1] > 2 then
    return t[{ { 1, t.shape[1], 2 } }]
  elseif kind == 4 and t.ndim < 8 then
    local shape = { c:int(4) }
    for d = 1, t.ndim do shape[d + 1] = t.shape[d] end
    return t:expand(shape)
  elseif kind == 5 and t.ndim > 0 and t.shape[1] > 0 then
    return t[c:int(t.shape[1])]
  end
  return t
end

local function fresh(c)
  local t = tensor.empty(some_shape(c), { dtype = c:once_in(2) and "float32" or c:of(DTYPES) })
  tensor.no_grad(function()
    if FLOATS[t.dtype] then t:copy_(tensor.randn(t.shape)) else t:copy_(tensor.randint(0, 3, t.shape)) end
    fill(c, t)
  end)
  for _ = 1, c:int(3) - 1 do t = relaid(c, t) end
  if FLOATS[t.dtype] and c:once_in(2) then t.requires_grad = true end
  return t
end

M.chance, M.fresh, M.relaid, M.DTYPES, M.FLOATS = chance, fresh, relaid, DTYPES, FLOATS

return M
