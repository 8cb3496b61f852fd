--- Norms, attention and transformer layers as modules: parameters, initialisation, modes, messages.
--- Values: spec/kernels/torch_spec.lua.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local message = require("spec.support.messages").message
local largest = require("spec.support.numbers").largest

local function names(module)
  local list = {}
  for name, p in module:named_parameters() do
    list[#list + 1] = ("%s[%s]"):format(name, table.concat(p.shape, ","))
  end
  return table.concat(list, " ")
end

describe("norm modules", function()
  it("have PyTorch's parameters and start at ones and zeros", function()
    assert.are.equal("weight[4] bias[4]", names(nn.LayerNorm(4)))
    assert.are.equal("weight[2,3]", names(nn.LayerNorm({ 2, 3 }, { bias = false })))
    assert.are.equal("", names(nn.LayerNorm(4, { elementwise_affine = false })))
    assert.are.equal("weight[4]", names(nn.RMSNorm(4)))
    assert.are.equal("weight[6] bias[6]", names(nn.GroupNorm(2, 6)))
    assert.are.same({ 1, 1, 1, 1 }, nn.LayerNorm(4).weight:totable())
    assert.are.same({ 0, 0, 0, 0 }, nn.LayerNorm(4).bias:totable())
  end)

  it("normalise", function()
    local y = nn.LayerNorm(64)(tensor.randn(5, 64) * 3 + 2)
    assert.is_true(y:mean(2):abs():max():item() < 1e-5)
    assert.is_true(math.abs(y:square():mean():item() - 1) < 1e-3)
    assert.is_true(math.abs(nn.RMSNorm(64)(tensor.randn(5, 64)):square():mean():item() - 1) < 1e-4)
    local g = nn.GroupNorm(2, 4)(tensor.randn(3, 4, 10) + 5):view(3, 2, 20)
    assert.is_true(g:mean(3):abs():max():item() < 1e-5)
  end)

  it("name what does not fit", function()
    assert.truthy(message(nn.LayerNorm(4), tensor.randn(2, 5)):find("[2, 5]", 1, true))
    assert.truthy(message(nn.GroupNorm, 3, 4):find("multiple", 1, true))
    assert.truthy(message(nn.LayerNorm, 4, { epsilon = 1 }):find("eps", 1, true))
  end)

  it("add weight gradients into the flat slots", function()
    local model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.Linear(8, 1))
    local twin = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.Linear(8, 1))
    twin:load_state_dict(model:state_dict())
    local accelerate, optim = require "accelerate", require "accelerate.optim"
    local accelerator = accelerate.Accelerator()
    local prepared = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 0 }))
    local x = tensor.randn(70, 8)
    for _ = 1, 2 do -- the second time it accumulates
      prepared(x):sum():backward()
      twin(x):sum():backward()
    end
    local theirs = twin:parameters()
    for i, p in ipairs(model:parameters()) do assert.is_true(largest(p.grad, theirs[i].grad) < 1e-4) end
  end)
end)

describe("nn.MultiheadAttention", function()
  it("has PyTorch's parameters", function()
    assert.are.equal("in_proj_weight[24,8] in_proj_bias[24] out_proj.weight[8,8] out_proj.bias[8]",
      names(nn.MultiheadAttention(8, 2)))
    assert.are.equal("q_proj_weight[8,8] k_proj_weight[8,3] v_proj_weight[8,5] out_proj.weight[8,8]",
      names(nn.MultiheadAttention(8, 2, { kdim = 3, vdim = 5, bias = false })))
    assert.are.equal("in_proj_weight[24,8] in_proj_bias[24] bias_k[1,1,8] bias_v[1,1,8] " ..
      "out_proj.weight[8,8] out_proj.bias[8]",
      names(nn.MultiheadAttention(8, 2, { add_bias_kv = true })))
    local m = nn.MultiheadAttention(32, 4)
    local bound = math.sqrt(6 / (32 + 96))
    assert.is_true(m.in_proj_weight:abs():max():item() <= bound
      and m.in_proj_weight:abs():max():item() > 0.9 * bound)
    assert.are.equal(0, m.in_proj_bias:abs():max():item() + m.out_proj.bias:abs():max():item())
  end)

  it("gives the same with weights and without", function()
    local m = nn.MultiheadAttention(16, 4, { batch_first = true })
    local x, y = tensor.randn(3, 7, 16), tensor.randn(3, 9, 16)
    local padding = core.arange(9):ge(core.tensor({ 9, 4, 7 }, { dtype = "int64" }):view(3, 1))
    for _, options in ipairs { {}, { key_padding_mask = padding }, { attn_mask = core.randn(7, 9) } } do
      local slow, weights = m(x, y, y, options)
      assert.are.same({ 3, 7, 9 }, weights.shape)
      assert.is_true(math.abs(weights:sum(3):max():item() - 1) < 1e-5)
      options.need_weights = false
      local fast, none = m(x, y, y, options)
      assert.is_nil(none)
      assert.is_true(largest(slow, fast) < 1e-5)
    end
    assert.is_true(largest((m(x, x, x, { is_causal = true, need_weights = false })),
      (m(x, x, x, { is_causal = true }))) < 1e-5)
  end)

  it("trains with dropout, and leaves it out in evaluation", function()
    local m = nn.MultiheadAttention(16, 4, { dropout = 0.5 })
    local x = tensor.randn(5, 2, 16)
    local a, b = m(x, x, x, { need_weights = false }), m(x, x, x, { need_weights = false })
    assert.is_true(largest(a, b) > 1e-3)
    m:eval()
    a, b = m(x, x, x, { need_weights = false }), m(x, x, x, { need_weights = false })
    assert.are.equal(0, largest(a, b))
  end)

  it("gives every parameter a gradient", function()
    for _, options in ipairs { {}, { kdim = 6, vdim = 6 }, { add_bias_kv = true, add_zero_attn = true } } do
      local m = nn.MultiheadAttention(8, 2, options)
      local kv = tensor.randn(4, 3, options.kdim or 8)
      m(tensor.randn(5, 3, 8), kv, kv, { need_weights = false }):square():sum():backward()
      for name, p in m:named_parameters() do
        assert.is_true(p.grad ~= nil and p.grad:isfinite():all():item(), name)
      end
    end
  end)

  it("names what does not fit", function()
    local m = nn.MultiheadAttention(8, 2)
    local x = tensor.randn(5, 3, 8)
    assert.truthy(message(m, x, x, x,
      { key_padding_mask = tensor.zeros(5, 3):gt(0) }):find("key_padding_mask must have shape [3, 5]", 1,
      true))
    assert.truthy(message(m, x, x, x, { attn_mask = tensor.zeros(5, 4) }):find("[5, 5]", 1, true))
    assert.truthy(message(m, x, x, x, { attn_mask = tensor.zeros({ 5, 5 }, { dtype = "int64" }) }):find(
      "bool", 1, true))
    assert.truthy(message(m, x[1], x, x):find("[3, 8]", 1, true))
    assert.truthy(message(m, x, x, x, { need_weight = false }):find("need_weights", 1, true))
    assert.truthy(message(nn.MultiheadAttention, 8, 3):find("multiple", 1, true))
  end)
end)

describe("transformer layers", function()
  it("have PyTorch's parameters", function()
    assert.are.equal("self_attn.in_proj_weight[12,4] self_attn.in_proj_bias[12] " ..
      "self_attn.out_proj.weight[4,4] self_attn.out_proj.bias[4] " ..
      "linear1.weight[6,4] linear1.bias[6] linear2.weight[4,6] linear2.bias[4] norm1.weight[4] " ..
        "norm1.bias[4] norm2.weight[4] norm2.bias[4]",
      names(nn.TransformerEncoderLayer(4, 2, { dim_feedforward = 6 })))
    assert.are.equal("self_attn.in_proj_weight[12,4] self_attn.out_proj.weight[4,4] " ..
      "multihead_attn.in_proj_weight[12,4] " ..
      "multihead_attn.out_proj.weight[4,4] linear1.weight[6,4] linear2.weight[4,6] norm1.weight[4] " ..
        "norm2.weight[4] norm3.weight[4]",
      names(nn.TransformerDecoderLayer(4, 2, { dim_feedforward = 6, bias = false })))
  end)

  it("are copied with parameters of their own", function()
    local stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, { dim_feedforward = 6 }), 2)
    local first, second = stack.layers[1].linear1.weight, stack.layers[2].linear1.weight
    assert.are.equal(0, largest(first, second))
    tensor.no_grad(function() first:add_(1) end)
    assert.is_true(largest(first, second) > 0.5)
    stack:eval()
    assert.is_false(stack.layers[2].dropout.training)
  end)

  it("say which operand of attention is missing", function()
    local attention, x = nn.MultiheadAttention(8, 2), tensor.ones(4, 2, 8)
    local raises = require("spec.support.messages").raises
    raises("key must be a tensor, got nil", attention, x)
    raises("value must be a tensor, got nil", attention, x, x)
  end)

  it("take PyTorch's options for padding, which change nothing", function()
    local layer = nn.TransformerEncoderLayer(4, 2, { dim_feedforward = 6, dropout = 0 })
    local x, norm = tensor.randn(3, 2, 4), nn.LayerNorm(4)
    local plain = nn.TransformerEncoder(layer, 2, norm)
    local named = nn.TransformerEncoder(layer, { num_layers = 2, norm = norm, enable_nested_tensor = false,
      mask_check = true })
    assert.are.equal(0, largest(plain(x), named(x)))
    assert.are.equal(0, largest(plain(x), nn.TransformerEncoder(layer, 2, norm, false, false)(x)))
  end)

  it("are copied with their hooks, also those of weight_norm", function()
    local layer, calls = nn.TransformerEncoderLayer(4, 2, { dim_feedforward = 6, dropout = 0 }), 0
    nn.utils.weight_norm(layer.linear1)
    layer:register_forward_hook(function() calls = calls + 1 end)
    local stack, x = nn.TransformerEncoder(layer, 2), tensor.randn(3, 2, 4)
    local before = stack(x):detach()
    assert.are.equal(2, calls)
    tensor.no_grad(function() stack.layers[2].linear1.weight_g:mul_(3) end)
    local after = stack(x)
    assert.is_true(largest(before, after) > 1e-3)
    after:sum():backward()
    assert.is_truthy(stack.layers[1].linear1.weight_g.grad)
    assert.is_nil(layer.linear1.weight_g.grad)
  end)

  it("let hooks keep what they see", function()
    local layer = nn.TransformerEncoderLayer(4, 2, { dim_feedforward = 6 })
    local kept
    layer.linear1:register_forward_hook(function(_, _, out) kept = out end)
    layer(tensor.randn(3, 2, 4)):sum():backward()
    assert.are.same({ 3, 2, 6 }, kept.shape)
  end)

  it("learn to copy the token before", function()
    tensor.manual_seed(1)
    local T, V = 8, 5
    local Net = nn.class("Net")
    function Net:init()
      self.tok = nn.Parameter(tensor.randn(V, 16))
      self.pos = nn.Parameter(tensor.randn(T, 16))
      self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2,
        { dim_feedforward = 32, dropout = 0, batch_first = true, norm_first = true }), 1)
      self.head = nn.Linear(16, V)
    end
    function Net:forward(ids)
      local x = self.tok:index_select(1, ids:reshape(-1)):view(ids.shape[1], T, 16) + self.pos
      return self.head(self.body(x, { mask = nn.Transformer.generate_square_subsequent_mask(T) }))
    end
    local net = Net()
    local optimizer = require("accelerate.optim").AdamW(net:parameters(), { lr = 1e-2 })
    local loss
    for _ = 1, 150 do
      local ids = tensor.randint(0, V, { 16, T })
      local out = net(ids):narrow(2, 2, T - 1):reshape(-1, V)
      loss = nn.functional.cross_entropy(out, ids:narrow(2, 1, T - 1):reshape(-1))
      optimizer:zero_grad()
      loss:backward()
      optimizer:step()
    end
    assert.is_true(loss:item() < 0.1, "loss " .. loss:item())
  end)
end)
