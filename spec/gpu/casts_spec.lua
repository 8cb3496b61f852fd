--- Casts between all types on the device: the CPU's result, also for numbers that the other type
--- cannot hold, for infinities and NaN.
local device = require "spec.support.device"
local tensor = require "accelerate.tensor"

if not device.name then
  describe("casts on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local TYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" }

-- The least and largest numbers of each integer type, what lies just inside and outside of them in
-- each floating type, and what has no integer at all.
local EDGES = { 0, -0.0, 0.4, -0.4, 0.5, 1, -1, 1.9, -1.9, 127, 128, 200.7, 255, 255.9, 256, 257, 300, -200,
  -255.5, 65503, 65504, 65519, 65520, 65536, -65520, 8388608.5, 16777217, 2 ^ 31 - 128, 2 ^ 31 - 64,
  2 ^ 31 - 1, 2 ^ 31, 2 ^ 31 + 0.5, 2 ^ 31 + 256, -2 ^ 31, -2 ^ 31 - 0.5, -2 ^ 31 - 1, -2 ^ 31 - 256,
  2 ^ 32, 2 ^ 32 + 5, -2 ^ 32 - 5, 3e9, -3e9, 1e10, -1e10, 1e15, 2 ^ 63 - 1024, 2 ^ 63 - 2 ^ 39, 2 ^ 63,
  -2 ^ 63, -2 ^ 63 - 2048, 1e19, -1e19, 1e30, -1e30, 3.4028234663852886e38, 3.5e38, 1e300, -1e300, 1e-40,
  1e-300, math.huge, -math.huge, 0 / 0 }

-- Tensors of a type that hold its own edges.
local function values(dtype)
  if dtype == "bool" then return tensor.tensor({ true, false, true }) end
  if not dtype:find "float" then
    local list = dtype == "uint8" and { 0, 1, 2, 127, 128, 254, 255 }
      or { 0, 1, -1, 127, 128, 255, 256, 511, -255, -256, 65504, 65520, 16777217, 2147483647, -2147483648 }
    local t = tensor.tensor(list, { dtype = dtype })
    if dtype ~= "int64" then return t end
    -- products reach what a Lua number does not hold
    local wide = t * 4294967297
    return tensor.cat({ t, wide, wide * 3, wide - 1 }, 1)
  end
  return tensor.tensor(EDGES, { dtype = "float64" }):to(dtype)
end

describe(("casts on %s (%s)"):format(D, device.kind), function()
  for _, from in ipairs(TYPES) do
    it("from " .. from .. " to every other type: the CPU's numbers", function()
      local x = values(from)
      -- in runs, one by one, and with steps
      local several = tensor.cat({ x, x, x, x, x, x, x, x }, 1)
      for _, to in ipairs(TYPES) do
        for name, view in pairs {
          runs = function(t) return t end,
          odd = function(t) return t:narrow(1, 2, t:numel() - 1) end,
          steps = function(t) return t[{ { 1, t:numel(), 2 } }] end,
        } do
          local what = ("%s to %s, %s"):format(from, to, name)
          local here, there = view(several):to(to), view(several:to(D)):to(to)
          assert.are.equal(to, there.dtype)
          there = there:to("cpu")
          local same = here:eq(there)
          if to:find "float" then same = same:logical_or(here:isnan():logical_and(there:isnan())) end
          if not same:all():item() then
            local at = same:logical_not():nonzero()[1][1]:item() + 1
            error(("%s: %s becomes %s, on the CPU %s"):format(what, tostring(view(several)[at]:item()),
              tostring(there[at]:item()), tostring(here[at]:item())), 0)
          end
          local copied = tensor.zeros(here:numel(), { dtype = to, device = D }):copy_(view(several:to(D)))
          assert.is_true(tensor.equal(copied:to("cpu"):to("float64"):nan_to_num(),
            here:to("float64"):nan_to_num()), what .. ", copy_")
        end
      end
    end)
  end
end)
