--- Pictures in folders that are named after their classes.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local dataset = require "accelerate.data.dataset"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"

local fail = options.fail

local OPTIONS = {
  transform = { "function", optional = true },
  target_transform = { "function", optional = true },
  mode = { "string", default = "RGB", one_of = { "RGB", "GRAY", "UNCHANGED" } },
}
local ENDINGS = { jpg = true, jpeg = true, png = true }
local CHANNELS = { RGB = 3, GRAY = 1, UNCHANGED = 0 }

--- root/dog/1.png, root/dog/more/2.jpg, root/cat/3.jpeg: sample i is a picture, uint8 [channels,
--- height, width] or the result of `transform`, and the number of its class, from 0 in the order of
--- the folders' names.
---@class accelerate.ImageFolder: accelerate.Dataset
---@field classes string[] classes[label + 1] is a label's name
---@field class_to_idx table<string, integer>
---@field samples { [1]: string, [2]: integer }[] path and label
---@field targets integer[]
local ImageFolder = class("ImageFolder", dataset.Dataset)

local function find(folder, label, samples)
  local names, why = fs.list(folder)
  if not names then fail("ImageFolder: %s", why) end
  for _, name in ipairs(names) do
    local path = fs.join(folder, name)
    if fs.is_dir(path) then
      find(path, label, samples)
    elseif ENDINGS[(name:match("%.([^.]+)$") or ""):lower()] then
      samples[#samples + 1] = { path, label }
    end
  end
end

--- Reads names only. A picture is read and checked when it is used.
---@param root string
---@param opts? { transform: function?, target_transform: function?, mode:
---  "RGB"|"GRAY"|"UNCHANGED"|nil }
function ImageFolder:init(root, opts)
  local o = options.check("ImageFolder", opts, OPTIONS)
  options.value("ImageFolder", "root", root, { "string" })
  local names, why = fs.list(root)
  if not names then fail("ImageFolder: %s", why) end
  self.root, self.transform, self.target_transform, self.mode = root, o.transform, o.target_transform, o.mode
  self.classes, self.class_to_idx, self.samples, self.targets = {}, {}, {}, {}
  for _, name in ipairs(names) do
    local folder = fs.join(root, name)
    if fs.is_dir(folder) then
      local before, label = #self.samples, #self.classes
      self.classes[label + 1], self.class_to_idx[name] = name, label
      find(folder, label, self.samples)
      if #self.samples == before then
        fail("ImageFolder: %s has no pictures (.jpg, .jpeg, .png) in it", folder)
      end
    end
  end
  if #self.classes == 0 then fail("ImageFolder: %s has no folders; expected one for each class", root) end
  for i, sample in ipairs(self.samples) do self.targets[i] = sample[2] end
end

function ImageFolder:len() return #self.samples end

function ImageFolder:get(i)
  dataset.check_position("ImageFolder:get", i, #self.samples)
  local path, label = unpack(self.samples[i])
  local image = core.read_image(path, CHANNELS[self.mode])
  if self.transform then image = self.transform(image) end
  if self.target_transform then label = self.target_transform(label) end
  return image, label
end

--- For load_dataset: returns the folders train, test, valid(ation) as datasets; without them
--- everything is "train".
function ImageFolder.load(dir, opts)
  if type(dir) ~= "string" then fail("load_dataset: 'imagefolder' needs data_dir") end
  local found = {}
  for _, name in ipairs { "train", "test", "valid", "validation" } do
    if fs.is_dir(fs.join(dir, name)) then found[name] = ImageFolder(fs.join(dir, name), opts) end
  end
  if next(found) == nil then found.train = ImageFolder(dir, opts) end
  return found
end

return ImageFolder
