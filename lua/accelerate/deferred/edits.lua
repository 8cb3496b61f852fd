--- The edits that values are drawn by: functions of nn.init, draws in place, and edits of a script.
--- An edit is made on a whole tensor; some can be made on a run of its elements alone, with the
--- bits that the whole tensor would have there.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

---@class accelerate.deferred.Edit
---@field draws integer|fun(shape: integer[], a: number[]): integer how many numbers of draws it
---  takes from its generator
---@field overwrites boolean whether all elements are new, whatever they were before
---@field whole fun(t: accelerate.Tensor, generator: userdata, a: any[])
---@field values? fun(t: accelerate.Tensor, generator: userdata, a: any[]): accelerate.Tensor what
---  `whole` copies into t
---@field part? fun(into: accelerate.Tensor, from: integer, generator: userdata, a: any[]) writes
---  the elements from `from` (from 0) on of the flattened tensor
local edits = {}

-- Numbers `from` to from + n - 1 of a draw. Blocks of four come from one counter.
local function draw(normal, from, n, dtype, device, generator)
  local ahead = from % 4
  local all = core.empty({ n + ahead }, { dtype = dtype, device = device })
  core._draw_part(all, normal, from - ahead, generator)
  return ahead > 0 and all:narrow(1, ahead + 1, n) or all
end

-- Likewise, into a tensor of the draw's type: where a block begins with it nothing is copied.
local function draw_into(into, normal, from, generator)
  if from % 4 == 0 then core._draw_part(into, normal, from, generator)
  else into:copy_(draw(normal, from, into:numel(), into.dtype, into.device, generator)) end
  return into
end

local function parts_of(t) return t:is_complex() and t:view_as_real() or t end -- each part by itself

-- ---- nn.init

edits.uniform = { draws = 1, overwrites = true,
  whole = function(t, generator, a)
    local parts = parts_of(t)
    local u = core.rand(parts.shape, { dtype = parts.dtype, device = t.device, generator = generator })
    u:mul_(a[2] - a[1])
    parts:copy_(u:add_(a[1]))
  end,
  part = function(into, from, generator, a)
    draw_into(into, false, from, generator):mul_(a[2] - a[1]):add_(a[1])
  end }

edits.normal = { draws = 1, overwrites = true,
  whole = function(t, generator, a)
    local z = core.randn(t.shape, { dtype = t.dtype, device = t.device, generator = generator })
    z:mul_(a[2])
    t:copy_(z:add_(a[1]))
  end,
  part = function(into, from, generator, a)
    draw_into(into, true, from, generator):mul_(a[2]):add_(a[1])
  end }

edits.constant = { draws = 0, overwrites = true,
  whole = function(t, _, a) t:fill_(a[1]) end,
  part = function(into, _, _, a) into:fill_(a[1]) end }

edits.eye = { draws = 0, overwrites = true,
  whole = function(t)
    t:zero_()
    t:diagonal():fill_(1)
  end }

-- a: the distribution function at both limits, mean, std, the limits
local function truncated(u, a)
  local low, high, mean, std, least, most = unpack(a)
  u:mul_(2 * (high - low)):add_(2 * low - 1)
  return core.erfinv(u:clamp(-1 + 1e-16, 1 - 1e-16)):mul_(std * math.sqrt(2)):add_(mean):clamp_(least, most)
end

edits.trunc_normal = { draws = 1, overwrites = true,
  whole = function(t, generator, a)
    t:copy_(truncated(core.rand(t.shape, { dtype = "float64", device = t.device, generator = generator }), a))
  end,
  part = function(into, from, generator, a)
    into:copy_(truncated(draw(false, from, into:numel(), "float64", into.device, generator), a))
  end }

-- Rows of `m` (r, n), r <= n, made orthonormal one after the other, twice each: as a QR
-- decomposition with a positive diagonal does.
local function orthonormal(m)
  for i = 1, m:size(1) do
    local row = m[i]
    for _ = 1, i > 1 and 2 or 0 do
      local before = m:narrow(1, 1, i - 1)
      row:sub_(before:t():matmul(before:matmul(row)))
    end
    row:div_(row:square():sum():sqrt():item())
  end
  return m
end

edits.orthogonal = { draws = 1, overwrites = true,
  whole = function(t, generator, a)
    local rows = t:size(1)
    local columns = t:numel() / rows
    local flat = core.randn(rows, columns, { dtype = "float64", device = t.device, generator = generator })
    local q = rows <= columns and orthonormal(flat) or orthonormal(flat:t():contiguous()):t()
    t:copy_(q:mul(a[1]):reshape(t.shape))
  end }

-- a: how many zeros a column has, std
edits.sparse = { overwrites = true,
  draws = function(shape, a) return 1 + (a[1] > 0 and shape[2] or 0) end,
  whole = function(t, generator, a)
    edits.normal.whole(t, generator, { 0, a[2] })
    for c = 1, a[1] > 0 and t:size(2) or 0 do
      local at = core.randperm(t:size(1), { generator = generator }):totable()
      for i = 1, a[1] do t[at[i] + 1][c] = 0 end
    end
  end }

edits.dirac = { draws = 0, overwrites = true,
  whole = function(t, _, a)
    local shape, groups = t.shape, a[1]
    local per = shape[1] / groups
    t:zero_()
    for g = 0, groups - 1 do
      for d = 1, math.min(per, shape[2]) do
        local at = { g * per + d, d }
        for k = 3, #shape do at[k] = math.floor(shape[k] / 2) + 1 end
        t[at] = 1
      end
    end
  end }

-- ---- draws in place

-- What halves are drawn in, so that rounding is all that they lose.
local function wide(dtype) return dtype == "float64" and dtype or "float32" end

local function bounded(y, dtype, a)
  local low, high = a[1], a[2]
  y = y * (high - low) + low
  -- rounding to the tensor's type may have led to `high`, which is not among the draws
  local rounded = y:to(dtype):to(y.dtype)
  return core.where(rounded:ge(high), low, rounded)
end

edits.uniform_ = { draws = 1, overwrites = true,
  values = function(t, generator, a)
    local place = { dtype = wide(t.dtype), device = t.device, generator = generator }
    return bounded(core.rand(t.shape, place), t.dtype, a)
  end,
  part = function(into, from, generator, a)
    local u = draw(false, from, into:numel(), wide(into.dtype), into.device, generator)
    into:copy_(bounded(u, into.dtype, a))
  end }

edits.normal_ = { draws = 1, overwrites = true,
  values = function(t, generator, a)
    local dtype = t:is_complex() and t.dtype or wide(t.dtype)
    return core.randn(t.shape, { dtype = dtype, device = t.device, generator = generator }) * a[2] + a[1]
  end,
  part = function(into, from, generator, a)
    into:copy_(draw(true, from, into:numel(), wide(into.dtype), into.device, generator) * a[2] + a[1])
  end }

-- a[1](t, generator): the values of a draw that has no edit of its own
edits.drawn = { draws = 1, overwrites = true, opaque = true,
  values = function(t, generator, a) return a[1](t, generator) end }

for _, name in ipairs { "uniform_", "normal_", "drawn" } do
  local values = edits[name].values
  edits[name].whole = function(t, generator, a) t:copy_(values(t, generator, a)) end
end

-- ---- of a script's

-- a[1]: the tensor that a parameter was made from
edits.given = { draws = 0, overwrites = true, opaque = true,
  whole = function(t, _, a) t:copy_(a[1]) end }

-- a[1] of a tensor, x:mul_(2), with the arguments behind it; "index" is x[key] = value. It was
-- called long before, and its error says so.
local function call(t, a)
  local ok, why = pcall(function()
    if a[1] == "index" then t[a[2]] = a[3] else t[a[1]](t, unpack(a, 2, a.n)) end
  end)
  if not ok then
    options.fail("%s, called on a parameter before its values were made: %s", a[1], (tostring(why):gsub(
      "^[^:\n]*:%d+: ", "")))
  end
end

edits.call = { draws = 0, overwrites = false, whole = function(t, _, a) call(t, a) end }

-- Calls with numbers that change each element by itself.
edits.each = { draws = 0, overwrites = false, whole = function(t, _, a) call(t, a) end,
  part = function(into, _, _, a) call(into, a) end }

return edits
