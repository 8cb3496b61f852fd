-- RandomRotation, ColorJitter, RandomVerticalFlip and make_grid beside torchvision's
-- (spec/generators/gen_transforms_reference.py).
local core = require "accelerate.core"
local data = require "accelerate.data"
local disk = require "spec.support.disk"
local json = require "accelerate.utils.json"
local raises = require("spec.support.messages").raises
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local T = data.transforms
local reference = assert(json.decode(disk.read "spec/reference/transforms_reference.json"))
local picture = core.tensor(reference.picture, { dtype = "uint8" }):view(3, 5, 7)
local INPUTS = { uint8 = picture, float32 = picture:to("float32") / 255,
  batch = core.tensor(reference.batch):view(5, 1, 2, 3) }

-- Of torchvision's values: floats within 1e-5, bytes within 1 where a rounding went the other way,
-- and of those one in fifty.
local function compare(case, made)
  local what = case.name .. " " .. json.encode(case.arguments) .. " of " .. case.kind
  assert.same(case.shape, made.shape, what)
  local off = 0
  for i, value in ipairs(made:flatten():totable()) do
    local distance = math.abs(value - case.values[i])
    if case.kind == "uint8" and distance == 1 then off = off + 1
    else assert.is_true(distance < 1e-5,
      ("%s: %g, and torchvision %g"):format(what, value, case.values[i])) end
  end
  assert.is_true(off <= 2, ("%s: %d bytes differ"):format(what, off))
end

describe("torchvision's values", function()
  for _, name in ipairs { "RandomRotation", "ColorJitter", "make_grid" } do
    it("are those of " .. name, function()
      local count = 0
      for _, case in ipairs(reference.cases) do
        if case.name == name then
          count = count + 1
          local input = INPUTS[case.kind]
          local before = input:clone()
          if name == "make_grid" then compare(case, utils.make_grid(input, case.arguments[1]))
          else
            local made = T[name](unpack(case.arguments))(input)
            assert.equal(input.dtype, made.dtype)
            compare(case, made)
          end
          assert.is_true(tensor.equal(before, input))
        end
      end
      assert.is_true(count > 5)
    end)
  end
end)

describe("a random transform", function()
  it("draws from the default generator, within its range", function()
    local function several(transform)
      tensor.manual_seed(3)
      local first = { transform(picture), transform(picture) }
      tensor.manual_seed(3)
      assert.is_true(tensor.equal(first[1], transform(picture)))
      assert.is_true(tensor.equal(first[2], transform(picture)))
      return first
    end
    local turned = several(T.RandomRotation(170))
    assert.is_false(tensor.equal(turned[1], turned[2]))
    local coloured = several(T.ColorJitter { brightness = 0.5, contrast = 0.5, saturation = 0.5, hue = 0.2 })
    assert.is_false(tensor.equal(coloured[1], coloured[2]))
    assert.is_true(tensor.equal(picture, T.ColorJitter()(picture)))
  end)

  it("mirrors top and bottom", function()
    assert.same(picture:flip(2):totable(), T.RandomVerticalFlip(1)(picture):totable())
    assert.same(picture:totable(), T.RandomVerticalFlip(0)(picture):totable())
    tensor.manual_seed(0)
    local flipped = 0
    for _ = 1, 100 do
      if not tensor.equal(picture, T.RandomVerticalFlip()(picture)) then flipped = flipped + 1 end
    end
    assert.is_true(flipped > 30 and flipped < 70, flipped)
  end)

  it("leaves one channel's colours as they are", function()
    local grey = picture:narrow(1, 1, 1)
    assert.is_true(tensor.equal(grey, T.ColorJitter { saturation = { 2, 2 }, hue = { 0.3, 0.3 } }(grey)))
    assert.same({ 1, 5, 7 }, T.RandomRotation(20)(grey).shape)
  end)

  it("names what is wrong with a call", function()
    raises("RandomRotation: degrees must be a number or { low, high }, got 'x'", T.RandomRotation, "x")
    raises("RandomRotation: degrees must be within", T.RandomRotation, { 5, 1 })
    raises("leave 'center' out", T.RandomRotation, 5, { expand = true, center = { 1, 1 } })
    raises("option 'interpolation' must be one of nearest, bilinear", T.RandomRotation, 5,
      { interpolation = "bicubic" })
    raises("fill has 2 entries, the picture 3 channels", T.RandomRotation(5, { fill = { 1, 2 } }), picture)
    raises("ColorJitter: hue must be within -0.5 and 0.5", T.ColorJitter, { hue = 0.7 })
    raises("ColorJitter: unknown option 'sat'", T.ColorJitter, { sat = 1 })
    raises("expected a picture of one channel or three, got 2", T.ColorJitter { hue = 0.1 },
      picture:narrow(1, 1, 2))
    raises("expected a picture [channels, height, width], got 5", T.RandomRotation(5), 5)
    raises("make_grid: expected a tensor [N, C, H, W] or a list of pictures, got 5", utils.make_grid, 5)
    raises("make_grid: entry 2 must be a tensor, got 3", utils.make_grid, { picture, 3 })
    raises("value_range' must be { least, most }", utils.make_grid, INPUTS.batch,
      { normalize = true, value_range = { 1 } })
  end)
end)
