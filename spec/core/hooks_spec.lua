--- Hooks that change what is under way: removed after their tensor got another history, starting
--- backward passes of their own.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local message = require("spec.support.messages").message

describe("a hook's handle", function()
  it("removes the hook also after the result was changed in place or detached", function()
    for _, change in ipairs { "add_", "detach_" } do
      local x = core.ones(2):requires_grad_()
      local y = x * 2
      local z = y * 3
      local seen = 0
      local handle = y:register_hook(function() seen = seen + 1 end)
      if change == "add_" then y:add_(1) else y:detach_() end
      handle:remove()
      handle:remove()
      z:sum():backward()
      assert.equal(0, seen, change)
      assert.same({ 6, 6 }, x.grad:totable())
    end
  end)

  it("leaves other hooks of the same history alone", function()
    local x = core.ones(2):requires_grad_()
    local y = x * 2
    local z = y * 3
    local seen = {}
    y:register_hook(function() seen[#seen + 1] = "first" end)
    local handle = y:register_hook(function() seen[#seen + 1] = "second" end)
    y:add_(1)
    y:register_hook(function() seen[#seen + 1] = "of the sum" end)
    handle:remove()
    z:sum():backward()
    assert.same({ "first" }, seen)
  end)
end)

describe("a result's hook that captures the result", function()
  -- What a graph held is let go at the next call after the graph went, which is itself collected: a
  -- few rounds.
  local function live()
    for _ = 1, 6 do
      collectgarbage()
      core.ones(1)
    end
    collectgarbage()
    return core.memory_stats().structs
  end

  local function keeps_nothing(round)
    for _ = 1, 3 do round() end
    local before = live()
    for _ = 1, 50 do round() end
    assert.is_true(live() <= before, ("%d, then %d"):format(before, live()))
  end

  it("goes with the graph that backward releases", function()
    keeps_nothing(function()
      local y = core.ones(3):requires_grad_() * 2
      y:register_hook(function(g) return g * y end)
      y:sum():backward()
    end)
  end)

  it("stays while the graph is retained", function()
    local seen = 0
    keeps_nothing(function()
      local x = core.ones(3):requires_grad_()
      local y = x * 2
      y:register_hook(function(g)
        seen = seen + 1
        return g * y
      end)
      local z = y:sum()
      z:backward { retain_graph = true }
      z:backward()
      assert.same({ 8, 8, 8 }, x.grad:totable())
    end)
    assert.equal(2 * 53, seen)
  end)

  it("is not kept when it comes after the graph was released, and its handle works all the same", function()
    keeps_nothing(function()
      local y = core.ones(3):requires_grad_() * 2
      y:sum():backward()
      y:register_hook(function(g) return g * y end):remove()
      y:register_hook(function(g) return g * y end)
    end)
  end)

  it("may start a backward pass that releases a part of its own graph", function()
    local w = core.ones(2):requires_grad_()
    local shared = w * 2
    shared:register_hook(function(g) return g * shared end)
    local y, sum = shared * 3, shared:sum()
    y:register_hook(function() sum:backward() end)
    local z = y:sum()
    assert.matches("released by an earlier backward pass", message(z.backward, z))
    assert.same({ 4, 4 }, w.grad:totable())
  end)
end)

describe("a backward pass from inside one", function()
  it("may reach leaves that the outer one has waiting", function()
    local w, x = core.ones(2):requires_grad_(), core.ones(2):requires_grad_()
    local y = x * 5
    -- w's gradient of the outer pass waits meanwhile
    y:register_hook(function() tensor.enable_grad(function() (w * w * 3):sum():backward() end) end)
    local z = y * w
    z:sum():backward()
    assert.same({ 6 + 5, 6 + 5 }, w.grad:totable())
    assert.same({ 5, 5 }, x.grad:totable())
  end)

  it("may walk a part of the graph that the outer one has still to walk", function()
    local w = core.ones(2):requires_grad_()
    local shared = w * 2
    local y, sum = shared * 3, shared:sum()
    local found
    y:register_hook(function() found = core.grad(sum, w, { retain_graph = true }) end)
    y:sum():backward()
    assert.same({ 2, 2 }, found:totable())
    assert.same({ 6, 6 }, w.grad:totable())
  end)

  it("may come from a custom gradient, and the outer one goes on after it failed", function()
    local w = core.ones(1):requires_grad_()
    local twice = tensor.Function {
      forward = function(_, a) return a * 2 end,
      backward = function(_, g)
        tensor.enable_grad(function()
          local square, ten = w * w, w * 10
          assert(not pcall(square.backward, square, core.ones(3)))
          ten:backward()
        end)
        return g * 2
      end,
    }
    local a = core.ones(1):requires_grad_()
    local y = twice(a) * w
    y:backward()
    assert.equal(12, w.grad:item())
    assert.equal(2, a.grad:item())
  end)

  it("is refused through the leaf whose gradient is being worked out", function()
    local w = core.ones(1):requires_grad_()
    w:register_hook(function() tensor.enable_grad(function() (w * 2):backward() end) end)
    local y = w * 3
    assert.matches("through the very op or leaf whose gradient is being worked out", message(y.backward, y))
  end)
end)

describe("a leaf's hook", function()
  -- What a graph held is let go at the next call after the graph went, which is itself collected: a
  -- few rounds.
  local function live()
    for _ = 1, 6 do
      collectgarbage()
      core.ones(1)
    end
    collectgarbage()
    return core.memory_stats().structs
  end

  it("works on when the leaf's object and what the hook captures are reachable through the graph alone",
    function()
    local seen
    local function graph(hook_first)
      local x, factor = core.ones(3):requires_grad_(), core.full({ 3 }, 5)
      local function hook(g) seen = (g * factor):totable() end
      if hook_first then x:register_hook(hook) end
      local y = (x * 2):sum()
      if not hook_first then x:register_hook(hook) end
      return y
    end
    for _, hook_first in ipairs { true, false } do
      local y = graph(hook_first)
      live()
      y:backward()
      assert.same({ 10, 10, 10 }, seen)
    end
  end)

  it("keeps nothing when the graph is gone", function()
    local function once(backward)
      local x = core.ones(3):requires_grad_()
      x:register_hook(function() return x * 0 + 1 end)
      local y = (x * 2):sum()
      if backward then y:backward() end
    end
    once(true)
    once(false)
    local before = live()
    for i = 1, 50 do once(i % 2 == 0) end
    assert.is_true(live() <= before, ("%d, then %d"):format(before, live()))
  end)
end)

-- A node holds a function, the function captures a tensor, the tensor holds the node.
describe("a circle through a graph that backward never sees", function()
  local MB, N = 2 ^ 20, 256 * 1024 -- tensors of 1 MB

  -- Makes an allocation fail: before it does, all that nothing uses is freed.
  local function press()
    core.set_memory_limit(core.memory_stats().live_bytes + MB)
    local ok = pcall(core.zeros, 2 ^ 30)
    core.set_memory_limit(0)
    assert.is_false(ok)
  end

  local w = core.ones(N, { requires_grad = true })
  local function double(backward)
    return core.Function { forward = function(_, x) return x * 2 end, backward = backward }
  end

  local CIRCLES = {
    ["a hook that captures its result"] = function()
      local y = w * 2
      y:register_hook(function(g) return g * y end)
    end,
    ["a hook that captures what was made of its result"] = function()
      local y, loss = w * 2, nil
      y:register_hook(function(g) return g * loss end)
      loss = (y * y):sum()
    end,
    ["hooks that capture each other's results"] = function()
      local y = w * 2
      local z = y * y * y + y
      y:register_hook(function() return z end)
      z:register_hook(function() return y end)
    end,
    ["a hook that captures a view of its result"] = function()
      local y = w * 2
      local v = y:narrow(1, 1, 5)
      y:register_hook(function(g) return g * v:sum() end)
    end,
    ["a hook of a result that is changed in place"] = function()
      local y = w * 2
      y:mul_(3)
      y:register_hook(function() return y end)
      y:add_(1)
    end,
    ["a hook of a leaf that captures a result"] = function()
      local x = core.ones(N, { requires_grad = true })
      local y
      x:register_hook(function() return y end)
      y = x * 2
    end,
    ["a function whose backward captures its result"] = function()
      local out
      out = double(function(_, g) return g * out end)(w)
    end,
    ["a function whose ctx has its result"] = function()
      local kept
      local f = core.Function { forward = function(ctx, x)
        kept = ctx
        return x * 2
      end, backward = function(_, g) return g * 2 end }
      kept.out = f(w)
    end,
  }
  for name, round in next, CIRCLES do
    it("is freed: " .. name, function()
      press()
      local before = core.memory_stats().live_bytes
      for _ = 1, 300 do round() end
      local grown = core.memory_stats().live_bytes - before
      -- a collection waits for 128 MB at most; nothing freed would be 300 MB and more
      assert.is_true(grown < 200 * MB, ("%.1f MB"):format(grown / MB))
      press()
      grown = core.memory_stats().live_bytes - before
      assert.is_true(grown < 5 * MB, ("%.1f MB"):format(grown / MB))
    end)
  end

  it("is kept, with all that it captures, while something reaches it", function()
    local seen = {}
    local function graph()
      local factor, loss = core.tensor({ 3, 4 }), nil
      local x = core.ones(2, { requires_grad = true })
      x:register_hook(function(g) seen[#seen + 1] = { "leaf", (g * factor):totable() } end)
      local y = x * 2
      y:register_hook(function(g)
        seen[#seen + 1] = { "result", (g * factor + y.data * 0 + loss.data * 0):totable() }
      end)
      local out = double(function(_, g)
        seen[#seen + 1] = { "function", (g * factor + y.data * 0):totable() }
        return g * 2
      end)(y)
      loss = out:sum()
      return loss, out
    end
    local wanted = { { "function", { 3, 4 } }, { "result", { 6, 8 } }, { "leaf", { 12, 16 } } }

    local loss = graph() -- in a local variable
    press()
    loss:backward()
    assert.same(wanted, seen)

    seen = {} -- on the stack of a coroutine
    local run = coroutine.wrap(function()
      local held = graph()
      coroutine.yield()
      held:backward()
    end)
    run()
    press()
    run()
    assert.same(wanted, seen)

    seen = {} -- through another result of the graph
    local _, out = graph()
    press()
    local other = out * 1
    out = nil
    press()
    other:sum():backward()
    assert.same(wanted, seen)
    assert.is_nil(out)
  end)

  it("is kept while the core reaches it", function()
    local seen
    local x = core.full({ 2 }, 3, { requires_grad = true })
    do
      local factor = core.tensor({ 5, 7 })
      local y = x * x * x
      y:sum():backward({ create_graph = true })
      local grad = x.grad
      grad:register_hook(function(g) seen = (g * factor + grad.data * 0):totable() end)
    end
    press()
    x.grad:sum():backward()
    assert.same({ 5, 7 }, seen)
  end)

  it("may be broken inside a hook and inside a function", function()
    local ran = {}
    local x = core.ones(2, { requires_grad = true })
    local y = x * 2
    y:register_hook(function(g)
      tensor.enable_grad(CIRCLES["a hook that captures its result"])
      press()
      ran[#ran + 1] = g:totable()
    end)
    local z = core.Function { forward = function(_, v)
      press()
      return v * 3
    end, backward = function(_, g)
      press()
      return g * 3
    end }(y)
    press()
    z:sum():backward()
    assert.same({ { 3, 3 } }, ran)
    assert.same({ 6, 6 }, x.grad:totable())
  end)
end)

-- Values from PyTorch.
describe("retain_grad", function()
  local function result()
    local x = core.ones(2, { requires_grad = true })
    return x * 2, x
  end

  it("keeps what the tensor's hooks make of the gradient, also those that come later", function()
    local y, x = result()
    y:retain_grad()
    y:register_hook(function(g) return g * 10 end)
    y:sum():backward()
    assert.same({ 10, 10 }, y.grad:tolist())
    assert.same({ 20, 20 }, x.grad:tolist())
  end)

  it("goes along when the tensor is changed in place", function()
    local y = result()
    y:retain_grad()
    y:mul_(3)
    y:retain_grad()
    y:square():sum():backward()
    assert.same({ 12, 12 }, y.grad:tolist())

    y = result()
    y:retain_grad()
    y:view(-1):mul_(3)
    y:square():sum():backward()
    assert.same({ 12, 12 }, y.grad:tolist())

    y = result()
    local part = y[1]
    part:retain_grad()
    part:mul_(3)
    part:square():backward()
    assert.equal(12, part.grad:item())

    y = result()
    y:retain_grad()
    part = y[1]
    part:mul_(3)
    part:square():backward()
    assert.same({ 12, 0 }, y.grad:tolist())
  end)

  it("leaves other hooks where they were added", function()
    local y = result()
    local seen
    y:register_hook(function(g) seen = g:tolist() end)
    y:mul_(3)
    y:square():sum():backward()
    assert.same({ 36, 36 }, seen)
  end)
end)
