--- Arguments of convolutions, of utils.load and of index_put: by position in PyTorch's order.
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"
local raises = require("spec.support.messages").raises

describe("arguments in PyTorch's order", function()
  it("of convolutions end with padding_mode, device and dtype", function()
    for dims = 1, 3 do
      local Conv = nn[("Conv%dd"):format(dims)]
      local layer = Conv(2, 4, 3, 1, 1, 1, 2, false, "replicate", "cpu", "float64")
      assert.same({ "replicate", "float64", 2 }, { layer.padding_mode, layer.weight.dtype, layer.groups })
      raises(("Conv%dd: an argument too many: 'junk'"):format(dims), Conv, 2, 4, 3, 1, 1, 1, 2, false,
        "replicate", "cpu", "float64", "junk")
    end
    local layer = nn.ConvTranspose2d(2, 4, 3, 1, 1, 0, 1, true, 1, "zeros", "cpu", "float64")
    assert.equal("float64", layer.weight.dtype)
    raises("ConvTranspose2d: option 'padding_mode' must be one of zeros, got 'replicate'",
      nn.ConvTranspose2d, 2,
      4, 3, 1, 1, 0, 1, true, 1, "replicate")
  end)

  it("of load are map_location, and weights_only by name", function()
    local path = os.tmpname()
    utils.save({ w = tensor { 1, 2 } }, path)
    assert.same({ 1, 2 }, utils.load(path, { weights_only = true }).w:tolist())
    assert.same({ 1, 2 }, utils.load(path, "cpu", { weights_only = true }).w:tolist())
    raises("load: option 'weights_only' must be one of true, got false", utils.load, path,
      { weights_only = false })
    raises("load: option 'map_location': ", utils.load, path, "text")
    raises("load: an argument too many: 'junk'", utils.load, path, "cpu", "junk")
    os.remove(path)
  end)

  it("of index_put are key, values and accumulate", function()
    local x, at = tensor.zeros(3), { tensor { 1, 1 }:long() }
    assert.same({ 0, 2, 0 }, tensor.index_put(x, at, tensor.ones(2), true):tolist())
    assert.same({ 0, 1, 0 }, x:index_put(at, tensor.ones(2), false):tolist())
    assert.same({ 0, 2, 0 }, x:index_put_(at, tensor.ones(2), true):tolist())
    assert.same({ 0, 4, 0 }, x:index_put_(at, tensor.ones(2), { accumulate = true }):tolist())
    raises("index_put: an argument too many: 'junk'", x.index_put, x, at, tensor.ones(2), true, "junk")
  end)
end)
