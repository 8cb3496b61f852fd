-- Width of lines: code to 110 columns, comments on lines of their own to 100.  Columns, not bytes.
local markdown = require "host.tools.markdown"
local source = require "host.tools.lint.source"

local CODE, COMMENT, TERMINAL = 110, 100, 120
local columns = markdown.columns

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

-- Guides: text where it can be broken, and code.  A terminal's lines (a block without a language)
-- stand as a program prints them.
local function width_text(tree, report)
  for path in tree:each { text = true } do
    local language -- of the block that the line is in
    for number, line in source.lines(tree:text(path)) do
      local fence = line:match "^%s*```(.*)$"
      local most = language == "" and TERMINAL or markdown.WIDTH
      local wide = columns(line) > most
      if not language then wide = not markdown.fixed(line) and #markdown.wrap(line) > 1 end
      if wide then report(path, number, ("%d columns; text may have %d"):format(columns(line), most)) end
      if fence then language = not language and fence or nil end
    end
  end
end

return {
  width_text = width_text,
  width_c = rule("c", CODE, COMMENT),
  width_def = rule("def", TERMINAL, COMMENT), -- a row is wrapped after its signature
  width_lua = rule("lua", CODE, COMMENT),
  width_make = rule("make", TERMINAL, COMMENT),
  width_shell = rule("shell", TERMINAL, COMMENT),
  width_python = rule("python", TERMINAL, TERMINAL),
}
