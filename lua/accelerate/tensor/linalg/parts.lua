--- Complex systems as real ones of twice the size: (A + iB)(x + iy) = b + ic is
--- [A -B; B A] [x; y] = [b; c]. So they have the real ones' speed and gradients.
local core = require "accelerate.core"

local M = {}

local function real(x) return x:is_complex() and x:real() or x end
local function imag(x) return x:is_complex() and x:imag() or core.zeros_like(x) end

--- [A -B; B A] of A + iB.
function M.whole(x)
  local re, im = real(x), imag(x)
  return core.cat({ core.cat({ re, -im }, -1), core.cat({ im, re }, -1) }, -2)
end

--- [b; c] of b + ic.
function M.stacked(b) return core.cat({ real(b), imag(b) }, -2) end

--- x + iy of [x; y]; what is right of the first `columns` columns is dropped.
function M.joined(x, columns)
  local n = x.shape[x.ndim - 1] / 2
  if columns then x = x:narrow(-1, 1, columns) end
  return core.complex(x:narrow(-2, 1, n):contiguous(), x:narrow(-2, n + 1, n):contiguous())
end

--- Whether one of two tensors is complex.
function M.any(a, b) return a:is_complex() or (b ~= nil and b:is_complex()) end

return M
