--- Distances of all pairs of rows on the device, whole tiles and parts of them, against the CPU's
--- in float64.
local device = require "spec.support.device"
local tensor = require "accelerate.tensor"
local F = require("accelerate.nn").functional

if not device.name then
  describe("distances on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local ORDERS = { 2, 1, 0, 0.5, 3, math.huge }

-- Batches, rows of x, rows of y, numbers of each.
local SHAPES = { { 1, 70, 66, 3 }, { 3, 5, 9, 4 }, { 2, 33, 65, 40 }, { 1, 1, 40, 100 }, { 1, 900, 1000, 6 } }

local function difference(a, b) return (a:cpu():double() - b:cpu():double()):abs():max():item() end

describe("cdist on the device", function()
  for _, dtype in ipairs { "float32", "float64" } do
    for _, shape in ipairs(SHAPES) do
      it(("(%d, %d and %d, %d), %s"):format(shape[1], shape[2], shape[3], shape[4], dtype), function()
        local b, m, n, k = unpack(shape)
        tensor.manual_seed(3)
        -- differences are exact in both types, so that the same ones are the largest, and some are
        -- 0
        local at = { tensor.randn(b, m, k):mul_(192):round_():div_(64),
          tensor.randn(b, n, k):mul_(64):round_():div_(64) }
        at[2]:narrow(2, 1, 1):copy_(at[1]:narrow(2, 1, 1)) -- a pair at distance 0
        local weights = tensor.randn(b, m, n)
        for _, p in ipairs(ORDERS) do
          local function results(place, type)
            local x, y = at[1]:to(place):to(type):requires_grad_(), at[2]:to(place):to(type):requires_grad_()
            local d = F.cdist(x, y, { p = p })
            d:backward(weights:to(place):to(type))
            return { d:detach(), x.grad, y.grad }
          end
          local got, expected = results(device.name, dtype), results("cpu", "float64")
          for i, what in ipairs { "distances", "the gradient of x", "the gradient of y" } do
            local scale = math.max(1, expected[i]:abs():max():item())
            local off = difference(got[i], expected[i]) / scale
            assert.is_true(off < (dtype == "float64" and 1e-12 or 2e-6),
              ("%s, p = %g: %g of the largest"):format(what, p, off))
          end
        end
      end)
    end
  end

  it("gives the same bits for few pairs as for many", function()
    for _, p in ipairs(ORDERS) do
      local x = tensor.randn({ 700, 37 }, { device = device.name })
      local y = tensor.randn({ 800, 37 }, { device = device.name })
      local few = F.cdist(x:narrow(1, 65, 20), y:narrow(1, 101, 30), { p = p })
      local many = F.cdist(x, y, { p = p })
      assert.is_true(tensor.equal(many:narrow(1, 65, 20):narrow(2, 101, 30), few), p)
    end
  end)

  it("reads gradients and distances in any order, and numbers that are not", function()
    local x = tensor.randn({ 2, 40, 7 }, { device = device.name }):requires_grad_()
    local y = tensor.randn({ 2, 50, 7 }, { device = device.name })
    local g = tensor.randn({ 2, 50, 40 }, { device = device.name }):transpose(2, 3)
    local expected = x:detach():cpu():requires_grad_()
    F.cdist(x, y):backward(g)
    F.cdist(expected, y:cpu()):backward(g:cpu())
    assert.is_true(difference(x.grad, expected.grad) < 1e-4)
    F.cdist(x, y):sum():backward() -- a gradient of strides 0
    local bad = x:detach():clone()
    bad[{ 1, 3, 2 }] = 0 / 0
    for _, p in ipairs(ORDERS) do
      if p ~= 0 then
        local d = F.cdist(bad, y, { p = p })
        assert.are.equal(50, d:isnan():sum():item())
      end
    end
  end)
end)
