--- The tape: what holds what, when it is released, and how errors read.
local core = require "accelerate.core"
local layouts = require "spec.support.layouts"
local tensor = require "accelerate.tensor"

local function leaf(values) return tensor.tensor(values, { dtype = "float64", requires_grad = true }) end

describe("the tape", function()
  it("walks and releases a chain of a million ops without recursion", function()
    local x = leaf { 1 }
    local y = x
    for _ = 1, 1000000 do y = y + 0 end
    y:sum():backward()
    assert.are.same({ 1 }, x.grad:totable())
    do -- released without a backward pass
      local z = x
      for _ = 1, 1000000 do z = z * 1 end
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(core.memory_stats().live_bytes < 1e6)
  end)

  it("refuses a second backward pass and says how to allow it", function()
    local x = leaf { 2 }
    local y = (x * x):sum()
    y:backward()
    local ok, message = pcall(y.backward, y)
    assert.is_false(ok)
    assert.is_truthy(message:find("retain_graph", 1, true), message)
    local z = (x * x):sum()
    z:backward(nil, { retain_graph = true })
    z:backward()
    assert.are.same({ 12 }, x.grad:totable())
  end)

  it("does not need the results of these, which may be changed in place", function()
    local x = tensor.tensor({ 0.5, 0.25, 0.125 }, { requires_grad = true })
    local function gradient(fn)
      x.grad = nil
      local y = fn(x)
      y:add_(1):mul_(2)
      y:sum():backward()
      return x.grad:tolist()
    end
    assert.same({ 2, 1, 0.5 }, gradient(function(v) return v ^ 2 end))
    assert.same({ 1.5, 0.375, 0.09375 }, gradient(function(v) return v:pow(3) end))
    assert.same({ 1, 1, 1 }, gradient(function(v) return (v * 0):pow(1) + v / 2 end))
    assert.same({ 2, 0, 0 }, gradient(function(v) return (v:max { dim = 1 }) end))
    assert.same({ 0, 0, 2 }, gradient(function(v) return (v:min { dim = 1, keepdim = true }) end))
    assert.same({ 2, 0, 0 }, gradient(function(v) return (v:max()) end))
    local slope = gradient(function(v) return v:erfinv() end)
    for i, v in ipairs { 0.5, 0.25, 0.125 } do
      local y = tensor.tensor(v, { dtype = "float64" }):erfinv():item()
      assert.near(math.sqrt(math.pi) * math.exp(y * y), slope[i], 1e-5)
    end
    local w = tensor.tensor({ 2 }, { requires_grad = true }) -- also for the exponent
    local y = x:detach() ^ w
    y:mul_(3)
    y:sum():backward()
    local expected = 0
    for _, v in ipairs { 0.5, 0.25, 0.125 } do expected = expected + 3 * v ^ 2 * math.log(v) end
    assert.near(expected, w.grad:item(), 1e-5)
  end)

  it("notices that a saved tensor was changed in place", function()
    local x, w = leaf { 2, 3 }, tensor.tensor({ 1, 1 }, { dtype = "float64" })
    local y = x * w
    w:add_(1)
    local ok, message = pcall(function() y:sum():backward() end)
    assert.is_false(ok)
    assert.is_truthy(message:find("changed in place", 1, true) and message:find("mul", 1, true), message)
  end)

  it("keeps versions apart for parameters that share a flat buffer", function()
    local a, b = leaf { 2 }, leaf { 5 }
    local flat = layouts.of({ a, b }, {}):values()
    local y = a * b
    tensor.no_grad(function() flat:narrow(1, 30, 1):fill_(3) end)
    y:sum():backward()
    assert.are.same({ 5 }, a.grad:totable())
    local z = (a * a):sum()
    tensor.no_grad(function() b:add_(1) end) -- its neighbour
    z:backward()
    assert.are.same({ 5 + 4 }, a.grad:totable())
  end)

  it("adds gradients of products straight into a slot, and starts afresh after zero_grad", function()
    local w = tensor.tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true })
    local slots = layouts.of({ w }, { grads = true }):grads():fill_(9)
    local x = tensor.tensor { { 1, 1 } }
    for round = 1, 2 do
      x:linear(w):sum():backward()
      assert.are.same({ { round, round }, { round, round } }, w.grad:totable())
      assert.are.equal(round, slots[1]:item())
    end
    w.grad = nil
    x:linear(w):sum():backward()
    assert.are.equal(1, slots[4]:item())
    assert.are.equal(9, slots[5]:item())
  end)

  it("gives tied weights the sum of both contributions", function()
    local w = leaf { { 1, 2 }, { 3, 4 } }
    local x = tensor.tensor({ { 1, -1 } }, { dtype = "float64" })
    local plain = core.grad({ x:matmul(w):matmul(w):sum() }, { w })
    layouts.give_slots { w }
    x:matmul(w):matmul(w):sum():backward()
    assert.are.same(plain:totable(), w.grad:totable())
  end)

  it("refuses in-place changes of leaves while recording", function()
    local x = leaf { 1, 2 }
    assert.has_error(function() x:add_(1) end)
    tensor.no_grad(function() x:add_(1) end)
    assert.are.same({ 2, 3 }, x:totable())
  end)

  it("differentiates through in-place ops on results", function()
    local x = leaf { 0.5, -1 }
    local y = x * 2
    y:mul_(x)
    y:exp_()
    y:sum():backward()
    local expected = {}
    for i, v in ipairs { 0.5, -1 } do expected[i] = math.exp(2 * v * v) * 4 * v end
    for i, g in ipairs(x.grad:totable()) do assert.is_true(math.abs(g - expected[i]) < 1e-12) end
  end)

  it("visits only what leads to the inputs of grad, whatever else is alive", function()
    for _, kept in ipairs { false, true } do
      local x, w = leaf { 4, 9 }, leaf { 2, 3 }
      local older = kept and w * 1 -- the node of the leaf w is older than what follows
      local y = x:rsqrt()
      y:sum():backward() -- releases what lies behind y
      local z = y:sqrt()
      local gz, gw = tensor.grad((z * w):sum(), { z, w })
      assert.are.same(w:totable(), gz:totable())
      assert.are.same(z:totable(), gw:totable())
      assert.has_error(function() tensor.grad((y * 2):sum(), { x }) end)
      assert.truthy(older or not kept)
    end
  end)

  it("says why backward cannot start", function()
    local ok, message = pcall(function() tensor.ones(2):sum():backward() end)
    assert.is_false(ok)
    assert.is_truthy(message:find("requires_grad", 1, true), message)
    local x = leaf { 1, 2 }
    ok, message = pcall(function() (x * 2):backward() end)
    assert.is_false(ok)
    assert.is_truthy(message:find("scalar", 1, true), message)
  end)
end)
