-- Functions that two files define alike: at least four lines that differ in nothing but white space
-- and comments.
local source = require "host.tools.lint.source"

local LEAST = 4

-- The lines of `text` between two line numbers without indentation and blank lines; and how many.
local function body_of(lines, from, to)
  local list = {}
  for k = from, to do
    local line = lines[k]:gsub("%s+", " "):gsub("^ ", ""):gsub(" $", "")
    if line ~= "" then list[#list + 1] = line end
  end
  return table.concat(list, "\n"), #list
end

-- Calls fn(first line, name, from, to): the functions that begin at the edge of the page, and the
-- lines of their bodies.
local EACH = {}

function EACH.c(lines, fn)
  for k = 2, #lines do
    if lines[k] == "{" then
      local name, first = nil, k
      while first > 1 and not name do
        first = first - 1
        if lines[first]:find("^[%s{};]*$") or lines[first]:find("^#") then break end
        name = lines[first]:match("^%a.-([%w_]+)%(")
      end
      local last = k + 1
      while lines[last] and not lines[last]:find("^}") do last = last + 1 end
      if name and lines[last] then fn(first, name, k + 1, last - 1) end
    end
  end
end

function EACH.lua(lines, fn)
  for k = 1, #lines do
    local name = lines[k]:match("^local function ([%w_]+)") or lines[k]:match("^function ([%w_.:]+)")
    if name and not lines[k]:find("%f[%w_]end%s*$") then
      local last = k + 1
      while lines[last] and not lines[last]:find("^end") do last = last + 1 end
      if lines[last] then fn(k, name, k + 1, last - 1) end
    end
  end
end

-- Where a function may stand twice: examples, benchmarks and specs are read alone.
local FOLDERS = { "host/", "kernels/", "lua/" }

return function(tree, report)
  local first = {}
  for path, kind in tree:each({ c = true, lua = true }, FOLDERS) do
    local lines = {}
    for _, line in source.lines(tree:apart(path).code) do lines[#lines + 1] = line:gsub("%s+$", "") end
    EACH[kind](lines, function(line, name, from, to)
      local body, count = body_of(lines, from, to)
      if count < LEAST then return end
      local other = first[body]
      if not other then first[body] = { path = path, line = line, name = name }
      elseif other.path ~= path then
        report(path, line, ("%s is also %s of %s:%d; define it once"):format(name, other.name, other.path,
          other.line))
      end
    end)
  end
end
