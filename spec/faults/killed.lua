--- The row of runs that are killed at a drawn moment, again and again, until they are done.
local fs = require "accelerate.utils.fs"
local processes = require "spec.support.processes"
local rows = require "spec.faults.rows"
local saves = require "spec.faults.saves"
local tries = require "spec.faults.tries"

local M = {}

local SCRIPT = "spec/support/resumable.lua"
local RANKS, KILLS = 2, 3

-- The launcher, or one of its ranks.
local function victim(run)
  local path = ("/proc/%d/task/%d/children"):format(run.pid, run.pid)
  local pids = { run.pid }
  for pid in (fs.read(path) or ""):gmatch "%d+" do pids[#pids + 1] = tonumber(pid) end
  return pids[math.random(#pids)]
end

local function sorted_lines(text)
  local lines = {}
  for line in text:gmatch "[^\n]+" do lines[#lines + 1] = line end
  table.sort(lines)
  return table.concat(lines, "\n")
end

-- Runs the script to its end; `after`: seconds until it is killed.
local function run_once(folder, after)
  local began, killed = processes.now(), nil
  local run = tries.run(RANKS, { SCRIPT, folder, "plain" }, nil, function(run)
    if not after or killed or processes.now() - began < after then return end
    processes.kill(victim(run), processes.SIGKILL)
    killed = processes.now()
  end)
  return run, killed and run.gone - killed
end

local function try_moment(row, expected, length)
  tries.in_folder(function(folder)
    local got, slowest, stray
    for _ = 1, KILLS do
      local run, seconds = run_once(folder, math.random() * length)
      stray = stray or run.stray
      if run.status == 0 then got = sorted_lines(run.out) break end
      slowest = math.max(slowest or 0, seconds or 0)
    end
    local last = not got and run_once(folder)
    if last then got = sorted_lines(last.out) end
    row:add { noticed = slowest, same = got == expected,
      left = saves.left_in(folder .. "/checkpoints/") .. (stray and " a process" or ""),
      why = ("%s\n%s"):format(got, last and last.err or "") }
  end)
end

---@param count integer tries
---@return table row
---@return fun()[] tries
function M.row(count)
  local row = rows.row("a rank or the launcher is killed at a drawn moment (workers)", RANKS, 1)
  local list, expected, length = {}, nil, nil
  for i = 1, count do
    list[i] = function()
      if i == 1 then
        tries.in_folder(function(folder)
          local began = processes.now()
          local run = run_once(folder)
          assert(run.status == 0, run.err)
          expected, length = sorted_lines(run.out), processes.now() - began
        end)
      end
      while not expected do tries.pause() end
      local ok, why = pcall(try_moment, row, expected, length)
      if not ok then row:broken(why) end
    end
  end
  return row, list
end

return M
