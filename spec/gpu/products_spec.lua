--- Matrix products on the device: types, layouts, batches and sizes at the edges, against float64
--- on the CPU; which library or kernel took them.
local device = require "spec.support.device"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"

if not device.name then
  describe("products on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local FLOATS = { "float64", "float32", "bfloat16", "float16" }
-- against the product of the same (rounded) operands in float64, relative to its largest element
local TOLERANCE = { float64 = 1e-13, float32 = 3e-6, bfloat16 = 8e-3, float16 = 1e-3, tf32 = 2e-3 }

local function stats() return core.kernel_stats { device = "cuda" } end

-- Is there cuBLASLt?  A GPU always has it; the emulated device where its stand-in could be built;
-- the fake one never.
local function library()
  if device.fake then return false end
  core.kernel_stats { device = "cuda", reset = true }
  local one = tensor.ones(8, 8):to(D)
  one:mm(one):to("cpu")
  return stats()["mm float32 -> float32, cuBLASLt"] == 1
end

local library_there

-- Runs fn and returns its results; all products inside must have gone to cuBLASLt (`n` of them when
-- given), or none with n = 0.
local function through(n, fn)
  core.kernel_stats { device = "cuda", reset = true }
  local results = { fn() }
  if not library_there then return unpack(results) end
  local found = 0
  for name, calls in pairs(stats()) do
    assert.is_nil(name:match("refused"), name)
    if name:match("cuBLASLt") then found = found + calls
    elseif n ~= 0 and name:match("^mm ") then
      error(("%d calls went elsewhere: %s"):format(calls, name), 0) end
  end
  if n then assert.are.equal(n, found) else assert.is_true(found > 0) end
  return unpack(results)
end

local function close(what, got, expected, tolerance)
  assert.are.equal(D, got.device, what)
  assert.are.same(expected.shape, got.shape, what)
  local scale = math.max(1e-6, expected:numel() > 0 and expected:abs():max():item() or 1)
  local worst = got:numel() > 0 and (got:detach():to("cpu"):double() - expected):abs():max():item() or 0
  assert.is_true(worst <= tolerance * scale, ("%s: differs by %g of %g"):format(what, worst, scale))
end

-- A (.., rows, cols) matrix in one of several layouts, with the same elements there and here.
local LAYOUTS = {
  rows = function(x) return x end,
  columns = function(x) return x:transpose(-1, -2):contiguous():transpose(-1, -2) end,
  slice = function(x) -- of something wider: rows are further apart than they are long
    local shape = x.shape
    shape[#shape] = shape[#shape] + 3
    local wide = tensor.zeros(shape, { dtype = x.dtype, device = x.device })
    local view = wide:narrow(#shape, 3, x.shape[#shape])
    view:copy_(x)
    return view
  end,
  every_other = function(x) -- neither dim adjacent
    local shape = x.shape
    shape[#shape + 1] = 2
    local wide = tensor.zeros(shape, { dtype = x.dtype, device = x.device })
    local view = wide:select(#shape, 1)
    view:copy_(x)
    return view
  end,
}

describe(("products on %s (%s)"):format(D, device.kind), function()
  setup(function()
    tensor.manual_seed(11)
    library_there = library()
    if device.kind == "cuda" then assert.is_true(library_there) end
  end)

  it("mm in every type and layout", function()
    for _, dtype in ipairs(FLOATS) do
      for _, size in ipairs { { 1, 1, 1 }, { 7, 13, 5 }, { 33, 40, 65 }, { 1, 70, 40 }, { 40, 70, 1 },
        { 64, 1, 48 }, { 40, 1030, 33 } } do
        local m, k, n = unpack(size)
        local a, b = tensor.randn(m, k):to(dtype), tensor.randn(k, n):to(dtype)
        local expected, there, here = a:double():mm(b:double()), a:to(D), b:to(D)
        for one, left in pairs(LAYOUTS) do
          for other, right in pairs(LAYOUTS) do
            local x, y = left(there), right(here)
            close(("mm %s %dx%dx%d, %s x %s"):format(dtype, m, k, n, one, other), x:mm(y), expected,
              TOLERANCE[dtype])
          end
        end
      end
    end
  end)

  it("go to cuBLASLt in every float type, packed first when neither dim is adjacent", function()
    if not library_there then return pending("no cuBLASLt here") end
    for _, dtype in ipairs(FLOATS) do
      local a, b = tensor.randn(40, 48):to(dtype):to(D), tensor.randn(48, 56):to(dtype):to(D)
      through(4, function()
        for _, layout in pairs(LAYOUTS) do layout(a):mm(b) end
      end)
      assert.are.equal(4, stats()[("mm %s -> %s, cuBLASLt"):format(dtype, dtype)])
    end
    local whole = tensor.arange(12):view(3, 4):to(D)
    through(0, function() return whole:mm(whole:t()) end)
    assert.are.equal(1, stats()["mm int64 -> int64, own kernel"])
  end)

  it("bmm and matmul of stacks: broadcast, of any strides, and many of them", function()
    for _, dtype in ipairs(FLOATS) do
      for what, shapes in pairs {
        stack = { { 5, 9, 17 }, { 5, 17, 12 } }, ["one to many"] = { { 4, 9, 17 }, { 17, 12 } },
        ["many to one"] = { { 9, 17 }, { 4, 17, 12 } },
        outer = { { 3, 1, 9, 17 }, { 4, 17, 12 } }, deep = { { 2, 3, 1, 9, 8 }, { 2, 1, 4, 8, 12 } },
        single = { { 1, 9, 17 }, { 6, 17, 12 } },
        vectors = { { 6, 1, 40 }, { 6, 40, 1 } },
      } do
        local a, b = tensor.randn(unpack(shapes[1])):to(dtype), tensor.randn(unpack(shapes[2])):to(dtype)
        local expected = a:double():matmul(b:double())
        for name, layout in pairs(LAYOUTS) do -- small ones that would have to be packed are our own kernel's
          local function product() return layout(a:to(D)):matmul(b:to(D)) end
          close(dtype .. " " .. what, name == "every_other" and product() or through(nil, product), expected,
            TOLERANCE[dtype])
        end
        local x = a:to(D):expand(unpack(shapes[1]))
        close(dtype .. " permuted " .. what,
          x:transpose(1, x:dim() - 1):contiguous():transpose(1, x:dim() - 1):matmul(b:to(D)), expected,
          TOLERANCE[dtype])
      end
    end
  end)

  it("more matrices than one launch takes", function()
    local n = 65535 + 70
    local a, b = tensor.randn(n, 2, 3), tensor.randn(3, 2)
    local got = through(nil, function() return a:to(D):bmm(b:to(D):expand(n, 3, 2)) end)
    close("bmm", got, a:double():matmul(b:double()), TOLERANCE.float32)
  end)

  it("views that begin anywhere, each with a plan of its own", function()
    for _, dtype in ipairs(FLOATS) do
      local m, k, n = 24, 32, 40
      local flat, other = tensor.randn(m * k + 16):to(dtype), tensor.randn(k * n + 16):to(dtype)
      local there, here, bias = flat:to(D), other:to(D), tensor.randn(n + 16):to(dtype)
      for _, at in ipairs { 1, 2, 3, 5, 9 } do
        for _, also in ipairs { 1, 2, 4, 9 } do
          local function pair(x, y, z)
            return x:narrow(1, at, m * k):view(m, k), y:narrow(1, also, n * k):view(n, k),
              z:narrow(1, also, n)
          end
          local x, w, z = pair(flat:double(), other:double(), bias:double())
          local expected = x:mm(w:t()) + z
          close(("%s from %d and %d"):format(dtype, at, also),
            through(1, function() return F.linear(pair(there, here, bias:to(D))) end), expected,
            TOLERANCE[dtype])
        end
      end
    end
  end)

  it("of nothing: sizes of 0, and k = 0, which leaves the bias", function()
    for _, dtype in ipairs(FLOATS) do
      local function zeros(...) return tensor.zeros({ ... }, { dtype = dtype, device = D }) end
      assert.are.same({ 0, 5 }, zeros(0, 3):mm(zeros(3, 5)).shape)
      assert.are.same({ 4, 0 }, zeros(4, 3):mm(zeros(3, 0)).shape)
      assert.are.same({ 0, 4, 5 }, zeros(0, 4, 3):bmm(zeros(0, 3, 5)).shape)
      close("k = 0", zeros(4, 0):mm(zeros(0, 5)), tensor.zeros(4, 5):double(), 0)
      local bias = tensor.randn(5):to(dtype)
      close("bias", F.linear(zeros(4, 0), zeros(5, 0), bias:to(D)), bias:double():expand(4, 5), 0)
    end
  end)

  it("a NaN in what is overwritten does not get into the result", function()
    for _, dtype in ipairs(FLOATS) do
      -- its memory is handed out again
      tensor.release(tensor.full({ 64, 64 }, 0 / 0, { dtype = dtype, device = D }))
      local a, b = tensor.ones(64, 16):to(dtype):to(D), tensor.ones(16, 64):to(dtype):to(D)
      close(dtype, a:mm(b), tensor.full({ 64, 64 }, 16):double(), 0)
    end
  end)

  it("linear with a bias, in half types with one in float32, and its gradients", function()
    for _, dtype in ipairs(FLOATS) do
      for _, bias_dtype in ipairs(dtype:match("16") and { dtype, "float32" } or { dtype }) do
        local x, w, b = tensor.randn(3, 7, 24):to(dtype), tensor.randn(16,
          24):to(dtype), tensor.randn(16):to(bias_dtype)
        local seed = tensor.randn(3, 7, 16):to(dtype)
        local function run(on, up)
          local leaves = {}
          for i, t in ipairs { x, w, b } do
            leaves[i] = (up and t:double() or t):detach():to(on):clone():requires_grad_()
          end
          local y = F.linear(unpack(leaves))
          y:backward((up and seed:double() or seed):to(on))
          return y, leaves[1].grad, leaves[2].grad, leaves[3].grad
        end
        local expected, got = { run("cpu", true) }, { through(nil, function() return run(D) end) }
        for i = 1, 4 do
          close(("%s with %s, result %d"):format(dtype, bias_dtype, i), got[i], expected[i]:detach(),
            TOLERANCE[dtype] * 2)
        end
      end
    end
  end)

  -- 4099 classes: rows of 4160. The last 3 elements fill no run of 16 bytes.
  it("of many classes in padded rows: the last few are products of their own", function()
    local x, w = tensor.randn(64, 1024), tensor.randn(4099, 1024) * 0.03
    local bias, seed = tensor.randn(4099), tensor.randn(64, 4099)
    for _, dtype in ipairs { "bfloat16", "float16", "float32", "tf32" } do
      local own = dtype == "tf32" and "float32" or dtype
      local parts = dtype == "float32" and 1 or 2 -- plain float32 products do not use tensor cores
      if dtype == "tf32" then tensor.set_float32_matmul_precision "high" end
      for _, b in ipairs { false, bias } do
        local function leaves(on, up)
          local all = {}
          for i, t in ipairs { x, w, b or nil } do
            t = t:to(own)
            all[i] = (up and t:double() or t):to(on):requires_grad_()
          end
          return all
        end
        local ref, at = leaves("cpu", true), leaves(D)
        local expected = F.linear(unpack(ref))
        expected:backward(seed:to(own):double())
        local got = through(parts, function() return F.linear(unpack(at)) end)
        close(dtype .. " result", got, expected:detach(), TOLERANCE[dtype])
        local g = got:detach():copy_(seed:to(own)) -- in its padded rows
        through(nil, function() got:backward(g) end)
        for i, leaf in ipairs(at) do
          close(("%s gradient %d"):format(dtype, i), leaf.grad, ref[i].grad, TOLERANCE[dtype])
        end
        local rows = g:t():narrow(1, 1, 4099) -- the weight's gradient by itself, and added to
        local sum = through(parts, function() return rows:mm(at[1]:detach()) end)
        close(dtype .. " rows", sum, ref[2].grad, TOLERANCE[dtype])
        local inner = through(parts, function() return g:mm(at[2]:detach()) end)
        close(dtype .. " sums", inner, ref[1].grad, TOLERANCE[dtype])
      end
      tensor.set_float32_matmul_precision "highest"
    end
  end)

  it("TF32 only when it is asked for, and for float32 alone", function()
    if not library_there then return pending("no cuBLASLt here") end
    local a, b = tensor.randn(64, 256), tensor.randn(256, 64)
    local expected = a:double():mm(b:double())
    local function worst(dtype)
      return (a:to(dtype):to(D):mm(b:to(dtype):to(D)):to(
        "cpu"):double() - expected):abs():max():item() / expected:abs():max():item()
    end
    assert.are.equal("highest", tensor.get_float32_matmul_precision())
    assert.is_true(worst("float32") < 3e-6)
    for _, precision in ipairs { "high", "medium" } do
      tensor.set_float32_matmul_precision(precision)
      assert.are.equal(precision, tensor.get_float32_matmul_precision())
      local w, wide = worst("float32"), worst("float64")
      tensor.set_float32_matmul_precision("highest")
      assert.is_true(w > 1e-5 and w < TOLERANCE.tf32, tostring(w))
      assert.is_true(wide < 1e-12)
    end
    assert.is_true(worst("float32") < 3e-6)
    assert.has_error(function() tensor.set_float32_matmul_precision("low") end,
      'set_float32_matmul_precision: argument 1 (precision): expected "highest", ' ..
      '"high" or "medium", got string "low"')
  end)

  -- y = down(gelu(up(x))) of a Sequential, with its gradients; `how` sees the leaves and the hidden
  -- result
  local function mlp(on, leaves, up, how)
    local at = {}
    for i, t in ipairs(leaves) do
      at[i] = (up and t:double() or t):detach():to(on):clone():requires_grad_()
    end
    local h = F.linear_gelu(at[1], at[2], at[3])
    local y = F.linear(h, at[4], at[5])
    if how then y = how(y, h, at) or y end
    local seed = (tensor.arange(y:numel()) % 5 - 1):view(y.shape):to(y.dtype):to(on)
    y:backward(seed)
    local grads = { y:detach() }
    for i, leaf in ipairs(at) do grads[i + 1] = leaf.grad end
    return grads
  end
  local function mlp_leaves(dtype, hidden, features)
    features = features or 24
    return { tensor.randn(2, 9, features):to(dtype), (tensor.randn(hidden, features) * 0.3):to(dtype),
      tensor.randn(hidden):to(dtype), (tensor.randn(16, hidden) * 0.3):to(dtype),
      tensor.randn(16):to(dtype) }
  end
  local function compare(what, dtype, got, expected)
    for i = 1, #expected do
      close(("%s %s, result %d"):format(what, dtype, i), got[i], expected[i], TOLERANCE[dtype] * 4)
    end
  end

  it("linear, gelu and linear, with the gradients, in epilogues", function()
    for _, dtype in ipairs(FLOATS) do
      for _, hidden in ipairs { 32, 20 } do -- aux matrices have rows of 8
        local leaves = mlp_leaves(dtype, hidden)
        core.kernel_stats { device = "cuda", reset = true }
        local got, counted = mlp(D, leaves), device.fake and {} or stats()
        compare("mlp of " .. hidden, dtype, got, mlp("cpu", leaves, true))
        local name = ("mm %s -> %s, cuBLASLt"):format(dtype, dtype)
        if library_there and device.kind == "emulated" then
          local fused = dtype ~= "float64" and hidden == 32 and 1 or nil
          assert.are.equal(fused, counted[name .. " + bias + gelu"])
          assert.are.equal(fused, counted[name .. " x gelu'"])
          assert.are.equal(dtype ~= "float64" and 2 or nil, counted[name .. " + row sums"])
        end
      end
    end
  end)

  it("the same where cuBLASLt has no algorithm for an epilogue, or for any", function()
    if not library_there or device.kind ~= "emulated" then
      return pending("needs the stand-in for cuBLASLt")
    end
    local ffi = require "ffi" -- the stand-in reads it at each call; sizes that have no plan yet
    for i, refused in ipairs { 32, 64, 512, 4 + 32 + 64 + 512 } do
      ffi.C.setenv("FAKE_CUBLASLT_REFUSE", tostring(refused), 1)
      for _, dtype in ipairs(FLOATS) do
        local leaves = mlp_leaves(dtype, 40, 24 + 8 * i)
        local ok, got = pcall(mlp, D, leaves)
        if not ok then ffi.C.setenv("FAKE_CUBLASLT_REFUSE", "0", 1) error(got, 0) end
        compare("refused " .. refused, dtype, got, mlp("cpu", leaves, true))
      end
    end
    ffi.C.setenv("FAKE_CUBLASLT_REFUSE", "0", 1)
    assert.is_true((stats()["mm float32 -> float32, cuBLASLt + bias + gelu, refused: " ..
      "CUBLAS_STATUS_NOT_SUPPORTED"] or 0) > 0)
  end)

  it("a result of linear_gelu that others see, too: hooks, two readers, tensor.grad, create_graph", function()
    local leaves = mlp_leaves("float32", 32)
    for what, how in pairs {
      ["two readers"] = function(y, h) return y + h:narrow(3, 1, 16) end,
      ["a hook"] = function(y, h) h:register_hook(function(g) return g * 2 end) return y end,
      ["two layers behind it"] = function(y, h, at) return y + F.linear(h, at[4] * 2) end,
    } do
      compare(what, "float32", mlp(D, leaves, false, how), mlp("cpu", leaves, true, how))
    end
    local function of_hidden(on, up)
      local x, w, b, w2 = unpack(leaves)
      local at = {}
      for i, t in ipairs { x, w, b, w2 } do
        at[i] = (up and t:double() or t):detach():to(on):clone():requires_grad_()
      end
      local h = F.linear_gelu(at[1], at[2], at[3])
      local g, gx = tensor.grad(F.linear(h, at[4]):square():sum(), { h, at[1] }, { create_graph = true })
      gx:square():sum():backward()
      return { g:detach(), gx:detach(), at[1].grad, at[2].grad, at[3].grad, at[4].grad }
    end
    compare("twice", "float32", of_hidden(D), of_hidden("cpu", true))
  end)

  it("weights' and biases' gradients go straight into flat slots, and are added to what is there", function()
    local nn, accelerate = require "accelerate.nn", require "accelerate"
    for _, precision in ipairs { "no", "bf16" } do
      accelerate.state.AcceleratorState._reset_state(true)
      local accelerator = accelerate.Accelerator { mixed_precision = precision }
      local model, leaves, inputs = nn.Sequential(nn.Linear(24, 32), nn.GELU("tanh"),
        nn.Linear(32, 16)), {}, {}
      for i, p in ipairs(model:parameters()) do
        leaves[i] = p:detach():to("cpu"):double():clone():requires_grad_()
      end
      for step = 1, 3 do inputs[step] = tensor.randn(18, 24) end
      model = accelerator:prepare(model)
      core.kernel_stats { device = "cuda", reset = true }
      for step, x in ipairs(inputs) do
        accelerator:backward((model(x:to(D)):float() * step):square():mean())
        local h = F.gelu(F.linear(x:double(), leaves[1], leaves[2]), "tanh")
        ;(F.linear(h, leaves[3], leaves[4]) * step):square():mean():backward()
      end
      if library_there and device.kind == "emulated" then
        assert.are.equal(6,
          stats()[("mm %s -> float32, cuBLASLt + row sums"):format(precision == "no" and "float32"
          or "bfloat16")])
      end
      for i, p in ipairs(model:parameters()) do
        close(("%s, parameter %d"):format(precision, i), p.grad, leaves[i].grad, precision == "no" and 1e-5
          or 3e-2)
      end
    end
  end)

  it("the same bits each time, from memory that held something else", function()
    for _, dtype in ipairs(FLOATS) do
      -- deep: divided along k
      local a, b = tensor.randn(16, 2048):to(dtype):to(D), tensor.randn(2048, 24):to(dtype):to(D)
      local first = a:mm(b):to("cpu")
      for _ = 1, 3 do
        tensor.release(tensor.randn(1024, 64):to(D))
        assert.is_true(tensor.equal(first, a:mm(b):to("cpu")))
      end
    end
  end)
end)
