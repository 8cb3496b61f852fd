-- Writes definition files for the Lua language server (LuaLS), one for each module of
-- docs/reference: editors complete and describe modules, methods and options from them.
--
--   accel-run host/tools/meta.lua FOLDER      (a part of `make install`)
--
-- As a module it returns { files = function() -> map of file name to text }.
local annotations = require "host.tools.annotations"
local help = require "accelerate.prompt.help"
local op_definitions = require "host.tools.meta.ops"
local pieces = require "host.tools.meta.pieces"
local properties = require "accelerate.utils.properties"
local public = require "host.tools.public"

local add, describe, is_name, remark, write_params, argument_list, write_function, write_fields =
  pieces.add, pieces.describe, pieces.is_name, pieces.remark, pieces.write_params, pieces.argument_list,
  pieces.write_function, pieces.write_fields

local M = {}

local TENSOR = "accelerate.Tensor"

local class_names -- class -> its name in annotations
local written     -- names of the classes that have been written

-- ---- options

local SCHEMA_TYPES = { string = "string", integer = "number", number = "number", boolean = "boolean",
  table = "table", list = "any[]", tensor = TENSOR, ["function"] = "function" }

local function schema_type(entry)
  if entry.one_of then
    local words = {}
    for i, word in ipairs(entry.one_of) do
      words[i] = type(word) == "string" and ("%q"):format(word) or tostring(word)
    end
    return pieces.lenient(table.concat(words, "|"))
  end
  local words = {}
  for word in tostring(entry[1]):gmatch("[%a_]+") do words[#words + 1] = SCHEMA_TYPES[word] or "any" end
  return table.concat(words, "|")
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

-- ---- classes

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

-- How `init` is described, and its arguments as they are written.
local function maker_of(Class)
  local path, line = annotations.place(Class.init)
  local arguments = path and annotations.lines(path)[line]:match("function[^(]*(%b())")
  return path and annotations.above(path, line), arguments and arguments:sub(2, -2)
end

-- What a class's own function makes is of that class, though the annotation is a base's.
local function name_result(block, Class)
  local first, base = block.returns[1], rawget(Class, "__base")
  while first and base do
    if class_names[base] == first.type then first.type = class_names[Class] end
    base = rawget(base, "__base")
  end
end

-- The methods, or the functions that are called as Class.name(…).
local function write_methods(out, Class, prefix, files, of_class)
  for _, method in ipairs(public.methods_of(Class)) do
    local fn = rawget(Class, method)
    if public.of_class(fn) == of_class then
      local own, written_ones = public.function_block(method, fn, files)
      if own and not of_class then own.method = class_names[Class] end
      if own and of_class then name_result(own, Class) end
      write_function(out, prefix .. method, own, written_ones)
    end
  end
end

-- A class and an object of it are two types: the class makes objects, and has functions of its own
-- (`from_pretrained`) beside the methods, which a derived class calls through it.
local function write_class(out, call, name, Class, files)
  local full = class_names[Class]
  local block, made, arguments = annotations.class(files, name), nil, nil
  if Class.init then made, arguments = maker_of(Class) end
  local params = (made or block or { params = {} }).params
  local schema = rawget(Class, "_schema")
  if schema then
    write_schema(out, full .. ".Options", schema)
    local last = params[#params]
    if last and last.name:find "^opt" then last.type = full .. ".Options" end
    if not last then
      params = { { name = "options", type = full .. ".Options", text = "", optional = true } }
    end
  end
  add(out, "do")
  describe(out, block and block.text)
  begin_class(out, full, base_of(Class))
  if Class.__call then -- layers give a tensor first; models of Transformers give records
    pieces.write_call(out, full:find("^accelerate%.nn%.") and TENSOR .. ", any" or "any")
  end
  write_fields(out, block, {})
  local object = local_name(full)
  add(out, "local ", object, " = {}")
  add(out, "")
  write_methods(out, Class, object .. ":", files, false)
  local constructor, lines = pieces.constructor(params, arguments, full)
  begin_class(out, full .. ".Class", full)
  add(out, "---@overload ", constructor)
  add(out, ("local %sClass = {}"):format(object))
  add(out, "")
  write_methods(out, Class, object .. "Class.", files, true)
  describe(out, block and block.text)
  describe(out, made and made ~= block and made.text or {})
  describe(out, lines)
  add(out, ("%s = %sClass"):format(call, object))
  add(out, "end")
  add(out, "")
end

-- Where a table of options is described by the names in its text, makes a class of them; those that
-- are fields too have the field's type, unless it is an object's, which is made of other values.
local function name_options(out, call, full, maker, block)
  for _, p in ipairs(maker.params) do
    local set = p.type:find("^table%??$") and help.options("accelerate." .. call:match("[%w_]+$")) or {}
    if next(set) then
      local types = {}
      for _, f in ipairs(block and block.fields or {}) do
        types[f.name] = not f.type:find "^accelerate%." and pieces.lenient(f.type) or nil
      end
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
  if made.call then pieces.write_call(out, "any") end
  write_fields(out, block, seen)
  for _, field in ipairs(public.sorted_names(made.get)) do
    if not seen[field] then add(out, "---@field ", field, " any") end
  end
  add(out, "local ", local_name(full), " = {}")
  add(out, "")
  for _, method in ipairs(public.sorted_names(made.methods)) do
    if not public.OWN[method] then
      local own, written_ones = public.function_block(method, made.methods[method], files)
      if own then own.method = full end
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
  if maker then
    pieces.write_overloads(out, { params = maker.params, returns = { { type = full, text = "" } } })
  end
  add(out, ("function %s(%s) end"):format(call, argument_list(arguments, names)))
  add(out, "")
end

local function write_record(out, call, full, name, value, files)
  local block = annotations.find(files, name)
  local class = annotations.class(files, name)
  full = class and class.class or full
  if not written[full] then
    write_schema(out, full .. ".Options", value._schema)
    describe(out, block and block.text)
    begin_class(out, full, full .. ".Options")
    add(out, "")
  end
  describe(out, block and block.text)
  add(out, "---@param options? ", full, ".Options")
  add(out, "---@return ", full)
  add(out, ("function %s(options) end"):format(call))
  add(out, "")
end

-- ---- modules

local function full_name(page, name) return ("%s.%s"):format(page[2], name) end

local function write_member(out, page, name, value, files, ops)
  local call = "M." .. name
  local op = public.ops[value] and ops[public.ops[value]] or (page[1] == "tensor" and ops[name])
  if op and op.signature then
    op_definitions.write_op(out, call, op)
  elseif type(value) == "function" then
    write_function(out, call, public.function_block(name, value, files))
  elseif public.is_class(value) and class_names[value] then
    write_class(out, call, name, value, files)
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

-- The name under which a class in a file of its own is required: "accelerate.data_loader" is
-- public, "accelerate.nn.initializers" is nn.init to scripts.
local function module_class(page)
  return page[2] == "accelerate.nn.initializers" and "accelerate.nn.init" or page[2]
end

-- The type of a member that is written elsewhere: a page for itself, or a class by another name or
-- of an earlier page.
local function linked(name, value)
  local page = public.page_of(value)
  local class = public.is_class(value) and class_names[value]
  if page then return module_class(page) end
  return class and (value.__name ~= name or written[class]) and class .. ".Class"
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
    local type = linked(name, module[name])
    if type and not seen[name] then
      add(out, "---@field ", name, " ", type)
      seen[name] = true
    end
  end
  add(out, "local M = {}")
  add(out, "")
  if page[1] == "tensor" then
    op_definitions.write_tensor(out, ops)
    written[TENSOR] = true
  end
  for _, name in ipairs(page[1] == "tensor" and op_definitions.functions(ops) or public.members(module)) do
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
        local object = properties.defined[local_name(full)]
        if object then write_object(out, nil, full, local_name(full), object, { path })
        else
          begin_class(out, full, rest:match("^%s*:%s*([%w_.]+)"))
          write_fields(out, annotations.above(path, last), {})
          add(out, "")
        end
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
  local files, ops = {}, op_definitions.all()
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
