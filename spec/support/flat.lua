--- Loops that must hold memory flat with no call to collectgarbage: the core counts what tensors
--- hold and drives the collector.
---
--- ACCEL_LONG=1 runs all the steps that a test names and prints what was measured; without it a
--- part of them, where growth shows as well.
local core = require "accelerate.core"

local M = {}

--- What may pile up between two collections (bind/memory.c: 128 MB for small models).
local GARBAGE = 136e6

function M.resident_bytes()
  for line in io.lines("/proc/self/status") do
    local kib = line:match("^VmRSS:%s+(%d+)")
    if kib then return tonumber(kib) * 1024 end
  end
end

local proc = io.open("/proc/self/status")
if proc then proc:close() end
--- Why such a test cannot run here, or nil.
M.cannot = not proc and "needs /proc, to see resident memory" or nil

-- Live bytes without garbage, and what is resident then: neither depends on when the last
-- collection came.  Between the steps that are measured only the core collects.
local function left()
  jit.flush() -- a trace holds the objects that it was specialised on
  for _ = 1, 3 do
    collectgarbage()
    core.is_released(core.zeros(0)) -- a call into the binding drops what finalisers let go of
  end
  collectgarbage()
  core.empty_cache()
  return core.memory_stats().live_bytes, M.resident_bytes()
end

--- Runs `step(i)` n times, or `short` times (default: a fifth) where ACCEL_LONG is not set, and
--- compares the second half with the first.  What is left without garbage must not grow (but for
--- the part of a step that happens to be there); the peak may wander by as much garbage as piles up
--- between two collections of the core.
---@param n integer
---@param step fun(i: integer)
---@param short? integer
---@return integer collections that memory pressure caused
---@return integer steps that ran
function M.check(n, step, short)
  if not os.getenv("ACCEL_LONG") then n = short or math.floor(n / 5) end
  local function measure(from, to)
    local least, most = math.huge, 0
    for i = from, to do
      step(i)
      local live = core.memory_stats().live_bytes
      least, most = math.min(least, live), math.max(most, live)
    end
    return least, most, left()
  end
  local collections = core.memory_stats().pressure_collections
  local warm = math.floor(n / 2)
  measure(1, math.floor(n / 10))
  local least, most, kept, resident = measure(math.floor(n / 10) + 1, warm)
  local least_later, most_later, kept_later, resident_later = measure(warm + 1, n)
  local function grew(what, from, to, slack)
    assert(to <= from + slack, ("%s grew from %.1f to %.1f MB"):format(what, from / 1e6, to / 1e6))
  end
  grew("what a collection leaves", kept, kept_later, 4e6)
  grew("the peak of live bytes", least + GARBAGE, most, 0)
  grew("the later peak of live bytes", least_later + GARBAGE, most_later, 0)
  grew("resident memory", resident, resident_later, 24e6)
  collections = core.memory_stats().pressure_collections - collections
  if os.getenv("ACCEL_LONG") then
    io.stderr:write(("%d steps: kept %.1f then %.1f MB, at most %.1f then %.1f MB, resident %.1f then " ..
      "%.1f MB, %d collections\n"):format(n,
      kept / 1e6, kept_later / 1e6, most / 1e6, most_later / 1e6, resident / 1e6, resident_later / 1e6,
      collections))
  end
  return collections, n
end

return M
