--- What specs expect of messages: of the errors that calls raise, and of what programs print.
local M = {}

--- Returns what fn(...) raises.
function M.message(fn, ...)
  local fine, err = pcall(fn, ...)
  if fine then error("expected an error, there was none", 2) end
  return err
end

--- Returns the notices that fn(...) writes, a line each.
function M.said(fn, ...)
  local notice = require "accelerate.messages.notice"
  local lines, say = {}, notice.here
  notice.here = function(text, ...) lines[#lines + 1] = select("#", ...) > 0 and text:format(...) or text end
  local fine, why = pcall(fn, ...)
  notice.here = say
  if not fine then error(why, 0) end
  return table.concat(lines, "\n")
end

--- Fails unless `text` has `part` in it.
function M.has(text, part)
  if not text:find(part, 1, true) then error(("%q is not in:\n%s"):format(part, text), 2) end
end

--- Fails unless `text` matches a pattern.
function M.matches(text, pattern)
  if not text:find(pattern) then error(("%q does not match:\n%s"):format(pattern, text), 2) end
end

--- Returns the lines of a text that are not empty, sorted.
function M.sorted_lines(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = line end
  table.sort(list)
  return list
end

-- At level 3 is the caller of the function below that calls this one.
local function raised(plain, expected, fn, ...)
  local fine, err = pcall(fn, ...)
  if fine then error(("expected the error %q, there was none"):format(expected), 3) end
  if not tostring(err):find(expected, 1, plain) then
    error(("expected %q in the error, got:\n%s"):format(expected, tostring(err)), 3)
  end
  return err
end

--- Fails unless fn(...) raises an error with `text` in it. Returns the error.
function M.raises(text, fn, ...)
  local err = raised(true, text, fn, ...)
  return err
end

--- Fails unless fn(...) raises an error that matches a pattern. Returns the error.
function M.raises_like(pattern, fn, ...)
  local err = raised(false, pattern, fn, ...)
  return err
end

return M
