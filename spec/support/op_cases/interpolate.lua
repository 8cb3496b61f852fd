--- Cases of the rows in host/core/ops/interpolate.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, each = H.range, H.each

local function resampled(row, count, align)
  local out = {}
  for i = 0, count - 1 do
    local at = align and i * (#row - 1) / (count - 1) or math.max(0, (i + 0.5) * #row / count - 0.5)
    local low = math.floor(at)
    out[i + 1] = row[low + 1] * (1 - at + low) + (row[low + 2] or row[low + 1]) * (at - low)
  end
  return out
end

local function image(x, rows, cols, align)
  return each(x, function(n)
    return each(n, function(plane)
      local wide = each(plane, function(row) return resampled(row, cols, align) end)
      return H.columns(each(H.columns(wide), function(col) return resampled(col, rows, align) end))
    end)
  end)
end

C.interpolate = { inputs = { range(-2, 2, { 2, 2, 3, 4 }) },
  call = function(x)
    return core.interpolate(x, { 5, 3 }, { mode = "bilinear" }),
      core.interpolate(x, { 2, 7 }, { mode = "bilinear", align_corners = true }),
      core.interpolate(x, { 6, 4 })
  end,
  ref = function(x)
    return image(x, 5, 3), image(x, 2, 7, true),
      each(x, function(n) return each(n, function(p) return { p[1], p[1], p[2], p[2], p[3], p[3] } end) end)
  end }
C._resample = { through = "interpolate" }
C._resample_backward = { through = "interpolate" }
C.pixel_shuffle = { inputs = { range(-2, 2, { 2, 4, 1, 2 }) },
  call = function(x) return core.pixel_shuffle(x, 2) end,
  ref = function(x)
    return each(x, function(n)
      return { { { n[1][1][1], n[2][1][1], n[1][1][2], n[2][1][2] },
        { n[3][1][1], n[4][1][1], n[3][1][2], n[4][1][2] } } }
    end)
  end }
C.pixel_unshuffle = { inputs = { range(-2, 2, { 2, 1, 2, 4 }) },
  call = function(x) return core.pixel_unshuffle(x, 2) end,
  ref = function(x)
    return each(x, function(n)
      local p = n[1]
      return { { { p[1][1], p[1][3] } }, { { p[1][2], p[1][4] } }, { { p[2][1], p[2][3] } },
        { { p[2][2], p[2][4] } } }
    end)
  end }
