--- Rows of ranks that go wrong: each ends the run in time, with a message that names the rank and
--- the line; the next run goes on with the same bits.
local rows = require "spec.faults.rows"
local saves = require "spec.faults.saves"
local tries = require "spec.faults.tries"

local M = {}

local AT = "[^\n]*train%.lua:%d+"
local DISAGREE = "ranks disagree in collective #%d+: rank %d calls " .. AT .. "; rank %d calls " .. AT

-- key, fault, status, what stderr must have (%R: the rank), seconds, launch options
local ACTS = {
  { "raise", "a rank raises", 1, "rank %R failed at " .. AT .. " %(exit status 1%)\n$", 1 },
  { "segfault", "a rank segfaults", 139, "rank %R was killed by SIGSEGV, last seen at " .. AT, 1 },
  { "kill", "a rank is killed", 137, "rank %R was killed by SIGKILL[^\n]*, last seen at " .. AT, 1 },
  { "exit", "a rank calls os.exit(3)", 3,
    "rank %R of %d failed: os%.exit%(3%) was called.*rank %R failed at " .. AT, 1 },
  { "stop", "a rank is stopped (--stall_timeout 0.5)", 147,
    "rank %R was stopped by SIGSTOP and did not go on " ..
    "within 0%.5 s, last seen at " .. AT, 1.5, { "--stall_timeout", "0.5" } },
  { "hang", "a rank hangs (--timeout 1)", 1, "waited 1 s for rank %R, which last called [^\n]* at " .. AT,
    2, { "--timeout", "1" } },
  { "slow", "a rank is slow, within the timeout", 0, nil, nil, { "--timeout", "5" } },
  { "skip", "a rank skips a collective", 1, DISAGREE, 1 },
  { "other", "a rank calls another collective", 1, DISAGREE, 1 },
  { "shape", "a rank passes another shape", 1, DISAGREE, 1 },
  { "finish", "a rank ends early", 1,
    "rank %R has finished and will not take part in this %(it last called " ..
    "[^\n]* at " .. AT, 1 },
}

local function try_act(row, ranks, rank, act)
  tries.in_folder(function(folder)
    local run = tries.train(ranks, folder, { "act=" .. act[1], "rank=" .. rank }, act[6])
    local at = run.err:match(("at (%%d+%%.%%d+) rank %d acts"):format(rank))
    local message
    if act[4] then message = run.err:find((act[4]:gsub("%%R", rank))) ~= nil end
    local went_on = run.status == act[3]
    if act[3] == 0 then went_on = went_on and tries.bits(run.out) == tries.expected(ranks) end
    local left, same, trouble = saves.resume(ranks, folder)
    row:add { noticed = act[5] and run.gone - tonumber(at), message = message, same = went_on and same,
      left = left .. (run.stray and " a process" or ""),
      why = ("rank %d: status %d; %s\n%s"):format(rank, run.status, trouble, run.err) }
  end)
end

--- Rows for one number of ranks.
---@param ranks integer
---@param victims integer[]
---@return table[] list of { row, tries }
function M.rows(ranks, victims)
  local found = {}
  for _, act in ipairs(ACTS) do
    local row, list = rows.row(act[2], ranks, act[5]), {}
    for _, rank in ipairs(victims) do
      list[#list + 1] = function()
        local ok, why = pcall(try_act, row, ranks, rank, act)
        if not ok then row:broken(("rank %d: %s"):format(rank, why)) end
      end
    end
    found[#found + 1] = { row, list }
  end
  return found
end

--- A row in which nobody reads the run's output.
function M.closed_stdout(ranks)
  local row = rows.row("a closed stdout", ranks)
  return row, { function()
    tries.in_folder(function(folder)
      local run = tries.train(ranks, folder, { "say=1" }, nil, { closed_stdout = true })
      local message
      if ranks > 1 then
        message = run.err:find("rank %d was killed by SIGPIPE %(.-%), last seen at " .. AT) ~= nil
      end
      local left, same, trouble = saves.resume(ranks, folder)
      row:add { message = message, same = run.status == 141 and same,
        left = left .. (run.stray and " a process" or ""),
        why = ("status %d; %s\n%s"):format(run.status, trouble, run.err) }
    end)
  end }
end

return M
