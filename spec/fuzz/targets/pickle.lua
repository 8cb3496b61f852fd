--- utils.load of PyTorch's files: the input is data.pkl, in an archive with a few storages.
local core = require "accelerate.core"
local files = require "accelerate.files"

local STORAGES = { core.tensor({ 1, 2, 3, 4, 5, 6 }), core.tensor({ 1, 2, 3, 4 }, { dtype = "int64" }),
  core.tensor({ true, false, true }), core.ones(2, { dtype = "bfloat16" }) }

return {
  ending = ".pt",
  prepare = function(pickle, path)
    local members = { { "archive/data.pkl", pickle }, { "archive/byteorder", "little" } }
    for i, t in ipairs(STORAGES) do members[#members + 1] = { ("archive/data/%d"):format(i - 1), t } end
    core._zip_write(path, members, "save")
    local f = assert(io.open(path, "rb"))
    local bytes = f:read("*a")
    f:close()
    return bytes
  end,
  read = function(path) return files.load(path) end,
  write = function(value, path)
    if value == nil then return false end
    files.write(value, path)
  end,
}
