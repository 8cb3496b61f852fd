--- tensor.fft on the device, through cuFFT, against the CPU: values and gradients, types, lengths,
--- layouts.  On the emulated device cuFFT is a strict stand-in (spec/fakes/fake_cufft.cpp), which
--- refuses a length on request.
local device = require "spec.support.device"
local capture = require "accelerate.capture.step".capture
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local ffi = require "ffi"
local host = require "spec.support.host"

if not device.name then
  describe("Fourier transforms on the device",
    function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local fft = tensor.fft
ffi.cdef [[
  int unsetenv(const char *name);
  int64_t fake_cufft_living(void);
  int64_t fake_cufft_made(void);
]]
local stand_in = device.kind == "emulated" and os.getenv("ACCEL_CUDA_LIBRARIES") .. "/libcufft.so.12"
local file = stand_in and io.open(stand_in) -- made where the toolkit has cuFFT's headers
if file then file:close() end
local through = file ~= nil and file ~= false
if device.kind == "cuda" then
  fft.fft(tensor.ones(4, { device = D }))
  through = next(core.kernel_stats { device = D }) ~= nil
    and core.kernel_stats { device = D } ["fft float32, cuFFT"] ~= nil
end

local TOLERANCE = { complex64 = 1e-5, complex128 = 1e-12, float32 = 1e-5, float64 = 1e-12 }
local PARTS = { complex64 = "float32", complex128 = "float64" }

local same, numbers = device.agree, device.numbers

-- Where cuFFT is there, fn may neither wait nor send anything.
local function stays(fn)
  if through then return device.stays(fn) end
  return fn()
end


-- fn(x) and the gradient of its weighted sum, on `on`.
local function run(fn, x, on)
  local leaf = x:to(on):detach():requires_grad_()
  local y = fn(leaf)
  local w = (tensor.arange(y:numel()) % 5 - 1.5):view(y.shape):to(PARTS[y.dtype] or y.dtype):to(on)
  local part = y:is_complex() and (y * w):real() + (y * w):imag() * 0.5 or y * w
  part:sum():backward()
  return y, leaf.grad
end
local function agrees(what, fn, x, tolerance)
  local expected, slope = run(fn, x, "cpu")
  local y, g
  local leaf = x:to(D)
  stays(function() fn(leaf) end)
  y, g = run(fn, x, D)
  tolerance = tolerance or TOLERANCE[x.dtype]
  same(y, expected, tolerance, what)
  same(g, slope, 4 * tolerance, what .. "'s gradient")
end

describe(("Fourier transforms on %s (%s)"):format(D, device.kind), function()
  before_each(function() tensor.manual_seed(5) end)

  for _, dtype in ipairs { "complex64", "complex128" } do
    it("of complex numbers, forth and back: " .. dtype, function()
      for _, n in ipairs { 1, 2, 7, 16, 30, 97 } do
        for dim = 1, 3 do
          local shape = { 3, 2, 5 }
          shape[dim] = n
          local x = numbers(dtype, shape)
          for _, norm in ipairs(n == 7 and { "backward", "ortho", "forward" } or { "backward" }) do
            local how = ("%d along dim %d, %s"):format(n, dim, norm)
            agrees("fft of " .. how, function(t) return fft.fft(t, nil, dim, norm) end, x)
            agrees("ifft of " .. how, function(t) return fft.ifft(t, nil, dim, norm) end, x)
          end
        end
      end
    end)
  end

  for _, dtype in ipairs { "float32", "float64" } do
    local complex = dtype == "float32" and "complex64" or "complex128"
    it("of real numbers, and to them: " .. dtype, function()
      for _, n in ipairs { 1, 2, 3, 8, 15, 34 } do
        for dim = 1, 3 do
          local shape = { 2, 3, 4 }
          shape[dim] = n
          local how = ("%d along dim %d"):format(n, dim)
          agrees("rfft of " .. how, function(t) return fft.rfft(t, nil, dim) end, numbers(dtype, shape))
          shape[dim] = math.floor(n / 2) + 1
          -- also the imaginary parts of what stands for one, which count for nothing
          agrees("irfft of " .. how, function(t) return fft.irfft(t, n, dim) end, numbers(complex, shape))
          agrees("hfft of " .. how, function(t) return fft.hfft(t, n, dim, "ortho") end,
            numbers(complex, shape))
        end
      end
    end)
  end

  it("of views: odd places, strides, rows that repeat", function()
    for _, dtype in ipairs { "float32", "float64", "complex64" } do
      local x = numbers(dtype, 4, 9, 6)
      local transform = PARTS[dtype] and fft.fft or fft.rfft
      for what, view in pairs {
        odd = function(t) return t:reshape(-1):narrow(1, 2, 45):view(5, 9) end,
        transposed = function(t) return t:transpose(1, 3) end,
        narrowed = function(t) return t:narrow(2, 2, 7):narrow(3, 3, 3) end,
        repeated = function(t) return t:narrow(1, 2, 1):expand(3, 9, 6) end,
      } do
        for _, dim in ipairs { 1, 2, -1 } do
          agrees(what .. " " .. dtype, function(t) return transform(view(t), nil, dim) end, x)
        end
      end
    end
  end)

  it("over several dims, of windows, and of each length that is asked for", function()
    local z, r = numbers("complex64", 3, 4, 5, 6), numbers("float32", 3, 4, 5, 6)
    agrees("fftn", function(t) return fft.fftn(t) end, z)
    agrees("ifft2", function(t) return fft.ifft2(t, { 3, 7 }, { 2, 3 }) end, z)
    agrees("rfft2", function(t) return fft.rfft2(t) end, r)
    agrees("irfftn", function(t) return fft.irfftn(t, { 4, 9 }, { 1, 3 }) end, z)
    agrees("padded", function(t) return fft.rfft(t, 11, 2) end, r)
    local windows = { [false] = tensor.hann_window(16), [true] = tensor.hann_window(16):to(D) }
    agrees("stft", function(t)
      return tensor.stft(t:reshape(3, -1), 16, { hop_length = 4, return_complex = true,
        window = windows[t.is_cuda] })
    end, r, 4e-5)
  end)

  it("has second derivatives", function()
    local x = numbers("float64", 3, 8)
    local function second(on)
      local leaf = x:to(on):detach():requires_grad_()
      local y = fft.rfft(leaf):abs():pow(3):sum()
      local g = tensor.grad(y, { leaf }, { create_graph = true })[1]
      return tensor.grad(g:pow(2):sum(), { leaf })[1]
    end
    same(second(D), second("cpu"), 1e-10, "second derivative")
  end)

  it("gives the same bits each time", function()
    local x = numbers("complex64", 5, 60):to(D)
    local first, again = fft.fft(x), fft.fft(x)
    assert.is_true(tensor.equal(tensor.view_as_real(first):to("cpu"), tensor.view_as_real(again):to("cpu")))
  end)

  it("leaves its input as it is", function()
    for _, fn in ipairs { fft.fft, fft.irfft } do
      local x = numbers("complex64", 3, 9)
      local there = x:to(D)
      fn(there)
      same(there, x, 0, "the input")
    end
  end)

  it("of no lines", function()
    same(fft.fft(tensor.zeros({ 0, 4 }, { dtype = "complex64", device = D })),
      tensor.zeros({ 0, 4 }, { dtype = "complex64" }), 0, "fft")
    same(fft.irfft(tensor.zeros({ 3, 0, 5 }, { dtype = "complex128", device = D })),
      tensor.zeros({ 3, 0, 8 }, { dtype = "float64" }), 0, "irfft")
  end)

  it("refuses what the CPU refuses, in its words", function()
    local function refused(x, ...)
      local ok, message = pcall(...)
      assert.is_false(ok)
      return (message:gsub(D:gsub("%p", "%%%0"), x.device))
    end
    for _, case in ipairs {
      { tensor.zeros(3, 0), function(x) return fft.fft(x) end },
      { tensor.zeros(3, 4), function(x) return fft.fft(x, nil, 3) end },
      { tensor.zeros(3, 4):bfloat16(), function(x) return fft.rfft(x) end },
      { tensor.zeros(3, 4), function(x) return fft.rfft(x, 0) end },
    } do
      local x, fn = case[1], case[2]
      assert.are.equal(refused(x, fn, x), refused(x, fn, x:to(D)))
    end
  end)

  it("keeps a bounded number of plans", function()
    if not through or device.kind ~= "emulated" then return pending("needs cuFFT's stand-in") end
    local fake = ffi.load(stand_in)
    local x = tensor.randn(400, { device = D })
    for n = 1, 90 do fft.rfft(x:narrow(1, 1, 300 - n)) end
    assert.is_true(tonumber(fake.fake_cufft_living()) <= 64)
    local made = tonumber(fake.fake_cufft_made())
    for n = 90, 40, -1 do fft.rfft(x:narrow(1, 1, 300 - n)) end
    assert.are.equal(made, tonumber(fake.fake_cufft_made()))
  end)

  it("is recorded and replayed, also when its plan is long out of use", function()
    if not through then return pending("needs cuFFT") end
    local step = capture(function(x) return fft.irfft(fft.rfft(x) * 2, 30):sum(1) end,
      { device = D })
    for k = 1, 6 do
      local x = tensor.randn({ 4, 30 })
      if k == 5 then for n = 100, 180 do fft.rfft(tensor.ones(n, { device = D })) end end
      same(step(x:to(D)), (x * 2):sum(1), 1e-5, "call " .. k)
    end
    assert.are.equal(1, step:stats().recorded)
  end)

  describe("through the CPU", function()
    it("where cuFFT has no plan", function()
      if not through or device.kind ~= "emulated" then return pending("needs cuFFT's stand-in") end
      ffi.C.setenv("FAKE_CUFFT_REFUSE", "13", 1)
      core.kernel_stats { device = D, reset = true }
      local x = numbers("complex64", 3, 13)
      local y = fft.fft(x:to(D))
      ffi.C.unsetenv "FAKE_CUFFT_REFUSE"
      same(y, fft.fft(x), 1e-5, "fft")
      assert.are.equal(1,
        core.kernel_stats { device = D } ["fft float32, on the CPU (CUFFT_NOT_SUPPORTED)"])
    end)

    it("where cuFFT is missing or turned off", function()
      if device.kind ~= "emulated" then return pending("for the emulated device") end
      local script = [[
        local tensor = require "accelerate.tensor"
        local x = tensor.complex(tensor.arange(6):float(), tensor.ones(6))
        local y = tensor.fft.fft(x:to("cuda")):to("cpu")
        local off = tensor.view_as_real(y - tensor.fft.fft(x)):abs():max():item()
        print(off < 1e-5, next(require("accelerate.core").kernel_stats { device = "cuda" }) == nil)
      ]]
      local fakes = os.getenv("ACCEL_CUDA_LIBRARIES")
      for _, env in ipairs { { ACCEL_CUDA_LIBRARIES = "/nowhere" },
        { ACCEL_CUDA_LIBRARIES = fakes, ACCEL_CUFFT = "0" } } do
        env.ACCEL_CUDA_PLUGIN = os.getenv "ACCEL_CUDA_PLUGIN"
        local _, out, err = host.run({ "-" }, { stdin = script, env = env })
        assert.are.equal("true\ttrue\n", out, err)
      end
    end)
  end)
end)
