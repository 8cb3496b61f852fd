-- ax_flat: parameters in one buffer, with their gradients, presence, ready counts and optimizer
-- states in buffers of the same layout.
local core = require "accelerate.core"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local message = require("spec.support.messages").message

local function leaf(...) return tensor.ones(...):requires_grad_() end

local KINDS = {
  { "SGD", { lr = 0.1 } }, { "SGD", { lr = 0.1, momentum = 0.9 } }, { "Adam", {} }, { "AdamW", {} },
  { "AdamW", { amsgrad = true } }, { "Adamax", {} },
  { "NAdam", {} }, { "RAdam", {} }, { "Adagrad", { initial_accumulator_value = 0.1 } }, { "RMSprop", {} },
  { "RMSprop", { centered = true, momentum = 0.5 } }, { "Adafactor", {} }, { "Lion", { lr = 0.1 } },
  { "Adadelta", {} }, { "Rprop", {} }, { "ASGD", { t0 = 1 } }, { "SGDScheduleFree", {} },
  { "AdamWScheduleFree", {} },
}

describe("a layout", function()
  it("puts parameters into slots of 256 bytes, and keeps values, objects and gradients", function()
    local a, b, c = leaf(3, 5), leaf(64), leaf(65)
    a:sum():backward()
    local grad = a.grad
    core.no_grad(function() b:mul_(2) end)
    local layout, number, offsets, size = core.flat { a, b, c }
    assert.are.same({ 0, 64, 128 }, offsets)
    assert.are.equal(256, size)
    assert.are.same({ number, 2 }, { core.flat_of(b) })
    assert.are.equal(15, a:sum():item())
    assert.are.same({ 64 * 2 + 15 + 65 }, { layout:values():sum():item() })
    assert.is_true(a.is_leaf and a.requires_grad)
    assert.are.equal(grad, a.grad)
    assert.is_nil(layout:grads())
    layout:give_grads()
    assert.are.equal(256 + 3, layout:grads():numel())
    assert.are.equal(15, layout:grads():sum():item())
    layout:give_work "bfloat16"
    assert.are.equal("bfloat16", layout:work().dtype)
    assert.are.equal(256, layout:work():numel())
  end)

  it("takes one floating-point type, one device, leaves, and each parameter once; else nothing moves",
    function()
    local a, b = leaf(3), leaf(3)
    local address = a:_address()
    assert.matches("parameter 2 is float64 and the first one float32",
      message(core.flat, { a, leaf(3):detach():double() }))
    assert.matches("parameter 2 is int64", message(core.flat, { a, tensor.zeros(2, { dtype = "int64" }) }))
    assert.matches("parameter 2 is the result of mul", message(core.flat, { a, b * 2 }))
    assert.matches("parameter 3 is the same tensor as parameter 1", message(core.flat, { a, b, a }))
    assert.matches("there are no parameters", message(core.flat, {}))
    assert.is_nil(core.flat_of(a))
    assert.are.equal(address, a:_address())
    local layout = core.flat { a }
    assert.matches("parameter 2 is in a flat buffer already", message(core.flat, { b, a }))
    assert.is_nil(core.flat_of(b))
    assert.is_true(layout:is_current())
  end)

  it("is left by a parameter that gets other memory, and ends with its last owner", function()
    local a, b = leaf(3), leaf(3)
    do
      local layout = core.flat { a, b }
      layout:give_grads()
      a.data = tensor.zeros(3)
      assert.is_nil(core.flat_of(a))
      assert.is_truthy(core.flat_of(b))
      assert.is_false(layout:is_current())
      layout:cut { 2 }
      assert.is_false(layout:collect(1))
    end
    collectgarbage()
    assert.is_nil(core.flat_of(b))
    assert.are.same({ 1, 1, 1 }, b:totable())
  end)

  it("moves nothing when memory runs out", function()
    for n = 1, 40 do
      local params = { leaf(3), leaf(70), leaf(5) }
      params[1]:sum():backward()
      local addresses = {}
      for i, p in ipairs(params) do addresses[i] = p:_address() end
      collectgarbage()
      core.debug_fail_alloc(n)
      local ok, layout = pcall(core.flat, params)
      core.debug_fail_alloc(0)
      for i, p in ipairs(params) do
        assert.are.equal(ok, p:_address() ~= addresses[i])
        assert.are.equal(ok, core.flat_of(p) ~= nil)
      end
      if ok then
        core.debug_fail_alloc(1 + n % 7)
        local given = pcall(layout.give_grads, layout)
        core.debug_fail_alloc(0)
        assert.are.equal(given, layout:grads() ~= nil)
        assert.are.same({ 1, 1, 1 }, params[1].grad:totable())
        params[1]:sum():backward()
        assert.are.same({ 2, 2, 2 }, params[1].grad:totable())
      end
    end
  end)

  it("and its states take their bytes, to the page, and give them back at once", function()
    local function settled()
      for _ = 1, 3 do collectgarbage() end
      core.release(core.zeros(1)) -- drops what finalisers let go of
      return core.memory_stats()
    end
    local function step(n, bytes)
      local before = settled()
      local p = leaf(n)
      local layout, group = core.flat { p }, core.optim_group("sgd", { p })
      layout:give_grads()
      p:sum():backward()
      group:step { lr = 1, weight_decay = 0, maximize = false, momentum = 0.9, dampening = 0,
        nesterov = false }
      local during = settled()
      assert.are.same({ bytes, 3 },
        { during.live_bytes - before.live_bytes, during.live_blocks - before.live_blocks })
      core.empty_cache()
      return before
    end
    -- values, gradients with the presence behind them, states; from a MiB on in whole pages
    for n, bytes in pairs { [50000] = 3 * 200192 + 64, [333333] = 3 * 1335296 } do
      local before, after = step(n, bytes), settled()
      assert.are.equal(before.live_bytes, after.live_bytes)
      assert.is_true(after.cached_bytes < 4096)
    end
  end)

  it("leaves nothing behind", function()
    local function used()
      for _ = 1, 3 do collectgarbage() end
      local stats = core.memory_stats()
      return { stats.live_bytes, stats.structs }
    end
    local function once()
      local a, b = leaf(30), leaf(50)
      local layout = core.flat { a, b }
      layout:give_grads()
      layout:give_work "bfloat16"
      layout:cut { 1, 2 }
      local group = core.optim_group("sgd", { a, b })
      a:sum():backward()
      layout:expect(function() end)
      b:sum():backward()
      layout:remember()
      layout:collect(1)
      layout:collect(2)
      group:step { lr = 1, weight_decay = 0, maximize = false, momentum = 0.9, dampening = 0,
        nesterov = false }
      local view = {}
      group:show(view)
      a.data = tensor.zeros(30)
    end
    once()
    local before = used()
    for _ = 1, 20 do once() end
    assert.are.same(before, used())
  end)
end)

describe("buckets", function()
  local function laid_out()
    local params = {}
    for i = 1, 5 do params[i] = leaf(10 * i) end
    local layout = core.flat(params)
    layout:give_grads()
    return layout, params
  end

  it("are ranges of slots", function()
    local layout = laid_out()
    layout:cut { 2, 5 }
    assert.matches("bucket 2 ends before slot 3", message(layout.cut, layout, { 2, 2, 5 }))
    assert.matches("the ends must rise to 5", message(layout.cut, layout, { 2, 4 }))
    assert.matches("one bucket at least", message(layout.cut, layout, {}))
    assert.error(function() layout:cut { 6 } end)
    assert.error(function() layout:collect(3) end)
  end)

  it("are full once for each pass, when their last gradient has come, and say when one comes late", function()
    local layout, params = laid_out()
    layout:cut { 2, 5 }
    local calls = {}
    local function full(bucket, late, slot)
      calls[#calls + 1] = ("%d%s %d"):format(bucket, late and " late" or "", slot)
    end
    params[4].requires_grad = false
    layout:expect(full)
    assert.are.same({ 2, 2 }, { layout:pending(1), layout:pending(2) })
    local before = layout:reached()
    ;(params[1]:sum() + params[2]:sum() + params[5]:sum()):backward()
    assert.are.same({ "1 1" }, calls)
    assert.are.same({ 0, 1 }, { layout:pending(1), layout:pending(2) })
    params[3]:sum():backward()
    assert.are.same({ "1 1", "2 3" }, calls)
    params[2]:sum():backward()
    assert.are.same({ "1 1", "2 3", "1 late 2" }, calls)
    assert.are.equal(before + 5, layout:reached())
    layout:ignore()
    params[2]:sum():backward()
    assert.are.equal(3, #calls)
  end)

  it("wait for as many gradients as in the pass that was remembered", function()
    local layout, params = laid_out()
    layout:cut { 5 }
    layout:expect(nil)
    for _, k in ipairs { 2, 2, 3 } do params[k]:sum():backward() end
    layout:remember()
    layout:expect(nil)
    assert.are.equal(3, layout:pending(1))
  end)

  it("raise in backward what the function raises", function()
    local layout, params = laid_out()
    layout:cut { 5 }
    local function full() error("stop here") end
    layout:expect(full)
    local loss = tensor.zeros({})
    for _, p in ipairs(params) do loss = loss + p:sum() end
    assert.matches("stop here", message(loss.backward, loss))
  end)

  it("count a tied weight once, after its last contribution", function()
    local w = leaf(4, 4)
    local layout = core.flat { w }
    layout:give_grads()
    layout:cut { 1 }
    local sums = {}
    local function full() sums[#sums + 1] = w.grad:sum():item() end
    layout:expect(full)
    local x = tensor.ones(1, 4)
    x:matmul(w):matmul(w):sum():backward()
    assert.are.equal(1, #sums)
    assert.are.equal(w.grad:sum():item(), sums[1])
  end)

  it("bring gradients into their slots, and write the presence", function()
    local layout, params = laid_out()
    layout:cut { 2, 5 }
    params[1].grad = tensor.full({ 10 }, 3)  -- the script's own
    params[3]:sum():backward()
    local grads = layout:grads()
    core.no_grad(function() grads:narrow(1, 65, 20):fill_(7) end)  -- what a former gradient left
    assert.is_true(layout:collect(1))
    assert.is_true(layout:collect(2))
    assert.are.equal(30 + 30 + 2, grads:sum():item())
    assert.are.same({ 1, 0, 1, 0, 0 }, grads:narrow(1, grads:numel() - 4, 5):totable())
    core.no_grad(function() params[1].grad:fill_(1) end)
    assert.are.equal(1, grads[1]:item())
  end)

  it("give a parameter without a gradient what another rank has", function()
    local layout, params = laid_out()
    layout:cut { 5 }
    params[1]:sum():backward()
    params[5].requires_grad = false
    layout:collect(1)
    local grads = layout:grads()
    core.no_grad(function()
      grads:narrow(1, grads:numel() - 4, 5):copy_(tensor.tensor { 1, 0.5, 0, 0, 0.5 })
      grads[65] = 4
    end)
    layout:adopt()
    assert.are.equal(4, params[2].grad[1]:item())
    for _, k in ipairs { 3, 4, 5 } do assert.is_nil(params[k].grad) end
  end)

  it("give no gradient to a parameter that has left the layout since", function()
    for _, adopt in ipairs { function(layout) layout:adopt() end,
      function(layout) core.flat_adopt({ layout }, tensor.ones(5)) end } do
      local layout, params = laid_out()
      layout:cut { 5 }
      params[1]:sum():backward()
      layout:collect(1)
      local grads = layout:grads()
      core.no_grad(function() grads:narrow(1, grads:numel() - 4, 5):fill_(1) end)
      params[2].data = tensor.ones(2, 2)
      adopt(layout)
      assert.is_nil(params[2].grad)
      assert.is_not_nil(params[3].grad)
    end
  end)

  it("say whether somebody is told of their gradients", function()
    local layout, params = laid_out()
    layout:cut { 2, 5 }
    local handle = params[4]:register_post_accumulate_grad_hook(function() end)
    assert.are.same({ false, true }, { layout:is_watched(1), layout:is_watched(2) })
    handle:remove()
    assert.is_false(layout:is_watched(2))
  end)
end)

describe("optimizers", function()
  -- Two parameters cut from one tensor, with a gap between them that rounding to 256 bytes would
  -- explain.
  for _, kind in ipairs(KINDS) do
    it(("of kind %s%s write no memory between parameters that is not theirs"):format(kind[1], next(kind[2])
      and " with options" or ""), function()
      for _, dtype in ipairs { "float32", "float64" } do
        local flat, grads = tensor.full({ 74 }, 3, { dtype = dtype }), tensor.full({ 74 }, 5,
          { dtype = dtype })
        local gap = dtype == "float32" and 64 or 32
        local p, q = flat:narrow(1, 1, 10):detach():requires_grad_(), flat:narrow(1, gap + 1,
          10):detach():requires_grad_()
        local optimizer = optim[kind[1]]({ p, q }, kind[2])
        if optimizer.train then optimizer:train() end
        for _ = 1, 3 do
          p.grad, q.grad = grads:narrow(1, 1, 10), grads:narrow(1, gap + 1, 10)
          optimizer:step()
        end
        assert.is_true(flat:narrow(1, 11, gap - 10):eq(3):all():item())
        assert.is_true(flat:narrow(1, gap + 11, 74 - gap - 10):eq(3):all():item())
        assert.is_true(flat:narrow(1, 1, 10):lt(3):all():item())
        assert.is_true(flat:narrow(1, gap + 1, 10):lt(3):all():item())
      end
    end)

    it(("of kind %s%s step neighbours in a layout as one, and keep the padding zero"):format(kind[1],
      next(kind[2]) and " with options" or ""), function()
      local function trained(with_layout)
        tensor.manual_seed(3)
        local params = { tensor.randn(3, 7):requires_grad_(), tensor.randn(64):requires_grad_(),
          tensor.randn(5):requires_grad_() }
        local layout
        if with_layout then
          layout = core.flat { params[3], params[2], params[1] }
          layout:give_grads()
        end
        local optimizer = optim[kind[1]](params, kind[2])
        if optimizer.train then optimizer:train() end
        for t = 1, 4 do
          for k, p in ipairs(params) do
            p.grad = nil
            if t ~= 3 or k ~= 2 then (p * p):sum():backward() end
          end
          optimizer:step()
        end
        return params, layout, optimizer
      end
      local apart, together, layout, optimizer = trained(false), trained(true)
      for k, p in ipairs(apart) do assert.is_true(tensor.equal(p, together[k]), "parameter " .. k) end
      local values = layout:values()
      assert.is_true(values:narrow(1, 6, 59):eq(0):all():item())
      assert.is_true(values:narrow(1, 150, 43):eq(0):all():item())
      for name, t in pairs(optimizer.state[together[1]]) do
        if core.is_tensor(t) and #t.shape == 2 and t:numel() == 21 then
          assert.are.equal(128, t:storage_offset(), name)
        end
      end
    end)
  end

  it("step a layout in one segment, and what the script laid out without padding, too", function()
    local function segments(params, optimizer)
      for _, p in ipairs(params) do
        p.grad = nil
        p:sum():backward()
      end
      optimizer:step()
      return optimizer._cores[optimizer.param_groups[1]].object:segments()
    end
    local params = { leaf(3), leaf(70), leaf(5) }
    local optimizer = optim.AdamW(params)
    assert.are.equal(3, segments(params, optimizer))
    local layout = core.flat { params[3], params[2], params[1] }
    layout:give_grads()
    assert.are.equal(3, segments(params, optimizer))
    optimizer:_relayout()
    assert.are.equal(1, segments(params, optimizer))
    optimizer.state[params[2]].step = 7
    assert.are.equal(3, segments(params, optimizer))
  end)

  it("step what the script laid out without a gap as one, too", function()
    local flat, grads = tensor.ones(30), tensor.ones(30)
    local params = {}
    for k = 1, 3 do params[k] = flat:narrow(1, 10 * k - 9, 10):detach():requires_grad_() end
    local group = core.optim_group("sgd", params)
    for _ = 1, 2 do
      for k, p in ipairs(params) do p.grad = grads:narrow(1, 10 * k - 9, 10) end
      group:step { lr = 0.5, weight_decay = 0, maximize = false, momentum = 0.5, dampening = 0,
        nesterov = false }
      assert.are.equal(1, group:segments())
    end
    assert.is_true(flat:eq(1 - 0.5 - 0.75):all():item())
  end)
end)

describe("layouts that are cut over ranks", function()
  local function cut(p)
    local layout = core.flat(p, 1)
    layout:give_grads()
    return layout, pcall(layout.cut_over, layout, nil, nil, true, true)
  end

  it("leave an error behind where their tensors outlive them", function()
    local p = core.ones(5, 7)
    p.requires_grad = true
    p.grad = core.ones(5, 7)
    local grad
    do
      local layout = cut { p } -- which the collector takes below
      grad = p.grad
      assert.error_matches(function() return p:sum() end, "is cut over 1 rank")
      assert.is_not_nil(layout)
    end
    collectgarbage()
    collectgarbage()
    for _, t in ipairs { p, grad } do
      assert.error_matches(function() return t:sum() end, "is gone")
      assert.error_matches(function() return t:clone() end, "is gone")
    end
  end)

  it("stay whole where there is no memory for the cut", function()
    local failed = 0
    for n = 1, 60 do
      local p, q = core.ones(5, 7), core.ones(3)
      p.requires_grad, q.requires_grad = true, true
      local layout = core.flat({ p, q }, 1)
      layout:give_grads()
      core.debug_fail_alloc(n)
      local fine = pcall(layout.cut_over, layout, nil, nil, true, true)
      core.debug_fail_alloc(0)
      if not fine then
        failed = failed + 1
        assert.are.equal(35, p:sum():item())
        p:sum():backward()
        assert.are.equal(35, p.grad:sum():item())
        core.optim_group("sgd", { p, q }):step { lr = 1, weight_decay = 0, maximize = false, momentum = 0,
          dampening = 0, nesterov = false }
        assert.are.equal(0, p:sum():item())
      end
    end
    assert.is_true(failed > 5 and failed < 60, failed .. " of 60")
  end)

  -- A layout of matrices that is gathered in eight bits, and what it gives.
  local function eight_of(params)
    local layout = core.flat(params, 1)
    layout:cut_over(nil, nil, true, false)
    return layout
  end
  local cast = core._row "_float8_cast"
  local function check_eight(layout, params, wanted)
    layout:acquire "compute"
    for i, p in ipairs(params) do
      local eight, factor = core.flat_in_eight(p, "bfloat16")
      local values, _, numbers = cast(wanted[i]:to "bfloat16", nil, "float8_e4m3fn", false)
      assert.are.same(values:float():totable(), eight:float():totable())
      assert.are.equal(numbers[1]:item(), factor:item())
    end
    layout:let_go(false)
    assert.is_false(layout:has_values())
  end

  it("are gathered in eight bits, or as before where there is no memory for that", function()
    local failed = 0
    for n = 1, 300 do
      local params = { core.randn(5, 7), core.randn(16, 48) * 1e4, core.zeros(4, 2) }
      local wanted = {}
      for i, p in ipairs(params) do wanted[i] = p:clone() end
      local layout = eight_of(params)
      core.debug_fail_alloc(n)
      local fine, first = pcall(layout.gather_in_eight, layout, "bfloat16"), true
      if fine then first = pcall(layout.acquire, layout, "compute") end
      core.debug_fail_alloc(0)
      assert.are.equal(fine, layout:gathers_eight())
      failed = failed + (fine and first and 0 or 1)
      layout:drop_values()
      if not fine then layout:gather_in_eight "bfloat16" end
      check_eight(layout, params, wanted)
    end
    assert.is_true(failed > 20 and failed < 300, failed .. " of 300")
  end)

  it("are gathered in eight bits where they are matrices that were cut, once", function()
    local function refused(why, params, via, how)
      local layout = core.flat(params, 1)
      layout:cut_over(nil, nil, how ~= "gradients", true)
      if how == "twice" then layout:gather_in_eight(via) end
      assert.error_matches(function() layout:gather_in_eight(via) end, why)
    end
    refused("a parameter is no matrix", { core.ones(4, 4), core.ones(3) }, "bfloat16")
    refused("is cut with its values, once", { core.ones(4, 4) }, "bfloat16", "gradients")
    refused("is cut with its values, once", { core.ones(4, 4) }, "bfloat16", "twice")
    refused("values of float32 that are gathered in float32 cannot be rounded to float32 before",
      { core.ones(4, 4) }, "float32")
    refused("values of bfloat16 .* cannot be rounded to float16", { core.ones(4, 4):to "bfloat16" },
      "float16")
  end)

  it("in eight bits are gone with their layout", function()
    local p = core.randn(4, 16)
    local eight, factor
    do
      local layout = eight_of { p }
      layout:gather_in_eight "bfloat16"
      eight, factor = core.flat_in_eight(p, "bfloat16")
      assert.error_matches(function() return eight:float() end, "is cut over 1 rank")
      layout:computes(true)
      assert.are.equal("float8_e4m3fn", eight:clone().dtype)
      layout:computes(false)
      layout:drop_values()
    end
    collectgarbage()
    collectgarbage()
    assert.error_matches(function() return eight:float() end, "is gone")
    assert.is_not_nil(factor:item())
    assert.is_nil(core.flat_in_eight(p, "bfloat16"))
  end)

  it("on the CPU do not rest in host memory, which is the CPU's", function()
    local p = core.zeros(64, 64, { requires_grad = true })
    assert.error_matches(function() core.flat({ p }, 1):rest_in(core.place(), true, false, false, true) end,
      "is on the CPU: its memory is the host's")
  end)
end)
