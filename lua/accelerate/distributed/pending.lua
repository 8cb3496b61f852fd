--- Sends and receives that were begun with async_op. They run together, in an order that all ranks
--- share: by the pair of ranks, then from the lower to the higher one, then as they were begun. So
--- two ranks that both send first do not wait for each other.
local M = {}

local waiting = {}

--- Puts off what `run` does between this rank and another one.
---@param rank integer this rank in the world
---@param other integer
---@param sends boolean
---@param run fun()
---@return table entry `entry.over` is set when it has run
function M.add(rank, other, sends, run)
  local entry = {
    low = math.min(rank, other), high = math.max(rank, other), up = sends == (rank < other),
    number = #waiting, run = run, over = false,
  }
  waiting[#waiting + 1] = entry
  return entry
end

local function before(a, b)
  if a.low ~= b.low then return a.low < b.low end
  if a.high ~= b.high then return a.high < b.high end
  if a.up ~= b.up then return a.up end
  return a.number < b.number
end

--- Runs all of them; where one raises, those behind it are forgotten, as the run ends.
function M.flush()
  if #waiting == 0 then return end
  local list = waiting
  waiting = {}
  table.sort(list, before)
  for _, entry in ipairs(list) do
    entry.run()
    entry.over = true
  end
end

return M
