--- Every row of the op table under automatic casting: the policies against PyTorch's lists, and
--- results and gradients, from float32 and from mixed inputs, against float64 within what bfloat16
--- can hold.
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local cases = require "spec.support.op_cases"
local build = require("spec.support.op_inputs").build

-- PyTorch's lists for a CPU and for a GPU together, as far as rows of these names are there. Where
-- only one of them names an op, that one counts here.
local LISTS = {
  lower = [[matmul mm bmm baddbmm addmm addbmm addmv addr mv linear conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention prelu
    lstm_cell gru_cell]],
  float = [[acos asin cosh tan sinh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt pow softplus sum
    prod norm cumsum cumprod softmax log_softmax layer_norm group_norm cross_entropy nll_loss mse_loss
    l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits
    cosine_embedding_loss hinge_embedding_loss margin_ranking_loss soft_margin_loss triplet_margin_loss
    poisson_nll_loss gaussian_nll_loss cosine_similarity cdist dist renorm quantile]],
  widest = [[cat stack index_copy scatter_add addcdiv addcmul cross]],
}

-- What this library runs in float32 beyond those: functions whose results a half type holds badly.
local BEYOND = {}
for name in ([[mean var std logsumexp nansum rms_norm sqrt sin cos atan atan2 asinh acosh atanh exp2 erf
  erfc logaddexp xlogy hypot logsigmoid lgamma digamma]]):gmatch("%S+") do BEYOND[name] = true end

local function lower(t) return t.dtype == "float32" and t:to("bfloat16") or t end

describe("the policy", function()
  local rows, listed = {}, {}
  for _, row in ipairs(core.ops()) do rows[row.name] = row end

  for policy, names in pairs(LISTS) do
    for name in names:gmatch("%S+") do
      listed[name] = true
      local row = rows[name]
      if row then
        it(("of %s is PyTorch's, %s"):format(name, policy), function()
          -- an op made of others gets its policy from them, and promotion is what widest means
          if row.autocast ~= policy then
            assert.is_true(row.form == "composite" and row.autocast == "keep", name .. " is " .. row.autocast)
          end
        end)
      end
    end
  end

  it("puts nothing else into a lower type, and into float32 only what is known", function()
    -- recurrent layers and what is put together from products, which run lower wherever they stand
    local known = { lower = {}, float = BEYOND }
    for name in ("lstm_layer gru_layer rnn_layer linear_gelu dot outer inner tensordot einsum"):gmatch(
      "%S+") do
      known.lower[name] = true
    end
    for name, row in pairs(rows) do
      if not row.hidden and known[row.autocast] then
        assert.is_true(listed[name] or known[row.autocast][name] or false,
          ("%s is %s: list it in spec/kernels/autocast_spec.lua with the reason"):format(name, row.autocast))
      end
    end
  end)
end)

-- Rows whose results cannot be compared so: they choose or count, and rounding changes the choice;
-- batch_norm's case has float64 buffers of its own, so it has a test below.
local EXACT = {}
for name in (
  [[floor ceil round trunc frac sign remainder fmod floor_divide sort argsort topk kthvalue median
    batch_norm]]):gmatch("%S+") do
  EXACT[name] = true
end

local function compare(what, got, expected, tolerance)
  if not core.is_tensor(expected) then return end
  assert.are.same(expected.shape, got.shape, what)
  if not expected.dtype:find("float") then return end
  local scale = math.max(1, expected:abs():max():item())
  local off = (got:double() - expected:double()):abs():max():item()
  if not (off <= tolerance * scale) then error(("%s: off by %g of %g"):format(what, off, scale), 0) end
end

describe("under autocast", function()
  for _, row in ipairs(core.ops()) do
    local case = cases[row.name]
    if case and case.inputs and case.call and not (case.through or case.spec or case.creator or case.exact
      or EXACT[row.name]) and not row.hidden then
      -- complex numbers have no half types, here as in PyTorch
      local hows = case.no_half and { "float32 inputs" }
        or { "float32 inputs", "bfloat16 inputs", "a bfloat16 first input" }
      for _, how in ipairs(hows) do
        it(("%s gives what it gives in float64, from %s"):format(row.name, how), function()
          local leaves, inputs = build(case, "contiguous")
          if #leaves == 0 or leaves[1]:numel() == 0 then return end
          local exact, low, masters = {}, {}, {}
          for k, leaf in ipairs(leaves) do
            local given = leaf:detach()
            if given.dtype == "float64" then
              given = given:to("bfloat16"):float() -- both sides begin with the same numbers
              exact[k] = given:double():requires_grad_()
              masters[k] = given:clone():requires_grad_()
              local half = how == "bfloat16 inputs" or (how ~= "float32 inputs" and k == 1)
              low[k] = half and lower(masters[k]) or masters[k]
            else exact[k], low[k] = given, given end
          end
          local want = { case.call(inputs(unpack(exact))) }
          local got = { tensor.autocast(function() return case.call(inputs(unpack(low))) end) }
          for k = 1, #want do compare(row.name .. " result " .. k, got[k], want[k], 0.05) end
          if not (row.differentiable or row.form == "composite") then return end
          local function pull(results)
            local sum
            for _, t in ipairs(results) do
              if core.is_tensor(t) and t.requires_grad then
                local part = (t:to("float64") * 0.5):sum()
                sum = sum and sum + part or part
              end
            end
            if sum then sum:backward() end
          end
          pull(want)
          pull(got)
          for k, master in pairs(masters) do
            if exact[k].grad then
              assert.is_truthy(master.grad, row.name .. ": no gradient")
              assert.are.equal("float32", master.grad.dtype)
              compare(row.name .. " gradient " .. k, master.grad, exact[k].grad, 0.08)
            end
          end
        end)
      end
    end
  end

  it("batch_norm takes bfloat16 beside float32 weights and buffers", function()
    tensor.manual_seed(2)
    local x = tensor.randn(6, 5, 4, 4)
    local weight, bias = tensor.rand(5), tensor.rand(5)
    local results, gradients = {}, {}
    for i, half in ipairs { false, true } do
      local leaf, w, b = x:to(
        "bfloat16"):float():requires_grad_(), weight:clone():requires_grad_(), bias:clone():requires_grad_()
      local mean, var = tensor.zeros(5), tensor.ones(5)
      local y = tensor.autocast({ enabled = half }, function()
        return tensor.batch_norm(half and leaf:to("bfloat16") or leaf,
          { running_mean = mean, running_var = var, weight = w, bias = b, training = true })
      end)
      assert.are.equal(half and "bfloat16" or "float32", y.dtype)
      local product = y:float() * x
      product:sum():backward()
      results[i], gradients[i] = { y, mean, var }, { leaf.grad, w.grad, b.grad }
    end
    for k = 1, 3 do
      compare("result " .. k, results[2][k], results[1][k], 0.02)
      assert.are.equal("float32", gradients[2][k].dtype)
      compare("gradient " .. k, gradients[2][k], gradients[1][k], 0.02)
    end
  end)
end)
