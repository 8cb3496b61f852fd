local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"

local logits = tensor.randn(4, 10)
local labels = tensor({ 1, 0, 9, 3 }, { dtype = "int64" })  -- classes count from 0
print(F.cross_entropy(logits, labels, { label_smoothing = 0.1 }):item())
print(F.softmax(logits, 2):sum():item())
print(F.conv2d(tensor.ones(1, 1, 4, 4), tensor.ones(2, 1, 3, 3), { padding = 1 }).shape[2])
