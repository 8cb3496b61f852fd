--- Group norm of images whose channels lie innermost, as convolutions leave them: the layout of its
--- results, values and gradients beside those of contiguous images, numbers of threads. cat and
--- sums of such images.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"

local function largest(t) return t:abs():max():item() end

--- The same elements with the channels innermost.
local function innermost(x)
  local there, back = { 1 }, { 1, x:dim() }
  for d = 3, x:dim() do there[#there + 1], back[#back + 1] = d, d - 1 end
  there[#there + 1] = 2
  return x:permute(unpack(there)):contiguous():permute(unpack(back))
end

local function is_innermost(t) return t:permute(1, 3, 4, 2):is_contiguous() end

--- The result and all gradients, in float64.
local function run(x, w, b, g, groups)
  local leaves = {}
  for k, t in ipairs { x, w, b } do leaves[k] = t:detach():clone():requires_grad_() end
  local y = F.group_norm(leaves[1], groups, leaves[2], leaves[3])
  y:backward(g)
  return { y:detach():double(), leaves[1].grad:double(), leaves[2].grad:double(), leaves[3].grad:double() }
end

--- Inputs of run: a mean that is not 0, so that what cancels is noticed.
local function inputs(shape, dtype)
  core.manual_seed(11)
  return (core.randn(shape) * 2 + 3):to(dtype), core.randn(shape[2]):to(dtype),
    core.randn(shape[2]):to(dtype),
    core.randn(shape):to(dtype)
end

describe("group_norm of images with the channels innermost", function()
  it("leaves them innermost, and the gradient of its input", function()
    local x, w, b, g = inputs({ 2, 16, 5, 7 }, "float32")
    x = innermost(x):requires_grad_()
    local before = x * 1
    before:register_hook(function(d) assert.is_true(is_innermost(d)) end)
    local y = F.group_norm(before, 4, w, b)
    assert.is_true(is_innermost(y))
    y:backward(innermost(g))
    local flat = F.group_norm(x, 4, w, b):view(2, -1) -- a view where nothing else refers to the memory
    assert.is_true(flat:is_contiguous())
  end)

  -- The last number is that of the groups. The image of 64 channels is cut into pieces.
  local SHAPES = { { 2, 16, 5, 7, 4 }, { 3, 32, 16, 16, 32 }, { 1, 64, 33, 31, 1 }, { 5, 48, 1, 9, 6 },
    { 2, 1040, 3, 6, 8 }, { 4, 20, 20, 20, 5 }, { 2, 24, 6, 1, 3 }, { 2, 16, 4, 3, 4, 4 }, { 2, 18, 9, 2 },
    { 2, 3, 4, 4, 3 } }
  for dtype, most in pairs { float32 = 1e-6, float64 = 1e-14, bfloat16 = 2 ^ -7, float16 = 2 ^ -10 } do
    it("computes what it does for contiguous ones, in " .. dtype, function()
      for _, sizes in ipairs(SHAPES) do
        local groups, shape = sizes[#sizes], { unpack(sizes, 1, #sizes - 1) }
        local x, w, b, g = inputs(shape, dtype)
        local expected = run(x, w, b, g, groups)
        for name, gradient in pairs { contiguous = g, innermost = innermost(g) } do
          local got = run(innermost(x), w, b, gradient, groups)
          for k = 1, 4 do
            local far = largest(got[k] - expected[k]) / largest(expected[k])
            assert.is_true(far <= most, ("%s, %s gradient, result %d: %g"):format(table.concat(shape, " x "),
              name, k, far))
          end
        end
      end
    end)
  end

  it("gives the same bits for any number of threads", function()
    local before = core.get_num_threads()
    finally(function() core.set_num_threads(before) end)
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local x, w, b, g = inputs({ 3, 32, 40, 40 }, dtype)
      local first
      for _, threads in ipairs { 1, 2, 3, 4 } do
        core.set_num_threads(threads)
        local got = run(innermost(x), w, b, innermost(g), 8)
        first = first or got
        for k = 1, 4 do assert.is_true(got[k]:eq(first[k]):all():item(), dtype .. ", result " .. k) end
      end
    end
  end)

  it("is differentiated twice", function()
    local x, w, b, g = inputs({ 2, 16, 3, 3 }, "float64")
    local function twice(x0)
      local leaf = x0:detach():clone():requires_grad_()
      local y = F.group_norm(leaf * 1, 4, w, b)
      local d = tensor.grad((y * g):sum(), leaf, { create_graph = true })
      return tensor.grad(d:square():sum(), leaf)
    end
    assert.is_true(largest(twice(innermost(x)) - twice(x)) < 1e-12)
  end)
end)

describe("cat of images with the channels innermost", function()
  local x, y = core.randn { 2, 4, 5, 6 }, core.randn { 2, 3, 5, 6 }

  it("leaves them innermost", function()
    local joined = core.cat({ innermost(x), innermost(y) }, 2)
    assert.is_true(is_innermost(joined))
    assert.same(core.cat({ x, y }, 2):totable(), joined:totable())
    assert.is_true(is_innermost(core.cat({ innermost(x), core.zeros { 0 }, innermost(x) }, 1)))
  end)

  it("is contiguous when one of them is, and along other dims", function()
    assert.is_true(core.cat({ innermost(x), y }, 2):is_contiguous())
    assert.is_true(core.cat({ x, y }, 2):is_contiguous())
    assert.is_true(core.cat({ innermost(x), innermost(x) }, 4):is_contiguous())
  end)
end)

describe("sums over the pixels of images with the channels innermost", function()
  --- The least processor time of several calls.
  local function least(fn)
    local best = math.huge
    for _ = 1, 20 do
      local began = os.clock()
      fn()
      best = math.min(best, os.clock() - began)
    end
    return best
  end

  it("go through memory in its order", function()
    local before = core.get_num_threads()
    finally(function() core.set_num_threads(before) end)
    core.set_num_threads(1)
    local x = core.randn { 8, 256, 32, 32 }
    local y = innermost(x)
    local function sum(t) return t:sum({ dim = { 1, 3, 4 } }) end
    assert.is_true(largest(sum(x) - sum(y)) < 1e-3)
    assert.is_true(least(function() sum(y) end) < 5 * least(function() sum(x) end))
  end)
end)
