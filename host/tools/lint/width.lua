-- Width of lines: code to 110 columns, comments on lines of their own to 100.  Columns, not bytes.
local source = require "host.tools.lint.source"

local CODE, COMMENT = 110, 100

local function columns(line)
  return #line - select(2, line:gsub("[\128-\191]", "")) -- bytes that continue a character have no column
end

-- A rule for one kind of files; `code` and `comment`: the widest line.
local function rule(kind, code, comment)
  return function(tree, report)
    for path in tree:each { [kind] = true } do
      local next_bare = source.lines(tree:apart(path).code)
      for number, line in source.lines(tree:text(path)) do
        local _, rest = next_bare()
        local width = columns(line)
        if width > comment then
          local alone = rest:find("^[%s\\]*$")
          local most = alone and comment or code
          if width > most then
            report(path, number, ("%d columns; %s may have %d"):format(width, alone and "a comment" or "code",
              most))
          end
        end
      end
    end
  end
end

return {
  width_c = rule("c", CODE, COMMENT),
  width_def = rule("def", 120, COMMENT), -- a row is wrapped after its signature
  width_lua = rule("lua", CODE, COMMENT),
  width_make = rule("make", 120, COMMENT),
  width_shell = rule("shell", 120, COMMENT),
  width_python = rule("python", 120, 120),
}
