-- lua/accelerate/utils/enumerable.lua and containers: `#`, `[i]`, ipairs and pairs.
local accelerate = require "accelerate"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local data = require "accelerate.data"
local sharding = require "accelerate.data_loader.shard_samplers"
local raises = require("spec.support.messages").raises

-- What a walk gives, as a list of { first, second, ... }.
local function walk(...)
  local list = {}
  local function add(...)
    if (...) == nil then return false end
    list[#list + 1] = { ... }
    return true
  end
  local nexts, state, control = ...
  while add(nexts(state, control)) do control = list[#list][1] end
  return list
end

local function column(list, k)
  local values = {}
  for i, item in ipairs(list) do values[i] = item[k] end
  return values
end

describe("a container of modules", function()
  local function layers() return { nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2) } end

  it("that is a list is walked by ipairs and pairs, and counted by #", function()
    for _, Class in ipairs { nn.ModuleList, nn.Sequential } do
      local list = layers()
      local container = Class == nn.Sequential and Class(unpack(list)) or Class(list)
      assert.equal(3, #container)
      for _, walker in ipairs { ipairs, pairs } do
        local seen = walk(walker(container))
        assert.same({ 1, 2, 3 }, column(seen, 1))
        for i = 1, 3 do assert(rawequal(list[i], seen[i][2])) end
      end
      assert(rawequal(list[1], container[1]) and rawequal(list[3], container[-1]))
      assert.is_nil(container[4])
      container[#container + 1] = nn.Tanh()
      assert.equal(4, #container)
      assert.equal(4, #walk(ipairs(container)))
      if container then assert.is_table(container) end -- having a length does not make it false
    end
    assert.equal(0, #nn.ModuleList())
    assert.same({}, walk(ipairs(nn.ModuleList())))
  end)

  it("runs every layer of a forward that loops over it", function()
    local Net = nn.class("Net")
    function Net:init()
      self.layers = nn.ModuleList()
      for _ = 1, 3 do self.layers:append(nn.Linear(2, 2)) end
    end
    function Net:forward(x)
      for _, layer in ipairs(self.layers) do x = layer(x) end
      return x
    end
    local net, x = Net(), tensor.ones(1, 2)
    local expected = net.layers[3](net.layers[2](net.layers[1](x)))
    assert.equal(0, (net(x) - expected):abs():sum():item())
    net(x):sum():backward()
    for _, p in ipairs(net:parameters()) do assert(p.grad) end
  end)

  it("derived by a user keeps all that", function()
    local Stack = nn.class("Stack", nn.ModuleList)
    local stack = Stack(layers())
    assert.equal(3, #stack)
    assert.same({ 1, 2, 3 }, column(walk(ipairs(stack)), 1))
  end)

  it("by name is walked in order of registration", function()
    local dict = nn.ModuleDict { { "zebra", nn.Linear(1, 2) }, { "ant", nn.ReLU() } }
    assert.equal(2, #dict)
    local seen = walk(pairs(dict))
    assert.same({ "zebra", "ant" }, column(seen, 1))
    assert(rawequal(dict.zebra, seen[1][2]) and rawequal(dict.ant, seen[2][2]))
    seen = walk(ipairs(dict))
    assert.same({ 1, 2 }, column(seen, 1))
    assert(rawequal(dict.zebra, seen[1][2]) and rawequal(dict.ant, seen[2][2]))
  end)
end)

describe("a container of parameters", function()
  it("that is a list is walked by ipairs and pairs, and counted by #", function()
    local list = nn.ParameterList { tensor.ones(1), tensor.ones(2), tensor.ones(3) }
    assert.equal(3, #list)
    for _, walker in ipairs { ipairs, pairs } do
      local seen = walk(walker(list))
      assert.same({ 1, 2, 3 }, column(seen, 1))
      for i = 1, 3 do assert(rawequal(list[i], seen[i][2])) end
    end
    assert.equal(3, list[-1]:numel())
  end)

  it("by name is walked in order of registration", function()
    local dict = nn.ParameterDict { { "b", tensor.ones(1) }, { "a", tensor.ones(2) } }
    assert.equal(2, #dict)
    assert.same({ "b", "a" }, column(walk(pairs(dict)), 1))
    assert.equal(2, walk(ipairs(dict))[2][2]:numel())
  end)
end)

describe("a data set", function()
  local x = tensor.arange(6):to("float32"):reshape(3, 2)
  local y = tensor.arange(3)

  it("has [i], #, ipairs and pairs", function()
    local set = data.TensorDataset(x, y)
    assert.equal(3, #set)
    assert.same({ { 2, 3 }, 1 }, { set[2][1]:tolist(), set[2][2]:item() })
    assert.equal(2, set[-1][2]:item())
    assert.is_nil(set[4])
    for _, at in ipairs { 0, 5, -4, 1.5 } do
      raises("TensorDataset: position " .. at .. " is out of range: it has 3 items",
        function() return set[at] end)
    end
    for _, walker in ipairs { ipairs, pairs } do
      local seen = walk(walker(set))
      assert.same({ 1, 2, 3 }, column(seen, 1))
      assert.same({ 4, 5 }, seen[3][2]:tolist())
      assert.equal(2, seen[3][3]:item())
    end
    assert.same({ 2, 3 }, data.TensorDataset(x)[2]:tolist()) -- one part: no list
  end)

  it("made of others has them too", function()
    local Tens = data.class("Tens")
    function Tens:len() return 4 end
    function Tens:get(i) return 10 * i end
    local set = Tens()
    assert.same({ 4, 30 }, { #set, set[3] })
    local part = data.Subset(set, { 4, 1 })
    assert.same({ { 1, 40 }, { 2, 10 } }, walk(ipairs(part)))
    assert.same({ 6, 10, 10 }, { #data.ConcatDataset { set, part }, data.ConcatDataset({ set, part })[1],
      data.ConcatDataset({ set, part })[6] })
    assert.same({ 3, 90 },
      { #set:map(function(v) return 3 * v end):take(3), set:map(function(v) return 3 * v end)[3] })
    local columns = data.Dataset.from_table { id = { 7, 8 } }
    assert.same({ 2, 8, 7 }, { #columns, columns[2].id, walk(ipairs(columns))[1][2].id })
    local splits = data.DatasetDict { train = set, test = part }
    assert.equal(2, #splits)
    assert.same({ "test", "train" }, column(walk(pairs(splits)), 1))
  end)

  it("of a user's class has them, also where it keeps its samples in itself", function()
    local Squares = data.class("Squares")
    function Squares:init(n) self.n = n end
    function Squares:len() return self.n end
    function Squares:get(i) return i * i end
    assert.same({ 4, 9, 16 }, { #Squares(4), Squares(4)[3], Squares(4)[-1] })
    assert.same({ { 1, 1 }, { 2, 4 } }, walk(ipairs(Squares(2))))

    local Own = data.class("Own")
    function Own:init(...) for i, v in ipairs { ... } do self[i] = v end end
    function Own:len() return #self end
    function Own:get(i) return self[i] end
    assert.same({ 2, 2, 6 }, { #Own(5, 6), Own(5, 6):len(), Own(5, 6)[2] })
    assert.same({ 0, 0 }, { #Own(), Own():len() })
    assert.same({ { 1, 5 }, { 2, 6 } }, walk(ipairs(Own(5, 6))))

    local Failing = data.class("Failing")
    function Failing:get() end
    raises("#: the length of this Failing is not known, for it has no len()",
      function() return #Failing() end)
    function Failing:len() error("no length today") end
    raises("no length today", function() return #Failing() end)
    raises("no length today", function() return #Failing() end) -- the failure left nothing behind
  end)

  it("that is a stream is counted where it has len(), and walked", function()
    local Words = data.class("Words", data.IterableDataset)
    function Words:iter() return ipairs { "a", "b" } end
    assert.same({ { 1, 1, "a" }, { 2, 2, "b" } }, walk(ipairs(Words())))
    assert.same({ { 1, 1, "a" } }, walk(pairs(Words():take(1))))
    raises("#: the length of this Words is not known", function() return #Words() end)
    function Words:len() return 2 end
    assert.same({ 2, 1 }, { #Words(), #Words():take(1) })
  end)
end)

describe("a loader", function()
  local x = tensor.arange(10):to("float32")
  local set = data.TensorDataset(x, x * 2)

  local function check(loader)
    assert.equal(4, #loader)
    for _, walker in ipairs { ipairs, pairs } do
      local n = 0
      for i, a, b in walker(loader) do
        n = n + 1
        assert.equal(n, i)
        assert.equal(3 * (n - 1), a[1]:item())
        assert.equal(6 * (n - 1), b[1]:item())
      end
      assert.equal(4, n)
    end
  end

  it("is enumerated by ipairs and pairs, and counted by #",
    function() check(data.DataLoader(set, { batch_size = 3 })) end)

  it("that is prepared is too",
    function()
      check(accelerate.Accelerator { cpu = true }:prepare(data.DataLoader(set, { batch_size = 3 })))
    end)

  it("that skips batches is too", function()
    local accelerator = accelerate.Accelerator { cpu = true }
    for _, loader in ipairs { data.DataLoader(set, { batch_size = 3 }),
      (accelerator:prepare(data.DataLoader(set, { batch_size = 3 }))) } do
      local late = accelerator:skip_first_batches(loader, 1)
      assert.equal(3, #late)
      local seen = walk(ipairs(late))
      assert.same({ 1, 2, 3 }, column(seen, 1))
      assert.equal(3, seen[1][2][1]:item())
    end
  end)

  it("over a stream without len() has no #", function()
    local Words = data.class("Words", data.IterableDataset)
    function Words:iter() return ipairs { "a", "b" } end
    raises("the length is not known", function() return #data.DataLoader(Words(), { batch_size = 1 }) end)
  end)

  it("knows its last batch when it is enumerated", function()
    local accelerator = accelerate.Accelerator { cpu = true, gradient_accumulation_steps = 3 }
    local model = accelerator:prepare(nn.Linear(1, 1))
    local loader, synced = accelerator:prepare(data.DataLoader(set, { batch_size = 3 })), {}
    for i in ipairs(loader) do
      accelerator:accumulate(model, function() synced[i] = accelerator.sync_gradients end)
    end
    assert.same({ false, false, true, true }, synced)
  end)
end)

describe("a sampler", function()
  it("has #, ipairs and pairs", function()
    for _, sampler in ipairs { data.SequentialSampler(4), data.RandomSampler(4),
      data.SubsetRandomSampler { 1, 2, 3, 4 },
      data.WeightedRandomSampler({ 1, 1 }, 4), data.DistributedSampler(4, { num_replicas = 1, rank = 0 }) } do
      assert.equal(4, #sampler)
      assert.same({ 1, 2, 3, 4 }, column(walk(ipairs(sampler)), 1))
      assert.equal(4, #walk(pairs(sampler)))
    end
    assert.same({ { 1, 1 }, { 2, 2 } }, walk(ipairs(data.SequentialSampler(2))))
  end)

  it("of batches has them, shared out and skipped too", function()
    local batches = data.BatchSampler(data.SequentialSampler(6), { batch_size = 2 })
    assert.equal(3, #batches)
    assert.same({ { 1, { 1, 2 } }, { 2, { 3, 4 } }, { 3, { 5, 6 } } }, walk(ipairs(batches)))
    assert.same({ { 1, { 3, 4 } }, { 2, { 5, 6 } } }, walk(ipairs(sharding.SkipBatchSampler(batches, 1))))
    local shard = sharding.BatchSamplerShard(batches, { num_processes = 2, process_index = 1 })
    assert.equal(2, #shard)
    assert.same({ 1, 2 }, column(walk(ipairs(shard)), 1))
  end)
end)
