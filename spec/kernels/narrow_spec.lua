--- Products of a few rows by weights (out, in), which the CPU computes without oneDNN: every count
--- of rows, lengths that fill no vector, each type, what is added, and the same bits for any number
--- of threads and of rows.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"

local function random(...) return tensor.randn({ ... }, { generator = tensor.Generator(5) }) end

-- The largest distance from the product in float64 of the same numbers, as a share of the largest
-- of these.
local function distance(got, x, w, added)
  local exact = x:double():matmul(w:double():transpose(-2, -1))
  if added then exact = exact + added:double() end
  return (got:double() - exact):abs():max():item() / (1 + exact:abs():max():item())
end

local MOST = { float32 = 1e-6, bfloat16 = 2 ^ -8, float16 = 2 ^ -11 }

describe("products of a few rows", function()
  local threads = core.get_num_threads()
  after_each(function() core.set_num_threads(threads) end)

  for dtype, most in pairs(MOST) do
    it("are right for all sizes in " .. dtype, function()
      for _, k in ipairs { 1, 3, 16, 31, 32, 33, 64, 100, 257 } do
        for _, n in ipairs { 1, 3, 4, 17, 35, 40, 66 } do
          local w, b = random(n, k):to(dtype), random(n):to(dtype)
          for _, m in ipairs { 1, 2, 3, 4, 5, 7, 8, 9, 16 } do
            local x = random(m, k):to(dtype)
            assert.is_true(distance(core.linear(x, w, b), x, w, b) < most, ("%d %d %d"):format(m, n, k))
            assert.is_true(distance(x:matmul(w:t()), x, w) < most, ("%d %d %d"):format(m, n, k))
          end
        end
      end
    end)
  end

  it("take rows and columns of any strides, and batches", function()
    local wide, w = random(5, 90):narrow(2, 7, 70), random(33, 200):narrow(2, 11, 70)
    assert.is_true(distance(core.linear(wide, w), wide, w) < 1e-6)
    local turned = random(70, 3):t()
    assert.is_true(distance(turned:matmul(w:t()), turned, w) < 1e-6)
    local x, y = random(6, 4, 45), random(6, 19, 45)
    for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
      local a, b = x:to(dtype), y:to(dtype)
      assert.is_true(distance(a:matmul(b:transpose(2, 3)), a, b) < MOST[dtype])
    end
  end)

  it("add to gradients that are there", function()
    local w = random(6, 40):requires_grad_()
    local x = random(3, 40)
    for _ = 1, 2 do core.linear(w, x):sum():backward() end
    assert.is_true((w.grad - x:sum(1) * 2):abs():max():item() < 1e-4)
  end)

  it("keep infinities and NaN where they are", function()
    local x, w = tensor.ones(2, 19), tensor.ones(5, 19)
    w[{ 3, 18 }] = math.huge
    x[{ 2, 1 }] = 0 / 0
    for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
      local y = core.linear(x:to(dtype), w:to(dtype)):totable()
      assert.are.same({ 19, 19, math.huge, 19, 19 }, y[1])
      for i = 1, 5 do assert.is_true(y[2][i] ~= y[2][i]) end
    end
  end)

  it("have the same bits for any number of threads, and in any company", function()
    for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
      local x, w = random(8, 333):to(dtype), random(1003, 333):to(dtype)
      core.set_num_threads(1)
      local all = core.linear(x, w):totable()
      core.set_num_threads(3)
      for m = 1, 8 do assert.are.same(all[m], core.linear(x:narrow(1, m, 1), w):totable()[1]) end
      assert.are.same(all, core.linear(x, w):totable())
    end
  end)

  it("a matrix times a vector, for all sizes, strides and threads", function()
    for _, k in ipairs { 1, 31, 32, 33, 100, 1000 } do
      for _, m in ipairs { 2, 3, 17, 400 } do
        local a, v = random(m, k), random(k)
        local got = a:mv(v)
        assert.is_true(distance(got:unsqueeze(2), a, v:unsqueeze(1)) < 1e-6, ("%d %d"):format(m, k))
        core.set_num_threads(1)
        assert.is_true(a:mv(v):equal(got))
        core.set_num_threads(threads)
        local wide = random(m, k + 5)
        assert.is_true(wide:narrow(2, 4, k):mv(v):equal(wide:narrow(2, 4, k):contiguous():mv(v)))
        local far = random(k, 3):select(2, 2)
        assert.is_true(distance(a:mv(far):unsqueeze(2), a, far:unsqueeze(1)) < 1e-6)
      end
    end
    assert.are.same({ 0, 0 }, core.zeros(2, 0):mv(core.zeros(0)):totable())
  end)
end)
