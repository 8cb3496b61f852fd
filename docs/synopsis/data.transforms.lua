local data, tensor = require "accelerate.data", require "accelerate.tensor"

local transforms = data.transforms
local change = transforms.Compose { transforms.RandomHorizontalFlip(), transforms.Normalize(0.5, 0.25) }
print(change(tensor.rand(3, 8, 8)).shape[1])
