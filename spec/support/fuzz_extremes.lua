--- Random calls of the whole op table with attributes that nobody means: huge, negative, zero,
--- fractional, not a number.
local core = require "accelerate.core"
local fuzz_ops = require "spec.support.fuzz_ops"
local tensor = require "accelerate.tensor"

local M = {}

local EXTREME = { 0, -1, 0.5, 1e300, math.huge, -math.huge, 0 / 0, 2 ^ 31 - 1, 2 ^ 31, 2 ^ 32, 2 ^ 53,
  -2 ^ 31, -2 ^ 53, 2 ^ 62, 65537 }

-- Puts one of them, or a few, in the place of numbers among the arguments: in lists and options
-- too.
local function perturb(c, args, n)
  local places = {}
  for i = 1, n do
    local v = args[i]
    if type(v) == "number" then places[#places + 1] = { args, i }
    elseif type(v) == "table" then
      local keys = {}
      for k, inner in next, v do if type(inner) == "number" then keys[#keys + 1] = k end end
      table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
      local copy = {}
      for k, inner in next, v do copy[k] = inner end
      args[i] = copy
      for _, k in ipairs(keys) do places[#places + 1] = { copy, k } end
    end
  end
  if #places == 0 then return end
  for _ = 1, c:int(2) do
    local place = c:of(places)
    place[1][place[2]] = c:of(EXTREME)
  end
end

-- x, at times with a size of 0 in the place of one of its own: factors of a dim divide that one
-- all.
local function hollowed(c, x)
  if x.ndim == 0 or not c:once_in(3) then return x end
  local shape = x.shape
  shape[c:int(#shape)] = 0
  return tensor.zeros(shape, { dtype = x.dtype })
end

--- Calls every row `rounds` times with such attributes, forward and backward. Tensors may take 256
--- MB meanwhile. Raises where a promise is broken; a crash or a call that never ends is named by
--- FUZZ_TRACE=1.
---@param seed integer
---@param rounds integer
function M.run(seed, rounds)
  core.set_memory_limit(2 ^ 28)
  local p = fuzz_ops.program(seed, { short = true }) -- memory may well not suffice
  local ok, message = pcall(function()
    for _, op in ipairs(core.ops()) do
      for _ = 1, op.hidden and 0 or rounds do
        local x = hollowed(p.c, p:pick())
        local args, n = p:arguments(op, x)
        if core.is_tensor(args[1]) then args[1] = hollowed(p.c, args[1]) end
        perturb(p.c, args, n)
        for _, r in ipairs(fuzz_ops.flat_result(p:try(op.name, { op.name }, core[op.name], n,
          unpack(args, 1, n)))) do
          -- (beside a size of 0 another may be huge)
          if r:numel() <= 4000 and math.max(1, unpack(r.shape)) < 2 ^ 31 then
            p:digest(r, op.name)
            if r.requires_grad then p:backward(r) end
          end
        end
      end
    end
  end)
  core.set_memory_limit(0)
  if not ok then error(("seed %d: %s\nafter %s"):format(seed, tostring(message), tostring(p.last)), 2) end
end

return M
