--- utils.load of nested values: the input is the JSON text of the structure, in a file with a few
--- tensors.
local core = require "accelerate.core"
local files = require "accelerate.files"
local structure = require "accelerate.files.structure"

local TENSORS = {
  { "a", core.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }) },
  { "b", core.tensor({ 1, 2, 3, 4 }, { dtype = "int64" }) },
  { "bytes", core.tensor({ 255, 0, 65 }, { dtype = "uint8" }) }, { "c", core.tensor({ true, false }) },
  { "e", core.zeros(0) }, { "h", core.ones(2, { dtype = "float16" }) },
}

return {
  ending = ".safetensors",
  prepare = function(text, path)
    if not structure.is_text(text) then text = text:gsub("[%z\128-\255]", "?") end
    core.safetensors_save(path, TENSORS, { format = "pt", structure = text })
    local f = assert(io.open(path, "rb"))
    local bytes = f:read("*a")
    f:close()
    return bytes
  end,
  read = function(path) return files.load(path) end,
  write = { files.write, files.write },
  again = { ".safetensors", ".pt" },
}
