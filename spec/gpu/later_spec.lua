--- Casts to float32 that wait until they are read (host/core/ops/later.c), and gradients that
--- travel in a half type: whoever looks sees what a cast at once gives.
local device = require "spec.support.device"
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local ffi = require "ffi"
local nn = require "accelerate.nn"
local utils = require("accelerate").utils
local F = require "accelerate.nn.functional"

ffi.cdef "void fake_device_fail(int n);"

if not device.name then
  describe("casts that wait", function() it("need a device", function() pending(device.reason) end) end)
  return
end

local ROWS, CLASSES = 96, 67 -- 6,432 numbers: more than the least that waits

-- Logits in a half type, made by an op of a leaf: { leaf, half, wide }.
local function logits(on, dtype)
  tensor.manual_seed(7)
  local leaf = tensor.randn(ROWS, CLASSES):to(on):requires_grad_()
  local half = (leaf * 3):to(dtype) * 0.5
  return leaf, half, half:float()
end

local function target(on) return (tensor.arange(ROWS) * 5 % CLASSES):to(on) end

local function same(a, b, tolerance)
  local off = (a:to("cpu"):double() - b:to("cpu"):double()):abs():max():item()
  assert.is_true(off <= (tolerance or 0), ("off by %g"):format(off))
end

describe(("casts that wait on %s (%s)"):format(device.name, device.kind), function()
  for _, dtype in ipairs { "bfloat16", "float16" } do
    it("give the half numbers to whoever reads them: " .. dtype, function()
      local _, half, wide = logits(device.name, dtype)
      local _, _, expected = logits("cpu", dtype)
      assert.are.equal("float32", wide.dtype)
      same(wide, half)
      same(wide, expected)
      _, _, wide = logits(device.name, dtype)
      same(wide:select(2, 3) + 1, expected:select(2, 3) + 1)
      _, _, wide = logits(device.name, dtype)
      assert.are.equal(expected[2][5]:item(), wide[2][5]:item())
    end)

    it("are not needed for a loss, nor for its gradient: " .. dtype, function()
      for _, options in ipairs { {}, { reduction = "sum" }, { reduction = "none" }, { label_smoothing = 0.1 },
        { weight = true }, { ignore_index = 5 } } do
        local losses, grads = {}, {}
        for k, on in ipairs { "cpu", device.name } do
          local leaf, half, wide = logits(on, dtype)
          local given = {}
          for name, value in pairs(options) do given[name] = value end
          if given.weight then given.weight = (tensor.arange(CLASSES):float() / CLASSES + 0.5):to(on) end
          local loss = F.cross_entropy(wide:view(-1, CLASSES), target(on), given)
          assert.are.equal("float32", loss.dtype)
          loss:sum():backward()
          losses[k], grads[k] = loss, leaf.grad
          same(wide, half)
        end
        same(losses[1], losses[2], 2e-5 * math.max(1, losses[1]:abs():max():item()))
        local most = grads[1]:abs():max():item()
        same(grads[1], grads[2], (dtype == "bfloat16" and 8e-3 or 1e-3) * most)
      end
    end)
  end

  it("have run before either memory is written", function()
    local _, half, wide = logits(device.name, "bfloat16")
    local before = half:detach():clone()
    tensor.no_grad(function() half:mul_(2) end)
    same(wide, before)
    _, half, wide = logits(device.name, "bfloat16")
    tensor.no_grad(function() half:view(-1):narrow(1, 1, 10):zero_() end)
    same(wide, before)
    _, half, wide = logits(device.name, "bfloat16")
    tensor.no_grad(function() wide:narrow(1, 1, 2):add_(1) end)
    same(wide:narrow(1, 3, ROWS - 2), before:narrow(1, 3, ROWS - 2))
    same(wide:narrow(1, 1, 2), before:narrow(1, 1, 2):float() + 1)
    same(half, before)
  end)

  it("outlive what they are of, and are forgotten unread", function()
    local wide = select(3, logits(device.name, "bfloat16"))
    local expected = select(3, logits("cpu", "bfloat16"))
    collectgarbage()
    collectgarbage()
    same(wide, expected)
    local live = tensor.cuda.memory_allocated()
    for _ = 1, 3 do logits(device.name, "bfloat16") end
    collectgarbage()
    collectgarbage()
    assert.are.equal(live, tensor.cuda.memory_allocated())
  end)

  it("hide nothing from hooks, retain_grad, tensor.grad and a second derivative", function()
    local function gradients(on)
      local seen = {}
      local leaf, half, wide = logits(on, "bfloat16")
      wide:register_hook(function(g) seen[1] = g:clone() end)
      half:register_hook(function(g) seen[2] = g:clone() end)
      F.cross_entropy(wide, target(on)):backward()
      seen[3] = leaf.grad
      leaf, half, wide = logits(on, "bfloat16")
      local flat = wide:view(-1, CLASSES)
      seen[4], seen[5], seen[8] = tensor.grad(F.cross_entropy(flat, target(on)), { flat, half, leaf })
      leaf = logits(on, "bfloat16")
      wide = ((leaf * 3):to("bfloat16") * 0.5):float()
      local g = tensor.grad(F.cross_entropy(wide, target(on)), leaf, { create_graph = true })
      seen[6] = tensor.grad(g:square():sum(), leaf)
      -- used twice: the sum of both gradients
      leaf = logits(on, "bfloat16")
      wide = ((leaf * 3):to("bfloat16") * 0.5):float()
      ;(F.cross_entropy(wide, target(on)) + (wide * 0.01):sum()):backward()
      seen[7] = leaf.grad
      return seen
    end
    local here, there = gradients "cpu", gradients(device.name)
    for k, g in ipairs(here) do
      assert.are.equal(g.dtype, there[k].dtype)
      same(g, there[k], 8e-3 * g:abs():max():item())
    end
    assert.are.equal("float32", there[1].dtype)
    assert.are.equal("float32", there[4].dtype)
  end)

  it("are done before a step is captured, and not put off in one", function()
    if device.fake then return pending "the fake device records nothing" end
    local x = tensor.randn(ROWS, CLASSES):to(device.name)
    local leaf = tensor.randn(ROWS, CLASSES):to(device.name):requires_grad_()
    local classes, wide = target(device.name), nil
    local step = utils.capture(function(batch)
      wide = ((leaf * batch):to("bfloat16") * 0.5):float()
      return F.cross_entropy(wide, classes):detach()
    end)
    for k = 1, 5 do
      step(x * k)
      same(wide, ((leaf * (x * k)):to("bfloat16") * 0.5):float())
    end
  end)
end)

-- Each reads the wide logits, or writes what they wait to read.
local USES = {
  item = function(wide) return wide[2][5]:item() end,
  totable = function(wide) return wide:totable() end,
  print = function(wide) return tostring(wide) end,
  ["to the CPU"] = function(wide) return wide:to "cpu" end,
  ["an op"] = function(wide) return wide + 1 end,
  ["an op on a view"] = function(wide) return wide:narrow(1, 2, 3):exp() end,
  ["a write to it"] = function(wide) tensor.no_grad(function() wide:narrow(1, 1, 2):zero_() end) end,
  ["a write to its source"] = function(_, half) tensor.no_grad(function() half:mul_(2) end) end,
  all_reduce = function(wide) core.dist.all_reduce(wide:detach(), "sum") end,
  ["all_reduce without waiting"] = function(wide)
    core.dist.all_reduce(wide:detach(), "sum", 0, true):wait()
  end,
  broadcast = function(wide) core.dist.broadcast(wide:detach(), 0) end,
  all_gather = function(wide) core.dist.all_gather(wide:detach()) end,
  save = function(wide)
    local path = os.tmpname()
    local ok, why = pcall(utils.save, { wide:detach() }, path)
    os.remove(path)
    if not ok then error(why, 0) end
  end,
  ["a norm of many"] = function(wide) nn.utils.get_total_norm { wide:detach() } end,
}

describe(("calls that wait and fail on %s (%s)"):format(device.name, device.kind), function()
  for name, use in pairs(USES) do
    it("give their error to " .. name .. ", and compute when they are tried again", function()
      if not device.fake then return pending "only the fake device fails on request" end
      local fake = ffi.load(os.getenv "ACCEL_CUDA_PLUGIN")
      local _, half, wide = logits(device.name, "bfloat16")
      local expected = select(3, logits("cpu", "bfloat16"))
      fake.fake_device_fail(1)
      local ok, why = pcall(use, wide, half)
      fake.fake_device_fail(0)
      assert.is_false(ok)
      assert.is_truthy(tostring(why):find("no workspace", 1, true), why)
      same(wide, expected)
      assert(pcall(use, wide, half))
    end)
  end
end)

describe(("gradients of norms in a half type on %s (%s)"):format(device.name, device.kind), function()
  -- A residual stream in float32 with norms in between, as under automatic casting.
  local function gradients(on, norm, width)
    tensor.manual_seed(3)
    local x = tensor.randn(2, 9, width):to(on):requires_grad_()
    local w = (tensor.rand(width) + 0.5):to(on):requires_grad_()
    local b = tensor.randn(width):to(on):requires_grad_()
    local h = x * 1
    for k = 1, 3 do
      local y = norm == "layer" and F.layer_norm(h, { width }, w, b) or F.rms_norm(h, { width }, w)
      h = h + (y:to("bfloat16") * k):float()
    end
    local y = norm == "layer" and F.layer_norm(h, { width }, w, b) or F.rms_norm(h, { width }, w)
    local c = (tensor.arange(width) % 5):float():to(on):to("bfloat16")
    ;(y:to("bfloat16") * c):float():sum():backward()
    return x.grad, w.grad, norm == "layer" and b.grad or nil
  end

  for _, norm in ipairs { "layer", "rms" } do
    for _, width in ipairs { 24, 37, 1056, 1290 } do
      it(("are those of float32 ones: %s norm of %d"):format(norm, width), function()
        local here, there = { gradients("cpu", norm, width) }, { gradients(device.name, norm, width) }
        for k, g in ipairs(here) do same(g, there[k], 2e-2 * g:abs():max():item()) end
      end)
    end
  end
end)

describe("claims", function()
  it("were asked for by all who used the memory (counted in sanitized builds)", function()
    assert.are.equal(0, core.debug_claims_missed())
  end)
end)
