--- Rotary positions: queries and keys turned by angles that grow with the position.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local lasting = require("accelerate.models.cache").lasting

local M = {}

local TYPES = { "default", "linear", "llama3" }

local function number(where, scaling, name)
  return options.value(where, ("config.rope_scaling.%s"):format(name), scaling[name], { "number", above = 0 })
end

-- Angles per position as Llama 3.1 stretches them: long waves by a factor, short ones not at all,
-- those between partly.
local function llama3(where, scaling)
  local factor, length = number(where, scaling, "factor"),
    number(where, scaling, "original_max_position_embeddings")
  local low, high = number(where, scaling, "low_freq_factor"), number(where, scaling, "high_freq_factor")
  return function(f)
    local waves = length * f / (2 * math.pi)  -- in the original length
    if waves < low then return f / factor end
    if waves > high then return f end
    local part = (waves - low) / (high - low)
    return (1 - part) * f / factor + part * f
  end
end

-- The settings of a configuration, in the present form or in the older one.
local function settings(where, config)
  local given = config.rope_parameters or config.rope_scaling or {}
  local kind = given.rope_type or given.type or "default"
  options.value(where, "config.rope_scaling.rope_type", kind, { "string", one_of = TYPES })
  local partial = given.partial_rotary_factor or config.partial_rotary_factor or 1
  options.value(where, "config.partial_rotary_factor", partial, { "number", one_of = { 1 } })
  return given, kind, given.rope_theta or config.rope_theta or 10000
end

--- Returns the angles per position of a head of `size` elements, size / 2 numbers.
---@param where string what messages begin with
---@param config table with rope_theta and rope_scaling, or rope_parameters
---@param size integer
---@return number[]
function M.frequencies(where, config, size)
  local scaling, kind, theta = settings(where, config)
  local scaled = function(f) return f end
  if kind == "linear" then
    local factor = number(where, scaling, "factor")
    scaled = function(f) return f / factor end
  elseif kind == "llama3" then
    scaled = llama3(where, scaling)
  end
  local list = {}
  for i = 1, size / 2 do list[i] = scaled(theta ^ (-2 * (i - 1) / size)) end
  return list
end

-- Cosines and sines of positions, kept from call to call.
local Rotary = class "Rotary"

function Rotary:init(where, config, size)
  self.frequencies, self.size, self.rows = M.frequencies(where, config, size), size, 0
end

-- Two tables (rows, size): cosines of both halves; sines, those of the first half negative.
local function tables(self, rows, dtype, device)
  local angles = core.arange(rows):double():view(rows, 1)
    * core.tensor(self.frequencies, { dtype = "float64" })
  local function placed(t) return lasting(t:to(dtype):to(device)) end
  self.cos = placed(core.cat({ angles:cos(), angles:cos() }, 2))
  self.sin = placed(core.cat({ -angles:sin(), angles:sin() }, 2))
  self.rows, self.dtype, self.device = rows, dtype, device
end

--- Returns the cosines and sines of `length` positions from `past` on, or of given ones.
---@param past integer
---@param length integer
---@param positions accelerate.Tensor? (N, length)
---@param like accelerate.Tensor whose type and device they get
---@return accelerate.Tensor cos
---@return accelerate.Tensor sin
function Rotary:at(past, length, positions, like)
  local needed = past + length
  if positions then needed = math.max(needed, positions:max():item() + 1) end
  if needed > self.rows or like.dtype ~= self.dtype or like.device ~= self.device then
    core.no_grad(tables, self, math.max(needed, 2 * self.rows, 64), like.dtype, like.device)
  end
  if not positions then return self.cos:narrow(1, past + 1, length), self.sin:narrow(1, past + 1, length) end
  local shape = { positions:size(1), 1, length, self.size }
  local flat = positions:reshape(-1)
  return self.cos:index_select(1, flat):view(shape), self.sin:index_select(1, flat):view(shape)
end

local roll, addcmul = core.roll, core.addcmul

--- Turns (N, H, T, size) by the angles of its positions.
---@param x accelerate.Tensor
---@param cos accelerate.Tensor
---@param sin accelerate.Tensor
---@return accelerate.Tensor
function M.turn(x, cos, sin) return addcmul(x * cos, roll(x, x:size(4) / 2, 4), sin) end

M.Rotary = Rotary

return M
