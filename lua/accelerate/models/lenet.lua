--- LeNet-5: two convolutions with pooling and three linear layers.

local nn = require "accelerate.nn"
local core = require "accelerate.core"
local images = require "accelerate.models.images"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = { num_channels = { "integer", default = 1, min = 1 } }

---@class accelerate.models.LeNet : accelerate.models.PreTrainedModel
--- LeNet-5 for images of 28 by 28: configuration num_channels (1) and num_labels (2).
local LeNet = pretrained.class("LeNet", { model_type = "lenet", config = CONFIG })

function LeNet:_build(config)
  self.conv1 = nn.Conv2d(config.num_channels, 6, 5, { padding = 2 })
  self.conv2 = nn.Conv2d(6, 16, 5)
  self.fc1 = nn.Linear(400, 120)
  self.fc2 = nn.Linear(120, 84)
  self.fc3 = nn.Linear(84, config.num_labels)
end

-- As the layers themselves start.
function LeNet:_init_parameter(module, name)
  if name == "weight" then module:reset_parameters() end
end

images.classifier(LeNet, function(self, o)
  images.check("LeNet", o.pixel_values, self.config.num_channels, 28)
  local x = core.max_pool2d(self.conv1(o.pixel_values):relu(), 2)
  x = core.max_pool2d(self.conv2(x):relu(), 2):flatten(2)
  return self.fc3(self.fc2(self.fc1(x):relu()):relu())
end)

return { LeNet = LeNet }
