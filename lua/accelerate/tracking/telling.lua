--- What trackers have to say, on stderr: training goes on meanwhile.
local M = {}

local told = {}

function M.warn(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  io.stderr:write("accelerate: ", message, "\n")
end

--- On the main process only, for what every process comes by.
function M.main(message, ...)
  if require("accelerate.core").dist.rank() == 0 then M.warn(message, ...) end
end

--- The same text only once in a process.
function M.once(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  if told[message] then return end
  told[message] = true
  M.warn("%s", message)
end

return M
