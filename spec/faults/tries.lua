--- Runs that are tried side by side: each try is a coroutine that waits for processes of its own.
local ffi = require "ffi"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local processes = require "spec.support.processes"

local C = ffi.C

local M = {}

local SCRIPT = "spec/faults/train.lua"
local LONGEST = 30 -- seconds of a run, on a free machine

local live = {} -- runs that have not ended

local function pause() coroutine.yield() end
M.pause = pause

-- Whether a process of a group is left. One that has ended and that init has still to collect does
-- not count.
local function any_of_group(group)
  if C.kill(-group, 0) ~= 0 then return false end
  for _, pid in ipairs(fs.list "/proc") do
    local file = tonumber(pid) and io.open(("/proc/%s/stat"):format(pid))
    local text = file and file:read "*a" or ""
    if file then file:close() end
    local state, its_group = text:match "%) (%a) %d+ (%d+)"
    if tonumber(its_group) == group and state ~= "Z" and state ~= "X" then return true end
  end
  return false
end

-- Whether no process of the run's group is left.
local function gone(run)
  local began = processes.now()
  while any_of_group(run.pid) do
    if processes.now() - began > 2 * host.stretch() then
      processes.kill(-run.pid, processes.SIGKILL)
      return false
    end
    pause()
  end
  return true
end

---@class Outcome
---@field status integer 128 + signal when it was killed
---@field out string
---@field err string
---@field ended number seconds of the monotonic clock
---@field gone number when no process of it was left
---@field stray boolean whether a process outlived the launcher

--- Runs the training script, or another, to its end.
---@param ranks integer
---@param words string[] what follows `--num_processes N`
---@param options? { env?: table<string, string>, closed_stdout?: boolean }
---@param during? fun(run): any called again and again while it runs
---@return Outcome
function M.run(ranks, words, options, during)
  local arguments = { "--num_processes", tostring(ranks), "--num_cpu_threads_per_process", "1", "--cpu" }
  for _, word in ipairs(words) do arguments[#arguments + 1] = word end
  local run, began = processes.start(arguments, options), processes.now()
  local status = run:ended()
  live[run] = true
  while not status do
    if during then during(run) end
    if processes.now() - began > LONGEST * host.stretch() then
      live[run] = nil
      processes.kill(-run.pid, processes.SIGKILL)
      run:destroy()
      error(("still running after %d s: accel-run %s\n%s"):format(LONGEST, table.concat(arguments, " "),
        run:stderr()), 0)
    end
    pause()
    status = run:ended()
  end
  local found = { status = status, ended = processes.now(), out = run:stdout(), err = run:stderr() }
  live[run] = nil
  found.stray = not gone(run)
  found.gone = processes.now()
  run:forget()
  return found
end

--- Runs the training script in a folder.
---@param ranks integer
---@param folder string
---@param settings? string[] "key=value", for the script
---@param launch? string[] options of accel-run
---@return Outcome
function M.train(ranks, folder, settings, launch, options, during)
  local words = {}
  for _, word in ipairs(launch or {}) do words[#words + 1] = word end
  words[#words + 1] = SCRIPT
  words[#words + 1] = folder
  for _, word in ipairs(settings or {}) do words[#words + 1] = word end
  return M.run(ranks, words, options, during)
end

--- The lines with the bits of all ranks, in order.
function M.bits(out)
  local lines = {}
  for line in out:gmatch "bits of [^\n]+" do lines[#lines + 1] = line end
  table.sort(lines)
  return table.concat(lines, "\n")
end

local expected = {} -- by ranks

--- The bits of an uninterrupted run.
function M.expected(ranks)
  while expected[ranks] == "under way" do pause() end
  if not expected[ranks] then
    expected[ranks] = "under way"
    M.in_folder(function(folder)
      local run = M.train(ranks, folder)
      assert(run.status == 0, run.err)
      expected[ranks] = M.bits(run.out)
    end)
  end
  return expected[ranks]
end

local folders = 0

--- Calls body(folder) with a fresh folder, which is removed afterwards.
function M.in_folder(body)
  folders = folders + 1
  local folder = ("%s.%d"):format(M.base, folders)
  assert(fs.make_dirs(folder))
  local ok, why = pcall(body, folder)
  fs.remove_tree(folder)
  if not ok then error(why, 0) end
end

--- Ends all runs that are under way.
function M.end_all()
  for run in pairs(live) do
    processes.kill(-run.pid, processes.SIGKILL)
    run:destroy()
  end
  live = {}
end

--- Runs all functions of a list, `jobs` at a time. The first one that raises ends them all.
---@param list fun()[]
---@param jobs integer
function M.side_by_side(list, jobs)
  local running, next_one = {}, 1
  while next_one <= #list or #running > 0 do
    while #running < jobs and next_one <= #list do
      running[#running + 1] = coroutine.create(list[next_one])
      next_one = next_one + 1
    end
    for i = #running, 1, -1 do
      local ok, why = coroutine.resume(running[i])
      if not ok then
        M.end_all()
        error(debug.traceback(running[i], tostring(why)), 0)
      end
      if coroutine.status(running[i]) == "dead" then table.remove(running, i) end
    end
    processes.sleep(0.0005)
  end
end

M.base = os.tmpname()
os.remove(M.base)

return M
