--- Completion: the names that may stand where the cursor is.
local lexer = require "accelerate.prompt.lexer"
local names = require "accelerate.prompt.names"

local M = {}

-- ---- where the cursor is

-- What stands in the brackets that end at `at`: a number or a string; nil elsewhere.
local function index_at(list, at)
  local t, inner, open = list[at], list[at - 1], list[at - 2]
  if not open or t.text ~= "]" or open.text ~= "[" then return nil end
  if inner.kind == "number" then return tonumber(inner.text) end
  if inner.kind == "string" then return inner.text:match("^[\"'](.*)[\"']$") end
end

-- The names before a "." or ":" at `at`, and what stands in brackets behind them: { "model", 1,
-- "fc" }; nil where it follows something else.
local function path_before(list, at)
  local path = {}
  while true do
    local index = list[at] and index_at(list, at)
    while index do
      table.insert(path, 1, index)
      at = at - 3
      index = list[at] and index_at(list, at)
    end
    local t = list[at]
    if not t or t.kind ~= "name" then return nil end
    table.insert(path, 1, t.text)
    local dot = list[at - 1]
    if not dot or not (dot.text == "." or dot.text == ":") then return path end
    at = at - 2
  end
end

-- The name of what is called with the table that holds position `at`: "nn.Linear" in
-- `nn.Linear(2, 3, { bi`; nil: the table is no argument, or a value is expected.
local function callee_of_table(list, at)
  local before = list[at]
  if not before or not (before.text == "{" or before.text == "," or before.text == ";") then return nil end
  local depth = 0
  local function open(from, brackets)
    for i = from, 1, -1 do
      local t = list[i].kind == "op" and list[i].text or ""
      if t == ")" or t == "}" or t == "]" then depth = depth + 1
      elseif t == "(" or t == "{" or t == "[" then
        if depth == 0 then return t == brackets and i or nil end
        depth = depth - 1
      end
    end
  end
  local brace = open(at, "{")
  if not brace then return nil end
  local last = brace - 1
  local t = list[last]
  if t and (t.text == "(" or t.text == ",") then
    last = open(last, "(")
    last = last and last - 1
  end
  local path = last and last > 0 and path_before(list, last)
  if not path then return nil end
  local colon = #path > 1 and list[last - 1].text == ":"
  local member = colon and table.remove(path)
  return table.concat(path, ".") .. (colon and ":" .. member or "")
end

-- ---- candidates

local function with_prefix(set, prefix, accept)
  local list = {}
  for name in next, set do
    local hidden = name:sub(1, 1) == "_" and prefix:sub(1, 1) ~= "_"
    if not hidden and name:sub(1, #prefix) == prefix and (not accept or accept(name)) then
      list[#list + 1] = name
    end
  end
  table.sort(list)
  return list
end

local function modules(prefix)
  local set = {}
  for name in next, package.loaded do set[name] = true end
  for name in next, package.preload do set[name] = true end
  local folder, rest = prefix:match("^(.*%.)(.*)$")
  folder, rest = folder or "", rest or prefix
  for pattern in package.path:gmatch("[^;]+") do
    local where = pattern:match("^(.*)%?%.lua$")
    local fine, list = pcall(require("accelerate.utils.fs").list, where and (where .. folder:gsub("%.", "/"))
      or "/none")
    for _, file in ipairs(where and fine and list or {}) do
      local name = file:match("^([%w_%-]+)%.lua$") or file:match("^[%w_%-]+$")
      if name and name:sub(1, #rest) == rest and name ~= "init" then set[folder .. name] = true end
    end
  end
  return with_prefix(set, prefix)
end

local function files(prefix)
  local fs = require "accelerate.utils.fs"
  local folder, rest = prefix:match("^(.*/)(.*)$")
  folder, rest = folder or "", rest or prefix
  local home = require("accelerate.host").home()
  local where = folder == "" and "." or home and folder:gsub("^~/", home .. "/") or folder
  local fine, all = pcall(fs.list, where)
  local list = {}
  for _, name in ipairs(fine and all or {}) do
    local hidden = name:sub(1, 1) == "." and rest:sub(1, 1) ~= "."
    if not hidden and name:sub(1, #rest) == rest then
      list[#list + 1] = folder .. name .. (fs.is_dir(where .. "/" .. name) and "/" or "")
    end
  end
  table.sort(list)
  return list
end

local function in_string(list, at)
  local prefix = list[at].text:sub(2)
  local before = list[at - 1]
  if before and before.text == "(" then before = list[at - 2] end
  if before and before.text == "require" then return modules(prefix), prefix end
  return files(prefix), prefix
end

--- The candidates at the end of a text, and what of them is there already.
---@param text string
---@return string[] candidates
---@return string prefix
---@return string? ending what follows a candidate when it is the only one
function M.candidates(text)
  local command = text:match("^%s*:(%a*)$")
  if command then return with_prefix(require("accelerate.prompt.commands").names(), command), command, " " end
  local list = lexer.tokens((text:gsub("^%s*%?", ""):gsub("^%s*:%a+ ", "")))
  list[#list] = nil
  local last = list[#list]
  if last and last.kind == "open" then
    if not last.text:find("^[\"']") then return {}, "" end
    return in_string(list, #list)
  end
  local typed = (text:match("[%a_][%w_]*$") or "")
  local at = #list
  if last and typed ~= "" then at = at - 1 end
  local before = list[at]
  if before and (before.text == "." or before.text == ":") then
    local path = path_before(list, at - 1)
    local value = path and names.value(path)
    if value == nil then return {}, typed end
    local method = before.text == ":" and function(name) return names.is_method(value, name) end
    return with_prefix(names.within(value), typed, method), typed
  end
  local callee = callee_of_table(list, at)
  if callee then
    local set = require("accelerate.prompt.help").options(callee)
    local found = with_prefix(set, typed)
    if #found > 0 then return found, typed, " = " end
  end
  if typed == "" then return {}, typed end
  return with_prefix(names.roots(), typed), typed
end

-- ---- what Tab does

local function common(list)
  local first = list[1]
  local n = #first
  for _, name in ipairs(list) do
    while n > 0 and name:sub(1, n) ~= first:sub(1, n) do n = n - 1 end
  end
  return first:sub(1, n)
end

local MOST = 200

-- Names in columns.
local function columns(list, width)
  local widest = 0
  for _, name in ipairs(list) do widest = math.max(widest, #name + 2) end
  local across = math.max(1, math.floor(width / widest))
  local shown = math.min(#list, MOST)
  local down = math.ceil(shown / across)
  local lines = {}
  for row = 1, down do
    local line = {}
    for i = row, shown, down do line[#line + 1] = list[i] .. (" "):rep(widest - #list[i]) end
    lines[row] = table.concat(line):gsub("%s+$", "")
  end
  if #list > shown then lines[#lines + 1] = ("... %d more"):format(#list - shown) end
  return table.concat(lines, "\n")
end

--- Returns what to insert at the cursor, and a list to show.
---@param before string the chunk up to the cursor
---@return string insert
---@return string? list
function M.complete(before)
  local line = before:match("[^\n]*$")
  if not line:find("%S") then return "  " end
  local list, prefix, ending = M.candidates(before)
  if #list == 0 then return "" end
  if #list == 1 then return list[1]:sub(#prefix + 1) .. (ending or "") end
  local insert = common(list):sub(#prefix + 1)
  if insert ~= "" then return insert end
  local terminal = require "accelerate.utils.terminal"
  return "", columns(list, terminal.columns(terminal.STDOUT))
end

return M
