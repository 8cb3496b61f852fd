-- optim.swa_utils beside PyTorch's (spec/generators/gen_swa_reference.py has the scenarios).
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ordered = require "accelerate.utils.ordered"
local reference = require "spec.reference.swa_reference"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local swa = optim.swa_utils

local function pattern(shape, t)
  local n, list = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 1, n do list[i] = (((i - 1) * 5 + 3 * t) % 17 - 8) / 16 end
  return core.tensor(list, { dtype = "float64" }):reshape(shape)
end

local function net() return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)):double() end

local function advance(model, t)
  tensor.no_grad(function()
    for k, p in ipairs(model:parameters()) do p:copy_(pattern(p.shape, t + k - 1)) end
    model(pattern({ 4, 2 }, t))
  end)
end

local function near(expected, module)
  local found = {}
  for _, t in ordered.pairs(module:state_dict()) do
    for _, v in ipairs(t:reshape(t:numel()):totable()) do found[#found + 1] = v end
  end
  assert.equal(#expected, #found)
  for i, v in ipairs(expected) do assert.near(v, found[i], 1e-12) end
end

local KINDS = {
  mean = {}, ["mean together"] = { multi_avg_fn = swa.get_swa_multi_avg_fn() },
  ema = { avg_fn = swa.get_ema_avg_fn(0.9) },
  ["ema together"] = { multi_avg_fn = swa.get_ema_multi_avg_fn(0.9) },
  buffers = { use_buffers = true },
  ["ema buffers"] = { multi_avg_fn = swa.get_ema_multi_avg_fn(0.75), use_buffers = true },
  own = { avg_fn = function(a, b, n) return (a * n + b) / 2 end },
}

describe("AveragedModel", function()
  for _, name in ipairs(ordered.sorted_keys(KINDS)) do
    it("averages as PyTorch does: " .. name, function()
      local model = net()
      local averaged = swa.AveragedModel(model, KINDS[name])
      for t = 0, 4 do
        advance(model, t)
        averaged:update_parameters(model)
      end
      near(reference.averages[name], averaged)
    end)
  end

  it("is called as the model is, holds no gradient of it, and comes back from a file", function()
    local model = nn.Linear(2, 1)
    local averaged = swa.AveragedModel(model)
    local x = core.ones(1, 2)
    assert.same(model(x):totable(), averaged(x):totable())
    model(x):sum():backward()
    averaged:update_parameters(model)
    assert.is_nil(averaged.module.weight.grad)
    assert.same({ "n_averaged", "module.weight", "module.bias" }, ordered.keys(averaged:state_dict()))
    local path = os.tmpname()
    utils.save(averaged:state_dict(), path)
    local other = swa.AveragedModel(nn.Linear(2, 1))
    other:load_state_dict(utils.load(path))
    os.remove(path)
    assert.same(averaged.module.weight:totable(), other.module.weight:totable())
    assert.equal(1, other.n_averaged:item())
  end)

  it("says what is wrong", function()
    assert.error_matches(function() swa.AveragedModel(5) end, "AveragedModel: expected a module, got 5")
    assert.error_matches(function()
      swa.AveragedModel(nn.Linear(1, 1), { avg_fn = print, multi_avg_fn = print })
    end, "give avg_fn or multi_avg_fn, not both")
    assert.error_matches(function() swa.get_ema_avg_fn(1.5) end, "get_ema_avg_fn: decay")
    local averaged = swa.AveragedModel(nn.Linear(2, 1), { avg_fn = function() end })
    assert.error_matches(function() averaged:update_parameters(nn.Linear(2, 1, { bias = false })) end,
      "the model has 1 parameters, the average has 2")
    assert.error_matches(function() averaged:update_parameters(nn.Linear(3, 1)) end,
      "parameters 1 of the model have")
    averaged:update_parameters(nn.Linear(2, 1))
    assert.error_matches(function() averaged:update_parameters(nn.Linear(2, 1)) end,
      "avg_fn must return a tensor")
  end)
end)

describe("update_bn", function()
  local function loader(batches)
    return {
      iter = function()
        local i = 0
        return function()
          i = i + 1
          return batches[i]
        end
      end,
    }
  end

  it("computes statistics as PyTorch does and restores modes and momenta", function()
    local model = net()
    advance(model, 0)
    model[1]:eval()
    swa.update_bn(loader { { pattern({ 4, 2 }, 0), 0 }, { pattern({ 4, 2 }, 1), 0 }, pattern({ 4, 2 }, 2) },
      model)
    near(reference.update_bn, model)
    assert.equal(0.1, model[2].momentum)
    assert.is_true(model.training)
    assert.is_false(model[1].training)
    local ok, err = pcall(swa.update_bn, loader { "text" }, model)
    assert.is_false(ok)
    assert.truthy(err:find("a batch must be a tensor", 1, true), err)
    assert.equal(0.1, model[2].momentum)
    swa.update_bn(loader { 5 }, nn.Linear(1, 1)) -- nothing to do
  end)

  it("knows the batch norms of all dims and ranks, and takes a list of batches", function()
    for _, case in ipairs { { nn.BatchNorm3d(2), { 3, 2, 2, 2, 2 } }, { nn.SyncBatchNorm(2), { 5, 2 } } } do
      local norm, shape = unpack(case)
      norm(core.randn(shape))
      local x = core.randn(shape)
      swa.update_bn({ x, { x * 3, 0 } }, nn.Sequential(norm))
      local means = x:transpose(1, 2):reshape(2, -1):mean(2) * 2
      for i = 1, 2 do assert.near(means[i]:item(), norm.running_mean[i]:item(), 1e-5) end
      assert.equal(2, norm.num_batches_tracked:item())
    end
    local ok, err = pcall(swa.update_bn, 3, nn.Sequential(nn.BatchNorm1d(2)))
    assert.is_false(ok)
    assert.truthy(err:find("update_bn: loader: expected a loader with iter(), or a list of batches, got 3", 1,
      true), err)
  end)
end)

describe("SWALR", function()
  it("moves learning rates as PyTorch does", function()
    for _, case in ipairs(reference.rates) do
      local strategy, epochs, expected = unpack(case)
      local function make()
        local optimizer = optim.SGD({ { params = { core.ones({ 1 }, { requires_grad = true }) }, lr = 1 },
          { params = { core.ones({ 1 }, { requires_grad = true }) }, lr = 0.5 } }, { lr = 1 })
        return optimizer,
          swa.SWALR(optimizer, { swa_lr = { 0.1, 0.2 }, anneal_epochs = epochs, anneal_strategy = strategy })
      end
      local optimizer, scheduler = make()
      for i, rates in ipairs(expected) do
        for k, rate in ipairs(rates) do assert.near(rate, scheduler:get_last_lr()[k], 1e-12) end
        if i == 4 then -- goes on from a saved state
          local state, groups = scheduler:state_dict(), optimizer:state_dict()
          optimizer, scheduler = make()
          optimizer:load_state_dict(groups)
          scheduler:load_state_dict(state)
        end
        for _, group in ipairs(optimizer.param_groups) do group.params[1].grad = core.ones(1) end
        optimizer:step()
        scheduler:step()
      end
    end
    assert.error_matches(function()
      swa.SWALR(optim.SGD({ core.ones({ 1 }, { requires_grad = true }) }, { lr = 1 }))
    end,
      "swa_lr")
  end)

  it("takes its arguments by position, in PyTorch's order, as averages and update_bn do", function()
    local optimizer = optim.SGD({ core.ones({ 1 }, { requires_grad = true }) }, { lr = 1 })
    local scheduler = swa.SWALR(optimizer, 0.5, 4, "linear")
    local rates = {}
    for i = 1, 5 do
      optimizer.param_groups[1].params[1].grad = core.ones(1)
      optimizer:step()
      scheduler:step()
      rates[i] = scheduler:get_last_lr()[1]
    end
    assert.same({ 0.875, 0.75, 0.625, 0.5, 0.5 }, rates)
    local model = net()
    local averaged = swa.AveragedModel(model, "cpu", swa.get_ema_avg_fn(0.5), nil, true)
    assert.is_true(averaged.use_buffers)
    assert.equal("function", type(averaged.avg_fn))
    swa.update_bn({ pattern({ 4, 2 }, 1) }, model, "cpu")
    assert.equal(1, model[2].num_batches_tracked:item())
  end)
end)
