local accelerate = require "accelerate"
local data, tensor = require "accelerate.data", require "accelerate.tensor"

local accelerator = accelerate.Accelerator()
local function prepared()
  return accelerator:prepare(data.DataLoader(data.TensorDataset(tensor.arange(10)),
    { batch_size = 4, shuffle = true }))
end

local loader, saved = prepared(), nil
for x in loader:iter() do
  print(x, loader.end_of_dataloader, loader.remainder)
  saved = saved or loader:state_dict() -- after the first batch
end

local again = prepared()
again:load_state_dict(saved)
for x in again:iter() do print("once more", x) end -- the second and the third

for x in accelerator:skip_first_batches(loader, 2):iter() do print("only the last", x) end
