--- Rows of ranks that are killed in a phase of a sharded step: the run ends in time, with the
--- rank's name and line.
local rows = require "spec.faults.rows"
local tries = require "spec.faults.tries"

local M = {}

local SCRIPT = "spec/faults/sharded_train.lua"
local PHASES = { "acquire", "forward", "deliver", "norm", "step", "save" }
local MEMORY = { { "one copy of the values", "1" }, { "gathered values", "0" } }

local function try(row, ranks, phase, rank, shared)
  tries.in_folder(function(folder)
    local run = tries.run(ranks, { SCRIPT, folder, phase, tostring(rank) },
      { env = { ACCEL_SHARED_PARAMETERS = shared } })
    local at = run.err:match(("at (%%d+%%.%%d+) rank %d acts"):format(rank))
    local named = ("rank %d was killed by SIGKILL[^\n]*, last seen at [^\n]*sharded_train%%.lua:%%d+"):format(
      rank)
    row:add { noticed = at and run.gone - tonumber(at),
      message = at ~= nil and run.status == 137 and run.err:find(named) ~= nil,
      left = run.stray and "a process" or "",
      why = ("%s: status %d\n%s"):format(phase, run.status, run.err) }
  end)
end

--- A row for each phase.
---@param ranks integer
---@param victims integer[]
---@return table[] list of { row, tries }
function M.rows(ranks, victims)
  local found = {}
  for _, phase in ipairs(PHASES) do
    local row, list = rows.row(("a rank is killed in a sharded step: %s"):format(phase), ranks, 1), {}
    for _, rank in ipairs(victims) do
      for _, memory in ipairs(MEMORY) do
        list[#list + 1] = function()
          local ok, why = pcall(try, row, ranks, phase, rank, memory[2])
          if not ok then row:broken(("rank %d, %s: %s"):format(rank, memory[1], why)) end
        end
      end
    end
    found[#found + 1] = { row, list }
  end
  return found
end

return M
