--- accelerate.init_empty_weights and init_on_device: models without memory for their weights.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local raises = require("spec.support.messages").raises
local models, nn, tensor, utils = accelerate.models, accelerate.nn, accelerate.tensor, accelerate.utils

local NOTHING = "a tensor of the device meta has no elements"

local function network()
  return nn.Sequential(nn.Embedding(50, 8, { padding_idx = 0 }), nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4),
    nn.LSTM(6, 5), nn.MultiheadAttention(6, 2), nn.LayerNorm(6), nn.Linear(6, 3))
end

describe("init_empty_weights", function()
  it("makes models of every kind of layer without memory", function()
    local model = accelerate.init_empty_weights(network)
    for name, p in model:named_parameters() do
      assert.equal("meta", p.device, name)
      assert.is_true(p.requires_grad)
    end
    for name, b in model:named_buffers() do assert.equal("cpu", b.device, name) end
    assert.equal("cpu", nn.Linear(2, 2).weight.device)
    local bare = accelerate.init_empty_weights({ include_buffers = true }, network)
    for name, b in bare:named_buffers() do assert.equal("meta", b.device, name) end
    assert.equal(tostring(network()), tostring(model))
  end)

  it("leaves the generator where a model with memory does", function()
    tensor.manual_seed(3)
    network()
    local drawn = nn.Linear(3, 3).weight:tolist()
    tensor.manual_seed(3)
    accelerate.init_empty_weights(network)
    assert.same(drawn, nn.Linear(3, 3).weight:tolist())
  end)

  it("takes no memory for a model of 124 million parameters", function()
    collectgarbage() collectgarbage()
    local before = core.memory_stats("cpu").live_bytes
    local model = accelerate.init_empty_weights(models.from_config, { model_type = "gpt2",
      architectures = { "GPT2LMHeadModel" } })
    local count = 0
    for _, p in ipairs(model:parameters()) do count = count + p:numel() end
    assert.equal(124439808, count)
    collectgarbage() collectgarbage()
    assert.is_true(core.memory_stats("cpu").live_bytes - before < 5e6)
  end)

  it("makes layers that are larger than the memory of any machine", function()
    local before = core.memory_stats("cpu").live_bytes
    local layers = accelerate.init_empty_weights(function()
      return nn.Sequential(nn.Embedding(2 ^ 30, 2 ^ 12), nn.Linear(2 ^ 22, 2 ^ 21), nn.LSTM(2 ^ 20, 2 ^ 20),
        nn.Conv2d(2 ^ 20, 2 ^ 20, 3), nn.Bilinear(2 ^ 14, 2 ^ 14, 2 ^ 14), nn.MultiheadAttention(2 ^ 21, 2))
    end)
    assert.equal(2 ^ 44, utils.compute_module_sizes(layers[1])[""])
    assert.is_true(core.memory_stats("cpu").live_bytes - before < 1e6)
  end)

  it("gives models that are loaded and then compute what the others do", function()
    local function small()
      return models.GPT2LMHeadModel { n_layer = 2, n_embd = 16, n_head = 2, vocab_size = 30,
        n_positions = 16 }
    end
    local full = small():eval()
    local empty, more = accelerate.init_empty_weights(function(x) return small():eval(), x end, 7)
    assert.equal(7, more)
    local ids = tensor { { 1, 2, 3 } }:long()
    raises(NOTHING, empty, ids)
    empty:load_state_dict(full:state_dict(), { assign = true })
    assert.same(full(ids).logits:tolist(), empty(ids).logits:tolist())
    assert.is_true(rawequal(empty.lm_head.weight, empty.transformer.wte.weight))
  end)

  it("raises where elements are read or written", function()
    local layer = accelerate.init_empty_weights(function() return nn.Linear(3, 2) end)
    local w = layer.weight
    for name, fn in pairs {
      forward = function() return layer(tensor.ones(1, 3)) end,
      tolist = function() return w:tolist() end,
      item = function() return w[1][1]:item() end,
      sum = function() return w:sum() end,
      to = function() return w:to "cpu" end,
      double = function() return w:double() end,
      copy = function()
        local large = accelerate.init_empty_weights(nn.Linear, 1024, 1024).weight
        return tensor.no_grad(function() return large:copy_(tensor.ones(1024, 1024)) end)
      end,
      load = function() return layer:load_state_dict(nn.Linear(3, 2):state_dict()) end,
      inverse = function() return tensor.linalg.inv(w:narrow(2, 1, 2)) end,
      concatenate = function() return tensor.cat({ w, tensor.ones(2, 3) }, 1) end,
      save = function()
        return accelerate.Accelerator({ cpu = true }):save_model(layer, "/tmp/never made")
      end,
    } do
      local ok, why = pcall(fn)
      assert.is_false(ok, name)
      assert.is_truthy(tostring(why):find("meta", 1, true), name .. ": " .. tostring(why))
    end
    assert.is_false(fs.exists("/tmp/never made"))
    raises("another device", function() return w:data_ptr() end)
    assert.same({ 3, 2 }, w:t().shape)
    assert.equal(6, w:numel())
    assert.equal("tensor(..., device='meta', size=(2, 3), requires_grad=True)", tostring(w))
  end)

  it("checks what it is called with, and ends when the function raises", function()
    raises("expected a function", accelerate.init_empty_weights)
    raises("include_buffer", accelerate.init_empty_weights, { include_buffer = true }, network)
    raises("oh", accelerate.init_empty_weights, function() error "oh" end)
    assert.equal("cpu", nn.Linear(2, 2).weight.device)
    local w = nn.Linear(2, 2).weight
    assert.is_true(w:abs():sum():item() > 0)
  end)
end)

describe("init_on_device", function()
  it("makes parameters on a device, with values where it has memory", function()
    local layer = accelerate.init_on_device("cpu", function() return nn.Linear(4, 4) end)
    assert.is_true(layer.weight:abs():sum():item() > 0)
    assert.equal("meta", accelerate.init_on_device("meta", { include_buffers = false },
      network)[1].weight.device)
    raises("init_on_device: device: expected \"cpu\"", accelerate.init_on_device, "nowhere", network)
    raises("expected a function", accelerate.init_on_device, "cpu")
  end)
end)

describe("the device meta", function()
  it("takes tensors that have elements, and drops these", function()
    local x = tensor.randn(3, 4, { requires_grad = true })
    for _, empty in ipairs { x:to "meta", x:t():to("meta", "float16"), x:to { device = "meta", copy = true },
      tensor.arange(5):to(x:to "meta"), x:to("meta"):to "float64" } do
      assert.equal("meta", empty.device)
      raises(NOTHING, empty.sum, empty)
    end
    local half = x:t():to("meta", "float16")
    assert.same({ 4, 3, "float16" }, { half:size(1), half:size(2), half.dtype })
    raises(NOTHING, function() return half:to "cpu" end)
    assert.equal("cpu", x.device)
  end)

  it("takes new tensors, without drawing anything", function()
    tensor.manual_seed(1)
    local next_draw = tensor.rand(1):item()
    tensor.manual_seed(1)
    local on = { device = "meta" }
    for _, empty in ipairs { tensor.zeros(3, on), tensor.ones(3, on), tensor.full({ 3 }, 2, on),
      tensor.rand(3, on), tensor.randn(3, on), tensor.zeros_like(tensor.ones(3), on),
      tensor.full_like(tensor.ones(3), 2, on) } do
      assert.same({ "meta", 3 }, { empty.device, empty:size(1) })
    end
    assert.equal(next_draw, tensor.rand(1):item())
  end)

  it("takes modules, their buffers and gradients", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    net(tensor.randn(5, 3)):sum():backward()
    local weight = net[1].weight
    net:to "meta"
    assert.is_true(rawequal(weight, net[1].weight))
    for name, t in pairs(net:state_dict()) do assert.equal("meta", t.device, name) end
    assert.equal("meta", weight.grad.device)
    raises(NOTHING, net, tensor.randn(5, 3))
    raises(NOTHING, net.to, net, "cpu")
    net:load_state_dict(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)):state_dict(), { assign = true })
    assert.same({ 2, 4 }, net(tensor.randn(2, 3)).shape)
  end)
end)
