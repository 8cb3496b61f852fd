--- Cases of the rows in host/core/ops/ctc.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C

local TARGETS, TIMES, LENGTHS = { { 1, 1 }, { 2, 0 } }, { 4, 3 }, { 2, 1 }

-- The probability of all ways to read the target, written out place by place.
local function likelihood(rows, target)
  local places = { 0 }
  for _, class in ipairs(target) do
    places[#places + 1] = class
    places[#places + 1] = 0
  end
  local reached = { [1] = rows[1][1], [2] = target[1] and rows[1][target[1] + 1] }
  for t = 2, #rows do
    local now = {}
    for s, class in ipairs(places) do
      local sum = (reached[s] or 0) + (reached[s - 1] or 0)
      if class ~= 0 and class ~= places[s - 2] then sum = sum + (reached[s - 2] or 0) end
      now[s] = sum * rows[t][class + 1]
    end
    reached = now
  end
  return reached[#places] + (reached[#places - 1] or 0)
end

C.ctc_loss = { inputs = { H.range(-2, 2, { 4, 2, 3 }) }, once = "_ctc_loss_backward",
  call = function(x)
    local place = { dtype = "int64", device = x.device }
    return core.ctc_loss(core.log_softmax(x, 3), core.tensor(TARGETS, place), core.tensor(TIMES, place),
      core.tensor(LENGTHS, place), { reduction = "none" })
  end,
  ref = function(x)
    local out = {}
    for n = 1, 2 do
      local rows, target = {}, {}
      for t = 1, TIMES[n] do
        local total, row = 0, {}
        for c = 1, 3 do total = total + math.exp(x[t][n][c]) end
        for c = 1, 3 do row[c] = math.exp(x[t][n][c]) / total end
        rows[t] = row
      end
      for s = 1, LENGTHS[n] do target[s] = TARGETS[n][s] end
      out[n] = -math.log(likelihood(rows, target))
    end
    return out
  end }
C._ctc_loss = { through = "ctc_loss" }
C._ctc_loss_backward = { through = "ctc_loss" }
