-- Reads bench/calls.txt: a list of { name = operand's name?, gradient, ours, theirs }.
return function(path)
  local rows = {}
  for line in io.lines(path) do
    local ours, theirs = line:match("^%s*([^#].-)%s+|%s+(.-)%s*$")
    if ours then
      local name, value = ours:match("^([%w_]+) = (.*)$")
      local call = ours:match("^B (.*)$")
      rows[#rows + 1] = { name = name, gradient = call ~= nil, ours = value or call or ours, theirs = theirs }
    end
  end
  return rows
end
