--- IDX files, plain and gzip.
local data = require "accelerate.data"

return { ending = ".idx", read = data.read_idx }
