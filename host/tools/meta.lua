-- Writes definition files for the Lua language server (LuaLS), one for each module of
-- docs/reference: editors complete and describe modules, methods and options from them.
--
--   accel-run host/tools/meta.lua FOLDER      (a part of `make install`)
--
-- As a module it returns { files = function() -> map of file name to text }.
local annotations = require "host.tools.annotations"
local core = require "accelerate.core"
local help = require "accelerate.prompt.help"
local properties = require "accelerate.utils.properties"
local public = require "host.tools.public"

local M = {}

local TENSOR = "accelerate.Tensor"

-- What the kinds of ops.def are as types.
local KINDS = {
  T = TENSOR, TN = TENSOR .. "|number", ["T*"] = TENSOR .. "[]", dim = "integer", ["dim+"] = "integer",
  dims = "integer|integer[]", pos = "integer", int = "integer", int2 = "integer|integer[]",
  int3 = "integer|integer[]",
  ints = "integer|integer[]", num = "number", bool = "boolean", dtype = "accelerate.DType",
    gen = "accelerate.Generator",
}

local class_names -- class -> its name in annotations
local written     -- names of the classes that have been written

-- ---- pieces -------------------------------------------------------------------------------------

local function add(out, ...) out[#out + 1] = table.concat { ... } end

local function describe(out, lines)
  local text = table.concat(lines or {}, "\n"):gsub("^%s+", ""):gsub("%s+$", "")
  if text == "" then return end
  for line in (text .. "\n"):gmatch("(.-)\n") do add(out, "--- ", line) end
end

local function is_name(text)
  return text:find("^[%a_][%w_]*$") ~= nil and not require("accelerate.prompt.lexer").KEYWORDS[text]
end

-- A text after a type. The mark before it ends the type.
local function remark(text) return text and text ~= "" and " # " .. text or "" end

local function uses_generic(block)
  for _, list in ipairs { block and block.params or {}, block and block.returns or {} } do
    for _, entry in ipairs(list) do
      if entry.type:find("%f[%w]T%f[^%w]") then return true end
    end
  end
end

local function write_params(out, block)
  local names = {}
  if uses_generic(block) then add(out, "---@generic T") end
  for _, p in ipairs(block and block.params or {}) do
    if is_name(p.name) or p.name == "..." then
      add(out, "---@param ", p.name, p.optional and p.name ~= "..." and "? " or " ", p.type ~= "" and p.type
        or "any",
        remark(p.text))
      names[#names + 1] = p.name
    end
  end
  for _, r in ipairs(block and block.returns or {}) do add(out, "---@return ", r.type, remark(r.text)) end
  return names
end

-- The arguments of a definition: as they are written in the source, else those that are described.
local function argument_list(written_ones, described)
  local list, there = {}, {}
  for name in (written_ones or ""):gmatch("[%w_.]+") do
    if name ~= "self" and (is_name(name) or name == "...") then list[#list + 1] = name end
    there[name] = true
  end
  for _, name in ipairs(described) do
    if not there[name] then return table.concat(described, ", ") end
  end
  return table.concat(list, ", ")
end

local function write_function(out, call, block, arguments)
  describe(out, block and block.text)
  local names = write_params(out, block)
  add(out, ("function %s(%s) end"):format(call, argument_list(arguments, names)))
  add(out, "")
end

local function write_fields(out, block, seen)
  for _, f in ipairs(block and block.fields or {}) do
    if not seen[f.name] then
      add(out, "---@field ", f.name, f.optional and not f.type:find("%?$") and "? " or " ", f.type,
      remark(f.text)) end
    seen[f.name] = true
  end
end

-- ---- options ------------------------------------------------------------------------------------

local SCHEMA_TYPES = { string = true, integer = true, number = true, boolean = true, table = true,
  ["function"] = true }

local function schema_type(entry)
  if entry.one_of then
    local words = {}
    for i, word in ipairs(entry.one_of) do
      words[i] = type(word) == "string" and ("%q"):format(word) or tostring(word)
    end
    return table.concat(words, "|")
  end
  local words = {}
  for word in tostring(entry[1]):gmatch("[%a_]+") do
    words[#words + 1] = SCHEMA_TYPES[word] and word or word == "tensor" and TENSOR or nil
  end
  return #words > 0 and table.concat(words, "|") or "any"
end

local function default_text(value)
  if type(value) == "table" then return "a list" end
  return type(value) == "string" and ("%q"):format(value) or tostring(value)
end

-- A class of a schema's entries: what a table of options may hold.
local function write_schema(out, name, schema)
  add(out, "---@class ", name)
  for _, key in ipairs(public.sorted_names(schema)) do
    local entry = schema[key]
    add(out, "---@field ", key, "? ", schema_type(entry), entry.default ~= nil
      and remark("default " .. default_text(entry.default)) or "")
  end
  add(out, "")
end

-- ---- classes ------------------------------------------------------------------------------------

local function base_of(Class)
  local base = rawget(Class, "__base")
  while base and not class_names[base] do base = rawget(base, "__base") end
  return base and class_names[base]
end

local function local_name(name) return (name:match("[%w_]+$")) end

-- The class's table is in a block of its own: a function may have 200 locals.
local function begin_class(out, full, base)
  written[full] = true
  add(out, "---@class ", full, base and base ~= full and " : " .. base or "")
end

local function write_class(out, call, name, Class, files)
  local full, init = class_names[Class], Class.init
  local block, made, arguments = annotations.class(files, name), nil, nil
  if init then
    local path, line = annotations.place(init)
    made = path and annotations.above(path, line)
    arguments = path and annotations.lines(path)[line]:match("function[^(]*(%b())")
    arguments = arguments and arguments:sub(2, -2)
  end
  local schema = rawget(Class, "_schema")
  if schema then write_schema(out, full .. ".Options", schema) end
  add(out, "do")
  describe(out, block and block.text)
  begin_class(out, full, base_of(Class))
  if full == "accelerate.nn.Module" then add(out, "---@operator call(any): accelerate.Tensor") end
  write_fields(out, block, {})
  add(out, "local ", local_name(full), " = {}")
  add(out, "")
  for _, method in ipairs(public.methods_of(Class)) do
    local own, written_ones = public.function_block(method, rawget(Class, method), files)
    write_function(out, local_name(full) .. ":" .. method, own, written_ones)
  end
  add(out, "end")
  add(out, "")
  describe(out, block and block.text)
  describe(out, made and made ~= block and made.text or {})
  local names = write_params(out, made or block)
  if schema and #names == 0 then
    add(out, "---@param options? ", full, ".Options")
    names = { "options" }
    arguments = nil
  end
  add(out, "---@return ", full)
  add(out, ("function %s(%s) end"):format(call, argument_list(arguments, names)))
  add(out, "")
end

-- Where a table of options is described by the names in its text, makes a class of them; those that
-- are fields too have the field's type.
local function name_options(out, call, full, maker, block)
  for _, p in ipairs(maker.params) do
    local set = p.type:find("^table%??$") and help.options("accelerate." .. call:match("[%w_]+$")) or {}
    if next(set) then
      local types = {}
      for _, f in ipairs(block and block.fields or {}) do types[f.name] = f.type end
      add(out, "---@class ", full, ".Options")
      for _, key in ipairs(public.sorted_names(set)) do
        add(out, "---@field ", key, "? ", types[key] or "any")
      end
      add(out, "")
      p.type = full .. ".Options"
    end
  end
end

-- A class of utils.properties.
local function write_object(out, call, full, name, made, files)
  local block, path = annotations.class(files, name)
  local maker, arguments = annotations.find(path and { path } or files, name, public.described)
  local seen = {}
  add(out, "do")
  describe(out, block and block.text)
  begin_class(out, full)
  write_fields(out, block, seen)
  for _, field in ipairs(public.sorted_names(made.get)) do
    if not seen[field] then add(out, "---@field ", field, " any") end
  end
  add(out, "local ", local_name(full), " = {}")
  add(out, "")
  for _, method in ipairs(public.sorted_names(made.methods)) do
    if not public.OWN[method] then
      local own, written_ones = public.function_block(method, made.methods[method], files)
      write_function(out, local_name(full) .. ":" .. method, own, written_ones)
    end
  end
  add(out, "end")
  add(out, "")
  if not call then return end
  if maker then name_options(out, call, full, maker, block) end
  describe(out, maker and maker.text)
  local names = write_params(out, maker and { params = maker.params, returns = {} })
  add(out, "---@return ", full)
  add(out, ("function %s(%s) end"):format(call, argument_list(arguments, names)))
  add(out, "")
end

local function write_record(out, call, full, name, value, files)
  local block = annotations.find(files, name)
  write_schema(out, full .. ".Options", value._schema)
  describe(out, block and block.text)
  begin_class(out, full, full .. ".Options")
  add(out, "")
  describe(out, block and block.text)
  add(out, "---@param options? ", full, ".Options")
  add(out, "---@return ", full)
  add(out, ("function %s(options) end"):format(call))
  add(out, "")
end

-- ---- ops ----------------------------------------------------------------------------------------

local function kind_type(kind)
  if kind:find("|", 1, true) then return '"' .. kind:gsub("|", '"|"') .. '"' end
  return KINDS[kind] or "any"
end

local function parse_signature(signature)
  local left, results = signature:match("^(.-)%s*%->%s*(.*)$")
  local arguments = {}
  for word in (left or signature):gmatch("%S+") do
    local name, rest = word:match("^([%w_]+):(.+)$")
    local kind, default = rest:match("^([^=]+)=(.+)$")
    kind = kind or rest
    arguments[#arguments + 1] = { name = is_name(name) and name or name .. "_",
      type = kind_type((kind:gsub("%?$", ""))),
      default = default, optional = default ~= nil or kind:sub(-1) == "?" }
  end
  return arguments, results
end

local function result_types(results, fallback)
  local list = {}
  for name in (results or ""):gmatch("[%w_]+") do list[#list + 1] = { type = TENSOR, text = name } end
  if #list == 0 then list[1] = { type = fallback, text = "" } end
  return list
end

-- The form with the optional arguments in a table, as an overload.
local function write_overload(out, arguments, first, returns)
  local positions, options = {}, {}
  for i = 1, #arguments do
    local a = arguments[i]
    if a.optional then options[#options + 1] = ("%s?: %s"):format(a.name, a.type)
    elseif i >= first then positions[#positions + 1] = ("%s: %s"):format(a.name, a.type) end
  end
  if #options == 0 then return end
  if first == 2 then table.insert(positions, 1, "self: " .. TENSOR) end
  positions[#positions + 1] = ("options: { %s }"):format(table.concat(options, ", "))
  local types = {}
  for i, r in ipairs(returns) do types[i] = r.type end
  add(out, ("---@overload fun(%s): %s"):format(table.concat(positions, ", "), table.concat(types, ", ")))
end

-- call: "tensor.sum", or "Tensor:sum", whose first argument is self.
local function write_op(out, call, entry)
  local arguments, results = parse_signature(entry.signature)
  local first = call:find(":") and 2 or 1
  local returns = result_types(results, entry.row and TENSOR or "any")
  local names = {}
  describe(out, { entry.summary })
  for i = first, #arguments do
    local a = arguments[i]
    add(out, "---@param ", a.name, a.optional and "? " or " ", a.type, a.default
      and remark("default " .. a.default) or "")
    names[#names + 1] = a.name
  end
  for _, r in ipairs(returns) do add(out, "---@return ", r.type, remark(r.text)) end
  write_overload(out, arguments, first, returns)
  add(out, ("function %s(%s) end"):format(call, table.concat(names, ", ")))
  add(out, "")
end

-- name -> { name, signature, summary, row }
local function all_ops()
  local map = {}
  for _, row in ipairs(core.ops()) do
    if not row.hidden then
      map[row.name] = { name = row.name, signature = row.signature, summary = row.summary, row = true,
        inplace = row.inplace }
    end
  end
  for _, entry in ipairs(require("accelerate.tensor.composed").list) do
    map[entry.name] = map[entry.name]
      or { name = entry.name, signature = entry.signature, summary = entry.summary,
      form = entry.form, usage = entry.usage }
  end
  return map
end

local OPERATORS = { "add", "sub", "mul", "div", "mod", "pow" }

-- Tensor's own class: its fields, the methods of ops, and the methods written in C.
local function write_tensor(out, ops)
  local block = annotations.class({ "lua/accelerate/tensor.lua" }, "Tensor")
  local seen = {}
  describe(out, { "A tensor: elements of one type, in any number of dims." })
  begin_class(out, TENSOR)
  write_fields(out, block, seen)
  add(out, "---@field [integer] ", TENSOR)
  for _, name in ipairs(OPERATORS) do
    add(out, ("---@operator %s(%s|number): %s"):format(name, TENSOR, TENSOR))
  end
  add(out, "---@operator unm: ", TENSOR)
  for _, name in ipairs(public.sorted_names(core._tensor_names())) do
    local op = ops[name] or ops[name:gsub("_$", "")]
    if op and op.form == "field" and not seen[name] then
      add(out, "---@field ", name, " ", TENSOR, remark(op.summary))
    elseif not op and not seen[name] then
      add(out, ("---@field %s fun(self: %s, ...: any): any"):format(name, TENSOR))
    end
    seen[name] = true
  end
  add(out, "local Tensor = {}")
  add(out, "")
  for _, name in ipairs(public.sorted_names(core._tensor_names())) do
    local op = ops[name] or ops[name:gsub("_$", "")]
    if op and op.signature and op.form ~= "field" then write_op(out, "Tensor:" .. name, op)
    elseif op and op.form ~= "field" then
      describe(out, { op.summary })
      add(out, ("function Tensor:%s(...) end"):format(name))
      add(out, "")
    end
  end
end

-- ---- modules ------------------------------------------------------------------------------------

local function full_name(page, name) return ("%s.%s"):format(page[2], name) end

local function write_member(out, page, name, value, files, ops)
  local call = "M." .. name
  local op = public.ops[value] and ops[public.ops[value]] or (page[1] == "tensor" and ops[name])
  if op and op.signature then
    write_op(out, call, op)
  elseif type(value) == "function" then
    write_function(out, call, public.function_block(name, value, files))
  elseif public.is_class(value) and class_names[value] and not written[class_names[value]] then
    write_class(out, call, name, value, files)
  elseif public.is_class(value) and class_names[value] then
    add(out, "---@return ", class_names[value])
    add(out, ("function %s(...) end"):format(call))
    add(out, "")
  elseif public.is_callable(value) and rawget(value, "_schema") then
    write_record(out, call, full_name(page, name), name, value, files)
  elseif public.is_callable(value) and properties.defined[name] then
    write_object(out, call, full_name(page, name), name, properties.defined[name], files)
  elseif public.is_callable(value) then
    local meta = getmetatable(value)
    write_function(out, call, public.function_block(name, meta.__make or meta.__call, files))
  elseif type(value) == "table" then
    local module = public.module_of(value)
    describe(out, (module and annotations.header(public.header_file(module)) or { text = {} }).text)
    add(out, ("%s = {}"):format(call))
    for _, member in ipairs(public.members(value)) do
      if is_name(member) and type(value[member]) == "function" then
        write_function(out, call .. "." .. member, public.function_block(member, value[member],
          module and { public.header_file(module) } or files))
      end
    end
    add(out, "")
  elseif type(value) == "string" or type(value) == "number" or type(value) == "boolean" then
    add(out, ("---@type %s"):format(type(value)))
    add(out, ("%s = %s"):format(call, type(value) == "string" and ("%q"):format(value) or tostring(value)))
    add(out, "")
  end
end

local function linked_page(page, name)
  if page[1] == "nn" and name == "init" then return "accelerate.nn.init" end
  local module = page[2] .. "." .. name
  return public.page_of[module] and module
end

-- The name under which a class in a file of its own is required: "accelerate.data_loader" is
-- public, "accelerate.nn.initializers" is nn.init to scripts.
local function module_class(page)
  return page[2] == "accelerate.nn.initializers" and "accelerate.nn.init" or page[2]
end

local function write_page(page, ops)
  local out, files = {}, public.files_under(page[4])
  local module = require(page[2])
  local class = annotations.class({ public.header_file(page[2]) }, page[2]:match("[%w_]+$"))
  local seen = {}
  add(out, "---@meta ", page[2])
  add(out, "-- Written by `make install` from the annotations of accel.")
  add(out, "")
  describe(out, (annotations.header(public.header_file(page[2])) or { text = {} }).text)
  written[module_class(page)] = true
  add(out, "---@class ", module_class(page))
  if page[1] == "tensor" then
    add(out, "---@overload fun(value: any, options?: accelerate.TensorOptions): accelerate.Tensor")
  end
  write_fields(out, class, seen)
  for _, name in ipairs(public.members(module)) do
    local linked = linked_page(page, name)
    if linked and not seen[name] then
      add(out, "---@field ", name, " ", linked)
      seen[name] = true
    end
  end
  add(out, "local M = {}")
  add(out, "")
  if page[1] == "tensor" then write_tensor(out, ops) end
  for _, name in ipairs(public.members(module)) do
    if not seen[name] and is_name(name) and name ~= "core" then
      write_member(out, page, name, module[name], files, ops)
    end
  end
  add(out, "return M")
  return table.concat(out, "\n") .. "\n"
end

-- ---- what the annotations name besides

-- A comment's lines from `at` on that go on with the line before.
local function continued(lines, at)
  local text = lines[at]:match("^%s*%-%-%-(.*)$")
  while lines[at + 1] and lines[at + 1]:find("^%s*%-%-%-%s%s+%S") do
    at = at + 1
    text = text .. " " .. lines[at]:match("^%s*%-%-%-%s*(.-)%s*$")
  end
  return text
end

-- The classes and aliases of the sources that no module has.
local function write_types()
  local out = { "---@meta",
    "-- Written by `make install` from the annotations of accel: what they name besides.", "" }
  for _, path in ipairs(public.files_under { "lua/accelerate" }) do
    local lines = annotations.lines(path)
    for n, line in ipairs(lines) do
      local full, rest = line:match("^%s*%-%-%-@class%s+([%w_.]+)(.*)$")
      local alias = line:match("^%s*%-%-%-@alias%s+([%w_.]+)")
      if full and not written[full] then
        local last = n
        while lines[last] and lines[last]:find("^%s*%-%-%-") do last = last + 1 end
        begin_class(out, full, rest:match("^%s*:%s*([%w_.]+)"))
        write_fields(out, annotations.above(path, last), {})
        add(out, "")
      elseif alias and not written[alias] then
        written[alias] = true
        add(out, "---", continued(lines, n))
        add(out, "")
      end
    end
  end
  for name, made in pairs {
    ["accelerate.Generator"] = "A generator of random numbers, with its own seed." } do
    if not written[name] then
      describe(out, { made })
      begin_class(out, name)
    end
  end
  return table.concat(out, "\n") .. "\n"
end

local function name_classes()
  class_names, written = {}, {}
  for _, page in ipairs(public.PAGES) do
    local module, files = require(page[2]), public.files_under(page[4])
    for _, name in ipairs(public.members(module)) do
      local value = module[name]
      if public.is_class(value) and not class_names[value] and value.__name == name then
        local block = annotations.class(files, name)
        class_names[value] = block and block.class or full_name(page, name)
      end
    end
  end
end

--- The files by their names.
---@return table<string, string>
function M.files()
  name_classes()
  local files, ops = {}, all_ops()
  for _, page in ipairs(public.PAGES) do files[page[1] .. ".lua"] = write_page(page, ops) end
  files["types.lua"] = write_types()
  return files
end

if arg and arg[0] and arg[0]:find("meta%.lua$") then
  local folder = arg[1] or error("usage: accel-run host/tools/meta.lua FOLDER", 0)
  for name, text in pairs(M.files()) do -- each by itself
    local file = assert(io.open(folder .. "/" .. name, "w"))
    file:write(text)
    file:close()
  end
end

return M
