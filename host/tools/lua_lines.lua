-- Lines of Lua no wider than they should be: code to 110 columns, comments to 100.
--
--   accel-run host/tools/lua_lines.lua FILE ...    rewrites the files; prints the names of those
--     that changed
--
-- A line that is too wide is broken at a comma, before `and` and `or`, or after `..`; a block on
-- one line is opened. A long string becomes two pieces.  Comments are filled, one paragraph at a
-- time; what goes on with an annotation is indented by two spaces.  Everything else stays as it is,
-- and the tokens of the file stay the same (checked).

local lua_tokens = require "host.tools.lua_tokens"

local CODE, COMMENT = 110, 100

-- What must not change: the tokens without comments, constant pieces of a string joined.
local function essence(text)
  local out = {}
  for _, t in ipairs(lua_tokens.of(text)) do
    if t.kind ~= "comment" then
      local piece = t.text
      local before = out[#out - 1]
      if t.kind == "string" and out[#out] == ".." and before and before:sub(1, 1) == piece:sub(1, 1)
        and before:find("^[\"']") then
        out[#out] = nil
        out[#out] = before:sub(1, -2) .. piece:sub(2)
      else
        out[#out + 1] = piece
      end
    end
  end
  return table.concat(out, "\0")
end

-- ---- code

local OPENS = { ["("] = true, ["{"] = true, ["["] = true }
local CLOSES = { [")"] = true, ["}"] = true, ["]"] = true }
-- Before a string: it is the argument of a call, or the line is not what it seems.
local ENDS = { name = true, string = true, [")"] = true, ["]"] = true }
local BLOCK = { ["then"] = true, ["do"] = true, ["function"] = true, ["repeat"] = true }

-- Marks each token with the brackets around it (depth), the one-line functions and blocks around it
-- (inside), and, for one that opens a block which ends on this line, the place of its `end`.
local function nest(list)
  local depth, blocks, ifs = 0, {}, {}
  for k, t in ipairs(list) do
    if CLOSES[t.kind] then depth = depth - 1 end
    if t.text == "end" or t.text == "until" then
      local open = table.remove(blocks)
      if open then list[open].closed = k end
    end
    t.depth, t.inside = depth, #blocks
    if OPENS[t.kind] then depth = depth + 1 end
    if t.kind == "name" then
      if t.text == "if" or t.text == "elseif" then ifs[#ifs + 1] = k end
      if BLOCK[t.text]
        and not (t.text == "then" and list[ifs[#ifs] or 0] and list[ifs[#ifs]].text == "elseif") then
        blocks[#blocks + 1] = k
      end
    end
  end
end

-- Where the head of the block that token `k` opens ends: itself, or a function's closing bracket.
local function head_end(list, k)
  if list[k].text ~= "function" then return k end
  local depth
  for j = k + 1, #list do
    if list[j].kind == "(" then depth = (depth or 0) + 1 end
    if list[j].kind == ")" then
      depth = depth - 1
      if depth == 0 then return j end
    end
  end
end

local KEYWORDS = {}
for word in (
  [[and break do else elseif for function goto if in local not or repeat return then until while]]):gmatch(
  "%a+") do
  KEYWORDS[word] = true
end
local INFIX = { ["and"] = true, ["or"] = true, ["in"] = true, ["then"] = true, ["do"] = true, ["end"] = true,
  ["else"] = true, ["elseif"] = true, ["until"] = true }

-- Whether a statement begins at token `k`: an expression ends before it, and it is no operator.
local function statement(list, k)
  local before, t = list[k - 1], list[k]
  if t.kind ~= "name" or INFIX[t.text] or before.kind == "." or before.kind == ":" then return false end
  return before.kind == "name" and not KEYWORDS[before.text] or before.kind == "number"
    or before.kind == "string"
    or before.kind == "long" or CLOSES[before.kind]
end

local wrap

-- A block that stands on one line, opened: its head, its body, its end.
local function opened(line, list, k, indent)
  local head, close = head_end(list, k), list[k].closed
  if not head or close <= head + 1 then return nil end
  local out = {}
  local function add(text, at)
    text = text:match("^%s*(.-)%s*$")
    local own, from = lua_tokens.of(text), 1
    nest(own)
    for n = 2, #own do
      if own[n].depth == 0 and own[n].inside == 0 and at ~= indent and statement(own, n) then
        for _, l in ipairs(wrap(at .. text:sub(from, own[n].first - 1):match("^(.-)%s*$"))) do
          out[#out + 1] = l
        end
        from = own[n].first
      end
    end
    for _, l in ipairs(wrap(at .. text:sub(from))) do out[#out + 1] = l end
  end
  -- the pieces of `if … then … elseif … else … end` each get lines of their own
  local from, first = list[head].last + 1, line:sub(1, list[head].last)
  add(first, indent)
  local level = list[k].inside + 1
  for j = head + 1, close - 1 do
    local word = list[j].text
    if list[j].inside == level and list[j].kind == "name" and (word == "else" or word == "elseif")
      and list[k].text == "then" then
      add(line:sub(from, list[j].first - 1), indent .. "  ")
      local stop = list[j].last
      if word == "elseif" then
        for n = j, close do
          if list[n].text == "then" and list[n].inside == level then
            stop = list[n].last
            break
          end
        end
      end
      add(line:sub(list[j].first, stop), indent)
      from = stop + 1
    end
  end
  add(line:sub(from, list[close].first - 1), indent .. "  ")
  add(line:sub(list[close].first), indent)
  return out
end

-- Cuts a string after a space where a part of it fits, and leaves a piece that is worth a line
-- (host/tools/lint/layout.lua).
local function cut_string(line, t, room)
  local quote = t.text:sub(1, 1)
  local cut
  for at = t.first + 8, math.min(t.last - 16, room - 5) do
    if line:sub(at, at) == " " and line:sub(at - 1, at - 1) ~= "\\"
      and not line:sub(at - 3, at):find("%%%s") then
      cut = at
    end
  end
  if cut then return line:sub(1, cut) .. quote .. " ..", quote .. line:sub(cut + 1) end
end

-- Breaks one line of code in two or more; a line that cannot be broken comes back as it is.
-- `continued`: it goes on with a statement; `item`: it begins with an item of a bracket, and so
-- does what is behind a comma.
function wrap(line, continued, item)
  if #line <= CODE then return { line } end
  local indent = line:match("^%s*")
  local list = lua_tokens.of(line)
  local last = list[#list]
  if last and last.kind == "comment" then
    local code = line:sub(1, last.first - 1):gsub("%s+$", "")
    local out = {}
    for _, l in ipairs(wrap(code, continued, item)) do out[#out + 1] = l end
    table.insert(out, 1, indent .. last.text)
    return out
  end
  nest(list)
  local first = list[1].text
  local deeper = continued and indent or indent .. "  "
  -- a statement whose block is on its line: open it
  for k, t in ipairs(list) do
    if t.closed and t.inside == 0 and t.depth == 0
      and (t.text ~= "function" or first == "function" or list[2].text == "function"
      or first == "return" or list[k - 1].text == "=") then
      local out = opened(line, list, k, indent)
      if out then return out end
    end
  end
  local best, cost, comma
  for k, t in ipairs(list) do
    local at = t.kind == "," and t.last or t.kind == ".." and t.last
    if (t.text == "and" or t.text == "or") and k > 1 then at = list[k - 1].last end
    if (t.kind == "{" or t.kind == "(") and k < #list and not CLOSES[list[k + 1].kind]
      and list[k + 1].text ~= "function" then
      at = t.last
    end
    if t.kind == "=" and k < #list then at = t.last end
    local opens = (t.text == "then" or t.text == "do" or t.text == "else") and t.kind == "name"
      and not t.closed and k < #list
    if opens then at = t.last end
    if at and at <= CODE and at > #indent + 12 and k < #list then
      local c = opens and 2 or 10 * t.depth + 25 * t.inside + (CODE - at) * 0.18
      if t.kind == "{" or t.kind == "(" then c = c + 22 end
      if t.kind == "=" then c = c + 30 end
      if t.kind == "," and (first == "for" or first == "local") and t.depth == 0 then c = c + 40 end
      if #line - at < 4 then c = c + 60 end
      if not cost or c < cost then best, cost, comma = at, c, t.kind == "," and t.depth == 0 end
    end
  end
  -- nothing outside of a function on this line: open the function
  if not best or cost > 45 then
    for k, t in ipairs(list) do
      if t.closed and t.text == "function" and t.first < CODE then
        local out = opened(line, list, k, indent)
        if out then return out end
      end
    end
  end
  local head, tail
  if best and best > #deeper + 20 then
    head, tail = line:sub(1, best), line:sub(best + 1)
    item = item and comma
    if item then deeper = indent end
  else
    for k, t in ipairs(list) do
      local before = list[k - 1]
      if t.kind == "string" and t.last > CODE and (not before or t.first < CODE - 24 and not ENDS[before.kind]
        or before.text == "return" or before.text == "or" or before.text == "and") then
        head, tail = cut_string(line, t, CODE)
        break
      end
    end
    if not head and best then head, tail = line:sub(1, best), line:sub(best + 1) end
  end
  if not head then return { line } end
  local out = { (head:gsub("%s+$", "")) }
  for _, l in ipairs(wrap(deeper .. tail:match("^%s*(.*)$"), true, item)) do out[#out + 1] = l end
  return out
end

-- ---- comments

local function fill(text, first, rest)
  local out, line, empty = {}, first .. text:match("^%s*"), true
  text = text:match("^%s*(.*)$")
  for gap, word in text:gmatch("(%s*)(%S+)") do
    if not empty and #line + #gap + #word > COMMENT then
      out[#out + 1] = line
      line, empty = rest, true
    end
    line = line .. (empty and "" or gap) .. word
    empty = false
  end
  out[#out + 1] = line
  return out
end

-- Whether a comment's text begins something of its own: an annotation, a list, a table, an example,
-- a heading, nothing.
local function begins(text)
  return text == "" or text:find("^@") or text:find("^%s") and true or text:find("^[%-|#=`*]")
    or text:find("^%d+%. ")
end

-- Comment lines from `lines[i]` on that are one paragraph; the filled lines and the place after it.
local function paragraph(lines, i)
  local indent, dashes, text = lines[i]:match("^(%s*)(%-%-%-?)(.*)$")
  local spaced = text:match("^ ") and " " or ""
  text = text:sub(#spaced + 1)
  local prefix = indent .. dashes .. spaced
  local title = text:match("^(.-[^%s%-]) *%-%-%-%-+$")
  if title and #lines[i] > COMMENT then
    return { (prefix .. title .. " " .. ("-"):rep(COMMENT)):sub(1, COMMENT) }, i + 1
  end
  local tag = dashes == "---" and text:find("^@")
  local all, stop, wide = text, i + 1, #lines[i] > COMMENT
  local own = begins(text) and not tag
  local hang = ""
  if own and text ~= "" then
    local gap = select(2, text:find("^%s*%S.-%S  +%f[%S]"))
    hang = (" "):rep(gap and gap < 40 and gap or #text:match("^[%s%-*]*") + (text:find("^%s") and 2 or 0))
  end
  while not own and lines[stop] do
    local to = lines[stop]:match("^%s*%-%-%-?(.*)$")
    if not to or lines[stop]:sub(1, #indent + #dashes) ~= indent .. dashes
      or lines[stop]:sub(#indent + #dashes + 1, #indent + #dashes + 1) == "-" then
      break
    end
    local rest = to:match("^ (.*)$") or to
    if tag then
      if not to:find("^%s%s+%S") then break end
      rest = to:match("^%s*(.*)$")
    elseif begins(rest) then break end
    wide = wide or #lines[stop] > COMMENT
    all = all:gsub("%s+$", "") .. (all:find("[.?!]%)?$") and lines[i]:find("[.?!]  %S") and "  " or " ") ..
      rest
    stop = stop + 1
  end
  if not wide then return nil, stop end
  return fill(all, prefix, tag and indent .. dashes .. "  " or prefix .. hang), stop
end

-- ---- a file

-- Which lines lie inside of a long string or long comment, and which begin with an item of a
-- bracket.
local function lines_of(text)
  local inside, items, before = {}, {}, nil
  local list = lua_tokens.of(text)
  lua_tokens.place(text, list)
  for _, t in ipairs(list) do
    local more = select(2, t.text:gsub("\n", ""))
    for k = t.line, t.line + more do inside[k] = inside[k] or more > 0 end
    if t.kind ~= "comment" then
      items[t.line] = items[t.line] or t.leads and lua_tokens.begins_item(t, before)
      before = t
    end
  end
  return inside, items
end

-- Whether the line goes on with a statement of the line before; `went`: that one did with the one
-- before it.
local function goes_on(before, line, went)
  local deeper = #line:match("^%s*") - #before:match("^%s*")
  if deeper < 0 or deeper == 0 and not went then return false end
  local word = line:match("^%s*(%a+)")
  if word == "and" or word == "or" then return true end
  before = before:gsub("%s*%-%-[^\"']*$", "")
  return before:find("[,=]%s*$") ~= nil and not before:find("^%s*[%w_%.%[%]\"]+ = .*,%s*$")
    or before:find("%.%.%s*$") ~= nil
    or before:find("%f[%w]and%s*$") ~= nil or before:find("%f[%w]or%s*$") ~= nil
    or before:find("%(%s*$") ~= nil
end

local function rewritten(text)
  local lines, out, i, went = {}, {}, 1, false
  for line in text:gmatch("([^\n]*)\n") do lines[#lines + 1] = line end
  local inside, items = lines_of(text)
  while i <= #lines do
    local line = lines[i]
    local new, stop = nil, i + 1
    if not inside[i] and line:find("^%s*%-%-") and not line:find("^%s*%-%-%[") then
      new, stop = paragraph(lines, i)
    elseif not inside[i] and #line > CODE then
      new = wrap(line, i > 1 and goes_on(lines[i - 1], line, went), items[i])
    end
    went = i > 1 and goes_on(lines[i - 1], line, went)
    for k = i, stop - 1 do
      if not new then out[#out + 1] = lines[k] end
    end
    for _, l in ipairs(new or {}) do out[#out + 1] = l end
    i = stop
  end
  return table.concat(out, "\n") .. "\n"
end

local status = 0
for _, name in ipairs(arg) do
  local file = assert(io.open(name))
  local text = file:read("*a")
  file:close()
  if text:sub(1, 1) ~= "#" then
    local new = rewritten(rewritten(text))
    if essence(new) ~= essence(text) then
      io.stderr:write(name, ": would change its meaning; left as it is\n")
      status = 1
    elseif new ~= text then
      file = assert(io.open(name, "w"))
      file:write(new)
      file:close()
      print(name)
    end
  end
end
os.exit(status)
