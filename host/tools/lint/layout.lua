-- How statements are laid out over lines: pieces of strings, items of one bracket, titles of parts.
local lua_tokens = require "host.tools.lua_tokens"
local source = require "host.tools.lint.source"

local M = {}

-- The shortest piece of a string that may stand on a line of its own.
local SHORTEST = 15

-- The tokens of a Lua file without its comments, each with its place; nil for a script whose first
-- line names its interpreter.
local function code_of(tree, path)
  local text = tree:text(path)
  if text:sub(1, 1) == "#" then return nil end
  local code = {}
  for _, t in ipairs(lua_tokens.of(text)) do
    if t.kind ~= "comment" then code[#code + 1] = t end
  end
  lua_tokens.place(text, code)
  return code
end

-- Whether `piece` is too short to begin a line and goes on with the string `before`.  Where
-- `before` ends a line of output, the break belongs to the text.
local function stray(before, piece)
  return #piece - 2 < SHORTEST and before:find '^["\']' and not before:find '\\n["\']$'
end

local function report_piece(report, path, line, piece)
  report(path, line, ("the piece %s of a string is too short for a line of its own (at least %d characters)")
    :format(piece, SHORTEST))
end

-- Whether the string at `k` goes on with one of an earlier line and is the end of both.
local function ends_string(list, k)
  local t, after = list[k], list[k + 1]
  return k > 2 and t.kind == "string" and list[k - 1].kind == ".." and list[k - 2].line < t.line
    and not (after and after.kind == "..")
end

local function lua_pieces(list, path, report)
  for k, t in ipairs(list) do
    if ends_string(list, k) and stray(list[k - 2].text, t.text) then
      report_piece(report, path, t.line, t.text)
    end
  end
end

local function c_pieces(text, path, report)
  local before = ""
  for number, line in source.lines(text) do
    local piece, after = line:match '^%s*(".-[^\\]")%s*(.?)'
    if piece and not after:find '[%w"]' and stray(before:match '(".*")%s*$' or "", piece) then
      report_piece(report, path, number, piece)
    end
    if line:find "%S" then before = line end
  end
end

--- A string over several lines breaks where its last piece is worth a line.
function M.pieces(tree, report)
  for path, kind in tree:each { c = true, lua = true } do
    if kind == "lua" then lua_pieces(code_of(tree, path) or {}, path, report)
    else c_pieces(tree:apart(path).code, path, report) end
  end
end

--- `..` ends a line and begins none.
function M.joins(tree, report)
  for path in tree:each { lua = true } do
    for _, t in ipairs(code_of(tree, path) or {}) do
      if t.leads and t.kind == ".." then
        report(path, t.line, "begins with `..`, which ends the line before")
      end
    end
  end
end

-- The title of a part of a file: `/* ---- reading */` in C, `-- ---- reading` in Lua.
local BANNERS = { c = "^%s*/%* *(%-%-+) (.*)$", lua = "^%s*%-%- (%-%-%-+) (.*)$" }
BANNERS.def = BANNERS.c

--- Titles of parts of a file have one form.
function M.banners(tree, report)
  for path, kind in tree:each { c = true, def = true, lua = true } do
    for _, comment in ipairs(tree:apart(path).comments) do
      local dashes, title = comment.text:match(BANNERS[kind])
      if dashes and (dashes ~= "----" or title:find "%-%-%-+%s*%*?/?%s*$") then
        report(path, comment.line, "the title of a part is `---- title`, without dashes behind it")
      end
    end
  end
end

--- Lines that begin with an item of one bracket begin at one depth.
function M.depth(tree, report)
  for path in tree:each { lua = true } do
    local list = code_of(tree, path) or {}
    for k, t in ipairs(list) do
      if t.leads and lua_tokens.begins_item(t, list[k - 1]) then
        local column = t.around.items_at or t.column
        t.around.items_at = column
        if t.column ~= column then
          report(path, t.line, ("an item at column %d; those before it in its bracket are at %d")
            :format(t.column, column))
        end
      end
    end
  end
end

return M
