--- NumPy's .npy files.
local data = require "accelerate.data"

return { ending = ".npy", read = data.read_npy, write = function(t, path) data.write_npy(path, t) end }
