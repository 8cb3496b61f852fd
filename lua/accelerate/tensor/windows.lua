--- Windows under the names of torch.signal.windows: (M, sym, dtype) and what gives them their form.
--- sym: the last position mirrors the first; else the window is one period of a longer one.
local analytic = require "accelerate.tensor.analytic"
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local options = require "accelerate.utils.options"

-- value(k, last) for positions k of a window whose last one is `last`.
local function window(where, length, sym, dtype, value)
  if length < 0 then options.fail("%s: M must be at least 0, got %d", where, length) end
  dtype = dtype or core.get_default_dtype()
  if not dtype:find("float", 1, true) then
    options.fail("%s: dtype must be a floating type, got %s", where, dtype)
  end
  if length == 0 then return core.empty({ 0 }, { dtype = dtype }) end
  local list, last = {}, sym and length - 1 or length
  for k = 0, length - 1 do list[k + 1] = length == 1 and 1 or value(k, last) end
  return core.tensor(list, { dtype = "float64" }):to(dtype)
end

-- sum of (-1)^i a[i] cos(2 pi i t)
local function cosines(a)
  return function(k, last)
    local sum = 0
    for i, weight in ipairs(a) do
      sum = sum + (i % 2 == 1 and weight or -weight) * math.cos(2 * math.pi * (i - 1) * k / last)
    end
    return sum
  end
end

local M = {}
local function public(name, extra, summary, make)
  local signature = "M:int" .. (extra and " " .. extra or "") .. " sym:bool=true dtype:dtype?"
  local full = "signal.windows." .. name
  local parameters = extra and select(2, extra:gsub(":", "")) or 0
  M[name] = define.within("signal.windows", name, signature, summary, function(length, ...)
    local sym, dtype = select(parameters + 1, ...)
    return window(full, length, sym, dtype, make(...))
  end)
end

public("hann", nil, "(1 - cos(2 pi t)) / 2", function() return cosines { 0.5, 0.5 } end)
public("hamming", nil, "0.54 - 0.46 cos(2 pi t)", function() return cosines { 0.54, 0.46 } end)
public("general_hamming", "alpha:num=0.54", "alpha - (1 - alpha) cos(2 pi t)",
  function(alpha) return cosines { alpha, 1 - alpha } end)
public("blackman", nil, "0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t)",
  function() return cosines { 0.42, 0.5, 0.08 } end)
public("nuttall", nil, "Nuttall's window of four cosines",
  function() return cosines { 0.3635819, 0.4891775, 0.1365995, 0.0106411 } end)
public("bartlett", nil, "1 - |2 t - 1|", function()
  return function(k, last) return 1 - math.abs(2 * k / last - 1) end
end)
public("cosine", nil, "sin(pi (k + 1/2) / M)", function()
  return function(k, last) return math.sin(math.pi * (k + 0.5) / (last + 1)) end
end)
public("exponential", "center:num? tau:num=1", "exp(-|k - center| / tau); center: the middle",
  function(center, tau)
    if not (tau > 0) then options.fail("signal.windows.exponential: tau must be above 0, got %g", tau) end
    return function(k, last) return math.exp(-math.abs(k - (center or last / 2)) / tau) end
  end)
public("gaussian", "std:num=1", "exp(-((k - middle) / std)^2 / 2)", function(std)
  if not (std > 0) then options.fail("signal.windows.gaussian: std must be above 0, got %g", std) end
  return function(k, last) return math.exp(-((k - last / 2) / std) ^ 2 / 2) end
end)
public("kaiser", "beta:num=12", "I0(beta sqrt(1 - (2 t - 1)^2)) / I0(beta)", function(beta)
  if beta < 0 then options.fail("signal.windows.kaiser: beta must be at least 0, got %g", beta) end
  return function(k, last)
    return analytic.i0(beta * math.sqrt(math.max(0, 1 - (2 * k / last - 1) ^ 2))) / analytic.i0(beta)
  end
end)

M.general_cosine = define.within("signal.windows", "general_cosine", "M:int a:any sym:bool=true dtype:dtype?",
  "the sum of (-1)^i a[i] cos(2 pi i t), i from 0", function(length, a, sym, dtype)
    local where = "signal.windows.general_cosine"
    if type(a) ~= "table" or #a == 0 then
      options.fail("%s: a: expected a list of numbers, got %s", where, options.show(a))
    end
    for i, weight in ipairs(a) do
      if type(weight) ~= "number" then
        options.fail("%s: a, entry %d: expected a number, got %s", where, i, options.show(weight))
      end
    end
    return window(where, length, sym, dtype, cosines(a))
  end)

return M
