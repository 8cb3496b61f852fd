-- Runs every loop on the ranks that there are, for data sets of two lengths, and prints rank 0's
-- results as one line of JSON:
--   accel-run --num_processes 3 spec/dist/loops/all.lua FOLDER
local core = require "accelerate.core"
local json = require "accelerate.utils.json"
local state = require "accelerate.state"

package.path = "./?.lua;" .. package.path

local results = {}
for _, name in ipairs { "migrated", "split", "evaluation", "accumulation", "clipping", "precision",
  "deferred", "trigger" } do
  local loop = require("spec.dist.loops." .. name)
  for _, length in ipairs { 60, 53 } do
    results[("%s %d"):format(name, length)] = loop(length, arg[1])
    state.reset()  -- each is a script of its own
  end
end
if core.dist.rank() == 0 then print(json.encode(results)) end
