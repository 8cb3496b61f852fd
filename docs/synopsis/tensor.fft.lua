local tensor = require "accelerate.tensor"
local fft = tensor.fft

local signal = tensor.randn(2, 1000)
local spectrum = fft.rfft(signal, { norm = "ortho" }) -- complex64, [2, 501]
local low = spectrum * fft.rfftfreq(1000):lt(0.1):float()
local smooth = fft.irfft(low, 1000, { norm = "ortho" })

local image = tensor.randn(3, 64, 64)
local shifted = fft.fftshift(fft.fft2(image):abs(), { 2, 3 })
print(spectrum.shape[2], smooth.shape[2], shifted.dtype)
