--- The table of faults: a row counts its tries, and keeps what was wrong with them.
local host = require "spec.support.host"

local M = {}

local Row = {}
Row.__index = Row

--- Makes a row.
---@param fault string
---@param ranks string|integer
---@param limit? number seconds from the fault to the end of the run, or to its message; nil: not
---  measured
function M.row(fault, ranks, limit)
  return setmetatable({ fault = fault, ranks = tostring(ranks), limit = limit, tries = 0, wrong = {} }, Row)
end

local function mark(row, field, good, why)
  if good == nil then return end
  if row[field] == nil then row[field] = true end
  if good then return end
  row[field] = false
  row.wrong[#row.wrong + 1] = ("%s: %s"):format(field, why)
end

---@class Finding
---@field noticed? number seconds
---@field message? boolean whether it names rank, line and reason; nil: nobody is left to say it
---@field left? string what was left behind; "" for nothing
---@field same? boolean whether the next run ended with the bits of an uninterrupted one
---@field why string what the try was, and what came of it

--- Adds a try.
---@param found Finding
function Row:add(found)
  self.tries = self.tries + 1
  if found.noticed then
    local stretch = host.stretch() -- what runs besides on this machine takes its share
    self.longest = math.max(self.longest or 0, found.noticed)
    mark(self, "in_time", not self.limit or found.noticed <= self.limit * stretch,
      ("%.2f s (at most %g s, %.1f times); %s"):format(found.noticed, self.limit or 0, stretch, found.why))
  end
  mark(self, "message", found.message, found.why)
  if found.left then mark(self, "clean", found.left == "", ("%s; %s"):format(found.left, found.why)) end
  mark(self, "same", found.same, found.why)
end

--- Adds a try that could not be judged.
function Row:broken(why)
  self.tries = self.tries + 1
  mark(self, "same", false, why)
end

local function word(value)
  if value == nil then return "-" end
  return value and "yes" or "no"
end

local COLUMNS = "%-58s %5s %6s %13s %8s %12s %10s"

function M.heading()
  return COLUMNS:format("fault", "ranks", "tries", "noticed after", "message", "left behind", "same bits")
end

--- The row as a line of the table, with up to `shown` lines of what was wrong.
function Row:text(shown)
  local noticed = self.longest and ("%.2f s"):format(self.longest) or "-"
  if self.in_time == false then noticed = noticed .. " no" end
  local left = self.clean == nil and "-" or self.clean and "nothing" or "no: see below"
  local lines = { COLUMNS:format(self.fault, self.ranks, self.tries, noticed, word(self.message), left,
    word(self.same)) }
  for i = 1, math.min(#self.wrong, shown or 3) do lines[#lines + 1] = "    " .. self.wrong[i] end
  if #self.wrong > (shown or 3) then lines[#lines + 1] = ("    ... %d in all"):format(#self.wrong) end
  return table.concat(lines, "\n")
end

--- Whether all was as it should be, and something was tried.
function Row:good() return self.tries > 0 and #self.wrong == 0 end

return M
