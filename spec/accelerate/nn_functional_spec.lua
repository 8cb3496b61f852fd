--- nn.functional: how arguments may be given, and broadcasting as in PyTorch.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local close = require("spec.support.nets").close
local raises = require("spec.support.messages").raises
local F = nn.functional

describe("local_response_norm", function()
  it("of integers cuts the means of their squares to integers, as PyTorch does", function()
    local x = core.arange(12):view(1, 4, 3) * 7 - 30
    local y = F.local_response_norm(x, 3, { alpha = 0.1, beta = 0.5, k = 2 })
    close({ -5.092798709869385, -5.181967735290527, -4.759713172912598, -1.432003140449524,
      -0.3546634316444397, 0.8587566614151001, 1.7731623649597168, 2.3126063346862793, 2.613098382949829,
      5.026611328125, 4.875873565673828, 4.745296955108643 }, y:flatten())
  end)
end)

describe("cosine_similarity", function()
  it("broadcasts before it takes norms", function()
    close({ 1 }, F.cosine_similarity(core.tensor { 1, 1 }, core.tensor { 1 }, { dim = 1 }))
    close({ 1, 1 }, F.cosine_similarity(core.ones(2, 3), core.tensor { { 1 }, { 2 } }))
    close({ 0.292893231, 0 }, F.cosine_embedding_loss(core.tensor { { 1, 1 }, { 1, 0 } },
      core.tensor { { 1, 0 }, { 0, 0 } },
      core.tensor { 1, -1 }, { reduction = "none" }))
    raises("cosine_similarity: shapes [2] and [3] do not broadcast", F.cosine_similarity, core.ones(2),
      core.ones(3), { dim = 1 })
  end)

  it("has PyTorch's gradient where a norm is below eps", function()
    for _, start in ipairs { { 0, 1e-9 }, { 0, 0 } } do
      local x = core.tensor(start)
      x.requires_grad = true
      F.cosine_similarity(x, core.tensor { 1, 0 }, { dim = 1 }):backward()
      close({ 1e8, 0 }, x.grad)
    end
  end)
end)

describe("normalize", function()
  it("takes a list of dims", function()
    close({ 0.6, 0.8, 0, 0 }, F.normalize(core.tensor { { 3, 4 }, { 0, 0 } }, { dim = { 1, 2 } }))
    close({ 0.6, 0.8, 1, 0 }, F.normalize(core.tensor { { 3, 4 }, { 5, 0 } }))
    raises("x must be a tensor", F.normalize, 3)
  end)

  it("says its own name where a dim is not there, as cosine_similarity does", function()
    local v = core.ones(3)
    raises("normalize: dim 2 is out of range; expected 1..1 or -1..-1 for a tensor of shape [3]",
      F.normalize, v)
    raises("normalize: dim: dims count from 1 (and from -1 backward); got 0", F.normalize, v, { dim = 0 })
    raises("normalize: dim 3 is out of range; expected 1..2 or -2..-1 for a tensor of shape [2, 3]",
      F.normalize, core.ones(2, 3), { dim = { 1, 3 } })
    raises("cosine_similarity: dim 2 is out of range", F.cosine_similarity, v, v)
    assert.equal(1, F.normalize(core.full({}, 5), { dim = 1 }):item())
  end)
end)

describe("gaussian_nll_loss", function()
  local input, target = core.arange(6):to("float32"):view(2, 3), core.ones(2, 3)
  local function loss(var) return F.gaussian_nll_loss(input, target, var, { reduction = "none" }) end

  it("takes a variance for each row, for each column, or one", function()
    local by_row = { 0.5, 0, 0.5, 1.34657359, 2.59657359, 4.34657359 }
    close(by_row, loss(core.tensor { 1, 2 }))
    close(by_row, loss(core.tensor { { 1 }, { 2 } }))
    close({ 0.5, 0.34657359, 0.715972841, 2, 2.59657359, 3.2159729 }, loss(core.tensor { { 1, 2, 3 } }))
    close({ 0.59657359, 0.34657359, 0.59657359, 1.34657359, 2.59657359, 4.34657359 }, loss(2))
    local square = F.gaussian_nll_loss(core.arange(9):to("float32"):view(3, 3), core.ones(3, 3),
      core.tensor { 1, 2, 4 }, { reduction = "none" })
    close({ 0.5, 0, 0.5, 1.34657359, 2.59657359, 4.34657359, 3.81814718, 5.19314718, 6.81814718 }, square)
  end)

  it("refuses what PyTorch refuses", function()
    raises("var must have the shape of input [2, 3]", loss, core.tensor { 1, 2, 3 })
    raises("var must have the shape of input [2, 3]", loss, core.tensor { { 1, 2 } })
    raises("var must have the shape of input [2, 3]", loss, core.ones {})
    raises("var has entries below 0", loss, -core.ones(2, 3))
    raises("var must be a tensor or a number", loss, "wide")
  end)
end)

describe("options in a table", function()
  local x, w = core.randn(1, 1, 5, 5), core.randn(1, 1, 3, 3)

  it("may follow any number of positions", function()
    local expected = F.conv2d(x, w, nil, 1, "same"):totable()
    assert.are.same(expected, F.conv2d(x, w, { padding = "same" }):totable())
    assert.are.same(expected, F.conv2d(x, w, nil, { padding = "same" }):totable())
    assert.are.same(expected, F.conv2d(x, w, nil, 1, { padding = "same" }):totable())
    assert.are.same(expected, F.conv2d(x, w, { padding = 1 }):totable())
    assert.are.same(expected, F.conv2d(x, w, { padding = { 1, 1 }, bias = core.zeros(1) }):totable())
    assert.are.same(F.conv2d(x, w):totable(), F.conv2d(x, w, { padding = "valid" }):totable())
    assert.are.same(core.conv2d(x, w, nil, 2):totable(),
      core.conv2d(x, w, { stride = 2 }, nil, nil):totable())
  end)

  it("are checked, and not given twice", function()
    raises("unknown option", F.conv2d, x, w, { paddin = "same", padding = "same" })
    raises("padding is given twice", F.conv2d, x, w, nil, 1, "same", { padding = "same" })
    raises("padding: expected an integer, a list of two, \"same\" or \"valid\"", F.conv2d, x, w,
      { padding = "sane" })
    raises("unknown option 'bogus'", F.instance_norm, core.randn(1, 2, 3), nil, nil, nil, nil,
      { eps = 3, bogus = 1 })
    raises("option 'p' must be at least 0", F.dropout2d, x, { p = -1 })
  end)

  it("may give the tensors, too, by PyTorch's names", function()
    local y, theta = core.randn(2, 3, 4, 4), core.randn(2, 2, 3)
    local size = { scale_factor = 2, mode = "bilinear" }
    assert.same(F.interpolate(y, size):tolist(),
      F.interpolate({ input = y, scale_factor = 2, mode = "bilinear" }):tolist())
    assert.same(F.normalize(y, { dim = 2 }):tolist(), F.normalize({ input = y, dim = 2 }):tolist())
    assert.equal("Fold(output_size=4, kernel_size=2, dilation=1, padding=0, stride=2)",
      tostring(nn.Fold({ output_size = { 4, 4 }, kernel_size = 2, stride = 2 })))
    assert.equal(tostring(nn.Unfold(2, { stride = 2 })), tostring(nn.Unfold({ kernel_size = 2, stride = 2 })))
    assert.same(F.unfold(y, 3):tolist(), F.unfold({ input = y, kernel_size = 3 }):tolist())
    assert.same(F.fold(F.unfold(y, 2), 4, 2):tolist(),
      F.fold({ input = F.unfold(y, 2), output_size = { 4, 4 }, kernel_size = 2 }):tolist())
    assert.same(F.affine_grid(theta, { 2, 3, 4, 4 }, true):tolist(),
      F.affine_grid({ theta = theta, size = y.shape, align_corners = true }):tolist())
    assert.same(F.relu(y):tolist(), F.relu({ input = y, inplace = false }):tolist())
    assert.same(F.conv2d(x, w):tolist(), F.conv2d({ input = x, weight = w }):tolist())
    local p = nn.Linear(2, 2)
    p(core.ones(1, 2)):sum():backward()
    assert.near(6 ^ 0.5, nn.utils.clip_grad_norm_({ parameters = p:parameters(), max_norm = 1 }):item(), 1e-6)
    nn.utils.clip_grad_value_({ parameters = p:parameters(), clip_value = 0.25 })
    assert.same({ 0.25, 0.25 }, p.bias.grad:tolist())
    raises("interpolate: input is given twice, by position and by name", F.interpolate, y, { input = y })
    raises("unfold: kernel_size is missing", F.unfold, { input = y })
    raises("clip_grad_norm_: max_norm is missing", nn.utils.clip_grad_norm_, p:parameters())
  end)

  it("reach instance_norm", function()
    local y = core.tensor { { { 1, 2, 3 } } }
    local expected = { -0.522232967, 0, 0.522232967 }
    close(expected, F.instance_norm(y, nil, nil, nil, nil, { eps = 3 }))
    close(expected, F.instance_norm(y, { eps = 3 }))
    close(expected, F.instance_norm(y, nil, nil, nil, nil, true, 0.1, 3))
  end)

  it("may follow the positions of modules", function()
    assert.are.equal("MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)",
      tostring(nn.MaxPool2d(3, 2, { padding = 1 })))
    assert.are.same({ 1, 1, 3, 3 }, nn.MaxPool2d(3, 2, { padding = 1 })(x).shape)
    assert.are.same({ 1, 1, 3, 3 }, nn.AvgPool2d(3, 2, 1, { divisor_override = 4 })(x).shape)
    assert.are.same({ 1, 5, 3 }, nn.MaxPool1d(3, 2, { padding = 1 })(x[1]).shape)
    assert.are.same({ 1, 1, 2, 3 }, nn.AdaptiveAvgPool2d({ 2, 3 })(x).shape)
    assert.are.equal("Conv2d(3, 4, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))",
      tostring(nn.Conv2d(3, 4, 3, 2, { padding = 1 })))
    assert.are.equal("Dropout(p=0.3, inplace=True)", tostring(nn.Dropout(0.3, { inplace = true })))
    raises("MaxPool2d: stride is given twice, by position and by name", nn.MaxPool2d, 3, 2, { stride = 1 })
    raises("MaxPool2d: an argument too many: 7", nn.MaxPool2d, 3, 2, 1, 1, false, 7)
    raises("MaxPool2d: unknown option 'pading'", nn.MaxPool2d, 3, 2, { pading = 1 })
  end)
end)

describe("counts and sizes of modules", function()
  it("have sane ranges", function()
    local layer = nn.TransformerEncoderLayer(4, 2, { dim_feedforward = 4 })
    for _, count in ipairs { 1e300, 2 ^ 53, 0, -1, 1.5, math.huge, 0 / 0 } do
      raises("num_layers", nn.TransformerEncoder, layer, count)
      raises("num_layers", nn.LSTM, 2, 2, { num_layers = count })
      raises("num_encoder_layers", nn.Transformer, { d_model = 4, nhead = 2, num_encoder_layers = count })
      raises("num_decoder_layers", nn.Transformer, { d_model = 4, nhead = 2, num_decoder_layers = count })
    end
    for _, factor in ipairs { 2 ^ 31, 2 ^ 32, 1e300, 0, 0.5 } do
      raises("upscale_factor", nn.PixelShuffle, factor)
      raises("downscale_factor", nn.PixelUnshuffle, factor)
      raises("kernel_size", nn.MaxPool2d, factor)
      raises("stride", nn.AvgPool2d, 2, factor)
      raises("output_size", nn.AdaptiveAvgPool2d, factor)
      raises("dilation", nn.Conv2d, 1, 1, 3, { dilation = factor })
      raises("in_features", nn.Linear, factor == 2 ^ 31 and -1 or factor == 2 ^ 32 and 1e300 or factor, 1)
    end
  end)
end)
