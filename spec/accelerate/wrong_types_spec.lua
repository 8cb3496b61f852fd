-- Every public function of the Accelerator and its classes, called with values of each wrong type
-- and with arguments missing: it works, or raises an error that names the argument at the caller's
-- line.
local host = require "spec.support.host"

local function run(n)
  local pipe = io.popen("pwd")
  local here = pipe:read("*l")
  pipe:close()
  local status, out, err
  host.in_folder(function(folder)  -- some calls write files
    status, out, err = host.run({ "--num_processes", tostring(n), here ..
      "/spec/support/fuzz_accelerator.lua" },
      { folder = folder, seconds = 120, env = { HOME = folder, XDG_CACHE_HOME = folder, HF_HOME = folder } })
  end)
  local list = #out > 6000 and out:sub(1, 6000) .. "\n..." or out
  assert.are.equal(0, status, list .. "\n" .. err:sub(-2000))
  local calls = tonumber(out:match("(%d+) calls, 0 problems\n$"))
  assert.is_true(calls ~= nil and calls > 12000, list)
end

describe("wrong types and missing arguments", function()
  it("are errors that name the argument, on one rank", function() run(1) end)
  it("are errors that name the argument, on two ranks, and nobody waits", function() run(2) end)
end)
