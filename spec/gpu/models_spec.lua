--- Every type of model on the device: results, gradients and generated tokens are the CPU's.  The
--- folders are those of spec/models/folders, whose results on the CPU are Transformers'.
local device = require "spec.support.device"
local core = require "accelerate.core"
local folders = require "spec.support.model_folders"
local fs = require "accelerate.utils.fs"
local models = require "accelerate.models"

if not device.name then
  describe("models", function() it("need a device", function() pending(device.reason) end) end)
  return
end

local FOLDERS, expected_of, inputs_of = folders.path, folders.expected_of, folders.inputs_of
local D, TOLERANCE = device.name, 1e-4

local function same(there, here, what)
  local off = (there:to("cpu"):double() - here:double()):abs():max():item()
  local most = math.max(1, here:double():abs():max():item())
  assert(off <= TOLERANCE * most, ("%s: off by %g of %g"):format(what, off, most))
end

local function check(name, expected)
  local Class, path = models[expected.class], FOLDERS .. "/" .. name
  local here, there = Class.from_pretrained(path), Class.from_pretrained(path, { device = D })
  local mine, its = here(inputs_of(expected, "cpu")), there(inputs_of(expected, D))
  same(its[expected.output], mine[expected.output], expected.output)
  if not mine.loss then return end
  same(its.loss, mine.loss, "loss")
  mine.loss:backward()
  its.loss:backward()
  local grads = {}
  for key, p in there:named_parameters() do grads[key] = p.grad end
  for key, p in here:named_parameters() do
    if p.grad then same(grads[key], p.grad, key) end
  end
end

describe(("models on %s (%s)"):format(D, device.kind), function()
  for _, name in ipairs(assert(fs.list(FOLDERS))) do
    local expected = expected_of(name)
    it("have the CPU's results and gradients: " .. name, function() check(name, expected) end)

    -- One case: every step of it runs all kernels, which the fake and the emulated device do
    -- slowly.
    local case = expected.plain and expected.plain[1]
    if case and not device.fake then
      it("generate the CPU's tokens: " .. name, function()
        local model = models.from_pretrained(FOLDERS .. "/" .. name, { device = D })
        local prompt = core.tensor(expected.prompt, { dtype = "int64" }):to(D)
        assert.same(case.tokens, model:generate(prompt, case.options):to("cpu"):totable())
      end)
    end
  end
end)
