--- CIFAR-10 and CIFAR-100 from their binary files.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local dataset = require "accelerate.data.dataset"
local ffi = require "ffi"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local PIXELS = 3 * 32 * 32
local OPTIONS = {
  split = { "string", one_of = { "train", "test" }, default = "train" },
  root = { "string" },
  transform = { "function", optional = true },
}

-- Images [n, 3, 32, 32] and the last of the `labels` bytes before each, with how many classes there
-- are.
local function read(name, path, labels, classes)
  local text, why = fs.read(path)
  if not text then fail("%s: %s", name, why) end
  local size = PIXELS + labels
  if #text == 0 or #text % size ~= 0 then
    fail("%s: '%s': %d bytes are no whole number of records of %d", name, path, #text, size)
  end
  local n = #text / size
  local bytes = core.empty({ n, size }, { dtype = "uint8" })
  ffi.copy(bytes:data_ptr(), text, #text)
  local targets = bytes:select(2, labels):to "int64"
  if targets:max():item() >= classes then
    fail("%s: '%s': a label %d; expected 0 to %d", name, path, targets:max():item(), classes - 1)
  end
  return bytes:narrow(2, labels + 1, PIXELS):contiguous():view(n, 3, 32, 32), targets
end

local function set_of(name, folder, train, test, labels, classes)
  local Set = class(name, dataset.Dataset)

  function Set:init(opts)
    local o = options.check(name, opts, OPTIONS)
    local inner = fs.join(o.root, folder)
    local root = fs.is_dir(inner) and inner or o.root
    local images, targets = {}, {}
    for i, file in ipairs(o.split == "train" and train or test) do
      images[i], targets[i] = read(name, fs.join(root, file), labels, classes)
    end
    self.split, self.transform = o.split, o.transform
    self.images, self.targets = core.cat(images, 1), core.cat(targets, 1)
    local names = fs.read(fs.join(root, labels == 1 and "batches.meta.txt" or "fine_label_names.txt"))
    if names then
      self.classes = {}
      for line in names:gmatch "[^\r\n]+" do self.classes[#self.classes + 1] = line end
    end
  end

  function Set:len() return self.images:size(1) end

  function Set:get(i)
    dataset.check_position(name .. ":get", i, self:len())
    local image = self.images[i]
    if self.transform then image = self.transform(image) end
    return image, self.targets[i]
  end

  return Set
end

--- CIFAR-10's binary version: data_batch_1.bin to data_batch_5.bin and test_batch.bin, in `root` or
--- in its folder cifar-10-batches-bin. Sample i is a picture, uint8 [3, 32, 32] or the result of
--- `transform`, and its label, int64 from 0 to 9. Nothing is downloaded.
---
---   data.CIFAR10 { root = "cifar", split = "test", transform = fn }   -- split: default "train"
---@class accelerate.CIFAR10: accelerate.Dataset
---@field images accelerate.Tensor uint8 [n, 3, 32, 32]
---@field targets accelerate.Tensor int64 [n]
---@field classes string[]? classes[label + 1] is a label's name, where the folder has the names
---@overload fun(opts: { root: string, split: string?, transform: function? }): accelerate.CIFAR10
M.CIFAR10 = set_of("CIFAR10", "cifar-10-batches-bin",
  { "data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin" },
  { "test_batch.bin" }, 1, 10)

--- CIFAR-100's binary version: train.bin and test.bin, in `root` or in its folder cifar-100-binary.
--- Samples are those of CIFAR10; labels are the fine ones, from 0 to 99.
---@class accelerate.CIFAR100: accelerate.Dataset
---@field images accelerate.Tensor uint8 [n, 3, 32, 32]
---@field targets accelerate.Tensor int64 [n]
---@field classes string[]? classes[label + 1] is a label's name, where the folder has the names
---@overload fun(opts: { root: string, split: string?, transform: function? }): accelerate.CIFAR100
M.CIFAR100 = set_of("CIFAR100", "cifar-100-binary", { "train.bin" }, { "test.bin" }, 2, 100)

return M
