-- Calls of modules: how many arguments they take, and arguments by position.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local near = require("spec.support.nets").near
local raises = require("spec.support.messages").raises
local stepped = require "spec.support.stepped"

describe("a call of a layer", function()
  local x, labels = core.ones(2, 2), core.tensor({ 0, 1 }, { dtype = "int64" })

  it("takes no more arguments than its forward has", function()
    raises("MSELoss: 2 arguments expected, got 3", nn.MSELoss(), x, x, { reduction = "sum" })
    raises("Linear: 1 argument expected, got 3", nn.Linear(2, 2), x, 5, "junk")
    raises("CrossEntropyLoss: 2 arguments expected, got 3", nn.CrossEntropyLoss(), x, labels, 7)
    raises("Softmax: 1 argument expected, got 2", nn.Softmax(-1), x, 2)
    raises("GRU: 2 arguments expected, got 3", nn.GRU(2, 2), core.ones(3, 1, 2), core.ones(1, 1, 2), 1)
    raises("Sequential: 1 argument expected, got 2", nn.Sequential(nn.Linear(2, 2)), x, 3)
    raises("Linear: 1 argument expected, got 2", nn.LazyLinear(2), x, false)
    raises("BatchNorm1d: 2 arguments expected, got 3", nn.BatchNorm1d(2), x, x, x)
  end)

  it("counts them with hooks, as a method, and in classes that inherit forward", function()
    local layer = nn.Linear(2, 2)
    raises("Linear: 1 argument expected, got 2", layer.forward, layer, x, 3)
    layer:register_forward_hook(function() end)
    raises("Linear: 1 argument expected, got 2", layer, x, 3)
    local Heir = nn.class("Heir", nn.Linear)
    raises("Heir: 1 argument expected, got 2", Heir(2, 2), x, 1)
  end)

  it("takes its tensors by name, too", function()
    assert.equal(nn.CrossEntropyLoss()(x, labels):item(),
      nn.CrossEntropyLoss()({ input = x, target = labels }):item())
    raises("MSELoss: target is missing", nn.MSELoss(), { input = x, targt = x })
    local attention = nn.MultiheadAttention(4, 2)
    local q, k, v = core.randn(3, 1, 4), core.randn(5, 1, 4), core.randn(5, 1, 4)
    local hidden = core.tensor({ { false, true, false, false, true } }, { dtype = "bool" })
    local expected, weights = attention(q, k, v, { key_padding_mask = hidden })
    for _, given in ipairs {
      { { query = q, key = k, value = v, key_padding_mask = hidden, attn_mask = nil } },
      { q, { key = k, value = v, key_padding_mask = hidden } },
      { q, k, { value = v, key_padding_mask = hidden } },
      { q, k, v, hidden, { need_weights = true } },
    } do
      local y, w = attention(unpack(given))
      near(expected:flatten():totable(), y)
      near(weights:flatten():totable(), w)
    end
    raises("MultiheadAttention: value is missing", attention, { query = q, key = k })
    raises("MultiheadAttention: unknown option 'mask'", attention,
      { query = q, key = k, value = v, mask = 1 })
    local encoder, decoder = nn.TransformerEncoderLayer(4, 2), nn.TransformerDecoderLayer(4, 2)
    encoder:eval()
    decoder:eval()
    local options = { enable_nested_tensor = false, mask_check = false }  -- without effect
    assert.equal(2, #nn.TransformerEncoder(encoder, 2, options).layers)
    assert.equal(2, #nn.TransformerEncoder(encoder, 2, nil, false).layers)
    near(encoder(q):flatten():totable(), encoder({ src = q, src_mask = nil }))
    near(decoder(q, k):flatten():totable(), decoder({ tgt = q, memory = k }))
    near(decoder(q, k):flatten():totable(), decoder(q, { memory = k }))
  end)

  it("does not count nils at the end", function()
    assert.same({ 2, 2 }, nn.Linear(2, 2)(x, nil, nil).shape)
    raises("Linear: 1 argument expected, got 3", nn.Linear(2, 2), x, nil, 3, nil)
  end)

  it("leaves forwards of scripts, and those that take any number, as they are", function()
    local Mine = nn.class("Mine", nn.Linear)
    function Mine:forward(a) return a end
    assert.equal(x, Mine(2, 2)(x, 1, 2))
    assert.equal(2, select("#", nn.Identity()(x, 1)))
    assert.same({ 2, 2 }, nn.BatchNorm1d(2)(x, x).shape)
    raises("Bare has no forward method", nn.class("Bare")(), x, 1)
    raises("ModuleList is a list and cannot be called", nn.ModuleList(), x, 1)
  end)
end)

-- The numbers are PyTorch's, of the same parameters and inputs.
describe("masks by position", function()
  local fill, mask = stepped.fill, stepped.mask
  local src, tgt = stepped.tensor(3, 2, 4), stepped.tensor(2, 2, 4) + 0.25
  local hidden_keys = mask { { 0, 0, 1 }, { 0, 1, 0 } }
  local square = mask { { 0, 1, 0 }, { 0, 0, 1 }, { 0, 0, 0 } }
  local tgt_mask, across = mask { { 0, 1 }, { 0, 0 } }, mask { { 0, 0, 1 }, { 0, 0, 0 } }
  local tgt_keys, memory_keys = mask { { 0, 0 }, { 0, 0 } }, mask { { 0, 1, 0 }, { 0, 0, 0 } }

  it("of MultiheadAttention", function()
    local layer = fill(nn.MultiheadAttention(4, 2))
    local y, weights = layer(src, src, src, hidden_keys, true, square, false)
    near({ -0.2428571429, 0.3471428571, 0.01, -0.5, 0.366207165, 0.2867359122, 0.6636252348, -0.515846018,
      -0.2098862037, 0.336343018, 0.04226386881, -0.5115069095, 0.4028571429, 0.3828571429, 0.6457142857,
      -0.4742857143, -0.2098909452, 0.3363512641, 0.04225789042, -0.5114999003, 0.3691859542, 0.2502843783,
      0.676028463, -0.542873113 }, y, 1e-9)
    near({ 1, 0, 0, 0.4982683168, 0.5017316832, 0, 0.4983404698, 0.5016595302, 0, 1, 0, 0, 0.5016595302,
      0.4983404698, 0, 0.501262688, 0.498737312, 0, 0.4974024883, 0, 0.5025975117, 1, 0, 0, 0.4264712011, 0,
      0.5735287989, 0.4976189441, 0, 0.5023810559, 1, 0, 0, 0.3718545019, 0, 0.6281454981 }, weights, 1e-9)
    local named, none = layer(src, src, src, nil, false, square)
    near({ -0.1766687121, 0.3253390933, 0.07479366777, -0.5231985268, 0.366207165, 0.2867359122,
      0.6636252348, -0.515846018, -0.2098862037, 0.336343018, 0.04226386881, -0.5115069095, 0.3303568689,
      0.2664996217, 0.6375656299, -0.5262916173, -0.1768520453, 0.3255081335, 0.07459246859, -0.5230473526,
      0.3325609006, 0.2322469066, 0.6564881607, -0.5438258333 }, named, 1e-9)
    assert.is_nil(none)
    local mixed = layer(src, src, src, hidden_keys, { attn_mask = square })
    assert.is_true(mixed:allclose(y))
    raises("key_padding_mask is given twice", layer, src, src, src, hidden_keys,
      { key_padding_mask = hidden_keys })
    raises("option 'need_weights' must be true or false, got a bool tensor", layer, src, src, src, nil,
      square)
    raises("MultiheadAttention: an argument too many: 3", layer, src, src, src, nil, nil, nil, nil, nil, 3)
  end)

  it("of Transformer", function()
    local model = fill(nn.Transformer(4, 2, 1, 1, 5, 0)):eval()
    near({ 0.2217623687, 0.1807606359, 0.2097724662, 0.5459108498, 0.2305418701, 0.1771484101, 0.2025705251,
      0.5437335639, 0.2221174818, 0.1805780983, 0.2094670537, 0.5459496929, 0.2227770774, 0.1887409997,
      0.213042219, 0.517537298 },
      model(src, tgt, square, tgt_mask, across, hidden_keys, tgt_keys, memory_keys), 1e-9)
    near({ 0.221690301, 0.1807932803, 0.2098315878, 0.5459167552, 0.2324845288, 0.1765303056, 0.2010439067,
      0.5426163634, 0.222069053, 0.1806008308, 0.2095074077, 0.5459513115, 0.2228089936, 0.1887340369,
      0.2130210213, 0.5175113528 }, model(src, tgt, nil, tgt_mask, nil, nil, nil, memory_keys), 1e-9)
  end)

  it("of encoders", function()
    local layer = fill(nn.TransformerEncoderLayer(4, 2, 5, 0))
    near({ 0.09200729357, 0.139722327, 0.1920550694, 0.7902449495, 0.2027476047, 0.05780442621,
      -0.2125794011, 0.4898116766, 0.09566186895, 0.142287734, 0.1964986279, 0.7829844059, 0.2043456113,
      0.1216577729, 0.1267619292, 0.6855749916, 0.09566114247, 0.1422869101, 0.1964971667, 0.7829863347,
      0.1898269573, 0.1268916435, 0.1438998953, 0.699105054 }, layer(src, square, hidden_keys), 1e-9)
    near({ 0.04951642067, 0.1727207011, 0.2509311365, 0.7707455745, 0.327181283, 0.1067815843,
      -0.01426275926, 0.4587782905, 0.05605180265, 0.1719562654, 0.2491458044, 0.7661945687, 0.2043627049,
      0.1532547445, 0.18801091, 0.6408387379, 0.0560503864, 0.1719564568, 0.249146231, 0.7661955048,
      0.1818658628, 0.1568002196, 0.2012377992, 0.6622901637 },
      nn.TransformerEncoder(layer, 2)(src, square, hidden_keys), 1e-9)
    raises("an argument too many: 1", layer, src, nil, nil, nil, 1)
  end)

  it("of decoders", function()
    local layer = fill(nn.TransformerDecoderLayer(4, 2, 5, 0))
    near({ 0.1, -0.8592522229, 0.1490105217, -0.04894261683, 0.1, 0.3141945883, 0.4334523106, -0.1266892307,
      0.1, -0.8787900089, 0.1244004848, -0.04144375622, 0.1, 0.3432182022, 0.4640504356, -0.1142319057 },
      layer(tgt, src, tgt_mask, across, tgt_keys, memory_keys), 1e-9)
    near({ 0.1, 0.3433922899, 0.4046892581, -0.05285396619, 0.1, 0.3651419748, 0.4729150913,
      -0.09995758172, 0.1, 0.3374083182, 0.394958323, -0.05193813218, 0.1, 0.3567069149, 0.4714285544,
      -0.1064239238 }, nn.TransformerDecoder(layer, 2)(tgt, src, nil, across, tgt_keys, memory_keys), 1e-9)
  end)
end)

describe("output_size of a transposed convolution", function()
  local fill, tensor = stepped.fill, stepped.tensor

  it("chooses among the sizes that one convolution has", function()
    local line = fill(nn.ConvTranspose1d(2, 1, 3, 2, 1))
    local four = { -0.5142857143, -0.6142857143, -0.4857142857, -0.2 }
    near(four, line(tensor(1, 2, 2), { 4 }), 1e-9)
    near(four, line(tensor(1, 2, 2), 4), 1e-9)
    near({ -0.5142857143, -0.6142857143, -0.4857142857 }, line(tensor(1, 2, 2), { 1, 1, 3 }), 1e-9)
    near(four, line(tensor(2, 2), { output_size = { 4 } }), 1e-9)
    local plane = fill(nn.ConvTranspose2d(1, 1, 2, { 2, 3 }))
    local y = plane(tensor(1, 1, 2, 2), { 5, 6 })
    assert.same({ 1, 1, 5, 6 }, y.shape)
    near({ 0.02857142857, -0.5714285714, -0.4, -0.3285714286, -0.4285714286, -0.4, -0.2285714286,
      -0.8285714286, -0.4, -0.3714285714, -0.4714285714, -0.4, -0.6857142857, -0.2857142857, -0.4,
      -0.1142857143, -0.5142857143, -0.4, -0.5142857143, -0.1142857143, -0.4, -0.2857142857, -0.6857142857,
      -0.4, -0.4, -0.4, -0.4, -0.4, -0.4, -0.4 }, y, 1e-9)
    local space = fill(nn.ConvTranspose3d(1, 1, 1, 2))
    y = space(tensor(1, 1, 1, 2, 1), { 2, 3, 2 })
    assert.same({ 1, 1, 2, 3, 2 }, y.shape)
    near({ 0.02857142857, -0.4, -0.4, -0.4, -0.3285714286, -0.4, -0.4, -0.4, -0.4, -0.4, -0.4, -0.4 }, y,
      1e-9)
    assert.same({ 1, 1, 6 }, nn.LazyConvTranspose1d(1, 2, 2)(core.ones(1, 3, 3), { 6 }).shape)
  end)

  it("must be one of them", function()
    local plane, x = nn.ConvTranspose2d(1, 1, 2, { 2, 3 }), core.ones(1, 1, 2, 2)
    raises("ConvTranspose2d: requested an output size of [6, 6], but valid sizes range from " ..
      "[4, 5] to [5, 7] (for an input of [2, 2])", plane, x, { 6, 6 })
    raises("requested an output size of [5, 4]", plane, x, { 5, 4 })
    raises("for an input of 4 dims output_size must have 2 or 4 elements, got 1", plane, x, { 5 })
    raises("for an input of 4 dims output_size must have 2 or 4 elements, got 5", plane, x, { 1, 1, 1, 5, 6 })
    raises("unknown option 'size'", plane, x, { size = 5 })
    raises("ConvTranspose2d: 2 arguments expected, got 3", plane, x, 5, 5)
    raises("output_size' must be an integer or a list, got 'big'", plane, x, "big")
  end)
end)
