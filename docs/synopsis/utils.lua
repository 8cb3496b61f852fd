local accelerate = require "accelerate"
local tensor = require "accelerate.tensor"
local utils = accelerate.utils

utils.set_seed(42)
local state = accelerate.PartialState()
local batch = { ids = tensor.arange(4), rank = tensor({ state.process_index }) }
local all = utils.gather(batch)                 -- every rank gets the same
print(utils.find_batch_size(all), utils.memory_stats().live_bytes)
for inputs in utils.tqdm({ "a", "b" }):iter() do accelerate.PartialState():print(inputs) end
