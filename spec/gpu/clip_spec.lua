--- Clipping by the norm waits until a gradient is read, and an optimizer's pass does it on the way.
--- What a script sees is that of clipping at once, bit for bit; on the CPU and on the device.
local core = require "accelerate.core"
local device = require "spec.support.device"
local accelerate = require "accelerate"
local emulator = require "spec.support.emulator"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"

local SHAPES, LIMIT = { { 70, 90 }, { 31 }, { 5000 }, { 3, 41, 60 } }, 0.5

local function equal(a, b, what)
  a, b = a:detach():to("cpu"), b:detach():to("cpu")
  assert.is_true(tensor.equal(a, b),
    ("%s: %s and %s"):format(what, a:flatten()[1]:item(), b:flatten()[1]:item()))
end

-- Parameters with gradients far above the limit; flat: of a prepared model.
local function make(on, dtype, flat)
  tensor.manual_seed(7)
  local params = {}
  if flat then
    local model = nn.Sequential(nn.Linear(90, 70), nn.Linear(70, 41)):to(on):to(dtype)
    model = accelerate.Accelerator { cpu = on == "cpu" }:prepare(model)
    params = model:parameters()
  else
    for k, shape in ipairs(SHAPES) do params[k] = tensor.randn(shape):to(dtype):to(on):requires_grad_() end
  end
  return params
end

local function fill(params, scale)
  local loss
  for k, p in ipairs(params) do
    local part = ((p - k) ^ 2):sum() * (scale or 1)
    loss = loss and loss + part or part
  end
  loss:backward()
end

for _, on in ipairs { "cpu", device.name } do
  describe("clipping on " .. on, function()
    local function each(fn)
      for _, dtype in ipairs { "float32", "float64" } do
        for _, flat in ipairs { false, true } do
          fn(make(on, dtype, flat), dtype .. (flat and ", flat" or ""))
        end
      end
    end

    it("shows clipped gradients to whoever reads them: before and after the step", function()
      each(function(params, what)
        fill(params)
        local all = {}
        for k, p in ipairs(params) do all[k] = p.grad:clone() end
        local norm = nn.utils.clip_grad_norm_(params, LIMIT)
        local optimizer = optim.SGD(params, { lr = 0.1 })
        local before = {}
        for k, p in ipairs(params) do before[k] = p:detach():clone() end
        optimizer:step()
        assert.is_true(norm:item() > 10 * LIMIT)
        local total = nn.utils.get_total_norm(all)
        equal(norm, total, what)
        for k, p in ipairs(params) do
          local factor = LIMIT / (norm:item() + 1e-6)
          local off = (p.grad:double() - all[k]:double() * factor):abs():max():item()
          assert.is_true(off <= 1e-5 * all[k]:abs():max():item() * factor, what)
          equal(p, before[k] - 0.1 * p.grad, what .. ", the step")
        end
      end)
    end)

    it("gives every optimizer the bits of gradients that were clipped before", function()
      local makers = {
        SGD = { lr = 0.1, momentum = 0.9, weight_decay = 0.01 }, Adam = {}, AdamW = { amsgrad = true },
        Adamax = {},
        NAdam = {}, RAdam = {}, Lion = {}, Adagrad = {}, RMSprop = { centered = true, momentum = 0.5 },
        Adadelta = {}, Rprop = {}, ASGD = {}, Adafactor = {},
      }
      for name, options in pairs(makers) do
        if optim[name] then
          local results = {}
          for turn = 1, 2 do
            local params = make(on, "float32", false)
            local optimizer = optim[name](params, options)
            for _ = 1, 3 do
              fill(params)
              nn.utils.clip_grad_norm_(params, LIMIT)
              if turn == 2 then for _, p in ipairs(params) do p.grad:sum():item() end end
              optimizer:step()
              optimizer:zero_grad()
            end
            results[turn] = params
          end
          for k in ipairs(results[1]) do equal(results[1][k], results[2][k], name) end
        end
      end
    end)

    it("is done before gradients are added to, changed, clipped again or kept by a script", function()
      each(function(params, what)
        fill(params)
        nn.utils.clip_grad_norm_(params, LIMIT)
        local clipped = {}
        for k, p in ipairs(params) do clipped[k] = p.grad:clone() end
        optim.SGD(params, {}):zero_grad()

        local function again()
          fill(params)
          nn.utils.clip_grad_norm_(params, LIMIT)
        end
        again()
        fill(params)  -- adds
        local sum = params[2].grad:clone()
        optim.SGD(params, {}):zero_grad()
        fill(params)
        equal(sum, clipped[2] + params[2].grad, what .. ", added to")
        optim.SGD(params, {}):zero_grad()

        again()
        params[1].grad:mul_(3)
        equal(params[1].grad, clipped[1] * 3, what .. ", changed")
        equal(params[2].grad, clipped[2], what .. ", beside the changed one")
        optim.SGD(params, {}):zero_grad()

        again()
        nn.utils.clip_grad_norm_(params, LIMIT / 2)
        equal(nn.utils.get_total_norm({ params[1].grad, params[2].grad, params[3].grad, params[4].grad }):gt(
          LIMIT * 0.51), tensor(false), what .. ", clipped again")
        optim.SGD(params, {}):zero_grad()

        again()
        local kept, view = params[2].grad, params[3].grad:view(-1)
        optim.SGD(params, {}):zero_grad()
        equal(kept, clipped[2], what .. ", kept")
        equal(view, clipped[3]:view(-1), what .. ", a view kept")
      end)
    end)

    it("leaves alone what was not in the list, and steps what was with what was not", function()
      each(function(params, what)
        local some, results = { params[1], params[3] }, {}
        for turn = 1, 2 do
          optim.SGD(params, {}):zero_grad()
          fill(params)
          local others = { params[2].grad:clone(), params[4].grad:clone() }
          nn.utils.clip_grad_norm_(some, LIMIT)
          if turn == 2 then params[1].grad:sum():item() end
          local before = {}
          for k, p in ipairs(params) do before[k] = p:detach():clone() end
          optim.SGD(params, { lr = 0.1 }):step()
          equal(params[2].grad, others[1], what)
          equal(params[4].grad, others[2], what)
          results[turn] = {}
          for k, p in ipairs(params) do
            results[turn][k] = p:detach():clone()
            p:detach():copy_(before[k])
          end
        end
        for k in ipairs(params) do equal(results[1][k], results[2][k], what) end
      end)
    end)

    it("spreads NaN, and leaves gradients below the limit", function()
      local params = make(on, "float32", false)
      fill(params)
      local all = params[3].grad:clone()
      nn.utils.clip_grad_norm_(params, 1e9)
      optim.SGD(params, { lr = 0 }):step()
      equal(params[3].grad, all, "below the limit")
      params[1].grad:narrow(1, 1, 1):fill_(0 / 0)
      nn.utils.clip_grad_norm_(params, LIMIT)
      optim.SGD(params, { lr = 0.1 }):step()
      for _, p in ipairs(params) do
        assert.is_true(p:isnan():all():item())
        assert.is_true(p.grad:isnan():all():item())
      end
    end)
  end)
end

describe("a step that clips", function()
  it("has no pass of its own for that", function()
    if not emulator then return pending("only the emulated device counts launches") end
    local function launches(clip)
      local params = make(device.name, "float32", true)
      local optimizer, n = optim.AdamW(params), nil
      for _ = 1, 3 do
        fill(params)
        if clip then
          nn.utils.clip_grad_norm_(params, LIMIT)
        else
          nn.utils.get_total_norm({ params[1].grad })
        end
        n = emulator.calls({ "launch" }).launch
        optimizer:step()
        optimizer:zero_grad()
        fill(params)
        n = emulator.calls({ "launch" }).launch - n
        optimizer:zero_grad()
      end
      return n
    end
    assert.are.equal(launches(false), launches(true))
  end)
end)

describe("claims", function()
  it("were asked for by all who used the memory (counted in sanitized builds)", function()
    assert.are.equal(0, core.debug_claims_missed())
  end)
end)
