local core = require "accelerate.core"
local nn = require "accelerate.nn"
local layouts = require "spec.support.layouts"
local raises = require("spec.support.messages").raises
local F = nn.functional

local function ids(v) return core.tensor(v, { dtype = "int64" }) end
describe("nn.Embedding", function()
  it("looks rows up, for inputs of any shape", function()
    local e = nn.Embedding(5, 3)
    local y = e(ids { { 4, 0 }, { 4, 4 } })
    assert.are.same({ 2, 2, 3 }, y.shape)
    assert.are.same(e.weight[5]:totable(), y[2][1]:totable())
    assert.are.equal("Embedding(5, 3)", tostring(e))
    assert.are.same({ "weight" },
      (function()
        local names = {}
        for name in pairs(e:state_dict()) do names[#names + 1] = name end
        return names
      end)())
  end)

  it("starts normal, with zeros at padding_idx, which gets no gradient", function()
    local e = nn.Embedding(4, 200, { padding_idx = -4 })
    assert.are.equal("Embedding(4, 200, padding_idx=0)", tostring(e))
    assert.are.equal(0, e.weight[1]:abs():sum():item())
    assert.is_true(math.abs(e.weight[2]:square():mean():item() - 1) < 0.5)
    e(ids { 0, 1, 0, 1 }):sum():backward()
    assert.are.equal(0, e.weight.grad[1]:abs():sum():item())
    assert.are.equal(2, e.weight.grad[2][1]:item())
  end)

  it("takes rows that there are, frozen unless told otherwise", function()
    local rows = core.randn(3, 2)
    local e = nn.Embedding.from_pretrained(rows)
    assert.is_false(e.weight.requires_grad)
    assert.are.same(rows[3]:totable(), e(ids { 2 })[1]:totable())
    assert.is_true(nn.Embedding.from_pretrained(rows, { freeze = false }).weight.requires_grad)
    local positional = nn.Embedding.from_pretrained(rows, false, 1)
    assert.same({ true, 1 }, { positional.weight.requires_grad, positional.padding_idx })
    local bag = nn.EmbeddingBag.from_pretrained(rows, { mode = "sum", padding_idx = 0 })
    assert.same({ false, "EmbeddingBag", "sum" }, { bag.weight.requires_grad, bag.__name, bag.mode })
    assert.is_true(bag(ids { { 1, 2, 0 } })[1]:eq(rows[2] + rows[3]):all():item())
    assert.equal("max", nn.EmbeddingBag.from_pretrained(rows, true, nil, 2, false, "max").mode)
    raises("EmbeddingBag.from_pretrained: expected a tensor of two dims, got 3",
      nn.EmbeddingBag.from_pretrained, 3)
  end)

  it("says which number has no row", function()
    raises("embedding: index 5 at position [1] (from 0) is outside 0..4", nn.Embedding(5, 3), ids { 0, 5 })
    raises("embedding: index -1 at position [0, 2]", nn.Embedding(5, 3), ids { { 0, 1, -1 } })
    raises("input must be int64 or int32, got float32 (write x:long() for x)", nn.Embedding(5, 3),
      core.ones(2))
    raises("padding_idx must lie in -5..4, got 5", nn.Embedding, 5, 3, { padding_idx = 5 })
    raises("did you mean 'padding_idx'", nn.Embedding, 5, 3, { paddin_idx = 1 })
  end)

  -- A buffer of gradients, as prepare makes it, and where the weight's begins there.
  local function with_slot(weight)
    local layout, offsets = layouts.of({ nn.Parameter(core.ones(3)), weight }, { grads = true })
    return layout:grads():fill_(7), offsets[2]
  end

  it("adds its gradient into the flat buffer, also beside another use of the same weight", function()
    local input, x = ids { 1, 3, 1 }, core.randn(4, 3)
    local function total(w) return (core.embedding(input, w) * 2):sum() + core.linear(x, w):square():sum() end
    local plain = nn.Parameter(core.randn(5, 3))
    total(plain):backward()
    local w = nn.Parameter(plain.data:clone())
    local flat, at = with_slot(w)
    total(w):backward()
    assert.is_true((w.grad - plain.grad):abs():max():item() < 1e-5)
    assert.are.equal(w.grad[2][1]:item(), flat[at + 3 + 1]:item())
    assert.are.equal(7, flat[at]:item())
    assert.are.equal(7, flat[at + w:numel() + 1]:item())
    total(w):backward() -- on top of what is there
    assert.is_true((w.grad - plain.grad * 2):abs():max():item() < 1e-4)
  end)

  it("has a gradient of its gradient", function()
    local w = core.randn(4, 2, { dtype = "float64", requires_grad = true })
    local y = core.embedding(ids { 2, 0, 2 }, w, 0):pow(3):sum()
    local g = core.grad(y, w, { create_graph = true })
    local h = core.grad((g * g):sum(), w)
    -- row 2 is used twice: g = 6 w^2, d(g^2) = 2 * 6 w^2 * 12 w
    local v = w.data[3][1]:item()
    assert.is_true(math.abs(h[3][1]:item() - 144 * v ^ 3) < 1e-9)
    assert.are.equal(0, h[1][1]:item())
  end)

  it("gives the same gradient with any number of threads", function()
    local input, former = core.randint(0, 300, { 5000 }), core.get_num_threads()
    local g = core.randn(5000, 40)
    local results = {}
    for n = 1, 3 do
      core.set_num_threads(n)
      local w = core.randn(300, 40, { generator = core.Generator(1) }):requires_grad_()
      core.embedding(input, w):backward(g)
      results[n] = w.grad
    end
    core.set_num_threads(former)
    assert.is_true(results[1]:eq(results[2]):all():item())
    assert.is_true(results[1]:eq(results[3]):all():item())
  end)

  it("rounds gradients of half types once", function()
    local w = core.zeros(2, 1, { dtype = "bfloat16", requires_grad = true })
    core.embedding(core.zeros(1000, { dtype = "int64" }),
      w):backward(core.full({ 1000, 1 }, 0.01, { dtype = "bfloat16" }))
    assert.is_true(math.abs(w.grad[1]:item() - 10) < 0.1)
  end)
end)

describe("bags", function()
  it("are sums and means of their rows, with the gradients of them", function()
    core.manual_seed(6)
    for _, dtype in ipairs { "float64", "bfloat16" } do
      local weight = core.randn(9, 5, { dtype = dtype })
      local flat = core.randint(0, 9, { 14 })
      local offsets, ends = core.tensor({ 0, 3, 3, 8 }, { dtype = "int64" }), { 0, 3, 3, 8, 14 }
      for _, case in ipairs { { "sum" }, { "mean" }, { "mean", padding = 4 }, { "sum", factors = true },
        { "sum", factors = true, padding = -2 } } do
        local mode, padding = case[1], case.padding
        local factors = case.factors and core.rand(14, { dtype = dtype }):requires_grad_()
        local w = weight:detach():clone():requires_grad_()
        local y = F.embedding_bag(flat, w, offsets, { mode = mode, padding_idx = padding,
          per_sample_weights = factors or nil })
        assert.equal(dtype, y.dtype)
        local v, f = weight:detach():double():clone():requires_grad_(), factors
          and factors:detach():double():clone():requires_grad_()
        local rows = {}
        for bag = 1, 4 do
          local sum, n = core.zeros(5, { dtype = "float64" }), 0
          for i = ends[bag] + 1, ends[bag + 1] do
            local at = flat[i]:item()
            if not padding or at ~= (padding < 0 and padding + 9 or padding) then
              sum, n = sum + (f and v[at + 1] * f[i] or v[at + 1]), n + 1
            end
          end
          rows[bag] = mode == "mean" and sum / math.max(n, 1) or sum
        end
        local expected = core.stack(rows, 1)
        local seed = core.randn(4, 5, { dtype = dtype })
        y:backward(seed)
        expected:backward(seed:double())
        local bound = dtype == "float64" and 1e-12 or 0.03
        local function check(got, wanted)
          assert.is_true((got:double() - wanted):abs():max():item() < bound, mode .. " of " .. dtype)
        end
        check(y, expected)
        check(w.grad, v.grad)
        if f then check(factors.grad, f.grad) end
      end
    end
    raises("index 9 at position [1] (from 0) is outside 0..8", F.embedding_bag,
      core.tensor({ { 0, 9 } }, { dtype = "int64" }), core.ones(9, 2))
    raises("outside 0..8", F.embedding_bag, core.tensor({ { -1, 2 } }, { dtype = "int64" }), core.ones(9, 2))
    assert.same({ { 0, 0 } }, F.embedding_bag(core.zeros(1, 0):long(), core.ones(9, 2)):tolist())
  end)
end)

describe("padding modules", function()
  it("surround the last dims, in PyTorch's order", function()
    local x = core.arange(4):float():view(1, 1, 2, 2)
    assert.are.same({ 1, 1, 3, 4 }, nn.ZeroPad2d({ 1, 1, 0, 1 })(x).shape)
    assert.are.same({ { 5, 0, 1, 5 }, { 5, 2, 3, 5 } }, nn.ConstantPad1d(1, 5)(x)[1][1]:totable())
    assert.are.same({ 1, 0, 1, 0 }, nn.ReflectionPad1d(1)(x)[1][1][1]:totable())
    assert.are.same({ 0, 0, 1, 1 }, nn.ReplicationPad1d(1)(x)[1][1][1]:totable())
    assert.are.same({ 3, 2, 3, 2 }, nn.CircularPad2d(1)(x)[1][1][1]:totable())
    assert.are.same({ 1, 3, 4, 4 }, nn.ConstantPad3d(1, 2)(x).shape)
    assert.are.equal("ConstantPad2d(padding=(1, 1, 1, 1), value=0.5)", tostring(nn.ConstantPad2d(1, 0.5)))
    assert.are.equal("ZeroPad2d((1, 2, 3, 4))", tostring(nn.ZeroPad2d { 1, 2, 3, 4 }))
  end)

  it("say what does not fit", function()
    raises("ZeroPad2d: padding must be an integer or a list of 4", nn.ZeroPad2d, { 1, 2 })
    raises("ZeroPad1d: takes the padding alone", nn.ZeroPad1d, 1, 2)
    raises("pad: a margin of 2 is more than dim 2 of shape [1, 2] can fill (mode reflect)",
      nn.ReflectionPad1d(2), core.ones(1, 2))
    raises("pad: margins for 2 dims, but shape [3] has 1", F.pad, core.ones(3), { 1, 1, 1, 1 })
    raises("pad: margins come in pairs", F.pad, core.ones(3), { 1, 1, 1 })
    raises("pad: margins [-2, -2] leave nothing of dim 1 of shape [3]", F.pad, core.ones(3), { -2, -2 })
    raises('only mode "constant" has a value', F.pad, core.ones(3), { 1, 1 }, "reflect", 2)
    raises("the value 0.5 does not fit a tensor of int64", F.pad, core.arange(3), { 1, 1 }, { value = 0.5 })
  end)
end)

describe("nn.Unflatten", function()
  it("turns Flatten round", function()
    local x = core.randn(2, 3, 4)
    local y = nn.Sequential(nn.Flatten(), nn.Unflatten(2, { 3, -1 }))(x)
    assert.is_true(y:eq(x):all():item())
    assert.are.equal("Unflatten(dim=2, unflattened_size=(3, -1))", tostring(nn.Unflatten(2, { 3, -1 })))
    raises("unflatten: sizes [2, 5] do not make up dim 2 of size 12", nn.Unflatten(2, { 2, 5 }),
      core.ones(1, 12))
  end)
end)
