--- How the weights of a folder or a file rest, and the layers that a model loaded from there gets:
--- each method of quantization_config derives a class from Encoding.

local class = require "accelerate.utils.class"
local weights = require "accelerate.weights"

---@class accelerate.quantisation.Encoding
---@field torch_dtype string the type of the rest where the call does not say
local Encoding = class "Encoding"

--- Gives a model without values the layers that hold encoded weights.
---@param model accelerate.nn.Module
---@param sources table<string, accelerate.WeightSource> where the files' tensors are
function Encoding:replace(model, sources) -- luacheck: ignore 212
  error "Encoding:replace must be defined"
end

--- Returns where each tensor of a checkpoint is.
---@param file string
---@return table<string, accelerate.WeightSource> ordered
function Encoding:sources(file) return weights.sources(file) end -- luacheck: ignore 212

--- Returns the type of each tensor that is not encoded, by its name; nil: all get `dtype`.
---@param model accelerate.nn.Module
---@param dtype string
---@return (fun(name: string): string)?
function Encoding:types(model, dtype) return nil end -- luacheck: ignore 212

--- Notes on a model with its values how its weights are encoded.
---@param model accelerate.nn.Module
function Encoding:mark(model) end -- luacheck: ignore 212

return Encoding
