--- Captured steps on a device: what they refuse, and that all is as before afterwards.
local device = require "spec.support.device"
local capture = require "accelerate.capture.step".capture
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises
local F = nn.functional

if not device.name or device.fake then
  local reason = device.fake and "the fake device records nothing" or device.reason
  describe("captured steps refuse", function()
    it("what needs CUDA, or its emulation", function() pending(reason) end)
  end)
  return
end

local D = device.name
local function same(x) return x end

describe(("captured steps on %s (%s) refuse"):format(D, device.kind), function()
  local w
  before_each(function() w = tensor.ones(3, { device = D, requires_grad = true }) end)

  -- Records fn at the second call; the message, and that all is as before.
  local function refused(pattern, fn, ...)
    local step = capture(function(x) if core.is_recording() then return fn(x) end return x + 1 end,
      { warmup = 1 })
    local x, draws = tensor.ones(3, { device = D }), tensor.default_generator():get_state()
    step(x)
    for _ = 1, 2 do raises(pattern, step, x, ...) end
    assert.is_false(core.is_recording())
    assert.are.equal(draws, tensor.default_generator():get_state())
    assert.are.equal(6, (x + 1):sum():item())
  end

  it("what waits or copies, by the script's line", function()
    refused("capture_refusals_spec.lua:", function(x) return x:sum():item() end)
    refused("item: the host cannot read from cuda:0 while a step is captured",
      function(x) return x:sum():item() end)
    refused("the host cannot read from", function(x) return x:to("cpu") end)
    refused("the host cannot read from", function(x) return x:totable() end)
    refused("synchronize: the host cannot wait for", function(x) core.synchronize(D) return x end)
    refused("empty_cache: cannot be called", function(x) core.empty_cache(D) return x end)
    refused("tensor: the host cannot send data to",
      function(x) return x + tensor({ 1, 2, 3 }, { device = D }) end)
    refused("computes on cpu while a step is captured", function(x) return x, tensor.ones(2) + 1 end)
    refused("manual_seed: a generator cannot be set", function(x) tensor.manual_seed(1) return x end)
  end)

  it("what the CPU computes in the device's place, or cuSOLVER, by its name", function()
    local linalg = tensor.linalg
    local a = (tensor.eye(3) * 2):to(D)
    for name, fn in pairs {
      ["linalg.cholesky"] = linalg.cholesky, ["linalg.solve"] = function(x) return linalg.solve(x, x) end,
      ["linalg.inv"] = linalg.inv, ["linalg.det"] = linalg.det, ["linalg.qr"] = linalg.qr,
      ["linalg.svdvals"] = linalg.svdvals, ["linalg.eigvalsh"] = linalg.eigvalsh,
      ["linalg.eigvals"] = linalg.eigvals, ["linalg.lstsq"] = function(x) return (linalg.lstsq(x, x)) end,
      ["linalg.ldl_factor_ex"] = function(x) return (linalg.ldl_factor_ex(x)) end,
    } do
      assert(fn(a)) -- the libraries and their handles are there
      refused(name .. ": the CPU computes it while a step is captured", function() return fn(a) end)
      assert.are.equal(3, linalg.inv(a):mul(2):sum():item())
    end
  end)

  it("draws that were made before an error do not count, gradients are as they were", function()
    refused("on purpose", function(x)
      (F.dropout(x, 0.5, { training = true }) * w):sum():backward()
      error("on purpose")
    end)
    assert.is_nil(w.grad)
  end)

  it("arguments and results that a replay could not have", function()
    raises("capture: argument 1 must be a tensor, a number", capture(same), print)
    raises("capture: argument 1.x lies on cpu; the step is captured for " .. D,
      capture(same, { device = D }), { x = tensor.ones(1) })
    raises("capture: argument 1 requires a gradient", capture(same), w)
    raises("capture: result 1 is 7", capture(function() return 7 end, { device = D }))
    raises("capture: result 1.y lies on cpu",
      capture(function() return { y = tensor.ones(1) } end, { device = D }))
    refused("changes argument 1 in place", function(x) return x:add_(1) end)
    raises("capture: expected a function, got nil", capture)
    raises("did you mean 'verify'", capture, same, { verfy = 2 })
  end)

  it("a history from outside", function()
    local y = w * 2
    local step = capture(function(x)
      local loss = (x * (core.is_recording() and y or w)):sum()
      loss:backward()
      return loss
    end, { warmup = 1 })
    step(tensor.ones(3, { device = D }))
    raises("a tensor with a history from before it", step, tensor.ones(3, { device = D }))
  end)

  it("an optimizer's first step, LOMO, and windows of several batches inside", function()
    local optimizer = optim.AdamW({ w }, { lr = 0.02 })
    refused("AdamW:step: the state of a parameter is made in its first step", function(x)
      (x * w):sum():backward()
      optimizer:step()
      return x
    end)
    assert.is_nil(optimizer.state[w])
  end)

  it("too many shapes", function()
    local step = capture(function(x) return x + 1 end, { max_graphs = 2 })
    step(tensor.ones(1, { device = D }))
    step(tensor.ones(2, { device = D }))
    raises("the step was called with 3 different sets of shapes", step, tensor.ones(3, { device = D }))
  end)
end)
