--- Calls that wait and are taken over by the row that reads them (host/core/ops/join.c): values and
--- gradients have the bits of calls one by one, and nothing is hidden from a script that looks.
local core = require "accelerate.core"
local device = require "spec.support.device"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"

if not device.name then
  describe("joined calls", function() it("need a device", function() pending(device.reason) end) end)
  return
end

local D = device.name

local function same(a, b, tolerance, what)
  local off = (a:to("cpu"):double() - b:to("cpu"):double()):abs():max():item()
  assert.is_true(off <= (tolerance or 0), ("%s: off by %g"):format(what or "values", off))
end

local function none() end
-- Reading a number of it has a call run that waits.
local function look(t) return t:detach():sum():item() end

-- ---- batch norm, relu, residual

local N, C, SIDE = 3, 24, 11

-- relu(norm(x)), then relu(norm(y) + skip) where skip is x or a norm of it, as in a ResNet:
-- results, and gradients of everything.  seen(name, tensor) comes by with each step's result.
local function residual_block(on, dtype, seen, projected, order)
  tensor.manual_seed(5)
  local leaf = tensor.randn(N, SIDE, SIDE, C):to(on):requires_grad_()
  local numbers, stats = {}, {}
  for k = 1, 3 do
    numbers[2 * k - 1] = (tensor.rand(C) + 0.5):to(on):requires_grad_()
    numbers[2 * k] = tensor.randn(C):to(on):requires_grad_()
    stats[2 * k - 1], stats[2 * k] = tensor.zeros(C, { device = on }), tensor.ones(C, { device = on })
  end
  local function norm(v, k)
    return F.batch_norm(v, stats[2 * k - 1], stats[2 * k], numbers[2 * k - 1], numbers[2 * k],
      { training = true, momentum = 0.2 })
  end
  local x = (leaf * 1):permute(1, 4, 2, 3):to(dtype) * 1
  local h = norm(x, 1)
  seen("first norm", h)
  local y = F.relu(h)
  seen("first relu", y)
  local z = norm(y * 0.5, 2)
  seen("second norm", z)
  local skip = projected and norm(x, 3) or x
  seen("skip", skip)
  local sum = order and skip + z or z + skip
  seen("sum", sum)
  local out = F.relu(sum)
  seen("second relu", out)
  local weights = (tensor.arange(out:numel()) % 7 - 3):to(dtype):to(on)
  weights = weights:view(N, SIDE, SIDE, C):permute(1, 4, 2, 3)
  ;(out * weights):float():sum():backward()
  local list = { x = x, y = y, out = out, dx = leaf.grad }
  for k = 1, projected and 6 or 4 do
    list["stats" .. k], list["number" .. k] = stats[k], numbers[k].grad
  end
  return list
end

describe(("joined calls on %s (%s): batch norm"):format(D, device.kind), function()
  for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
    for _, projected in ipairs { false, true } do
      local what = dtype .. (projected and ", two norms" or "")
      it("gives the bits of calls one by one: " .. what, function()
        local joined = residual_block(D, dtype, none, projected)
        local apart = residual_block(D, dtype, function(_, t) look(t) end, projected)
        local turned = residual_block(D, dtype, none, projected, true)
        local there = residual_block("cpu", dtype, none, projected)
        for name, value in pairs(apart) do
          local most = math.max(1, there[name]:abs():max():item())
          -- the CPU's kernel (the fake device's) adds gradients in another order where relu is part
          -- of it
          local off = device.fake and (dtype == "float32" and 1e-4 or 1e-2) * most or 0
          same(joined[name], value, off, name)
          if not projected then same(turned[name], value, off, name .. ", turned") end
          local near = dtype == "float32" and 2e-5 or dtype == "float16" and 1e-2 or 6e-2
          same(value, there[name], near * most, name)
        end
      end)
    end
  end

  it("hides nothing from hooks, tensor.grad and what is read afterwards", function()
    local function gradients(reads)
      local kept, seen = {}, {}
      local list = residual_block(D, "bfloat16", function(name, t)
        kept[name] = t
        if reads then look(t) end
        t:register_hook(function(g) seen[name] = g:clone() end)
      end, true)
      for name, t in pairs(kept) do seen["value of " .. name] = t:detach() end
      return seen, list
    end
    local here, there = gradients(false), gradients(true)
    local count = 0
    for name, g in pairs(there) do
      same(here[name], g, nil, name)
      count = count + 1
    end
    assert.are.equal(12, count)
    local inner
    tensor.manual_seed(5)
    local x = tensor.randn(N, SIDE, SIDE, C):to(D):requires_grad_()
    local h = F.batch_norm((x * 1):permute(1, 4, 2, 3), nil, nil, nil, nil, { training = true })
    local loss = F.relu(h):square():sum()
    inner = tensor.grad(loss, h, { retain_graph = true })
    same(inner, 2 * F.relu(h:detach()), 1e-6)
    local again = tensor.grad(loss, x, { create_graph = true })
    assert.is_true(again.requires_grad)
  end)

  it("takes what its inputs were, whatever is written afterwards", function()
    tensor.manual_seed(6)
    local start = tensor.randn(N, SIDE, SIDE, C)
    local function results(writes)
      return tensor.no_grad(function()
        local x = start:to(D):permute(1, 4, 2, 3)
        local skip = start:to(D):permute(1, 4, 2, 3) * 2
        local mean, var = tensor.zeros(C, { device = D }), tensor.ones(C, { device = D })
        local h = F.batch_norm(x, mean, var, nil, nil, { training = true })
        local sum = h + skip
        if writes then
          x:zero_()
          skip:narrow(1, 1, 1):fill_(7)
          h:add_(1)
        else
          look(sum)
        end
        return { F.relu(sum):clone(), mean, var }
      end)
    end
    local here, there = results(true), results(false)
    for k, t in ipairs(there) do same(here[k], t) end
  end)

  it("leaves no memory behind where nobody reads", function()
    local function unread()
      for _ = 1, 3 do
        local x = tensor.randn(N, C, SIDE, SIDE):to(D):permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3)
        local h = F.batch_norm(x, nil, nil, nil, nil, { training = true })
        local _ = h + x
      end
      collectgarbage()
      collectgarbage()
      return tensor.cuda.memory_allocated()
    end
    local first = unread()
    assert.are.equal(first, unread())
  end)
end)

-- ---- a sum and its norm, and the norm in autocast's type

local ROWS = 70

-- A residual stream of two layers: norm, product, sum.
local function stream(on, width, norm, options)
  tensor.manual_seed(8)
  local leaf = tensor.randn(2, ROWS, width):to(on):requires_grad_()
  local w = (tensor.rand(width) + 0.5):to(on):requires_grad_()
  local b = tensor.randn(width):to(on):requires_grad_()
  local m = (tensor.randn(8, width) / math.sqrt(width)):to(on):requires_grad_()
  local up = tensor.randn(width, 8):to(on):requires_grad_()
  local seen = options.seen or none
  local function normed(x)
    return norm == "layer" and F.layer_norm(x, { width }, w, b) or F.rms_norm(x, { width }, w)
  end
  local function forward()
    local x = leaf * 1
    for k = 1, 2 do
      local y = normed(x)
      seen("norm" .. k, y)
      local branch = F.linear(F.linear(y, m), up)
      if options.drop then
        branch = F.dropout(branch, { p = options.drop })
        seen("dropout" .. k, branch)
      end
      x = options.turned and branch + x or x + branch
      seen("sum" .. k, x)
      if options.post then
        x = normed(x)
        seen("post" .. k, x)
      end
    end
    local last = normed(x)
    seen("last", last)
    return F.linear(last, m):float(), x
  end
  local y, x
  if options.dtype then y, x = tensor.autocast({ dtype = options.dtype }, forward) else y, x = forward() end
  local c = (tensor.arange(8) % 5 - 2):float():to(on)
  ;(y * c):sum():backward()
  return { y = y, x = x, leaf = leaf.grad, w = w.grad, b = norm == "layer" and b.grad or nil, m = m.grad,
    up = up.grad }
end

describe(("joined calls on %s (%s): norms"):format(D, device.kind), function()
  for _, norm in ipairs { "layer", "rms" } do
    for _, width in ipairs { 64, 40, 1000, 1096, 36 } do
      -- a block for each long row takes the emulated device long
      local one = norm == "rms" and "none" or "bfloat16"
      local types = width < 1024 and { "bfloat16", "float16", "none" } or { one }
      for _, dtype in ipairs(types) do
        it(("gives the bits of calls one by one: %s norm of %d, %s"):format(norm, width, dtype), function()
          local auto = dtype ~= "none" and dtype or nil
          for _, post in ipairs(width < 1024 and { false, true } or { false }) do
            local joined = stream(D, width, norm, { dtype = auto, post = post })
            local turned = stream(D, width, norm, { dtype = auto, post = post, turned = true })
            local apart = stream(D, width, norm, { dtype = auto, post = post,
              seen = function(_, t) look(t) end })
            local there = stream("cpu", width, norm, { dtype = auto, post = post })
            for name, value in pairs(apart) do
              same(joined[name], value, nil, name)
              same(turned[name], value, nil, name)
              local most = math.max(1, there[name]:abs():max():item())
              same(value, there[name], (auto == "bfloat16" and 4e-2 or auto and 6e-3 or 3e-5) * most, name)
            end
          end
        end)
      end
    end
  end

  -- a sum waits for a norm, a dropout for a sum: both are read, one of them, or none
  for _, dtype in ipairs { "bfloat16", "float16", "none" } do
    it("gives the bits of calls one by one: behind a dropout, " .. dtype, function()
      local auto = dtype ~= "none" and dtype or nil
      for _, case in ipairs { { 64 }, { 64, true }, { 40, true }, { 36 }, { auto and 1096 or 64, false } } do
        local width, post = case[1], case[2]
        local function run(on, turned, seen)
          return stream(on, width, "layer",
            { dtype = auto, post = post, turned = turned, seen = seen, drop = 0.3 })
        end
        local function looks(pattern)
          return function(name, t) if name:find(pattern) then look(t) end end
        end
        local apart, there = run(D, false, looks ""), run("cpu")
        local ways = { joined = run(D), turned = run(D, true), ["sums read"] = run(D, false, looks "sum"),
          ["dropouts read"] = run(D, true, looks "dropout") }
        for name, value in pairs(apart) do
          for what, list in pairs(ways) do
            same(list[name], value, nil, ("%s, %s of %d"):format(what, name, width))
          end
          local most = math.max(1, there[name]:abs():max():item())
          same(value, there[name], (auto == "bfloat16" and 4e-2 or auto and 6e-3 or 3e-5) * most, name)
        end
      end
    end)
  end

  it("draws a dropout once, whenever it is read", function()
    local x = tensor.randn(ROWS, 64)
    local function results(on, read)
      tensor.manual_seed(12)
      return tensor.no_grad(function()
        local here = x:to(on)
        local dropped = F.dropout(here, { p = 0.5 })
        if read then look(dropped) end
        local sum = here + dropped
        local second = dropped + here * 2
        if not read then here:zero_() end
        return { sum, second, dropped, sum:layer_norm { 64 }, F.dropout(sum, { p = 1 }) + second }
      end)
    end
    local there = results("cpu", true)
    for _, read in ipairs { true, false } do
      for k, t in ipairs(results(D, read)) do same(t, there[k], k == 4 and 2e-6 or 0, "result " .. k) end
    end
  end)

  it("hides nothing from hooks and what is read afterwards", function()
    local function gradients(reads)
      local kept, seen = {}, {}
      stream(D, 64, "layer", { dtype = "bfloat16", post = true, seen = function(name, t)
        kept[name] = t
        if reads then look(t) end
        t:register_hook(function(g) seen[name] = g:clone() end)
      end })
      for name, t in pairs(kept) do
        assert.are.equal("float32", t.dtype)
        seen["value of " .. name] = t:detach()
      end
      return seen
    end
    local here, there = gradients(false), gradients(true)
    local count = 0
    for name, g in pairs(there) do
      same(here[name], g, nil, name)
      count = count + 1
    end
    assert.are.equal(14, count)
  end)

  it("takes what its inputs were, whatever is written afterwards", function()
    tensor.manual_seed(9)
    local start, weights = tensor.randn(80, 64), tensor.rand(64)
    local function results(writes)
      return tensor.no_grad(function()
        local a, b, w = start:to(D), (start * 3):to(D):to("bfloat16"), weights:to(D)
        local sum = a + b
        if writes then b:zero_() else look(sum) end
        local y = tensor.autocast({ dtype = "bfloat16" }, function() return F.layer_norm(sum, { 64 }, w) end)
        if writes then
          w:zero_()
          sum:narrow(1, 1, 1):zero_()
        else look(y) end
        return { y:clone(), (sum:narrow(1, 2, 79)):clone() }
      end)
    end
    local here, there = results(true), results(false)
    for k, t in ipairs(there) do same(here[k], t) end
  end)

  it("takes what a captured step had written, not what its replay writes", function()
    local utils = require("accelerate").utils
    if device.fake then return pending "the fake device records nothing" end
    local x, b = tensor.randn(80, 64):to(D), tensor.randn(80, 64):to(D)
    local step = utils.capture(function(v) return v * 2 end)
    local sums, expected = {}, {}
    for k = 1, 4 do
      expected[k] = x * (2 * k) + b
      look(expected[k])
      sums[k] = step(x * k) + b
    end
    for k = 1, 4 do same(sums[k], expected[k], 1e-5) end
  end)

  it("takes gradients of their own time, in whose place the next backward pass writes", function()
    local accelerate, nn = require "accelerate", require "accelerate.nn"
    local function total(reads)
      accelerate.state.reset()
      local model = accelerate.Accelerator():prepare(nn.Linear(64, 64))
      local sum = tensor.zeros(64, 64, { device = D })
      for k = 1, 3 do
        model(tensor.full({ 8, 64 }, k):to(D)):sum():backward()
        sum = sum + model.weight.grad
        if reads then look(sum) end
        for _, p in ipairs(model:parameters()) do p.grad = nil end
      end
      return sum:to("cpu")
    end
    assert.are.equal(48, total(true)[1][1]:item())
    same(total(false), total(true))
    accelerate.state.reset()
  end)

  it("sees the weights of its own time after an optimizer's step", function()
    local optim = require "accelerate.optim"
    tensor.manual_seed(10)
    local x, w = tensor.randn(80, 64):to(D), tensor.rand(64):to(D):requires_grad_()
    local expected = F.layer_norm(x:to("cpu"), { 64 }, w:detach():to("cpu"))
    local optimizer = optim.SGD({ w }, { lr = 1 })
    local y = tensor.autocast({ dtype = "bfloat16" }, function() return F.layer_norm(x, { 64 }, w) end)
    w.grad = tensor.ones(64, { device = D })
    optimizer:step()
    same(y, expected, 1e-5)
  end)
end)

describe("claims", function()
  it("were asked for by all who used the memory (counted in sanitized builds)", function()
    assert.are.equal(0, core.debug_claims_missed())
  end)
end)
