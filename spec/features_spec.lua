-- Every row of Accelerate's behaviour that we follow names the spec that shows it, and that spec
-- exists.
describe("the table of features", function()
  it("names a spec for each row, and these exist", function()
    local missing, wrong, rows = require("spec.support.features").check()
    assert.are.same({}, wrong)
    assert.are.same({}, missing)
    assert.is_true(rows > 200)
  end)
end)
