--- Draws. All of them are made of uniform and normal ones, which have the same bits on every
--- device.
local core = require "accelerate.core"
local deferred = require "accelerate.deferred"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

-- Numbers like x from core.rand or core.randn; float32 where x is of a half or an integer type.
local function drawn(make, x, generator, double)
  local dtype = (double or x.dtype == "float64") and "float64" or x:is_complex() and x.dtype or "float32"
  return make(x.shape, { dtype = dtype, device = x.device, generator = generator })
end

-- Fills x by an edit (accelerate.deferred), whose values are made without a record; of a tensor
-- without memory it is noted.
local function fill(where, x, generator, name, a)
  if x.requires_grad and x.is_leaf and core.is_grad_enabled() then
    options.fail("%s: a leaf that requires a gradient cannot be changed in place; " ..
      "do it inside tensor.no_grad", where)
  end
  if deferred.of(x) then deferred.edit(x, name, a, generator or core.default_generator())
  else x:copy_(core.no_grad(deferred.values, name, x, generator, a)) end
  return x
end

-- Likewise, with values that make(x, generator) draws.
local function fill_drawn(where, x, generator, make) return fill(where, x, generator, "drawn", { make }) end

local function above_zero(where, name, v)
  if not (v > 0) then options.fail("%s: %s must be above 0, got %g", where, name, v) end
end
local function probability(where, p)
  if not (p >= 0 and p <= 1) then options.fail("%s: p must be in [0, 1], got %g", where, p) end
end
local function floating(where, x)
  if not core._is_float(x) then options.fail("%s: expected a floating type, got %s", where,
    x.dtype) end
end

local function in_place(name, signature, summary, fn)
  define(name, "x:T " .. signature .. " generator:gen?", summary, fn, "method")
end

in_place("uniform_", "from:num=0 to:num=1", "fills x with draws from [from, to)", function(x, from, to,
  generator)
  floating("uniform_", x)
  if not (from <= to) then options.fail("uniform_: from (%g) must not be above to (%g)", from, to) end
  if to - from == math.huge then
    options.fail("uniform_: to - from must be finite, got from %g to %g", from, to)
  end
  return fill("uniform_", x, generator, "uniform_", { from, to })
end)
in_place("normal_", "mean:num=0 std:num=1", "fills x with normal draws", function(x, mean, std, generator)
  if not x:is_complex() then floating("normal_", x) end
  if not (std >= 0) then options.fail("normal_: std must be at least 0, got %g", std) end
  return fill("normal_", x, generator, "normal_", { mean, std })
end)
in_place("log_normal_", "mean:num=1 std:num=2", "fills x with exp of normal draws", function(x, mean, std,
  generator)
  floating("log_normal_", x)
  above_zero("log_normal_", "std", std)
  return fill_drawn("log_normal_", x, generator, function(like, from)
    return (drawn(core.randn, like, from) * std + mean):exp()
  end)
end)
in_place("exponential_", "lambd:num=1", "fills x with draws of density lambd exp(-lambd x)",
  function(x, lambd, generator)
    floating("exponential_", x)
    above_zero("exponential_", "lambd", lambd)
    return fill_drawn("exponential_", x, generator, function(like, from)
      return -(-drawn(core.rand, like, from)):log1p() / lambd
    end)
  end)
in_place("cauchy_", "median:num=0 sigma:num=1", "fills x with draws of the Cauchy distribution",
  function(x, median, sigma, generator)
    floating("cauchy_", x)
    above_zero("cauchy_", "sigma", sigma)
    return fill_drawn("cauchy_", x, generator, function(like, from)
      return ((drawn(core.rand, like, from, true) - 0.5) * math.pi):tan() * sigma + median
    end)
  end)
in_place("geometric_", "p:num", "fills x with how many trials of probability p it takes to succeed",
  function(x, p, generator)
    if not (p > 0 and p < 1) then options.fail("geometric_: p must be in (0, 1), got %g", p) end
    return fill_drawn("geometric_", x, generator, function(like, from)
      local u = drawn(core.rand, like, from, true)
      local fails = core.tensor(-p, { dtype = "float64" }):log1p():item() -- 1 - p is 1 for a tiny p
      return ((-u):log1p() / fails):ceil():clamp { min = 1 }
    end)
  end)
-- The largest integer below which a type holds all.
local EXACT = { uint8 = 256, int32 = 2 ^ 31, int64 = 2 ^ 53, float64 = 2 ^ 53, float32 = 2 ^ 24,
  float16 = 2 ^ 11,
  bfloat16 = 2 ^ 8, bool = 2 }
-- The least and the largest number of a type.
local RANGES = { bool = { 0, 1 }, uint8 = { 0, 255 }, int32 = { -2 ^ 31, 2 ^ 31 - 1 },
  int64 = { -2 ^ 63, 2 ^ 63 }, float64 = { -math.huge, math.huge }, float32 = { -2 ^ 127, 2 ^ 127 },
  float16 = { -65504, 65504 }, bfloat16 = { -2 ^ 127, 2 ^ 127 } }
-- x:random_(10): a number alone is `to`.
local function bounds(x, from, to, ...)
  if type(from) == "number" and type(to) ~= "number" then return x, 0, from, to, ... end
  return x, from, to, ...
end
define.prepared("random_", "x:T from:int=0 to:int? generator:gen?",
  "fills x with integers from `from` on, below `to`: without it, all that " ..
  "its type holds; one number alone is `to`", bounds, function(x, from, to, generator)
    local ends = RANGES[x.dtype]
    if not ends then options.fail("random_: not defined for %s", x.dtype) end
    if from < ends[1] or to and to - 1 > ends[2] then
      options.fail("random_: %s holds numbers from %g to %g, got from = %d and to = %d", x.dtype, ends[1],
        ends[2], from, to or EXACT[x.dtype])
    end
    to = to or EXACT[x.dtype]
    if from >= to then options.fail("random_: from (%d) must be below to (%d)", from, to) end
    return fill_drawn("random_", x, generator, function(like, source)
      return core.randint(from, to, like.shape, { device = like.device, generator = source })
    end)
  end, "method")

-- Probabilities below this are compared with draws of float64: those of float32 are multiples of
-- 2^-24.
local SMALL = 2 ^ -8

local function bernoulli(where, x, p, generator)
  if type(p) == "number" then
    probability(where, p)
    return core.no_grad(function() return drawn(core.rand, x, generator, p > 0 and p < SMALL):lt(p) end)
  end
  return core.no_grad(function()
    if not p:ge(0):logical_and(p:le(1)):all():item() then
      options.fail("%s: expected probabilities in [0, 1]", where)
    end
    return drawn(core.rand, x, generator, p:gt(0):logical_and(p:lt(SMALL)):any():item()):lt(p)
  end)
end
in_place("bernoulli_", "p:TN=0.5", "fills x with 1 of probability p, else 0", function(x, p, generator)
  return fill_drawn("bernoulli_", x, generator, function(like, from)
    return bernoulli("bernoulli_", like, p or 0.5, from)
  end)
end)
define("bernoulli", "x:T generator:gen?", "1 with the probability that x says, else 0", function(x, generator)
  floating("bernoulli", x)
  return bernoulli("bernoulli", x, x, generator):to(x.dtype)
end)

local NORMAL = { generator = { "Generator", optional = true } }
define.plain("normal", "tensor.normal(mean, [std], [shape], { dtype, device, generator })",
  "normal draws; mean and std (1) are tensors that broadcast, or numbers with a shape; by name, too: " ..
  "{ mean, std, size }", "function",
  function(mean, std, shape, opts)
    local where = "normal"
    if type(mean) == "table" and getmetatable(mean) == nil then
      if std ~= nil then
        options.fail("normal: expected mean, std and size either by position or in one table")
      end
      local given = {}
      for name, value in next, mean do given[name] = value end
      mean, std, shape, opts = given.mean, given.std, given.size, given
      given.mean, given.std, given.size = nil, nil, nil
    elseif type(std) == "table" and getmetatable(std) == nil and not std[1] then
      std, opts = nil, std
    elseif opts == nil and type(shape) == "table" and getmetatable(shape) == nil and shape.size ~= nil then
      local given = {}
      for name, value in next, shape do given[name] = value end
      shape, opts = given.size, given
      given.size = nil
    end
    if std == nil and core.is_tensor(mean) then std = 1 end
    for i = 1, 2 do
      local name, v = i == 1 and "mean" or "std", (select(i, mean, std))
      if type(v) ~= "number" and not core.is_tensor(v) then
        options.fail("%s: %s: expected a tensor or a number, got %s", where, name, options.show(v))
      end
    end
    if type(std) == "number" and not (std >= 0) then
      options.fail("%s: std must be at least 0, got %g", where, std)
    end
    if core.is_tensor(std) and not core.no_grad(function() return std:ge(0):all():item() end) then
      options.fail("%s: std must be at least 0 everywhere", where)
    end
    if core.is_tensor(mean) or core.is_tensor(std) then
      if opts ~= nil and shape ~= nil then
        options.fail("normal: size: expected none beside a tensor, got %s", options.show(shape))
      end
      local given = options.check(where, opts or shape, NORMAL)
      local like = core.no_grad(function() return mean + (core.is_tensor(std) and std or 0) * 0 end)
      if not core.is_tensor(mean) then like = core.no_grad(function() return std * 0 + mean end) end
      local o = { dtype = like.dtype, device = like.device, generator = given.generator }
      return core.no_grad(function() return core.randn(like.shape, o) * std + mean end)
    end
    if shape == nil then options.fail("normal: expected a shape beside two numbers, got none") end
    return core.randn(shape, opts or {}) * std + mean
  end)

-- Draws without replacement: the k largest of weight / exponential draws are distributed as k draws
-- one after the other (Efraimidis and Spirakis, 2006). With replacement: places of uniform draws
-- among the running sums.
define("multinomial", "x:T num_samples:int replacement:bool=false generator:gen?",
  "positions, counted from 0, drawn with the weights in the rows of x", function(x, n, replacement, generator)
    floating("multinomial", x)
    if x.ndim < 1 or x.ndim > 2 then
      options.fail("multinomial: expected 1 or 2 dims, got %s", lists.shape_text(x))
    end
    if n < 1 then options.fail("multinomial: num_samples must be at least 1, got %d", n) end
    local columns = x.shape[x.ndim]
    if x:numel() == 0 then -- no rows, or rows without weights
      if columns < (replacement and 1 or n) then
        options.fail("multinomial: %d draws %s replacement, but a row has %d weights", n,
          replacement and "with" or "without", columns)
      end
      return core.empty(0, n, { dtype = "int64", device = x.device })
    end
    return core.no_grad(function()
      local weights = x:double()
      if not weights:isfinite():logical_and(weights:ge(0)):all():item() then
        options.fail("multinomial: expected weights from 0 on, got negative, infinite or NaN ones")
      end
      local least = (replacement and weights:sum(-1):gt(0):long() or weights:gt(0):sum(-1)):amin():item()
      if least < (replacement and 1 or n) then
        options.fail("multinomial: %d draws %s replacement, but a row has %d weights above 0", n,
          replacement and "with" or "without", least)
      end
      local o = { dtype = "float64", device = x.device, generator = generator }
      if not replacement then
        local _, places = (weights / -(-core.rand(x.shape, o)):log1p()):nan_to_num({ nan = 0 }):topk(n, -1)
        return places
      end
      local sums = weights:cumsum(-1)
      local shape = x.shape
      shape[#shape] = n
      local total = sums:narrow(-1, sums.shape[sums.ndim], 1)
      -- never the end itself, nor a place behind the last weight above 0
      local u = (core.rand(shape, o) * total):minimum(total * (1 - 2 ^ -52))
      return core.searchsorted(sums, u, true)
    end)
  end)

define("gumbel_softmax", "logits:T tau:num=1 hard:bool=false dim:dim=-1 generator:gen?",
  "softmax of (logits + Gumbel draws) / tau; hard: one-hot, with the gradient of the soft one",
  function(logits, tau, hard, dim, generator)
    floating("gumbel_softmax", logits)
    above_zero("gumbel_softmax", "tau", tau)
    local noise = core.no_grad(function()
      local exponential = -(-drawn(core.rand, logits, generator)):log1p()
      return -exponential:clamp({ min = 2 ^ -126 }):log():to(logits.dtype)
    end)
    local soft = ((logits + noise) / tau):softmax(dim)
    if not hard then return soft end
    local place = soft:argmax(dim, true)
    local one = core.no_grad(function()
      return core.zeros_like(soft):scatter(dim, place, 1)
    end)
    return one - soft:detach() + soft
  end)

-- ---- draws of Poisson variables

local TABLED = 10 -- up to this rate draws are counted, above it Hoermann's rejection needs fewer rounds

-- How many uniform numbers can be multiplied before the product is below exp(-rate).
local function counted(rate, o)
  local limit, product, draw = (-rate):exp(), core.ones_like(rate), core.zeros_like(rate)
  repeat
    product = product * core.rand(rate.shape, o)
    local open = product:gt(limit)
    draw = draw + open:to(rate.dtype)
  until not open:any():item()
  return draw
end

-- W. Hoermann, The transformed rejection method for generating Poisson random variables, 1993:
-- algorithm PTRS.
local function rejected(rate, o)
  local b = 0.931 + 2.53 * rate:sqrt()
  local a = 0.02483 * b - 0.059
  local scale, height = 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2)
  local draw, open = core.zeros_like(rate), rate:eq(rate)
  repeat
    local u = core.rand(rate.shape, o) - 0.5
    local v = core.rand(rate.shape, o):clamp { min = 2 ^ -53 }
    local room = 0.5 - u:abs()
    local k = ((2 * a / room + b) * u + rate + 0.43):floor()
    local whole = k:clamp { min = 0 }
    local likely = (v * scale / (a / (room * room) + b)):log():le(
      whole * rate:log() - rate - (whole + 1):lgamma())
    local taken = core.logical_and(k:ge(0), core.logical_or(
      core.logical_and(room:ge(0.07), v:le(height)),
      core.logical_and(likely, core.logical_or(room:ge(0.013), v:le(room)))))
    draw = core.where(core.logical_and(open, taken), whole, draw)
    open = core.logical_and(open, core.logical_not(taken))
  until not open:any():item()
  return draw
end

local function usable(rate) return rate:ge(0):logical_and(rate:lt(math.huge)):all():item() end

-- In float64, for float32 has not all integers of large rates.
local function poisson(rate, generator)
  local o = { dtype = "float64", device = rate.device, generator = generator }
  local wide = rate:double()
  local small = wide:le(TABLED)
  local draw = counted(core.where(small, wide, core.zeros_like(wide)), o)
  if not small:all():item() then
    draw = core.where(small, draw, rejected(core.where(small, core.full_like(wide, TABLED), wide), o))
  end
  return draw:to(rate.dtype)
end

define("poisson", "input:T generator:gen?", "draws of Poisson variables with these rates, as numbers of " ..
  "the rates' type", function(rate, generator)
    floating("poisson", rate)
    if not core.no_grad(usable, rate) then
      options.fail("poisson: expected finite rates of at least 0")
    end
    return core.no_grad(poisson, rate, generator)
  end)

-- ---- the state of the default generator, as manual_seed seeds it

define.plain("get_rng_state", "tensor.get_rng_state()", "the state of this rank's default generator",
  "function",
  function() return core.default_generator():get_state() end)
define.plain("set_rng_state", "tensor.set_rng_state(state)",
  "continues with the draws that followed get_rng_state",
  "function", function(state)
    if type(state) ~= "string" or #state ~= 16 then
      options.fail("set_rng_state: argument 1 (state): expected a string of 16 bytes from " ..
        "get_rng_state, got %s",
        options.show(state))
    end
    core.default_generator():set_state(state)
  end)
define.plain("initial_seed", "tensor.initial_seed()", "the seed of this rank's default generator", "function",
  function() return core.default_generator():initial_seed() end)
define.plain("seed", "tensor.seed()", "manual_seed with a number that the system draws, which it returns",
  "function", function()
    local source = assert(io.open("/dev/urandom", "rb"))
    local bytes, seed = source:read(6), 0
    source:close()
    for k = 1, #bytes do seed = seed * 256 + bytes:byte(k) end
    core.manual_seed(seed)
    return seed
  end)
