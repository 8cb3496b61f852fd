--- Convolutions and attention through cuDNN, against the CPU.  On the emulated device cuDNN is a
--- strict stand-in (spec/fakes/fake_cudnn.cpp), which refuses on request; our own kernels
--- must do what it refuses.
local device = require "spec.support.device"
local core = require "accelerate.core"
local F = require "accelerate.nn.functional"
local ffi = require "ffi"

if not device.name then
  describe("cuDNN", function() it("needs a device", function() pending(device.reason) end) end)
  return
end

ffi.C.setenv("ACCEL_CUDNN_ATTENTION", "1", 1) -- small calls, too
ffi.cdef [[ int unsetenv(const char *name); int64_t fake_cudnn_living(void); ]]
local stand_in = device.kind == "emulated" and os.getenv("ACCEL_CUDA_LIBRARIES") .. "/libcudnn.so.9"
local file = stand_in and io.open(stand_in) -- made where the toolkit has cuDNN's headers
local emulated = file ~= nil and file ~= false
if file then file:close() end
-- Every shape below has a plan, of the stand-in and (make plan-cudnn) of cuDNN 9.19 for an H200.
local through = emulated or device.kind == "cuda"
  and core.backend_info(device.name).description:find("; cuDNN %d") ~= nil
local TOLERANCE = { float32 = 2e-5, bfloat16 = 2e-2, float16 = 4e-3 }

local function largest(t) return t:double():abs():max():item() end
local function compare(what, got, expected, tolerance)
  assert.are.equal(expected.dtype, got.dtype, what)
  local off = largest(got:detach():to("cpu"):double() - expected:detach():double())
  if not (off <= tolerance * math.max(1, largest(expected))) then
    error(("%s: off by %g of %g"):format(what, off, largest(expected)), 0)
  end
end

--- Counts of what ran since the last call whose names start with `start` and have `part` in them,
--- and all such names.
local function ran(start, part)
  local total, names = 0, {}
  for name, calls in pairs(core.kernel_stats { device = device.name }) do
    if name:sub(1, #start) == start then
      names[#names + 1] = name
      if name:find(part, 1, true) then total = total + calls end
    end
  end
  return total, table.concat(names, "; ")
end
local function forget() core.kernel_stats { device = device.name, reset = true } end

--- y = fn(leaves) and the gradients of its weighted sum, on `on`.
local function run(on, leaves, fn)
  local mine = {}
  for k, leaf in ipairs(leaves) do mine[k] = leaf:detach():to(on):requires_grad_() end
  local y = fn(unpack(mine))
  local weights = (core.arange(y:numel()) % 7):double():view(y.shape) / 8 - 0.3
  y:backward(weights:to(y.dtype):to(on))
  local results = { y }
  for k, leaf in ipairs(mine) do results[k + 1] = leaf.grad end
  return results
end

local function check(what, dtype, leaves, fn)
  for k, leaf in ipairs(leaves) do leaves[k] = leaf:to(dtype) end
  local expected = run("cpu", leaves, fn)
  local got = run(device.name, leaves, fn)
  for k = 1, #expected do
    compare(("%s, %s, %s"):format(what, dtype, k == 1 and "result" or "gradient " .. k - 1), got[k],
      expected[k], TOLERANCE[dtype])
  end
end

-- { n, c, h, w }, { o, c / groups, kh, kw }, stride, padding, dilation, groups
local CONVOLUTIONS = {
  { "3 x 3", { 2, 8, 7, 6 }, { 16, 8, 3, 3 }, 1, 1 },
  { "3 x 3, stride 2", { 2, 16, 7, 7 }, { 8, 16, 3, 3 }, 2, 1 },
  { "1 x 1", { 2, 16, 5, 5 }, { 24, 16, 1, 1 }, 1, 0 },
  { "1 x 1, stride 2", { 2, 8, 6, 5 }, { 8, 8, 1, 1 }, 2, 0 },
  { "7 x 7 of 3 channels", { 1, 3, 14, 14 }, { 8, 3, 7, 7 }, 2, 3 },
  { "odd channels", { 2, 5, 6, 7 }, { 7, 5, 3, 2 }, { 1, 2 }, { 1, 0 } },
  { "groups", { 2, 12, 5, 5 }, { 8, 3, 3, 3 }, 1, 1, 1, 4 },
  { "depthwise", { 2, 8, 6, 6 }, { 8, 1, 3, 3 }, 1, 1, 1, 8 },
  { "dilated", { 1, 8, 9, 9 }, { 8, 8, 3, 3 }, 1, 2, { 2, 1 } },
}

local function convolution(case)
  return function(x, w, b) return F.conv2d(x, w, b, case[4], case[5], case[6], case[7]) end
end

describe(("cuDNN on %s (%s)"):format(device.name, device.kind), function()
  before_each(function()
    core.manual_seed(11)
    forget()
  end)

  for _, case in ipairs(CONVOLUTIONS) do
    for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
      it(("convolves: %s, %s"):format(case[1], dtype), function()
        check(case[1], dtype, { core.randn(case[2]), core.randn(case[3]), core.randn { case[3][1] } },
          convolution(case))
        local calls, names = ran("convolution", "cuDNN engine")
        if through then assert.are.equal(3, calls, names) end -- the result and two gradients
      end)
    end
  end

  it("leaves float64 to our own kernels", function()
    local x, w = core.randn({ 2, 3, 5, 5 }, { dtype = "float64" }), core.randn({ 4, 3, 3, 3 },
      { dtype = "float64" })
    local y = F.conv2d(x:to(device.name), w:to(device.name))
    assert.is_true(largest(y:to("cpu") - F.conv2d(x, w)) < 1e-12)
    assert.are.equal(0, (ran("convolution", "")))
  end)

  it("convolves views whose memory is aligned to one element", function()
    local x, w = core.randn { 1, 9, 5, 5 }, core.randn { 8, 9, 3, 3 }
    local y = F.conv2d(x:to(device.name):narrow(2, 2, 8), w:to(device.name):narrow(2, 2, 8):contiguous())
    compare("narrowed", y, F.conv2d(x:narrow(2, 2, 8), w:narrow(2, 2, 8)), TOLERANCE.float32)
  end)

  it("adds a weight's gradient to the one that is there", function()
    for _, shape in ipairs { { 8, 16, 3, 3 }, { 8, 16, 1, 1 } } do
      local x, w = core.randn({ 2, 16, 6, 6 }):to(device.name), core.randn(shape):to(
        device.name):requires_grad_()
      F.conv2d(x, w):sum():backward()
      local once = w.grad:to("cpu")
      F.conv2d(x, w):sum():backward()
      compare("twice", w.grad, once * 2, TOLERANCE.float32)
    end
  end)

  it("gives the same bits each time", function()
    for _, dtype in ipairs { "float32", "bfloat16" } do
      for _, c in ipairs { 16, 5 } do
        local x, w = core.randn({ 4, c, 12, 12 }):to(dtype), core.randn({ 16, c, 3, 3 }):to(dtype)
        local function conv(a, b) return F.conv2d(a, b, nil, 1, 1) end
        local first, again = run(device.name, { x, w }, conv), run(device.name, { x, w }, conv)
        for k = 1, 3 do
          assert.are.equal(0, largest(first[k]:to("cpu"):double() - again[k]:to("cpu"):double()), dtype ..
            " of " .. c .. ", " .. k)
        end
      end
    end
    local q = core.randn({ 2, 3, 200, 64 }):to("bfloat16")
    local function attend(a, b, c) return F.scaled_dot_product_attention(a, b, c, { is_causal = true }) end
    if device.kind == "cuda" then
      local first, again = run(device.name, { q, q:clone(), q:clone() }, attend), run(device.name,
        { q, q:clone(), q:clone() }, attend)
      for k = 1, 4 do
        assert.are.equal(0, largest(first[k]:to("cpu"):double() - again[k]:to("cpu"):double()),
          "attention, " .. k)
      end
    end
  end)

  -- { batch, heads, queries, head }, { batch, shared heads, keys, head }, options
  local attentions = {
    { "plain", { 2, 3, 9, 16 }, { 2, 3, 9, 16 } },
    { "causal", { 2, 2, 13, 8 }, { 2, 2, 13, 8 }, { is_causal = true } },
    { "causal with fewer queries than keys", { 1, 2, 5, 8 }, { 1, 2, 11, 8 },
      { is_causal = true, scale = 0.3 } },
    { "cross", { 2, 2, 4, 24 }, { 2, 2, 17, 24 }, { scale = 0.5 } },
    { "grouped heads", { 2, 6, 7, 8 }, { 2, 2, 7, 8 }, { is_causal = true, enable_gqa = true } },
  }
  local function attention(options)
    return function(q, k, v) return F.scaled_dot_product_attention(q, k, v, options) end
  end
  for _, case in ipairs(attentions) do
    for _, dtype in ipairs { "bfloat16", "float16" } do
      it(("attends: %s, %s"):format(case[1], dtype), function()
        check(case[1], dtype, { core.randn(case[2]), core.randn(case[3]), core.randn(case[3]) },
          attention(case[4]))
        local calls, names = ran("attention", "cuDNN engine")
        if through then assert.are.equal(2, calls, names) end
      end)
    end
  end

  it("attends to the thirds of one projection, whose gradients lie as one", function()
    check("split heads", "bfloat16", { core.randn { 2, 9, 3 * 2 * 8 } }, function(x)
      local q, k, v = x:split_heads(2)
      return F.scaled_dot_product_attention(q, k, v, { is_causal = true })
    end)
    if through then assert.are.equal(2, (ran("attention", "cuDNN engine"))) end
  end)

  it("leaves masks, odd heads and float32 to our own attention", function()
    local q, odd = core.randn { 1, 2, 6, 8 }, core.randn { 1, 2, 6, 12 }
    check("masked", "bfloat16", { q, q:clone(), q:clone() }, function(a, b, c)
      return F.scaled_dot_product_attention(a, b, c,
        { attn_mask = core.ones({ 6, 6 }, { dtype = "bool", device = a.device }) })
    end)
    check("odd", "bfloat16", { odd, odd:clone(), odd:clone() }, attention())
    check("wide", "float32", { q, q:clone(), q:clone() }, attention())
    assert.are.equal(0, (ran("attention", "cuDNN engine")))
  end)

  if not emulated then return end

  it("falls back to our own attention when cuDNN refuses it", function()
    for k, stage in ipairs { "operation", "plan", "execute" } do
      local leaves = { core.randn { 1, 2, 8 + k, 8 }, core.randn { 1, 2, 8 + k, 8 },
        core.randn { 1, 2, 8 + k, 8 } }
      forget()
      ffi.C.setenv("FAKE_CUDNN_REFUSE", stage, 1)
      local ok, message = pcall(check, stage, "bfloat16", leaves, attention { is_causal = true })
      ffi.C.unsetenv("FAKE_CUDNN_REFUSE")
      assert.is_true(ok, message)
      local calls, names = ran("attention", ", ours (")
      assert.are.equal(2, calls, names)
    end
  end)

  it("takes TF32 for float32 convolutions only when it is on", function()
    local x, w = core.randn { 1, 8, 5, 6 }, core.randn { 8, 8, 1, 1 }
    local function off()
      return largest(F.conv2d(x:to(device.name), w:to(device.name)):to("cpu") - F.conv2d(x, w))
    end
    local exact = off()
    core.set_float32_matmul_precision("high")
    local ok, rounded = pcall(off)
    core.set_float32_matmul_precision("highest")
    assert.is_true(ok, rounded)
    assert.is_true(exact < 1e-5 and rounded > 1e-4, exact .. " " .. tostring(rounded))
  end)

  it("takes TF32 for convolutions alone, and engines without a fixed order, when these are allowed",
    function()
    local tensor = require "accelerate.tensor"
    local x, w = core.randn { 1, 8, 7, 6 }, core.randn { 8, 8, 1, 1 }
    local function engines()
      forget()
      F.conv2d(x:to(device.name), w:to(device.name))
      return select(2, ran("convolution", "engine"))
    end
    local exact = engines()
    tensor.backends.cudnn.allow_tf32 = true
    local rounded = engines()
    assert.are.equal("highest", tensor.get_float32_matmul_precision())
    tensor.backends.cudnn.allow_tf32 = false
    tensor.set_float32_matmul_precision "high"
    local still = engines()
    tensor.set_float32_matmul_precision "highest"
    tensor.use_deterministic_algorithms(false)
    local free = engines()
    tensor.use_deterministic_algorithms(true)
    assert.is_truthy(rounded:find("engine 9", 1, true), rounded)
    assert.are.equal(exact, still)
    assert.is_falsy(exact:find("engine 9", 1, true), exact)
    assert.is_truthy(free:find("engine 7", 1, true), free)
    assert.are.equal(exact, engines())
  end)

  -- Each stage has a shape of its own: plans are kept, refusals too.
  local stages = { "descriptor", "tensor", "operation", "graph", "heuristics", "plan", "pack", "execute" }
  for k, stage in ipairs(stages) do
    it("falls back to our own kernels when " .. stage .. " is refused, and leaks nothing", function()
      local library = ffi.load(stand_in)
      local case = { "", { 1, 8, 5, 10 + k }, { 8, 8, 3, 3 }, 1, 1 }
      local leaves = { core.randn(case[2]), core.randn(case[3]), core.randn { 8 } }
      -- the handle is there
      check("before", "float32", { core.randn { 1, 8, 5, 9 }, leaves[2] }, convolution { "", nil, nil, 1, 1 })
      local living = library.fake_cudnn_living()
      forget()
      ffi.C.setenv("FAKE_CUDNN_REFUSE", stage, 1)
      local ok, message = pcall(check, stage, "float32", leaves, convolution(case))
      ffi.C.unsetenv("FAKE_CUDNN_REFUSE")
      assert.is_true(ok, message)
      local calls, names = ran("convolution", ", ours (")
      assert.are.equal(3, calls, names)
      assert.are.equal(living, library.fake_cudnn_living())
    end)
  end

  for _, stage in ipairs { "create", "stream" } do
    it("falls back when the library refuses to start: " .. stage, function()
      local script = [[
        local core, F = require "accelerate.core", require "accelerate.nn.functional"
        local x, w = core.randn { 1, 8, 5, 5 }, core.randn { 8, 8, 3, 3 }
        local off = (F.conv2d(x:to("cuda"), w:to("cuda")):to("cpu") - F.conv2d(x, w)):abs():max():item()
        print(off < 1e-5, next(core.kernel_stats { device = "cuda" }))
      ]]
      local host = require "spec.support.host"
      local pipe = assert(io.popen(("FAKE_CUDNN_REFUSE=%s '%s' -e '%s' 2>&1"):format(stage, host.path,
        script)))
      local said = pipe:read("*a")
      pipe:close()
      assert.are.equal("true\tnil\n", said)
    end)
  end
end)
