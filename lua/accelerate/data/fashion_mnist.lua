--- The Fashion-MNIST images of clothes: 60,000 for training, 10,000 for testing, ten classes.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local dataset = require "accelerate.data.dataset"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"

local fail = options.fail

local PACKAGE_FOLDER = "/usr/share/datasets/fashion-mnist" -- of Debian's dataset-fashion-mnist
local PREFIX = { train = "train", test = "t10k" }
local OPTIONS = {
  split = { "string", one_of = { "train", "test" }, default = "train" },
  root = { "string", optional = true },
  mean = { "number", default = 0 },
  std = { "number", default = 1, above = 0 },
  transform = { "function", optional = true },
  target_transform = { "function", optional = true },
}

--- Images are float32 {1, 28, 28} from 0 to 1, or (x - mean) / std of that; labels are int64 from 0
--- to 9. `tensors` holds all of them.
---@class accelerate.FashionMNIST: accelerate.TensorDataset
---@field split "train"|"test"
---@field classes string[] classes[label + 1] is a label's name
local FashionMNIST = class("FashionMNIST", dataset.TensorDataset)

FashionMNIST.classes = {
  "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
}

-- Returns the folders to search for the four files; torchvision puts them two levels down.
local function folders(root)
  local env = os.getenv("FASHION_MNIST_DIR")
  local list = {}
  for _, base in ipairs(root and { root } or env and env ~= "" and { env, PACKAGE_FOLDER }
    or { PACKAGE_FOLDER }) do
    list[#list + 1] = base
    list[#list + 1] = base .. "/FashionMNIST/raw"
  end
  return list
end

local function find(name, root)
  local tried = folders(root)
  for _, folder in ipairs(tried) do
    for _, suffix in ipairs { ".gz", "" } do
      local path = folder .. "/" .. name .. suffix
      if fs.exists(path) then return path end
    end
  end
  fail("FashionMNIST: no %s (or .gz) in %s; install the package dataset-fashion-mnist, or say where it " ..
    "is with root = or " ..
    "FASHION_MNIST_DIR", name, table.concat(tried, ", "))
end

local function check(path, t, dims, what)
  local shape = t.shape
  local fits = t.dtype == "uint8" and #shape == #dims
  for d = 2, #dims do fits = fits and shape[d] == dims[d] end
  if not fits then
    fail("FashionMNIST: '%s' holds %s [%s]; expected %s", path, t.dtype, table.concat(shape, ", "), what)
  end
end

-- Sample i, transformed.
local function transformed(self, i)
  local image, label = dataset.TensorDataset.get(self, i)
  if self.transform then image = self.transform(image) end
  if self.target_transform then label = self.target_transform(label) end
  return image, label
end

--- Reads the files (IDX, gzip or plain) from `root`, else $FASHION_MNIST_DIR, else the folder of
--- the Debian package. Raises when they are damaged, or missing in all of these folders. Downloads
--- nothing.
---
--- `transform` is called with an image and `target_transform` with a label (a tensor of 0 dims),
--- each time that a sample is read.
---@param opts? { split: "train"|"test"|nil, root: string?, mean: number?, std: number?, transform:
---  function?, target_transform: function? } default: train, 0, 1
function FashionMNIST:init(opts)
  opts = options.check("FashionMNIST", opts, OPTIONS)
  local images_path = find(PREFIX[opts.split] .. "-images-idx3-ubyte", opts.root)
  local labels_path = find(PREFIX[opts.split] .. "-labels-idx1-ubyte", opts.root)
  local bytes, classes = core.read_idx(images_path), core.read_idx(labels_path)
  check(images_path, bytes, { 0, 28, 28 }, "uint8 images [n, 28, 28]")
  check(labels_path, classes, { 0 }, "uint8 labels [n]")
  if bytes:size(1) ~= classes:size(1) then
    fail("FashionMNIST: '%s' has %d images, '%s' has %d labels", images_path, bytes:size(1), labels_path,
      classes:size(1))
  end
  if #classes > 0 and classes:max():item() > 9 then
    fail("FashionMNIST: '%s' has a label %d; expected 0 to 9", labels_path, classes:max():item())
  end
  local images = bytes:to("float32"):div_(255)
  if opts.mean ~= 0 then images:sub_(opts.mean) end
  if opts.std ~= 1 then images:div_(opts.std) end
  self.split = opts.split
  dataset.TensorDataset.init(self, images:unsqueeze(2), classes:to("int64"))
  self.transform, self.target_transform = opts.transform, opts.target_transform
  if self.transform or self.target_transform then self.get = transformed end -- else whole batches are read
  core.release(bytes)
  core.release(classes)
end

return FashionMNIST
