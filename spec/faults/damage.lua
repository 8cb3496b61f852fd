--- Rows of checkpoints that are damaged on the disk: the newest one loses a file, or the end of
--- one, or has a bit that is another.
local fs = require "accelerate.utils.fs"
local manifest = require "accelerate.checkpoint.manifest"
local rows = require "spec.faults.rows"
local saves = require "spec.faults.saves"
local tries = require "spec.faults.tries"

local M = {}

local NEWEST = "checkpoint_3" -- of a run that has ended; the one before it is two batches older

-- Each takes the content of a file and returns another one, or nil to remove it.
local KINDS = {
  { "a truncated file", 3, function(text) return text:sub(1, math.random(0, #text - 1)) end },
  { "a file with a bit flipped", 4, function(text)
    local at = math.random(1, #text)
    local byte = bit.bxor(text:byte(at), bit.lshift(1, math.random(0, 7)))
    return text:sub(1, at - 1) .. string.char(byte) .. text:sub(at + 1), at
  end },
  { "a file with zeros for a block", 1, function(text)
    local at = math.random(1, #text)
    local n = math.min(16, #text - at + 1)
    if text:sub(at, at + n - 1):match "^%z*$" then at, n = 1, #text end
    return text:sub(1, at - 1) .. ("\0"):rep(n) .. text:sub(at + n)
  end },
  { "a file with more at its end", 1, function(text) return text .. "\0" end },
  { "a missing file", 1, function() return nil end },
}

local function copy(from, to)
  for _, name in ipairs(assert(fs.list(from))) do
    assert(fs.make_dirs(to .. "/" .. name))
    for _, file in ipairs(assert(fs.list(from .. "/" .. name))) do
      local path = "/" .. name .. "/" .. file
      assert(fs.write(to .. path, assert(fs.read(from .. path))))
    end
  end
end

local function put(path, text)
  if text then assert(fs.write(path, text)) else os.remove(path) end
end

-- What load_state writes about it.
local function names_it(err, file)
  local said = err:match("load_state: passed over [^\n]*/" .. NEWEST .. ": ([^\n]*)")
  if not said then return false end
  return said:find(file, 1, true) ~= nil or (file == manifest.NAME and said:find "manifest" ~= nil)
end

local function try_damage(row, ranks, finished, file, change)
  tries.in_folder(function(folder)
    copy(finished .. "/checkpoints", folder .. "/checkpoints")
    local path = ("%s/checkpoints/%s/%s"):format(folder, NEWEST, file)
    local text, at = change(assert(fs.read(path)))
    put(path, text)
    local left, same, trouble, run = saves.resume(ranks, folder)
    row:add { left = left, same = same, message = names_it(run.err, file),
      why = ("%s (%s bytes, at %s); %s\n%s"):format(file, text and #text or "no", at or "-", trouble,
      run.err) }
  end)
end

--- Rows for one number of ranks, each with at most `most` tries.
---@return table[] list of { row, tries }
function M.rows(ranks, most)
  local found, finished = {}, ("%s.finished.%d"):format(tries.base, ranks)
  for _, kind in ipairs(KINDS) do
    local fault, count, change = unpack(kind)
    local row, list = rows.row(fault .. " in the newest checkpoint", ranks), {}
    for _, file in ipairs(assert(fs.list(finished .. "/checkpoints/" .. NEWEST))) do
      for _ = 1, count do
        list[#list + 1] = function()
          local ok, why = pcall(try_damage, row, ranks, finished, file, change)
          if not ok then row:broken(file .. ": " .. why) end
        end
      end
    end
    while #list > math.max(most or math.huge, 1) do table.remove(list, math.random(#list)) end
    found[#found + 1] = { row, list }
  end
  return found
end

--- Makes the checkpoints that are damaged.
function M.prepare(ranks)
  local finished = ("%s.finished.%d"):format(tries.base, ranks)
  assert(fs.make_dirs(finished))
  local run = tries.train(ranks, finished)
  assert(run.status == 0, run.err)
end

function M.clean(ranks) fs.remove_tree(("%s.finished.%d"):format(tries.base, ranks)) end

return M
