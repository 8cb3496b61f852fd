--- Rows of saves: the file system, a rank, the launcher or the power fails at a drawn call, or at
--- each.
local ffi = require "ffi"
local disk = require "spec.faults.disk"
local fs = require "accelerate.utils.fs"
local manifest = require "accelerate.checkpoint.manifest"
local rows = require "spec.faults.rows"
local tries = require "spec.faults.tries"

local C = ffi.C

local M = {}

-- The third save: two checkpoints are there before it, and it removes one.
local THIRD = { "checkpoint_2", "checkpoint_3" }
local ANY = { "checkpoint_" }

M.ENOSPC, M.EDQUOT, M.EROFS, M.EIO = 28, 122, 30, 5

local function root_of(folder) return folder .. "/checkpoints/" end

-- Messages name the folder, or something in it.
local function names(text, folder) return text:find(folder .. "/checkpoints", 1, true) ~= nil end

--- What is in a folder of checkpoints besides whole checkpoints; "" for nothing.
function M.left_in(root)
  local found = {}
  for _, name in ipairs(fs.list(root) or {}) do
    local known = manifest.verify(root .. name)
    if not known or not name:match "^checkpoint_%d+$" then found[#found + 1] = name end
    for _, file in ipairs(known and fs.list(root .. name) or {}) do
      if file ~= manifest.NAME and not known.files[file] then found[#found + 1] = name .. "/" .. file end
    end
  end
  return table.concat(found, " ")
end

-- Whether the newest checkpoint that was there before the fault is there, or a newer one.
local function keeps_older(root)
  for number = 3, 1, -1 do
    if manifest.verify(root .. "checkpoint_" .. number) then return true end
  end
  return false
end

-- The next run: Finding's `left` and `same`, and why not.
local function resume(ranks, folder, settings)
  local run = tries.train(ranks, folder, settings)
  local left = M.left_in(root_of(folder))
  if run.stray then left = left .. " a process" end
  local bits = tries.bits(run.out)
  local same = run.status == 0 and bits == tries.expected(ranks)
  return left, same, same and "" or ("the next run: status %d\n%s\n%s"):format(run.status, bits, run.err), run
end
M.resume = resume

--- What the calls of a save are, by rank: letters.
function M.calls(ranks, settings, reads)
  local found = {}
  tries.in_folder(function(folder)
    if reads then tries.train(ranks, folder, settings) end
    local plan = disk.plan(folder, root_of(folder), reads and ANY or THIRD, { reads = reads })
    local run = tries.train(ranks, folder, settings, nil, { env = plan:env() })
    assert(run.status == 0, run.err)
    for rank = 0, ranks - 1 do found[rank] = plan:calls(rank) end
    plan:free()
  end)
  return found
end

-- ---- a process ends in the middle of a save

local ENDS = {
  kill = function(run, rank, ranks)
    if ranks == 1 then return run.status == 137, nil end -- there is no launcher
    return run.status == 137, run.err:find(("rank %d was killed by SIGKILL[^\n]*, last seen at " ..
      "[^\n]*train%%.lua:%%d+ "):format(rank)) ~= nil
  end,
  launcher = function(run) return run.status == 137, nil end,
  power = function(run) return run.status == 137, nil end,
  term = function(run, _, ranks)
    if ranks == 1 then return run.status == 143, nil end
    return run.status == 143, run.err:find "the run was ended by SIGTERM; the ranks were\n  rank 0 " ~= nil
  end,
}

-- One try; returns whether the call was reached.
local function try_end(row, ranks, plan, settings)
  local reached
  tries.in_folder(function(folder)
    local root = root_of(folder)
    local faults = disk.plan(folder, root, THIRD, plan)
    local run = tries.train(ranks, folder, settings, nil, { env = faults:env() })
    local at, path
    reached, at, path = faults:fired()
    if reached then
      if plan.what == "power" then faults:lose() end
      local ended, message = ENDS[plan.what](run, plan.rank, ranks)
      local kept, stray = keeps_older(root), run.stray
      local left, same, trouble = resume(ranks, folder, settings)
      row:add { noticed = run.gone - at, message = message, same = ended and kept and same,
        left = left .. (stray and " a process" or ""),
        why = ("call %d of rank %d (%s): status %d%s; %s\n%s"):format(plan.at, plan.rank, path, run.status,
          kept and "" or ", the older checkpoint is gone", trouble, run.err) }
    end
    faults:free()
  end)
  return reached
end

-- ---- a call fails

-- What ranks wrote: texts by rank, what rank 0 then found, and when the last one was.
local function caught_in(err)
  local texts, last = {}, nil
  for at, rank, text in err:gmatch "at (%d+%.%d+) rank (%d+) caught: ([^\n]*)" do
    texts[tonumber(rank)] = text
    last = tonumber(at)
  end
  return texts, err:match "rank 0 has: ([^\n]*)", last
end

local function all_name(texts, ranks, reason, folder)
  for rank = 0, ranks - 1 do
    local text = texts[rank]
    if not text or not text:find(reason, 1, true) or not names(text, folder) then return false end
  end
  return true
end

-- Whether the checkpoints of before are there and nothing else; a folder that cannot be written
-- keeps what it has.
local function keeps_both(inventory, frozen)
  if not inventory then return false end
  local rest = inventory:gsub("checkpoint_0", "", 1):gsub("checkpoint_1", "", 1)
  return rest ~= inventory and (frozen or not rest:find "%S")
end

local function try_failure(row, ranks, plan, settings)
  local reached
  tries.in_folder(function(folder)
    local root, reason = root_of(folder), ffi.string(C.strerror(plan.number))
    local faults = disk.plan(folder, root, THIRD, plan)
    local words = { "saves=go_on", unpack(settings or {}) }
    local run = tries.train(ranks, folder, words, nil, { env = faults:env() })
    local at, path
    reached, at, path = faults:fired()
    if reached then
      local texts, inventory, last = caught_in(run.err)
      local failed = next(texts) ~= nil
      local went_on = run.status == 0 and tries.bits(run.out) == tries.expected(ranks)
      local left, same, trouble = resume(ranks, folder, settings)
      if failed and not keeps_both(inventory, plan.number == M.EROFS) then
        left = ("after the save: %s; %s"):format(inventory, left)
      end
      local message
      if failed then message = all_name(texts, ranks, reason, folder) end
      row:add { noticed = last and last - at, message = message, same = went_on and same,
        left = left .. (run.stray and " a process" or ""),
        why = ("call %d of rank %d (%s): status %d; %s\n%s"):format(plan.at, plan.rank, path, run.status,
          trouble, run.err) }
    end
    faults:free()
  end)
  return reached
end

-- A run that does not catch the error ends with it.
local function try_strict(row, ranks, plan, settings)
  local reached
  tries.in_folder(function(folder)
    local root, reason = root_of(folder), ffi.string(C.strerror(plan.number))
    local faults = disk.plan(folder, root, THIRD, plan)
    local run = tries.train(ranks, folder, settings, nil, { env = faults:env() })
    local at, path
    reached, at, path = faults:fired()
    if reached then
      local ended = (run.status == 1 or tries.bits(run.out) == tries.expected(ranks)) and keeps_older(root)
      local left, same, trouble = resume(ranks, folder, settings)
      local message
      if run.status ~= 0 then
        message = run.err:find(reason, 1, true) ~= nil and names(run.err, folder) and
          run.err:find "rank %d+ failed at [^\n]*train%.lua:%d+ %(exit status 1%)\n$" ~= nil
      end
      row:add { noticed = message and run.gone - at, message = message, same = ended and same,
        left = left .. (run.stray and " a process" or ""),
        why = ("call %d of rank %d (%s): status %d; %s\n%s"):format(plan.at, plan.rank, path, run.status,
          trouble, run.err) }
    end
    faults:free()
  end)
  return reached
end

-- A call that reads fails: that checkpoint is passed over, or the run ends with the reason.
local function try_reading(row, ranks, plan, settings)
  local reached
  tries.in_folder(function(folder)
    local root, reason = root_of(folder), ffi.string(C.strerror(plan.number))
    assert(tries.train(ranks, folder, settings).status == 0)
    local faults = disk.plan(folder, root, ANY, plan)
    local run = tries.train(ranks, folder, settings, nil, { env = faults:env() })
    local _, path
    reached, _, path = faults:fired()
    if reached then
      local good = run.status == 1 or run.status == 0 and tries.bits(run.out) == tries.expected(ranks)
      local left, same, trouble = resume(ranks, folder, settings)
      row:add { message = run.err:find(reason, 1, true) ~= nil and names(run.err, folder),
        same = good and same, left = left .. (run.stray and " a process" or ""),
        why = ("call %d of rank %d (%s): status %d; %s\n%s"):format(plan.at, plan.rank, path, run.status,
          trouble, run.err) }
    end
    faults:free()
  end)
  return reached
end

-- ---- rows

-- The last call of each letter.
local function last_of(calls, letters)
  local list = {}
  for letter in letters:gmatch "." do
    local at = calls:match("^.*()" .. letter)
    if at then list[#list + 1] = at end
  end
  return list
end

-- The numbers of the calls to try: all; or `most` of each letter, and `some` of these.
local function chosen(calls, most, some)
  local by_letter, list = {}, {}
  for i = 1, #calls do
    local letter = calls:sub(i, i)
    by_letter[letter] = by_letter[letter] or {}
    table.insert(by_letter[letter], i)
  end
  for _, numbers in pairs(by_letter) do
    for _ = 1, math.min(most or #numbers, #numbers) do
      list[#list + 1] = table.remove(numbers, math.random(#numbers))
    end
  end
  while some and #list > some do table.remove(list, math.random(#list)) end
  table.sort(list)
  return list
end

--- A row of tries, each with one call of one rank that goes wrong.
---@param fault string
---@param ranks integer
---@param plan DiskPlan without `at`
---@param options { calls: table<integer, string>, most?: integer, some?: integer, last?: string,
---  settings?: string[], limit?: number, strict?: boolean } most: tries for each kind of call; nil:
---  all calls, and one behind the last, which must not be reached. some: of these. last: the last
---  call of each kind that this text names. strict: the run does not catch the error
---@return table row
---@return fun()[] tries
function M.row(fault, ranks, plan, options)
  local row, list = rows.row(fault, ranks, options.limit), {}
  local try = plan.reads and try_reading or plan.what ~= "fail" and try_end or
    options.strict and try_strict or try_failure
  local calls = options.calls[plan.rank]
  local numbers = options.last and last_of(calls, options.last) or chosen(calls, options.most, options.some)
  for _, at in ipairs(numbers) do
    list[#list + 1] = function()
      local one = setmetatable({ at = at }, { __index = plan })
      local ok, reached = pcall(try, row, ranks, one, options.settings)
      if not ok then row:broken(("call %d: %s"):format(at, reached))
      elseif not reached then row:broken(("call %d was not reached"):format(at)) end
    end
  end
  if not options.most then
    list[#list + 1] = function()
      if try(row, ranks, setmetatable({ at = #calls + 1 }, { __index = plan }), options.settings) then
        row:broken(("call %d was reached"):format(#calls + 1))
      end
    end
  end
  return row, list
end

--- A row with one run in which every call of a rank is odd: slow, or shortened.
function M.odd(fault, ranks, plan, options)
  local row = rows.row(fault, ranks)
  return row, { function()
    tries.in_folder(function(folder)
      local one = setmetatable({ at = 1, lasts = true }, { __index = plan })
      local faults = disk.plan(folder, root_of(folder), THIRD, one)
      local run = tries.train(ranks, folder, options.settings, nil, { env = faults:env() })
      local went_on = faults:fired() and run.status == 0 and tries.bits(run.out) == tries.expected(ranks)
      local left, same, trouble = resume(ranks, folder, options.settings)
      row:add { left = left, same = went_on and same,
        why = ("status %d; %s\n%s"):format(run.status, trouble, run.err) }
      faults:free()
    end)
  end }
end

return M
