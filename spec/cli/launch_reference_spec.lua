-- Configurations and launch lines of Accelerate's documentation start the ranks that Accelerate
-- starts, with the settings that it gives them (spec/reference/launch_reference.lua).
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"

local NAMES = { "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU", "ACCELERATE_DEBUG_MODE",
  "ACCELERATE_CPU_AFFINITY",
  "ACCELERATE_DYNAMO_BACKEND", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS" }

local SCRIPT = [[local line = { os.getenv "WORLD_SIZE" or "1" }
for _, name in ipairs { %s } do line[#line + 1] = name .. "=" .. (os.getenv(name) or "") end
print(table.concat(line, " "))]]

-- A setting's meaning: what stands for a switch that is off, for no precision and for no compiler
-- is nothing at all.
local function meaning(value)
  value = (value or ""):lower()
  if value == "no" or value == "false" or value == "0" then return "" end
  return value == "1" and "true" or value
end

describe("accel-run starts what Accelerate starts", function()
  for _, case in ipairs(require "spec.reference.launch_reference") do
    it("for " .. case.name, function()
      host.in_folder(function(folder)
        local names, words = {}, { "launch" }
        for i, name in ipairs(NAMES) do names[i] = ("%q"):format(name) end
        assert(fs.write(folder .. "/train.lua", SCRIPT:format(table.concat(names, ", "))))
        if case.config then
          assert(fs.write(folder .. "/c.yaml", case.config))
          words = { "launch", "--config_file", "c.yaml" }
        end
        for _, word in ipairs(case.options) do words[#words + 1] = word end
        words[#words + 1] = "train.lua"
        local status, out, err = host.run(words, { folder = folder, env = { HF_HOME = folder } })
        assert.are.equal(0, status, err)
        local ranks = 0
        for line in out:gmatch "[^\n]+" do
          ranks = ranks + 1
          assert.are.equal(tostring(case.ranks), line:match "^%d+", line)
          for _, name in ipairs(NAMES) do
            -- threads are ours to choose, unless they were given
            if name ~= "OMP_NUM_THREADS" or case.env[name] then
              assert.are.equal(meaning(case.env[name]), meaning(line:match(name .. "=(%S*)")), name ..
                " in " .. line)
            end
          end
        end
        assert.are.equal(case.ranks, ranks)
      end)
    end)
  end
end)
