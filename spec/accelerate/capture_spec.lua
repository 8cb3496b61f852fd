--- Captured steps on the CPU, where every call runs the function: the checks of arguments and
--- results are those of a GPU (spec/gpu/capture_spec).
local accelerate = require "accelerate"
local capture = require "accelerate.capture.step".capture
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

describe("a captured step on the CPU", function()
  it("is utils.capture, runs each time, and gives results without history", function()
    assert.are.equal(capture, accelerate.utils.capture)
    local w = tensor.ones(2, { requires_grad = true })
    local step = capture(function(x, factor)
      local loss = (x.a * w * factor):sum()
      loss:backward()
      return loss, { twice = loss * 2 }
    end)
    for i = 1, 5 do
      local loss, more = step({ a = tensor.ones(2) }, i)
      assert.are.equal(2 * i, loss:item())
      assert.are.equal(4 * i, more.twice:item())
      assert.is_false(loss.requires_grad)
    end
    assert.are.same({ 15, 15 }, w.grad:totable())
    assert.are.same({ eager = 5, recorded = 0, replayed = 0, verified = 0, keys = 0 }, step:stats())
    assert.are.equal("CapturedStep(0 recorded, 0 replayed)", tostring(step))
  end)

  it("gives results that are nil in between", function()
    local x = tensor.ones(1)
    local step = capture(function() return x, nil, nil, x * 2, nil, { x * 3 }, nil end)
    local results = { n = select("#", step()), step() }
    assert.are.same({ 7, 1, 2, 3 },
      { results.n, results[1]:item(), results[4]:item(), results[6][1]:item() })
    assert.is_nil(results[2] or results[3] or results[5] or results[7])
  end)

  it("checks arguments, results and options", function()
    local x = tensor.ones(1)
    raises("capture: expected a function, got nil", capture)
    raises("did you mean 'warmup'", capture, print, { warmpu = 1 })
    raises("capture: argument 2 must be a tensor, a number, a string, a boolean, " ..
      "or a table of these, got a function", capture(function() end), x, print)
    raises("capture: argument 1 requires a gradient", capture(function() end),
      tensor.ones(1, { requires_grad = true }))
    raises("capture: result 1.n is 3", capture(function() return { n = 3 } end), x)
    raises("capture: argument 1 lies on cpu; the step is captured for cuda:0",
      capture(function() end, { device = "cuda:0" }), x)
  end)

  it("tells arguments apart that are written alike", function()
    local word = require("accelerate.capture.recording").word
    assert.are_not.equal(word(0.1), word(0.1 + 2 ^ -52))
    assert.are_not.equal(word("1"), word(1))
    assert.are.equal(word(0.5), word(1 / 2))
  end)

  it("a backend that records nothing says so", function()
    raises("the cpu backend cannot record steps", core.capture_begin, "cpu")
    assert.is_false(core.is_recording())
  end)
end)
