--- Values as text for a reader: nested tables on as few lines as they fit, cut where they are long
--- or deep. The prompt prints values this way; scripts call utils.show and utils.pformat.
---
--- A value is first read into nodes, which call nothing of the value's own but __tostring and
--- __pairs, both protected; then the nodes are laid out. A node is a leaf { text, kind } or a
--- branch { open, items = { { key, node }, … }, more }.
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local M = {}

local OPTIONS = {
  width = { "integer", min = 20, optional = true },
  depth = { "integer", min = 1, default = 6 },
  count = { "integer", min = 1, default = 40 },
  colours = { "boolean", optional = true },
}

local TOTAL = 600      -- entries of all tables together
local LONGEST = 4000   -- bytes of a string, at the top; within tables a tenth of it
local SORTED = 20000   -- a map with more keys is shown in the order of `next`

-- ---- strings

local ESCAPES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\", ['"'] = '\\"' }

local function escaped(byte) return ESCAPES[byte] or ("\\x%02x"):format(byte:byte()) end

-- Characters of UTF-8 stay; other bytes above 127 become \xNN.
local function high_bytes(run)
  local out, at = {}, 1
  while at <= #run do
    local character = run:match("^[\194-\223][\128-\191]", at)
      or run:match("^[\224-\239][\128-\191][\128-\191]", at)
      or run:match("^[\240-\244][\128-\191][\128-\191][\128-\191]", at)
    out[#out + 1] = character or escaped(run:sub(at, at))
    at = at + #(character or " ")
  end
  return table.concat(out)
end

--- A string in quotes, as Lua reads it; what lies beyond `longest` bytes is only counted.
---@param text string
---@param longest integer?
---@return string
function M.quoted(text, longest)
  local rest = #text - (longest or LONGEST)
  if rest > 0 then text = text:sub(1, longest or LONGEST) end
  local body = text:gsub('[%c\\"\127]', escaped):gsub("[\128-\255]+", high_bytes)
  return rest > 0 and ('"%s"... %d more bytes'):format(body, rest) or '"' .. body .. '"'
end

-- ---- reading

local function leaf(text, kind) return { text = text, kind = kind } end

-- The metatable's entry, also of metatables that hide.
local function meta_of(value, name)
  local meta = debug.getmetatable(value)
  if type(meta) == "table" then return rawget(meta, name) end
end

local function first_line(text) return (tostring(text):match("^[^\n]*")) end

-- tostring(value), or nil and the error.
local function own_text(value)
  local fine, text = pcall(tostring, value)
  if fine and type(text) == "string" then return text end
  if fine then return nil, "it returned a " .. type(text) end
  if type(text) == "string" and text:find("interrupted", 1, true) then error(text, 0) end
  return nil, type(text) == "string" and first_line(text) or "an error that is a " .. type(text)
end

local function is_tensor(value)
  local core = package.loaded["accelerate.core"]
  return core ~= nil and core.is_tensor(value)
end

local function tensor_leaf(x, top)
  local fine, text = pcall(function()
    if top or x:numel() <= 6 and x:dim() <= 1 then return tostring(x) end
    local facts = { ("tensor [%s] %s"):format(table.concat(x.shape, ", "), x.dtype) }
    if x.device ~= "cpu" then facts[#facts + 1] = x.device end
    if x.requires_grad then facts[#facts + 1] = x.is_leaf and "requires grad" or x.grad_fn end
    return table.concat(facts, ", ")
  end)
  return leaf(fine and text or own_text(x) or "<tensor>", "tensor") -- it may have been released
end

--- The place where a Lua function is defined, "train.lua:12"; nil for a C function.
---@param fn function
---@return string?
function M.place(fn)
  local info = debug.getinfo(fn, "S")
  if info.what == "C" then return nil end
  local source = info.short_src:match("/accelerate/(.*)$") or info.short_src
  return ("%s:%d"):format(source, info.linedefined)
end

--- The parameters of a Lua function, "x, y, ...".
---@param fn function
---@return string
function M.parameters(fn)
  local list, i = {}, 1
  while true do
    local name = debug.getlocal(fn, i)
    if not name then break end
    list[i], i = name, i + 1
  end
  if debug.getinfo(fn, "u").isvararg then list[#list + 1] = "..." end
  return table.concat(list, ", ")
end

local function function_leaf(fn)
  local plain = require("accelerate.messages.methods").plain(fn)
  local place = M.place(plain)
  if not place then return leaf("function in C", "function") end
  return leaf(("function(%s) at %s"):format(M.parameters(plain), place), "function")
end

-- The name under which a table was required.
local function module_name(reader, value)
  if not reader.modules then
    reader.modules = {}
    for name, module in next, package.loaded do
      if type(module) == "table" and (not reader.modules[module] or name < reader.modules[module]) then
        reader.modules[module] = name
      end
    end
  end
  return reader.modules[value]
end

local function filled(words, width)
  local lines, line = {}, " "
  for _, word in ipairs(words) do
    if #line + #word + 1 > width and line ~= " " then
      lines[#lines + 1], line = line, " "
    end
    line = line .. " " .. word
  end
  if line ~= " " then lines[#lines + 1] = line end
  return table.concat(lines, "\n")
end

--- The public names of a module, sorted, also of those that it loads later.
---@param module table
---@return string[]
function M.members(module)
  local meta = debug.getmetatable(module)
  local fine, members = pcall(function() return meta.__members end)
  if fine and type(members) == "table" then return members end
  local names = {}
  for name in next, module do
    if type(name) == "string" and name:sub(1, 1) ~= "_" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

local function module_leaf(reader, value, name, top)
  local names = M.members(value)
  local title = ("module %s, %d names"):format(name, #names)
  return leaf(top and #names > 0 and title .. "\n" .. filled(names, reader.width) or title, "module")
end

-- Whole numbers print whole as far as they are exact; Lua's own text has 14 digits.
local function number_text(value)
  local exact = value % 1 == 0 and math.abs(value) <= 2 ^ 53
  return exact and ("%.0f"):format(value) or tostring(value)
end

local KIND_ORDER = { number = 1, string = 2, boolean = 3 }

local function before(a, b)
  local p, q = type(a), type(b)
  if p ~= q then return (KIND_ORDER[p] or 4) < (KIND_ORDER[q] or 4) end
  if p == "number" or p == "string" then return a < b end
  if p == "boolean" then return not a and b end
  return false
end

-- The keys of a table beside 1..n.
local function other_keys(value, n)
  local meta = debug.getmetatable(value)
  if type(meta) == "table" and rawget(meta, "__order") then return ordered.keys(value) end
  local keys = {}
  for key in next, value do
    if not (type(key) == "number" and key >= 1 and key <= n and key % 1 == 0) then keys[#keys + 1] = key end
  end
  if #keys <= SORTED then table.sort(keys, before) end
  return keys
end

-- What a table with __pairs walks over, when it holds nothing itself: a table of the first
-- entries.
local function walked(value, count)
  local copy, keys = {}, {}
  pcall(function()
    for key, item in pairs(value) do
      if key == nil or #keys > count then break end
      keys[#keys + 1] = key
      rawset(copy, key, item)
    end
  end)
  return copy
end

local function key_node(key)
  if type(key) == "string" then
    if key:find("^[%a_][%w_]*$") then return leaf(key, "key") end
    return leaf(("[%s]"):format(M.quoted(key, 100)), "key")
  end
  if type(key) == "number" then return leaf(("[%s]"):format(number_text(key)), "key") end
  if type(key) == "boolean" then
    return leaf(("[%s]"):format(tostring(key)), "key")
  end
  return leaf(("[<%s>]"):format(type(key)), "key")
end

local node

local function items_of(reader, value, depth, hidden)
  -- the length of a table with a hole may be any border: {[0] = 1, [2] = 2} is no list
  local n, items, left = rawget(value, 1) ~= nil and rawlen(value) or 0, {}, 0
  local function add(key, item)
    if #items >= reader.count or reader.left <= 0 then
      left = left + 1
      return
    end
    reader.left = reader.left - 1
    items[#items + 1] = { key and key_node(key), node(reader, item, depth + 1) }
  end
  for i = 1, n do
    local item = rawget(value, i)
    if #items >= reader.count or reader.left <= 0 then
      left = left + n - i + 1
      break
    end
    add(nil, item)
  end
  for _, key in ipairs(other_keys(value, n)) do
    local private = hidden and type(key) == "string" and key:sub(1, 1) == "_"
    if not private then add(key, rawget(value, key)) end
  end
  return items, left
end

local function branch(reader, value, depth, head, hidden)
  if depth > reader.depth then return leaf(head .. "{ ... }", "mark") end
  reader.path[value] = depth
  local source = value
  if next(value) == nil and meta_of(value, "__pairs") then source = walked(value, reader.count) end
  local items, more = items_of(reader, source, depth, hidden)
  reader.path[value] = nil
  return { open = head .. "{", items = items, more = more }
end

-- An object that says itself what it is; a name alone is followed by its contents.
local function described(reader, value, depth)
  local text, problem = own_text(value)
  if not text then
    local head = ("<could not be printed by its __tostring: %s> "):format(problem)
    return branch(reader, value, depth, head, false)
  end
  local is_class = class.itself(value) or text:find("^class ")
  if is_class or not text:find("^[%w_.]+$") or next(value) == nil then
    return leaf((text:gsub("\n+$", "")), "object")
  end
  return branch(reader, value, depth, text .. " ", true)
end

local function table_node(reader, value, depth)
  local from = reader.path[value]
  if from then
    local up = depth - from
    return leaf(("<circle: %s>"):format(up == 1 and "the table that holds this"
      or ("%d tables up"):format(up)), "mark")
  end
  local name = module_name(reader, value)
  if name then return module_leaf(reader, value, name, depth == 1) end
  if meta_of(value, "__tostring") then return described(reader, value, depth) end
  local Class = class.of(value)
  local order = meta_of(value, "__order")
  return branch(reader, value, depth, Class and not order and Class.__name .. " " or "", Class ~= nil)
end

function node(reader, value, depth)
  local kind = type(value)
  if kind == "table" then return table_node(reader, value, depth) end
  if kind == "string" then
    return leaf(M.quoted(value, depth == 1 and LONGEST or LONGEST / 10), "string")
  end
  if kind == "number" then return leaf(number_text(value), "number") end
  if kind == "nil" or kind == "boolean" then return leaf(tostring(value), "word") end
  if kind == "function" then return function_leaf(value) end
  if kind == "thread" then return leaf(("coroutine (%s)"):format(coroutine.status(value)), "function") end
  if is_tensor(value) then return tensor_leaf(value, depth == 1) end
  local text, problem = own_text(value)
  return leaf(text or ("<%s that could not be printed: %s>"):format(kind, problem), text and "object"
    or "mark")
end

-- ---- laying out

local CODES = { string = "32", number = "36", word = "35", key = "0", ["function"] = "34", mark = "31",
  more = "2" }

local function painter(colours)
  return function(text, kind)
    local code = colours and CODES[kind]
    return code and code ~= "0" and ("\27[%sm%s\27[0m"):format(code, text) or text
  end
end

local function width_of(text) return require("accelerate.utils.terminal").width(text) end

-- The width of a node on one line, or nil where it takes several.
local function flat_width(at)
  if at.flat ~= nil then return at.flat or nil end
  local width
  if at.text then
    width = not at.text:find("\n", 1, true) and width_of(at.text) or false
  else
    width = #at.open + 2
    for _, item in ipairs(at.items) do
      local own = flat_width(item[2])
      if not own or item[2].items and #item[2].items > 8 then
        width = false
        break
      end
      width = width + own + (item[1] and width_of(item[1].text) + 3 or 0) + 2
    end
    if width and at.more > 0 then width = width + #(", ... more") + #tostring(at.more) end
  end
  at.flat = width
  return width or nil
end

local function more_text(n) return ("... %d more"):format(n) end

local function flat(at, paint)
  if at.text then return paint(at.text, at.kind) end
  local parts = {}
  for i, item in ipairs(at.items) do
    parts[i] = (item[1] and paint(item[1].text, "key") .. " = " or "") .. flat(item[2], paint)
  end
  if at.more > 0 then parts[#parts + 1] = paint(more_text(at.more), "more") end
  if #parts == 0 then return at.open .. "}" end
  return ("%s %s }"):format(at.open, table.concat(parts, ", "))
end

local function is_short(item)
  return not item[1] and item[2].text and (flat_width(item[2]) or 99) <= 24
end

-- Entries without keys that are short share lines.
local function runs(at)
  local list, run = {}, nil
  for _, item in ipairs(at.items) do
    if is_short(item) then
      if not run then
        run = {}
        list[#list + 1] = { run = run }
      end
      run[#run + 1] = item[2]
    else
      run = nil
      list[#list + 1] = { item = item }
    end
  end
  return list
end

local lay

local function lay_run(out, run, indent, width, paint)
  local line, used = {}, indent
  for _, at in ipairs(run) do
    local own = flat_width(at) + 2
    if used + own - 1 > width and #line > 0 then
      out[#out + 1] = (" "):rep(indent) .. table.concat(line, ", ") .. ","
      line, used = {}, indent
    end
    line[#line + 1], used = paint(at.text, at.kind), used + own
  end
  out[#out + 1] = (" "):rep(indent) .. table.concat(line, ", ") .. ","
end

-- `used`: columns before the node on its first line.
function lay(at, indent, used, width, paint)
  local own = flat_width(at)
  if own and used + own <= width then return flat(at, paint) end
  if at.text then
    if own then return paint(at.text, at.kind) end
    return (paint(at.text, at.kind):gsub("\n", "\n" .. (" "):rep(indent)))
  end
  local out, inner = { at.open }, indent + 2
  for _, entry in ipairs(runs(at)) do
    if entry.run then
      lay_run(out, entry.run, inner, width, paint)
    else
      local key, item = entry.item[1], entry.item[2]
      local head = (" "):rep(inner) .. (key and paint(key.text, "key") .. " = " or "")
      local before_item = inner + (key and width_of(key.text) + 3 or 0)
      out[#out + 1] = head .. lay(item, inner, before_item, width - 1, paint) .. ","
    end
  end
  if at.more > 0 then out[#out + 1] = (" "):rep(inner) .. paint(more_text(at.more), "more") end
  out[#out + 1] = (" "):rep(indent) .. "}"
  return table.concat(out, "\n")
end

--- Returns a value as readable text: strings in quotes, nested tables with sorted keys, tensors
--- within tables by shape and type. Circles are marked; what is too deep, too long or too much is
--- counted.
---@param value any
---@param opts? { width: integer?, depth: integer?, count: integer?, colours: boolean? } width:
---  columns, default those of the terminal; depth: tables within tables, default 6; count: entries
---  of one table, default 40; colours: default false
---@return string
function M.pformat(value, opts)
  local o = options.check("pformat", opts, OPTIONS)
  local terminal = require "accelerate.utils.terminal"
  local width = o.width or terminal.columns(terminal.STDOUT)
  local reader = { path = {}, left = TOTAL, depth = o.depth, count = o.count, width = width }
  return lay(node(reader, value, 1), 0, 0, width, painter(o.colours))
end

--- Prints a value as readable text: see pformat. Colours are used where the terminal has them.
---@param value any
---@param opts? { width: integer?, depth: integer?, count: integer?, colours: boolean? }
function M.show(value, opts)
  local o = options.check("show", opts, OPTIONS)
  if o.colours == nil then
    local terminal = require "accelerate.utils.terminal"
    o.colours = terminal.has_colours(terminal.STDOUT)
  end
  io.stdout:write(M.pformat(value, o), "\n")
end

return M
