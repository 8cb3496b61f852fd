-- FashionMNIST: its files, and the errors for damaged ones.
local data = require "accelerate.data"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local messages = require "spec.support.messages"

local message, raises = messages.message, messages.raises

describe("FashionMNIST", function()
  local folder = os.getenv("FASHION_MNIST_DIR") or "/usr/share/datasets/fashion-mnist"
  local probe = io.open(folder .. "/t10k-labels-idx1-ubyte.gz")
  if probe then probe:close() end
  local base = os.tmpname()
  os.remove(base)
  teardown(function() os.execute("rm -rf '" .. base .. "'") end)

  local function write(name, bytes)
    os.execute("mkdir -p '" .. base .. "'")
    disk.write(base .. "/" .. name, bytes)
  end
  local function images(n, byte) return "\0\0\8\3\0\0\0" .. string.char(n) .. "\0\0\0\28\0\0\0\28" ..
    string.char(byte):rep(n * 784) end
  local function labels(...) return "\0\0\8\1\0\0\0" .. string.char(select("#", ...)) .. string.char(...) end

  it("gives the images and labels of the real files", function()
    if not probe then return pending("needs the package dataset-fashion-mnist") end
    local test = data.FashionMNIST { split = "test" }
    assert.equal(10000, test:len())
    local x, y = test:get(1)
    assert.same({ 1, 28, 28 }, x.shape)
    assert.equal("float32", x.dtype)
    assert.equal("int64", y.dtype)
    assert.equal("Ankle boot", test.classes[y:item() + 1])
    local all_images, all_labels = unpack(test.tensors)
    assert.equal(0, all_images:min():item())
    assert.equal(1, all_images:max():item())
    assert.near(0.2868, all_images:mean():item(), 1e-4)
    assert.equal(45000, all_labels:sum():item())
    local normalised = data.FashionMNIST { split = "test", mean = 0.2868, std = 0.3524 }
    assert.near(0, normalised.tensors[1]:mean():item(), 1e-3)
    assert.near((x[{ 1, 15, 15 }]:item() - 0.2868) / 0.3524, (normalised:get(1))[{ 1, 15, 15 }]:item(), 1e-6)
    local a, b = data.DataLoader(test, { batch_size = 64, shuffle = true }):iter()()
    assert.same({ 64, 1, 28, 28 }, a.shape)
    assert.same({ 64 }, b.shape)
  end)

  it("reads plain files from a folder of one's own, also as torchvision lays them out", function()
    write("train-images-idx3-ubyte", images(2, 255))
    write("train-labels-idx1-ubyte", labels(3, 9))
    local set = data.FashionMNIST { root = base }
    assert.equal(2, set:len())
    assert.equal(1, set.tensors[1]:min():item())
    assert.same({ 3, 9 }, set.tensors[2]:totable())
    local turned = data.FashionMNIST { root = base, target_transform = function(y) return y + 1 end,
      transform = data.transforms.Compose { data.transforms.Normalize(0.5, 0.25) } }
    local x, y = turned:get(2)
    assert.same({ 2, 10 }, { x:max():item(), y:item() })
    x, y = data.DataLoader(turned, { batch_size = 2 }):iter()()
    assert.same({ { 2, 1, 28, 28 }, 2, { 4, 10 } }, { x.shape, x:min():item(), y:totable() })
    os.execute(("mkdir -p '%s/up/FashionMNIST/raw' && cp '%s'/train-* '%s/up/FashionMNIST/raw'"):format(base,
      base, base))
    assert.equal(2, data.FashionMNIST({ root = base .. "/up" }):len())
    local status, out = host.run({ "-e", "print(require('accelerate.data').FashionMNIST():len())" },
      { env = { FASHION_MNIST_DIR = base } })
    assert.equal(0, status)
    assert.equal("2\n", out)
  end)

  it("names every place it looked at, and the package", function()
    local err = message(data.FashionMNIST, { root = "/nowhere" })
    for _, text in ipairs { "train-images-idx3-ubyte", "/nowhere, /nowhere/FashionMNIST/raw",
      "dataset-fashion-mnist", "root",
      "FASHION_MNIST_DIR" } do
      assert.truthy(err:find(text, 1, true), err)
    end
  end)

  it("refuses files that do not belong together", function()
    write("train-images-idx3-ubyte", images(2, 255))
    write("train-labels-idx1-ubyte", labels(3, 9, 1))
    raises("has 2 images", data.FashionMNIST, { root = base })
    write("train-labels-idx1-ubyte", labels(3, 10))
    raises("has a label 10; expected 0 to 9", data.FashionMNIST, { root = base })
    write("train-labels-idx1-ubyte", images(2, 1))
    raises("holds uint8 [2, 28, 28]; expected uint8 labels [n]", data.FashionMNIST, { root = base })
    write("train-labels-idx1-ubyte", labels(3, 9):sub(1, -2))
    raises("which is 2 bytes after the header; found 1", data.FashionMNIST, { root = base })
    raises("option 'split' must be one of train, test, got 'tset'", data.FashionMNIST, { split = "tset" })
    raises("unknown option 'download'", data.FashionMNIST, { download = true })
    raises("option 'std' must be above 0", data.FashionMNIST, { std = 0 })
  end)
end)
