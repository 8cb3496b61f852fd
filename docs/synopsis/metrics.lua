local metrics, tensor = require "accelerate.metrics", require "accelerate.tensor"

local metric = metrics.combine { "accuracy", "f1" }
metric:add_batch(tensor({ 1, 0, 1 }, { dtype = "int64" }), tensor({ 1, 1, 1 }, { dtype = "int64" }))
local result = metric:compute()
print(result.accuracy, result.f1)
