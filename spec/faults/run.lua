--- Injects faults on purpose and prints a table of what came of them: `make test-faults`. Ends with
--- status 1 when a row has a "no".
---
---   accel-run spec/faults/run.lua [JOBS [PATTERN]]
---
--- PATTERN: only rows whose name has it. ACCEL_SEED repeats the draws of a run.
local damage = require "spec.faults.damage"
local killed = require "spec.faults.killed"
local ranks = require "spec.faults.ranks"
local rows = require "spec.faults.rows"
local saves = require "spec.faults.saves"
local sharded = require "spec.faults.sharded"
local tries = require "spec.faults.tries"

local M = {}

-- Name, plan, tries for each kind of call (nil: every call). `last`: kinds whose last call is in
-- the sample.
local ENDS = {
  { "SIGKILL of rank %d at %s call of its save", { what = "kill" }, last = "nsd" },
  { "SIGKILL of the launcher, at rank %d's %s call", { what = "launcher" } },
  { "power cut at rank %d's %s call", { what = "power" }, last = "nsd" },
  { "SIGTERM to the launcher, at rank %d's %s call", { what = "term", number = 50000 }, 5 },
}
local FAILURES = {
  { "disk full from rank %d's %s call on", { number = saves.ENOSPC, lasts = true } },
  { "I/O error of rank %d's %s call", { number = saves.EIO }, last = "mnsdu" },
  { "quota used up from rank %d's %s call on", { number = saves.EDQUOT, lasts = true }, 5 },
  { "read-only from rank %d's %s call on", { number = saves.EROFS, lasts = true }, 5 },
}

local function plan_of(settings, rank)
  local plan = { rank = rank, what = "fail" }
  for key, value in pairs(settings) do plan[key] = value end
  return plan
end

-- Adds rows of saves to a list, for some ranks of a run.
local function add_saves(list, world, victims, most, options)
  local calls = saves.calls(world, options.settings)
  for _, group in ipairs { ENDS, FAILURES } do
    for _, case in ipairs(group) do
      for _, rank in ipairs(victims) do
        local name, tried = case[1], most or case[3]
        if world == 1 and name:find "launcher" then goto continue end
        name = name:format(rank, tried and "one" or "each") .. (options.suffix or "")
        list[#list + 1] = { saves.row(name, world, plan_of(case[2], rank), { calls = calls, most = tried,
          limit = 1, settings = options.settings, some = options.some,
          last = options.some and rank == 0 and case.last or nil }) }
        ::continue::
      end
    end
  end
end

local function add_odd(list, settings, suffix)
  for rank = 0, 1 do
    list[#list + 1] = { saves.odd(("short writes of rank %d%s"):format(rank, suffix), 2,
      { rank = rank, what = "short" }, { settings = settings }) }
    list[#list + 1] = { saves.odd(("a slow disk of rank %d%s"):format(rank, suffix), 2,
      { rank = rank, what = "slow", number = 3000 }, { settings = settings }) }
  end
end

local function add_strict(list, most, some)
  for rank = 0, 1 do
    list[#list + 1] = { saves.row(("disk full from rank %d's one call on, not caught"):format(rank), 2,
      plan_of({ number = saves.ENOSPC, lasts = true }, rank), { calls = saves.calls(2), most = most,
        some = some, limit = 1, strict = true }) }
  end
end

local function add_reads(list, most, some)
  local calls = saves.calls(2, nil, true)
  for rank = 0, 1 do
    list[#list + 1] = { saves.row(("I/O error of rank %d's one call of a load"):format(rank), 2,
      plan_of({ number = saves.EIO, reads = true }, rank), { calls = calls, most = most, some = some }) }
  end
end

local function add_all(list, more)
  for _, row in ipairs(more) do list[#list + 1] = row end
end

--- The rows: all, or a sample of each that takes some ten seconds.
---@param sample boolean
---@return table[] list of { row, tries }
function M.rows(sample)
  local list = {}
  damage.prepare(2)
  add_saves(list, 2, { 0, 1 }, sample and 1 or nil, { some = sample and 2 or nil })
  if not sample then
    add_saves(list, 1, { 0 }, 3, {})
    add_saves(list, 3, { 0, 2 }, 1, {})
  end
  add_saves(list, 2, { 0, 1 }, sample and 1 or 3, { settings = { "async=1" }, some = sample and 1 or nil,
    suffix = ", asynchronous" })
  add_odd(list, nil, "")
  add_strict(list, sample and 1 or 3, sample and 3)
  add_reads(list, sample and 1 or 5, sample and 1)
  add_all(list, damage.rows(2, sample and 1 or nil))
  add_all(list, ranks.rows(2, sample and { math.random(0, 1) } or { 0, 1 }))
  if not sample then add_all(list, ranks.rows(3, { 0, 1, 2 })) end
  add_all(list, sharded.rows(2, sample and { math.random(0, 1) } or { 0, 1 }))
  for world = 1, 2 do list[#list + 1] = { ranks.closed_stdout(world) } end
  list[#list + 1] = { killed.row(sample and 3 or 100) }
  return list
end

--- Runs rows and passes each to `show` when it is done. Returns how many have a "no".
---@param sample boolean
---@param jobs integer tries at a time
---@param pattern? string
---@param show fun(row: table)
---@return integer bad
---@return integer count
function M.run(sample, jobs, pattern, show)
  local bad, count, list = 0, 0, nil
  tries.side_by_side({ function() list = M.rows(sample) end }, 1)
  for _, entry in ipairs(list) do
    local row, todo = unpack(entry)
    if not pattern or row.fault:find(pattern) then
      tries.side_by_side(todo, jobs)
      show(row)
      count = count + 1
      if not row:good() then bad = bad + 1 end
    end
  end
  damage.clean(2)
  return bad, count
end

local function main(jobs, pattern)
  local seed, began = tonumber(os.getenv "ACCEL_SEED") or os.time(), os.time()
  math.randomseed(seed)
  print(rows.heading())
  local bad, count = M.run(false, tonumber(jobs) or 2, pattern, function(row)
    print(row:text())
    io.stdout:flush()
  end)
  print(("%d rows, %d with a \"no\"; %d s, ACCEL_SEED=%d"):format(count, bad, os.time() - began, seed))
  os.exit(bad == 0 and count > 0 and 0 or 1)
end

if arg and arg[0] and arg[0]:match "faults/run%.lua$" then main(...) end

return M
