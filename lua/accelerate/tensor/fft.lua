--- Fourier transforms, under the names of PyTorch's torch.fft.
---
--- Lengths may be any number, also primes. float32 and complex64 give complex64, float64 and
--- complex128 complex128; integers count as float32. Results have gradients, which can be
--- differentiated again. On a GPU they run through cuFFT; where that is missing, tensors are copied
--- to the CPU for a transform, and its result back.
---
--- `norm` says which direction is divided by the number of positions: "backward" (the default) the
--- inverse one, "forward" the other one, "ortho" both by its square root.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local M = {}

local NORM = "norm:backward|ortho|forward=backward"
local ONE = "x:T n:int? dim:dim=-1 " .. NORM
local MANY = "x:T s:ints? dim:dims? " .. NORM

local function reads(name, signature, fn) return core._composed("fft." .. name, signature, fn) end

local function scale_of(norm, n, inverse)
  if norm == "ortho" then return 1 / math.sqrt(n) end
  return (norm == "backward") == inverse and 1 / n or 1
end

-- x with a type that has transforms.
local function check_type(where, x)
  if x:is_complex() then return x end
  if x.dtype == "float16" or x.dtype == "bfloat16" then
    options.fail("fft.%s: not defined for %s; cast it to float32", where, x.dtype)
  end
  return core._is_float(x) and x or x:float()
end

local function to_complex(where, x)
  x = check_type(where, x)
  if x:is_complex() then return x end
  return x:to(x.dtype == "float64" and "complex128" or "complex64")
end

local function check_real(where, x)
  if x:is_complex() then
    options.fail("fft.%s: expected a real tensor, got %s", where, x.dtype)
  end
  return check_type(where, x)
end

local function check_dim(where, x)
  if x.ndim == 0 then options.fail("fft.%s: expected at least one dim, got a 0-d tensor", where) end
end

-- x cut or filled up with zeros to n positions of dim; with all of them where n is nil.
local function sized(where, x, n, dim)
  local have = x.shape[dim]
  n = n or have
  if n < 1 then
    options.fail("fft.%s: expected at least 1 position along dim %d, got %d", where, dim, n)
  end
  if n == have then return x end
  if n < have then return x:narrow(dim, 1, n) end
  local shape = x.shape
  shape[dim] = n - have
  return core.cat({ x, core.zeros(shape, { dtype = x.dtype, device = x.device }) }, dim)
end

local function along(where, x, n, dim, norm, inverse)
  check_dim(where, x)
  x = sized(where, to_complex(where, x), n, dim)
  return core._fft.c2c(x, dim, inverse, scale_of(norm, x.shape[dim], inverse))
end

local function half(where, x, n, dim, norm, inverse)
  check_dim(where, x)
  x = sized(where, check_real(where, x), n, dim)
  return core._fft.r2c(x, dim, scale_of(norm, x.shape[dim], inverse), 1)
end

local function whole(where, x, n, dim, norm, inverse)
  check_dim(where, x)
  x = to_complex(where, x)
  n = n or 2 * (x.shape[dim] - 1)
  if n < 1 then options.fail("fft.%s: expected at least 1 position along dim %d, got %d", where, dim, n) end
  x = sized(where, x, math.floor(n / 2) + 1, dim)
  return core._fft.c2r(x, dim, n, scale_of(norm, n, inverse), 2)
end

-- The dims and sizes of a transform of several dims: the dims given, the last #s ones, or all.
local function spread(where, x, s, dims)
  if s and dims and #s ~= #dims then
    options.fail("fft.%s: %d sizes and %d dims", where, #s, #dims)
  end
  if not dims then
    local count = s and #s or x.ndim
    if count > x.ndim then
      options.fail("fft.%s: %d sizes for shape %s", where, count, lists.shape_text(x))
    end
    dims = {}
    for k = 1, count do dims[k] = x.ndim - count + k end
  end
  if #dims == 0 then options.fail("fft.%s: expected at least one dim", where) end
  local sizes, seen = {}, {}
  for k, d in ipairs(dims) do
    if seen[d] then options.fail("fft.%s: dim %d is listed twice", where, d) end
    seen[d] = true
    if s and s[k] ~= -1 then sizes[k] = s[k] end
  end
  return dims, sizes
end

local function two(where, x, dims)
  if x.ndim < 2 and not dims then
    options.fail("fft.%s: expected at least 2 dims, got shape %s", where, lists.shape_text(x))
  end
  return dims or { x.ndim - 1, x.ndim }
end

local function over(where, x, s, dims, norm, inverse)
  local at, sizes = spread(where, x, s, dims)
  x = to_complex(where, x)
  for k, d in ipairs(at) do x = along(where, x, sizes[k], d, norm, inverse) end
  return x
end

local function half_over(where, x, s, dims, norm, inverse)
  local at, sizes = spread(where, x, s, dims)
  local last = #at
  x = half(where, x, sizes[last], at[last], norm, inverse)
  for k = 1, last - 1 do x = along(where, x, sizes[k], at[k], norm, inverse) end
  return x
end

local function whole_over(where, x, s, dims, norm, inverse)
  local at, sizes = spread(where, x, s, dims)
  local last = #at
  x = to_complex(where, x)
  for k = 1, last - 1 do x = along(where, x, sizes[k], at[k], norm, inverse) end
  return whole(where, x, sizes[last], at[last], norm, inverse)
end

--- Returns the sums over dim of x[j] exp(-2 pi i j k / n), for k = 0 .. n - 1.
---@param x accelerate.Tensor real or complex
---@param n integer? x is cut or filled up with zeros to n positions of dim; default: its size
---@param dim integer? default -1
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.fft = reads("fft", ONE, function(x, n, dim, norm) return along("fft", x, n, dim, norm, false) end)

--- Returns what `fft` turns into x.
---@param x accelerate.Tensor real or complex
---@param n integer? x is cut or filled up with zeros to n positions of dim; default: its size
---@param dim integer? default -1
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.ifft = reads("ifft", ONE, function(x, n, dim, norm) return along("ifft", x, n, dim, norm, true) end)

--- Returns the first n / 2 + 1 positions of `fft` of a real tensor; the others are their
--- conjugates.
---@param x accelerate.Tensor real
---@param n integer? x is cut or filled up with zeros to n positions of dim; default: its size
---@param dim integer? default -1
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.rfft = reads("rfft", ONE, function(x, n, dim, norm) return half("rfft", x, n, dim, norm, false) end)

--- Returns the real tensor that `rfft` turns into x.
---@param x accelerate.Tensor the first n / 2 + 1 positions
---@param n integer? the size of the result; default 2 (size of dim - 1)
---@param dim integer? default -1
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor real
M.irfft = reads("irfft", ONE, function(x, n, dim, norm) return whole("irfft", x, n, dim, norm, true) end)

--- Returns `fft`, which is real, of a tensor whose second half is the conjugate of its first.
---@param x accelerate.Tensor the first n / 2 + 1 positions
---@param n integer? the size of the result; default 2 (size of dim - 1)
---@param dim integer? default -1
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor real
M.hfft = reads("hfft", ONE, function(x, n, dim, norm)
  return whole("hfft", x:conj(), n, dim, norm, false)
end)

--- Returns the first n / 2 + 1 positions of `ifft` of a real tensor.
---@param x accelerate.Tensor real
---@param n integer? x is cut or filled up with zeros to n positions of dim; default: its size
---@param dim integer? default -1
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.ihfft = reads("ihfft", ONE, function(x, n, dim, norm)
  return half("ihfft", x, n, dim, norm, true):conj()
end)

--- Returns `fft` along two dims, one after the other.
---@param x accelerate.Tensor real or complex
---@param s integer[]? sizes; -1: the size of the dim
---@param dim integer[]? default { -2, -1 }
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.fft2 = reads("fft2", MANY, function(x, s, dims, norm)
  return over("fft2", x, s, two("fft2", x, dims), norm, false)
end)

--- Returns `ifft` along two dims.
---@param x accelerate.Tensor real or complex
---@param s integer[]? sizes; -1: the size of the dim
---@param dim integer[]? default { -2, -1 }
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.ifft2 = reads("ifft2", MANY, function(x, s, dims, norm)
  return over("ifft2", x, s, two("ifft2", x, dims), norm, true)
end)

--- Returns `rfft` along the last one of two dims and `fft` along the other one.
---@param x accelerate.Tensor real
---@param s integer[]? sizes; -1: the size of the dim
---@param dim integer[]? default { -2, -1 }
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.rfft2 = reads("rfft2", MANY, function(x, s, dims, norm)
  return half_over("rfft2", x, s, two("rfft2", x, dims), norm, false)
end)

--- Returns the real tensor that `rfft2` turns into x.
---@param x accelerate.Tensor
---@param s integer[]? sizes of the result; -1: of the last dim 2 (size - 1), of others the size
---@param dim integer[]? default { -2, -1 }
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor real
M.irfft2 = reads("irfft2", MANY, function(x, s, dims, norm)
  return whole_over("irfft2", x, s, two("irfft2", x, dims), norm, true)
end)

--- Returns `fft` along several dims, one after the other.
---@param x accelerate.Tensor real or complex
---@param s integer[]? sizes; -1: the size of the dim
---@param dim integer[]? default: the last #s dims, or all
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.fftn = reads("fftn", MANY, function(x, s, dims, norm) return over("fftn", x, s, dims, norm, false) end)

--- Returns `ifft` along several dims.
---@param x accelerate.Tensor real or complex
---@param s integer[]? sizes; -1: the size of the dim
---@param dim integer[]? default: the last #s dims, or all
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.ifftn = reads("ifftn", MANY, function(x, s, dims, norm) return over("ifftn", x, s, dims, norm, true) end)

--- Returns `rfft` along the last one of several dims and `fft` along the others.
---@param x accelerate.Tensor real
---@param s integer[]? sizes; -1: the size of the dim
---@param dim integer[]? default: the last #s dims, or all
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.rfftn = reads("rfftn", MANY, function(x, s, dims, norm)
  return half_over("rfftn", x, s, dims, norm, false)
end)

--- Returns the real tensor that `rfftn` turns into x.
---@param x accelerate.Tensor
---@param s integer[]? sizes of the result; -1: of the last dim 2 (size - 1), of others the size
---@param dim integer[]? default: the last #s dims, or all
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor real
M.irfftn = reads("irfftn", MANY, function(x, s, dims, norm)
  return whole_over("irfftn", x, s, dims, norm, true)
end)

-- `hfft` along the last one of several dims after `fft` along the others, and what undoes it.
local function real_over(where, x, s, dims, norm)
  local at, sizes = spread(where, x, s, dims)
  local last = #at
  x = to_complex(where, x)
  for k = 1, last - 1 do x = along(where, x, sizes[k], at[k], norm, false) end
  return whole(where, x:conj(), sizes[last], at[last], norm, false)
end

local function half_inverse_over(where, x, s, dims, norm)
  local at, sizes = spread(where, x, s, dims)
  local last = #at
  x = half(where, x, sizes[last], at[last], norm, true):conj()
  for k = 1, last - 1 do x = along(where, x, sizes[k], at[k], norm, true) end
  return x
end

--- Returns `fft` along one of two dims and `hfft` along the last one.
---@param x accelerate.Tensor
---@param s integer[]? sizes of the result; -1: of the last dim 2 (size - 1), of others the size
---@param dim integer[]? default { -2, -1 }
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor real
M.hfft2 = reads("hfft2", MANY, function(x, s, dims, norm)
  return real_over("hfft2", x, s, two("hfft2", x, dims), norm)
end)

--- Returns what `hfft2` turns into x.
---@param x accelerate.Tensor real
---@param s integer[]? sizes; -1: the size of the dim
---@param dim integer[]? default { -2, -1 }
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.ihfft2 = reads("ihfft2", MANY, function(x, s, dims, norm)
  return half_inverse_over("ihfft2", x, s, two("ihfft2", x, dims), norm)
end)

--- Returns `fft` along several dims, along the last one of them `hfft`.
---@param x accelerate.Tensor
---@param s integer[]? sizes of the result; -1: of the last dim 2 (size - 1), of others the size
---@param dim integer[]? default: the last #s dims, or all
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor real
M.hfftn = reads("hfftn", MANY, function(x, s, dims, norm) return real_over("hfftn", x, s, dims, norm) end)

--- Returns what `hfftn` turns into x.
---@param x accelerate.Tensor real
---@param s integer[]? sizes; -1: the size of the dim
---@param dim integer[]? default: the last #s dims, or all
---@param norm ("backward"|"ortho"|"forward")?
---@return accelerate.Tensor complex
M.ihfftn = reads("ihfftn", MANY, function(x, s, dims, norm)
  return half_inverse_over("ihfftn", x, s, dims, norm)
end)

-- ---- frequencies, and their order

local FREQUENCIES = "n:int d:num=1 dtype:dtype?"

local function frequencies(where, list, n, d, dtype)
  if n < 0 then options.fail("fft.%s: expected at least 0 positions, got %d", where, n) end
  if d == 0 then options.fail("fft.%s: the distance of samples must not be 0", where) end
  return core.tensor(list, { dtype = "float64" }):reshape(#list):div(n * d):to(dtype
    or core.get_default_dtype())
end

--- Returns the frequencies of the positions of `fft`, in cycles per unit of d: 0, 1 .. -1, over n
--- d.
---@param n integer
---@param d number? distance of the samples, default 1
---@param dtype accelerate.DType? default "float32"
---@return accelerate.Tensor
M.fftfreq = reads("fftfreq", FREQUENCIES, function(n, d, dtype)
  local list = {}
  for k = 0, n - 1 do list[k + 1] = k < n / 2 and k or k - n end
  return frequencies("fftfreq", list, n, d, dtype)
end)

--- Returns the frequencies of the positions of `rfft`: 0 .. n / 2, over n d.
---@param n integer
---@param d number? distance of the samples, default 1
---@param dtype accelerate.DType? default "float32"
---@return accelerate.Tensor
M.rfftfreq = reads("rfftfreq", FREQUENCIES, function(n, d, dtype)
  local list = {}
  for k = 0, math.floor(n / 2) do list[k + 1] = k end
  return frequencies("rfftfreq", list, n, d, dtype)
end)

local function shifted(x, dims, up)
  if not dims then
    dims = {}
    for d = 1, x.ndim do dims[d] = d end
  end
  if #dims == 0 then return x:clone() end
  local shifts = {}
  for k, d in ipairs(dims) do shifts[k] = up(x.shape[d] / 2) end
  return x:roll(shifts, dims)
end

--- Returns x with the frequency 0 moved to the middle of dims.
---@param x accelerate.Tensor
---@param dim (integer|integer[])? default: all
---@return accelerate.Tensor
M.fftshift = reads("fftshift", "x:T dim:dims?", function(x, dims) return shifted(x, dims, math.floor) end)

--- Returns what `fftshift` turns into x.
---@param x accelerate.Tensor
---@param dim (integer|integer[])? default: all
---@return accelerate.Tensor
M.ifftshift = reads("ifftshift", "x:T dim:dims?", function(x, dims) return shifted(x, dims, math.ceil) end)

return require("accelerate.utils.properties").strict("accelerate.tensor.fft", M)
