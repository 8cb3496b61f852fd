-- The sources that lint reads: which files there are, and their text taken apart into code and
-- comments.
local M = {}

local Tree = {}
Tree.__index = Tree

local KINDS = {
  c = "c", h = "c", inc = "c", cu = "c", cuh = "c", cpp = "c", def = "def", lua = "lua", py = "python",
  sh = "shell",
  md = "text",
}

local function shell_word(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local function lines_of(command)
  local list, pipe = {}, assert(io.popen(command))
  for line in pipe:lines() do list[#list + 1] = line end
  pipe:close()
  return list
end

--- The files of a folder: those under git and new ones that git does not ignore; all, where there
--- is no git.
---@param root string
---@return table tree
function M.open(root)
  local into = "cd " .. shell_word(root) .. " && "
  local list = lines_of(into .. "test -e .git && git ls-files -co --exclude-standard 2>/dev/null")
  if #list == 0 then list = lines_of(into .. "find . -type f | sed 's|^\\./||'") end
  table.sort(list)
  local tree = setmetatable({ root = root, files = {}, texts = {}, parts = {}, has = {} }, Tree)
  for _, path in ipairs(list) do
    local file = not tree.has[path] and io.open(root .. "/" .. path, "rb")
    if file then -- git also lists what was removed and not yet committed
      tree.texts[path] = file:read("*a")
      file:close()
      tree.files[#tree.files + 1] = path
      tree.has[path] = true
    end
  end
  return tree
end

function Tree:text(path) return self.texts[path] end

--- "c" (CUDA and C++ too), "def", "lua", "python", "shell", "make", "text", or nil for what lint
--- leaves alone.
function Tree:kind(path)
  if path:find("Makefile$") or path:find("%.mk$") then return "make" end
  local extension = path:match("%.(%w+)$")
  if extension then return KINDS[extension] end
  return self.texts[path]:find("^#!.-sh\n") and "shell" or nil
end

--- Whether another program wrote the file: its first line says "Written by gen_x.py" or "Made by
--- gen_x.py".
function Tree:generated(path)
  local first = self.texts[path]:match("^[^\n]*")
  return path:find("^docs/reference/") ~= nil or first:find("[WwM][ra][id][te]t?e?n? by [%w_/]+%.py") ~= nil
end

--- Paths of the given kinds that begin with one of the prefixes (all when there are none),
--- generated ones left out.
function Tree:each(kinds, prefixes)
  local list = {}
  for _, path in ipairs(self.files) do
    local kind, wanted = self:kind(path), not prefixes
    for _, prefix in ipairs(prefixes or {}) do wanted = wanted or path:sub(1, #prefix) == prefix end
    if wanted and kind and kinds[kind] and not self:generated(path) then list[#list + 1] = path end
  end
  local at = 0
  return function()
    at = at + 1
    return list[at], list[at] and self:kind(list[at])
  end
end

-- ---- code and comments

local function blank(text) return (text:gsub("[^\n]", " ")) end

-- The end of a string or character that begins at `i`, at the end of its line at the latest.
local function quote_end(text, i)
  local quote = text:sub(i, i)
  local at = i + 1
  while true do
    local found = text:find("[\\\n" .. quote .. "]", at)
    if not found then return #text end
    local c = text:sub(found, found)
    if c ~= "\\" then return found end
    at = found + 2
  end
end

-- Each finds the next comment or string from `at` on: where it begins and ends, and "comment" or
-- "string"; nil: no more.
local FIND = {}

function FIND.c(text, at)
  while true do
    local i = text:find("[\"'/]", at)
    if not i then return nil end
    local two = text:sub(i, i + 1)
    if two == "/*" then return i, select(2, text:find("*/", i + 2, true)) or #text, "comment" end
    if two == "//" then return i, (text:find("\n", i, true) or #text + 1) - 1, "comment" end
    local quote = text:sub(i, i)
    if quote == '"' or quote == "'" and not text:find("^%w", i - 1) then
      return i, quote_end(text, i), "string"
    end
    at = i + 1
  end
end
FIND.def = FIND.c

function FIND.lua(text, at)
  while true do
    local i = text:find("[\"'%[%-]", at)
    if not i then return nil end
    local dashes = text:sub(i, i + 1) == "--"
    local level = text:match("^%[(=*)%[", dashes and i + 2 or i)
    if level then
      local close = select(2, text:find("]" .. level .. "]", i, true)) or #text
      return i, close, dashes and "comment" or "string"
    end
    if dashes then return i, (text:find("\n", i, true) or #text + 1) - 1, "comment" end
    local c = text:sub(i, i)
    if c == '"' or c == "'" then return i, quote_end(text, i), "string" end
    at = i + 1
  end
end

-- Shell, Makefiles, Python: comments on lines of their own are enough.
function FIND.make(text, at)
  local i, e = text:find("^[ \t]*#[^\n]*", at)
  if not i then
    i, e = text:find("\n[ \t]*#[^\n]*", at)
    i = i and i + 1
  end
  if i then return i, e, "comment" end
end
FIND.shell, FIND.python = FIND.make, FIND.make

function FIND.text(text, at)
  if at <= #text then return at, #text, "comment" end
end

local function take_apart(text, find)
  local code, bare, comments = {}, {}, {}
  local at, line = 1, 1
  local function count(piece) line = line + select(2, piece:gsub("\n", "")) end
  while true do
    local from, to, what = find(text, at)
    local piece = text:sub(at, (from or #text + 1) - 1)
    code[#code + 1], bare[#bare + 1] = piece, piece
    if not from then break end
    count(piece)
    local body = text:sub(from, to)
    if what == "comment" then
      local number = line
      for one in (body .. "\n"):gmatch("([^\n]*)\n") do
        comments[#comments + 1] = { line = number, text = one }
        number = number + 1
      end
      code[#code + 1] = blank(body)
    else
      code[#code + 1] = body
    end
    bare[#bare + 1] = blank(body)
    count(body)
    at = to + 1
  end
  return { code = table.concat(code), bare = table.concat(bare), comments = comments }
end

--- What a file says: `comments`, a list of { line, text }, one for each line; `code`, the text with
--- its comments blanked;
--- `bare`, the same with strings blanked, too.
function Tree:apart(path)
  local parts = self.parts[path]
  if not parts then
    parts = take_apart(self.texts[path], FIND[self:kind(path)])
    self.parts[path] = parts
  end
  return parts
end

--- Iterates over the lines of a text: number, line.
function M.lines(text)
  local number, at = 0, 1
  return function()
    if at > #text then return nil end
    local e = text:find("\n", at, true) or #text + 1
    local line = text:sub(at, e - 1)
    number, at = number + 1, e + 1
    return number, line
  end
end

return M
