--- Long rows of a linear layer, as the logits of a language model are: on a GPU each begins at a
--- multiple of 64 elements (host/core/ops/linalg.c), and so does its gradient's.  What a script
--- computes from them is what contiguous rows give.
local device = require "spec.support.device"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"

if not device.name then
  describe("long rows", function() it("need a device", function() pending(device.reason) end) end)
  return
end

local D = device.name
local BATCH, TIME, WIDTH, CLASSES = 2, 3, 8, 4099 -- the least that is padded, and a little
local STEP = 4160
local TOLERANCE = { float32 = 1e-5, bfloat16 = 2e-2, float16 = 2e-3 }

local function same(a, b, tolerance, what)
  a, b = a:to("cpu"):double(), b:to("cpu"):double()
  assert.are.same(b.shape, a.shape, what)
  local off, most = (a - b):abs():max():item(), math.max(1e-6, b:abs():max():item())
  assert.is_true(off <= (tolerance or 0) * most, ("%s: off by %g of %g"):format(what or "values", off, most))
end

local function layer(on, dtype)
  tensor.manual_seed(3)
  local x = tensor.randn(BATCH, TIME, WIDTH):to(dtype):to(on):requires_grad_()
  local w = (tensor.randn(CLASSES, WIDTH) * 0.3):to(dtype):to(on):requires_grad_()
  local b = tensor.randn(CLASSES):to(dtype):to(on):requires_grad_()
  return x, w, b
end

describe(("long rows on %s (%s)"):format(D, device.kind), function()
  for dtype, tolerance in pairs(TOLERANCE) do
    it("of a linear layer begin at multiples of 64 elements: " .. dtype, function()
      local x, w = layer(D, dtype)
      local y = tensor.no_grad(function() return F.linear(x, w) end)
      assert.are.same(device.fake and { TIME * CLASSES, CLASSES, 1 } or { TIME * STEP, STEP, 1 },
        { y:stride(1), y:stride(2), y:stride(3) })
      local there = tensor.no_grad(function() return F.linear(layer("cpu", dtype)) end)
      same(y, tensor.no_grad(function() return F.linear((layer("cpu", dtype)), w:to("cpu")) end), tolerance)
      assert.are.same(there.shape, y.shape)
      -- rows whose starts are aligned anyway, short ones and single ones stay as they are
      for _, n in ipairs { 4104, 67 } do
        assert.are.equal(n,
          tensor.no_grad(function() return F.linear(x, tensor.cat({ w, w }, 1):narrow(1, 1, n)) end)
          :stride(2))
      end
    end)

    it("are read by losses as they lie, and their gradients are laid out likewise: " .. dtype, function()
      for _, biased in ipairs { false, true } do
        local found = {}
        for k, on in ipairs { "cpu", D } do
          local x, w, b = layer(on, dtype)
          local steps
          local y = F.linear(x, w, biased and b or nil)
          y:register_hook(function(g) steps = g:stride(2) end)
          local target = (tensor.arange(BATCH * TIME) * 977 % CLASSES):to(on)
          local loss = F.cross_entropy(y:view(-1, CLASSES), target, { ignore_index = 977 })
          loss:backward()
          assert.are.equal(on ~= "cpu" and not device.fake and STEP or CLASSES, steps)
          found[k] = { loss = loss:detach(), x = x.grad, w = w.grad, b = biased and b.grad or nil }
        end
        for name, value in pairs(found[1]) do same(found[2][name], value, tolerance, name) end
      end
    end)
  end

  it("go through a cast to float32 that waits, whole and in parts", function()
    local function losses(on, read)
      local x, w = layer(on, "bfloat16")
      local wide = (F.linear(x, w)):float()
      local target = (tensor.arange(BATCH * TIME) * 31 % CLASSES):to(on)
      if read then read(wide) end
      local shifted = wide:narrow(2, 1, TIME - 1):reshape(-1, CLASSES)
      local list = {
        F.cross_entropy(wide:view(-1, CLASSES), target),
        F.cross_entropy(wide:view(-1, CLASSES):narrow(1, 2, 4),
        target:narrow(1, 2, 4)), F.cross_entropy(shifted, target:narrow(1, 1, BATCH * (TIME - 1))),
        F.cross_entropy(wide:view(-1, CLASSES):narrow(2, 1001, 900), target),
      }
      local sum = list[1] + list[2] + list[3] + list[4]
      sum:backward()
      list[#list + 1], list[#list + 2] = x.grad, w.grad
      return list
    end
    local here, there = losses(D), losses("cpu")
    local looked = losses(D, function(wide) return wide:sum():item() end)
    for k = 1, #there do
      same(here[k], there[k], 2e-2, "number " .. k)
      same(looked[k], there[k], 2e-2, "number " .. k .. ", read before")
    end
  end)

  it("are contiguous for who needs that", function()
    local x, w = layer(D, "bfloat16")
    local there = tensor.no_grad(function()
      local cx, cw = layer("cpu", "bfloat16")
      return F.linear(cx, cw)
    end)
    tensor.no_grad(function()
      local function y() return F.linear(x, w) end
      same(y():view(-1), there:view(-1), 1e-2)
      same(y():view(BATCH, -1), there:view(BATCH, -1), 1e-2)
      assert.is_true(y():contiguous():is_contiguous())
      same(y():contiguous(), there, 1e-2)
      same(y():transpose(2, 3), there:transpose(2, 3), 1e-2)
      same(y():softmax(-1), there:softmax(-1), 1e-2)
      same(y():add_(1):narrow(3, 4000, 100), (there + 1):narrow(3, 4000, 100), 1e-2)
      same(y():argmax(-1), there:argmax(-1))
      same(tensor.cat({ y(), y() }, 1), tensor.cat({ there, there }, 1), 1e-2)
      local logits = y()
      local kept = logits:view(-1, CLASSES)
      -- another tensor shows the memory already
      if not device.fake then assert.has_error(function() logits:view(-1) end) end
      same(kept, there:view(-1, CLASSES), 1e-2)
    end)
  end)

  it("are products of cuBLASLt, forward and backward, whose rows are whole runs of 16 bytes", function()
    if device.fake then return pending("the CPU's kernels have contiguous rows") end
    core.kernel_stats { device = "cuda", reset = true }
    local x, w, b = layer(D, "bfloat16")
    F.linear(x, w, b):view(-1, CLASSES):float():logsumexp(-1):sum():backward()
    for name in pairs(core.kernel_stats { device = "cuda" }) do assert.is_nil(name:match "refused", name) end
  end)
end)
