--- Every row against PyTorch: values and gradients written by spec/reference/torch/<family>.py, in
--- float64.
local core = require "accelerate.core"
local env = { core = core, tensor = require "accelerate.tensor", nn = require "accelerate.nn",
  F = require "accelerate.nn.functional",
  func = require "accelerate.func", sparse = require "accelerate.sparse",
  int64 = function(v) return core.tensor(v, { dtype = "int64" }) end }

local FAMILIES = {
  "attention",
  "batch_norm",
  "composed",
  "complex", "factor", "fft",
  "conv",
  "copies", "draws", "loss", "pointwise", "reduce",
  "forms", "index", "indexing",
  "inplace", "interpolate", "masked", "special", "taken",
  "linalg",
  "norm",
  "pool",
  "distance",
  "rnn",
  "shape", "sparse", "transformer",
  "beside_modules",
}

local function make(v)
  local t = core.tensor(v.v, { dtype = v.d })
  return t:view(v.s)
end

local function check(what, got, expected, tolerance)
  assert.are.same(expected.s, got.shape, what .. ": shape")
  assert.are.equal(expected.d, got.dtype, what .. ": dtype")
  local values = got:reshape(-1):totable()
  for i, e in ipairs(expected.v) do
    local g = values[i]
    local same = g == e or (e ~= e and g ~= g)
      or (type(e) == "number" and math.abs(g - e) <= tolerance * math.max(1, math.abs(e)))
    if not same then
      error(("%s, flat position %d: got %s, PyTorch %s"):format(what, i, tostring(g), tostring(e)), 0)
    end
  end
end

-- The sum of each floating result times the generator's weights.
local function total_of(results)
  local total
  for _, r in ipairs(results) do
    if r.requires_grad then
      local w = (core.arange(r:numel()) % 7):double() / 8 + 0.5
      local part = (r * w:view(r.shape)):sum()
      total = total and total + part or part
    end
  end
  return total
end

local function run(case)
  local names, inputs = {}, {}
  for k, v in ipairs(case.inputs) do
    names[k], inputs[k] = "x" .. k, make(v)
    if case.grads[k] then inputs[k]:requires_grad_() end
  end
  local chunk = assert(loadstring(("local %s = ... return %s"):format(#names > 0 and table.concat(names, ", ")
    or "_", case.call)))
  local results = { setfenv(chunk, setmetatable(env, { __index = _G }))(unpack(inputs)) }
  for k, expected in ipairs(case.outputs) do check("result " .. k, results[k], expected, case.tolerance) end
  local total = total_of(results)
  if not total then return end
  total:backward()
  for k, expected in ipairs(case.grads) do
    if expected then
      assert(inputs[k].grad, ("input %d got no gradient"):format(k))
      check("gradient of input " .. k, inputs[k].grad, expected, case.tolerance)
    end
  end
end

describe("against PyTorch", function()
  local covered = {}
  for _, family in ipairs(FAMILIES) do
    local reference = require("spec.reference.torch." .. family)
    for _, row in ipairs(reference.absent) do covered[row] = true end
    for _, case in ipairs(reference.cases) do
      covered[case.row] = true
      it(("%s: %s"):format(case.row, case.call), function() run(case) end)
    end
  end
  it("every row has values from PyTorch or is listed as not there", function()
    local missing = {}
    for _, row in ipairs(core.ops()) do
      if not row.hidden and not covered[row.name] then missing[#missing + 1] = row.name end
    end
    for _, entry in ipairs(require("accelerate.tensor.composed").list) do
      if not covered[(entry.name:gsub("_$", ""))] and not covered[entry.name] then
        missing[#missing + 1] = entry.name
      end
    end
    for name in pairs(require "accelerate.tensor.fft") do
      if not covered["fft." .. name] then missing[#missing + 1] = "fft." .. name end
    end
    for name in pairs(require "accelerate.tensor.linalg") do
      if not covered["linalg." .. name] then missing[#missing + 1] = "linalg." .. name end
    end
    for name in pairs(require "accelerate.sparse") do
      if not covered["sparse." .. name] and not covered[name] and not covered["_sparse_" .. name] then
        missing[#missing + 1] = "sparse." .. name
      end
    end
    assert.are.same({}, missing)
  end)
end)
