-- Single kernels on a GPU, one line of JSON: how near to the copy bandwidth of the same run they
-- come, by the fewest tensors that each could read and write; products in TFLOP/s, in eight bits
-- too, and of one row by encoded matrices, in bytes of their codes; attention; and what a small op
-- costs beside a bare launch.
--
--   accel-run bench/kernels.lua [--device cuda] [--mb 1024] [--side 8192] [--launches 100000]
--     [--steps 9]
--
-- The same work as peer/kernels.py, which has none of eight bits and codes.  Tensors are of `mb` MB
-- of float32, larger than a GPU's cache.  A figure is the median of `steps` blocks of five calls,
-- each block waited for once.
local ffi = require "ffi"
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local optim = require "accelerate.optim"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")
local encodings = require "accelerate.quantisation.encodings"
local F = require "accelerate.nn.functional"

ffi.cdef "const char *bare_launch(int device, int64_t count, double *nanoseconds);"

local CALLS = 5
local flags = common.flags(arg)
local device = common.accelerator(flags).device
local remote, blocks = device ~= "cpu", flags.steps or 9
local mb, side, launches = flags.mb or (remote and 1024 or 16), flags.side
  or (remote and 8192 or 256), flags.launches or (remote and 100000 or 2000)
local result = { device = device, mb = mb, side = side }

local function wait() if remote then core.synchronize(device) end end

-- Seconds of fn().
local function timed(fn, calls)
  for _ = 1, 2 do fn() end
  local times = {}
  for i = 1, blocks do
    wait()
    local began = common.now()
    for _ = 1, calls or CALLS do fn() end
    wait()
    times[i] = (common.now() - began) / (calls or CALLS)
  end
  return common.median(times)
end

-- ---- what memory bounds: name, tensors moved forward, tensors moved with the gradient, the op

local function bandwidth(dtype, suffix)
  local width = 1024
  local n = mb * 2 ^ 20 / (dtype == "float32" and 4 or 2)
  local bytes = n * (dtype == "float32" and 4 or 2)
  local options = { device = device, dtype = dtype }
  local x, grad = tensor.randn(n / width, width, options), tensor.randn(n / width, width, options)
  local spare, w, b = tensor.empty(x.shape, options), tensor.ones(width, options), tensor.zeros(width,
    options)
  local classes = 32768
  local logits, label = x:view(n / classes, classes), tensor.randint(0, classes, { n / classes },
    { device = device })
  local copy = timed(function() spare:copy_(x) end)
  result["copy" .. suffix .. "_gbs"], result["copy" .. suffix .. "_ms"] = 2 * bytes / copy / 1e9, copy * 1e3

  local function keep(name, moves, seconds)
    result[name .. suffix .. "_ms"] = seconds * 1e3
    result[name .. suffix .. "_of_copy"] = moves / seconds / (2 / copy)
  end
  local function op(name, forward, both, fn, g, ...)
    local inputs, leaves = { ... }, {}
    keep(name, forward, timed(function() core.release(fn(unpack(inputs))) end))
    if not g then return end
    for i, t in ipairs(inputs) do leaves[i] = t:detach():requires_grad_() end
    keep(name .. "_grad", both, timed(function()
      local y = fn(unpack(leaves))
      local grads = { tensor.grad({ y }, leaves, { grad_outputs = { g } }) }
      core.release(y)
      for _, t in ipairs(grads) do core.release(t) end
    end))
  end
  op("mul", 3, nil, core.mul, nil, x, grad) -- a sum would wait for what is added to it
  op("relu", 2, 5, core.relu, grad, x)
  op("gelu", 2, 5, function(v) return core.gelu(v, "tanh") end, grad, x)
  op("softmax", 2, 5, function(v) return core.softmax(v, -1) end, grad, x)
  op("layer_norm", 2, 5, function(v, weight, bias) return core.layer_norm(v, { width }, weight, bias) end,
    grad, x, w, b)
  op("cross_entropy", 1, 3, function(z) return core.cross_entropy(z, label) end, tensor.ones({}, options),
    logits)
  op("sum", 1, nil, core.sum, nil, x)
  for _, t in ipairs { x, grad, spare, w, b, label } do core.release(t) end
end

-- ---- products

local function products()
  for _, case in ipairs { { "bf16", "bfloat16" }, { "fp16", "float16" }, { "fp32", "float32" } } do
    for _, n in ipairs { side, side / 4 } do
      local options = { device = device, dtype = case[2] }
      local a, b = tensor.randn(n, n, options), tensor.randn(n, n, options)
      local seconds = timed(function() core.release(a:mm(b)) end)
      result[("mm_%s_%d_tflops"):format(case[1], n)] = 2 * n ^ 3 / seconds / 1e12
    end
  end
  local b, h, t, d = 8, 12, side / 8, 64
  local options = { device = device, dtype = "bfloat16" }
  local leaves = {}
  for i = 1, 3 do leaves[i] = tensor.randn(b, h, t, d, options):requires_grad_() end
  local g = tensor.randn(b, h, t, d, options)
  result.attention_grad_ms = 1e3 * timed(function()
    local y = F.scaled_dot_product_attention(leaves[1], leaves[2], leaves[3], nil, { is_causal = true })
    local grads = { tensor.grad({ y }, leaves, { grad_outputs = { g } }) }
    core.release(y)
    for _, v in ipairs(grads) do core.release(v) end
  end)
end

local function eight_bits()
  local cast, product = core._row "_float8_cast", core._row "_float8_product"
  local function scaled()
    return cast(tensor.randn(side, side, { device = device, dtype = "bfloat16" }), nil, "float8_e4m3fn",
      false)
  end
  local a, _, a_scales = scaled()
  local b, _, b_scales = scaled()
  local seconds = timed(function()
    core.release(product(a, b, a_scales, b_scales, nil, "bfloat16", true))
  end)
  result[("mm_fp8_%d_tflops"):format(side)] = 2 * side ^ 3 / seconds / 1e12
end

-- What a token costs: one row by a matrix of a GGUF file, or of bitsandbytes.
local function rows_by_codes()
  local n = math.ceil(side / 256) * 256
  for _, name in ipairs { "Q4_K", "nf4", "int8" } do
    local info, e = encodings.list[name], nil
    if info.block == 256 then
      e = { name = name, size = 32,
        codes = core.randint(0, 50, { n, n / info.block * info.bytes }):to "uint8" }
    else
      e = encodings.encode(name, core.randn(n, n))
    end
    local x, codes = tensor.randn(1, n, { device = device, dtype = "bfloat16" }), e.codes:to(device)
    local scales = e.scales and e.scales:to(device)
    local seconds = timed(function()
      core.release(encodings._linear(x, codes, scales, nil, nil, info.number, n, n, e.size, nil))
    end)
    result[("row_%s_gbs"):format(name)] = codes:nbytes() / seconds / 1e9
  end
end

-- ---- optimizers: numbers of 4 bytes moved for each parameter

local function optimizers(copy_seconds)
  local count = mb * 2 ^ 20 / 4
  for _, row in ipairs { { "adamw", "AdamW", { lr = 1e-3 }, 7 },
    { "momentum", "SGD", { lr = 1e-3, momentum = 0.9 }, 5 } } do
    local p = core.randn(count / 1024, 1024, { device = device }):requires_grad_()
    p.grad = core.randn(count / 1024, 1024, { device = device })
    local optimizer = optim[row[2]]({ p }, row[3])
    local seconds = timed(function() optimizer:step() end)
    result[row[1] .. "_ms"], result[row[1] .. "_of_copy"] = seconds * 1e3,
      row[4] / seconds / (2 / copy_seconds)
  end
end

-- ---- dispatch: adds of four elements

-- The library of bare_launch.cu, which is beside libax_cuda.so; nil: it was not built.
local function bare_library()
  for line in io.lines("/proc/self/maps") do
    local folder = line:match("(/%S*/)libax_cuda%.so$")
    local file = folder and io.open(folder .. "libax_bench_cuda.so")
    if file then
      file:close()
      return ffi.load(folder .. "libax_bench_cuda.so")
    end
  end
end

local function bare_launch(library)
  local out = ffi.new("double[1]")
  local why = library.bare_launch(0, launches, out)
  if why ~= nil then error("the bare launches failed: " .. ffi.string(why), 0) end
  return out[0]
end

local function dispatch()
  local chain = 100
  local a, b = tensor.ones(4, { device = device }), tensor.ones(4, { device = device })
  local leaf = tensor.ones(4, { device = device, requires_grad = true })
  local plain, bare = {}, {}
  local function adds() for _ = 1, launches do core.release(a + b) end end
  adds()
  local library = remote and bare_library()
  for i = 1, 5 do -- they take turns: what a launch costs drifts
    bare[i] = library and bare_launch(library) or nil
    plain[i] = timed(adds, 1)
  end
  result.add_ns, result.bare_launch_ns = common.median(plain) / launches * 1e9, bare[1]
    and common.median(bare)
  result.add_grad_ns = timed(function()
    for _ = 1, launches / chain do
      local x = leaf
      for _ = 1, chain do x = x + b end
      tensor.grad({ x }, { leaf }, { grad_outputs = { a } })
    end
  end, 1) / launches * 1e9
end

bandwidth("float32", "")
bandwidth("bfloat16", "_bf16")
optimizers(result.copy_ms / 1e3)
products()
eight_bits()
rows_by_codes()
blocks = math.min(blocks, 3)
dispatch()
common.emit(result)
