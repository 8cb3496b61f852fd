--- Rotary positions: queries and keys turned by angles that grow with the position.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local lasting = require("accelerate.models.cache").lasting

local M = {}

local TYPES = { "default", "linear", "dynamic", "yarn", "longrope", "llama3" }

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

-- YaRN (Peng et al., 2023). A dim that makes many turns within the original length keeps its angle;
-- the angle of one that makes less than a turn is divided by the factor; between them the two are
-- blended. Returns a function of the angle and the dim's number, and the factor of cosines and
-- sines.
local function yarn(where, scaling, config, size, theta)
  local function given(name, default)
    return scaling[name] == nil and default or number(where, scaling, name)
  end
  local length = number(where, scaling, "original_max_position_embeddings")
  local factor = given("factor", config.max_position_embeddings / length)
  local truncate = scaling.truncate == nil or scaling.truncate
  local function dim_of(turns)
    return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
  end
  local low, high = dim_of(given("beta_fast", 32)), dim_of(given("beta_slow", 1))
  if truncate then low, high = math.floor(low), math.ceil(high) end
  low, high = math.max(low, 0), math.min(high, size - 1)
  if low == high then high = high + 0.001 end
  local function temperature(by) return factor <= 1 and 1 or 0.1 * by * math.log(factor) + 1 end
  local both = scaling.mscale and scaling.mscale_all_dim
  local strength = both and temperature(number(where, scaling, "mscale"))
    / temperature(number(where, scaling, "mscale_all_dim")) or temperature(1)
  return function(f, i)
    local part = math.min(math.max((i - 1 - low) / (high - low), 0), 1)
    return f / factor * part + f * (1 - part)
  end, given("attention_factor", strength)
end

-- Dynamic NTK: the base grows with the length of the sequence beyond that of the configuration.
local function grown(where, scaling, config, size, theta, length)
  local factor, most = number(where, scaling, "factor"), config.max_position_embeddings
  options.value(where, "config.head_dim", size, { "integer", min = 4 })
  length = math.max(length or most, most)
  return theta * (factor * length / most - (factor - 1)) ^ (size / (size - 2))
end

-- The list of size / 2 divisors that LongRoPE has under a name.
local function divisors(where, scaling, name, size)
  local key = "config.rope_scaling." .. name
  local list = options.value(where, key, scaling[name], { "list" })
  if #list ~= size / 2 then
    options.fail("%s: %s must hold %d numbers, half of head_dim, got %d", where, key, size / 2, #list)
  end
  for i = 1, #list do options.value(where, ("%s[%d]"):format(key, i), list[i], { "number", above = 0 }) end
  return list
end

-- The length that a model was trained at before its positions were stretched.
local function original(where, scaling, config)
  local given = scaling.original_max_position_embeddings or config.original_max_position_embeddings
  return options.value(where, "config.rope_scaling.original_max_position_embeddings", given,
    { "integer", min = 2 })
end

-- LongRoPE (Ding et al., 2024), as Phi-3 has it: each dim has a divisor of its own, one for
-- sequences within the original length and one for longer ones.
local function longrope(where, scaling, config, size, length)
  local most = original(where, scaling, config)
  local short, long = divisors(where, scaling, "short_factor", size),
    divisors(where, scaling, "long_factor", size)
  local list = (length or 0) > most and long or short
  local factor = scaling.factor and number(where, scaling, "factor") or config.max_position_embeddings / most
  local strength = factor <= 1 and 1 or math.sqrt(1 + math.log(factor) / math.log(most))
  if scaling.attention_factor ~= nil then strength = number(where, scaling, "attention_factor") end
  return function(f, i) return f / list[i] end, strength
end

-- The settings of a configuration, in the present form or in the older one. any_part: may less than
-- the whole head be turned?
local function settings(where, config, any_part)
  local given = config.rope_parameters or config.rope_scaling or {}
  local kind = given.rope_type or given.type or "default"
  options.value(where, "config.rope_scaling.rope_type", kind, { "string", one_of = TYPES })
  local partial = given.partial_rotary_factor or config.partial_rotary_factor or 1
  options.value(where, "config.partial_rotary_factor", partial,
    any_part and { "number", above = 0, max = 1 } or { "number", one_of = { 1 } })
  return given, kind, given.rope_theta or config.rope_theta or 10000
end

-- The number of a head's elements that are turned.
local function turned(where, size, partial)
  local count = math.floor(size * (partial or 1))
  if count % 2 == 1 or count == 0 then
    options.fail("%s: config.partial_rotary_factor of head_dim must be even and above 0, got %g of %d", where,
      partial, size)
  end
  return count
end

--- Returns the angles per position of a head of `size` elements, size / 2 numbers, and what
--- cosines and sines are multiplied by.
---@param where string what messages begin with
---@param config table with rope_theta and rope_scaling, or rope_parameters
---@param size integer
---@param length integer? of the sequence, for "dynamic" and "longrope"; default: a short one
---@param partial number? the share of the elements that is turned; default: all, and a
---  configuration that says otherwise raises
---@return number[]
---@return number strength
function M.frequencies(where, config, size, length, partial)
  local scaling, kind, theta = settings(where, config, partial ~= nil)
  size = turned(where, size, partial)
  local scaled, strength = function(f) return f end, 1
  if kind == "linear" then
    local factor = number(where, scaling, "factor")
    scaled = function(f) return f / factor end
  elseif kind == "dynamic" then
    theta = grown(where, scaling, config, size, theta, length)
  elseif kind == "yarn" then
    scaled, strength = yarn(where, scaling, config, size, theta)
  elseif kind == "longrope" then
    scaled, strength = longrope(where, scaling, config, size, length)
  elseif kind == "llama3" then
    scaled = llama3(where, scaling)
  end
  local list = {}
  for i = 1, size / 2 do list[i] = scaled(theta ^ (-2 * (i - 1) / size), i) end
  return list, strength
end

-- Cosines and sines of positions, kept from call to call.
local Rotary = class "Rotary"

-- The angles of "dynamic" follow the longest sequence so far, until a short one comes, as
-- Transformers has it: a cache of keys keeps those that each key was turned by.
local function follow(self, length)
  if length <= self.reach and not (length < self.most and self.reach > self.most) then return end
  self.reach = math.max(length, self.most)
  self.frequencies, self.rows = self.renew(self.reach), 0
end

-- "longrope" has two sets of angles; the length of each call says which.
local function choose(self, length)
  local long = length > self.most
  if long == self.long then return end
  self.long, self.frequencies, self.rows = long, self.renew(length), 0
end

function Rotary:init(where, config, size, partial)
  self.frequencies, self.strength = M.frequencies(where, config, size, nil, partial)
  self.size, self.rows = 2 * #self.frequencies, 0
  local scaling, kind = settings(where, config, true)
  if kind == "dynamic" then
    self.most, self.reach = config.max_position_embeddings, config.max_position_embeddings
    self.follow = follow
  elseif kind == "longrope" then
    self.most, self.long = original(where, scaling, config), false
    self.follow = choose
  end
  self.renew = function(length) return (M.frequencies(where, config, size, length, partial)) end
end

-- A copy's angles follow its own calls. What they are in is replaced, and not written into, so both
-- may have it.
function Rotary:__deepcopy(_, seen)
  local made = Rotary.__new(Rotary)
  seen[self] = made
  for name, value in next, self do made[name] = value end
  return made
end

-- Two tables (rows, size): cosines of both halves; sines, those of the first half negative.
local function tables(self, rows, dtype, device)
  local angles = core.arange(rows):double():view(rows, 1)
    * core.tensor(self.frequencies, { dtype = "float64" })
  local function placed(t) return lasting((t * self.strength):to(dtype):to(device)) end
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
  local longest = positions and positions:max():item() + 1 or needed
  if self.follow then self:follow(longest) end
  needed = math.max(needed, longest)
  if needed > self.rows or like.dtype ~= self.dtype or like.device ~= self.device then
    core.no_grad(tables, self, math.max(needed, 2 * self.rows, 64), like.dtype, like.device)
  end
  if not positions then return self.cos:narrow(1, past + 1, length), self.sin:narrow(1, past + 1, length) end
  local shape = { positions:size(1), 1, length, self.size }
  local flat = positions:reshape(-1)
  return self.cos:index_select(1, flat):view(shape), self.sin:index_select(1, flat):view(shape)
end

local roll, addcmul = core.roll, core.addcmul

local function turn(x, cos, sin) return addcmul(x * cos, roll(x, x:size(4) / 2, 4), sin) end

--- Turns (N, H, T, size) by the angles of its positions; elements behind those that there are
--- angles for stay.
---@param x accelerate.Tensor
---@param cos accelerate.Tensor
---@param sin accelerate.Tensor
---@return accelerate.Tensor
function M.turn(x, cos, sin)
  local size = cos:size(-1)
  if size == x:size(4) then return turn(x, cos, sin) end
  return core.cat({ turn(x:narrow(4, 1, size), cos, sin), x:narrow(4, size + 1, x:size(4) - size) }, 4)
end

M.Rotary = Rotary

return M
