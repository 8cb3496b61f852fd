--- Rows of the op table on the device against the CPU where rows_spec does not go: tensors without
--- elements, and integer and boolean inputs.
local device = require "spec.support.device"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local cases = require "spec.support.op_cases"
local build = require("spec.support.op_inputs").build

if not device.name then
  describe("rows on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local TOLERANCE = device.fake and 0 or 2e-5

--- What a call gives, read on the host; the first value says whether it went well.
local function results_of(on, fn)
  local results = on == "cpu" and { pcall(fn) } or { pcall(device.with, fn) }
  if not results[1] then return false, results[2] end
  local read = {}
  for k = 2, #results do
    local r = results[k]
    if core.is_tensor(r) then
      if r.device ~= on then return false, ("result %d lies on %s"):format(k - 1, r.device) end
      local ok, here = pcall(r.to, r, "cpu")
      if not ok then return false, here end
      read[#read + 1] = here
    end
  end
  return true, read
end

local function agree(what, got, expected)
  assert.are.equal(#expected, #got, what)
  for k, y in ipairs(expected) do
    local x = got[k]
    assert.are.same(y.shape, x.shape, what)
    assert.are.equal(y.dtype, x.dtype, what)
    if y.dtype:match("^float") or y.dtype == "bfloat16" then
      local a, b = x:double():reshape(-1):totable(), y:double():reshape(-1):totable()
      for i = 1, #b do
        local same = a[i] == b[i] or (a[i] ~= a[i] and b[i] ~= b[i])
          or math.abs(a[i] - b[i]) <= TOLERANCE * math.max(1, math.abs(b[i]))
        if not same then
          error(("%s, result %d, flat position %d: got %s, the CPU has %s"):format(what, k, i, a[i], b[i]), 0)
        end
      end
    else
      assert.is_true(tensor.equal(x, y), what)
    end
  end
end

--- The same call here and there.  Where the CPU refuses, the device must, too.
local function compare(what, case, make)
  local function run(on)
    return results_of(on, function()
      local leaves, inputs = build(case, "contiguous")
      for k, leaf in ipairs(leaves) do leaves[k] = make(leaf):to(on) end
      return case.call(inputs(unpack(leaves)))
    end)
  end
  local fine, expected = run "cpu"
  local there, got = run(device.name)
  -- what a kernel found wrong after the last result was read
  local quiet, late = pcall(core.synchronize, device.name)
  if there and not quiet then there, got = false, late end
  if fine ~= there then
    error(("%s: %s"):format(what, fine and got
      or ("the CPU refuses and the device does not: " .. tostring(expected))), 0)
  end
  if fine then agree(what, got, expected) end
end

describe(("sizes and types on %s (%s)"):format(device.name, device.kind), function()
  for _, row in ipairs(core.ops()) do
    local case = cases[row.name]
    if case and case.call and row.name ~= "bernoulli" then
      it(row.name .. " of no elements", function()
        compare(row.name .. " of no elements", case,
          function(leaf) return leaf:dim() > 0 and leaf:narrow(1, 1, 0):float() or leaf:float() end)
      end)
      it(row.name .. " of integers and booleans", function()
        for _, dtype in ipairs { "int64", "int32", "uint8", "bool" } do
          compare(("%s of %s"):format(row.name, dtype), case, function(leaf)
            local wide = (leaf * 7):round()
            return (dtype == "uint8" and wide:abs() or wide):to(dtype)
          end)
        end
      end)
    end
  end
end)
