--- help(name), ?name: signature and documentation, from the reference pages (docs/reference, which
--- `make docs` writes from the annotations); a function of the user's, from the comment above it.
local class = require "accelerate.utils.class"
local names = require "accelerate.prompt.names"

local M = {}

---@class accelerate.prompt.Entry
---@field name string "nn.Linear", "accelerator:backward"
---@field signature string
---@field lines string[] markdown

local FOLDER = debug.getinfo(1, "S").source:match("^@(.*)/lua/accelerate/prompt/help%.lua$")

-- How pages that are not called as their files are begin their headings.
local ALIASES = { F = "nn.functional" }

local index -- name -> entry
local pages -- module -> the lines before its first heading

local function read_page(name, path)
  local file, at = io.open(path, "rb"), nil
  if not file then return end
  local head = {}
  for line in file:lines() do
    local heading = line:match("^###? (.+)$")
    if heading then
      local full = heading:match("^[%w_.:]+")
      local first, rest = full:match("^(%w+)(%..*)$")
      if ALIASES[first] then full = ALIASES[first] .. rest end
      if name == "ops" then full = "tensor." .. heading end
      at = { name = full, signature = heading, lines = {} }
      if not (index[full] and name ~= "ops") then index[full] = at end
    elseif at then
      at.lines[#at.lines + 1] = line
    else
      head[#head + 1] = line
    end
  end
  file:close()
  pages[name] = head
end

local function read_pages()
  if index then return end
  index, pages = {}, {}
  local folder = (FOLDER or ".") .. "/docs/reference"
  local fine, list = pcall(require("accelerate.utils.fs").list, folder)
  for _, file in ipairs(fine and list or {}) do
    local name = file:match("^(.*)%.md$")
    if name then read_page(name, folder .. "/" .. file) end
  end
  for _, entry in next, index do -- "`add(a, b)`: a + b" is what an op's page says of its call
    local call = entry.name:find("^tensor%.") and (entry.lines[2] or ""):match("^`(.-)`")
    if call and not entry.signature:find("[(.]") then entry.signature = "tensor." .. call end
  end
end

-- ---- finding

-- "accelerate.nn" as scripts call it: "nn".
local function module_alias(value)
  for name, module in next, package.loaded do
    if module == value and type(name) == "string" and name:find("^accelerate") then
      local alias = name:match("^accelerate%.(.+)$") or name
      if pages[alias] then return alias end
    end
  end
end

local function of_class(Class, method)
  local seen = 0
  while type(Class) == "table" and seen < 20 do
    local name = rawget(Class, "__name")
    if type(name) == "string" then
      local entry = index[name:lower() .. ":" .. method]
        or index[name:sub(1, 1):lower() .. name:sub(2) .. ":" .. method]
      if entry then return entry end
    end
    Class, seen = rawget(Class, "__base"), seen + 1
  end
end

-- The entry of a member of a value.
local function of_member(value, member)
  local core = package.loaded["accelerate.core"]
  if core and core.is_tensor(value) then
    return index["tensor." .. member] or index["tensor." .. member:gsub("_$", "")]
      or index["tensor:" .. member]
  end
  if type(value) ~= "table" then return nil end
  local alias = module_alias(value)
  if alias then return index[alias .. "." .. member] end
  return of_class(debug.getmetatable(value), member) or of_class(value, member)
end

-- The entry of an op under another name, or of a function that stands for one: nn.functional.relu
-- is tensor.relu.
local function of_op(fn)
  if type(fn) ~= "function" then return nil end
  local core = require "accelerate.core"
  fn = require("accelerate.messages.methods").plain(fn)
  for _, row in ipairs(core.ops()) do
    if core[row.name] == fn then return index["tensor." .. row.name] end
  end
end

-- Entries whose last word is `word`.
local function ending_in(word)
  local list = {}
  for name, entry in next, index do
    if name:match("[%w_]+$") == word then list[#list + 1] = entry end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

local function split(text)
  local path = {}
  for word in text:gmatch("[%a_][%w_]*") do path[#path + 1] = word end
  return path
end

--- The entry that a name means; else the value that it has.
---@param text string "nn.Linear", "x.add", "model:parameters"
---@return accelerate.prompt.Entry?
---@return any value
function M.find(text)
  read_pages()
  local plain = text:gsub("^accelerate%.(%l[%w_]*%.)", "%1")
  local path = split(text)
  local entry = index[plain] or index[plain:gsub("^F%.", "nn.functional.")]
  if entry or #path == 0 then return entry end
  local value = names.value(path)
  if #path > 1 then
    local member = table.remove(path)
    entry = of_member(names.value(path), member)
  end
  return entry or of_op(value), value
end

local function entry_of_value(value)
  local Class = class.of(value) or class.itself(value)
  if Class then
    for _, entry in ipairs(ending_in(Class.__name)) do
      if entry.name:find("%.") then return entry end
    end
  end
end

-- ---- a user's function

local function comment_above(fn)
  local info = debug.getinfo(fn, "S")
  local path = info.source:match("^@(.*)$")
  local file = path and io.open(path, "rb")
  local lines = {}
  if not file then return lines end
  local n = 0
  for line in file:lines() do
    n = n + 1
    if n >= info.linedefined then break end
    local comment = line:match("^%s*%-%-+ ?(.*)$")
    if comment then lines[#lines + 1] = comment else lines = {} end
  end
  file:close()
  return lines
end

local function describe_function(text, fn)
  fn = require("accelerate.messages.methods").plain(fn)
  local show = require "accelerate.utils.show"
  local place = show.place(fn)
  if not place then return ("%s: a function in C"):format(text) end
  local out = { ("%s(%s)"):format(text, show.parameters(fn)), "" }
  for _, line in ipairs(comment_above(fn)) do out[#out + 1] = line end
  out[#out + 1] = "defined at " .. place
  return table.concat(out, "\n")
end

-- ---- text

local function plain_line(line)
  return (line:gsub("%[([^%]]-)%]%([^)]*%)", "%1"):gsub("^%* ", "  "):gsub("`", ""))
end

local function trimmed(lines)
  local out, origin = {}, false
  for _, line in ipairs(lines) do
    origin = origin or line:find("^%*Written by") ~= nil -- a sentence, perhaps of several lines
    if not line:find("^```") and not origin then out[#out + 1] = plain_line(line) end
    if line:find("%*$") then origin = false end
  end
  return (table.concat(out, "\n"):gsub("^%s*\n", ""):gsub("%s+$", ""):gsub("\n\n\n+", "\n\n"))
end

local function entry_text(entry) return entry.signature .. "\n\n" .. trimmed(entry.lines) end

local function module_text(value, alias)
  local show = require "accelerate.utils.show"
  local lines = {}
  for _, line in ipairs(pages[alias]) do
    if line:find("^```") then break end
    if not line:find("^# ") then lines[#lines + 1] = line end
  end
  return trimmed(lines) .. "\n\n" .. show.pformat(value)
end

local function several(list, word)
  local lines = { ("%s has several meanings:"):format(word) }
  for _, entry in ipairs(list) do lines[#lines + 1] = "  " .. entry.signature end
  return table.concat(lines, "\n")
end

local function nothing(text)
  local known, seen = {}, {}
  for name in next, index do
    for _, word in ipairs { name, name:match("[%w_]+$") } do
      if not seen[word] then known[#known + 1], seen[word] = word, true end
    end
  end
  table.sort(known)
  local near = require("accelerate.utils.options").nearest(text, known)
    or require("accelerate.utils.options").nearest(text:match("[%w_]*$"), known)
  if next(index) == nil then return "help: the reference pages are not installed (docs/reference)" end
  return ("help: nothing is known of '%s'%s"):format(text, near and ("; did you mean '%s'?"):format(near)
    or "")
end

local function value_text(text, value)
  local alias = type(value) == "table" and module_alias(value)
  if alias then return module_text(value, alias) end
  local entry = entry_of_value(value)
  if entry then return entry_text(entry) end
  if type(value) == "function" then return describe_function(text, value) end
  return ("%s is %s"):format(text, require("accelerate.utils.options").show(value))
end

--- The help for a name, or for a value.
---@param what any a name, or a value
---@return string
function M.text(what)
  read_pages()
  if type(what) ~= "string" then
    local entry = nil
    for name, candidate in next, index do
      if not name:find(":") and rawequal(names.value(split(name)), what) then entry = candidate end
    end
    return entry and entry_text(entry) or value_text("this", what)
  end
  local text = what:match("^%s*(.-)%s*$"):gsub("%(%)$", "")
  local entry, value = M.find(text)
  if entry then return entry_text(entry) end
  if value ~= nil then return value_text(text, value) end
  local list = ending_in(text)
  if #list == 1 then return entry_text(list[1]) end
  return #list > 1 and several(list, text) or nothing(text)
end

--- Prints the help for a name or a value: help "nn.Linear", help(nn.Linear), ?nn.Linear.
---@param what any
function M.show(what)
  if what == nil then
    print(require("accelerate.prompt.commands").HELP)
  else
    print(M.text(what))
  end
end

-- ---- options

-- The names at depth one of "{ a: number, b: { c: integer }?, d?: string }".
local function keys_of_type(set, kind)
  local depth, at = 0, 1
  while at <= #kind do
    local c = kind:sub(at, at)
    if c == "{" or c == "(" or c == "<" then depth = depth + 1
    elseif c == "}" or c == ")" or c == ">" then depth = depth - 1 end
    local name, after = kind:match("^([%a_][%w_]*)%??:()", at)
    if name then
      if depth == 1 then set[name] = true end
      at = after
    else
      at = kind:match("^[%a_][%w_]*()", at) or at + 1
    end
  end
end

-- The names of "device_placement, cpu, dynamo_backend (…); and, for what is not there yet (…),
-- …".
local function keys_of_text(set, text)
  local keywords = require("accelerate.prompt.lexer").KEYWORDS
  for piece in text:gsub("%b()", ""):gmatch("[^,;]+") do
    local name = piece:match("^%s*([%a_][%w_]*)%s*$")
    if name and not keywords[name] then set[name] = true end
  end
end

--- The options that a call takes, by name: a set.
---@param callee string "nn.Linear", "x:sum", "optim.Adam"
---@return table<string, true>
function M.options(callee)
  local entry, value = M.find(callee)
  entry = entry or value ~= nil and entry_of_value(value) or nil
  local set = {}
  if not entry then return set end
  local text = table.concat(entry.lines, "\n"):gsub("\n  +", " ")
  for line in (text .. "\n"):gmatch("(.-)\n") do
    local name, rest = line:match("^%* `([%w_]+)`: (.*)$")
    if name and rest:sub(1, 1) ~= "`" then set[name] = true end
    local kind = line:match("^%* `[%w_.]+`[^:]*: `(.*%b{}.*)`")
    if kind then keys_of_type(set, kind) end
    local listed = line:match("^%* `[%w_]+`[^:]*: `table%??`%. (.*)$")
    if listed then keys_of_text(set, listed) end
  end
  local list = entry.signature:match("^[%w_.:]+%((.*)%)$") -- arguments that may be left out
  for name in (list or ""):gmatch("%[([%a_][%w_]*)") do set[name] = true end
  local call = text:match("`" .. entry.name:gsub("%p", "%%%0") .. "(%b())") -- "stride?, padding?"
  for name in (call or ""):gmatch("([%a_][%w_]*)%?") do set[name] = true end
  set.opts = nil
  return set
end

return M
