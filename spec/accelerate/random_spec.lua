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
      check(agreed(mine:get_state()) and mine:initial_seed() == 50
        and not agreed(core.default_generator():get_state()))
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
      for _, case in ipairs { { {}, false, false }, { { "generator" }, true, false },
        { { "torch" }, false, true },
        { { "torch", "generator" }, true, true } } do
        local accelerator = accelerate.Accelerator { rng_types = case[1] }
        local mine = core.Generator(90 + rank)
        local loader = accelerator:prepare(data.DataLoader(set,
          { batch_size = 2, shuffle = true, generator = mine }))
        core.manual_seed(70 + rank)
        for _ = 1, 2 do
          for _ in loader:iter() do end
          check(same(mine:get_state()) == case[2] and same(default()) == case[3], table.concat(case[1], " "))
        end
        check(loader.synchronized_generator == mine)
      end
      -- a loader that has none to share is left alone
      local plain = accelerate.Accelerator { rng_types = { "generator" } }:prepare(data.DataLoader(set,
        { batch_size = 2 }))
      for _ in plain:iter() do end
      check(plain.synchronized_generator == nil)
      -- a stream's own generator
      local stream = { generator = core.Generator(60 + rank), iter = function(self)
        local i = 0
        return function()
          i = i + 1
          if i <= 4 then return core.randint(0, 1000, { 1 }, { generator = self.generator }):item() end
        end
      end }
      local loader = accelerate.Accelerator { dispatch_batches = false }:prepare(data.DataLoader(stream,
        { batch_size = 2 }))
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
    assert.error_matches(function() utils.synchronize_rng_state("xpu") end,
      "'xpu' generators are not there yet, only the CPU's")
    assert.error_matches(function() utils.synchronize_rng_state("generater") end, "did you mean 'generator'")
    assert.error_matches(function() accelerate.Accelerator { rng_types = { "tosch" } } end,
      "did you mean 'torch'")
    utils.synchronize_rng_states({ "torch", "generator" }, core.Generator()) -- nothing to do on one process
  end)

  it("makes the one generator of the CPU and of GPUs equal for 'cuda'", function()
    require("spec.support.ranks").ok(2, [[
      accelerate.Accelerator { rng_types = { "cuda" } }
      core.manual_seed(rank)
      accelerate.utils.synchronize_rng_states { "cuda" }
      local mine = core.rand(1)
      check(core.dist.all_gather(mine):reshape(-1):unique():numel() == 1)
    ]])
    assert.are.equal("cuda", utils.RNGType.CUDA)
  end)

  it("knows the names of all kinds", function()
    assert.are.equal("torch", utils.RNGType.TORCH)
    assert.are.equal("generator", utils.RNGType.GENERATOR)
    for _, name in ipairs { "mlu", "sdaa", "musa", "npu", "xla", "xpu", "hpu", "neuron" } do
      assert.are.equal(name, utils.RNGType[name:upper()])
      assert.error_matches(function() accelerate.Accelerator { rng_types = { name } } end, "not there yet")
    end
    assert.error_matches(function() return utils.RNGType.TORSH end,
      "RNGType has no 'TORSH'; did you mean 'TORCH'")
  end)
end)

describe("a random sampler", function()
  it("without a generator follows the default one's seed, and all ranks share rank 0's order in each pass",
    function()
    ranks.ok(2, [[
      local data = accelerate.data
      core.manual_seed(30 + rank)
      local before = core.default_generator():get_state()
      local loader = data.DataLoader(data.TensorDataset(core.arange(6)), { batch_size = 1, shuffle = true })
      local order = {}
      for x in loader:iter() do order[#order + 1] = x:item() end
      check(core.default_generator():get_state() == before) -- nothing was drawn
      local orders = accelerate.utils.gather_object { table.concat(order, " ") }
      check(orders[1] ~= orders[2])
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

  local function order_of(sampler)
    local list = {}
    for position in sampler:iter() do list[#list + 1] = position end
    return table.concat(list, " ")
  end

  it("reads the seed when a pass begins; draws before, between and after change nothing", function()
    local sampler = accelerate.data.RandomSampler(40) -- before the seeding
    core.manual_seed(21)
    local first, second = order_of(sampler), order_of(sampler)
    assert.are_not.equal(first, second)
    core.manual_seed(21)
    core.rand(5)
    local late = accelerate.data.RandomSampler(40)
    assert.are.equal(first, order_of(late))
    core.randn(3)
    assert.are.equal(second, order_of(late))
    core.manual_seed(22)
    assert.are_not.equal(first, order_of(late))
    core.manual_seed(21)
    assert.are.equal(first, order_of(sampler)) -- another one was used last
    assert.are_not.equal(first, order_of(late)) -- two samplers have different orders
  end)

  it("with a generator or a seed of its own takes no notice of manual_seed", function()
    for _, opts in ipairs { { seed = 4 }, { generator = core.Generator(4) } } do
      core.manual_seed(1)
      local sampler = accelerate.data.RandomSampler(30, opts)
      local first = order_of(sampler)
      core.manual_seed(1)
      assert.are_not.equal(first, order_of(sampler))
      sampler:set_epoch(0)
      assert.are.equal(first, order_of(sampler))
    end
  end)

  it("goes on with the pass that was saved, whatever was seeded since", function()
    local accelerator = accelerate.Accelerator()
    local function loader()
      return accelerator:prepare(accelerate.data.DataLoader(accelerate.data.TensorDataset(core.arange(20)),
        { batch_size = 2, shuffle = true }))
    end
    local function rest(made)
      local list = {}
      for x in made:iter() do list[#list + 1] = table.concat(x:totable(), " ") end
      return list
    end
    core.manual_seed(3)
    local one, found, list = loader(), nil, {}
    for x in one:iter() do
      list[#list + 1] = table.concat(x:totable(), " ")
      if #list == 4 then found = one:state_dict() end
    end
    local after = rest(one)
    for _, seed_first in ipairs { true, false } do
      local again
      if seed_first then core.manual_seed(8) end
      again = loader()
      again:load_state_dict(found)
      if not seed_first then core.manual_seed(8) end
      assert.are.same({ unpack(list, 5) }, rest(again))
      assert.are.same(after, rest(again))
    end
  end)
end)

describe("an unseeded run", function()
  it("draws different numbers on each rank, as rank 0 does alone, until it is seeded", function()
    local alone = ranks.ok(1,
      [[print(core.rand(1):item(), math.random(), core.default_generator():initial_seed())]])
    local out = ranks.ok(3, [[
      local r, m = core.rand(1):item(), math.random()
      local state = core.default_generator():get_state()
      local next_one = core.rand(1):item()
      local all = accelerate.utils.gather_object { { r, m } }
      for a = 1, 3 do
        for b = a + 1, 3 do check(all[a][1] ~= all[b][1] and all[a][2] ~= all[b][2]) end
      end
      core.default_generator():set_state(state) -- which is the rank's own
      check(core.rand(1):item() == next_one)
      if rank == 0 then print(r, m, core.default_generator():initial_seed()) end
      accelerate.tensor.manual_seed(7)
      all = accelerate.utils.gather_object { { core.rand(1):item(), math.random() } }
      check(all[1][1] == all[2][1] and all[2][1] == all[3][1])
      check(all[1][2] == all[2][2] and all[2][2] == all[3][2])
    ]])
    assert.are.equal(alone, out)
  end)

  it("gives all ranks rank 0's numbers where the default generators are made equal", function()
    ranks.ok(2, [[
      core.rand(rank)
      accelerate.utils.synchronize_rng_state("torch")
      local all = accelerate.utils.gather_object { core.rand(1):item() }
      check(all[1] == all[2])
    ]])
  end)

  it("initialises, splits and shuffles alike on any number of ranks", function()
    local script = [[
      local nn, data = accelerate.nn, accelerate.data
      local model = nn.Sequential(nn.Linear(3, 2), nn.Embedding(2, 2), nn.GRU(2, 2))
      local set = data.TensorDataset(core.arange(30))
      local words = {}
      for _, p in ipairs(model:parameters()) do words[#words + 1] = text(p:flatten()) end
      words[#words + 1] = table.concat(data.random_split(set, { 9, 21 }).indices, " ")
      words[#words + 1] = table.concat(set:shuffle().indices, " ")
      for x in data.DataLoader(set, { batch_size = 30, shuffle = true }):iter() do
        words[#words + 1] = text(x)
      end
      local mine = table.concat(words, ";")
      for _, other in ipairs(accelerate.utils.gather_object { mine }) do check(mine == other) end
      if rank == 0 then print(mine) end
    ]]
    local alone = ranks.ok(1, script)
    assert.is_true(#alone > 100)
    assert.are.equal(alone, ranks.ok(2, script))
    assert.are.equal(alone, ranks.ok(3, script))
  end)

  it("drops out different elements on each rank", function()
    ranks.ok(2, [[
      for _, seed in ipairs { false, 5 } do
        if seed then core.manual_seed(seed) end
        local all = accelerate.utils.gather_object { text(core.ones(64):dropout { p = 0.5 }) }
        check(all[1] ~= all[2])
      end
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
