-- Runs of flattened tensors as boxes, for any dims.
local boxes = require "accelerate.checkpoint.boxes"

describe("boxes", function()
  it("of a run are the tail of a row, whole rows and the head of a row", function()
    assert.same({
      { offsets = { 0, 2 }, sizes = { 1, 1 } },
      { offsets = { 1, 0 }, sizes = { 2, 3 } },
      { offsets = { 3, 0 }, sizes = { 1, 2 } },
    }, boxes.of({ 5, 3 }, 2, 9))
    assert.same({ { offsets = { 0, 0 }, sizes = { 5, 3 } } }, boxes.of({ 5, 3 }, 0, 15))
  end)

  it("of a scalar and of nothing are one and none", function()
    assert.same({ { offsets = {}, sizes = {} } }, boxes.of({}, 0, 1))
    assert.same({}, boxes.of({ 4, 4 }, 5, 0))
    assert.same({}, boxes.of({ 0, 4 }, 0, 0))
  end)

  it("of any run are runs that follow each other, at most 2 * dims - 1", function()
    math.randomseed(7)
    for _ = 1, 3000 do
      local shape = {}
      for d = 1, math.random(0, 6) do shape[d] = math.random(1, 4) end
      local numel = boxes.count(shape)
      local from = math.random(0, numel - 1)
      local n = math.random(0, numel - from)
      local list, at = boxes.of(shape, from, n), from
      for _, box in ipairs(list) do
        local first, count = boxes.run(shape, box)
        assert.equal(at, first)
        at = at + count
      end
      assert.equal(from + n, at)
      assert.is_true(#list <= math.max(1, 2 * #shape - 1))
    end
  end)

  it("whose elements do not follow each other are no runs", function()
    assert.is_nil(boxes.run({ 4, 4 }, { offsets = { 0, 0 }, sizes = { 2, 3 } }))
    assert.is_nil(boxes.run({ 2, 2, 2 }, { offsets = { 0, 0, 0 }, sizes = { 2, 1, 2 } }))
    assert.same({ 4, 8 }, { boxes.run({ 4, 4 }, { offsets = { 1, 0 }, sizes = { 2, 4 } }) })
  end)

  it("meet in what they have in common", function()
    local a, b = { offsets = { 0, 1 }, sizes = { 3, 3 } }, { offsets = { 2, 0 }, sizes = { 4, 2 } }
    assert.same({ offsets = { 2, 1 }, sizes = { 1, 1 } }, boxes.meet(a, b))
    assert.is_nil(boxes.meet(a, { offsets = { 3, 0 }, sizes = { 1, 9 } }))
  end)
end)
