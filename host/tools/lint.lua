-- Holds the laws of the house: width, layers, names in comments, functions defined twice, globals,
-- calls, attributes, rows, size, words.
--
--   accel-run host/tools/lint.lua                  all rules that are on; `path:line: rule: what`,
--     status 1 when one is broken
--   accel-run host/tools/lint.lua --rule NAME ...  these rules only, also one that is off
--   accel-run host/tools/lint.lua --list           the rules, and which are on
--   --root FOLDER                                  another tree than this
--   --warnings                                     also prints what is worth a look and breaks no
--       rule
--
-- A part of `make lint`.  As a module it returns run(options), which spec/lint_spec.lua calls with
-- broken files.
local code = require "host.tools.lint.code"
local layers = require "host.tools.lint.layers"
local layout = require "host.tools.lint.layout"
local loops = require "host.tools.lint.loops"
local requires = require "host.tools.lint.requires"
local source = require "host.tools.lint.source"
local width = require "host.tools.lint.width"
local words = require "host.tools.lint.words"

local function part(name) return require("host.tools.lint." .. name) end

-- Name, whether it is on, the check, and what it holds.
local RULES = {
  { "width-c", true, width.width_c, "C and CUDA: code to 110 columns, comments to 100" },
  { "width-def", true, width.width_def, ".def tables: rows to 120 columns" },
  { "width-lua", true, width.width_lua, "Lua: code to 110 columns, comments to 100" },
  { "width-make", true, width.width_make, "Makefile: lines to 120 columns" },
  { "width-shell", true, width.width_shell, "scripts: lines to 120 columns" },
  { "width-python", true, width.width_python, "Python: lines to 120 columns" },
  { "width-text", true, width.width_text,
    "guides: text and code to 110 columns, a terminal's lines to 120; tables and links as they are" },
  { "format", true, part "format", "C is as `make fmt` writes it" },
  { "pieces", true, layout.pieces, "no short piece of a string has a line of its own" },
  { "joins", true, layout.joins, "Lua: `..` ends a line and begins none" },
  { "depth", true, layout.depth, "Lua: lines that begin an item of one bracket begin at one depth" },
  { "banners", true, layout.banners, "titles of parts of a file are `---- title`, without a tail" },
  { "loops", true, loops.loops, "C: a variable that only loops use is declared in their heads" },
  { "layers", true, layers.layers, "a room of C includes what it may" },
  { "core-private", true, layers.core_is_private,
    "core/*.h and text/*.h are included by their own rooms alone" },
  { "ground", true, part "ground",
    "memory, storages and inline functions of ax.h and plugin.h call nothing above" },
  { "requires", true, requires.requires, "a room of Lua requires what it may" },
  { "circles", true, requires.circles, "no circle of requires between rooms" },
  { "names", true, part "names", "files that comments and pages name are there" },
  { "twins", true, part "twins", "no function is defined alike in two files" },
  { "globals", true, part "globals", "Lua sets no globals and reads Lua's own" },
  { "calls", true, code.calls, "the library never aborts, exits or jumps" },
  { "guards", true, code.guards, "a header has an include guard, a template body (.inc) none" },
  { "attributes", true, code.attributes, "attributes of ops are read by name" },
  { "rows", true, part "rows", "rows of the op table are told apart by their own files alone" },
  { "size", true, code.size, "files have at most 800 lines, specs 1000 (a warning above 500)" },
  { "same", true, words.same, 'no description begins with "The same"' },
  { "begins", true, words.begins, 'annotations of functions begin with "Returns" or an imperative' },
  { "words", true, words.words, "comments use the plain word" },
}
for k, row in ipairs(RULES) do
  RULES[k] = { name = row[1], enabled = row[2], check = row[3], summary = row[4] }
end

local M = { rules = RULES }

--- Runs the rules over a tree.
---@param options? { root: string?, rules: table<string, true>? } rules: these, on or off; else
---  those that are on
---@return table[] found list of { path, line, rule, message, warning }
---@return integer files how many were read
function M.run(options)
  options = options or {}
  local tree, found = source.open(options.root or "."), {}
  for _, rule in ipairs(RULES) do
    local wanted = rule.enabled
    if options.rules then wanted = options.rules[rule.name] end
    if wanted then
      rule.check(tree, function(path, line, message, kind)
        found[#found + 1] = {
          path = path, line = line, rule = rule.name, message = message, warning = kind == "warning",
        }
      end)
    end
  end
  return found, #tree.files
end

local function usage(message)
  io.stderr:write("lint: ", message, "\n")
  os.exit(2)
end

local function main(arguments)
  local options, warnings, at = {}, false, 1
  while arguments[at] do
    local word = arguments[at]
    if word == "--list" then
      for _, rule in ipairs(RULES) do
        print(("%-13s %-4s %s"):format(rule.name, rule.enabled and "on" or "off", rule.summary))
      end
      return 0
    elseif word == "--warnings" then warnings = true
    elseif word == "--root" or word == "--rule" then
      at = at + 1
      local value = arguments[at] or usage(word .. " needs a value")
      if word == "--root" then options.root = value
      else
        local known = false
        for _, rule in ipairs(RULES) do known = known or rule.name == value end
        if not known then usage(("there is no rule %s (--list names them)"):format(value)) end
        options.rules = options.rules or {}
        options.rules[value] = true
      end
    else usage("unknown argument " .. word) end
    at = at + 1
  end
  local found, files = M.run(options)
  local broken = 0
  for _, f in ipairs(found) do
    if not f.warning then broken = broken + 1 end
    if warnings or not f.warning then
      print(("%s:%d: %s%s: %s"):format(f.path, f.line, f.warning and "warning: " or "", f.rule, f.message))
    end
  end
  print(("lint: %d files, %d broken"):format(files, broken))
  return broken == 0 and 0 or 1
end

if arg and arg[0] and arg[0]:find("lint.lua", 1, true) then os.exit(main(arg)) end

return M
