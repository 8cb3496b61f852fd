--- Loads all functions of tensors that are written in Lua. Tensors load it at the first method that
--- C does not know, accelerate.tensor at the first such function.
local define = require "accelerate.tensor.define"

require "accelerate.tensor.elementwise"
require "accelerate.tensor.comparison"
require "accelerate.tensor.creation"
require "accelerate.tensor.methods"
require "accelerate.tensor.joining"
require "accelerate.tensor.rearrange"
require "accelerate.tensor.indexing"
require "accelerate.tensor.statistics"
require "accelerate.tensor.products"
require "accelerate.tensor.random"
require "accelerate.tensor.factors"
require "accelerate.tensor.running"
require "accelerate.tensor.special"
require "accelerate.tensor.signal"
require "accelerate.tensor.copies"
require "accelerate.tensor.parts"
require "accelerate.tensor.counting"
require "accelerate.tensor.masked"
require "accelerate.tensor.windows"

return define
