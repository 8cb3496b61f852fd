--- Attention on tensor cores (kernels/cuda/flash_*.cu): every kind of tile, edge, mask and layout
--- against the CPU in float64, which sees the same rounded inputs; the plain kernel beside it;
--- dropout bit by bit.  float32 in three products of TF32.
local device = require "spec.support.device"
local emulator = require "spec.support.emulator"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"

if not device.name then
  describe("attention on the device", function() it("needs one", function() pending(device.reason) end) end)
  return
end

local D = device.name

-- |difference| / |expected|, over all elements: results and gradients are rounded to the type, as
-- are probabilities (and their gradients) on
-- their way through the tensor cores, so several times half an ulp: 2^-9 for bfloat16, 2^-12 for
-- float16.  And the largest difference against the largest element, which a wrong element alone
-- would exceed.
local OVERALL = { bfloat16 = 6e-3, float16 = 1e-3, float32 = 1e-6, float64 = 1e-14 }
local ANYWHERE = { bfloat16 = 3e-2, float16 = 4e-3, float32 = 4e-6, float64 = 1e-13 }
local NOTHING = 3e-5 -- where the answer is 0, the difference of rounded numbers: a query with a single key

local function close(what, dtype, got, expected)
  assert.are.equal(dtype, got.dtype, what)
  assert.are.same(expected.shape, got.shape, what)
  got = got:detach():to("cpu"):double()
  local size, largest = expected:norm():item(), expected:abs():max():item()
  local difference = got - expected
  local overall, anywhere = difference:norm():item(), difference:abs():max():item()
  assert.is_true(overall <= OVERALL[dtype] * size + NOTHING,
    ("%s: differs by %g of %g"):format(what, overall, size))
  assert.is_true(anywhere <= ANYWHERE[dtype] * largest + NOTHING,
    ("%s: one element differs by %g of %g"):format(what, anywhere, largest))
end

-- As (B, H, T, D) with adjacent columns; or, for the kernel in TF32, with columns T apart.
local function apart(x) return x:transpose(3, 4):contiguous():transpose(3, 4) end

-- y and the gradients of q, k, v, computed in `dtype` on `on`.
local function attention(on, dtype, case, given, lay)
  local leaves, used = {}, {}
  for i, x in ipairs { given.q, given.k, given.v } do
    leaves[i] = (lay or function(t) return t end)(x:to(dtype):to(on)):detach():requires_grad_()
    used[i] = leaves[i]
  end
  local mask = given.mask
  if mask then
    if mask.dtype ~= "bool" and dtype == "float64" then mask = mask:double() end
    mask = mask:to(on)
  end
  local y = F.scaled_dot_product_attention(used[1], used[2], used[3], mask, {
    is_causal = case.causal, enable_gqa = case.grouped, scale = case.scale, dropout_p = case.dropout,
    generator = case.dropout and tensor.Generator(7) or nil,
  })
  y:backward(given.g:to(dtype):to(on))
  return { y, leaves[1].grad, leaves[2].grad, leaves[3].grad }
end

-- How often this device's kernels of attention ran since `reset`, by kind.
local function ways()
  local kinds = { ["tensor cores"] = "tensor", ["tensor cores in tf32"] = "tf32", plain = "plain" }
  local count = { tensor = 0, tf32 = 0, plain = 0 }
  for name, calls in pairs(core.kernel_stats { device = D }) do
    local way = kinds[name:match("^attention.*, (.*)$")]
    if way then count[way] = count[way] + calls end
  end
  return count
end

local NAMES = { "y", "gradient of query", "gradient of key", "gradient of value" }

local function inputs(case, dtype)
  local b, h, hk, t, s, d, dv = unpack(case)
  dv = dv or d
  local given = { q = tensor.randn(b, h, t, d):to(dtype), k = tensor.randn(b, hk, s, d):to(dtype),
    v = tensor.randn(b, hk, s, dv):to(dtype), g = tensor.randn(b, h, t, dv):to(dtype) }
  given.mask = case.mask and case.mask(b, h, t, s)
  return given
end

-- On tensor cores and by the kernel for other layouts, against the CPU.
local function check(case, dtype, also_apart)
  local what = ("%s, %s (%s)"):format(dtype, case.what or "plain", table.concat({ unpack(case) }, ", "))
  local given = inputs(case, dtype)
  local expected = attention("cpu", "float64", case, given)
  core.kernel_stats { reset = true, device = D }
  local got = attention(D, dtype, case, given)
  if not device.fake then assert.are.same({ tensor = 2, tf32 = 0, plain = 0 }, ways(), what) end
  for i, name in ipairs(NAMES) do close(what .. ": " .. name, dtype, got[i], expected[i]) end
  if not also_apart then return end
  core.kernel_stats { reset = true, device = D }
  local other = attention(D, dtype, case, given, apart)
  if not device.fake then assert.are.same({ tensor = 0, tf32 = 2, plain = 0 }, ways(), what) end
  for i, name in ipairs(NAMES) do close(what .. ", apart: " .. name, dtype, other[i], expected[i]) end
end

describe(("attention on tensor cores on %s (%s)"):format(D, device.kind), function()
  setup(function() tensor.manual_seed(5) end)

  it("takes heads of every multiple of 8 to 128", function()
    for _, d in ipairs { 8, 24, 32, 40, 64, 72, 80, 96, 104, 128 } do
      for _, dtype in ipairs { "bfloat16", "float16" } do check({ 1, 2, 2, 70, 50, d }, dtype, d == 40) end
    end
    check({ 1, 1, 1, 40, 70, 64, 32, what = "smaller values" }, "bfloat16", true)
    check({ 1, 1, 1, 40, 70, 32, 128, what = "larger values" }, "float16", true)
  end)

  it("takes every length", function()
    for i, t in ipairs { 1, 17, 64, 100, 129, 200 } do
      for k, s in ipairs { 1, 17, 64, 100, 129, 200 } do
        local dtype = (i + k) % 2 == 0 and "bfloat16" or "float16"
        check({ 1, 1, 1, t, s, 64, causal = (i + 2 * k) % 3 > 0, what = "causal or not" }, dtype)
      end
    end
    for _, d in ipairs { 32, 96, 128 } do
      for _, size in ipairs { { 100, 129 }, { 129, 64 }, { 200, 200 } } do
        check({ 1, 1, 1, size[1], size[2], d, causal = true, what = "causal" }, "bfloat16", true)
      end
    end
    -- More work than a device has multiprocessors: blocks of 128 queries.
    for _, d in ipairs { 32, 64, 96, 128 } do
      check({ device.kind == "cuda" and 60 or 1, 9, 3, 140, 140, d, grouped = true, causal = true,
        what = "many" }, "bfloat16")
      check({ device.kind == "cuda" and 60 or 1, 9, 3, 140, 90, d, grouped = true, dropout = 0.2,
        what = "many, dropout" }, "float16")
    end
  end)

  it("shares keys and values among groups of heads", function()
    for _, dtype in ipairs { "bfloat16", "float16" } do
      check({ 2, 6, 2, 70, 70, 64, grouped = true, causal = true, what = "grouped, causal" }, dtype, true)
      check({ 1, 4, 1, 33, 100, 32, grouped = true, what = "one for all" }, dtype, true)
      check({ 1, 4, 2, 70, 65, 128, grouped = true, dropout = 0.3, what = "grouped, dropout" }, dtype, true)
    end
  end)

  it("adds masks and hides by them, whatever they are repeated over", function()
    local function hide(...)
      local shape = { ... }
      return function(b, h, t, s)
        local size = { b, h, t, s }
        for i = 1, 4 do size[i] = shape[i] == 1 and 1 or size[i] end
        return tensor.rand(unpack(size)):gt(0.3)
      end
    end
    local function add(dtype, ...)
      local of = hide(...)
      return function(b, h, t, s)
        local hidden = of(b, h, t, s)
        return (tensor.randn(unpack(hidden.shape)) * 2):masked_fill(
          hidden:logical_not():logical_and(tensor.rand(unpack(hidden.shape)):gt(0.5)), -math.huge):to(dtype)
      end
    end
    for _, form in ipairs { { 2, 2, 2, 2 }, { 2, 1, 1, 2 }, { 1, 2, 2, 2 }, { 1, 1, 2, 2 }, { 2, 2, 2, 1 },
      { 1, 1, 1, 2 } } do
      local text = ("%d%d%d%d"):format(unpack(form))
      check({ 2, 2, 2, 70, 90, 64, mask = hide(unpack(form)), what = "bool mask " .. text }, "bfloat16",
        text == "2222")
      check({ 2, 2, 2, 70, 90, 64, mask = add("float32", unpack(form)), what = "mask " .. text,
        dropout = 0.2 }, "float16", text == "2112")
    end
    for i, dtype in ipairs { "float16", "bfloat16", "float32" } do
      check({ 1, 2, 2, 40, 129, ({ 32, 96, 128 })[i], mask = add(dtype, 2, 2, 2, 2), what = dtype ..
        " mask" }, "bfloat16")
    end
    check({ 1, 2, 2, 100, 70, 64,
      mask = function(_, _, t, s)
        return tensor.rand(s, t):gt(0.3):transpose(1, 2)
      end, what = "mask with columns apart" }, "bfloat16")
  end)

  it("gives 0 for a query that sees no key, and no gradient", function()
    local case = { 1, 2, 2, 40, 70, 64, what = "none", mask = function(b, h, t, s)
      local mask = tensor.rand(b, h, t, s):gt(0.3)
      mask[{ 1, 1, 3 }] = false
      mask[{ 1, 2, 20 }] = false
      return mask
    end }
    check(case, "bfloat16", true)
    local given = inputs(case, "float16")
    local got = attention(D, "float16", case, given)
    for i = 1, 2 do
      local row = got[i]:detach():to("cpu")
      assert.are.equal(0, row[{ 1, 1, 3 }]:abs():max():item())
      assert.are.equal(0, row[{ 1, 2, 20 }]:abs():max():item())
      assert.is_true(row[{ 1, 1, 4 }]:abs():max():item() > 0)
    end
    check({ 1, 1, 1, 70, 5, 64, causal = true, what = "fewer keys than queries" }, "bfloat16")
  end)

  it("masked in full by finite numbers gives the mean of the values, with the CPU's gradients", function()
    for _, dtype in ipairs { "bfloat16", "float16" } do
      for _, lowest in ipairs { -3.4028234663852886e38, -1e38, -1e9 } do
        for _, each in ipairs { false, true } do -- one row of the mask for all queries, or one for each
          local case = { 2, 1, 1, 18, 40, 32 }
          local given = inputs(case, dtype)
          given.mask = tensor.zeros(2, 1, each and 18 or 1, 40)
          given.mask:select(1, 1):fill_(lowest)
          given.mask:select(1, 2):narrow(3, 30, 11):fill_(lowest)
          core.kernel_stats { device = D, reset = true }
          local got, here = attention(D, dtype, case, given), attention("cpu", dtype, case, given)
          assert.are.equal(0, ways().plain)
          local what = ("masked by %g, %s, "):format(lowest, dtype)
          for i, name in ipairs(NAMES) do close(what .. name, dtype, got[i], here[i]:detach():double()) end
          local mean = given.v:select(1, 1):double():mean(2, true):expand(1, 18, 32)
          close(what .. "the mean", dtype, got[1]:select(1, 1), mean)
        end
      end
    end
    -- a mask in the half type itself, whose lowest number is float32's but for the last bits
    local case = { 1, 2, 2, 20, 33, 32 }
    local given = inputs(case, "bfloat16")
    given.mask = tensor.full({ 1, 1, 20, 33 }, -3.3895313892515355e38):bfloat16()
    local got, here = attention(D, "bfloat16", case, given), attention("cpu", "bfloat16", case, given)
    for i, name in ipairs(NAMES) do close(name, "bfloat16", got[i], here[i]:detach():double()) end
  end)

  it("scales by any number", function()
    for _, scale in ipairs { 0.3, 0.01, -0.3, 0 } do
      check({ 1, 1, 1, 70, 90, 64, scale = scale, causal = true, what = "scale " .. scale }, "bfloat16")
    end
  end)

  -- Equal scores, values of one key each: y shows which (query, key) stayed; g of one query each:
  -- so does the gradient of values.
  it("drops what the CPU drops", function()
    for _, size in ipairs { { 1, 100, 37 }, { 3, 128, 128 }, { 2, 17, 101 }, { 1, 64, 90 } } do
      local h, t, s = unpack(size)
      local case = { dropout = 0.37 }
      local function eye(n, columns)
        return tensor.eye(n, columns):view(1, 1, n, columns):expand(1, h, n, columns):contiguous()
      end
      local given = { q = tensor.zeros(1, h, t, 64), k = tensor.zeros(1, h, s, 64), v = eye(s, 128),
        g = eye(t, 128) }
      local here = attention("cpu", "float32", case, given)
      for _, dtype in ipairs { "bfloat16", "float16" } do
        core.kernel_stats { reset = true, device = D }
        local there = attention(D, dtype, case, given)
        if not device.fake then assert.are.same({ tensor = 2, tf32 = 0, plain = 0 }, ways()) end
        for _, i in ipairs { 1, 4 } do
          assert.is_true(tensor.equal(here[i]:ne(0), there[i]:to("cpu"):ne(0)), NAMES[i])
        end
      end
      local stay = here[1]:ne(0):double():sum():item() / (h * t * s)
      assert.is_true(math.abs(stay - 0.63) < 0.05, "share that stays: " .. stay)
    end
    for _, d in ipairs { 32, 64, 96, 128 } do
      for _, dtype in ipairs { "bfloat16", "float16" } do
        check({ 1, 3, 3, 100, 77, d, dropout = 0.25, causal = d == 64, what = "dropout" }, dtype, d == 96)
      end
    end
    check({ 2, 2, 2, 128, 128, 64, dropout = 0.1, mask = function(b, _, _, s)
      return tensor.arange(s):view(1, 1, 1, s):lt(tensor.tensor({ 128, 70 }):narrow(1, 1, b):view(b, 1, 1, 1))
    end, what = "a padded batch" }, "bfloat16", true)
    check({ 1, 1, 1, 30, 40, 64, dropout = 1, what = "all dropped" }, "float16")
  end)

  it("reads query, key and value out of one projection, and writes their gradients into one", function()
    for _, dtype in ipairs { "bfloat16", "float16" } do
      for _, size in ipairs { { 2, 70, 3, 64 }, { 1, 129, 2, 96 }, { 3, 33, 2, 32 } } do
        local b, t, h, d = unpack(size)
        local x, g = tensor.randn(b, t, 3 * h * d):to(dtype), tensor.randn(b, h, t, d):to(dtype)
        local function run(on, as)
          local leaf = x:to(as):to(on):detach():requires_grad_()
          local q, k, v = leaf:split_heads(h)
          local y = F.scaled_dot_product_attention(q, k, v, nil, { is_causal = true })
          y:backward(g:to(as):to(on))
          return y, leaf.grad
        end
        local y, dx = run("cpu", "float64")
        core.kernel_stats { reset = true, device = D }
        local there, dx_there = run(D, dtype)
        if not device.fake then assert.are.same({ tensor = 2, tf32 = 0, plain = 0 }, ways()) end
        close("y", dtype, there, y)
        close("gradient of the projection", dtype, dx_there, dx)
      end
    end
  end)

  it("leaves to TF32 what does not lie on 16 bytes, float32 and other heads", function()
    if device.fake then return end
    local function way(fn)
      core.kernel_stats { reset = true, device = D }
      fn()
      return ways()
    end
    local function of(dtype, d, lay)
      return function()
        local given = inputs({ 1, 1, 1, 20, 20, d }, dtype)
        attention(D, dtype, {}, given, lay)
      end
    end
    assert.are.same({ tensor = 2, tf32 = 0, plain = 0 }, way(of("bfloat16", 64)))
    assert.are.same({ tensor = 0, tf32 = 2, plain = 0 }, way(of("float32", 64)))
    assert.are.same({ tensor = 0, tf32 = 0, plain = 2 }, way(of("float64", 64)))
    assert.are.same({ tensor = 0, tf32 = 2, plain = 0 }, way(of("bfloat16", 36)))
    assert.are.same({ tensor = 0, tf32 = 2, plain = 0 }, way(of("float16", 136)))
    assert.are.same({ tensor = 0, tf32 = 2, plain = 0 }, way(of("float16", 64, apart)))
    -- rows that start 2 bytes beyond
    assert.are.same({ tensor = 0, tf32 = 2, plain = 0 }, way(of("float16", 64, function(x)
      local wide = tensor.zeros(x.shape[1], x.shape[2], x.shape[3], x.shape[4] + 8,
        { dtype = x.dtype, device = x.device })
      return wide:narrow(4, 2, x.shape[4]):copy_(x)
    end)))
  end)

  it("gives the same bits every time", function()
    local case = { 2, 4, 2, 150, 170, 64, grouped = true, dropout = 0.1 }
    local given = inputs(case, "bfloat16")
    local first = attention(D, "bfloat16", case, given)
    for _ = 1, 2 do
      local again = attention(D, "bfloat16", case, given)
      for i, name in ipairs(NAMES) do assert.is_true(tensor.equal(first[i], again[i]), name) end
    end
  end)
end)

-- float32, whose digits three products of TF32 keep: one that is missing makes errors of 1e-4.
describe(("attention in float32 on %s (%s)"):format(D, device.kind), function()
  setup(function() tensor.manual_seed(6) end)

  local function float32(case, lay, dtype)
    dtype = dtype or "float32"
    local what = ("%s, %s (%s)"):format(dtype, case.what or "plain", table.concat({ unpack(case) }, ", "))
    local given = inputs(case, dtype)
    local expected = attention("cpu", "float64", case, given)
    core.kernel_stats { reset = true, device = D }
    local got = attention(D, dtype, case, given, lay)
    if not device.fake then
      assert.are.same({ tensor = 0, tf32 = dtype == "float64" and 0 or 2, plain = dtype == "float64" and 2
        or 0 }, ways(), what)
    end
    for i, name in ipairs(NAMES) do close(what .. ": " .. name, dtype, got[i], expected[i]) end
  end

  it("takes heads of any size to 256", function()
    for _, d in ipairs { 1, 8, 20, 33, 64, 72, 128, 130, 200, 256 } do float32 { 1, 2, 2, 37, 50, d } end
    float32 { 1, 1, 1, 40, 70, 256, 24, what = "smaller values" }
    float32 { 1, 1, 1, 40, 70, 12, 160, what = "larger values" }
    float32({ 1, 2, 2, 40, 37, 36 }, nil, "float64")
  end)

  it("takes every length, causal or not", function()
    for i, t in ipairs { 1, 33, 64, 130 } do
      for k, s in ipairs { 2, 17, 64, 100 } do
        float32 { 1, 1, 1, t, s, i % 2 == 0 and 64 or 96, causal = (i + k) % 2 == 0, what = "causal or not" }
      end
    end
    float32 { 1, 1, 1, 70, 90, 256, causal = true, what = "causal" }
    -- more work than a device has multiprocessors: blocks of 128 queries
    for _, causal in ipairs { false, true } do
      float32 { device.kind == "cuda" and 60 or 1, 9, 3, 140, 70, 32, grouped = true, causal = causal,
        what = "many" }
    end
  end)

  it("takes any strides", function()
    for _, d in ipairs { 20, 64, 136 } do
      float32({ 2, 2, 1, 33, 40, d, grouped = true, what = "columns apart" }, apart)
      -- rows that start 4 bytes beyond 16
      float32({ 2, 2, 1, 33, 40, d, grouped = true, what = "off 16 bytes" }, function(x)
        local wide = tensor.zeros(x.shape[1], x.shape[2], x.shape[3], x.shape[4] + 4,
          { dtype = x.dtype, device = x.device })
        return wide:narrow(4, 2, x.shape[4]):copy_(x)
      end)
    end
  end)

  it("adds masks, hides by them and drops what the CPU drops", function()
    local function hide(b, h, t, s) return tensor.rand(b, h, t, s):gt(0.3) end
    local function same(_, _, _, s) return tensor.randn(1, 1, 1, s) end
    for _, d in ipairs { 40, 128, 256 } do
      float32 { 2, 2, 2, 33, 50, d, mask = hide, what = "bool mask" }
      float32 { 1, 2, 1, 33, 50, d, mask = same, grouped = true, dropout = 0.3, what = "one mask, dropout" }
      float32 { 2, 2, 2, 37, 41, d, dropout = 0.25, causal = true, what = "dropout" }
    end
    float32 { device.kind == "cuda" and 60 or 1, 9, 9, 140, 37, 16, mask = hide, dropout = 0.2,
      what = "many" }
    float32 { 1, 1, 1, 20, 30, 64, dropout = 1, what = "all dropped" }
    for _, scale in ipairs { 0.3, -0.3, 0 } do
      float32 { 1, 1, 1, 20, 30, 24, scale = scale, what = "scale" }
    end
  end)

  it("gives the mean where finite numbers mask everything, and 0 where nothing is seen", function()
    for _, lowest in ipairs { -3.4028234663852886e38, -1e9 } do
      local case = { 2, 1, 1, 18, 40, 36, scale = 0.37 }
      local given = inputs(case, "float32")
      given.mask = tensor.zeros(2, 1, 18, 40)
      given.mask:select(1, 1):fill_(lowest)
      given.mask:select(1, 2):narrow(3, 30, 11):fill_(lowest)
      local got = attention(D, "float32", case, given)
      local mean = given.v:select(1, 1):double():mean(2, true):expand(1, 18, 36)
      if lowest < -1e10 then
        close("the mean", "float32", got[1]:select(1, 1), mean)
        local here = attention("cpu", "float32", case, given)
        for i, name in ipairs(NAMES) do close(name, "float32", got[i], here[i]:detach():double()) end
      end
      for i, name in ipairs(NAMES) do
        assert.is_true(got[i]:detach():to("cpu"):abs():max():item() < 1e3, name)
      end
    end
    float32 { 1, 2, 2, 20, 37, 64, what = "none", mask = function(b, h, t, s)
      local mask = tensor.rand(b, h, t, s):gt(0.3)
      mask[{ 1, 1, 3 }] = false
      return mask
    end }
  end)

  it("gives no finite number for infinities and NaNs of values, and takes the largest numbers", function()
    local q, k, v = tensor.randn(1, 1, 5, 8), tensor.randn(1, 1, 7, 8), tensor.randn(1, 1, 7, 8)
    v[{ 1, 1, 2, 3 }] = math.huge
    v[{ 1, 1, 2, 4 }] = 0 / 0
    v[{ 1, 1, 2, 5 }] = 3.4e38
    local here = F.scaled_dot_product_attention(q, k, v)
    local there = F.scaled_dot_product_attention(q:to(D), k:to(D), v:to(D)):to("cpu")
    assert.is_true(here:select(4, 3):eq(math.huge):all():item())
    assert.is_false(there:select(4, 3):isfinite():any():item())
    assert.is_true(there:select(4, 4):isnan():all():item())
    assert.is_true(tensor.allclose(here:select(4, 5), there:select(4, 5), 1e-3))
    assert.is_true(tensor.allclose(here:narrow(4, 6, 3), there:narrow(4, 6, 3)))
  end)

  it("rounds to TF32 where the script allows it", function()
    if device.fake then return end
    local case = { 1, 2, 2, 40, 50, 64 }
    local given = inputs(case, "float32")
    local expected = attention("cpu", "float64", case, given)
    tensor.set_float32_matmul_precision "high"
    local ok, got = pcall(attention, D, "float32", case, given)
    tensor.set_float32_matmul_precision "highest"
    assert.is_true(ok, tostring(got))
    for i, name in ipairs(NAMES) do
      local off = (got[i]:detach():to("cpu"):double() - expected[i]):norm():item() / expected[i]:norm():item()
      assert.is_true(off > 1e-5 and off < 1e-3, name .. ": " .. off)
    end
  end)

  it("gives the same bits every time", function()
    local case = { 2, 4, 2, 70, 50, 48, grouped = true, dropout = 0.1 }
    local given = inputs(case, "float32")
    local first, again = attention(D, "float32", case, given), attention(D, "float32", case, given)
    for i, name in ipairs(NAMES) do assert.is_true(tensor.equal(first[i], again[i]), name) end
  end)
end)

describe(("attention without tensor cores on %s"):format(D), function()
  it("is computed by the plain kernels", function()
    if not emulator then return pending "the emulated device can be old" end
    emulator.mode("old", 1)
    local ok, err = pcall(function()
      for _, dtype in ipairs { "bfloat16", "float16", "float32" } do
        for _, case in ipairs { { 1, 2, 2, 40, 37, 64 },
          { 1, 2, 1, 33, 70, 100, grouped = true, causal = true },
          { 2, 2, 2, 20, 33, 136, dropout = 0.2, mask = function(b, h, t, s)
            return tensor.rand(b, h, t, s):gt(0.3)
          end } } do
          local given = inputs(case, dtype)
          local expected = attention("cpu", "float64", case, given)
          core.kernel_stats { reset = true, device = D }
          local got = attention(D, dtype, case, given)
          assert.are.same({ tensor = 0, tf32 = 0, plain = 2 }, ways())
          for i, name in ipairs(NAMES) do close(dtype .. ": " .. name, dtype, got[i], expected[i]) end
        end
      end
    end)
    emulator.mode("old", 0)
    assert.is_true(ok, tostring(err))
  end)
end)
