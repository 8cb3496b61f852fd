--- nn.utils.checkpoint: the same bits for less memory.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local accelerate = require "accelerate"
local message = require("spec.support.messages").message
local checkpoint = nn.utils.checkpoint

local function block(width)
  return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, width),
    nn.ReLU())
end

local function gradients(model) -- copies
  local list = {}
  for i, p in ipairs(model:parameters()) do list[i] = p.grad and p.grad:clone() or false end
  return list
end

local function same(a, b)
  assert.equal(#a, #b)
  for i = 1, #a do
    if a[i] then assert.is_true(tensor.equal(a[i], b[i]), "tensor " .. i) else assert.equal(a[i], b[i]) end
  end
end

-- Loss, gradients of parameters and of x, and where the generator stands afterwards.
local function run(model, forward, x)
  model:zero_grad()
  x.grad = nil
  core.manual_seed(11)
  local loss = forward(x):square():mean()
  loss:backward()
  local list = gradients(model)
  list[#list + 1] = x.grad and x.grad:clone() or false
  list[#list + 1] = loss:detach()
  return list, core.default_generator():get_state()
end

describe("checkpoint", function()
  it("gives the same bits as without it, dropout included, for parameters and arguments", function()
    local model = nn.Sequential(block(16), block(16), block(16))
    for _, wanted in ipairs { true, false } do
      local x = core.randn(5, 16):requires_grad_(wanted)
      local plain, state = run(model, model, x)
      local checked, again = run(model, function(v)
        for _, b in model:iter() do v = checkpoint(b, v) end
        return v
      end, x)
      same(plain, checked)
      assert.equal(state, again)
    end
  end)

  it("nests, and goes with several arguments and results that are no tensors", function()
    local model = nn.Sequential(block(8), block(8))
    local function both(a, scale, b)
      return checkpoint(model[1], a) * scale, "text", nil, model[2](b)
    end
    local function forward(with)
      return function(v)
        local p, text, none, q
        if with then p, text, none, q = checkpoint(both, v, 2, v) else p, text, none, q = both(v, 2, v) end
        assert.equal("text", text)
        assert.is_nil(none)
        return p + q
      end
    end
    local x = core.randn(3, 8):requires_grad_()
    local plain = run(model, forward(false), x)
    same(plain, (run(model, forward(true), x)))
  end)

  it("works in accumulate, with weights that several parts share", function()
    local function train(with)
      core.manual_seed(4)
      local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }
      local model = nn.Sequential(block(8), block(8))
      model[2][1].weight = model[1][1].weight
      local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
      model, optimizer = accelerator:prepare(model, optimizer)
      for _ = 1, 4 do
        local x = core.randn(3, 8)
        accelerator:accumulate(model, function()
          local y = with and checkpoint(model[2], checkpoint(model[1], x)) or model(x)
          accelerator:backward(y:square():mean())
          optimizer:step()
          optimizer:zero_grad()
        end)
      end
      local list = {}
      for i, p in ipairs(model:parameters()) do list[i] = p:detach():clone() end
      accelerator.gradient_accumulation_steps = 1
      return list
    end
    local plain, checked = train(false), train(true)
    for i = 1, #plain do assert.is_true(tensor.allclose(plain[i], checked[i], { atol = 1e-6 })) end
  end)

  it("computes again under the automatic casting of the first time", function()
    local model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    local x = core.randn(4, 16):requires_grad_()
    local function forward(with)
      return function(v)
        return tensor.autocast({ dtype = "bfloat16" },
          function() return with and checkpoint(model, v) or model(v) end):float()
      end
    end
    same((run(model, forward(false), x)), (run(model, forward(true), x)))
  end)

  it("keeps the memory of the parts down", function()
    local layers = {}
    for i = 1, 8 do
      layers[i] = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.Tanh(),
        nn.Linear(128, 32))
    end
    local model = nn.Sequential(unpack(layers))
    local x = core.randn(2048, 32)
    local function peak(forward)
      model:zero_grad()
      for _ = 1, 2 do
        collectgarbage()
        core.release(core.zeros(1))
      end
      local before = core.memory_stats().live_bytes
      core.reset_peak_memory_stats()
      forward(x):square():mean():backward()
      return core.memory_stats().peak_bytes - before
    end
    local plain = peak(model)
    local checked = peak(function(v)
      for _, part in model:iter() do v = checkpoint(part, v) end
      return v
    end)
    assert.is_true(checked < 0.5 * plain, ("%.1f MB instead of %.1f"):format(checked / 1e6, plain / 1e6))
    local segments = peak(function(v) return nn.utils.checkpoint_sequential(model, 4, v) end)
    assert.is_true(segments < 0.6 * plain, ("%.1f MB instead of %.1f"):format(segments / 1e6, plain / 1e6))
  end)

  it("may be walked back after the scope that it was made in", function()
    local layer = nn.Linear(3, 3)
    local loss = tensor.scope(function() return checkpoint(layer, layer(core.ones(2, 3))):sum() end)
    loss:backward()
    assert.is_true(layer.weight.grad ~= nil)
  end)

  it("is plain calling where nothing is recorded", function()
    local layer, n = nn.Linear(3, 3), 0
    tensor.no_grad(function()
      local y = checkpoint(function(v)
        n = n + 1
        return layer(v)
      end, core.ones(2, 3))
      assert.is_false(y.requires_grad)
    end)
    assert.equal(1, n)
  end)

  it("uses other generators as they were, too", function()
    local g = tensor.Generator(5)
    local drop = nn.Dropout { p = 0.5, generator = g }
    local x = core.ones(50):requires_grad_()
    local y = nn.utils.checkpoint_with({ generators = { g } }, drop, x)
    local after = g:get_state()
    y:sum():backward()
    assert.is_true(tensor.equal(y, x.grad))
    assert.equal(after, g:get_state())
  end)

  it("takes its options behind the arguments, as PyTorch does", function()
    local layer, x = nn.Linear(3, 3), core.randn(2, 3):requires_grad_()
    local y = checkpoint(layer, x, { use_reentrant = false, determinism_check = "none" })
    assert.is_true(tensor.equal(layer(x), y))
    y:sum():backward()
    assert.same({ 2, 3 }, x.grad.shape)
    y = nn.utils.checkpoint_sequential(nn.Sequential(layer, layer), 2, x, { use_reentrant = false })
    assert.is_true(tensor.equal(layer(layer(x)), y))
    local given = checkpoint(function(_, options) return options end, x, { scale = 2 }) -- fn's own
    assert.same({ scale = 2 }, given)
    assert.matches("checkpoint: option 'preserve_rng_state' must be true or false, got 3",
      message(checkpoint, layer, x, { preserve_rng_state = 3 }))
  end)

  it("takes tensors out of tables among the arguments, and gives them their gradients", function()
    local layer, x = nn.Linear(3, 3), core.randn(2, 3):requires_grad_()
    local function add(v, place) return layer(v) + place.bias * place.inner[1] end
    local function go(call)
      x.grad = nil
      local bias = x * 2
      local place = { bias = bias, inner = { bias:exp() }, name = "place" }
      place.self = place
      call(add, x, place):square():sum():backward()
      return x.grad
    end
    assert.is_true(tensor.equal(go(function(fn, ...) return fn(...) end), go(checkpoint)))
  end)

  it("keeps tensors of such tables though the scope that made them has ended", function()
    local layer, x = nn.Linear(3, 3), core.randn(2, 3):requires_grad_()
    local y = tensor.scope(function()
      return checkpoint(function(v, place) return layer(v) * place.scale end, x,
        { scale = core.full({ 3 }, 2) })
    end)
    y:sum():backward()
    assert.is_true(tensor.equal(x.grad, layer.weight:sum(1):mul(2):expand(2, 3)))
  end)

  -- The kernel that attention takes depends on whether its mask requires a gradient.
  it("draws alike both times where the kernel follows from what requires a gradient", function()
    local q = core.randn(1, 2, 8, 4):requires_grad_()
    local bias = core.randn(8, 8):requires_grad_()
    local function attend(v, b)
      return core.scaled_dot_product_attention(v, v, v, { attn_mask = b * 1, dropout_p = 0.5 })
    end
    local function go(call)
      q.grad, bias.grad = nil, nil
      tensor.manual_seed(3)
      call(attend, q, bias):square():sum():backward()
      return q.grad, bias.grad
    end
    local q1, b1 = go(function(fn, ...) return fn(...) end)
    local q2, b2 = go(checkpoint)
    assert.is_true(tensor.allclose(q1, q2) and tensor.allclose(b1, b2))
  end)

  it("says what goes wrong", function()
    local layer = nn.Linear(3, 3)
    assert.matches("checkpoint: expected a function or a module first, got 3", message(checkpoint, 3))
    local n = 0
    local changing = checkpoint(function(v)
      n = n + 1
      return n == 1 and layer(v) or layer(v):sum()
    end, core.ones(2, 3))
    local err = message(function() changing:backward(core.ones(2, 3)) end)
    assert.matches("result 1 was float32 %[2, 3%], and float32 %[%] when the function ran again", err)
    local y = checkpoint(layer, core.ones(2, 3)):sum()
    assert.matches("create_graph is not available through a checkpoint",
      message(y.backward, y, { create_graph = true }))
    local x = core.ones(2, 3):requires_grad_()
    y = checkpoint(layer, x):sum()
    assert.matches("tensor.grad is not available through a checkpoint", message(core.grad, y, x))
    n = 0
    y = checkpoint(function(v)
      n = n + 1
      return n == 1 and layer(v) or error("on purpose")
    end, core.ones(2, 3)):sum()
    assert.matches("on purpose", message(y.backward, y))
    assert.is_true(core.is_grad_enabled())
  end)
end)

describe("options of checkpoint", function()
  it("may stand at the end of the arguments", function()
    local layer = nn.Linear(3, 3)
    local x = core.ones(2, 3)
    local plain = layer(x)
    for _, opts in ipairs { { use_reentrant = false }, { use_reentrant = true, preserve_rng_state = false },
      { determinism_check = "default", debug = false, early_stop = true } } do
      assert.is_true(checkpoint(layer, x, opts):eq(plain):all():item())
    end
    layer:zero_grad()
    checkpoint(layer, x, { use_reentrant = false }):sum():backward()
    assert.is_true(layer.bias.grad:eq(2):all():item())
    local model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    local y = nn.utils.checkpoint_sequential(model, 2, x,
      { use_reentrant = false, preserve_rng_state = false })
    assert.is_true(y:eq(model(x)):all():item())
  end)

  it("are told from tables that fn takes", function()
    local seen
    checkpoint(function(v, opts)
      seen = opts
      return v * opts.by
    end, core.ones(1), { by = 2, use_reentrant = false })
    assert.same({ by = 2, use_reentrant = false }, seen)
    assert.matches("checkpoint: context_fn is not there: enter what is needed in the function itself",
      message(checkpoint, nn.Identity(), core.ones(1), { context_fn = print }))
    assert.matches("option 'use_reentrant' must be true or false",
      message(checkpoint, nn.Identity(), core.ones(1), { use_reentrant = 1 }))
  end)
end)
