local plot = require("accelerate.utils").plot

local losses = {}
for step = 1, 100 do losses[step] = math.exp(-step / 30) end
print(plot.curves({ loss = losses }, { title = "a run" }):text({ width = 60, height = 10, colours = false }))
local animals = plot.bars({ { "cat", 12 }, { "dog", 7 } })
print(plot.grid({ animals, plot.curves(losses, { y_label = "loss", x_label = "step" }) }))
local path = os.tmpname()
plot.histogram(losses, { bins = 10 }):save(path .. ".svg")
os.remove(path .. ".svg")
os.remove(path)
