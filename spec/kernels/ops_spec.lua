--- Walks the op table: every row has a case; forward against a plain reference, gradients against
--- finite differences in float64, each contiguous, strided and broadcast.
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local cases = require "spec.support.op_cases"
local gradcheck = require "spec.support.gradcheck"

local build = require("spec.support.op_inputs").build

local function close(what, got, expected, tolerance)
  if type(expected) == "table" then
    assert.are.equal("table", type(got), what)
    assert.are.equal(#expected, #got, what .. ": length")
    for i, e in ipairs(expected) do close(("%s[%d]"):format(what, i), got[i], e, tolerance) end
  elseif type(expected) == "boolean" then
    assert.are.equal(expected, got, what)
  elseif not (math.abs(got - expected) <= tolerance * math.max(1, math.abs(expected))) then
    error(("%s: got %.17g, expected %.17g"):format(what, got, expected), 0)
  end
end

local function value(t) return t:dim() == 0 and t:item() or t:totable() end

-- Applies a scalar reference over tensors already broadcast to one shape.
local function pointwise_reference(ref, inputs)
  local shape = inputs[1]
  for k = 2, #inputs do shape = shape + inputs[k] end
  local flats = {}
  for k, t in ipairs(inputs) do flats[k] = t:expand(shape.shape):reshape(-1):totable() end
  local out = {}
  for i = 1, #flats[1] do
    local scalars = {}
    for k = 1, #flats do scalars[k] = flats[k][i] end
    out[i] = ref(unpack(scalars))
  end
  return out
end

local function check_forward(name, case, layout)
  local leaves, inputs = build(case, layout)
  local given = { inputs(unpack(leaves)) }
  local results = { case.call(unpack(given)) }
  if case.pointwise then
    close(name, results[1]:reshape(-1):totable(), pointwise_reference(case.ref, given), case.tolerance
      or 1e-12)
  elseif case.ref then
    local plain = {}
    for k, t in ipairs(given) do plain[k] = t:totable() end
    for k, expected in ipairs { case.ref(unpack(plain)) } do
      close(name .. " result " .. k, value(results[k]), expected, 1e-12)
    end
  end
end

local function check_gradient(name, case, layout, order)
  local leaves, inputs = build(case, layout)
  for _, leaf in ipairs(leaves) do leaf:requires_grad_() end
  gradcheck[order](name .. ", " .. layout, function(...) return case.call(inputs(...)) end, leaves)
end

-- The structures that are alive when nothing but the case holds any.
local function held()
  collectgarbage()
  collectgarbage()
  return core.memory_stats().structs
end

local function differentiate(case)
  local leaves, inputs = build(case, "contiguous")
  for _, leaf in ipairs(leaves) do leaf:requires_grad_() end
  local total
  for _, result in ipairs { case.call(inputs(unpack(leaves))) } do
    if result.requires_grad then
      if result:is_complex() then result = result:abs() end
      total = total and total + result:sum() or result:sum()
    end
  end
  if total then total:backward() end
end

describe("the op table", function()
  for _, row in ipairs(core.ops()) do
    local case = cases[row.name]
    it(row.name .. " has a case",
      function() assert.is_table(case, "spec/support/op_cases.lua has no case for " .. row.name) end)
    if case and case.through then
      it(row.name .. " is run by the cases of " .. case.through,
        function() assert.is_table(cases[case.through]) end)
    elseif case and case.spec then
      it(row.name .. " is run by " .. case.spec, function() assert(io.open(case.spec)):close() end)
    elseif case and case.creator then
      it(row.name .. " is run by tensor." .. case.creator,
        function() assert.is_function(tensor[case.creator]) end)
    elseif case then
      for _, layout in ipairs { "contiguous", "strided", "broadcast" } do
        it(("%s, %s: forward"):format(row.name, layout), function() check_forward(row.name, case, layout) end)
        local differentiable = row.differentiable or row.form == "composite"
        if differentiable and not case.exact and not case.no_differences then
          it(("%s, %s: gradient"):format(row.name, layout),
            function() check_gradient(row.name, case, layout, "first") end)
          if layout == "contiguous" then
            it(row.name .. ": its gradient lets go of what it made", function()
              differentiate(case)
              local before = held()
              for _ = 1, 3 do differentiate(case) end
              assert.equal(before, held())
            end)
          end
          if case.once then -- the fused row that raises
            it(("%s, %s: the gradient's gradient is refused by name"):format(row.name, layout), function()
              local ok, err = pcall(check_gradient, row.name, case, layout, "second")
              assert.is_false(ok)
              assert.truthy(err:find(case.once .. ": its gradient cannot be differentiated again", 1, true),
                err)
            end)
          else
            it(("%s, %s: gradient of the gradient"):format(row.name, layout),
              function() check_gradient(row.name, case, layout, "second") end)
          end
        end
        if row.inplace and case.pointwise and not case.no_inplace then
          it(("%s, %s: in place gives the same"):format(row.name, layout), function()
            local leaves, inputs = build(case, "contiguous")
            local given = { inputs(unpack(leaves)) }
            local expected = case.call(unpack(given)):totable()
            local x = given[1]:clone()
            if case.inplace then case.inplace(x, unpack(given, 2))
            else x[row.name .. "_"](x, unpack(given, 2)) end
            close(row.name .. "_", x:totable(), expected, 0)
          end)
        end
        if case.pointwise and not case.exact and not row.name:find("^_") then
          it(("%s, %s: float32 agrees with float64"):format(row.name, layout), function()
            local leaves, inputs = build(case, layout)
            local given = { inputs(unpack(leaves)) }
            local low = {}
            for k, t in ipairs(given) do low[k] = t:float() end
            local exact_low = {}
            for k, t in ipairs(low) do exact_low[k] = t:double() end
            close(row.name, case.call(unpack(low)):double():reshape(-1):totable(),
              case.call(unpack(exact_low)):reshape(-1):totable(), 2e-6)
          end)
        end
      end
    end
  end
end)
