--- Cases of the rows in host/core/ops/conv.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, each = H.range, H.each

--- The convolution of nested tables: x [n][c][h][w], w [o][c / groups][kh][kw], bias [o].
local function convolved(x, w, bias, o)
  local sh, sw, ph, pw, dh, dw, groups = o[1], o[2], o[3], o[4], o[5], o[6], o[7]
  local cg, og = #w[1], #w / groups
  local height, width = #x[1][1], #x[1][1][1]
  local oh = math.floor((height + 2 * ph - dh * (#w[1][1] - 1) - 1) / sh) + 1
  local ow = math.floor((width + 2 * pw - dw * (#w[1][1][1] - 1) - 1) / sw) + 1
  local y = {}
  for n = 1, #x do
    y[n] = {}
    for k = 1, #w do
      local plane, first = {}, math.floor((k - 1) / og) * cg
      for i = 1, oh do
        plane[i] = {}
        for j = 1, ow do
          local s = bias and bias[k] or 0
          for c = 1, cg do
            for a, taps in ipairs(w[k][c]) do
              local row = x[n][first + c][(i - 1) * sh - ph + (a - 1) * dh + 1]
              for b, tap in ipairs(taps) do
                s = s + tap * (row and row[(j - 1) * sw - pw + (b - 1) * dw + 1] or 0)
              end
            end
          end
          plane[i][j] = s
        end
      end
      y[n][k] = plane
    end
  end
  return y
end

--- The transpose of convolved as a linear map, of one input: each element spreads over its window.
local function transposed(x, w, bias, oh, ow, sh, sw, ph, pw)
  local y = {}
  for n = 1, #x do
    y[n] = {}
    for k = 1, #w[1] do
      y[n][k] = {}
      for i = 1, oh do
        y[n][k][i] = {}
        for j = 1, ow do y[n][k][i][j] = bias and bias[k] or 0 end
      end
      for c = 1, #x[n] do
        for i, row in ipairs(x[n][c]) do
          for j, v in ipairs(row) do
            for a, taps in ipairs(w[c][k]) do
              for b, tap in ipairs(taps) do
                local at = y[n][k][(i - 1) * sh + a - ph]
                local to = (j - 1) * sw + b - pw
                if at and at[to] then at[to] = at[to] + v * tap end
              end
            end
          end
        end
      end
    end
  end
  return y
end

C.conv2d = { inputs = { range(-1, 1, { 2, 4, 4, 3 }), range(-1, 1, { 2, 2, 3, 2 }), range(-1, 1, { 2 }) },
  call = function(x, w, b)
    return core.conv2d(x, w, b, { stride = { 2, 1 }, padding = { 1, 0 }, groups = 2 }),
      core.conv2d(x, w, { dilation = { 1, 2 }, groups = 2 })
  end,
  ref = function(x, w, b)
    return convolved(x, w, b, { 2, 1, 1, 0, 1, 1, 2 }), convolved(x, w, nil, { 1, 1, 0, 0, 1, 2, 2 })
  end }
C.conv1d = { inputs = { range(-1, 1, { 2, 2, 5 }), range(-1, 1, { 3, 2, 2 }), range(-1, 1, { 3 }) },
  call = function(x, w, b) return core.conv1d(x, w, b, { stride = 2, padding = 1 }) end,
  ref = function(x, w, b)
    local tall, kernel = H.each(x, function(n) return H.each(n, function(c) return { c } end) end), H.each(w,
      function(k) return H.each(k, function(c) return { c } end) end)
    return H.each(convolved(tall, kernel, b, { 1, 2, 0, 1, 1, 1, 1 }),
      function(n) return H.each(n, function(c) return c[1] end) end)
  end }
C.conv_transpose2d = { inputs = { range(-1, 1, { 2, 2, 2, 3 }), range(-1, 1, { 2, 3, 2, 3 }),
  range(-1, 1, { 3 }) },
  call = function(x, w, b)
    return core.conv_transpose2d(x, w, b,
      { stride = { 2, 1 }, padding = { 0, 1 }, output_padding = { 1, 0 } })
  end,
  ref = function(x, w, b) return transposed(x, w, b, 5, 3, 2, 1, 0, 1) end }
C.conv_transpose1d = { inputs = { range(-1, 1, { 2, 2, 3 }), range(-1, 1, { 2, 3, 2 }) },
  call = function(x, w) return core.conv_transpose1d(x, w, { stride = 2 }) end,
  ref = function(x, w)
    local tall, kernel = H.each(x, function(n) return H.each(n, function(c) return { c } end) end), H.each(w,
      function(k) return H.each(k, function(c) return { c } end) end)
    return H.each(transposed(tall, kernel, nil, 1, 6, 1, 2, 0, 0),
      function(n) return H.each(n, function(c) return c[1] end) end)
  end }
for _, name in ipairs { "_convolution", "_conv2d_backward_input", "_conv2d_backward_weight" } do
  C[name] = { through = "conv2d" }
end

-- Along the depth: the sum, over the kernel's slices, of their convolutions with slices of x.
local function deep(x, w, bias, depth_stride, depth_padding, o)
  local out = {}
  for n = 1, #x do out[n] = each(w, function() return {} end) end
  local depth, kernel = #x[1][1], #w[1][1]
  for z = 1, math.floor((depth + 2 * depth_padding - kernel) / depth_stride) + 1 do
    for k = 1, kernel do
      local at = (z - 1) * depth_stride - depth_padding + k
      local slice = each(x, function(n)
        return each(n, function(c)
          return c[at] or each(c[1], function(row) return each(row, function() return 0 end) end)
        end)
      end)
      local taps = each(w, function(output) return each(output, function(c) return c[k] end) end)
      local part = convolved(slice, taps, k == 1 and bias or nil, o)
      for n = 1, #x do
        for c = 1, #w do
          local so_far = out[n][c][z]
          out[n][c][z] = not so_far and part[n][c] or H.plus(so_far, part[n][c])
        end
      end
    end
  end
  return out
end

C.conv3d = { inputs = { range(-1, 1, { 2, 2, 3, 3, 4 }), range(-1, 1, { 2, 1, 2, 2, 3 }),
  range(-1, 1, { 2 }) },
  call = function(x, w, b)
    return core.conv3d(x, w, b, { stride = { 2, 1, 2 }, padding = { 1, 0, 1 }, groups = 2 })
  end,
  ref = function(x, w, b) return deep(x, w, b, 2, 1, { 1, 2, 0, 1, 1, 1, 2 }) end }
C.conv_transpose3d = { inputs = { range(-1, 1, { 1, 2, 2, 2, 3 }), range(-1, 1, { 2, 2, 2, 2, 2 }) },
  call = function(x, w)
    return core.conv_transpose3d(x, w, { stride = { 1, 2, 1 }, padding = { 0, 1, 0 } })
  end }
