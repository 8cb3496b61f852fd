-- What clang-format cannot do: comments in C filled to 100 columns, and long strings joined again
-- before it breaks them.
--
--   accel-run host/tools/comments.lua FILE ...     rewrites the files; prints the names of those
--     that changed
--
-- A comment on lines of its own is filled anew, one paragraph at a time, where a line of that
-- paragraph is too wide. Rows of a list or a table (deeper text, or a gap of two spaces) keep their
-- column.  A comment behind code moves to lines of its own above that code where the line is too
-- wide.  Regions of `clang-format off` stay as they are.

local CODE, COMMENT = 110, 100

-- ---- lines and what is on them

local function split(text)
  local list = {}
  for line in text:gmatch("([^\n]*)\n") do list[#list + 1] = line end
  return list
end

-- Skips a string or character that begins at `i`; returns the position after it.
local function after_quote(line, i)
  local quote = line:sub(i, i)
  i = i + 1
  while i <= #line and line:sub(i, i) ~= quote do i = i + (line:sub(i, i) == "\\" and 2 or 1) end
  return i + 1
end

-- Where the last block comment of a line of code begins (nil: none) and whether it ends there.
local function comment_of(line)
  local i = 1
  while i <= #line do
    local c = line:sub(i, i + 1)
    if c == "//" then return nil
    elseif c == "/*" then
      local _, e = line:find("*/", i + 2, true)
      if not e then return i, false end
      if line:find("^%s*\\?$", e + 1) then return i, true end
      i = e + 1
    elseif c:sub(1, 1) == '"' or c:sub(1, 1) == "'" then i = after_quote(line, i)
    else i = i + 1 end
  end
end

-- ---- filling

-- The words of `text`, each with the spaces that stand before it.
local function words(text)
  local list = {}
  for gap, word in text:gmatch("(%s*)(%S+)") do
    list[#list + 1] = { gap = #list == 0 and "" or gap, word = word }
  end
  return list
end

local function fill(list, width, first, rest)
  local out, line = {}, first
  local empty = true
  for _, w in ipairs(list) do
    if not empty and #line + #w.gap + #w.word > width then
      out[#out + 1] = line
      line, empty = rest, true
    end
    line = line .. (empty and "" or w.gap) .. w.word
    empty = false
  end
  out[#out + 1] = line
  return out
end

-- Where the text of a table's row begins: after the first gap of two spaces that ends no sentence;
-- else after its indent.
local function hanging(text)
  local indent = #text:match("^%s*")
  local at = indent + 1
  while true do
    local s, e = text:find("%S  +%S", at)
    if not s then return indent, false end
    if not text:sub(s, s):find("[.?!:;,)]") then return e < 46 and e - 1 or indent + 2, true end
    at = e
  end
end

-- Lines of a comment's text -> units: a blank line, a row of a table, or a paragraph (lines
-- joined).
local function units(lines)
  local list, last = {}, nil
  for _, text in ipairs(lines) do
    local indent = #text:match("^%s*")
    local hang, row = hanging(text)
    if text:find("^%s*$") then
      list[#list + 1] = { blank = true, lines = { "" } }
      last = nil
    elseif last and not row and not last.heading
      and (indent == last.hang or (indent == last.indent and not last.row)) then
      last.lines[#last.lines + 1] = text
    else
      last = { indent = indent, hang = hang, row = row, heading = text:find("^%-%-%-%-"), lines = { text } }
      list[#list + 1] = last
    end
  end
  return list
end

local function joined(unit)
  local all = {}
  for k, text in ipairs(unit.lines) do
    for j, w in ipairs(words(text)) do
      if k > 1 and j == 1 then w.gap = unit.lines[k - 1]:find("[.?!]%)?%s*$") and "  " or " " end
      all[#all + 1] = w
    end
  end
  return all
end

-- Fills those units that are too wide for `width`; returns the lines.
local function filled(lines, width)
  local out = {}
  for _, unit in ipairs(units(lines)) do
    local wide = false
    for _, text in ipairs(unit.lines) do wide = wide or #text > width end
    local title = wide and #unit.lines == 1 and unit.lines[1]:match("^(.-[^%s-]) *%-%-%-%-+$")
    if title then -- a line of dashes to the edge
      unit.lines[1] = #title + 5 > width and title or (title .. " " .. ("-"):rep(width)):sub(1, width)
      wide = #unit.lines[1] > width
    end
    if wide then
      unit.lines = fill(joined(unit), width, (" "):rep(unit.indent), (" "):rep(unit.hang))
    end
    for _, text in ipairs(unit.lines) do out[#out + 1] = text end
  end
  return out
end

-- `lines` of text as a comment at `indent`; `tail` ends each line (" \" in a macro).
local function as_comment(lines, indent, tail)
  local room = COMMENT - #indent - 3 - #tail
  local out = filled(lines, room)
  if #out == 1 and #out[1] > room - 3 then out = filled(lines, room - 3) end
  while #out > 1 and #out[#out] > room - 3 do -- the end of the comment needs room, too
    room = room - 1
    out = filled(lines, room)
    if room < 40 then break end
  end
  for k, text in ipairs(out) do
    out[k] = indent .. (k == 1 and "/* " or text == "" and " *" or " * ") .. text
  end
  out[#out] = out[#out] .. " */"
  for k, text in ipairs(out) do out[k] = text .. tail end
  return out
end

-- The text in the lines of a comment whose first begins at column `at`; nil for one that is no
-- prose (code in it, odd stars).
local function text_of(lines, at, tail)
  local out = {}
  for k, line in ipairs(lines) do
    line = line:sub(1, #line - #tail)
    local text = k == 1 and line:sub(at):match("^/%*+%s?(.*)$") or line:match("^%s*%*%s?(.*)$")
    if k > 1 and line:find("^%s*%*/%s*$") then text = "" end
    if k > 1 and not line:find("^%s*%*") then text = line:match("^%s*(.*)$") end
    if not text then return nil end
    if k == #lines then text = text:gsub("%s*%*/%s*$", "") end
    out[k] = (text:gsub("%s+$", ""))
  end
  while #out > 1 and out[#out] == "" do out[#out] = nil end
  return out
end

-- ---- the passes

-- Strings that stood in several pieces become one, which clang-format breaks where it is too wide.
-- A break behind a line or a part of a sentence is one by hand and stays.
local function join_strings(lines)
  local out, off = {}, false
  for _, line in ipairs(lines) do
    if line:find("clang-format o[nf]") then off = line:find("clang-format off", 1, true) ~= nil end
    local last, piece = out[#out], line:match('^%s*"(.*)$')
    if piece and last and not off and last:find('[^\\"]"$') and not last:find('\\n"$')
      and not last:find('[,;:.)] "$') and not last:find("^%s*[#*]")
      and not last:find('^%s*extern "') then
      out[#out] = last:sub(1, -2) .. piece
    else
      out[#out + 1] = line
    end
  end
  return out
end

local function parens(line)
  local n, i = 0, 1
  while i <= #line do
    local c = line:sub(i, i)
    if c == '"' or c == "'" then i = after_quote(line, i)
    elseif line:sub(i, i + 1) == "/*" then
      local _, e = line:find("*/", i + 2, true)
      i = (e or #line) + 1
    else
      n = n + (c == "(" and 1 or c == ")" and -1 or 0)
      i = i + 1
    end
  end
  return n
end

-- The line (an index of `out`) above which a comment on line `code`, to be appended, belongs: where
-- its statement begins.
local function beginning(out, code)
  local depth, at = parens(code), #out + 1
  if depth >= 0 then return at end
  for k = #out, math.max(1, #out - 12), -1 do
    depth = depth + parens(out[k])
    if depth >= 0 then return k end
  end
  return at
end

local function fill_comments(lines, widest)
  local out, i, off = {}, 1, false
  while i <= #lines do
    local line = lines[i]
    if line:find("clang-format off", 1, true) then off = true end
    if line:find("clang-format on", 1, true) then off = false end
    local at, whole = comment_of(line)
    if off or not at then
      out[#out + 1] = line
      i = i + 1
    else
      local last = i
      if not whole then
        last = i + 1
        while lines[last] and not lines[last]:find("*/", 1, true) do last = last + 1 end
      end
      local part, wide = {}, false
      for k = i, math.min(last, #lines) do
        part[#part + 1] = lines[k]
        wide = wide or #lines[k] > widest
      end
      local tail = line:match("%s*\\$") or ""
      local ends = part[#part]:find("%*/%s*\\?$")
      local alone = line:sub(1, at - 1):find("^%s*$")
      for _, text in ipairs(part) do wide = wide or alone and #text > COMMENT end
      local text = wide and ends and text_of(part, at, tail)
      if not text then
        for _, l in ipairs(part) do out[#out + 1] = l end
      elseif alone then
        for _, l in ipairs(as_comment(text, line:sub(1, at - 1), tail)) do out[#out + 1] = l end
      else
        local code = line:sub(1, at - 1):gsub("%s+$", "")
        local indent = code:match("^%s*")
        local below = code:find("^%s*}.*{$")
        local macro = line:find("^%s*#") and tail ~= ""
        if below or macro then
          out[#out + 1] = code .. tail
          for _, l in ipairs(as_comment(text, indent .. "  ", tail)) do out[#out + 1] = l end
        else
          local to = beginning(out, code)
          if to <= #out then indent = out[to]:match("^%s*") end
          for k, l in ipairs(as_comment(text, indent, tail)) do table.insert(out, to + k - 1, l) end
          out[#out + 1] = code .. tail
        end
      end
      i = last + 1
    end
  end
  return out
end

-- The rows of a table (.def) are laid out by hand: only comments on lines of their own are filled.
local function rewritten(text, table_of_rows)
  if text:sub(-1) ~= "\n" then text = text .. "\n" end
  local lines = split(text)
  if not table_of_rows then lines = join_strings(lines) end
  return table.concat(fill_comments(lines, table_of_rows and math.huge or CODE), "\n") .. "\n"
end

for _, name in ipairs(arg) do
  local file = assert(io.open(name))
  local text = file:read("*a")
  file:close()
  local new = rewritten(text, name:find("%.def$"))
  if new ~= text then
    file = assert(io.open(name, "w"))
    file:write(new)
    file:close()
    print(name)
  end
end
