-- Calls that the library never makes, attributes of ops without a name, and how long files are.
local source = require "host.tools.lint.source"

local M = {}

-- Whatever fails becomes an error of the script's: nothing in the library ends the process or jumps
-- past its callers.
local NEVER = { abort = true, assert = true, exit = true, quick_exit = true, longjmp = true,
  siglongjmp = true }
-- (host/image reads JPEG with libjpeg, which reports errors by a jump and nothing else.)
-- The emulated device is a stand-in for specs: its fibers are switched by longjmp.
local STAND_IN = "^kernels/cuda/emulate/"

function M.calls(tree, report)
  for path in tree:each({ c = true }, { "host/core/", "host/text/", "host/bind/", "kernels/" }) do
    if not path:find(STAND_IN) then
      for number, line in source.lines(tree:apart(path).bare) do
        for before, name in line:gmatch("(.?.?)%f[%w_]([%w_]+)%s*%(") do
          if NEVER[name] and not before:find("%->$") and not before:find("%.$") then
            report(path, number, ("calls %s; the library never ends the process or jumps"):format(name))
          end
        end
      end
    end
  end
end

-- The places of ax_attrs are filled by the reader of arguments; all others use names.
local BY_PLACE = { integers = true, numbers = true }

function M.attributes(tree, report)
  for path in tree:each({ c = true }, { "host/", "kernels/" }) do
    if path ~= "host/bind/args.c" and path ~= "host/bind/composed.c" then
      for number, line in source.lines(tree:apart(path).bare) do
        for name in line:gmatch("[.>]%s*(%l+)%s*[[=]") do
          if BY_PLACE[name] then
            report(path, number, ("an attribute by its place in `%s`; write its name, as in a->narrow.dim")
              :format(name))
          end
        end
      end
    end
  end
end

--- A header can be included anywhere, any number of times; what another file includes for its text,
--- once for each element type perhaps, ends in .inc.
function M.guards(tree, report)
  for path in tree:each { c = true } do
    local extension = path:match "%.(%a+)$"
    local guard = tree:apart(path).bare:match "^%s*#ifndef ([%w_]+)\n#define"
    if (extension == "h" or extension == "cuh") and not guard then
      report(path, 1, "has no include guard; a header has one, and a template body ends in .inc")
    elseif extension == "inc" and guard then
      report(path, 1, ("has the include guard %s; a header ends in .h"):format(guard))
    end
  end
end

-- Lines of a file; a spec is a list of cases and may be longer.
local MOST, MOST_OF_SPECS, MANY = 800, 1000, 500

function M.size(tree, report)
  for path in tree:each { c = true, def = true, lua = true, make = true, shell = true, python = true } do
    local count = select(2, tree:text(path):gsub("\n", ""))
    local most = path:find("^spec/") and MOST_OF_SPECS or MOST
    if tree:text(path):find("^/%* [%w_.]+: [^\n]*, written by host/tools/") then
      count = 0 -- nobody reads what a tool wrote
    end
    if count > most then
      report(path, count, ("%d lines; a file here has at most %d"):format(count, most))
    elseif count > MANY then
      report(path, count, ("%d lines; above %d it often holds two subjects"):format(count, MANY), "warning")
    end
  end
end

return M
