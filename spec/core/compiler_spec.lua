-- LuaJIT's compiler: programs of the kind that trains run a million steps with it as they do
-- without.
local host = require "spec.support.host"
local programs = require "spec.support.compiled_programs"

local STEPS = 1000000

local function run(name, ...)
  local words = { ... }
  words[#words + 1] = "-e"
  words[#words + 1] = ("io.write(require('spec.support.compiled_programs').%s(%d))"):format(name, STEPS)
  local status, out, err = host.run(words)
  assert(status == 0, ("%s: status %s\n%s\n%s"):format(table.concat(words, " "), tostring(status), out,
    err:sub(1, 2000)))
  return out
end

describe("a million compiled steps", function()
  local names = {}
  for name in pairs(programs) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    it("of " .. name:gsub("_", " ") .. " do what interpreted ones do", function()
      local expected = run(name, "-joff")
      assert(#expected > 0)
      assert.equal(expected, run(name, "-jon"))
      -- compiled early: many small traces
      assert.equal(expected, run(name, "-e", "jit.opt.start('hotloop=3', 'hotexit=2')"))
    end)
  end
end)
