-- Ops over 64 MB of float32, forward and with their gradient: milliseconds, and which share of the
-- copy bandwidth of the same run that is, by the fewest tensors the op could read and write.  One
-- line of JSON.  The same work as peer/bandwidth.py.
--
--   accel-run --num_cpu_threads_per_process 1 bench/bandwidth.lua [repetitions, default 30]
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local repetitions = tonumber(arg[1] or 30)
local n = 64 * 2 ^ 20 / 4
local x, other, grad = tensor.randn(n / 1024, 1024), tensor.randn(n / 1024, 1024), tensor.randn(n / 1024,
  1024)
local w, b = tensor.ones(1024), tensor.zeros(1024)
local logits = tensor.randn(n / 4096, 4096)
local label = tensor.randint(0, 4096, { n / 4096 })
local spare = tensor.empty(x.shape)
local one = tensor.tensor(1.0)

local result, copy_rate = {}, nil

local function measure(name, moves, fn)
  for _ = 1, 3 do fn() end
  local times = {}
  for i = 1, repetitions do
    local began = common.now()
    fn()
    times[i] = common.now() - began
  end
  local seconds = common.median(times)
  result[name .. "_ms"] = seconds * 1e3
  copy_rate = copy_rate or moves / seconds
  result[name .. "_of_copy"] = moves / seconds / copy_rate
end

-- fn forward, moving `forward` tensors; and, given a gradient g, with the gradients of all inputs,
-- moving `both`
local function op(name, forward, both, fn, g, ...)
  local inputs, leaves = { ... }, {}
  measure(name, forward, function() core.release(fn(unpack(inputs))) end)
  if not g then return end
  for i, t in ipairs(inputs) do leaves[i] = t:detach():requires_grad_() end
  measure(name .. "_grad", both, function()
    local y = fn(unpack(leaves))
    local grads = { tensor.grad({ y }, leaves, { grad_outputs = { g } }) }
    core.release(y)
    for _, t in ipairs(grads) do core.release(t) end
  end)
end

measure("copy", 2, function() spare:copy_(x) end)
op("add", 3, nil, core.add, nil, x, other)
op("relu", 2, 5, core.relu, grad, x)
op("exp", 2, 5, core.exp, grad, x)
op("tanh", 2, 5, core.tanh, grad, x)
op("sigmoid", 2, 5, core.sigmoid, grad, x)
op("gelu", 2, 5, function(v) return core.gelu(v, "tanh") end, grad, x)
op("gelu_erf", 2, 5, function(v) return core.gelu(v) end, grad, x)
op("silu", 2, 5, core.silu, grad, x)
op("softmax", 2, 5, function(v) return core.softmax(v, -1) end, grad, x)
op("log_softmax", 2, 5, function(v) return core.log_softmax(v, -1) end, grad, x)
op("layernorm", 2, 5, function(v, weight, bias) return core.layer_norm(v, { 1024 }, weight, bias) end, grad,
  x, w, b)
op("cross_entropy", 1, 3, function(z) return core.cross_entropy(z, label) end, one, logits)
op("mse_loss", 2, 5, function(a) return core.mse_loss(a, other) end, one, x)
op("sum", 1, nil, core.sum, nil, x)
common.emit(result)
