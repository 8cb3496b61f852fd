-- DeepSpeed on several ranks: equal training at every stage, and whole values in scopes.
local ranks = require "spec.support.ranks"

-- Trains with accumulation, clipping and a schedule, by the configuration's blocks; prints the
-- norms, the rates and the sum of all parameters.
local TRAIN = [[
local nn, data, tensor, utils = accelerate.nn, accelerate.data, accelerate.tensor, accelerate.utils
utils.set_seed(0)
local accelerator = accelerate.Accelerator { deepspeed_plugin = { hf_ds_config = {
  zero_optimization = { stage = tonumber(arg[1]) }, gradient_clipping = 0.5, gradient_accumulation_steps = 2,
  train_micro_batch_size_per_gpu = "auto", train_batch_size = 48,
  optimizer = { type = "AdamW", params = { lr = "auto", weight_decay = "auto" } },
  scheduler = { type = "WarmupDecayLR", params = { warmup_min_lr = "auto", warmup_max_lr = "auto",
    warmup_num_steps = "auto", total_num_steps = "auto" } } } } }
local model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
local set = data.TensorDataset(tensor.randn({ 96, 4 }), tensor.randn({ 96, 2 }))
local loader = data.DataLoader(set, { batch_size = 24 / ranks })
local optimizer = utils.DummyOptim(model:parameters(), { lr = 0.01, weight_decay = 0.1 })
local schedule = utils.DummyScheduler(optimizer, { total_num_steps = 20 * ranks, warmup_num_steps = 5 })
model, optimizer, loader, schedule = accelerator:prepare(model, optimizer, loader, schedule)
local norms, rates = {}, {}
for _ = 1, 4 do
  for x, y in loader:iter() do
    accelerator:accumulate(model, function()
      accelerator:backward(nn.functional.mse_loss(model(x), y))
      if accelerator.sync_gradients then
        norms[#norms + 1] = ("%.5f"):format(accelerator:clip_grad_norm_(model:parameters(), 0.5):item())
        rates[#rates + 1] = ("%.5f"):format(optimizer.param_groups[1].lr)
      end
      optimizer:step()
      schedule:step()
      optimizer:zero_grad()
    end)
  end
end
local sum = utils.summon_full_params(model, function()
  local all = 0
  for _, p in ipairs(model:parameters()) do all = all + p:detach():double():abs():sum():item() end
  return all
end)
accelerator:print(table.concat(norms, " "), table.concat(rates, " "), ("%.4f"):format(sum))
]]

describe("training under DeepSpeed", function()
  it("is the same at every stage, on one rank and on two", function()
    local expected = ranks.ok(1, TRAIN, { arguments = { "0" } })
    assert.matches("^0%.5%d+ 0%.9%d+ .*\t0%.00000 0%.00000 0%.00431 .*\t62%.", expected)
    for stage = 0, 3 do
      assert.are.equal(expected, (ranks.ok(2, TRAIN, { arguments = { tostring(stage) } })), "stage " .. stage)
    end
  end)

  it("checks train_batch_size against the ranks", function()
    local status, _, err = ranks.run(2, TRAIN:gsub("train_batch_size = 48", "train_batch_size = 40"),
      { arguments = { "2" } })
    assert.are_not.equal(0, status)
    assert.matches("train_batch_size = 40 %(hf_ds_config%), and train_micro_batch_size_per_gpu = 12 %(the " ..
      "loader's batch_size%) x gradient_accumulation_steps = 2 %(hf_ds_config%) x 2 ranks is 48", err)
  end)
end)

describe("a run under DeepSpeed that was saved", function()
  local RESUME = [[
    local nn, data, tensor, utils = accelerate.nn, accelerate.data, accelerate.tensor, accelerate.utils
    utils.set_seed(0)
    local accelerator = accelerate.Accelerator { deepspeed_plugin = { hf_ds_config = {
      zero_optimization = { stage = tonumber(arg[1]) }, gradient_clipping = 0.5,
      optimizer = { type = "AdamW", params = { lr = 0.01 } },
      scheduler = { type = "WarmupLR", params = { warmup_num_steps = 6 } } } } }
    local model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    local optimizer = utils.DummyOptim(model:parameters())
    local schedule = utils.DummyScheduler(optimizer)
    model, optimizer, schedule = accelerator:prepare(model, optimizer, schedule)
    local x, y = tensor.randn({ 4, 4 }) + rank, tensor.randn({ 4, 2 })
    local function train(steps)
      for _ = 1, steps do
        accelerator:backward(nn.functional.mse_loss(model(x), y))
        optimizer:step()
        schedule:step()
        optimizer:zero_grad()
      end
    end
    if arg[3] then accelerator:load_state(arg[2]) else train(2) accelerator:save_state(arg[2]) end
    train(2)
    local function sum()
      local all = 0
      for _, p in ipairs(model:parameters()) do all = all + p:detach():double():abs():sum():item() end
      return all
    end
    accelerator:print(("%.14g %.14g"):format(utils.summon_full_params(model, sum), schedule:get_last_lr()[1]))
  ]]

  it("goes on with the same bits, its schedule too, at every stage", function()
    for stage = 0, 3 do
      require("spec.support.host").in_folder(function(folder)
        local whole = ranks.ok(2, RESUME, { arguments = { tostring(stage), folder .. "/state" } })
        assert.matches("^%d+%.%d+ 0%.0077%d+\n$", whole)
        assert.are.equal(whole,
          (ranks.ok(2, RESUME, { arguments = { tostring(stage), folder .. "/state", "x" } })))
      end)
    end
  end)
end)

describe("GatheredParameters and summon_full_params", function()
  local SCOPES = [[
    local nn, utils = accelerate.nn, accelerate.utils
    utils.set_seed(1)
    local accelerator = accelerate.Accelerator { deepspeed_plugin = { hf_ds_config = {
      zero_optimization = { stage = tonumber(arg[1]) } } } }
    local cut = arg[1] == "3"
    local model = accelerator:prepare(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    local w, b = model[1].weight, model[2].bias
    local function fill(value) core.no_grad(w.fill_, w, value) end
    local function sum() return utils.GatheredParameters(w, function() return w:sum():item() end) end
  ]]

  it("give the whole values, and take one rank's changes for all", function()
    for _, stage in ipairs { "2", "3" } do
      ranks.ok(2, SCOPES .. [[
        local function count(...) return select("#", ...) end
        check(count(utils.GatheredParameters(w, function(...) return ... end, 1, nil)) == 2)
        utils.GatheredParameters({ w }, { modifier_rank = 1 }, function() fill(rank == 1 and 7 or 5) end)
        check(sum() == 63, "rank 1's values")
        check(w.shape[1] == 3 and w.shape[2] == 3)
      ]], { arguments = { stage } })
    end
  end)

  it("drop changes without a rank, or without writeback", function()
    ranks.ok(2, SCOPES .. [[
      local before = sum()
      utils.GatheredParameters(w, function() fill(1) end)
      check(sum() == before)
      utils.summon_full_params(model, { writeback = false }, function() fill(1) end)
      check(sum() == before)
      utils.summon_full_params(model, function() fill(2) end)
      check(sum() == 18)
    ]], { arguments = { "3" } })
  end)

  it("gather no more than the units of what is named, and release them after an error", function()
    ranks.ok(2, SCOPES .. [[
      local function other() return b:sum():item() end
      local inside = utils.GatheredParameters(w, function() return (pcall(other)) end)
      check(not inside, "the other unit is not gathered")
      local fine, message = pcall(utils.GatheredParameters, w, function() error "inside" end)
      check(not fine and message:find "inside")
      fine, message = pcall(function() return w:sum():item() end)
      check(not fine and message:find "inside accelerate.utils.summon_full_params", message)
    ]], { arguments = { "3" }, env = { ACCEL_SHARED_PARAMETERS = "0" } })
  end)

  it("name wrong arguments", function()
    ranks.ok(2, SCOPES .. [[
      for _, case in ipairs {
        { "modifier_rank = 2: ranks are 0 to 1", utils.GatheredParameters, { w },
          { modifier_rank = 2 }, print },
        { "entry 1 of params must be a tensor, got 'w'", utils.GatheredParameters, { "w" }, print },
        { "summon_full_params: expected a module, got 3", utils.summon_full_params, 3, print },
      } do
        local fine, message = pcall(unpack(case, 2, 6))
        check(not fine and message:find(case[1], 1, true), message)
      end
      check(utils.GatheredParameters(w, { enabled = false }, function() return 5 end) == 5)
    ]], { arguments = { "3" } })
  end)
end)
