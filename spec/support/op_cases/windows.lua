--- Cases of the rows in host/core/ops/windows.def.
local H = require "spec.support.op_cases.helpers"
local C = H.C

local ODD = { kernel = { 3, 2 }, dilation = { 1, 2 }, padding = { 2, 1 }, stride = { 2, 3 } }
local PLAIN = { kernel = { 2, 2 }, dilation = { 1, 1 }, padding = { 0, 0 }, stride = { 1, 1 } }
local AROUND = { kernel = { 3, 3 }, dilation = { 1, 1 }, padding = { 1, 1 }, stride = { 1, 1 } }

local function windows_along(o, d, size)
  return math.floor((size + 2 * o.padding[d] - o.dilation[d] * (o.kernel[d] - 1) - 1) / o.stride[d]) + 1
end

--- f(row of the columns, column, row and column of the image, from 1) for all that is inside.
local function every(o, channels, height, width, f)
  local rows, across = windows_along(o, 1, height), windows_along(o, 2, width)
  for c = 1, channels do
    for i = 1, o.kernel[1] do
      for j = 1, o.kernel[2] do
        for r = 1, rows do
          for q = 1, across do
            local y = (r - 1) * o.stride[1] - o.padding[1] + (i - 1) * o.dilation[1] + 1
            local x = (q - 1) * o.stride[2] - o.padding[2] + (j - 1) * o.dilation[2] + 1
            if y >= 1 and y <= height and x >= 1 and x <= width then
              f(c, ((c - 1) * o.kernel[1] + i - 1) * o.kernel[2] + j, (r - 1) * across + q, y, x)
            end
          end
        end
      end
    end
  end
  return channels * o.kernel[1] * o.kernel[2], rows * across
end

local function zeros(n, ...)
  local t = {}
  for i = 1, n do t[i] = ... and zeros(...) or 0 end
  return t
end

local function taken(o, images)
  return H.each(images, function(image)
    local list = {}
    local rows, columns = every(o, #image, #image[1], #image[1][1], function(c, row, column, y, x)
      list[#list + 1] = { row, column, image[c][y][x] }
    end)
    local out = zeros(rows, columns)
    for _, v in ipairs(list) do out[v[1]][v[2]] = v[3] end
    return out
  end)
end

local function added(o, batch, channels, height, width)
  return H.each(batch, function(columns)
    local out = zeros(channels, height, width)
    every(o, channels, height, width, function(c, row, column, y, x)
      out[c][y][x] = out[c][y][x] + columns[row][column]
    end)
    return out
  end)
end

C.im2col = { inputs = { H.range(-2, 2, { 2, 2, 5, 4 }) },
  call = function(x)
    return x:im2col(ODD.kernel, ODD.dilation, ODD.padding, ODD.stride), x:im2col(2),
      x:im2col(3, { padding = 1 })
  end,
  ref = function(x) return taken(ODD, x), taken(PLAIN, x), taken(AROUND, x) end }

C.col2im = { inputs = { H.range(-2, 2, { 2, 12, 8 }), H.range(-2, 2, { 2, 8, 6 }),
  H.range(-2, 2, { 1, 9, 6 }) },
  call = function(x, y, z)
    return x:col2im({ 5, 4 }, ODD.kernel,
      { dilation = ODD.dilation, padding = ODD.padding, stride = ODD.stride }),
      y:col2im({ 3, 4 }, 2), z:col2im({ 2, 3 }, 3, { padding = 1 })
  end,
  ref = function(x, y, z)
    return added(ODD, x, 2, 5, 4), added(PLAIN, y, 2, 3, 4), added(AROUND, z, 1, 2, 3)
  end }
