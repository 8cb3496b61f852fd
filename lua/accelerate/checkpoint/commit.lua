--- Making a checkpoint appear whole or not at all, on all ranks or on none.
---
--- Ranks write into a directory beside the final one. When all have written, the rank that leads
--- adds the manifest, gives the directory its name in one step and syncs the parent
--- (host/core/io/commit.c). A process that is killed at any moment leaves the former checkpoint, or
--- the new one.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local manifest = require "accelerate.checkpoint.manifest"
local operations = require "accelerate.collectives.operations"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

-- An error without the script's line and the name of the method, which `fail` adds.
local function bare(where, message)
  message = tostring(message):gsub("^[^:\n]*:%d+: ", "")
  local start = message:find(where .. ": ", 1, true)
  return start and message:sub(start + #where + 2) or message
end

-- What all ranks report. Where fn() itself has collectives, a rank on which it failed comes here
-- while others wait in one of those, so that no report arrives: each rank raises what it knows.
local function reports_of(where, ok, result)
  if not ok then core.dist.report(result) end
  local met, reports = pcall(operations.gather_object, { { ok = ok, value = result or false } })
  core.dist.report(nil)
  if met then return reports end
  if not ok then fail("%s: %s", where, result) end
  error(reports, 0)
end

--- Runs fn() on this rank, and raises on every rank where it failed on any.
---@param where string what messages begin with
---@param fn fun(): any its result: plain data
---@return any[] results of all ranks, by rank from 1
function M.together(where, fn)
  local ok, result = pcall(fn)
  if not ok then result = bare(where, result) end
  local reports = reports_of(where, ok, result)
  local faults, results = {}, {}
  for i, report in ipairs(reports) do
    results[i] = report.value
    if not report.ok then
      faults[#faults + 1] = (#reports > 1 and ("rank %d: "):format(i - 1) or "") .. report.value
    end
  end
  if #faults > 0 then fail("%s: %s", where, table.concat(faults, "; ")) end
  return results
end

--- Runs fn() on the ranks that lead: rank 0, or one of each machine. Raises on every rank where it
--- failed on any.
---@param where string
---@param accelerator accelerate.Accelerator
---@param fn fun(): any
---@return any own the result of the rank that leads this one
---@return any first rank 0's
function M.on_leaders(where, accelerator, fn)
  local results = M.together(where, function() return accelerator:_writes() and fn() or nil end)
  return results[accelerator:_writer() + 1], results[1]
end

local function must(ok, why)
  if not ok then error(why, 0) end
  return ok
end

--- Returns the path of the folder itself where a script names it by a link or by dots: it is the
--- folder that changes places with its successor.
---@param path string
---@return string
function M.place_of(path)
  local plain = path:gsub("(.)/+$", "%1")
  local last = plain:match "[^/]*$"
  if last == "." or last == ".." then must(fs.make_dirs(plain)) end
  if fs.exists(plain) then return must(fs.real(plain)) end
  if fs.is_link(plain) then error(("%s is a link to what is not there"):format(plain), 0) end
  return plain
end

--- Begins a checkpoint at `path`: returns the directory to write into. On ranks that lead.
---@param path string as place_of gives it
---@return string draft
function M.begin(path)
  local draft = core._save_draft(path)
  must(fs.remove_tree(draft)) -- of a save that was killed
  must(fs.make_dirs(draft))
  return draft
end

local function lines(list)
  return #list > 0 and table.concat(list, "\n") .. "\n" or nil
end

--- Returns what core._save_commit does at the end: host/core/io/commit.c.
---@param draft string
---@param path string
---@param facts table<string, any> what the manifest says of the run
---@param first integer the first rank that writes into the draft
---@param ranks integer how many there are from it on
---@param old string[] names of checkpoints beside it, to remove afterwards
---@return table
function M.plan(draft, path, facts, first, ranks, old)
  local former = manifest.read(path)
  local names = former and ordered.sorted_keys(former.files)
  if names then names[#names + 1] = manifest.NAME end
  return { draft = draft, path = path, facts = json.encode(facts),
    first = first, ranks = ranks, former = names and lines(names), old = lines(old) }
end

--- Removes what a save that failed has written. On ranks that lead.
function M.abandon(path) fs.remove_tree(core._save_draft(path)) end

return M
