--- Embedding { sparse = true }, SparseAdam and what else meets sparse gradients: 20 steps beside
--- PyTorch's, resumed in the middle; what refuses them.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local raises = require("spec.support.messages").raises
local weighted_sum = require("spec.support.trajectories").weighted_sum

local function count_of(shape) return shape[1] * (shape[2] or 1) end
local function pattern(shape, a, b)
  local list = {}
  for i = 0, count_of(shape) - 1 do list[i + 1] = ((i * a + b) % 17 - 8) / 16 end
  return core.tensor(list, { dtype = "float64" }):view(shape)
end
local function ids(shape, a, b, m)
  local list = {}
  for i = 0, count_of(shape) - 1 do list[i + 1] = (i * a + b) % m end
  return core.tensor(list, { dtype = "int64" }):view(shape)
end

local function modules(mode, sparse)
  local e = nn.Embedding(9, 3, { padding_idx = 2, sparse = sparse, dtype = "float64" })
  local bag = nn.EmbeddingBag(8, 3, { mode = mode, sparse = sparse, padding_idx = 1, dtype = "float64" })
  e.weight.data:copy_(pattern({ 9, 3 }, 5, 1))
  bag.weight.data:copy_(pattern({ 8, 3 }, 7, 2))
  return e, bag
end

local OFFSETS = core.tensor({ 0, 2, 2, 4 }, { dtype = "int64" })
local function loss_of(e, bag, t)
  local x = ids({ 4, 2 }, 3, t, 9):narrow(2, 1, 1 + t % 2)
  local y = bag(ids({ 5 }, 5, 2 * t, 8), OFFSETS)
  local loss = (e(x):sum(2) + y - pattern({ 4, 3 }, 3, t)):square():mean()
  if t % 4 == 0 then loss = loss + e(ids({ 3 }, 2, t, 9)):square():sum() end
  return loss
end

-- What PyTorch gives after each step.
local CASES = {
  plain = { "SparseAdam", {}, "mean", { -0.02993466048503, -0.03272143209714, -0.0348467006571,
    -0.03719885600202, -0.03762095359056, -0.03837111728831, -0.04128152474781, -0.04267225018028,
    -0.04181006196148, -0.04455697159862, -0.04483327016649, -0.04411529274509, -0.04542712598476,
    -0.04637758890353, -0.04632284916549, -0.04700380267493, -0.04666225753017, -0.04680059708994,
    -0.05013501848228, -0.05033758008337 } },
  options = { "SparseAdam", { lr = 0.05, betas = { 0.8, 0.95 }, eps = 1e-4 }, "sum", { -0.1784156413734,
    -0.3134897338343, -0.4313413159922, -0.5352564673737, -0.5387835031881, -0.5753912188245,
    -0.6927853674966, -0.7526807022402, -0.645456689697, -0.727636639002, -0.6920238480975,
    -0.5791742973805, -0.5725645085976, -0.5634697775465, -0.5404833325443, -0.5306142426656,
    -0.491746769056, -0.488720954254, -0.5881122355826, -0.6227412487302 } },
  maximize = { "SparseAdam", { lr = 0.02, maximize = true }, "mean", { 0.08510625317882, 0.1407592163788,
    0.2064897464963, 0.2553277639341, 0.2656216080851, 0.2854843543882, 0.3515772152277, 0.3804484803155,
    0.3692021287784, 0.4341950666399, 0.4489426968258, 0.4406808473813, 0.4765924735681, 0.5063627250251,
    0.514723060866, 0.5345822222555, 0.5364015991798, 0.5495509455898, 0.6310953354904, 0.6412687917564 } },
  sgd = { "SGD", { lr = 0.3 }, "sum", { -0.2773097826087, -0.380808423913, -0.526832201087, -0.5906529891304,
    -0.5144063179348, -0.5036400832201, -0.5930831005435, -0.6443167168818, -0.4776163493546,
    -0.5158204992026, -0.4234087962846, -0.4585702122135, -0.4478006339549, -0.5063386790858,
    -0.4893205465211, -0.4500158069542, -0.4390923462079, -0.5020019010471, -0.6547895195164,
    -0.7369920590112 } },
  adagrad = { "Adagrad", { lr = 0.1 }, "mean", { -0.5722826048332, -0.7661068226185, -0.8589042434246,
    -0.8506320686806, -0.6539242631188, -0.5105149656695, -0.6549856027217, -0.6712829707463,
    -0.5440696125587, -0.5481465141815, -0.3340460389631, -0.2452863494708, -0.2170842067653,
    -0.2743457267244, -0.3518697471597, -0.2792012181645, -0.255065612413, -0.304126482741,
    -0.4483732542752, -0.5708941453646 } },
  adagrad_options = { "Adagrad", { lr = 0.2, lr_decay = 0.1, eps = 1e-06, initial_accumulator_value = 0.3 },
    "sum", { -0.3005518024541, -0.4105082160395, -0.5478697622791, -0.5334275506425, -0.4661444024186,
    -0.4536319350984, -0.5211729976596, -0.5282123656418, -0.4186239122606, -0.4495740275743,
    -0.3953992868805, -0.3984599483177, -0.4141504288305, -0.4364852893429, -0.4388189855372,
    -0.4349196112642, -0.420886871678, -0.4396601986857, -0.5158734604947, -0.5377676245139 } },
  adagrad_maximize = { "Adagrad", { lr = 0.02, maximize = true }, "sum", { 0.03641304364624,
    0.08445322915284, 0.1474489807528, 0.1651044560015, 0.1394463350618, 0.1436950450223, 0.2101663930876,
    0.2101221761244, 0.1655527654068, 0.2129797299627, 0.2058283870351, 0.2166707000146, 0.2477023068697,
    0.2737507277898, 0.2936374388682, 0.3056024392731, 0.3017549346815, 0.3120153411709, 0.3846497226482,
    0.3838165465797 } },
}

-- Trains for 20 steps; resumed before the step `resume_at`.
local function run(case, resume_at)
  local e, bag = modules(case[3], true)
  local function make() return optim[case[1]]({ e.weight, bag.weight }, case[2]) end
  local optimizer, out = make(), {}
  for t = 1, 20 do
    if t == resume_at then
      local saved = optimizer:state_dict()
      optimizer = make()
      optimizer:load_state_dict(saved)
    end
    optimizer:zero_grad()
    loss_of(e, bag, t):backward()
    optimizer:step()
    out[t] = weighted_sum { e.weight, bag.weight }
  end
  return out, optimizer
end

describe("sparse gradients", function()
  for name, case in pairs(CASES) do
    it("give PyTorch's 20 steps: " .. name, function()
      local got = run(case)
      for t, expected in ipairs(case[4]) do
        assert.is_true(math.abs(got[t] - expected) < 1e-12 * math.max(1, math.abs(expected)),
          ("step %d: got %.13g, PyTorch %.13g"):format(t, got[t], expected))
      end
    end)
    it("continue to the same bits after a state_dict: " .. name, function()
      assert.are.same(run(case), (run(case, 8)))
    end)
  end

  it("are sparse tensors with the rows that were read, without the padding", function()
    local e = nn.Embedding(9, 3, { padding_idx = 2, sparse = true })
    assert.is_nil(e.weight.grad)
    e(ids({ 2, 2 }, 1, 1, 9)):sum():backward() -- 1, 2, 3, 4
    e(ids({ 2 }, 3, 1, 9)):sum():backward() -- 1, 4
    local g = e.weight.grad
    assert.is_true(g.is_sparse)
    assert.are.same({ 9, 3 }, g.shape)
    assert.are.same({ { 1, 3, 4 } }, g:coalesce():indices():totable())
    assert.are.same({ { 2, 2, 2 }, { 1, 1, 1 }, { 2, 2, 2 } }, g:coalesce():values():totable())
    e.weight.grad = nil
    assert.is_nil(e.weight.grad)
    for _, clear in ipairs { function() e:zero_grad() end, function() e:zero_grad { set_to_none = false } end,
      function() optim.SGD(e:parameters(), {}):zero_grad() end,
      function() optim.SparseAdam(e:parameters(), {}):zero_grad(false) end } do
      e(ids({ 2 }, 3, 1, 9)):sum():backward()
      assert.is_not_nil(e.weight.grad)
      clear()
      assert.is_nil(e.weight.grad)
    end
  end)

  it("equal the dense ones", function()
    for _, mode in ipairs { "sum", "mean" } do
      local e, bag = modules(mode, true)
      local d, dense_bag = modules(mode, false)
      for t = 3, 4 do
        loss_of(e, bag, t):backward()
        loss_of(d, dense_bag, t):backward()
      end
      assert.is_true(e.weight.grad:to_dense():allclose(d.weight.grad))
      assert.is_true(bag.weight.grad:to_dense():allclose(dense_bag.weight.grad))
    end
  end)

  it("are not there without gradients, and leave nothing behind when no backward runs", function()
    local e = nn.Embedding(4, 2, { sparse = true })
    for _ = 1, 3 do e(ids({ 3 }, 1, 0, 4)) end
    assert.is_nil(e.weight.grad)
    core.no_grad(function() assert.is_false(e(ids({ 3 }, 1, 0, 4)).requires_grad) end)
    local frozen = nn.Embedding.from_pretrained(core.ones(4, 2), { sparse = true })
    assert.is_false(frozen(ids({ 3 }, 1, 0, 4)).requires_grad)
    assert.is_true(frozen.sparse)
  end)

  it("save what PyTorch saves", function()
    local _, optimizer = run(CASES.plain)
    local dict = optimizer:state_dict()
    assert.are.equal(20, dict.state[0].step)
    assert.are.same({ 9, 3 }, dict.state[0].exp_avg.shape)
    assert.are.same({ 8, 3 }, dict.state[1].exp_avg_sq.shape)
    assert.are.same({ betas = { 0.9, 0.999 }, eps = 1e-8, lr = 1e-3, maximize = false, params = { 0, 1 } },
      dict.param_groups[1])
  end)

  it("are refused where they would be lost", function()
    local e = nn.Embedding(9, 3, { sparse = true })
    local params = e:parameters()
    local function look() e(ids({ 2 }, 3, 1, 9)):sum():backward() end
    look()
    raises("AdamW: parameter 1 has a sparse gradient", function() optim.AdamW(params):step() end)
    raises("SGD: parameter 1 has a sparse gradient",
      function() optim.SGD(params, { momentum = 0.9 }):step() end)
    raises("Adagrad: parameter 1 has a sparse gradient",
      function() optim.Adagrad(params, { weight_decay = 0.1 }):step() end)
    raises("clip_grad_norm_: parameter 1 has a sparse gradient", nn.utils.clip_grad_norm_, params, 1)
    raises("clip_grad_value_: parameter 1 has a sparse gradient", nn.utils.clip_grad_value_, params, 1)
    e:zero_grad()
    optim.AdamW(params):step()
    local w = nn.Parameter(core.ones(2, 2))
    w:sum():backward()
    raises("SparseAdam: parameter 1 of group 1 has a dense gradient: give it to Adam",
      function() optim.SparseAdam({ w }):step() end)
    raises("option 'lr' must be above 0, got 0", optim.SparseAdam, { w }, { lr = 0 })
    raises("betas[2] must be", optim.SparseAdam, { w }, { betas = { 0.9, 1 } })
    raises("scale_grad_by_freq does not go with sparse", nn.Embedding, 3, 3,
      { sparse = true, scale_grad_by_freq = true })
    raises("not with max", nn.EmbeddingBag, 3, 3, { sparse = true, mode = "max" })
    raises("must be a leaf", nn.functional.embedding, ids({ 2 }, 1, 0, 2), w * 2, { sparse = true })
    raises("expected int64 or int32 numbers of rows", nn.functional.embedding, w, w, { sparse = true })
    raises("outside 0..1", nn.functional.embedding, ids({ 2 }, 1, 5, 9), w, { sparse = true })
  end)

  it("are refused on several ranks, whose gradients would differ", function()
    local status, out, err = require("spec.support.ranks").run(2, [[
      local nn = require "accelerate.nn"
      local accelerator = accelerate.Accelerator {}
      local model = nn.Sequential(nn.Embedding(20, 4, { sparse = true }))
      local ok, message = pcall(accelerator.prepare, accelerator, model)
      local text = "prepare_model: 0 has sparse gradients, which are not reduced over ranks"
      check(not ok and message:find(text, 1, true), tostring(message))
    ]])
    assert.are.equal(0, status, out .. err)
  end)

  it("print as PyTorch does", function()
    assert.are.equal("Embedding(9, 3, padding_idx=2, sparse=True)",
      tostring(nn.Embedding(9, 3, { padding_idx = 2, sparse = true })))
    assert.are.equal("EmbeddingBag(8, 3, mode='mean')", tostring(nn.EmbeddingBag(8, 3, { sparse = true })))
  end)

  it("train a prepared model on one rank", function()
    local accelerator = accelerate.Accelerator {}
    local model = nn.Sequential(nn.Embedding(20, 4, { sparse = true }), nn.Flatten(), nn.Linear(8, 2))
    local table_rows = optim.SparseAdam({ model[1].weight }, { lr = 0.1 })
    local rest = optim.AdamW(model[3]:parameters(), { lr = 0.1 })
    model, table_rows, rest = accelerator:prepare(model, table_rows, rest)
    local x, y = ids({ 10, 2 }, 3, 1, 20), ids({ 10 }, 1, 0, 2)
    local first, last
    for _ = 1, 30 do
      local loss = nn.functional.cross_entropy(model(x), y)
      table_rows:zero_grad()
      rest:zero_grad()
      accelerator:backward(loss)
      table_rows:step()
      rest:step()
      first, last = first or loss:item(), loss:item()
    end
    assert.is_true(last < 0.1 * first)
  end)
end)
