-- busted output: dots, then what failed, then the line that CI reads: `N passed, N failed`.
--
-- busted's own plain output ends with the details, and counts a file that does not load apart from
-- the tests; here everything that went wrong is a failure, and the last line is the sum.  A test
-- that is pending is named with its reason and counted as neither.
local busted = require "busted"

return function(options)
  local handler = require "busted.outputHandlers.plainTerminal"(options)

  -- Later than the details (subscribers of one event run in order of priority, lower numbers
  -- first).
  busted.subscribe({ "suite", "end" }, function()
    local pending = handler.pendingsCount > 0 and (", %d pending"):format(handler.pendingsCount) or ""
    print(("\n%d passed, %d failed%s"):format(handler.successesCount,
      handler.failuresCount + handler.errorsCount, pending))
    io.stdout:flush()
    return nil, true
  end, { priority = 1000 })

  return handler
end
