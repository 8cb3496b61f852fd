--- Every pointwise, reducing and loss row at every processor level that this machine runs
--- (ACCEL_CPU_LEVEL), in every floating type, within the one table of tolerances
--- (spec/support/tolerances.lua); float64 the same on all levels; every row of any kind, with its
--- gradients, as at the lowest level; and kernels that take another way for other sizes.
local host = require "spec.support.host"
local runs = require "spec.support.op_runs"
local tolerances = require "spec.support.tolerances"

local function number(word)
  return word:find("nan") and 0 / 0 or word:find("inf")
    and (word:sub(1, 1) == "-" and -math.huge or math.huge) or tonumber(word)
end

describe("processor levels", function()
  local first
  for _, level in ipairs { "v2", "v3", "v4" } do
    it(level .. " computes every case within the tolerances", function()
      local out = host.at_level(level, { "spec/support/level_cases.lua" })
      if not out then return pending("this processor does not run " .. level) end
      local far, rows = {}, 0
      local values = {}
      for line in out:gmatch("[^\n]+") do
        if line:find("^FAR") then far[#far + 1] = line end
        local family, name, list = line:match("^VALUES\t(%S+)\t(%S+)\t(.*)$")
        if name then
          rows = rows + 1
          values[name] = { family = family, list = list }
        end
      end
      assert.are.same({}, far)
      assert.is_true(rows > 200)
      if not first then
        first = { level = level, values = values }
        return
      end
      for name, v in pairs(values) do
        local a, b = {}, {}
        for word in v.list:gmatch("%S+") do a[#a + 1] = number(word) end
        for word in first.values[name].list:gmatch("%S+") do b[#b + 1] = number(word) end
        assert.are.equal(#b, #a, name)
        for i = 1, #a do
          local near = a[i] == b[i] or (a[i] ~= a[i] and b[i] ~= b[i])
            or math.abs(a[i] - b[i]) <= tolerances[v.family].float64 * math.max(1, math.abs(b[i]))
          if not near then
            error(("%s in float64: element %d is %.17g at %s, %.17g at %s"):format(name, i, a[i], level, b[i],
              first.level))
          end
        end
      end
    end)
  end

  -- What a row computes, as lists by "row/layout/dtype/result".
  local function rows_at(level)
    local out = host.at_level(level, { "spec/support/level_rows.lua" })
    if not out then return end
    local found, count = {}, 0
    for name, words in out:gmatch("VALUES\t(%S+)\t([^\n]*)") do
      local list = {}
      for word in words:gmatch("%S+") do list[#list + 1] = number(word) or word end
      found[name], count = list, count + 1
    end
    return found, count
  end

  local lowest, rows
  for _, level in ipairs { "v3", "v4" } do
    it(level .. " computes every row as v2 does", function()
      if not lowest then lowest, rows = rows_at "v2" end
      assert.is_true(rows > 8000)
      local found, count = rows_at(level)
      if not found then return pending("this processor does not run " .. level) end
      assert.are.equal(rows, count)
      for name, list in pairs(found) do
        local dtype, part = name:match("/(%w+)/(g?)%d+$")
        local tolerance = runs.tolerance[dtype] * (part == "g" and 4 or 1)
        assert.are.equal(#lowest[name], #list, name)
        local at, x, y = runs.difference(list, lowest[name], tolerance)
        if at then error(("%s: element %d is %s, at v2 %s"):format(name, at, tostring(x), tostring(y))) end
      end
    end)
  end

  for _, level in ipairs { "v2", "v3", "v4" } do
    it(level .. " is right for sizes around vectors and blocks", function()
      local out = host.at_level(level, { "spec/support/level_sizes.lua" })
      if not out then return pending("this processor does not run " .. level) end
      assert.are.equal("checks\t1060\n", out)
    end)
  end
end)
