local data, tensor = require "accelerate.data", require "accelerate.tensor"

local Squares = data.class("Squares")
function Squares:len() return 10 end
function Squares:get(i) return { x = tensor({ i, i * i }), name = "item " .. i } end  -- i from 1

local loader = data.DataLoader(Squares(), { batch_size = 4, shuffle = true, num_workers = 1 })
print(loader:len())
for batch in loader:iter() do print(batch.x.shape[1], batch.name[1]) end
