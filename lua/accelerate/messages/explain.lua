--- Errors in the words of the script: what a call of nil may have meant, what an error that is a
--- table holds, and stacks that begin where the script was. The host calls it when something has
--- gone wrong; it must not raise.
local class = require "accelerate.utils.class"
local hints = require "accelerate.messages.hints"
local methods = require "accelerate.messages.methods"
local options = require "accelerate.utils.options"
local source = require "accelerate.messages.source"

local M = {}

local LIBRARY = debug.getinfo(1, "S").source:match("^@(.*[/\\])messages[/\\]explain%.lua$") or "/accelerate/"

-- ---- names

local function add_names(list, seen, map)
  for name in next, map do
    if type(name) == "string" and name:sub(1, 1) ~= "_" and not seen[name] then
      seen[name] = true
      list[#list + 1] = name
    end
  end
end

--- Returns the public names of a table and, for an object, of its class: fields, methods, and what
--- a module has registered.
---@param value table
---@return string[]
function M.names_of(value)
  local list, seen = {}, {}
  add_names(list, seen, value)
  if type(rawget(value, "_values")) == "table" then add_names(list, seen, rawget(value, "_values")) end
  local Class = class.of(value) or class.itself(value)
  while type(Class) == "table" do
    add_names(list, seen, Class)
    Class = rawget(Class, "__base")
  end
  table.sort(list)
  return list
end

--- Returns what messages call an object of a class, or a class; nil for any other value.
---@param value any
---@return string?
function M.title(value)
  local Class = class.of(value)
  if Class then return Class.__name end
  if class.itself(value) then return "class " .. value.__name end
end

-- How other class libraries write what is a call here.
local MAKERS = { new = "object", create = "object", extend = "class", subclass = "class", inherit = "class",
  derive = "class" }

-- How an object of the class, or a class derived from it, is made.
local function making(Class, name)
  local Module, Dataset = package.loaded["accelerate.nn.module"], package.loaded["accelerate.data.dataset"]
  Dataset = Dataset and Dataset.Dataset
  if MAKERS[name] == "object" and Class ~= Module and Class ~= Dataset then
    return ("an object of the class is made by a call: %s(...)"):format(Class.__name)
  end
  local room = class.derives(Class, Module) and "nn" or class.derives(Class, Dataset) and "data"
  return room and ('a class of your own is made by %s.class("Name"), or %s.class("Name", Base)'):format(room,
    room)
end

--- Returns the message for `name`, which `value` lacks: with the nearest name, or, for an object of
--- a class, that it lacks it.
local function about(value, name)
  if type(value) ~= "table" then return nil end
  local instead = MAKERS[name] and class.itself(value) and making(value, name)
  if instead then return instead, true end
  local near, what = options.nearest(name, M.names_of(value)), M.title(value)
  if not near and not what then return nil end
  return ("%s has no '%s'%s"):format(what or "the table", name, near and ("; did you mean '%s'?"):format(near)
    or ""), near ~= nil
end

-- The tables in reach of the function at a level, temporaries and locals from the last one on, then
-- upvalues, then globals: one of them lacks the name.
local function tables_at(level)
  local list, i = {}, 1
  while true do
    local name, value = debug.getlocal(level + 1, i)
    if not name then break end
    if type(value) == "table" then table.insert(list, 1, value) end
    i = i + 1
  end
  local fn = debug.getinfo(level + 1, "f").func
  for k = 1, 60 do
    local name, value = debug.getupvalue(fn, k)
    if not name then break end
    if type(value) == "table" then list[#list + 1] = value end
  end
  for _, name in ipairs(M.names_of(_G)) do
    if type(_G[name]) == "table" and _G[name] ~= _G then list[#list + 1] = _G[name] end
  end
  return list
end

-- The level, as the function that calls this one counts, of the innermost Lua function that is not
-- this module's.
local function origin()
  for level = 2, 20 do
    local info = debug.getinfo(level, "S")
    if not info then return nil end
    if info.what ~= "C" and not info.source:find("messages/explain.lua", 1, true)
      and not info.source:find("utils/scope.lua", 1, true) and
      not info.source:find("/accelerate/core", 1, true) and info.source ~= "=pcall" then
      return level - 1
    end
  end
end

-- The value of a name where the function at a level stands.
local function visible(name, level)
  local found
  for i = 1, 200 do
    local at, value = debug.getlocal(level + 1, i)
    if not at then break end
    if at == name then found = value end -- the last of the name hides the others
  end
  if found ~= nil then return found end
  local fn = debug.getinfo(level + 1, "f").func
  for i = 1, 60 do
    local at, value = debug.getupvalue(fn, i)
    if not at then break end
    if at == name then return value end
  end
  return rawget(getfenv(fn), name)
end

-- What stands before the name, as the line was written: "a.b:name(", of a value that fits. Returns
-- the path and the value; nil where that is not known.
local function before(name, level, fits)
  local info = debug.getinfo(level + 1, "Sl")
  local line = source.line(info.source:sub(2), info.currentline) or ""
  for path in line:gmatch("([%a_][%w_%.]*)%s*[.:]%s*" .. name .. "%f[^%w_]") do
    local value, first = nil, true
    for part in path:gmatch("[%w_]+") do
      if first then
        value, first = visible(part, level + 1), false
      else
        local fine, next_value = pcall(function() return value[part] end)
        value = fine and next_value or nil
      end
    end
    local fine, held = pcall(function() return value[name] end)
    if value ~= nil and fits(value, fine and held or nil) then return path, value end
  end
end

-- The table that lacks the name, as the line was written.
local function written(name, level)
  return select(2, before(name, level + 1, function(value, held)
    return type(value) == "table" and held == nil
  end))
end

-- What to write for a field that was called as a method: a path is nil where the line does not say
-- it.
local function read_only(name, path)
  return ("'%s' is a field, which is read without a call: %s.%s"):format(name, path or "x", name)
end

-- Methods of Python's dictionaries, lists and texts.
local WALK = "a table is walked by pairs: for name, value in pairs(t) do ... end"
local PLAIN = { items = WALK, keys = WALK, values = WALK, get = "an entry of a table is t[name] or default",
  append = "a list grows by table.insert(list, x)", insert = "a list grows by table.insert(list, at, x)",
  pop = "an entry is taken out by table.remove(list, at)", extend = "a list grows in a loop by table.insert",
  update = "a table is filled in a loop: for name, value in pairs(other) do t[name] = value end",
  sort = "a list is sorted by table.sort(list)" }
local TEXT = { split = 'a text is taken apart by for word in s:gmatch "[^,]+" do ... end',
  strip = 'in Lua: s:match "^%s*(.-)%s*$"', join = "texts are joined by table.concat(list, separator)",
  replace = "in Lua: s:gsub(pattern, other)", startswith = "in Lua: s:sub(1, #start) == start",
  endswith = "in Lua: s:sub(-#ending) == ending" }

-- What Lua has for a method of a plain table, of a text, or, where it is not known of what, of
-- Python's.
local function of_python(name, known, value)
  if type(value) == "string" then return TEXT[name] end
  if not known or type(value) == "table" and not M.title(value) then return PLAIN[name] end
end

-- The fields of tensors that may be nil.
local EMPTY = { grad = true, grad_fn = true }

local function is_module(value)
  if type(value) ~= "table" then return false end
  for name, loaded in next, package.loaded do
    if loaded == value and name:find "^accelerate" then return true end
  end
  return false
end

local function lacking(kind, name, level)
  local path, value = before(name, level + 1, function(_, held) return held == nil end)
  local is_plain = type(value) == "table" and not M.title(value)
  local python = (kind == "method" or is_plain) and of_python(name, path ~= nil, value)
  if python then return python end
  local walk = type(value) == "table" and require("accelerate.messages.elsewhere").WALKS[name]
  if walk then return walk end
  if type(value) == "table" then return (about(value, name)) end
  if kind == "method" and EMPTY[name] and (path == nil or type(value) == "userdata") then
    return read_only(name, path)
  end
  if path then return nil end
  local first
  for _, candidate in ipairs(tables_at(level + 1)) do
    -- modules refuse by themselves a name that they do not have
    local refuses = is_module(candidate) and not class.itself(candidate)
    if rawget(candidate, name) == nil and not refuses then
      local text, near = about(candidate, name)
      if near then return text end
      if kind == "method" and M.title(candidate) then first = first or text end
    end
  end
  return first
end

-- What is called with a dot, where "nn" or "nn.init" is a module, or a table of functions in one,
-- at a level, or "nn.Embedding" a class whose member takes no object. false elsewhere.
local function names_module(path, member, level)
  local value
  for part in path:gmatch "[%w_]+" do
    local inner = value
    if inner == nil then value = visible(part, level + 1)
    else value = select(2, pcall(function() return inner[part] end)) end
    if type(value) ~= "table" or (inner == nil and not is_module(value) and not class.itself(value)) then
      return false
    end
  end
  if class.itself(value) then
    local fn = methods.plain(rawget(value, member))
    return type(fn) == "function" and not methods.takes_self(fn) and "this function of a class is"
  end
  return not class.of(value) and "the functions of a module are"
end

local function is_script(info)
  return info.what ~= "C" and info.source:sub(2, #LIBRARY + 1) ~= LIBRARY and info.source ~= "=pcall"
end

-- What to write for a function of a module, or of a class, that the script called with a colon: the
-- function's error is about the module, which it got in front of its arguments. nil where the
-- script wrote nothing of it.
local function with_colon(message)
  local called = message:match "^.-:%d+: ([%w_.]+): "
  called = called and called:match "[%w_]+$"
  if not called or message:find("called with a dot", 1, true) then return nil end
  for level = 2, 60 do
    local info = debug.getinfo(level, "Sl")
    if not info then return nil end
    if is_script(info) then
      local line = source.line(info.source:sub(2), info.currentline) or ""
      for name, member in line:gmatch "%f[%w_]([%a_][%w_%.]*):([%a_][%w_]*)%s*[%({\"']" do
        local what = member == called and names_module(name, member, level)
        if what then return ("%s called with a dot: %s.%s(...)"):format(what, name, member) end
      end
      return nil
    end
  end
end

-- A class of layers that was called with the tensors of its objects: what to write.
local function with_tensors(message)
  local called = message:match "^.-:%d+: (%u%w*): .* got an? %w+ tensor of shape %[[%d, ]*%]$"
    or message:match "^.-:%d+: (%u%w*): an argument too many: an? %w+ tensor of shape "
  local nn = called and package.loaded["accelerate.nn"]
  local Class = nn and rawget(nn, called)
  if not Class or not class.derives(Class, package.loaded["accelerate.nn.module"]) then return nil end
  return ("%s(...) makes an object, which is called with tensors: nn.%s(...)(x)"):format(called, called)
end

-- What "a.b" is at a level; nil where that is not known.
local function value_of(path, level)
  local value, first = nil, true
  for part in path:gmatch "[%w_]+" do
    if first then
      value, first = visible(part, level + 1), false
    else
      local fine, held = pcall(function() return value[part] end)
      value = fine and held or nil
    end
  end
  return value
end

-- A module of an object that the script called with a colon, "self:fc(x)": it got the object in
-- front of its arguments. nil where no line under way has such a call.
local function module_with_colon(message)
  local Module = package.loaded["accelerate.nn.module"]
  if not Module or message:find("called with a dot", 1, true) then return nil end
  for level = 2, 60 do
    local info = debug.getinfo(level, "Sl")
    if not info then return nil end
    local line = is_script(info) and source.line(info.source:sub(2), info.currentline) or ""
    for path, member in line:gmatch "%f[%w_]([%a_][%w_%.]*):([%a_][%w_]*)%s*[%({\"']" do
      local owner = value_of(path, level)
      local fine, held = pcall(function() return owner[member] end)
      if fine and Module._is_module(held) then
        return ("'%s' is a module, which is called with a dot: %s.%s(...)"):format(member, path, member)
      end
    end
  end
end

-- A field that was called as a method, or a method that was used as a field.
local function confused(message)
  local act, kind, name, held_type =
    message:match "attempt to ([%l ]+) (%l+) '([%w_]+)' %(a (%l+) value%)$"
  local method = kind == "field" and held_type == "function" and act ~= "call"
  if not method and (act ~= "call" or held_type == "nil" or kind ~= "method" and kind ~= "field") then
    return nil
  end
  local level = origin()
  if not level then return nil end
  local path, value = before(name, level, function(_, held) return type(held) == held_type end)
  if kind == "field" and not method and type(value) ~= "userdata" then return nil end -- no tensor's
  if not method then return read_only(name, path) end
  local mark = type(value) == "table" and class.of(value) == nil and "." or ":"
  return ("'%s' is a function, which is called: %s%s%s(...)"):format(name, path or "x", mark, name)
end

-- What to write for a method of an object's class that the script wrote with a dot, "function
-- Net.forward(x)": its x is the object.
local function with_self(value, method, fn, of)
  local name = debug.getlocal(methods.plain(fn), 1)
  if name == nil or name == "self" or name == "_" or (of and of ~= name) then return nil end
  return ("'%s' is the %s itself: a method is written with a colon, function %s:%s(...)"):format(name,
    M.title(value), M.title(value), method)
end

-- The same for an error about an object where something else was expected, or about a table. A
-- forward that ends in a call is no longer under way; its object still is, in the module's call.
local function written_with_dot(message)
  local got = message:match " got an? (%u%w*)%f[^%w_]"
  local of = message:match "'([%w_]+)' %(a table value%)$"
  if not got and not of then return nil end
  for level = 2, 60 do
    local info = debug.getinfo(level, "Sf")
    if not info then return nil end
    local _, value = debug.getlocal(level, 1)
    local Class = class.of(value)
    if Class and got == Class.__name and type(Class.forward) == "function" then
      local hint = with_self(value, "forward", Class.forward)
      if hint then return hint end
    end
    for method, fn in next, Class and is_script(info) and Class or {} do
      local same = type(method) == "string" and type(fn) == "function" and methods.plain(fn) == info.func
      local hint = same and with_self(value, method, fn, of)
      if hint then return hint end
    end
  end
end

-- A list that a script took for its first entry: "local rows, columns = x.shape".
local function of_list(message)
  local act, kind, name = message:match "attempt to ([%l ]+) (%l+) '([%w_]+)' %(a table value%)$"
  local level = act == "perform arithmetic on" and (kind == "local" or kind == "upvalue") and origin()
  local value = level and visible(name, level)
  if type(value) ~= "table" or getmetatable(value) ~= nil or type(value[1]) ~= "number" then return nil end
  return ("'%s' is a list of %d; its entries are %s[1], ... or local a, b = unpack(%s)"):format(name, #value,
    name, name)
end

--- A message with what may have been meant, where it is of Lua's own about a nil value, where a
--- field was called, or a method not, where a method was written with a dot, a list was taken for a
--- number, where a module's function was called with a colon, or a class with tensors. It must be
--- called where the error was raised: in the message handler.
---@param message string
---@return string
function M.raised(message)
  local act, kind, name = message:match("attempt to ([%l ]+) (%l+) '([%w_]+)' %(a nil value%)$")
  if not kind then
    local hint = with_colon(message) or module_with_colon(message) or with_tensors(message)
      or confused(message) or written_with_dot(message) or of_list(message)
    return hint and message .. "; " .. hint or message
  end
  local level = kind and origin()
  if not level then return message end
  local hint
  if act ~= "call" then
    local missing_from = kind == "field" and written(name, level)
    hint = missing_from and about(missing_from, name)
  elseif kind == "global" then
    local fine, own = pcall(function() return visible("self", level + 2)[name] ~= nil end)
    if fine and own then return ("%s; did you mean self.%s?"):format(message, name) end
    if hints.knows(name) then return message end -- the report says what Lua has instead
    local near = options.nearest(name, M.names_of(_G))
    hint = near and ("did you mean '%s'?"):format(near)
  elseif kind == "field" or kind == "method" then
    hint = lacking(kind, name, level)
  end
  return hint and message .. "; " .. hint or message
end

-- ---- errors that are no text

local MOST, DEEPEST = 16, 3

local function content(value, depth)
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) ~= "table" then return tostring(value) end
  local meta = getmetatable(value)
  if type(meta) == "table" and rawget(meta, "__tostring") then return tostring(value) end
  if depth > DEEPEST then return "{...}" end
  local parts, names, n = {}, {}, #value
  for i = 1, math.min(n, MOST) do parts[i] = content(value[i], depth + 1) end
  for key in next, value do
    if not (type(key) == "number" and key % 1 == 0 and key >= 1 and key <= n) then names[#names + 1] = key end
  end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(names) do
    if #parts >= MOST then break end
    local shown = type(key) == "string" and key:match("^[%a_][%w_]*$")
      or ("[%s]"):format(content(key, depth + 1))
    parts[#parts + 1] = ("%s = %s"):format(shown, content(value[key], depth + 1))
  end
  if n + #names > #parts then parts[#parts + 1] = "..." end
  return #parts == 0 and "{}" or "{ " .. table.concat(parts, ", ") .. " }"
end

--- An error that is no text, as text.
---@param value any
---@return string
function M.value(value)
  local text = ("(error object is a %s value)"):format(type(value))
  if type(value) == "table" and next(value) == nil then return text end
  return text .. " " .. content(value, 1)
end

-- ---- stacks

local function in_library(place)
  return place:sub(1, #LIBRARY) == LIBRARY or place:find("^%.%.%..*/accelerate/") or place:sub(1, 3) == "[C]"
    or place:sub(1, 9) == "[builtin#" or
    place:find("^tensor:%d")
end

--- Adds a chunk that was compiled inside a function, "=[3]" or "@train.lua": what to call that
--- function, and for the first kind its lines.
---@param name string the chunk's name
---@param text string
M.chunk = source.keep

-- The outermost function of a chunk's line 1 is the chunk itself.
local function name_chunk(frames)
  for i = #frames, 1, -1 do
    local head, path = frames[i]:match("^(.-: in )function <(.*):1>$")
    if head and source.is_chunk(path) then
      frames[i] = head .. "main chunk"
      return
    end
  end
end

-- The line that a frame names, without the spaces around it. nil where it is empty.
local function source_line(place)
  local path, number = place:match("^(.-):(%d+): in ")
  local line = path and source.line(path, tonumber(number))
  line = line and line:match("^%s*(.-)%s*$")
  if not line or line == "" then return nil end
  return #line > 160 and line:sub(1, 157) .. "..." or line
end

-- "nn/module.lua:518"
local function inner_place(place)
  local path, line = place:match("^(.-):(%d+): in ")
  if not path then return nil end
  return path:match("/accelerate/(.*)$") and path:match("/accelerate/(.*)$") .. ":" .. line
end

--- The frames of a stack, those of this library folded: the script's come first. Then the source
--- line of the script's innermost one.
local function folded(frames)
  local out, run, first_run, place = {}, 0, nil, nil
  local function close()
    if run == 0 then return end
    local text = ("\t... %d frame%s of accel%s"):format(run, run == 1 and "" or "s", place
      and (", innermost at %s"):format(place) or "")
    if #out == 0 then first_run = text else out[#out + 1] = text end
    run, place = 0, nil
  end
  local users, quoted = 0, nil
  for _, frame in ipairs(frames) do
    if in_library(frame) then
      run = run + 1
      if not frame:find("/accelerate/prompt/", 1, true) then place = place or inner_place(frame) end
    else
      close()
      users = users + 1
      out[#out + 1] = "\t" .. frame
      if users == 1 then
        local line = source_line(frame)
        local at = frame:match("^(.-:%d+): in ")
        quoted = line and ("\t%s is: %s"):format(at, line)
        local path, number = (at or ""):match "^(.*):(%d+)$"
        local hint = path and hints.of_parenthesis(path, tonumber(number))
        if hint then quoted = ("%s\n\t%s"):format(quoted, hint) end
      end
    end
  end
  if users == 0 then return nil end
  if run > 0 and place then close() end  -- C functions of Lua's own below the script tell nothing
  if first_run and first_run:find("innermost", 1, true) then
    out[#out + 1] = first_run:gsub("frames? of accel", "%0 above the first line")
  end
  return out, quoted
end

--- A message with its stack as the user is to see it: hints where Lua's words do not say what to
--- write, and the script's frames first. ACCELERATE_DEBUG_MODE keeps all frames.
---@param text string
---@return string
function M.report(text)
  local message, stack = text:match("^(.-)\nstack traceback:(.*)$")
  if not message then return hints.add(text, true) end
  message = hints.add(message)
  local debugging = os.getenv("ACCELERATE_DEBUG_MODE")
  local frames, rest = {}, {}
  for line in (stack .. "\n"):gmatch("\n?([^\n]*)\n") do
    local frame = line:match("^\t(.*)$")
    if frame and #rest == 0 then frames[#frames + 1] = frame elseif line ~= "" then rest[#rest + 1] = line end
  end
  local shown, quoted
  name_chunk(frames)
  if not (debugging and debugging ~= "" and debugging ~= "0" and debugging:lower() ~= "false") then
    shown, quoted = folded(frames)
  end
  if not shown then return message .. "\nstack traceback:" .. stack end
  local out = { message, "stack traceback:", unpack(shown) }
  if quoted then out[#out + 1] = quoted end
  for _, line in ipairs(rest) do out[#out + 1] = line end
  return table.concat(out, "\n")
end

return M
