--- safetensors files: weights by name, and their metadata.
local core = require "accelerate.core"
local files = require "accelerate.files"
local ordered = require "accelerate.utils.ordered"

return {
  ending = ".safetensors",
  read = function(path)
    local tensors, metadata = files.load_safetensors(path)
    local plain = {}
    for name, t in ordered.pairs(tensors) do plain[name] = t end
    return { tensors = plain, metadata = metadata }
  end,
  write = function(value, path)
    local list = {}
    for _, name in ipairs(ordered.keys(value.tensors)) do list[#list + 1] = { name, value.tensors[name] } end
    core.safetensors_save(path, list, value.metadata)
  end,
}
