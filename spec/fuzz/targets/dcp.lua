--- `.metadata` of PyTorch's distributed checkpoints.
local metadata = require "accelerate.checkpoint.dcp_metadata"

return {
  ending = ".metadata",
  read = function(path) return metadata.read(path, "load") end,
  write = function(entries, path)
    for _, entry in ipairs(entries) do entry.path = entry.path or { entry.name } end
    local f = assert(io.open(path, "wb"))
    f:write(metadata.encode(entries))
    f:close()
  end,
}
