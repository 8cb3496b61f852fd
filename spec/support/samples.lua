--- What specs of data sets and loaders share: data sets of a script's own, batches as text, worker
--- processes.
local core = require "accelerate.core"
local data = require "accelerate.data"
local processes = require "spec.support.processes"

local M = {}

--- Returns a data set that is a plain table, as a script's own may be.
function M.plain(n, get)
  return { len = function() return n end, get = function(_, i) return get(i) end }
end

--- Returns a loader of the numbers from 0 to n - 1.
function M.loader_of(n, opts) return data.DataLoader(data.TensorDataset(core.arange(n)), opts) end

--- Returns the batches of a pass over numbers as text: "0,1 2,3".
---@param loader table
---@param each? fun(x: accelerate.Tensor, number: integer): boolean? called with each batch; true
---  leaves the pass
function M.batches(loader, each)
  local list = {}
  for x in loader:iter() do
    list[#list + 1] = table.concat(x:totable(), ",")
    if each and each(x, #list) then break end
  end
  return table.concat(list, " ")
end

--- Returns the process ids of this process's loader workers.
function M.workers()
  local list = {}
  local pipe = io.popen("cat /proc/[0-9]*/stat 2>/dev/null")
  for line in pipe:lines() do
    local pid, name, state, parent = line:match("^(%d+) (%b()) (%a) (%d+)")
    if tonumber(parent) == processes.own_pid() and name == "(accel-worker)" and state ~= "Z" then
      list[#list + 1] = tonumber(pid)
    end
  end
  pipe:close()
  return list
end

return M
