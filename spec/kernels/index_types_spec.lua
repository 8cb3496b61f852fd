--- Index tensors of both integer types, bool tensors that are added to, and the rules of 0-d
--- tensors.  The values are PyTorch's.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local raises = require("spec.support.messages").raises

local function int64(v) return core.tensor(v, { dtype = "int64" }) end
local function int32(v) return core.tensor(v, { dtype = "int32" }) end
local function same(expected, got) assert.are.same(expected, got:totable()) end

describe("an int32 index", function()
  local picks, list = { { 0, 1, 1, 0 }, { 2, 0, 2, 1 } }, { 2, 0, 2 }
  local calls = {
    gather = function(x, index) return x:gather(1, index(picks)) end,
    scatter = function(x, index, src) return x:scatter(1, index { { 0, 1, 2, 0 } }, src) end,
    ["scatter of a number"] = function(x, index) return x:scatter(1, index(picks), 5) end,
    scatter_add = function(x, index, src) return x:scatter_add(1, index(picks), src) end,
    index_select = function(x, index) return x:index_select(2, index(list)) end,
    index_add = function(x, index, src) return x:index_add(1, index { 2, 2 }, src, { alpha = 3 }) end,
    index_reduce = function(x, index, src) return x:index_reduce(1, index { 2, 2 }, src, "amax") end,
    embedding = function(x, index) return core.embedding(index(list), x) end,
    ["embedding with max_norm"] = function(x, index)
      return nn.functional.embedding(index(list), x * 1, { scale_grad_by_freq = true })
    end,
    embedding_bag = function(x, index)
      return nn.functional.embedding_bag(index(picks) % 3, x, { mode = "sum" })
    end,
  }
  for _, reduce in ipairs { "sum", "prod", "mean", "amax", "amin" } do
    calls["scatter_reduce " .. reduce] = function(x, index, src)
      return x:scatter_reduce(1, index(picks), src, reduce)
    end
  end
  for name, call in pairs(calls) do
    it("serves " .. name .. ", and its gradient", function()
      local results = {}
      for k, index in ipairs { int64, int32 } do
        local x = core.arange(12):double():view(3, 4):add(1):requires_grad_()
        local src = core.arange(8):double():view(2, 4):mul(2):add(0.5):requires_grad_()
        local y = call(x, index, src);
        (y * core.arange(y:numel()):double():view(y.shape)):sum():backward()
        results[k] = { y:totable(), x.grad:totable(), src.grad and src.grad:totable() }
      end
      assert.are.same(results[1], results[2])
    end)
  end

  it("serves the forms in place, with strides", function()
    local wide = int32 { { 0, 9 }, { 2, 9 } }
    local x = core.zeros(3, 2)
    x:index_add_(1, wide:select(2, 1), core.ones(2, 2))
    same({ { 1, 1 }, { 0, 0 }, { 1, 1 } }, x)
    x:scatter_(2, wide:select(2, 1):view(1, 2):clamp(0, 1), 7)
    same({ { 7, 7 }, { 0, 0 }, { 1, 1 } }, x)
  end)

  it("is of any type where it lists nothing", function()
    local x, none = core.ones(3, 4):requires_grad_(), core.tensor {}
    assert.same({ 0, 4 }, x:index_select(1, none).shape)
    for _, index in ipairs { none:view(0, 1), none:view(0, 1):byte() } do
      local y = x:gather(1, index)
      assert.same({ 0, 1 }, y.shape)
      y:sum():backward()
      assert.equal(0, x.grad:abs():sum():item())
      assert.same(x:totable(), x:scatter(1, index, 5):totable())
    end
    assert.same(x:totable(), x:index_add(1, none, core.ones(0, 4)):totable())
  end)

  it("is refused by those that take int64 alone", function()
    local x = core.zeros(3, 4)
    raises("index_copy: index must be int64, got int32", x.index_copy, x, 1, int32 { 0 }, core.ones(1, 4))
    raises("index_fill: index must be int64, got int32", x.index_fill, x, 1, int32 { 0 }, 1)
    raises("take_along_dim: index must be int64, got int32", x.take_along_dim, x, int32 { { 0 } }, 1)
    raises("gather: index must be int64 or int32, got uint8", x.gather, x, 1, int64({ { 0 } }):byte())
    raises("gather: index 3 at position [0, 1]", x.gather, x, 1, int32 { { 0, 3 } })
  end)
end)

describe("take_along_dim", function()
  it("counts negative positions from the end of the dim", function()
    local x = core.arange(12):double():view(3, 4):requires_grad_()
    local y = x:take_along_dim(int64 { { -1, -2, -4, 1 } }, 2)
    same({ { 3, 2, 0, 1 }, { 7, 6, 4, 5 }, { 11, 10, 8, 9 } }, y)
    y:narrow(2, 1, 2):sum():backward()
    same({ { 0, 0, 1, 1 }, { 0, 0, 1, 1 }, { 0, 0, 1, 1 } }, x.grad)
    raises("take_along_dim", function() x:take_along_dim(int64 { { -5 } }, 2) end, "is outside 0..3")
    raises("is outside 0..11", x.take_along_dim, x, int64 { -1 })
  end)
end)

describe("index_select", function()
  it("of a 0-d tensor takes one position", function()
    local z = core.tensor(3):requires_grad_()
    local y = z:index_select(1, int64 { 0 })
    assert.are.equal(0, y.ndim)
    assert.are.equal(3, y:item());
    (y * 5):backward()
    assert.are.equal(5, z.grad:item())
    raises("must have one element, got [2]", z.index_select, z, 1, int64 { 0, 0 })
    raises("index 1 at position 0", z.index_select, z, 1, int64 { 1 })
  end)

  it("takes a 0-d index as one of one element", function()
    local x = core.arange(6):float():view(2, 3):requires_grad_()
    local y = x:index_select(2, int64(2))
    same({ { 2 }, { 5 } }, y)
    y:sum():backward()
    same({ { 0, 0, 1 }, { 0, 0, 1 } }, x.grad)
  end)
end)

describe("bool tensors that are added to", function()
  local x = core.tensor { { true, false }, { false, false }, { true, true } }
  local picks, src = int64 { { 0, 1 }, { 1, 1 } }, core.tensor { { true, true }, { false, true } }

  it("hold whether any is true", function()
    local rows = core.tensor { { true, true }, { true, false }, { true, false } }
    same({ { true, true }, { true, false }, { true, true } }, x:index_add(1, int64 { 0, 1, 1 }, rows))
    same(x:totable(), x:index_add(1, int64 { 0, 1, 1 }, rows, { alpha = 0 }))
    same({ { true, true }, { true, false }, { true, true } },
      x:index_add(1, int64 { 0, 1, 1 }, rows, { alpha = 2 }))
    same({ { true, false }, { false, true }, { true, true } }, x:scatter_add(1, picks, src))
    same({ { true, false }, { false, true }, { true, true } }, x:scatter(1, picks, src, { reduce = "add" }))
    same({ { true, true }, { false, false }, { true, true } },
      x:index_put(int64 { 0, 0 }, core.tensor { { true, true }, { false, false } }, { accumulate = true }))
  end)

  it("are reduced by all but mean", function()
    same({ { true, false }, { false, true }, { true, true } }, x:scatter_reduce(1, picks, src, "sum"))
    same({ { true, false }, { false, true }, { true, true } },
      x:scatter_reduce(1, picks, src, "sum", { include_self = false }))
    raises("bool has no mean", x.scatter_reduce, x, 1, picks, src, "mean")
  end)
end)
