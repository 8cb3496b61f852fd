-- lua/accelerate/utils/positions.lua: arguments by position in PyTorch's order, and by name.
local F = require "accelerate.nn.functional"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local positions = require "accelerate.utils.positions"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local function shown(object) return (tostring(object):gsub("%s+", " ")) end

describe("arguments of constructors", function()
  it("go by position in PyTorch's order, or by name", function()
    for _, case in ipairs {
      { nn.Linear(3, 4, false), nn.Linear { in_features = 3, out_features = 4, bias = false } },
      { nn.Linear(3, 4), nn.Linear(3, { out_features = 4 }) },
      { nn.Conv2d(3, 8, 5), nn.Conv2d { in_channels = 3, out_channels = 8, kernel_size = 5 } },
      { nn.Conv2d(3, 8, 5, 2, 1), nn.Conv2d(3, 8, { kernel_size = 5, stride = 2, padding = 1 }) },
      { nn.MaxPool2d(3, 2), nn.MaxPool2d { kernel_size = 3, stride = 2 } },
      { nn.Embedding(9, 4, 0), nn.Embedding(9, 4, { padding_idx = 0 }) },
      { nn.LSTM(3, 4, 2), nn.LSTM { input_size = 3, hidden_size = 4, num_layers = 2 } },
      { nn.LayerNorm(8, 1e-3), nn.LayerNorm { normalized_shape = 8, eps = 1e-3 } },
      { nn.BatchNorm2d(4, 1e-3, 0.2), nn.BatchNorm2d(4, { eps = 1e-3, momentum = 0.2 }) },
      { nn.GroupNorm(2, 4, 1e-3, false), nn.GroupNorm(2, 4, { eps = 1e-3, affine = false }) },
      { nn.LeakyReLU(0.2, true), nn.LeakyReLU { negative_slope = 0.2, inplace = true } },
      { nn.ReLU(true), nn.ReLU { inplace = true } },
      { nn.Softmax(2), nn.Softmax { dim = 2 } },
      { nn.Upsample(nil, 2, "bilinear"), nn.Upsample { scale_factor = 2, mode = "bilinear" } },
      { nn.TransformerEncoderLayer(8, 2, 16, 0.2),
        nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16, dropout = 0.2 }) },
    } do
      assert.equal(shown(case[2]), shown(case[1]))
    end
    assert.same({ 1, 2 }, nn.CrossEntropyLoss(tensor { 1, 2 }).weight:tolist())
    assert.is_nil(nn.Linear(3, 4, false).bias)
  end)

  it("are those of optimizers and schedulers, too", function()
    local function rates(make)
      local optimizer = optim.SGD({ nn.Parameter(tensor.ones(1)) }, 0.5, 0.9)
      assert.equal(0.9, optimizer.param_groups[1].momentum)
      local scheduler, list = make(optimizer), {}
      for i = 1, 4 do
        optimizer:step()
        scheduler:step()
        list[i] = optimizer.param_groups[1].lr
      end
      return list
    end
    local S = optim.lr_scheduler
    for _, case in ipairs {
      { function(o) return S.StepLR(o, 2, 0.5) end,
        function(o) return S.StepLR(o, { step_size = 2, gamma = 0.5 }) end },
      { function(o) return S.MultiStepLR(o, { 1, 3 }) end,
        function(o) return S.MultiStepLR(o, { milestones = { 1, 3 } }) end },
      { function(o) return S.CosineAnnealingLR(o, 4, 0.1) end,
        function(o) return S.CosineAnnealingLR { optimizer = o, T_max = 4, eta_min = 0.1 } end },
      { function(o) return S.ExponentialLR(o, 0.5) end,
        function(o) return S.ExponentialLR(o, { gamma = 0.5 }) end },
    } do
      assert.same(rates(case[2]), rates(case[1]))
    end
    local adam = optim.Adam({ nn.Parameter(tensor.ones(1)) }, 0.1, { 0.5, 0.6 }, { eps = 1e-3 })
    assert.same({ 0.1, 0.5, 1e-3 }, { adam.param_groups[1].lr, adam.param_groups[1].betas[1],
      adam.param_groups[1].eps })
  end)

  it("raise when one is too many, twice, missing or unknown", function()
    raises("Linear: an argument too many: 5; there are in_features, out_features, bias", nn.Linear, 3, 4,
      true, 5)
    raises("Linear: bias is given twice, by position and by name", nn.Linear, 3, 4, true, { bias = true })
    raises("Linear: in_features is given twice", nn.Linear, 3, 4, { in_features = 3 })
    raises("Linear: out_features is missing", nn.Linear, { in_features = 3 })
    raises("Linear: unknown option 'bias_'", nn.Linear, 3, 4, { bias_ = true })
    raises("Softmax: unknown option 'bogus'", nn.Softmax, 2, { bogus = 1 })
    raises("ChannelShuffle: an argument too many: 2", nn.ChannelShuffle, 2, 2)
    raises("ChannelShuffle: unknown option 'bogus'", nn.ChannelShuffle, 2, { bogus = 1 })
    raises("ConstantPad2d: unknown option 'bogus'", nn.ConstantPad2d, 2, 2,
      { bogus = 1 })
    raises("SGD: option 'lr' must be a number", optim.SGD, { nn.Parameter(tensor.ones(1)) }, "fast")
  end)

  it("of lists of modules have no names, which would be lost", function()
    local layer = nn.Linear(2, 2)
    raises("Sequential: expected a list of modules, got one with the key 'a'", nn.Sequential, { a = layer })
    raises("ModuleList: expected a list of modules, got one with the key 'a'", nn.ModuleList, { a = layer })
    raises("ParameterList: expected a list of tensors, got one with the key 'a'", nn.ParameterList,
      { a = tensor.ones(1) })
  end)
end)

describe("arguments of functions", function()
  it("go by position, or by name", function()
    local a, b = tensor.randn(3, 4), tensor.randn(3, 4)
    assert.is_true(F.normalize(a, 1, 1):equal(F.normalize(a, { p = 1, dim = 1 })))
    assert.is_true(F.cosine_similarity(a, b, 1):equal(F.cosine_similarity { x1 = a, x2 = b, dim = 1 }))
    assert.is_true(tensor.cdist(a, b, 1):equal(tensor.cdist(a, b, { p = 1 })))
    assert.matches("cdist: option 'compute_mode' must be one of use_mm_for_euclid_dist_if_necessary,",
      select(2, pcall(tensor.cdist, a, b, { compute_mode = "fast" })))
    local image = tensor.randn(1, 1, 4, 4)
    assert.is_true(F.interpolate(image, { 8, 8 }, nil, "bilinear"):equal(
      F.interpolate(image, { size = { 8, 8 }, mode = "bilinear" })))
    assert.is_true(F.triplet_margin_loss(a, b, a * 2, 0.5, 1):equal(
      F.triplet_margin_loss(a, b, a * 2, { margin = 0.5, p = 1 })))
  end)

  it("of losses are tensors", function()
    local x = tensor.randn(3)
    for _, name in ipairs { "hinge_embedding_loss", "soft_margin_loss", "multi_margin_loss",
      "multilabel_margin_loss", "multilabel_soft_margin_loss", "poisson_nll_loss" } do
      raises(name .. ": target must be a tensor, got 1.5", F[name], x, 1.5)
      raises(name .. ": input must be a tensor, got nil", F[name])
    end
    raises("margin_ranking_loss: target must be a tensor, got nil", F.margin_ranking_loss, x, x)
    raises("triplet_margin_loss: negative must be a tensor, got nil", F.triplet_margin_loss, x, x)
  end)

  it("are shown by their order", function()
    assert.equal("in_features, out_features, [bias], [opts]", positions.shown(nn.Linear.init))
    assert.equal("optimizer, step_size, [gamma], [last_epoch], [opts]",
      positions.shown(optim.lr_scheduler.StepLR.init))
    assert.is_nil(positions.shown(print))
  end)
end)
