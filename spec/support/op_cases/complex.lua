--- Cases of the rows in host/core/ops/complex.def.  Inputs and results are real: what is complex in
--- between is made of two real tensors.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range = H.range

local function parts(z) return z:view_as_real() end
local function of(call)
  return function(a, b) return call(core.complex(a:contiguous(), b:contiguous())) end
end

-- A case with two inputs, from which call makes its results; ref gets the parts of one number.
local function each_number(name, call, ref)
  C[name] = { inputs = { range(-2, 2), range(-2, 2) }, no_half = true, call = of(call),
    ref = function(a, b)
      local out = {}
      for i, row in ipairs(a) do
        out[i] = {}
        for j, v in ipairs(row) do out[i][j] = ref(v, b[i][j]) end
      end
      return out
    end }
end

each_number("view_as_real", parts, function(a, b) return { a, b } end)
each_number("complex", parts, function(a, b) return { a, b } end)
each_number("real", function(z) return z:real() end, function(a) return a end)
each_number("imag", function(z) return z:imag() end, function(_, b) return b end)
each_number("conj", function(z) return parts(z:conj()) end, function(a, b) return { a, -b } end)
each_number("angle", function(z) return z:angle() end, function(a, b) return math.atan2(b, a) end)
each_number("sgn", function(z) return parts(z:sgn()) end, function(a, b)
  local size = math.sqrt(a * a + b * b)
  return { a / size, b / size }
end)
C.view_as_complex = { through = "view_as_real" }
C._conj = { through = "conj" }
C.polar = { inputs = { range(-2, 2), range(-2, 2) }, no_half = true,
  call = function(a, b) return parts(core.polar(a, b)) end,
  ref = function(a, b)
    local out = {}
    for i, row in ipairs(a) do
      out[i] = {}
      for j, v in ipairs(row) do out[i][j] = { v * math.cos(b[i][j]), v * math.sin(b[i][j]) } end
    end
    return out
  end }

-- The sums of the definition, over the last dim of rows of pairs.
local function transform(a, b, inverse, scale)
  local out = {}
  for i, row in ipairs(a) do
    local n, line = #row, {}
    for k = 0, n - 1 do
      local re, im = 0, 0
      for j = 0, n - 1 do
        local t = (inverse and 2 or -2) * math.pi * j * k / n
        local x, y = row[j + 1], b and b[i][j + 1] or 0
        re = re + x * math.cos(t) - y * math.sin(t)
        im = im + x * math.sin(t) + y * math.cos(t)
      end
      line[k + 1] = { re * scale, im * scale }
    end
    out[i] = line
  end
  return out
end

C._fft_c2c = { inputs = { range(-2, 2), range(-2, 2) },
  call = of(function(z) return parts(core._fft.c2c(z, -1, true, 0.5)) end),
  ref = function(a, b) return transform(a, b, true, 0.5) end }
C._fft_r2c = { inputs = { range(-2, 2) },
  call = function(x) return parts(core._fft.r2c(x, -1, 0.5, 1)) end,
  ref = function(a)
    local out = transform(a, nil, false, 0.5)
    for _, line in ipairs(out) do
      for k = #line, math.floor(#line / 2) + 2, -1 do line[k] = nil end
    end
    return out
  end }
C._fft_c2r = { inputs = { range(-2, 2), range(-2, 2) },
  call = of(function(z) return core._fft.c2r(z, -1, 2 * z.shape[z.ndim] - 1, 0.5, 2) end),
  ref = function(a, b)
    local p, q = {}, {}
    for i, row in ipairs(a) do
      p[i], q[i] = { unpack(row) }, { unpack(b[i]) }
      q[i][1] = 0
      for k = #row, 2, -1 do
        p[i][#p[i] + 1], q[i][#q[i] + 1] = row[k], -b[i][k]
      end
    end
    local out = transform(p, q, true, 0.5)
    for _, line in ipairs(out) do
      for k, v in ipairs(line) do line[k] = v[1] end
    end
    return out
  end }
