--- Types of eight bits on the device: casts, moves and scaled matrices have the CPU's bits, and
--- products are close.
local device = require "spec.support.device"
local core = require "accelerate.core"

if not device.name then
  describe("eight bits on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
local cast, product = core._row "_float8_cast", core._row "_float8_product"

local function there(t) return t:to(device.name) end
local function bytes(t) return t:to("cpu"):contiguous():view("uint8") end

-- The bits of a NaN may differ.
local function same(expected, got, context)
  assert.are.same(expected.shape, got.shape)
  assert.are.equal(expected.dtype, got.dtype)
  local differ = bytes(expected):ne(bytes(got))
  if expected.dtype:find "float" then
    local nan = got:to("cpu"):float():isnan()
    assert.is_true(nan:equal(expected:float():isnan()), context)
    differ = differ:logical_and(nan:repeat_interleave(expected:element_size(), -1):logical_not())
  end
  assert.are.equal(0, differ:sum():item(), context)
end

describe(("eight bits on %s"):format(device.name), function()
  before_each(function() core.manual_seed(3) end)

  it("are cast as on the CPU, to and from every type", function()
    local all = core.arange(0, 256):to "uint8"
    local numbers = core.cat { core.randn(500) * 100,
      core.tensor { 448, 464, 57344, 61440, 1e9, 2 ^ -10, 0, -0.0 } }
    for _, eight in ipairs { E4M3, E5M2 } do
      local x = all:view(eight)
      for _, other in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool",
        "complex64", E4M3, E5M2 } do
        if other ~= "complex64" then same(x:to(other), there(x):to(other), eight .. " to " .. other) end
        local y = other == "complex64" and numbers or numbers:to(other)
        same(y:to(eight), there(y):to(eight), other .. " to " .. eight)
        same(y:to(eight), there(core.stack({ y, y }, 2)):select(2, 1):to(eight), "strided " .. other)
      end
    end
  end)

  it("are moved, compared and refused as on the CPU", function()
    local x = core.randn(6, 8):to(E4M3)
    local d = there(x)
    local index = core.tensor({ 3, 0, 5 }, { dtype = "int64" })
    same(x:index_select(1, index), d:index_select(1, there(index)))
    same(core.cat({ x, x }, 2), core.cat({ d, d }, 2))
    same(x:t():contiguous(), d:t():contiguous())
    same(x:flip { 2 }, d:flip { 2 })
    same(x:tile { 2, 1 }, d:tile { 2, 1 })
    local mask = core.rand(6, 8):gt(0.5)
    same(core.where(mask, x, x:flip { 1 }), core.where(there(mask), d, d:flip { 1 }))
    same(x:masked_fill(mask, 2.1), d:masked_fill(there(mask), 2.1))
    same(x:eq(x:flip { 1 }), d:eq(d:flip { 1 }))
    same(x:clone():fill_(3.3), d:clone():fill_(3.3))
    assert.error_matches(function() return d + d end, "add: not defined for float8_e4m3fn")
  end)

  for _, dtype in ipairs { E4M3, E5M2 } do
    it("scale matrices to " .. dtype .. " with the CPU's bits", function()
      for _, from in ipairs { "float32", "bfloat16", "float16" } do
        for _, shape in ipairs { { 64, 64 }, { 128, 80 }, { 5, 7 }, { 1, 16 }, { 70, 130 }, { 0, 16 },
          { 3, 0 } } do
          local x = (core.randn(unpack(shape)) * 5):to(from)
          for _, scale in ipairs { 0, 3.5 } do
            local given = scale > 0 and core.tensor { scale } or nil
            local a = { cast(x, given, dtype, true) }
            local b = { cast(there(x), given and there(given), dtype, true) }
            for k = 1, 3 do same(a[k], b[k], ("%s %d: result %d"):format(from, shape[1], k)) end
          end
        end
        local strange = core.tensor { { 1, math.huge, 0 / 0, -3 } }:to(from)
        same((cast(strange, nil, dtype, false)), (cast(there(strange), nil, dtype, false)))
      end
    end)
  end

  it("are multiplied", function()
    for _, types in ipairs { { E4M3, E4M3 }, { E5M2, E4M3 }, { E4M3, E5M2 } } do
      for _, size in ipairs { { 32, 48, 64 }, { 1, 16, 16 }, { 7, 16, 128 }, { 100, 32, 512 } } do
        local m, n, k = unpack(size)
        local a, _, as = cast(core.randn(m, k), nil, types[1], false)
        local b, _, bs = cast(core.randn(n, k), nil, types[2], false)
        for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
          for _, bias in ipairs { false, core.randn(n):to(dtype) } do
            local expected = product(a, b, as, bs, bias or nil, dtype, false):float()
            local got = product(there(a), there(b), there(as), there(bs), bias and there(bias) or nil, dtype,
              false)
            assert.are.equal(dtype, got.dtype)
            local off = (got:to("cpu"):float() - expected):abs():max():item() / expected:abs():max():item()
            assert.is_true(off <= (dtype == "float32" and 1e-5 or dtype == "float16" and 2e-3 or 1e-2),
              ("%s %d: off by %g"):format(dtype, m, off))
          end
        end
      end
    end
    local one = there(core.ones(2))
    assert.are.same({ 0, 16 }, product(there(core.zeros({ 0, 16 }, { dtype = E4M3 })),
      there(core.zeros({ 16, 16 }, { dtype = E4M3 })), one, one, nil, "bfloat16", true).shape)
  end)

  it("train as on the CPU", function()
    local float8 = require "accelerate.precision.float8_models"
    local nn = require "accelerate.nn"
    local function losses(where)
      core.manual_seed(8)
      local model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
        nn.Linear(32, 16))
      float8.convert_model_to_fp8_ao(model)
      local x = core.randn(40, 16):to(where)
      model:to(where)
      local optimizer = require("accelerate.optim").SGD(model:parameters(), { lr = 0.05 })
      local list = {}
      for step = 1, 5 do
        local loss = (model(x) - x):square():mean()
        loss:backward()
        optimizer:step()
        optimizer:zero_grad()
        list[step] = loss:item()
      end
      return list
    end
    local here, away = losses "cpu", losses(device.name)
    for step = 1, 5 do
      assert.is_true(math.abs(away[step] / here[step] - 1) < 2e-2,
        ("%g beside %g"):format(away[step], here[step]))
    end
  end)

  it("train in recorded steps with the same bits", function()
    if device.fake then return pending("the fake device records nothing") end
    local accelerate, nn = require "accelerate", require "accelerate.nn"
    local function losses(backend)
      require("accelerate.state").reset()
      local acc = accelerate.Accelerator { mixed_precision = "fp8", dynamo_backend = backend }
      core.manual_seed(6)
      local model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
        nn.Linear(32, 16))
      local optimizer = accelerate.optim.SGD(model:parameters(), { lr = 0.1 })
      model, optimizer = acc:prepare(model, optimizer)
      local list = {}
      for step = 1, 5 do
        local loss = model(there(core.ones(16, 16) * step)):square():mean()
        acc:backward(loss)
        optimizer:step()
        optimizer:zero_grad()
        list[step] = loss:item()
      end
      return list, acc, model
    end
    assert.are.same(losses "no", (losses "cudagraphs"))
    require("accelerate.state").reset()
    local acc = accelerate.Accelerator { mixed_precision = "fp8", dynamo_backend = "cudagraphs",
      kwargs_handlers = { accelerate.utils.TERecipeKwargs() } }
    assert.error_matches(function() acc:prepare(nn.Sequential(nn.Linear(16, 16))) end,
      "TERecipeKwargs: scales that follow from earlier steps are not there in recorded steps")
    require("accelerate.state").reset()
  end)

  it("is fp16 on a GPU that does not multiply eight bits", function()
    local accelerate, state = require "accelerate", require "accelerate.state"
    local driver = require "accelerate.machine.driver"
    local former = driver.capability_of
    for capability, expected in pairs { [80] = "fp16", [89] = "fp8", [90] = "fp8" } do
      driver.capability_of = function() return math.floor(capability / 10), capability % 10 end
      state.reset()
      local ok, acc = pcall(accelerate.Accelerator, { mixed_precision = "fp8" })
      driver.capability_of = former
      assert.is_true(ok, tostring(acc))
      assert.are.equal(expected, acc.mixed_precision)
      assert.is_true(acc.fp8_enabled)
    end
    state.reset()
  end)
end)
