--- Arguments that public PyTorch code gives by name, and in PyTorch's other forms.
local accelerate = require "accelerate"
local data = require "accelerate.data"
local func = require "accelerate.func"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local host = require "spec.support.host"
local raises = require("spec.support.messages").raises

local D, F, rnn, utils = accelerate.distributions, nn.functional, nn.utils.rnn, accelerate.utils
local x = tensor.arange(6):float():reshape(2, 3)
local long = { dtype = "int64" }

local function same(a, b) assert.same(a:tolist(), b:tolist()) end

describe("options of functions", function()
  it("have NumPy's names of dim and keepdim", function()
    same(F.normalize(x, 2, 1), F.normalize(x, { axis = 1 }))
    same(F.pairwise_distance(x, x, { keepdim = true }), F.pairwise_distance(x, x, { keepdims = true }))
    same(nn.Softmax(1)(x), nn.Softmax { axis = 1 }(x))
    raises('normalize: dim is given twice, as "dim" and as "axis"', F.normalize, x, { dim = 1, axis = 1 })
    raises('normalize: dim is given twice, as "dim" and as "axis"', F.normalize, x, 2, 1, { axis = 1 })
  end)

  it("are named where something else takes their place", function()
    raises("normalize: unknown option 'out'; a result is written into a tensor y by y:copy_(f(x))",
      F.normalize, x, { out = x })
    raises("unknown option 'memory_format'; leave memory_format out", tensor.as_tensor, x,
      { memory_format = 1 })
    raises("unknown option 'pin_memory'; x:pin_memory()", tensor.as_tensor, x, { pin_memory = true })
    raises("Linear: unknown option 'out'; known: bias, device, dtype", nn.Linear,
      { in_features = 2, out = 3 })
  end)

  it("are numbers or booleans for the value of pad", function()
    local mask = x:gt(2)
    -- PyTorch's values
    assert.same({ { false, false, false, true }, { true, true, true, true } },
      F.pad(mask, { 0, 1 }, { value = true }):tolist())
    assert.same({ { 0, 1, 2, 1 }, { 3, 4, 5, 1 } }, F.pad(x, { 0, 1 }, "constant", true):tolist())
    same(F.pad(x, { 0, 1 }), F.pad { x = x, pad = { 0, 1 }, value = false })
  end)

  it("say where a window is", function()
    local w = tensor.hann_window(4, { device = "cpu", dtype = "float64", requires_grad = true })
    assert.same({ "cpu", "float64", true }, { w.device, w.dtype, w.requires_grad })
    for _, name in ipairs { "hamming_window", "blackman_window", "bartlett_window", "kaiser_window" } do
      assert.equal("cpu", tensor[name](4, { device = "cpu" }).device)
      assert.is_false(tensor[name](4).requires_grad)
    end
    raises("hann_window: device must be a string, got 3", tensor.hann_window, 4, { device = 3 })
  end)

  it("give the bounds and the size of draws", function()
    same(tensor.full_like(x, 5), tensor.randint_like(x, { low = 5, high = 6 }))
    same(tensor.full_like(x, 5), tensor.randint_like(x, 5, { high = 6 }))
    same(tensor.zeros_like(x), tensor.randint_like(x, { high = 1 }))
    same(tensor.zeros_like(x), tensor.randint_like(x, 1))
    raises("randint_like: high is missing", tensor.randint_like, x, { low = 3 })
    raises("randint_like: low (3) must be below high (3)", tensor.randint_like, x, 3, 3)
    local drawn = tensor.normal(0, 1, { size = { 2, 3 }, dtype = "float64" })
    assert.same({ 2, 3 }, drawn.shape)
    assert.equal("float64", drawn.dtype)
    raises("normal: there is no option \"foo\"", tensor.normal, 0, 1, { size = { 2 }, foo = 1 })
  end)
end)

describe("modules and their methods", function()
  it("take inplace in all kinds of dropout", function()
    for _, name in ipairs { "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout" } do
      assert.equal(name .. "(p=0.5, inplace=True)", tostring(nn[name] { inplace = true }))
      assert.equal(name .. "(p=0.3, inplace=False)", tostring(nn[name](0.3, false)))
      local layer, input = nn[name](0.5, true), tensor.ones(2, 2, 2, 2, 2)
      if name == "Dropout1d" then input = input[1][1] end
      if name == "Dropout2d" then input = input[1] end
      local before = input:clone()
      assert.is_true(rawequal(input, layer(input)))
      assert.is_false(input:equal(before))
      before:requires_grad_()
      assert.is_false(rawequal(before, layer(before)))
      assert.is_true(rawequal(before, layer:eval()(before)))
    end
  end)

  it("take names", function()
    local m = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert.is_false(m:requires_grad_({ requires_grad = false })[1].weight.requires_grad)
    assert.is_true(m:requires_grad_()[1].weight.requires_grad)
    raises("requires_grad_: option 'requires_grad' must be true or false, got 3", m.requires_grad_, m, 3)
    assert.equal(m[1], m:get_submodule { target = "0" })
    assert.equal(m[1].weight, m:get_parameter { target = "0.weight" })
    raises("get_submodule: target must be a string, got a table", m.get_submodule, m, { taget = "0" })
    local count = 0
    m:apply { fn = function() count = count + 1 end }
    assert.equal(3, count)
    local handle = m:register_forward_hook { hook = function() return 5 end }
    assert.equal(5, m(tensor.ones(1, 2)))
    handle:remove()
  end)

  it("take a state dict by name", function()
    local m = nn.Linear(2, 2)
    assert.same({ missing_keys = { "bias" }, unexpected_keys = {} },
      m:load_state_dict { state_dict = { weight = tensor.ones(2, 2) }, strict = false })
    same(tensor.ones(2, 2), m.weight:detach())
    assert.same({ missing_keys = {}, unexpected_keys = {} },
      m:load_state_dict { state_dict = m:state_dict() })
    raises("missing keys: bias", m.load_state_dict, m, { weight = tensor.ones(2, 2) })
    raises("load_state_dict: unknown option 'epoch'", m.load_state_dict, m, { state_dict = {}, epoch = 1 })
  end)

  it("take the arguments of a pre-hook as a list, too", function()
    local m, seen = nn.Linear(2, 2), nil
    local function with(hook, ...)
      local handle = m:register_forward_pre_hook(hook)
      local y = m(...)
      handle:remove()
      return y
    end
    local input = tensor.ones(1, 2)
    local twice = m(input * 2)
    same(twice, with(function(_, args) return { args[1] * 2 } end, input))
    same(twice, with(function(_, args) return args[1] * 2 end, input))
    same(twice, with(function(_, args)
      args[1] = args[1] * 2
      return args
    end, input))
    m = nn.class("Lists", nn.Module)()
    function m.forward(_, ...)
      seen = { ... }
      return input
    end
    with(function() return { 1, 2 } end, input)
    assert.same({ 1, 2 }, seen)
    with(function() return { input, input } end, { input }) -- one list in place of one list
    assert.equal(1, #seen)
    with(function() return { { input, input } } end, { input })
    assert.equal(1, #seen)
    assert.equal(2, #seen[1])
  end)

  it("are added to lists", function()
    local list = nn.ModuleList { nn.ReLU() } + { nn.Tanh() }
    assert.same({ "ReLU()", "Tanh()" }, { tostring(list[1]), tostring(list[2]) })
    list = { nn.Tanh() } + list
    assert.equal(3, #list)
    assert.equal(6, #(list + list))
    local scales = nn.ParameterList { x } + { x, x }
    assert.equal(3, #scales)
    assert.is_true(nn.is_parameter(scales[3]))
    raises("ModuleList: extend takes a list of modules, got 3", function() return list + 3 end)
  end)

  it("take states of recurrent layers by name", function()
    local lstm, input = nn.LSTM(4, 5), tensor.ones(3, 1, 4)
    local _, state = lstm(input)
    same(lstm(input, state), (lstm(input, { hx = state })))
    same(lstm(input, state), (lstm { input = input, hx = state }))
    local cell, h = nn.GRUCell(4, 5), tensor.ones(1, 5)
    same(cell(input[1], h), cell(input[1], { hx = h }))
    raises("GRUCell: 2 arguments expected, got 3", cell, input[1], h, 3)
    same((lstm(input)), (lstm(input, { hx = nil }))) -- where there is no state yet
    same(cell(input[1]), cell(input[1], {}))
  end)

  it("take what they are called with by name", function()
    local numbers, offsets = tensor.tensor({ 1, 2, 3 }, long), tensor.tensor({ 0, 2 }, long)
    local bag, weights = nn.EmbeddingBag(10, 4, { mode = "sum" }), tensor.tensor { 1, 2, 3 }
    same(bag(numbers, offsets, weights), bag(numbers, { offsets = offsets, per_sample_weights = weights }))
    same(bag(numbers, offsets), bag(numbers, offsets, { per_sample_weights = nil }))
    raises("EmbeddingBag: unknown option 'offset'; did you mean 'offsets'?", bag, numbers,
      { offset = offsets })
    raises("EmbeddingBag: offsets is given twice", bag, numbers, offsets, { offsets = offsets })
    local scores, targets = tensor.zeros(4, 1, 3), tensor.ones(1, 2, long)
    local lengths = { input_lengths = { 4 }, target_lengths = { 2 } }
    same(nn.CTCLoss()(scores, targets, { 4 }, { 2 }), nn.CTCLoss()(scores, targets, lengths))
    same(F.ctc_loss(scores, targets, { 4 }, { 2 }), F.ctc_loss(scores, targets, lengths))
    same(F.ctc_loss(scores, targets, { 4 }, { 2 }, { reduction = "sum" }), F.ctc_loss {
      log_probs = scores, targets = targets, input_lengths = { 4 }, target_lengths = { 2 },
      reduction = "sum" })
    local a, b, c = tensor.rand(2, 3), tensor.rand(2, 3), tensor.rand(2, 3) + 1
    same(nn.TripletMarginLoss()(a, b, c), nn.TripletMarginLoss() { anchor = a, positive = b, negative = c })
    same(nn.GaussianNLLLoss()(a, b, c), nn.GaussianNLLLoss()(a, b, { var = c }))
    same(F.gaussian_nll_loss(a, b, c, { full = true }), F.gaussian_nll_loss(a, b, { var = c, full = true }))
    same(nn.PoissonNLLLoss()(a, b), nn.PoissonNLLLoss() { log_input = a, target = b })
    same(nn.CosineSimilarity()(a, b), nn.CosineSimilarity() { x1 = a, x2 = b })
    local bilinear = nn.Bilinear(3, 3, 2)
    same(bilinear(a, b), bilinear(a, { input2 = b }))
    same(F.embedding_bag(numbers, bag.weight, offsets, { mode = "sum" }),
      F.embedding_bag(numbers, { weight = bag.weight, offsets = offsets, mode = "sum" }))
    same(F.local_response_norm(a[tensor.newaxis], 2),
      F.local_response_norm { input = a[tensor.newaxis], size = 2 })
    assert.same({ 2, 3 }, F.gumbel_softmax({ logits = a, tau = 2, hard = true }).shape)
  end)
end)

describe("functions take their first arguments by name", function()
  it("of nn", function()
    assert.is_false(nn.Parameter(x, false).requires_grad)
    assert.is_true(nn.Parameter({ data = x }).requires_grad)
    same(tensor.full_like(x, 2), nn.init.constant_ { tensor = x:clone(), val = 2 })
    same(tensor.zeros_like(x), nn.init.normal_ { tensor = x:clone(), std = 0 })
    raises("zeros_: unknown option 'a'", nn.init.zeros_, x:clone(), { a = 1 })
    local list = { tensor.ones(2), tensor.ones(3) }
    same(rnn.pad_sequence(list), rnn.pad_sequence { sequences = list })
    local padded = rnn.pad_sequence(list):unsqueeze(-1)
    local packed = rnn.pack_padded_sequence { input = padded, lengths = { 2, 3 }, enforce_sorted = false }
    assert.is_true(utils.isinstance(packed, rnn.PackedSequence))
    assert.is_false(utils.isinstance(padded, rnn.PackedSequence))
    same(padded, (rnn.pad_packed_sequence { sequence = packed }))
    assert.equal(2, #rnn.unpad_sequence { padded_sequences = padded, lengths = { 2, 3 } })
    local layer = nn.utils.weight_norm { module = nn.Linear(2, 2), name = "weight" }
    assert.is_not_nil(layer.weight_g)
    assert.is_nil(nn.utils.remove_weight_norm({ module = layer }).weight_g)
  end)

  it("of data, files, distributions and func", function()
    assert.equal(1, #data.Subset { dataset = { 1, 2, 3 }, indices = { 1 } })
    assert.equal(2, #data.ConcatDataset { datasets = { { 1 }, { 2 } } })
    local one, two = data.random_split { dataset = { 1, 2, 3 }, lengths = { 1, 2 } }
    assert.same({ 1, 2 }, { #one, #two })
    host.in_folder(function(folder)
      local path = folder .. "/a.bin"
      utils.save { obj = { a = 1 }, f = path }
      assert.same({ a = 1 }, utils.load { f = path })
      utils.save({ obj = 1 }, path)
      assert.same({ obj = 1 }, utils.load(path))
    end)
    raises("save: f is missing", utils.save, { a = 1 })
    local p, q = D.Normal(0, 1), D.Normal(1, 1)
    assert.near(0.5, D.kl_divergence({ p = p, q = q }):item(), 1e-6)
    local function double(v) return v * 2 end
    same(x * 2, func.vmap({ func = double })(x))
    same((x * 2):t(), func.vmap(double, 2)(x))
    raises("vmap: func must be a function, got a table", func.vmap, { f = double })
  end)

  it("and register_kl has a script's own formula", function()
    local Own = utils.class("Own", D.Normal)
    D.register_kl(Own, D.Normal, function() return tensor(7) end)
    assert.equal(7, D.kl_divergence(Own(0, 1), D.Normal(0, 1)):item())
    assert.equal(0, D.kl_divergence(D.Normal(0, 1), Own(0, 1)):item())
    local fn = function() return tensor(8) end
    assert.equal(fn, D.register_kl(D.Normal, Own)(fn))
    assert.equal(8, D.kl_divergence(D.Normal(0, 1), Own(0, 1)):item())
    raises("register_kl: type_p must be a class of distributions, got 1", D.register_kl, 1, Own)
    raises("register_kl: type_p must be a class of distributions, got nil", D.register_kl, nil, Own)
    raises("register_kl: type_q must be a class of distributions, got nil", D.register_kl, Own)
  end)
end)
