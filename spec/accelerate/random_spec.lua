-- Seeds and generators on one process and on several.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

local utils = accelerate.utils

describe("synchronize_rng_state", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("gives every rank the state of rank 0's generators", function()
    ranks.ok(3, [[
      local utils = accelerate.utils
      local function agreed(value)
        local all = utils.gather_object { value }
        return all[1] == all[2] and all[1] == all[3]
      end
      core.manual_seed(40 + rank)
      local mine = core.Generator(50 + rank)
      check(not agreed(core.default_generator():get_state()) and not agreed(mine:get_state()))
      utils.synchronize_rng_state("generator", mine)
      check(agreed(mine:get_state()) and mine:initial_seed() == 50 and not agreed(core.default_generator():get_state()))
      core.rand(rank + 1, { generator = mine })
      utils.synchronize_rng_states({ "torch", "generator" }, mine)
      check(agreed(mine:get_state()) and agreed(core.default_generator():get_state()))
      check(agreed(core.rand(1):item()) and agreed(core.rand(1, { generator = mine }):item()))
    ]])
  end)

  it("happens at the start of each pass, as rng_types says", function()
    ranks.ok(2, [[
      local utils, data = accelerate.utils, accelerate.data
      local function same(value)
        local all = utils.gather_object { value }
        return all[1] == all[2]
      end
      local function default() return core.default_generator():get_state() end
      local set = data.TensorDataset(core.arange(8))
      for _, case in ipairs { { {}, false, false }, { { "generator" }, true, false }, { { "torch" }, false, true },
        { { "torch", "generator" }, true, true } } do
        local accelerator = accelerate.Accelerator { rng_types = case[1] }
        local mine = core.Generator(90 + rank)
        local loader = accelerator:prepare(data.DataLoader(set, { batch_size = 2, shuffle = true, generator = mine }))
        core.manual_seed(70 + rank)
        for _ = 1, 2 do
          for _ in loader:iter() do end
          check(same(mine:get_state()) == case[2] and same(default()) == case[3], table.concat(case[1], " "))
        end
        check(loader.synchronized_generator == mine)
      end
      -- a loader that has none to share is left alone
      local plain = accelerate.Accelerator { rng_types = { "generator" } }:prepare(data.DataLoader(set, { batch_size = 2 }))
      for _ in plain:iter() do end
      check(plain.synchronized_generator == nil)
      -- a stream's own generator
      local stream = { generator = core.Generator(60 + rank), iter = function(self)
        local i = 0
        return function() i = i + 1 if i <= 4 then return core.randint(0, 1000, { 1 }, { generator = self.generator }):item() end end
      end }
      local loader = accelerate.Accelerator { dispatch_batches = false }:prepare(data.DataLoader(stream, { batch_size = 2 }))
      check(loader.synchronized_generator == stream.generator)
      for _ in loader:iter() do end
      check(same(stream.generator:get_state()))
    ]])
  end)

  it("says what it cannot do", function()
    assert.error_matches(function() utils.synchronize_rng_state("generator") end,
      "synchronize_rng_state: generator is missing")
    assert.error_matches(function() utils.synchronize_rng_state("generator", core.ones(1)) end,
      "generator must be a Generator")
    assert.error_matches(function() utils.synchronize_rng_state("cuda") end,
      "'cuda' generators are not there yet, only the CPU's")
    assert.error_matches(function() utils.synchronize_rng_state("generater") end, "did you mean 'generator'")
    assert.error_matches(function() accelerate.Accelerator { rng_types = { "tosch" } } end,
      "did you mean 'torch'")
    utils.synchronize_rng_states({ "torch", "generator" }, core.Generator()) -- nothing to do on one process
  end)

  it("knows the names of all kinds", function()
    assert.are.equal("torch", utils.RNGType.TORCH)
    assert.are.equal("generator", utils.RNGType.GENERATOR)
    for _, name in ipairs { "cuda", "mlu", "sdaa", "musa", "npu", "xla", "xpu", "hpu", "neuron" } do
      assert.are.equal(name, utils.RNGType[name:upper()])
      assert.error_matches(function() accelerate.Accelerator { rng_types = { name } } end, "not there yet")
    end
    assert.error_matches(function() return utils.RNGType.TORSH end,
      "RNGType has no 'TORSH'; did you mean 'TORCH'")
  end)
end)

describe("a random sampler", function()
  it("without a generator has one of its own, seeded by the default one, which all ranks share in each pass",
    function()
    ranks.ok(2, [[
      local data = accelerate.data
      core.manual_seed(30 + rank)
      local before = core.default_generator():get_state()
      local loader = data.DataLoader(data.TensorDataset(core.arange(6)), { batch_size = 1, shuffle = true })
      check(core.default_generator():get_state() ~= before) -- its seed was drawn
      local seeds = accelerate.utils.gather_object { loader.sampler.generator:initial_seed() }
      check(seeds[1] ~= seeds[2])
      loader = accelerate.Accelerator():prepare(loader)
      before = core.default_generator():get_state()
      for _ = 1, 2 do
        local mine = {}
        for x in loader:iter() do mine[#mine + 1] = x:item() end
        local all = accelerate.utils.gather_object(mine)
        table.sort(all)
        check(table.concat(all, " ") == "0 1 2 3 4 5", table.concat(all, " "))
      end
      check(core.default_generator():get_state() == before) -- and passes draw nothing from the step's numbers
    ]])
  end)
end)

describe("set_seed", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("seeds tensors and math.random, with the rank added where asked", function()
    utils.set_seed(7)
    local a, b = core.rand(3):totable(), math.random()
    utils.set_seed(7, { deterministic = true })
    assert.are.same(a, core.rand(3):totable())
    assert.are.equal(b, math.random())
    assert.are.equal(7, core.default_generator():initial_seed())
    ranks.ok(2, [[
      local utils = accelerate.utils
      utils.set_seed(5)
      local all = utils.gather_object { core.rand(1):item(), math.random() }
      check(all[1] == all[3] and all[2] == all[4])
      utils.set_seed(5, { device_specific = true })
      check(core.default_generator():initial_seed() == 5 + rank)
      all = utils.gather_object { core.rand(1):item(), math.random() }
      check(all[1] ~= all[3] and all[2] ~= all[4])
    ]])
  end)

  it("refuses what is no seed", function()
    assert.error_matches(function() utils.set_seed() end, "set_seed: .*got nil")
    assert.error_matches(function() utils.set_seed(1.5) end, "set_seed: .*got 1.5")
    assert.error_matches(function() utils.set_seed(-1) end, "set_seed: .*got %-1")
    assert.error_matches(function() utils.set_seed(1, { device_specifik = true }) end,
      "did you mean 'device_specific'")
  end)
end)
