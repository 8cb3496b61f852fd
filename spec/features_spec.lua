-- Every row of Accelerate's behaviour that we follow names the spec that shows it, and that spec exists.
describe("the table of features", function()
  it("names specs that exist", function()
    local _, wrong = require("spec.support.features").check()
    assert.are.same({}, wrong)
  end)
end)
