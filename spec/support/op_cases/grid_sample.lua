--- Cases of the rows in host/core/ops/grid_sample.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, each = H.range, H.each

local function sampled(plane, gx, gy)
  local h, w = #plane, #plane[1]
  local x, y = ((gx + 1) * w - 1) / 2, ((gy + 1) * h - 1) / 2
  local left, top, sum = math.floor(x), math.floor(y), 0
  for i = top, top + 1 do
    for j = left, left + 1 do
      local v = plane[i + 1] and plane[i + 1][j + 1] or 0
      sum = sum + v * (1 - math.abs(x - j)) * (1 - math.abs(y - i))
    end
  end
  return sum
end

C.grid_sample = { inputs = { range(-2, 2, { 2, 2, 3, 4 }), range(-1.3, 1.3, { 2, 2, 3, 2 }) },
  once = "_grid_sample_backward",
  call = function(x, grid)
    return core.grid_sample(x, grid),
      core.grid_sample(x, grid, { mode = "bicubic", padding_mode = "reflection", align_corners = true })
  end,
  ref = function(x, grid)
    local out = {}
    for n, image in ipairs(x) do
      out[n] = each(image, function(plane)
        return each(grid[n], function(row)
          return each(row, function(at) return sampled(plane, at[1], at[2]) end)
        end)
      end)
    end
    return out
  end }
C._grid_sample_backward = { through = "grid_sample" }
