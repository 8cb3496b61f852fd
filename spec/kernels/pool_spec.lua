--- Pools beside a plain walk over their windows: windows in the padding alone, windows of
--- random sizes, steps, gaps and margins, and positions of any value that unpooling is given.
local core = require "accelerate.core"
local chance = require("spec.support.fuzz_tensors").chance
local F = require "accelerate.nn.functional"
local raises = require("spec.support.messages").raises

local function int64(v) return core.tensor(v, { dtype = "int64" }) end

-- ---- a plain walk

-- The places of a dim, from 0, that window `at` (from 0) covers.
local function covered(size, at, kernel, stride, padding, dilation)
  local list = {}
  for k = 0, kernel - 1 do
    local place = at * stride - padding + k * dilation
    if place >= 0 and place < size then list[#list + 1] = place end
  end
  return list
end

local function count(size, kernel, stride, padding, dilation, ceil_mode)
  local room = size + 2 * padding - dilation * (kernel - 1) - 1
  local n = math.floor((room + (ceil_mode and stride - 1 or 0)) / stride) + 1
  if ceil_mode and (n - 1) * stride >= size + padding then n = n - 1 end
  return n
end

-- Calls fn with the flat places of each window of a volume, window after window.
local function each_window(shape, o, fn)
  local function along(d, at)
    return covered(shape[d], at, o.kernel[d], o.stride[d], o.padding[d], o.dilation[d])
  end
  local n = {}
  for d = 1, 3 do
    n[d] = count(shape[d], o.kernel[d], o.stride[d], o.padding[d], o.dilation[d], o.ceil_mode)
  end
  for z = 0, n[1] - 1 do
    for y = 0, n[2] - 1 do
      for x = 0, n[3] - 1 do
        local places = {}
        for _, i in ipairs(along(1, z)) do
          for _, j in ipairs(along(2, y)) do
            for _, k in ipairs(along(3, x)) do
              places[#places + 1] = (i * shape[2] + j) * shape[3] + k
            end
          end
        end
        fn(places)
      end
    end
  end
end

-- The largest of each window and its place, and how often each place was chosen.
local function walked(volume, shape, o)
  local values, places, chosen = {}, {}, {}
  for k = 1, #volume do chosen[k] = 0 end
  each_window(shape, o, function(list)
    local best, at = -math.huge, -1
    for _, place in ipairs(list) do
      if volume[place + 1] > best then best, at = volume[place + 1], place end
    end
    values[#values + 1], places[#places + 1] = best, at
    if at >= 0 then chosen[at + 1] = chosen[at + 1] + 1 end
  end)
  return values, places, chosen
end

-- ---- drawn pools

-- Sizes and options of three dims, the first 3 - dims of them of one place; some windows may well
-- be in the padding alone.
local function drawn(c, dims)
  local o, shape = { kernel = {}, stride = {}, padding = {}, dilation = {}, ceil_mode = c:once_in(3) }, {}
  for d = 1, 3 do
    local there = d > 3 - dims
    o.kernel[d] = there and c:int(4) or 1
    o.stride[d] = there and c:int(4) or 1
    o.padding[d] = there and c:int(math.floor(o.kernel[d] / 2) + 1) - 1 or 0
    o.dilation[d] = there and c:int(5) or 1
    local least = math.max(1, o.dilation[d] * (o.kernel[d] - 1) + 1 - 2 * o.padding[d])
    shape[d] = there and least + c:int(4) - 1 or 1
  end
  return shape, o
end

local function last(list, dims)
  if dims == 1 then return list[3] end
  return dims == 2 and { list[2], list[3] } or list
end

-- Pools one drawn volume, and compares all with the walk.
local function check(c, dims, dtype)
  local shape, o = drawn(c, dims)
  local channels = c:of { 1, 3, 8 }
  local size = { c:int(3), channels }
  for d = 4 - dims, 3 do size[#size + 1] = shape[d] end
  local x = core.randn(size):to(dtype):requires_grad_()
  local y, at = F[("max_pool%dd"):format(dims)](x, last(o.kernel, dims), {
    stride = last(o.stride, dims), padding = last(o.padding, dims), dilation = last(o.dilation, dims),
    ceil_mode = o.ceil_mode, return_indices = true,
  })
  y:backward(core.ones(y.shape, { dtype = dtype }))
  for n = 1, size[1] do
    for k = 1, channels do
      local values, places, chosen = walked(x:detach()[{ n, k }]:flatten():totable(), shape, o)
      assert.are.same(values, y:detach()[{ n, k }]:flatten():totable())
      assert.are.same(places, at[{ n, k }]:flatten():totable())
      assert.are.same(chosen, x.grad[{ n, k }]:flatten():totable())
    end
  end
  -- what was chosen is taken along by the gradient's gradient
  local g = core.randn(y.shape):to(dtype):requires_grad_()
  local again = core.grad((F[("max_pool%dd"):format(dims)](x, last(o.kernel, dims), {
    stride = last(o.stride, dims), padding = last(o.padding, dims), dilation = last(o.dilation, dims),
    ceil_mode = o.ceil_mode,
  })), x, { grad_outputs = { g }, create_graph = true })
  local taken = core.grad(again, g, { grad_outputs = { core.ones(x.shape, { dtype = dtype }) } })
  assert.are.same(at:ge(0):to(dtype):totable(), taken:totable())
end

describe("windows in the padding alone", function()
  it("have -inf for their largest, place -1 and no gradient", function()
    local options = { stride = 3, padding = 1, dilation = 2, return_indices = true }
    for pool, size in next, { max_pool1d = { 3, 2, 1 }, max_pool2d = { 3, 1, 1, 9 },
      max_pool3d = { 2, 2, 4, 1, 9 } } do
      local x = core.randn(size):requires_grad_()
      local y, at = F[pool](x, 2, options)
      assert.is_true(y:eq(-math.huge):all():item(), pool)
      assert.is_true(at:eq(-1):all():item(), pool)
      y:sum():backward()
      assert.are.equal(0, x.grad:abs():sum():item(), pool)
    end
  end)

  it("stand beside windows with elements, in the depth of a volume as in a plane", function()
    local x = core.arange(3):float():view(1, 1, 3, 1, 1):requires_grad_()
    local y, at = F.max_pool3d(x, { 2, 1, 1 }, { stride = 1, padding = { 1, 0, 0 }, dilation = { 4, 1, 1 },
      return_indices = true })
    assert.are.same({ -math.huge }, y:flatten():totable())
    assert.are.same({ -1 }, at:flatten():totable())
    y, at = F.max_pool2d(x:view(1, 3, 1), { 2, 1 }, { stride = 1, padding = { 1, 0 }, dilation = { 2, 1 },
      return_indices = true })
    assert.are.same({ 1, 2, 1 }, y:flatten():totable())
    assert.are.same({ 1, 2, 1 }, at:flatten():totable())
  end)

  it("stay what they are under capture", function()
    local step = require("accelerate.utils").capture(function(x)
      return F.max_pool2d(x, 2, { stride = 3, padding = 1, dilation = 2 })
    end)
    for _ = 1, 6 do assert.is_true(step(core.randn(2, 3, 1, 7)):eq(-math.huge):all():item()) end
  end)

  it("are places that unpooling refuses", function()
    local y, at = F.max_pool2d(core.randn(1, 1, 1, 9), 2, { stride = 3, padding = 1, dilation = 2,
      return_indices = true })
    raises("index -1", F.max_unpool2d, y, at, 2, 3)
  end)
end)

describe("pools of random windows", function()
  for dims = 1, 3 do
    it(("agree with a walk over the windows in %d dims"):format(dims), function()
      local c = chance(40 + dims)
      core.manual_seed(40 + dims)
      for round = 1, 40 do check(c, dims, ({ "float32", "float64" })[round % 2 + 1]) end
    end)
  end

  it("of half types choose as float32 does", function()
    local c = chance(50)
    for _ = 1, 20 do check(c, 2, c:of { "bfloat16", "float16" }) end
  end)

  it("have means over what the picture has of each window", function()
    local c = chance(60)
    for _ = 1, 60 do
      local shape, o = drawn(c, 3)
      o.dilation = { 1, 1, 1 }
      for d = 1, 3 do shape[d] = math.max(shape[d], o.kernel[d]) end
      local x = core.randn(1, 1, unpack(shape)):double():requires_grad_()
      local y = F.avg_pool3d(x, o.kernel, { stride = o.stride, padding = o.padding, ceil_mode = o.ceil_mode,
        count_include_pad = false })
      local volume, means, shares = x:detach():flatten():totable(), {}, {}
      for k = 1, #volume do shares[k] = 0 end
      each_window(shape, o, function(list)
        local sum = 0
        for _, place in ipairs(list) do
          sum = sum + volume[place + 1]
          shares[place + 1] = shares[place + 1] + 1 / #list
        end
        means[#means + 1] = sum / #list
      end)
      y:sum():backward()
      assert.is_true(y:flatten():allclose(core.tensor(means, { dtype = "float64" })))
      assert.is_true(x.grad:flatten():allclose(core.tensor(shares, { dtype = "float64" })))
    end
  end)
end)

describe("unpooling", function()
  it("refuses places outside its result, whatever they are", function()
    for dims = 1, 3 do
      local size = { 1, 2 }
      for _ = 1, dims do size[#size + 1] = 2 end
      local unpool = ("max_unpool%dd"):format(dims)
      for _, place in ipairs { -1, 4 ^ dims, 2 ^ 31, 2 ^ 32, 2 ^ 53, -2 ^ 31, -2 ^ 53 } do
        raises(("%s: index %d"):format(unpool, place), F[unpool], core.randn(size),
          core.full(size, place, { dtype = "int64" }), 2)
      end
    end
  end)

  it("refuses windows of which no result can be made", function()
    local x, at = core.randn(1, 1, 2, 2), int64 { { { { 0, 1 }, { 2, 3 } } } }
    raises("max_unpool2d: ", F.max_unpool2d, x, at, 2 ^ 31 - 1)
    raises("max_unpool2d: ", F.max_unpool2d, x, at, 2, 2 ^ 31 - 1)
  end)
end)
