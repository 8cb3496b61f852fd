-- `make bench-calls`: single calls of bench/calls.txt beside PyTorch's, as ratios (their time over
-- ours), the lowest first.
--
--   accel-run bench/compare_calls.lua
--
-- Environment: PYTHON (python3), ROUNDS (3; the sides take turns, and medians are shown), THREADS
-- (1), ONLY (text that a call must contain), LEAST=1 (the shortest of each round's calls, for a
-- machine that has other work, in place of the median).
local here = arg[0]:match("^(.*)/") or "."
local json = require "accelerate.utils.json"
local common = dofile(here .. "/common.lua")
local list = dofile(here .. "/calls_list.lua")

local host = os.getenv("ACCEL_RUN") or "build/accel-run"
local rounds, threads = tonumber(os.getenv("ROUNDS") or 3), tonumber(os.getenv("THREADS") or 1)
local flags = (os.getenv("LEAST") == "1" and " --least" or "") ..
  (os.getenv("ONLY") and (" --only '%s'"):format(os.getenv("ONLY")) or "")

local COMMANDS = {
  ours = ("'%s' --cpu --num_processes 1 --num_cpu_threads_per_process %d '%s/calls.lua'%s"):format(host,
    threads, here, flags),
  theirs = ("%s '%s/peer/calls.py' --threads %d%s"):format(os.getenv("PYTHON") or "python3", here, threads,
    flags),
}

local function run(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "*a"
  pipe:close()
  local line = text:match("{.*}")
  if not line then error(("bench-calls: no result from: %s\n%s"):format(command, text), 0) end
  return json.decode(line).calls
end

local names = {}
for _, row in ipairs(list(here .. "/calls.txt")) do
  if not row.name then names[#names + 1] = (row.gradient and "gradients of " or "") .. row.ours end
end

local taken = { ours = {}, theirs = {} }
for round = 1, rounds do
  for _, side in ipairs(round % 2 == 1 and { "ours", "theirs" } or { "theirs", "ours" }) do
    local ms = run(COMMANDS[side])
    for k = 1, #names do
      taken[side][k] = taken[side][k] or {}
      if type(ms[k]) == "number" then table.insert(taken[side][k], ms[k]) end
    end
  end
end

local rows, below = {}, 0
for k, name in ipairs(names) do
  if #taken.ours[k] > 0 and #taken.theirs[k] > 0 then
    local ours, theirs = common.median(taken.ours[k]), common.median(taken.theirs[k])
    rows[#rows + 1] = { name = name, ours = ours, theirs = theirs, ratio = theirs / ours }
    if theirs < ours then below = below + 1 end
  end
end
table.sort(rows, function(a, b) return a.ratio < b.ratio end)
print(("%6s %10s %10s  call (%d thread%s, %d rounds)"):format("ratio", "ours", "PyTorch", threads,
  threads == 1 and "" or "s", rounds))
for _, row in ipairs(rows) do
  print(("%6.2f %7.3f ms %7.3f ms  %s"):format(row.ratio, row.ours, row.theirs, row.name))
end
if #rows > 0 then
  local ratios = {}
  for k, row in ipairs(rows) do ratios[k] = row.ratio end
  print(("median %.2f; %d of %d calls below 1"):format(common.median(ratios), below, #rows))
end
