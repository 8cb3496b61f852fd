-- Fourier transforms, one thread: batches of signals, an image, a prime length, and a
-- spectrogram with its gradient; one line of JSON.  The same work as peer/fft.py.
--
--   accel-run --num_cpu_threads_per_process 1 bench/fft.lua
local tensor = require "accelerate.tensor"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local fft = tensor.fft
local REPEATS = 15
tensor.manual_seed(1)
local function complex(...) return tensor.complex(tensor.randn(...), tensor.randn(...)) end
local lines, prime, image = complex(256, 1024), complex(64, 1009), complex(512, 512)
local real, long = tensor.randn(256, 1024), complex(1048576)
local signal = tensor.randn(8, 16000):requires_grad_()
local window = tensor.hann_window(400)

local work = {
  fft = function() return fft.fft(lines) end,
  rfft = function() return fft.rfft(real) end,
  fft_long = function() return fft.fft(long) end,
  fft_prime = function() return fft.fft(prime) end,
  fft2 = function() return fft.fft2(image) end,
  stft_backward = function()
    signal:stft(400, { hop_length = 160, window = window }):abs():square():sum():backward()
  end,
}

common.emit(common.median_of_each(work, REPEATS))
