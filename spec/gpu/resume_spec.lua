-- A run on a GPU that was killed goes on with the same bits: fp16 with its scale, captured steps,
-- draws of the device, and gradients of an open accumulation window.
local gpu_ranks = require "spec.support.gpu_ranks"
local device = require "spec.support.device"
local host = require "spec.support.host"

local SCRIPT = "spec/support/resumable.lua"

local function run(folder, variant, n, kill_at)
  return host.run({ "--num_processes", tostring(n), SCRIPT, folder, variant,
    kill_at and tostring(kill_at) or nil }, { env = gpu_ranks.env() })
end

local function finish(folder, variant, n)
  local status, out, err = run(folder, variant, n)
  assert(status == 0, err)
  local lines = {}
  for line in out:gmatch "[^\n]+" do lines[#lines + 1] = line end
  table.sort(lines)
  return lines
end

describe("a run on a GPU that was killed", function()
  if not device.name or device.fake then
    it("goes on with the same bits",
      function() pending(device.reason or "the fake device has no kernels") end)
    return
  end
  for _, variant in ipairs { "plain", "fp16", "captured", "async" } do
    for n = 1, 2 do
      it(("goes on with the same bits: %s, %d rank(s)"):format(variant, n), function()
        if n > 1 and (gpu_ranks.why or n > gpu_ranks.most) then
          return pending(gpu_ranks.why or "there is one GPU")
        end
        local expected
        host.in_folder(function(folder) expected = finish(folder, variant, n) end)
        host.in_folder(function(folder)
          assert.equal(137, (run(folder, variant, n, 6)))
          assert.same(expected, finish(folder, variant, n))
        end)
      end)
    end
  end
end)
