--- Arguments that fit rows of layers, as spec.support.fuzz_args has them for others: images,
--- windows, sequences, norms and losses.
local tensor = require "accelerate.tensor"

local A = {}

local HALVES = { "float32", "float32", "bfloat16", "float16", "float64" }
local WIDE = { "float32", "float32", "float64" }

-- Random numbers, every other time with a gradient.
local function draw(c, dtype, ...)
  local t = tensor.randn(...):to(dtype)
  if c:once_in(2) then t.requires_grad = true end
  return t
end

local function image(c, channels, dims, dtype)
  local shape = { c:int(3) - (c:once_in(10) and 1 or 0), channels }
  for _ = 1, dims do shape[#shape + 1] = c:int(9) end
  if c:once_in(5) then table.remove(shape, 1) end
  return draw(c, dtype, shape)
end

local function sizes(c, dims, least, most)
  if dims == 1 or c:once_in(2) then return least - 1 + c:int(most - least + 1) end
  local list = {}
  for d = 1, dims do list[d] = least - 1 + c:int(most - least + 1) end
  return list
end

-- ---- convolutions, pools, windows

for dims = 1, 3 do
  for _, transposed in ipairs { false, true } do
    A[("conv%s%dd"):format(transposed and "_transpose" or "", dims)] = function(c)
      local dtype, groups = c:of(HALVES), c:of { 1, 1, 2 }
      local ins, outs = groups * c:of { 1, 2, 8 }, groups * c:of { 1, 3, 8 }
      local shape = transposed and { ins, outs / groups } or { outs, ins / groups }
      for _ = 1, dims do shape[#shape + 1] = c:of { 1, 2, 3, 3 } end
      local w = draw(c, dtype, shape)
      return image(c, ins, dims, dtype), w, c:once_in(2) and tensor.randn(outs):to(dtype) or nil,
        { stride = sizes(c, dims, 1, 3), padding = sizes(c, dims, 0, 2), dilation = sizes(c, dims, 1, 2),
        groups = groups }
    end
  end
end

-- Margins of up to half of the kernel, and gaps that may be wider than the picture.
local function pooled(c, dims)
  local kernel, padding = {}, {}
  for d = 1, dims do
    kernel[d] = c:int(4)
    padding[d] = c:int(math.floor(kernel[d] / 2) + 1) - 1
  end
  if dims == 1 then kernel, padding = kernel[1], padding[1] end
  return image(c, c:int(4), dims, c:of(HALVES)), kernel, sizes(c, dims, 1, 4), padding
end

for dims = 1, 2 do
  local function largest(c)
    local x, kernel, stride, padding = pooled(c, dims)
    return x, kernel, stride, padding, { dilation = sizes(c, dims, 1, 5), ceil_mode = c:once_in(2) }
  end
  local function adaptive(c) return image(c, c:int(4), dims, c:of(HALVES)), sizes(c, dims, 1, 12) end
  A[("max_pool%dd"):format(dims)], A[("max_pool%dd_with_indices"):format(dims)] = largest, largest
  A[("avg_pool%dd"):format(dims)] = function(c)
    local x, kernel, stride, padding = pooled(c, dims)
    return x, kernel, stride, padding, { ceil_mode = c:once_in(2), count_include_pad = c:once_in(2) }
  end
  for _, name in ipairs { "adaptive_max_pool%dd", "adaptive_avg_pool%dd",
    "adaptive_max_pool%dd_with_indices" } do
    A[name:format(dims)] = adaptive
  end
end

local function windows(c)
  return { dilation = sizes(c, 2, 1, 3), padding = sizes(c, 2, 0, 3), stride = sizes(c, 2, 1, 4) }
end
function A.im2col(c) return image(c, c:int(3), 2, c:of(HALVES)), sizes(c, 2, 1, 3), windows(c) end
function A.col2im(c)
  local o, size, kernel, count = windows(c), { c:int(9), c:int(9) }, { c:int(3), c:int(3) }, 1
  for d = 1, 2 do
    local function of(list) return type(list) == "table" and list[d] or list end
    local room = size[d] + 2 * of(o.padding) - of(o.dilation) * (kernel[d] - 1) - 1
    count = count * math.max(0, math.floor(room / of(o.stride)) + 1)
  end
  return draw(c, c:of(HALVES), c:int(2), c:int(3) * kernel[1] * kernel[2], count), size, kernel, o
end

-- ---- resampling

function A.interpolate(c)
  local dims = c:int(2)
  local x = image(c, c:int(4), dims, c:of(HALVES))
  while x.ndim < dims + 2 do x = x:unsqueeze(1) end
  local to = { c:int(12), dims == 2 and c:int(12) or nil }
  local linear = c:once_in(2)
  return x, { size = to, mode = linear and (dims == 1 and "linear" or "bilinear") or "nearest",
    align_corners = linear and c:once_in(2),
    scale_h = c:once_in(4) and 1.7 or nil }
end
function A.grid_sample(c)
  local dtype, n = c:of(WIDE), c:int(2)
  local grid = (tensor.randn(n, c:int(4), c:int(4), 2) * c:of { 0.5, 1, 1e30 }):to(dtype)
  if c:once_in(4) then grid:view(-1)[1] = c:of { 0 / 0, math.huge, -math.huge } end
  return draw(c, dtype, n, c:int(3), c:int(5), c:int(5)), grid, {
    mode = c:of { "bilinear", "nearest", "bicubic" }, padding_mode = c:of { "zeros", "border", "reflection" },
    align_corners = c:once_in(2),
  }
end

-- ---- cells and layers of sequences

for name, gates in next, { lstm = 4, gru = 3, rnn = 1 } do
  A[name .. "_cell"] = function(c)
    local n, inputs, hidden, dtype = c:int(4) - 1, c:int(9), c:int(9), c:of(WIDE)
    local args, biased = { draw(c, dtype, n, inputs), draw(c, dtype, n, hidden) }, c:once_in(2)
    if name == "lstm" then args[3] = draw(c, dtype, n, hidden) end
    args[#args + 1] = draw(c, dtype, gates * hidden, inputs)
    args[#args + 1] = draw(c, dtype, gates * hidden, hidden)
    for _ = 1, biased and 2 or 0 do args[#args + 1] = draw(c, dtype, gates * hidden) end
    return unpack(args)
  end
  A[name .. "_layer"] = function(c)
    local t, n, hidden, dtype = c:int(4), c:int(3), c:int(9), c:of(WIDE)
    local h = draw(c, dtype, n, hidden)
    local gx, w = draw(c, dtype, t, n, gates * hidden), draw(c, dtype, gates * hidden, hidden)
    if name == "gru" then return gx, w, draw(c, dtype, gates * hidden), h, { reverse = c:once_in(2) } end
    return gx, w, h, name == "lstm" and draw(c, dtype, n, hidden) or { reverse = c:once_in(2) }
  end
end

function A.scaled_dot_product_attention(c)
  local dtype, b, h, d = c:of(HALVES), c:int(2), c:int(3), c:of { 1, 5, 16 }
  local q, k = c:int(6), c:int(6)
  return draw(c, dtype, b, h, q, d), draw(c, dtype, b, h, k, d), draw(c, dtype, b, h, k, d),
    { is_causal = c:once_in(3), dropout_p = c:once_in(4) and 0.5 or 0 }
end
function A.split_heads(c)
  local heads = c:int(3)
  return draw(c, c:of(HALVES), c:int(2), c:int(5), 3 * heads * c:int(4)), heads
end

-- ---- norms

function A.batch_norm(c)
  local dtype, n = c:of(WIDE), c:int(5)
  local training = c:once_in(2)
  local mean, var = tensor.zeros(n, { dtype = dtype }), tensor.ones(n, { dtype = dtype })
  return draw(c, dtype, c:int(3) + 1, n, c:int(4), c:int(4)), mean, var, draw(c, dtype, n), draw(c, dtype, n),
    { training = training }
end
local function last_dims(c, more)
  local dtype, shape = c:of(HALVES), { c:int(5), c:of { 1, 7, 16, 65 } }
  local x = draw(c, dtype, c:int(3), unpack(shape))
  local normalized = c:once_in(2) and { shape[2] } or shape
  if c:once_in(3) then return x, normalized end
  return x, normalized, draw(c, dtype, normalized), more and draw(c, dtype, normalized) or nil
end
function A.layer_norm(c) return last_dims(c, true) end
function A.rms_norm(c) return last_dims(c, false) end
function A.group_norm(c)
  local dtype, groups = c:of(HALVES), c:int(3)
  local channels = groups * c:int(3)
  return draw(c, dtype, c:int(3), channels, c:int(5)), groups, draw(c, dtype, channels),
    draw(c, dtype, channels)
end

-- ---- losses

local function classes(c, below, ...)
  local t = tensor.randint(0, below, { ... })
  return c:once_in(15) and t + c:of { 1, -1, 2 ^ 40 } or t
end
function A.nll_loss(c)
  local n, below = c:int(5), c:int(6)
  return draw(c, c:of(WIDE), n, below), classes(c, below, n), { reduction = c:of { "mean", "sum", "none" } }
end
function A.binary_cross_entropy(c)
  local shape, dtype = { c:int(5), c:int(5) }, c:of(WIDE)
  return tensor.rand(shape):to(dtype), tensor.rand(shape):to(dtype)
end
function A.ctc_loss(c)
  local t, n, below, longest = c:int(8), c:int(3), c:int(5) + 1, c:int(4)
  local function lengths(most) return classes(c, most + 1, n) end
  return draw(c, c:of(WIDE), t, n, below):log_softmax(3), classes(c, below, n, longest), lengths(t),
    lengths(longest), { zero_infinity = c:once_in(2), reduction = c:of { "mean", "sum", "none" } }
end

-- ---- types that few tensors have

function A.imag(c) return tensor.complex(draw(c, "float32", c:int(4)), draw(c, "float32", 1)) end
A.view_as_real = A.imag
function A.view_as_complex(c) return draw(c, c:of { "float32", "float64" }, c:int(4), 2) end
for _, name in ipairs { "and", "or", "xor", "left_shift", "right_shift" } do
  A["bitwise_" .. name] = function(c)
    local dtype = c:of { "int64", "int32", "uint8" }
    local x = tensor.randint(0, 9, { c:int(9) }):to(dtype)
    return x, c:once_in(2) and c:int(9) - 1 or x
  end
end

return A
