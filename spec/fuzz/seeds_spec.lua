--- The seeds of the fuzzers hold the properties of their targets (spec/fuzz/check.lua). Findings,
--- once fixed, are among them.
local host = require "spec.support.host"

local replay = host.path:match("^(.*)/[^/]*$") .. "/fuzz-replay"

local function lines(command)
  local list, pipe = {}, assert(io.popen(command))
  for line in pipe:lines() do list[#list + 1] = line end
  pipe:close()
  return list
end

describe("the seeds of", function()
  local targets = lines("cd spec/fuzz/seeds && ls")

  it("every target are there", function()
    local known = lines("cd spec/fuzz/targets && ls | sed 's/.lua$//'; echo options; echo settings; " ..
      "echo hello; echo hostfile")
    table.sort(known)
    assert.same(known, targets)
  end)

  for _, target in ipairs(targets) do
    it(target .. " hold its properties", function()
      local f = io.open(replay)
      if not f then return pending("needs fuzz-replay, which `make test` builds") end
      f:close()
      local out = lines(("timeout 60 '%s' %s spec/fuzz/seeds/%s/* 2>&1; echo status $?"):format(replay,
        target,
        target))
      assert.equal("status 0", out[#out], table.concat(out, "\n"))
      assert.matches("^[1-9]%d* inputs$", out[#out - 1])
    end)
  end
end)
