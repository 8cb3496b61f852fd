-- Runs the cases of the pointwise, reduce and loss rows in every floating type, at this process's
-- processor level, and prints
--   FAR family row dtype what          where a result is farther from float64 than the table of
--                                      tolerances allows
--   VALUES family row numbers...       the float64 results, for comparing levels
-- Used by spec/kernels/levels_spec.lua.
package.path = "./?.lua;" .. package.path
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local tolerances = require "spec.support.tolerances"

local FAMILIES = { "pointwise", "reduce", "loss" }
local C = require("spec.support.op_cases.helpers").C

-- Which family brought a case: the files are read one after the other.
local family_of = {}
for _, family in ipairs(FAMILIES) do
  require("spec.support.op_cases." .. family)
  for name in pairs(C) do family_of[name] = family_of[name] or family end
end

local function values(lo, hi, shape, salt)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  local x = tensor.rand(n, { generator = tensor.Generator(salt) }):double() * (hi - lo) + lo
  return x:view(shape)
end

local function numbers(t)
  local list = t:reshape(-1):to("float64"):totable()
  return list
end

local function far(got, want, allowed)
  if #got ~= #want then return ("%d elements, expected %d"):format(#got, #want) end
  for i, w in ipairs(want) do
    local g = got[i]
    local same = g == w or (g ~= g and w ~= w) or math.abs(g - w) <= allowed * math.max(1, math.abs(w))
    if not same then return ("element %d is %.9g, expected %.9g"):format(i, g, w) end
  end
end

local function run(name, case, shape, salt)
  local inputs = {}
  for k, spec in ipairs(case.inputs) do
    inputs[k] = values(spec.lo, spec.hi, shape or spec.shape, salt + k)
  end
  return inputs
end

local names = {}
for _, row in ipairs(core.ops()) do names[#names + 1] = row.name end
for _, name in ipairs(names) do
  local case, family = C[name], family_of[name]
  if case and family and case.inputs then
    -- pointwise rows also with no elements, one, a tail, and more than a block
    local shapes = { false }
    if case.pointwise then shapes = { false, { 0 }, { 2, 0, 3 }, {}, { 37 }, { 1100 } } end
    for s, shape in ipairs(shapes) do
      local given = run(name, case, shape or nil, 10 * s)
      for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
        local low, exact = {}, {}
        for k, t in ipairs(given) do
          low[k] = t:to(dtype)
          exact[k] = low[k]:double()
        end
        local got, want = { case.call(unpack(low)) }, { case.call(unpack(exact)) }
        for k = 1, #want do
          local wrong = far(numbers(got[k]), numbers(want[k]), tolerances[family][dtype])
          if wrong then print("FAR", family, name, dtype, ("shape %d, result %d: %s"):format(s, k, wrong)) end
        end
      end
      local out = {}
      for _, t in ipairs { case.call(unpack(given)) } do
        for _, v in ipairs(numbers(t)) do out[#out + 1] = ("%.17g"):format(v) end
      end
      print("VALUES", family, name .. "/" .. s, table.concat(out, " "))
    end
  end
end
