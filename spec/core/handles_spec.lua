-- Userdata that C makes, in the hands of a script that uses them wrongly.
local host = require "spec.support.host"

describe("an object of the binding", function()
  it("is safe in wrong hands: finalised twice, without its object, with another's, after its end", function()
    host.in_folder(function(folder)
      local status, out, err = host.run({ "spec/support/fuzz_handles.lua", folder }, { seconds = 300 })
      assert.are.equal("", err)
      assert.are.equal(0, status)
      assert.truthy(out:find("finalisers, 8 kinds of objects", 1, true), out)
    end)
  end)
end)
