--- Corners of the core that an adversarial reading found: hooks that change while they run, leaves
--- that change between forward and backward, sizes whose products overflow, results in place of
--- views.
local core = require "accelerate.core"
local layouts = require "spec.support.layouts"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local function leaf(values) return tensor.tensor(values, { dtype = "float64", requires_grad = true }) end

describe("hooks", function()
  it("may remove themselves and each other while they run", function()
    for _, make in ipairs { function(x) return x end, function(x) return x * 1 end } do
      local x = leaf { 1, 2 }
      local y = make(x)
      local seen, handles = {}, {}
      local function add(name, also)
        handles[name] = y:register_hook(function()
          seen[#seen + 1] = name
          for _, other in ipairs(also) do handles[other]:remove() end
        end)
      end
      add("a", { "a", "b" })
      add("b", {})
      add("c", { "a", "d" })
      add("d", {})
      local z = (y * 3):sum()
      z:backward(nil, { retain_graph = true })
      z:backward()
      assert.are.same({ "a", "c", "c" }, seen)
      assert.are.same({ 6, 6 }, x.grad:totable())
    end
  end)

  it("hand on a gradient of another type in the type that the rules expect", function()
    local x = leaf { { 1, 2 }, { 3, 4 } }
    local y = x * 1
    y:register_hook(function(g) return g:float() * 2 end)
    y:mm(y):sum():backward()
    assert.are.equal("float64", x.grad.dtype)
    local w = leaf { 1 }
    w:register_hook(function(g) return g:long() end)
    w:sum():backward()
    assert.are.equal("float64", w.grad.dtype)
    raises("[3]", function()
      local v = leaf { 1 }
      v:register_hook(function() return tensor.zeros(3) end)
      v:sum():backward()
    end)
  end)

  it("outlive the Lua object of their leaf, whatever the collector has got to", function()
    collectgarbage()
    collectgarbage("stop")
    local lost = 0
    for round = 1, 800 do
      local n = 0
      local y
      do
        local x = leaf { 1, 2 }
        x:register_hook(function() n = n + 1 end)
        y = (x * x):sum()
      end
      for _ = 1, round % 400 do collectgarbage("step", 0) end
      y:backward()
      if n ~= 1 then lost = lost + 1 end
    end
    collectgarbage("restart")
    assert.are.equal(0, lost)
  end)

  it("of a leaf run for core.grad too", function()
    local x = leaf { 2 }
    x:register_hook(function(g) return g * 10 end)
    assert.are.equal(40, core.grad({ (x * x):sum() }, { x }):item())
    assert.is_nil(x.grad)
  end)

  it("may walk another graph, and leave this one alone when they fail", function()
    local x, other = leaf { 2 }, leaf { 3 }
    local y = x * x
    y:register_hook(function() core.enable_grad(function() (other * other):sum():backward() end) end)
    y:sum():backward()
    assert.are.equal(4, x.grad:item())
    assert.are.equal(6, other.grad:item())

    local z = x * x
    local handle = z:register_hook(function() error("no further") end)
    raises("no further", function() z:sum():backward(nil, { retain_graph = true }) end)
    handle:remove()
    x.grad = nil
    z:sum():backward()
    assert.are.equal(4, x.grad:item())
  end)
end)

describe("a leaf", function()
  it("that was frozen after the forward pass gets no gradient", function()
    local x, y = leaf { 2 }, leaf { 3 }
    local z = (x * y):sum()
    x.requires_grad = false
    z:backward()
    assert.is_nil(x.grad)
    assert.are.equal(2, y.grad:item())
  end)

  it("that became a result in place gets no gradient from its former life", function()
    local x, w = leaf { 2 }, leaf { 5 }
    local z = (x + 1):sum()
    x.requires_grad = false
    x:add_(w)
    z:backward()
    assert.is_nil(x.grad)
    x:sum():backward()
    assert.are.equal(1, w.grad:item())
  end)

  it("whose data changed shape after the forward pass is refused", function()
    local x = leaf { 2, 3 }
    local z = (x + 1):sum()
    x.data = tensor.tensor({ 1, 2, 3 }, { dtype = "float64" })
    raises("[3]", z.backward, z)
    local y = leaf { 2, 3 }
    local u = (y + 1):sum()
    y.data = tensor.tensor({ 1, 2 })
    u:backward()
    assert.are.equal("float32", y.grad.dtype)
  end)

  it("does not share its gradient with the caller's when graphs are made", function()
    local x, seed = leaf { 1, 2 }, tensor.tensor({ 1, 1 }, { dtype = "float64" })
    x:backward(seed, { create_graph = true })
    x:backward(seed)
    assert.are.same({ 1, 1 }, seed:totable())
    assert.are.same({ 2, 2 }, x.grad:totable())
  end)

  it("may lend its slot as the gradient to start with", function()
    local w = tensor.tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true })
    layouts.give_slots { w }
    w.grad = tensor.tensor { { 1, 2 }, { 3, 4 } }
    local b = tensor.tensor { { 1, 1 }, { 0, 1 } }
    w:mm(b):backward(w.grad) -- g b^T is { {3, 2}, {7, 4} }
    assert.are.same({ { 4, 4 }, { 10, 8 } }, w.grad:totable())
  end)
end)

describe("gradients", function()
  it("may be differentiated three times", function()
    local x = leaf { 2, 0.5 }
    local y = (x ^ 4 + x:exp()):sum()
    local g1 = core.grad({ y }, { x }, { create_graph = true })
    local g2 = core.grad({ g1:sum() }, { x }, { create_graph = true })
    local g3 = core.grad({ g2:sum() }, { x }, { create_graph = true })
    for i, v in ipairs { 2, 0.5 } do
      assert.are.near(24 * v + math.exp(v), g3[i]:item(), 1e-9)
    end
  end)

  it("of what is flat are zero, also where the incoming one is infinite", function()
    local x = leaf { 1.5 }
    x:floor():backward(tensor.tensor({ math.huge }, { dtype = "float64" }))
    assert.are.equal(0, x.grad:item())
  end)

  it("of a power with base 0 follow the exponent's sign", function()
    local b = leaf { -1, 0, 2 }
    core.pow(0, b):sum():backward()
    assert.are.same({ -math.huge, 0, 0 }, b.grad:totable())
    local a, e = leaf { 0, 0 }, leaf { -1, 1 }
    core.pow(a, e):sum():backward()
    assert.are.same({ -math.huge, 0 }, e.grad:totable())
  end)

  it("are recorded through changes in place of matmul's and reshape's results", function()
    local x, w = leaf { { { 1, 2 }, { 3, 4 } } }, leaf { { 1, 0 }, { 0, 1 } }
    local y = x:matmul(w)
    y:mul_(w)
    y:sum():backward()
    assert.are.same({ { { 1, 0 }, { 0, 1 } } }, x.grad:totable())
    local t = x:transpose(2, 3):reshape(4)
    t:mul_(t)
    assert.are.same({ { { 2, 4 }, { 6, 8 } } }, core.grad({ t:sum() }, { x }):totable())
  end)
end)

describe("as in PyTorch", function()
  it("numbers beside half types are not rounded to them", function()
    local x = tensor.tensor({ 0.5 }, { dtype = "float16" })
    assert.are.equal(32768, (x * 65536):item())
    assert.are.equal(32768, (65536 * x):item())
    assert.are.equal(math.huge, (65536 / x):item()) -- what comes out is a half all the same
    assert.is_true((tensor.tensor({ 0.1 }, { dtype = "float16" }):eq(0.1)):item())
    assert.are.equal(0.5, core.where(tensor.tensor { false }, 65536, x):item())
    x:mul_(65536)
    assert.are.equal(32768, x:item())
  end)

  it("NaN passes gradients on where it wins, not where it is limited", function()
    local nan = 0 / 0
    local function gradient(f)
      local x = leaf { nan, 1, 2, nan }
      f(x):sum():backward()
      return x.grad:totable()
    end
    assert.are.same({ 1, 1, 0.5, 1 },
      gradient(function(x) return x:maximum(tensor.tensor({ 0, 0, 2, nan }, { dtype = "float64" })) end))
    assert.are.same({ 0.5, 0, 0, 0.5 }, gradient(function(x) return x:max() end))
    assert.are.same({ 1, 1, 1, 1 }, gradient(function(x) return x:relu() end))
    assert.are.same({ 0, 0, 1, 0 }, gradient(function(x) return x:clamp(1) end))
    assert.are.same({ 0, 1, 0, 0 }, gradient(function(x) return x:clamp(0, 2) end))
  end)

  it("a power's gradient is computed in the type of its result", function()
    local a, b = tensor.tensor { 3, 5 }, leaf { 0.5, 2 }
    core.pow(a, b):sum():backward()
    assert.are.near(math.sqrt(3) * math.log(3), b.grad[1]:item(), 1e-14)
  end)

  it("empty lists at the front of cat do not say what the dims are", function()
    local x = tensor.ones(2, 3)
    assert.are.same({ 2, 6 }, core.cat({ tensor.zeros(0), x, x }, -1).shape)
    assert.are.same({ 2, 6 }, core.cat({ tensor.zeros(0), x, x }, 2).shape)
    raises("cat", core.cat, { tensor.zeros(0), tensor.zeros(0) }, 2)
  end)

  it("masked_fill refuses what an integer cannot hold", function()
    local mask = tensor.tensor { true }
    raises("masked_fill", function() tensor.zeros(1, { dtype = "uint8" }):masked_fill(mask, 256) end)
    raises("masked_fill", function() tensor.zeros(1, { dtype = "int64" }):masked_fill(mask, math.huge) end)
  end)
end)

describe("sizes", function()
  local huge = 2 ^ 40

  it("whose product overflows are refused, whatever hides it", function()
    raises("expand", function() tensor.zeros(1, 1):expand(huge, huge) end)
    raises("too many elements", function() tensor.zeros(0, huge, huge) end)
    raises("reshape", function() tensor.zeros(0):reshape(huge, 0, huge) end)
    local long = tensor.zeros(1):expand(2 ^ 52)
    raises("cat", function()
      local list = {}
      for i = 1, 1025 do list[i] = long end
      core.cat(list)
    end)
    raises("matmul",
      function()
        tensor.zeros(1, 1, 1, 1):expand(huge, 1, 1, 1):matmul(tensor.zeros(1, 1, 1):expand(huge, 1, 1))
      end)
  end)

  it("of 0 and steps beyond the end are fine", function()
    local x = tensor.arange(5)
    assert.are.same({ 2 }, x[{ { 3, 3, 2 ^ 53 } }]:totable())
    local y = leaf { 1, 2, 3 }
    y[{ { 2, 2, 2 ^ 53 } }]:sum():backward()
    assert.are.same({ 0, 1, 0 }, y.grad:totable())
    assert.are.same({ 0, 2, 0 }, tensor.zeros(2, 0):matmul(tensor.zeros(0, 3)):sum(2, true):expand(2,
      2):narrow(1, 1, 0):reshape(0, 2, 0).shape)
  end)

  it("dims may be listed once", function()
    raises("twice", function() tensor.zeros(1, 2):squeeze { 1, -2 } end)
    raises("twice", function() tensor.zeros(1, 2):sum { 1, 1 } end)
    raises("twice", function() tensor.zeros(1, 2):permute(1, 1) end)
  end)

  it("a mask may be any view", function()
    local mask = tensor.tensor { true, false, false, false, true, true }
    local x = tensor.arange(3)
    assert.are.same({ 0, 2 }, x:masked_select(mask[{ { 1, 6, 2 } }]):totable())
    assert.are.same({ 0, 2 }, x[mask[{ { 1, 6, 2 } }]]:totable())
  end)
end)
