-- Reads LuaLS annotations: the blocks of `---` lines above a definition.
--
-- A function's block is found through its line in the source, which LuaJIT keeps; where a function
-- was made by another (`M.Tanh = simple("Tanh", …)`), through the line that gives it its name.

local methods = require "accelerate.messages.methods"

local M = {}

local cache = {}

--- The lines of a source file.
function M.lines(path)
  if not cache[path] then
    local list = {}
    for line in io.lines(path) do list[#list + 1] = line end
    cache[path] = list
  end
  return cache[path]
end

--- Splits "integer|integer[] how many" into the type and the text.  A type has no space outside
--- brackets but after `|`, `:` and `,`.
local function split_type(text)
  local depth, i = 0, 1
  while i <= #text do
    local c = text:sub(i, i)
    if c:find("[%(%{%[<]") then depth = depth + 1
    elseif c:find("[%)%}%]>]") then depth = depth - 1
    elseif c == '"' then i = text:find('"', i + 1, true) or #text
    elseif c == " " and depth == 0 then
      local before, after = text:sub(i - 1, i - 1), text:match("^%s*(.)", i)
      if not before:find("[|:,]") and after ~= "|" then break end
    end
    i = i + 1
  end
  return text:sub(1, i - 1), (text:sub(i):gsub("^%s+", ""))
end

-- The pieces of a text between commas outside brackets.
local function pieces_of(text)
  local list, depth, first = {}, 0, 1
  for at, c in text:gmatch("()([,%(%)%[%]{}<>])") do
    if c == "," and depth == 0 then
      list[#list + 1] = text:sub(first, at - 1)
      first = at + 1
    elseif c ~= "," then
      depth = depth + (c:find("[%(%[{<]") and 1 or -1)
    end
  end
  if text:find("%S") then list[#list + 1] = text:sub(first) end
  return list
end

--- Reads a type of functions: "fun(a: T, b?: { c: U }): V". Other types have neither.
---@param text string
---@return { name: string, type: string, text: string, optional: boolean }[] params
---@return { type: string, text: string }[] returns
function M.signature(text)
  local params, returns = {}, {}
  local arguments, results = text:match("^fun(%b())%s*:?%s*(.*)$")
  for _, piece in ipairs(pieces_of((arguments or "()"):sub(2, -2))) do
    local name, kind = piece:match("^%s*([%w_.]+%??)%s*:?%s*(.-)%s*$")
    params[#params + 1] = { name = name:gsub("%?$", ""), type = kind, text = "",
      optional = name:sub(-1) == "?" or kind:sub(-1) == "?" and not kind:find("^fun%(") }
  end
  for _, piece in ipairs(pieces_of(results or "")) do
    returns[#returns + 1] = { type = piece:match("^%s*(.-)%s*$"), text = "" }
  end
  return params, returns
end

---@class annotations.Block
---@field text string[] the description, line by line
---@field params { name: string, type: string, text: string, optional: boolean }[]
---@field returns { type: string, text: string }[]
---@field fields { name: string, type: string, text: string }[]
---@field class string?

-- The lines of a block, each tag with the lines that go on with it, which are indented further.
local function joined(lines)
  local list, tagged = {}, false
  for _, line in ipairs(lines) do
    if tagged and line:find("^%s%s+%S") then
      list[#list] = list[#list] .. " " .. line:match("^%s*(.-)%s*$")
    else
      list[#list + 1] = line
      tagged = line:find("^@%w")
    end
  end
  return list
end

--- Reads a block from its lines, without their `---`.
local function parse(lines)
  local block = { text = {}, params = {}, returns = {}, fields = {} }
  for _, line in ipairs(joined(lines)) do
    local tag, rest = line:match("^@(%w+)%s*(.*)$")
    if tag == "param" or tag == "field" then
      local name, after = rest:match("^(%S+)%s+(.*)$")
      local type, text = split_type(after or "")
      local optional = name ~= nil and name:sub(-1) == "?" or type:sub(-1) == "?"
        or type:find("|nil", 1, true) ~= nil
      table.insert(tag == "param" and block.params or block.fields,
        { name = (name or rest):gsub("%?$", ""), type = type, text = text, optional = optional })
    elseif tag == "return" then
      local type, text = split_type(rest)
      table.insert(block.returns, { type = type, text = text })
    elseif tag == "type" and #block.params == 0 then
      block.params, block.returns = M.signature(rest)
    elseif tag == "class" then
      block.class = rest:match("^[^%s:]+")
    elseif not tag then
      table.insert(block.text, (line:gsub("^ ", "")))
    end
  end
  return block
end

--- The block that ends right above line `n`, or nil.
function M.above(path, n)
  local lines, first = M.lines(path), n
  while first > 1 and lines[first - 1]:find("^%s*%-%-%-") do first = first - 1 end
  if first == n then return nil end
  local own = {}
  for i = first, n - 1 do own[#own + 1] = lines[i]:match("^%s*%-%-%-(.*)$") end
  return parse(own)
end

--- The block at the top of a file: what the module is.
function M.header(path)
  local lines, n = M.lines(path), 1
  while lines[n] and lines[n]:find("^%-%-%-") do n = n + 1 end
  return M.above(path, n)
end

-- How a line of source can define `name`; the argument list, if it is there, is the capture.
local function defines(line, name)
  local escaped = name:gsub("%p", "%%%0")
  return line:match("^%s*function%s+[%w_.]*[.:]" .. escaped .. "%s*(%b())")
    or line:match("^%s*local%s+function%s+" .. escaped .. "%s*(%b())")
    or line:match("^%s*[%w_.]+%." .. escaped .. "%s*=%s*function%s*(%b())")
    or line:match("^%s*" .. escaped .. "%s*=%s*function%s*(%b())")
    or line:match("^%s*[%w_.]+%." .. escaped .. "%s*=()")
    or line:match("^%s*local%s+" .. escaped .. "%s*=()")
    or line:match("^%s*" .. escaped .. "%s*=()")
    or line:match('^%s*[%w_.]+%("' .. escaped .. '"()')  -- activation("GELU", …)
end

local below = {}

-- The numbers of a file's lines that have a block right above.
local function lines_below_blocks(path)
  if below[path] then return below[path] end
  local lines, list = M.lines(path), {}
  for n = 2, #lines do
    if lines[n - 1]:find("^%s*%-%-%-") and not lines[n]:find("^%s*%-%-%-") then list[#list + 1] = n end
  end
  below[path] = list
  return list
end

local function find(paths, name, accept)
  for _, path in ipairs(paths) do
    for _, n in ipairs(lines_below_blocks(path)) do
      local arguments = defines(M.lines(path)[n], name)
      local block = arguments and M.above(path, n)
      if block and (not accept or accept(block)) then
        return block, type(arguments) == "string" and arguments:sub(2, -2) or nil, path, n
      end
    end
  end
end

--- Where `name` is defined with a block above, in the first of `paths` that has it: the block, the
--- arguments as written when they are, the file and the line.  `ConstantPad2d` may be defined as
--- `ConstantPad`, once for all numbers of dims.
---@param accept (fun(block: annotations.Block): boolean)?
function M.find(paths, name, accept)
  local block, arguments, path, n = find(paths, name, accept)
  if block or not name:find("%dd$") then return block, arguments, path, n end
  return find(paths, (name:gsub("%dd$", "")), accept)
end

--- The block of `---@class` whose last word is `name`.
function M.class(paths, name)
  for _, path in ipairs(paths) do
    for n, line in ipairs(M.lines(path)) do
      local full = line:match("^%s*%-%-%-@class%s+([%w_.]+)")
      if full and full:match("[%w_]+$") == name then
        while M.lines(path)[n] and M.lines(path)[n]:find("^%s*%-%-%-") do n = n + 1 end
        return M.above(path, n), path
      end
    end
  end
end

--- The file and line of a Lua function, relative to the tree, or nil for one written in C.
function M.place(fn)
  local info = debug.getinfo(methods.plain(fn), "S")
  if info.what == "C" or info.source:sub(1, 1) ~= "@" then return nil end
  local path = info.source:match("(lua/accelerate/.*)$") or info.source:match("(lua/accelerate%..*)$")
  return path, info.linedefined
end

return M
