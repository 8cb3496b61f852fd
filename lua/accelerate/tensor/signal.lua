--- Windows, and Fourier transforms of short pieces of a signal.
local analytic = require "accelerate.tensor.analytic"
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"


-- ---- windows

-- value(t) for t = 0 .. 1 over the window; a periodic one leaves out the last of length + 1.
local function window(where, length, periodic, o, value)
  if length < 0 then options.fail("%s: window_length must be at least 0, got %d", where, length) end
  local dtype = o.dtype or core.get_default_dtype()
  if not dtype:find("float", 1, true) then
    options.fail("%s: dtype must be a floating type, got %s", where, dtype)
  end
  local list, last = {}, periodic and length or length - 1
  for k = 0, length - 1 do list[k + 1] = length == 1 and 1 or value(k / last) end
  local y = length == 0 and core.empty({ 0 }, { dtype = dtype })
    or core.tensor(list, { dtype = "float64" }):to(dtype)
  if o.device then y = y:to { device = options.value(where, "device", o.device, { "string" }) } end
  return y:requires_grad_(o.requires_grad)
end

-- A window of this name; value(...) gets its own parameters and gives the function of t.
local function define_window(name, own, summary, value)
  local count = select(2, own:gsub(":", ""))
  define(name, "window_length:int periodic:bool=true " .. own .. "dtype:dtype? device:any? " ..
    "requires_grad:bool=false", summary, function(n, periodic, ...)
      local dtype, device, requires_grad = select(count + 1, ...)
      return window(name, n, periodic, { dtype = dtype, device = device, requires_grad = requires_grad },
        value(...))
    end, "function")
end

define_window("hann_window", "", "(1 - cos(2 pi t)) / 2 for t = 0 .. 1; periodic: without the last position",
  function() return function(t) return math.sin(math.pi * t) ^ 2 end end)
define_window("hamming_window", "alpha:num=0.54 beta:num=0.46 ",
  "alpha - beta cos(2 pi t) for t = 0 .. 1; periodic: without the last position",
  function(alpha, beta)
    return function(t) return alpha - beta * math.cos(2 * math.pi * t) end
  end)
define_window("blackman_window", "",
  "0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t) for t = 0 .. 1; periodic: without the last position",
  function()
    return function(t) return 0.42 - 0.5 * math.cos(2 * math.pi * t) + 0.08 * math.cos(4 * math.pi * t) end
  end)
define_window("bartlett_window", "", "1 - |2 t - 1| for t = 0 .. 1; periodic: without the last position",
  function() return function(t) return 1 - math.abs(2 * t - 1) end end)
define_window("kaiser_window", "beta:num=12 ",
  "I0(beta sqrt(1 - (2 t - 1)^2)) / I0(beta) for t = 0 .. 1; periodic: without the last position",
  function(beta)
    return function(t)
      return analytic.i0(beta * math.sqrt(math.max(0, 1 - (2 * t - 1) ^ 2))) / analytic.i0(beta)
    end
  end)

-- ---- short pieces

-- The window for pieces of n_fft: zeros on both sides where it is shorter.
local function framed(where, x, n_fft, win_length, given)
  win_length = win_length or n_fft
  if win_length < 1 or win_length > n_fft then
    options.fail("%s: win_length must be from 1 to n_fft (%d), got %d", where, n_fft, win_length)
  end
  local real = (x.dtype == "float64" or x.dtype == "complex128") and "float64" or "float32"
  local w = given
  if not w then w = core.ones(win_length, { dtype = real, device = x.device })
  elseif w.ndim ~= 1 or w.shape[1] ~= win_length then
    options.fail("%s: expected a window of shape [%d], got %s", where, win_length, lists.shape_text(w))
  end
  if win_length == n_fft then return w end
  local before = math.floor((n_fft - win_length) / 2)
  return w:pad({ before, n_fft - win_length - before })
end

local function check_hop(where, n_fft, hop)
  if n_fft < 1 then options.fail("%s: n_fft must be at least 1, got %d", where, n_fft) end
  hop = hop or math.floor(n_fft / 4)
  if hop < 1 then options.fail("%s: hop_length must be at least 1, got %d", where, hop) end
  return hop
end

local function check_onesided(where, onesided)
  if onesided ~= nil and type(onesided) ~= "boolean" then
    options.fail("%s: onesided: expected a boolean, got %s", where, options.show(onesided))
  end
end

-- Positions of `frames` pieces of n_fft, hop apart, as one vector.
local function places(frames, n_fft, hop, device)
  local starts = core.arange(frames, { device = device }):mul(hop):unsqueeze(2)
  return (starts + core.arange(n_fft, { device = device })):view(-1)
end

define("stft", "x:T n_fft:int hop_length:int? win_length:int? window:T? center:bool=true " ..
  "pad_mode:constant|reflect|replicate|circular=reflect normalized:bool=false onesided:any? " ..
  "return_complex:bool=true",
  "Fourier transforms of pieces of n_fft samples, hop_length (n_fft / 4) apart, times the window: " ..
  "x is (samples) or (batch, samples), the result (.., frequencies, pieces), complex; " ..
  "return_complex = false: the parts as a last dim",
  function(x, n_fft, hop, win_length, given, center, pad_mode, normalized, onesided, return_complex)
    if x.ndim ~= 1 and x.ndim ~= 2 then
      options.fail("stft: expected shape [samples] or [batch, samples], got %s", lists.shape_text(x))
    end
    hop = check_hop("stft", n_fft, hop)
    check_onesided("stft", onesided)
    local w = framed("stft", x, n_fft, win_length, given)
    local whole = x:is_complex() or w:is_complex()
    if onesided == nil then onesided = not whole end
    if onesided and whole then
      options.fail("stft: onesided is for real signals and windows; these are %s and %s", x.dtype, w.dtype)
    end
    local rows = x.ndim == 1 and x:unsqueeze(1) or x
    if center then
      local margin = math.floor(n_fft / 2)
      rows = rows:unsqueeze(1):pad({ margin, margin }, pad_mode):squeeze(1)
    end
    local samples = rows.shape[2]
    if samples < n_fft then
      options.fail("stft: %d samples are fewer than n_fft, %d", samples, n_fft)
    end
    local frames = 1 + math.floor((samples - n_fft) / hop)
    local pieces = rows:index_select(2, places(frames, n_fft, hop, x.device)):view(-1, frames, n_fft) * w
    local fft = require "accelerate.tensor.fft"
    local out = (onesided and fft.rfft or fft.fft)(pieces, { norm = normalized and "ortho" or "backward" })
    out = out:transpose(2, 3)
    if x.ndim == 1 then out = out:squeeze(1) end
    return return_complex and out or out:contiguous():view_as_real()
  end)

define("istft", "x:T n_fft:int hop_length:int? win_length:int? window:T? center:bool=true " ..
  "normalized:bool=false onesided:any? length:int? return_complex:bool=false",
  "the signal that stft turns into x, (.., frequencies, pieces): overlapping pieces are added and " ..
  "divided by the sum of the squared windows; length: samples of the result",
  function(x, n_fft, hop, win_length, given, center, normalized, onesided, length, return_complex)
    if not x:is_complex() or (x.ndim ~= 2 and x.ndim ~= 3) then
      options.fail("istft: expected a complex tensor of 2 or 3 dims, got %s %s", x.dtype, lists.shape_text(x))
    end
    hop = check_hop("istft", n_fft, hop)
    check_onesided("istft", onesided)
    local rows = x.ndim == 2 and x:unsqueeze(1) or x
    local half = math.floor(n_fft / 2) + 1
    if onesided == nil then onesided = not return_complex and rows.shape[2] ~= n_fft end
    if onesided and return_complex then
      options.fail("istft: a complex result needs both sides: onesided = false")
    end
    local expected = onesided and half or n_fft
    if rows.shape[2] ~= expected then
      options.fail("istft: expected %d frequencies for n_fft %d, got shape %s", expected, n_fft,
        lists.shape_text(x))
    end
    local w = framed("istft", x, n_fft, win_length, given)
    local batch, frames = rows.shape[1], rows.shape[3]
    local fft, norm = require "accelerate.tensor.fft", { norm = normalized and "ortho" or "backward" }
    local turned = rows:transpose(2, 3)
    local pieces
    if return_complex then pieces = fft.ifft(turned, norm)
    else
      if not onesided then turned = turned:narrow(3, 1, half) end
      norm.n = n_fft
      pieces = fft.irfft(turned, norm)
    end
    pieces = pieces * w
    local total = n_fft + hop * (frames - 1)
    local at = places(frames, n_fft, hop, x.device)
    local signal = core.zeros({ batch, total }, { dtype = pieces.dtype, device = x.device })
      :index_add(2, at, pieces:reshape(batch, frames * n_fft))
    local weight = core.zeros(total, { dtype = w.dtype, device = x.device })
      :index_add(1, at, (w * w):tile(frames))
    local first = center and math.floor(n_fft / 2) or 0
    local last = total - first
    if length then last = math.min(total, first + length) end
    if last <= first then options.fail("istft: %d pieces give no samples", frames) end
    signal = signal:narrow(2, first + 1, last - first)
    weight = weight:narrow(1, first + 1, last - first)
    if weight:detach():abs():min():item() < 1e-11 then
      options.fail("istft: the squared windows add up to 0 at some samples; " ..
        "use a window that covers all of them, or center = true")
    end
    signal = signal / weight
    if length and length > last - first then signal = signal:pad({ 0, length - (last - first) }) end
    return x.ndim == 2 and signal:squeeze(1) or signal
  end)
