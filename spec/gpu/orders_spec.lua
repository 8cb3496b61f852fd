--- Copies between orders of dims and pointwise rows over them, against the CPU: every size of
--- element, tiles of each shape with and without a rest, dims around them, views that are written.
local device = require "spec.support.device"
local tensor = require "accelerate.tensor"

if not device.name then
  describe("orders of dims on the device",
    function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local generator = tensor.Generator(11)
-- one type for each size of an element
local TYPES = { "uint8", "bfloat16", "float32", "float64" }

local function draw(dtype, ...)
  local t = tensor.randint(0, 200, { ... }, { generator = generator })
  return t:to(dtype)
end

local function agrees(what, fn, ...)
  local there = {}
  for k, t in ipairs { ... } do there[k] = t:to(D, { copy = true }) end
  device.agree(fn(unpack(there)), fn(...), 0, what)
end

describe(("orders of dims on %s (%s)"):format(D, device.kind), function()
  for _, dtype in ipairs(TYPES) do
    it(("two dims of %s trade places"):format(dtype), function()
      -- a few channels, or few positions; tiles that end inside; a single row, a short one
      for _, size in ipairs { { 3, 1100 }, { 1100, 3 }, { 4, 1024 }, { 2, 33 }, { 33, 2 }, { 7, 300 },
        { 300, 7 }, { 16, 256 }, { 64, 64 }, { 65, 130 }, { 130, 65 }, { 1, 40 }, { 8, 8 }, { 5, 9 } } do
        local a, b = size[1], size[2]
        local what = ("%d x %d"):format(a, b)
        agrees(what, function(x) return x:transpose(1, 2):contiguous() end, draw(dtype, a, b))
        agrees(what .. ", three of them", function(x) return x:transpose(2, 3):contiguous() end,
          draw(dtype, 3, a, b))
        agrees(what .. ", a part of wider rows",
          function(x) return x:narrow(2, 2, a):transpose(2, 3):contiguous() end, draw(dtype, 2, a + 2, b))
        agrees(what .. ", columns of a part",
          function(x) return x:narrow(3, 3, b):transpose(2, 3):contiguous() end, draw(dtype, 2, a, b + 3))
      end
    end)

    it(("four dims of %s in every order"):format(dtype), function()
      local x = draw(dtype, 3, 5, 18, 7)
      for a = 1, 4 do
        for b = 1, 4 do
          for c = 1, 4 do
            local d = 10 - a - b - c
            if a ~= b and b ~= c and a ~= c and d >= 1 and d <= 4 and d ~= a and d ~= b and d ~= c then
              local what = ("%d %d %d %d"):format(a, b, c, d)
              agrees(what, function(t) return t:permute(a, b, c, d):contiguous() end, x)
              agrees(what .. ", written through a view", function(t)
                local y = t:permute(a, b, c, d):contiguous() * 0
                y:permute(1, 2, 3, 4):copy_(t:permute(a, b, c, d))
                t:permute(a, b, c, d):copy_(y + y)
                return t
              end, x:clone())
            end
          end
        end
      end
    end)
  end

  it("casts in another order, and of any start", function()
    for _, pair in ipairs { { "float32", "bfloat16" }, { "bfloat16", "float32" }, { "float16", "float32" },
      { "uint8", "float32" }, { "int64", "float32" }, { "float32", "bool" }, { "float64", "bfloat16" } } do
      local from, to = pair[1], pair[2]
      for _, n in ipairs { 1, 3, 4, 8, 1023, 4096, 5000 } do
        agrees(("%s to %s, %d"):format(from, to, n), function(x) return x:to(to) end, draw(from, n))
        agrees(("%s to %s, %d behind one"):format(from, to, n),
          function(x) return x:narrow(1, 2, n):to(to) end, draw(from, n + 1))
      end
      agrees(("%s to %s, turned"):format(from, to),
        function(x) return x:permute(3, 1, 2):to(to) end, draw(from, 6, 17, 33))
    end
  end)

  for _, dtype in ipairs { "float32", "bfloat16", "int64" } do
    it(("sums of %s with what repeats along some dims"):format(dtype), function()
      local x = draw(dtype, 2, 6, 5, 8)
      for _, shape in ipairs { { 1, 6, 1, 1 }, { 2, 1, 5, 1 }, { 1, 1, 1, 8 }, { 2, 6, 1, 8 },
        { 1, 1, 1, 1 } } do
        local y = draw(dtype, unpack(shape))
        local what = table.concat(shape, " ")
        agrees(what, function(a, b) return a + b end, x, y)
        agrees(what .. ", channels innermost", function(a, b)
          return a:permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3) + b
        end, x, y)
        agrees(what .. ", the first one's other order",
          function(a, b) return b + a:permute(4, 2, 3, 1):contiguous():permute(4, 2, 3, 1) end, x, y)
      end
    end)

    it(("rows of %s that start and end anywhere"):format(dtype), function()
      for _, n in ipairs { 1, 2, 7, 8, 9, 255, 2048, 2049, 4103 } do
        for _, start in ipairs { 1, 2, 5 } do
          agrees(("%d from %d"):format(n, start), function(a, b)
            return a:narrow(1, start, n) * b:narrow(1, 1, n) + 3
          end, draw(dtype, n + 8), draw(dtype, n + 8))
        end
        agrees(("%d of 3 rows"):format(n), function(a) return a:narrow(2, 1, n) + a:narrow(2, 2, n) end,
          draw(dtype, 3, n + 3))
      end
    end)
  end
end)
