--- Parametrized parameters, weight and spectral norms, and lazy modules.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local near = require("spec.support.nets").near
local raises = require("spec.support.messages").raises
local stepped = require "spec.support.stepped"
local parametrize, parametrizations = nn.utils.parametrize, nn.utils.parametrizations

local function names(module)
  local list = {}
  for name in module:named_parameters() do list[#list + 1] = name end
  return table.concat(list, " ")
end
local function apart(a, b) return (a - b):abs():max():item() end

local Symmetric = nn.class("Symmetric")
function Symmetric:forward(x) -- luacheck: no self
  local upper = x:triu()
  return upper + upper:triu(1):t()
end
local Doubled = nn.class("Doubled")
function Doubled:forward(x) return x * 2 end -- luacheck: no self
function Doubled:right_inverse(y) return y / 2 end -- luacheck: no self

describe("parametrize", function()
  it("computes an attribute from its original, which is trained and saved", function()
    local layer = nn.Linear(3, 3)
    local weight = layer.weight
    parametrize.register_parametrization(layer, "weight", Symmetric())
    assert.is_true(parametrize.is_parametrized(layer) and parametrize.is_parametrized(layer, "weight"))
    assert.is_false(parametrize.is_parametrized(layer, "bias"))
    assert.are.equal("bias parametrizations.weight.original", names(layer))
    assert.are.equal(weight, layer.parametrizations.weight.original)
    assert.are.equal(0, apart(layer.weight, layer.weight:t()))
    local before = layer.weight:detach():clone()
    local optimizer = optim.SGD(layer:parameters(), { lr = 0.1 })
    layer(core.randn(2, 3)):square():sum():backward()
    optimizer:step()
    assert.is_true(apart(before, layer.weight) > 0)
    assert.are.equal(0, apart(layer.weight, layer.weight:t()))
  end)

  it("applies several in order, and assigns through their inverses", function()
    local layer = nn.Linear(2, 2)
    local start = layer.weight:detach():clone()
    parametrize.register_parametrization(layer, "weight", Doubled())
    assert.are.equal(0, apart(start, layer.weight))
    assert.are.equal(0, apart(start / 2, layer.parametrizations.weight.original))
    parametrize.register_parametrization(layer, "weight", Doubled())
    assert.are.equal(0, apart(start * 2, layer.weight))
    layer.weight = core.full({ 2, 2 }, 8)
    assert.are.same({ { 2, 2 }, { 2, 2 } }, layer.parametrizations.weight.original:totable())
    assert.are.same({ { 8, 8 }, { 8, 8 } }, layer.weight:totable())
  end)

  it("is undone with the computed value or the original one", function()
    local layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.register_parametrization(layer, "weight", Doubled())
    local original, value = layer.parametrizations.weight.original, layer.weight:detach():clone()
    parametrize.remove_parametrizations(layer, "weight")
    assert.are.equal("bias weight", names(layer))
    assert.are.equal(original, layer.weight)
    assert.are.equal(0, apart(value, layer.weight))
    assert.is_nil(layer.parametrizations)
    parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.remove_parametrizations(layer, "weight", { leave_parametrized = false })
    assert.are.equal(0, apart(value / 2, layer.weight))
  end)

  it("computes once inside cached", function()
    local calls = 0
    local Counted = nn.class("Counted")
    function Counted:forward(x) -- luacheck: no self
      calls = calls + 1
      return x * 1
    end
    local layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Counted())
    calls = 0
    local y = parametrize.cached(function()
      layer(core.ones(1, 2))
      return layer(core.ones(1, 2))
    end)
    assert.are.equal(1, calls)
    assert.are.same({ 1, 2 }, y.shape)
    pcall(parametrize.cached, error)
    layer(core.ones(1, 2))
    layer(core.ones(1, 2))
    assert.are.equal(3, calls)
  end)

  it("survives copies and state dicts", function()
    local layer = parametrizations.weight_norm(nn.Linear(3, 2))
    local copy = layer:clone()
    assert.are.equal(0, apart(layer.weight, copy.weight))
    core.no_grad(function() copy.parametrizations.weight.original0:mul_(2) end)
    assert.is_true(apart(layer.weight, copy.weight) > 0)
    local other = parametrizations.weight_norm(nn.Linear(3, 2))
    other:load_state_dict(layer:state_dict())
    assert.are.equal(0, apart(layer.weight, other.weight))
  end)

  it("refuses what is no parameter, no module, or changes the shape", function()
    local layer = nn.Linear(2, 3)
    local Wider = nn.class("Wider")
    function Wider:forward(x) return core.cat({ x, x }) end -- luacheck: no self
    raises("has no parameter or buffer 'wight'", parametrize.register_parametrization, layer, "wight",
      Doubled())
    raises("parametrization: expected a module", parametrize.register_parametrization, layer, "weight", 3)
    raises("a parametrization keeps type and shape", parametrize.register_parametrization, layer, "weight",
      Wider())
    assert.are.equal("bias weight", names(layer))
    raises("is not parametrized", parametrize.remove_parametrizations, layer, "weight")
  end)
end)

describe("norms of weights", function()
  it("weight_norm keeps the value and trains norm and direction", function()
    for _, wrap in ipairs { nn.utils.weight_norm, parametrizations.weight_norm } do
      local layer = nn.Conv2d(2, 3, 3)
      local value = layer.weight:detach():clone()
      assert.are.equal(layer, wrap(layer))
      assert.is_true(apart(value, layer.weight) < 1e-6)
      layer(core.randn(1, 2, 4, 4)):sum():backward()
      for name, p in layer:named_parameters() do assert.is_truthy(p.grad, name) end
    end
    local layer = nn.utils.weight_norm(nn.Linear(3, 2), { dim = false })
    assert.are.equal("bias weight_g weight_v", names(layer))
    assert.are.same({}, layer.weight_g.shape)
    nn.utils.remove_weight_norm(layer)
    assert.are.equal("bias weight", names(layer))
    raises("remove_weight_norm: 'weight' of Linear has none", nn.utils.remove_weight_norm, layer)
  end)

  it("are removed from copies, too", function()
    local layer = nn.utils.weight_norm(nn.Linear(3, 2))
    local twin = nn.utils.remove_weight_norm(layer:clone())
    assert.are.equal("bias weight", names(twin))
    assert.is_true(apart(layer.weight, twin.weight) < 1e-6)
    assert.are.equal("bias weight_g weight_v", names(layer))
    twin = nn.utils.remove_spectral_norm(nn.utils.spectral_norm(layer, "bias"):clone(), "bias")
    assert.are.equal("weight_g weight_v bias", names(twin))
    raises("has no parameter 'weight'", nn.utils.weight_norm, layer)
  end)

  it("weight_norm with dim = -1 has one norm for all, as PyTorch's", function()
    local layer = nn.utils.weight_norm(stepped.fill(nn.Linear(3, 2)), { dim = -1 })
    assert.same({}, layer.weight_g.shape)
    near({ 0.8246211251 }, layer.weight_g, 1e-9)
    layer = parametrizations.weight_norm(stepped.fill(nn.Linear(3, 2)), "weight", -1)
    assert.same({}, layer.parametrizations.weight.original0.shape)
    near({ 0.8246211251 }, layer.parametrizations.weight.original0, 1e-9)
    layer = parametrizations.weight_norm(stepped.fill(nn.Linear(3, 2)), { dim = -2 })
    assert.same({ 2, 1 }, layer.parametrizations.weight.original0.shape)
    near({ 0.5744562647, 0.5916079783 }, layer.parametrizations.weight.original0, 1e-9)
  end)

  -- The numbers are PyTorch's, from the same weight, u and v.
  it("the older spectral_norm takes v from u, then u from v", function()
    local function give(t, list)
      core.no_grad(function() t:copy_(core.tensor(list, { dtype = t.dtype })) end)
    end
    local x, layer = stepped.tensor(2, 3), nn.utils.spectral_norm(stepped.fill(nn.Linear(3, 2)))
    near({ -0.5, 0.2, -0.2, 0.5, 0.1, -0.3 }, layer.weight, 1e-12)
    give(layer.weight_u, { 0.6, 0.8 })
    give(layer.weight_v, { 1, 0, 0 })
    near({ 0.2423914348, -1.081141585, -0.0788042826, -0.8884241544 }, layer(x), 1e-9)
    near({ 0.3289321392, 0.9443535608 }, layer.weight_u, 1e-9)
    near({ 0.2359645891, 0.4719291782, -0.8494725207 }, layer.weight_v, 1e-9)
    near({ 0.1031324069, -0.7817346749, -0.1484337965, -0.6307949528 }, layer(x), 1e-9)
    near({ -0.186030355, 0.9825439975 }, layer.weight_u, 1e-9)
    near({ 0.6252236495, 0.3255474864, -0.7093054506 }, layer.weight_v, 1e-9)
    layer:eval()
    local y = layer(x)
    near({ 0.1031324069, -0.7817346749, -0.1484337965, -0.6307949528 }, y, 1e-9)
    y:sum():backward()
    near({ -2.773289314, -0.1341438593, 2.807935741, -1.154969383, 0.7084985877, 0.9719796812 },
      layer.weight_orig.grad, 1e-8)
    layer = nn.utils.spectral_norm(stepped.fill(nn.ConvTranspose1d(2, 3, 2)), { n_power_iterations = 2 })
    give(layer.weight_u, { 0.6, 0.8, 0 })
    give(layer.weight_v, { 1, 0, 0, 0 })
    layer(stepped.tensor(1, 2, 2))
    near({ -0.5642883633, 0.2257153453, -0.2257153453, 0.5642883633, 0.1128576727, -0.338573018,
      0.4514306907, 0, -0.4514306907, 0.338573018, -0.1128576727, -0.5642883633 }, layer.weight, 1e-9)
    near({ 0.4089204134, 0.7035609419, -0.5811936824 }, layer.weight_u, 1e-9)
    near({ -0.4926171026, 0.6888717231, -0.0543751334, 0.5289872249 }, layer.weight_v, 1e-9)
  end)

  it("spectral_norm comes to the largest singular value", function()
    local layer = nn.Linear(4, 3)
    local normed = parametrizations.spectral_norm(layer, { n_power_iterations = 30 })
    local _, after = core._linalg.svd(normed.weight:detach())
    assert.is_true(math.abs(after:max():item() - 1) < 1e-3)
    normed:eval()
    assert.are.equal(0, apart(normed.weight, normed.weight))
    local older = nn.utils.spectral_norm(nn.Linear(4, 3), { n_power_iterations = 30 })
    older(core.randn(2, 4)):sum():backward()
    assert.is_truthy(older.weight_orig.grad)
    assert.are.equal("bias weight_orig", names(older))
    local _, still = core._linalg.svd(nn.utils.remove_spectral_norm(older).weight:detach())
    assert.is_true(math.abs(still:max():item() - 1) < 1e-3)
  end)

  it("orthogonal weights stay orthogonal in training", function()
    for _, map in ipairs { "matrix_exp", "cayley" } do
      local layer = parametrizations.orthogonal(nn.Linear(5, 3), { orthogonal_map = map })
      local optimizer = optim.SGD(layer:parameters(), { lr = 0.1 })
      for _ = 1, 3 do
        optimizer:zero_grad()
        layer(core.randn(4, 5)):square():sum():backward()
        optimizer:step()
      end
      assert.is_true(apart(layer.weight:matmul(layer.weight:t()), core.eye(3)) < 1e-5, map)
    end
  end)
end)

describe("lazy modules", function()
  it("are refused before their first call, by name", function()
    local model = nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(4))
    for _, call in ipairs {
      function() return optim.SGD(model:parameters(), { lr = 0.1 }) end,
      function() return require("accelerate").Accelerator():prepare(model) end,
      function() return model:state_dict() end, function() return model:to("float64") end,
    } do raises("LazyLinear ('1'): has no parameters before its first call", call) end
  end)

  it("become what they stand for", function()
    local model = nn.Sequential(nn.LazyConv1d(4, 3, { padding = 1, bias = false }), nn.LazyBatchNorm1d(),
      nn.LazyInstanceNorm1d({ track_running_stats = false }), nn.LazyConvTranspose1d(2, 2), nn.Flatten(),
      nn.LazyLinear(3))
    local y = model(core.randn(2, 5, 6))
    assert.are.same({ 2, 3 }, y.shape)
    assert.are.equal([[Sequential(
  (0): Conv1d(5, 4, kernel_size=(3,), stride=(1,), padding=(1,), bias=False)
  (1): BatchNorm1d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
  (2): InstanceNorm1d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=False)
  (3): ConvTranspose1d(4, 2, kernel_size=(2,), stride=(1,))
  (4): Flatten(start_dim=2, end_dim=-1)
  (5): Linear(in_features=14, out_features=3, bias=True)
)]], tostring(model))
    assert.are.equal(9, #model:parameters())
    for dims, Lazy in ipairs { nn.LazyInstanceNorm1d, nn.LazyInstanceNorm2d, nn.LazyInstanceNorm3d } do
      local shape = { 2, 2, 3, 1, 1 }
      local layer = Lazy()
      layer(core.ones { unpack(shape, 1, dims + 2) })
      assert.are.equal(("InstanceNorm%dd(2, eps=1e-05, momentum=0.1, affine=True, bias=True, " ..
        "track_running_stats=True)"):format(dims), tostring(layer))
      assert.are.equal("weight bias", names(layer))
      near({ 0.1, 0.1 }, layer.running_mean)
    end
    raises("LazyConv2d: expected an input of 4 dims", nn.LazyConv2d(1, 1), core.randn(2))
  end)
end)

describe("the list of an attribute's parametrizations", function()
  it("is indexed by position", function()
    local layer = nn.Linear(3, 3)
    local first, second = Symmetric(), nn.Identity()
    parametrize.register_parametrization(layer, "weight", first)
    parametrize.register_parametrization(layer, "weight", second)
    local list = layer.parametrizations.weight
    assert.equal(2, #list)
    assert.equal(first, list[1])
    assert.equal(second, list[2])
    assert.equal(second, list[-1])
    assert.is_nil(list[3])
    assert.equal(list._values.original, list.original)
  end)
end)
