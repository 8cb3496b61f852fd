-- Loop variables of C that are declared before their loops, where no line behind the loop needs
-- them.
local M = {}

-- Words before a name that make no declaration of it.
local NO_TYPE = { ["return"] = true, ["goto"] = true, ["case"] = true, ["else"] = true, ["typedef"] = true,
  ["static"] = true, ["extern"] = true }

local CLOSING = { ["("] = ")", ["{"] = "}", ["["] = "]" }
local HEADED = { ["for"] = true, ["while"] = true, ["if"] = true, ["switch"] = true }

-- Tokens of code without comments and strings: { text, at }, `pair` at brackets.
local function tokens_of(bare)
  local list, open, at = {}, {}, 1
  while true do
    at = bare:find("%S", at)
    if not at then return list end
    local text = bare:match("^[%a_][%w_]*", at) or bare:match("^%d[%w_.]*", at) or bare:match("^%->", at)
      or bare:sub(at, at)
    local t = { text = text, at = at }
    list[#list + 1] = t
    if CLOSING[text] then open[#open + 1] = #list
    elseif text == ")" or text == "}" or text == "]" then
      local from = table.remove(open)
      if from then list[from].pair = #list end
    end
    at = at + #text
  end
end

-- The place of the last token of the statement that begins at `k`; nil: it is cut off.
local function statement_end(list, k)
  local t = list[k]
  while t and t.text:find "^[%u_]+$" and list[k + 1] and list[k + 1].text:find "^[%a_]+$" do -- AX_SIMD for
    k = k + 1
    t = list[k]
  end
  if not t then return nil end
  if t.text == "{" then return t.pair end
  if HEADED[t.text] and list[k + 1] and list[k + 1].pair then
    local stop = statement_end(list, list[k + 1].pair + 1)
    local after = stop and list[stop + 1]
    if t.text == "if" and after and after.text == "else" then return statement_end(list, stop + 2) end
    return stop
  end
  if t.text == "do" then
    k = statement_end(list, k + 1)
    if not k then return nil end
  end
  while list[k] and list[k].text ~= ";" do k = (list[k].pair or k) + 1 end
  return list[k] and k
end

-- The variables that the head of the loop at `k` assigns first; nil: it is no such loop.
local function assigned_by(list, k)
  local names, at = {}, k + 2
  if list[k].text ~= "for" or not (list[k + 1] and list[k + 1].pair) then return nil end
  while true do
    if not list[at].text:find "^[%a_]" or list[at + 1].text ~= "=" then return nil end
    names[#names + 1] = list[at].text
    while list[at].text ~= "," and list[at].text ~= ";" do
      at = (list[at].pair or at) + 1
      if not list[at] or list[at].text == ")" then return nil end
    end
    if list[at].text == ";" then return names end
    at = at + 1
  end
end

-- The type that a declaration at `k` begins with, and the place behind it.
local function type_at(list, k)
  local before, kind = list[k - 1] and list[k - 1].text, {}
  if before ~= "{" and before ~= "}" and before ~= ";" and before ~= ")" or NO_TYPE[list[k].text] then
    return nil
  end
  while list[k + 1] and list[k].text:find "^[%a_]" and list[k + 1].text:find "^[%a_*]" do
    kind[#kind + 1] = list[k].text
    k = k + 1
  end
  if #kind > 0 then return table.concat(kind, " "), k end
end

-- A declaration at `k`: the names that it gives no value, with their types, and its end.
local function declared_at(list, k)
  local kind, at = type_at(list, k)
  local names = {}
  while kind and list[at] do
    local stars = ""
    while list[at] and list[at].text == "*" do stars, at = stars .. "*", at + 1 end
    local after = list[at + 1] and list[at + 1].text
    if list[at] and list[at].text:find "^[%a_]" and (after == "," or after == ";") then
      names[#names + 1] = { place = at, kind = (kind .. " " .. stars):match "^(.-) ?$" }
    end
    while list[at] and list[at].text ~= "," and list[at].text ~= ";" do at = (list[at].pair or at) + 1 end
    if not list[at] or list[at].text == ";" then break end
    at = at + 1
  end
  return names, at
end

-- The loops that assign a variable first, when no token up to `last` names it outside of them.
local function loops_of(list, name, first, last)
  local loops, stop = {}, 0
  for k = first, last do
    local t = list[k]
    if k > stop and t.text == "for" then
      for _, assigned in ipairs(assigned_by(list, k) or {}) do
        if assigned == name then
          loops[#loops + 1] = k
          stop = statement_end(list, k) or 0
        end
      end
    end
    local before = list[k - 1].text
    if t.text == name and k > stop and before ~= "." and before ~= "->" then return nil end
  end
  return loops
end

--- Returns the variables of a file that belong into the heads of their loops.
---@param bare string code without comments and strings
---@return { name: string, kind: string, at: integer, loops: integer[] }[] places in the text
function M.find(bare)
  local list, found, ends, open = tokens_of(bare), {}, {}, {}
  for k, t in ipairs(list) do -- where the block around each token ends
    if t.text == "{" then open[#open + 1] = t.pair or #list end
    if t.text == "}" then open[#open] = nil end
    ends[k] = open[#open]
  end
  local own, heads = {}, {} -- of each loop: which variables may move there, and all that it assigns
  for k in ipairs(list) do
    local names, stop = {}, nil
    if ends[k] then names, stop = declared_at(list, k) end
    for _, n in ipairs(names) do
      local name, kind = list[n.place].text, n.kind
      local loops = loops_of(list, name, stop, ends[k])
      if loops and #loops > 0 then
        found[#found + 1] = { name = name, kind = kind, at = list[n.place].at, loops = loops }
        for _, loop in ipairs(loops) do
          heads[loop] = assigned_by(list, loop)
          own[loop] = own[loop] or {}
          own[loop][name] = kind
        end
      end
    end
  end
  -- a head declares variables of one type, and all that it assigns
  local again = true
  while again do
    again = false
    for n = #found, 1, -1 do
      local movable = true
      for _, loop in ipairs(found[n].loops) do
        for _, name in ipairs(heads[loop]) do movable = movable and own[loop][name] == found[n].kind end
      end
      if not movable then
        for _, loop in ipairs(found[n].loops) do own[loop][found[n].name] = nil end
        table.remove(found, n)
        again = true
      end
    end
  end
  for _, f in ipairs(found) do
    for k, loop in ipairs(f.loops) do f.loops[k] = list[loop].at end
  end
  return found
end

--- A variable that only loops use is declared in their heads.
function M.loops(tree, report)
  for path in tree:each({ c = true }, { "host/", "kernels/", "spec/" }) do
    for _, f in ipairs(M.find(tree:apart(path).bare)) do
      local line = select(2, tree:text(path):sub(1, f.at):gsub("\n", "")) + 1
      report(path, line, ("%s is used in loops alone: for (%s%s = ..."):format(f.name,
        f.kind:find "%*$" and f.kind or f.kind .. " ", f.name))
    end
  end
end

return M
