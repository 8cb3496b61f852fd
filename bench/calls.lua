-- Times each call of bench/calls.txt; one line of JSON: { "calls": [ms or null, ...] }, medians of
-- several calls, or with --least the shortest. The same work as peer/calls.py.
--
--   accel-run bench/calls.lua [--least] [--only PATTERN]
local accelerate = require "accelerate"
local here = arg[0]:match("^.*/") or "./"
local common = dofile(here .. "common.lua")
local list = dofile(here .. "calls_list.lua")
local core, tensor = require "accelerate.core", require "accelerate.tensor"

local SECONDS, LEAST_CALLS, MOST_CALLS = 0.4, 3, 12

local least, only = false, ""
for k = 1, #arg do
  if arg[k] == "--least" then least = true end
  if arg[k] == "--only" then only = arg[k + 1] end
end

local operands = {
  T = tensor, F = accelerate.nn.functional, nn = accelerate.nn,
  R = function(...) return tensor.randn(...):requires_grad_() end,
}

local made = {} -- the list's operands: tensors and modules

local function evaluate(text) return setfenv(assert(loadstring("return " .. text)), operands) end

local seeds = {}
local function backward(y)
  if y:numel() == 1 then return y:sum():backward() end
  local key = table.concat(y.shape, " ")
  seeds[key] = seeds[key] or core.keep(tensor.ones(y.shape))
  y:backward(seeds[key])
end

local function clear_gradients()
  for _, value in pairs(made) do
    if tensor.is_tensor(value) then value.grad = nil else value:zero_grad() end
  end
end

local function time(row)
  local fn = evaluate(row.ours)
  local function once()
    if row.gradient then backward((fn())) else fn() end
  end
  local times, began = {}, common.now()
  for k = 0, MOST_CALLS do
    local start = common.now()
    tensor.scope(once)
    if k > 0 then times[k] = (common.now() - start) * 1e3 end -- the first call makes its memory
    if row.gradient then clear_gradients() end
    if k >= LEAST_CALLS and common.now() - began > SECONDS then break end
  end
  table.sort(times)
  return least and times[1] or common.median(times)
end

tensor.manual_seed(1)
local out = {}
for _, row in ipairs(list(here .. "calls.txt")) do
  if row.name then
    made[row.name] = evaluate(row.ours)()
    operands[row.name] = made[row.name]
  else
    local wanted = row.ours:find(only)
    out[#out + 1] = wanted and ("%.6g"):format(time(row)) or "null"
  end
end
print(('{"calls": [%s]}'):format(table.concat(out, ", ")))
