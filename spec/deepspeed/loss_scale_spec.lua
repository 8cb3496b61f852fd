-- The loss scale of the block fp16, by DeepSpeed's rules.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local deepspeed = require "accelerate.accelerator.deepspeed"
local optim = require "accelerate.optim"

local OVERFLOWS = { 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1 }

local function scaler_of(fp16)
  return deepspeed.scaler(accelerate.DeepSpeedPlugin { hf_ds_config = { zero_optimization = { stage = 1 },
    fp16 = fp16 } })
end

-- The scale after each step.
local function scales(scaler, overflows)
  local p, list = core.ones(1, { requires_grad = true }), {}
  local optimizer = optim.SGD({ p }, { lr = 0 })
  for i, overflow in ipairs(overflows) do
    scaler:scale((p * (overflow == 1 and math.huge or 1)):sum()):backward()
    scaler:step(optimizer)
    scaler:update()
    optimizer:zero_grad()
    list[i] = scaler:get_scale()
  end
  return list
end

describe("DeepSpeed's loss scale", function()
  local function dynamic(consecutive)
    return { enabled = true, initial_scale_power = 6, loss_scale_window = 2, hysteresis = 2,
      min_loss_scale = 4,
      consecutive_hysteresis = consecutive }
  end

  it("falls and grows as the package's DynamicLossScaler", function()
    assert.are.same({ 64, 64, 128, 128, 64, 64, 32, 32, 32, 64, 64, 128, 128, 64, 32 },
      scales(scaler_of(dynamic(false)), OVERFLOWS))
    assert.are.same({ 64, 64, 128, 128, 64, 64, 64, 64, 64, 128, 128, 256, 256, 128, 64 },
      scales(scaler_of(dynamic(true)), OVERFLOWS))
  end)

  it("goes on from a state_dict in the middle of a hysteresis", function()
    local whole, first = scaler_of(dynamic(false)), scaler_of(dynamic(false))
    local expected = scales(whole, OVERFLOWS)
    scales(first, { unpack(OVERFLOWS, 1, 4) })
    local resumed = scaler_of(dynamic(false))
    resumed:load_state_dict(first:state_dict())
    assert.are.same({ unpack(expected, 5) }, scales(resumed, { unpack(OVERFLOWS, 5) }))
  end)

  it("that is at its minimum and overflows ends the run by name", function()
    local scaler = scaler_of { enabled = true, initial_scale_power = 2, hysteresis = 1, min_loss_scale = 2 }
    assert.error_matches(function() scales(scaler, { 1, 1 }) end,
      "gradients overflow although the loss scale is at fp16.min_loss_scale = 2", 1, true)
  end)

  it("stays where loss_scale says so, and begins at 2^16 otherwise", function()
    assert.are.same({ 128, 128, 128 }, scales(scaler_of { enabled = true, loss_scale = 128 }, { 0, 1, 0 }))
    assert.are.equal(65536, scaler_of({ enabled = true }):get_scale())
  end)

  it("stands in the configuration alone", function()
    assert.error_matches(function()
      deepspeed.scaler(accelerate.DeepSpeedPlugin { hf_ds_config = { zero_optimization = {}, fp16 = {} } },
        accelerate.GradScalerKwargs())
    end, "GradScalerKwargs: under DeepSpeed the block fp16 (hf_ds_config) has the loss scale", 1, true)
  end)
end)
