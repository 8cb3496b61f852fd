--- Arguments of nn.init: by position in PyTorch's order, or by name.
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises
local init = nn.init

local function drawn(name, ...)
  tensor.manual_seed(3)
  return init[name](tensor.empty(400, 300), ...)
end

local function std(t) return t:double():std():item() end

describe("arguments of nn.init", function()
  local root5 = math.sqrt(5)
  for _, case in ipairs {
    { "uniform_", { -1, 3 }, { { a = -1, b = 3 } } },
    { "normal_", { 1, 2 }, { { mean = 1, std = 2 } } },
    { "normal_", { 1, 2 }, { 1, { std = 2 } } },
    { "trunc_normal_", { 1, 2, 0, 3 }, { { mean = 1, std = 2, a = 0, b = 3 } } },
    { "constant_", { 2.5 }, { { val = 2.5 } } },
    { "xavier_uniform_", { 1.5 }, { { gain = 1.5 } } },
    { "xavier_normal_", { 1.5 }, { { gain = 1.5 } } },
    { "kaiming_uniform_", { root5 }, { { a = root5 } } },
    { "kaiming_uniform_", { 0.2, "fan_out" }, { { a = 0.2, mode = "fan_out" } } },
    { "kaiming_normal_", { 0, "fan_out", "relu" }, { { mode = "fan_out", nonlinearity = "relu" } } },
    { "kaiming_normal_", { nil, nil, "tanh" }, { { nonlinearity = "tanh" } } },
    { "sparse_", { 0.1, 0.5 }, { { sparsity = 0.1, std = 0.5 } } },
    { "sparse_", { 0.1 }, { 0.1, { std = 0.01 } } },
  } do
    it(("of %s go by position, or by name (%d)"):format(case[1], #case[2]), function()
      local count = case[2][3] and math.max(3, #case[2]) or #case[2]
      assert.is_true(drawn(case[1], unpack(case[2], 1, count)):equal(drawn(case[1], unpack(case[3]))))
    end)
  end

  it("of orthogonal_ and dirac_, too", function()
    local function square(...)
      tensor.manual_seed(3)
      return init.orthogonal_(tensor.empty(6, 4), ...)
    end
    assert.is_true(square(2):equal(square { gain = 2 }))
    assert.is_true(tensor.allclose(square(2):t():matmul(square(2)), tensor.eye(4) * 4, { atol = 1e-5 }))
    assert.is_true(init.dirac_(tensor.empty(4, 2, 3), 2):equal(init.dirac_(tensor.empty(4, 2, 3),
      { groups = 2 })))
  end)

  it("have a generator at their end", function()
    local function seeded() return tensor.Generator(11) end
    local function empty() return tensor.empty(5, 4) end
    for name, given in next, {
      uniform_ = { 0, 1 }, normal_ = { 0, 1 }, trunc_normal_ = { 0, 1, -2, 2 }, xavier_uniform_ = { 1 },
      xavier_normal_ = { 1 }, kaiming_uniform_ = { 0, "fan_in", "leaky_relu" },
      kaiming_normal_ = { 0, "fan_in", "leaky_relu" }, orthogonal_ = { 1 }, sparse_ = { 0.5, 0.01 },
    } do
      given[#given + 1] = seeded()
      local a = init[name](empty(), unpack(given))
      given[#given] = { generator = seeded() }
      assert.is_true(a:equal(init[name](empty(), unpack(given))), name)
    end
  end)

  it("have PyTorch's meaning", function()
    -- the largest element and the deviation of PyTorch's draws
    for _, case in ipairs {
      { { "xavier_uniform_", 1.5 }, 0.13887, 0.08013 }, { { "kaiming_uniform_", root5 }, 0.057734, 0.033313 },
      { { "kaiming_uniform_", 0.2, "fan_out", "leaky_relu" }, 0.120094, 0.069296 },
    } do
      local t = drawn(unpack(case[1]))
      assert.near(case[2], t:abs():max():item(), 1e-4)
      assert.near(case[3], std(t), 3e-4)
    end
    assert.near(0.070785, std(drawn("kaiming_normal_", 0, "fan_out", "relu")), 5e-4)
    assert.near(0.107016, std(drawn("xavier_normal_", 2)), 5e-4)
    assert.equal(init.calculate_gain("leaky_relu", 0.2), init.calculate_gain("leaky_relu", { param = 0.2 }))
    assert.near(math.sqrt(2 / 1.04), init.calculate_gain("leaky_relu", 0.2), 1e-15)
  end)

  it("are checked", function()
    local w = tensor.empty(3, 3)
    raises("xavier_uniform_: option 'gain' must be a number, got 'big'", init.xavier_uniform_, w, "big")
    raises("xavier_uniform_: an argument too many: 'junk'", init.xavier_uniform_, w, 1, nil, "junk")
    raises("kaiming_uniform_: option 'mode' must be one of fan_in, fan_out, got 'fan'", init.kaiming_uniform_,
      w, 0, "fan")
    raises("normal_: std is given twice, by position and by name", init.normal_, w, 0, 1, { std = 2 })
    raises("normal_: std must be at least 0, got -1", init.normal_, w, 0, -1)
    raises("uniform_: unknown option 'lo'", init.uniform_, w, { lo = 1 })
    raises("constant_: option 'val' is missing", init.constant_, w)
    raises("sparse_: option 'sparsity' is missing", init.sparse_, w)
    raises("dirac_: an argument too many: 3", init.dirac_, tensor.empty(2, 2, 2), 1, 3)
  end)
end)

describe("the fans of a weight", function()
  it("are PyTorch's", function()
    assert.same({ 4, 3 }, { init._calculate_fan_in_and_fan_out(tensor.empty(3, 4)) })
    assert.same({ 18, 54 }, { init._calculate_fan_in_and_fan_out(tensor.empty(6, 2, 3, 3)) })
    assert.same({ 14, 35 }, { init._calculate_fan_in_and_fan_out(tensor.empty(5, 2, 7)) })
    assert.equal(54, init._calculate_correct_fan(tensor.empty(6, 2, 3, 3), "FAN_OUT"))
    assert.equal(18, init._calculate_correct_fan(tensor.empty(6, 2, 3, 3), "fan_in"))
    raises("_calculate_fan_in_and_fan_out: fan in and fan out need at least 2 dims",
      init._calculate_fan_in_and_fan_out, tensor.empty(3))
    raises("_calculate_correct_fan: mode must be one of fan_in, fan_out, got 'fan'",
      init._calculate_correct_fan, tensor.empty(3, 3), "fan")
    raises("_calculate_correct_fan: mode is missing", init._calculate_correct_fan, tensor.empty(3, 3))
  end)
end)
