--- Activations and losses as modules: options, what they print, buffers, and the losses that are
--- written in Lua.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local close = require("spec.support.nets").close
local messages = require "spec.support.messages"

local raises, raises_like = messages.raises, messages.raises_like
local F = nn.functional

describe("activation modules", function()
  local x = core.tensor { -4, -1, -0.2, 0.4, 2, 7 }

  it("compute what the functions compute, with numbers by position or by name", function()
    for _, case in ipairs {
      { nn.GELU(), F.gelu(x) }, { nn.GELU("tanh"), F.gelu(x, "tanh") },
      { nn.GELU { approximate = "tanh" }, F.gelu(x, "tanh") }, { nn.SiLU(), F.silu(x) },
      { nn.Mish(), F.mish(x) }, { nn.LeakyReLU(0.2), F.leaky_relu(x, 0.2) },
      { nn.LeakyReLU { negative_slope = 0.2 }, F.leaky_relu(x, 0.2) },
      { nn.ELU(0.5), F.elu(x, 0.5) }, { nn.CELU(), F.celu(x) }, { nn.SELU(), F.selu(x) },
      { nn.Softplus(2, 5), F.softplus(x, 2, 5) },
      { nn.LogSigmoid(), F.logsigmoid(x) }, { nn.ReLU6(), F.relu6(x) },
      { nn.Hardtanh(-2, 3), F.hardtanh(x, -2, 3) }, { nn.Hardsigmoid(), F.hardsigmoid(x) },
      { nn.Hardswish(), F.hardswish(x) }, { nn.Softshrink(0.3), F.softshrink(x, 0.3) },
      { nn.Hardshrink(), F.hardshrink(x) },
      { nn.Threshold(0.1, 9), F.threshold(x, 0.1, 9) }, { nn.Softsign(), F.softsign(x) },
      { nn.Tanhshrink(), F.tanhshrink(x) }, { nn.GLU(), F.glu(x) },
      { nn.PReLU(), F.leaky_relu(x, 0.25) },
    } do assert.are.same(case[2]:totable(), case[1](x):totable()) end
  end)

  it("rewrite their input when told so", function()
    local y = x:clone()
    local out = nn.LeakyReLU { negative_slope = 0.5, inplace = true }(y)
    assert.is_true(rawequal(out, y))
    assert.are.same(F.leaky_relu(x, 0.5):totable(), y:totable())
  end)

  it("print as in PyTorch", function()
    assert.are.equal("LeakyReLU(negative_slope=0.01)", tostring(nn.LeakyReLU()))
    assert.are.equal("GELU(approximate='none')", tostring(nn.GELU()))
    assert.are.equal("Softplus(beta=1.0, threshold=20.0)", tostring(nn.Softplus()))
    assert.are.equal("Softshrink(0.5)", tostring(nn.Softshrink()))
    assert.are.equal("PReLU(num_parameters=3)", tostring(nn.PReLU(3)))
    assert.are.equal("GLU(dim=-1)", tostring(nn.GLU()))
    assert.are.equal("SiLU()", tostring(nn.SiLU()))
  end)

  it("name a wrong option", function()
    raises_like("LeakyReLU: .*negative_slop.*did you mean", nn.LeakyReLU, { negative_slop = 1 })
    raises("SiLU: option 'inplace' must be true or false, got 3", nn.SiLU, 3)
    raises_like("Threshold: .*threshold", nn.Threshold)
  end)

  it("learn PReLU's weight", function()
    local m = nn.PReLU(2)
    m(core.tensor { { -1, -2 }, { 3, -4 } }):sum():backward()
    assert.are.same({ -1, -6 }, m.weight.grad:totable())
  end)
end)

describe("loss modules", function()
  local a, b = core.tensor { { 0.2, -1, 3 }, { 0.5, 0, -2 } }, core.tensor { { 0.1, 1, 2.9 }, { 0, 1, 0.4 } }
  local p, q = core.tensor { { 0.2, 0.9 }, { 0.5, 0.6 } }, core.tensor { { 0, 1 }, { 0.3, 1 } }

  it("compute what the functions compute", function()
    local label, weight = core.tensor({ 2, 0 }, { dtype = "int64" }), core.tensor { 1, 2, 0.5 }
    for _, case in ipairs {
      { nn.L1Loss()(a, b), F.l1_loss(a, b) },
      { nn.SmoothL1Loss { beta = 0.3 }(a, b), F.smooth_l1_loss(a, b, { beta = 0.3 }) },
      { nn.HuberLoss { delta = 2, reduction = "sum" }(a, b),
        F.huber_loss(a, b, { delta = 2, reduction = "sum" }) },
      { nn.BCELoss { weight = core.tensor { 1, 3 } }(p, q),
        F.binary_cross_entropy(p, q, { weight = core.tensor { 1, 3 } }) },
      { nn.BCEWithLogitsLoss { pos_weight = core.tensor { 1, 3 } }(p, q),
        F.binary_cross_entropy_with_logits(p, q, { pos_weight = core.tensor { 1, 3 } }) },
      { nn.KLDivLoss { reduction = "batchmean", log_target = true }(p, q),
        F.kl_div(p, q, { reduction = "batchmean", log_target = true }) },
      { nn.NLLLoss { weight = weight }(a, label), F.nll_loss(a, label, { weight = weight }) },
      { nn.CrossEntropyLoss { weight = weight, label_smoothing = 0.1 }(a, label),
        F.cross_entropy(a, label, { weight = weight, label_smoothing = 0.1 }) },
      -- class weights stand third, as in PyTorch
      { F.nll_loss(a, label, weight), F.nll_loss(a, label, { weight = weight }) },
      { F.cross_entropy(a, label, weight), F.cross_entropy(a, label, { weight = weight }) },
    } do assert.are.equal(case[2]:item(), case[1]:item()) end
  end)

  it("keep weights as buffers", function()
    local m = nn.CrossEntropyLoss { weight = core.tensor { 1, 2, 0.5 } }
    assert.are.same({ 1, 2, 0.5 }, m:state_dict().weight:totable())
    assert.is_nil(next(nn.CrossEntropyLoss():state_dict()))
  end)

  it("refuse a gradient of class weights rather than give none", function()
    local w = core.tensor({ 1, 2, 0.5 }, { requires_grad = true })
    local x = a:clone():requires_grad_()
    raises("weight has no gradient",
      function()
        F.cross_entropy(x, core.tensor({ 2, 0 }, { dtype = "int64" }), { weight = w }):backward()
      end)
  end)

  it("say what does not fit", function()
    raises("label_smoothing", nn.CrossEntropyLoss, { label_smoothing = 2 })
    raises("weight must be a floating-point tensor of shape [3]", F.cross_entropy, a,
      core.tensor({ 2, 0 }, { dtype = "int64" }), { weight = core.ones(2) })
    raises("nll_loss: target 3 at position 1 is outside 0..2", F.nll_loss, a,
      core.tensor({ 0, 0, 3 }, { dtype = "int64" })[{ { 2, 3 } }])
    raises("outside 0..1", F.binary_cross_entropy, a, a)
    raises("l1_loss: input [2, 3] and target [3] differ", F.l1_loss, a, core.ones(3))
    raises("mse_loss: input [2, 3] and target [3] differ in shape; target:expand_as(input)", F.mse_loss, a,
      core.ones(3))
    raises("delta must be positive", F.huber_loss, a, b, { delta = 0 })
    raises("ignore_index does not go with class probabilities", F.cross_entropy, a, a:softmax(2),
      { ignore_index = 1 })
  end)

  it("made of ops say their own names where shapes do not go together", function()
    local x, y = core.ones(3, 4), core.ones(5)
    for _, name in ipairs { "hinge_embedding_loss", "soft_margin_loss", "multilabel_soft_margin_loss",
      "poisson_nll_loss" } do
      raises(name .. ": shapes [", F[name], x, y)
    end
    raises("margin_ranking_loss: shapes [5] and [3, 4] do not broadcast", F.margin_ranking_loss, x, y, x)
    raises("margin_ranking_loss: shapes [5] and [3, 4] do not broadcast", F.margin_ranking_loss, x, x, y)
    raises("gaussian_nll_loss: shapes [3, 4] and [5] do not broadcast", F.gaussian_nll_loss, x, y, 1)
    raises("cosine_embedding_loss: shapes [3, 4] and [5] do not broadcast", F.cosine_embedding_loss, x, y, y)
    raises("cosine_embedding_loss: shapes [5] and [3] do not broadcast", F.cosine_embedding_loss, x, x, y)
    raises("triplet_margin_loss: shapes [3, 4] and [5] do not broadcast", F.triplet_margin_loss, x, x, y)
    raises("pairwise_distance: shapes [3, 4] and [5] do not broadcast", F.pairwise_distance, x, y)
    raises("softmin: dim 7 is out of range", F.softmin, x, 7)
    raises("linalg.vecdot: dim 7 is out of range", tensor.linalg.vecdot, x, x, 7)
    raises("zeta: shapes [3, 4] and [5] do not broadcast", tensor.special.zeta, x, y)
    assert.is_nil(messages.message(tensor.special.zeta, x, y):find("traceback", 1, true))
  end)

  it("of integers are float32", function()
    local i, j = core.tensor({ 3, 1, 0 }, { dtype = "int64" }), core.tensor({ 1, 2, 0 }, { dtype = "int64" })
    local y = core.tensor({ 1, -1, 1 }, { dtype = "int64" })
    for reduction, expected in pairs { none = { 0, 0, 0 }, sum = 0, mean = 0 } do
      local loss = F.margin_ranking_loss(i, j, y, { reduction = reduction })
      assert.equal("float32", loss.dtype)
      assert.same(expected, loss.ndim == 0 and loss:item() or loss:totable())
    end
    close({ 3, 2, 1 }, F.margin_ranking_loss(j, i, y, { margin = 1, reduction = "none" }))
    close({ 0.2928932 }, F.cosine_embedding_loss(core.tensor({ { 1, 1 } }, { dtype = "int64" }),
      core.tensor({ { 1, 0 } }, { dtype = "int64" }), core.tensor({ 1 }, { dtype = "int64" })):view(1))
    close({ math.sqrt(5) }, F.pairwise_distance(i, j):view(1)) -- |(2, -1, 0)|
  end)

  it("take classes as uint8, as images of labels have them", function()
    local logits = core.randn(2, 5, 3, 2):requires_grad_()
    local labels = core.randint(0, 5, { 2, 3, 2 })
    labels[1][1][1] = 4
    local byte = labels:to("uint8")
    local long, short = F.cross_entropy(logits, labels, { ignore_index = 2 }), F.cross_entropy(logits, byte,
      { ignore_index = 2 })
    assert.equal(long:item(), short:item())
    assert.equal(F.nll_loss(logits, labels):item(), F.nll_loss(logits, byte):item())
    assert.is_true(tensor.equal(core.grad(long, logits), core.grad(short, logits)))
    raises("target (0-based class indices) must be int64, got int32", F.cross_entropy, logits,
      labels:to("int32"))
  end)

  it("of margins take one class as a number, and one target in a batch of one", function()
    local x, label = core.tensor { 0.3, 0.2, 0.9 }, core.tensor({ 0 }, { dtype = "int64" })
    close({ 2.5 / 3 }, F.multi_margin_loss(x, label, { reduction = "none" })) -- PyTorch's values
    assert.same({}, F.multi_margin_loss(x, label[1], { reduction = "none" }).shape)
    assert.equal(0, F.multi_margin_loss(x[1], label[1]):item())
    assert.same({ 0 }, F.multi_margin_loss(x[1], label, { reduction = "none" }):totable())
    assert.equal(0, F.multilabel_margin_loss(x[1], label[1]):item())
  end)

  it("made of ops follow their formulas", function()
    local y = core.tensor { 1, -1 }
    local c = a * 0.5 + b
    close(F.cosine_similarity(a, b):totable(),
      core.tensor { (0.02 - 1 + 8.7) / (math.sqrt(10.04) * math.sqrt(0.01 + 1 + 8.41)),
      (-0.8) / (math.sqrt(4.25) * math.sqrt(1.16)) })
    close({ 1, 1 }, F.normalize(a, { p = 1 }):abs():sum(2))
    close({ 1 - F.cosine_similarity(a, b)[1]:item(), 0 },
      F.cosine_embedding_loss(a, b, y, { reduction = "none" }))
    close({ 0.2, 1.5 }, F.hinge_embedding_loss(core.tensor { 0.2, -0.5 }, y, { reduction = "none" }))
    close({ math.log(1 + math.exp(-0.2)), math.log(1 + math.exp(-0.5)) },
      F.soft_margin_loss(core.tensor { 0.2, -0.5 }, y, { reduction = "none" }))
    close({ 0.5 }, nn.MarginRankingLoss { margin = 0.5, reduction = "sum" }(core.tensor { 1, 0 },
      core.tensor { 1, 2 }, core.tensor { 1, -1 }))
    close({ math.max(0, F.pairwise_distance(a, b)[1]:item() - F.pairwise_distance(a, c)[1]:item() + 1) },
      nn.TripletMarginLoss { reduction = "none" }(a, b, c)[1])
    close({ (math.exp(0.5) - 1 + math.exp(1) - 3) / 2 },
      nn.PoissonNLLLoss()(core.tensor { 0.5, 1 }, core.tensor { 2, 3 }))
    close({ 0.5 * (math.log(2) + 0.5) }, nn.GaussianNLLLoss()(core.tensor { 1 }, core.tensor { 2 },
      core.tensor { 2 }))
  end)
end)

describe("options of modules", function()
  it("are printed as PyTorch does", function()
    assert.equal("Conv2d(2, 3, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), padding_mode=reflect)",
      tostring(nn.Conv2d(2, 3, 3, { padding = 1, padding_mode = "reflect" })))
    assert.equal("GroupNorm(2, 4, eps=1e-05, affine=True, bias=False)",
      tostring(nn.GroupNorm(2, 4, { bias = false })))
    assert.equal("Softmin(dim=1)", tostring(nn.Softmin(1)))
    assert.equal("Softmax2d()", tostring(nn.Softmax2d()))
  end)

  it("are refused where they have no meaning", function()
    raises("padding_mode' must be one of zeros, reflect, replicate, circular, got 'mirror'", nn.Conv1d, 1,
      1, 1,
      { padding_mode = "mirror" })
    raises("padding_mode' must be one of zeros, got 'reflect'", nn.ConvTranspose2d, 1, 1, 1,
      { padding_mode = "reflect" })
    raises("Softmax2d: expected (n, c, h, w) or (c, h, w)", nn.Softmax2d(), core.ones(2, 2))
    raises("multi_margin_loss: target: expected int64 of shape [2], got an int64 tensor of shape [3]",
      F.multi_margin_loss, core.ones(2, 3), core.zeros({ 3 }, { dtype = "int64" }))
    raises("multilabel_margin_loss: target: expected int64 of shape [2, 3]", F.multilabel_margin_loss,
      core.ones(2, 3), core.ones(2, 3))
    raises("unknown option 'swapp'", nn.TripletMarginLoss, { swapp = true })
  end)

  it("losses as modules give what the functions give", function()
    local x, t = core.tensor { { 0.5, -1, 2 } }, core.tensor({ 2 }, { dtype = "int64" })
    close({ F.multi_margin_loss(x, t, { p = 2 }):item() }, nn.MultiMarginLoss { p = 2 }(x, t))
    close({ F.multilabel_soft_margin_loss(x, x:gt(0):float()):item() },
      nn.MultiLabelSoftMarginLoss()(x, x:gt(0):float()))
    close({ F.triplet_margin_loss(x, -x, x * 2, { swap = true }):item() },
      nn.TripletMarginLoss { swap = true }(x, -x, x * 2))
  end)
end)

describe("cross_entropy in float32", function()
  local generator = core.Generator(3)

  -- The loss and its gradient; each row has a share of its own where nothing is reduced.
  local function loss_and_gradient(x, target, reduction)
    local leaf = x:clone():requires_grad_()
    local loss = F.cross_entropy(leaf, target, { reduction = reduction })
    loss:backward(reduction == "none" and core.arange(x.shape[1]):to(x.dtype) or nil)
    return loss:detach(), leaf.grad
  end

  it("agrees with float64 for any number of classes and rows, some of which are ignored", function()
    for _, classes in ipairs { 1, 2, 7, 8, 10, 16, 21, 31, 32, 33, 50, 64 } do
      for _, rows in ipairs { 1, 5, 16, 17, 40 } do
        local x = core.randn(rows, classes, { generator = generator })
        local target = core.randint(0, classes, { rows }, { generator = generator })
        if rows > 1 then target[2] = -100 end
        for _, reduction in ipairs { "mean", "sum", "none" } do
          local loss, g = loss_and_gradient(x, target, reduction)
          local exact, exact_g = loss_and_gradient(x:double(), target, reduction)
          local what = ("%d x %d, %s"):format(rows, classes, reduction)
          assert.is_true(tensor.allclose(loss:double(), exact, 1e-5, 1e-5), what)
          assert.is_true(tensor.allclose(g:double(), exact_g, 1e-5, 1e-5), what)
        end
      end
    end
  end)
end)
