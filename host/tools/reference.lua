-- Writes docs/reference/*.md, a page for each module, from the annotations in the sources and from
-- the modules as they are when loaded: a member that the module has is on its page, with or without
-- a description.
--
--   accel-run host/tools/reference.lua docs/reference      (a part of `make docs`)
--
-- Each page begins with docs/synopsis/<module>.lua, a script that runs; an entry ends with
-- docs/synopsis/<module>.<name>.lua where that exists.  As a module this returns {
-- pages = function() -> map of file name to text, undocumented = function() -> list of names }:
-- spec/docs_spec.lua compares both.
local annotations = require "host.tools.annotations"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local markdown = require "host.tools.markdown"
local positions = require "accelerate.utils.positions"
local properties = require "accelerate.utils.properties"
local public = require "host.tools.public"

local M = {}

-- ---- text

local undocumented

local function add(out, ...) out[#out + 1] = table.concat { ... } end

local function paragraphs(out, block)
  local text = block and table.concat(block.text, "\n"):gsub("^%s+", ""):gsub("%s+$", "") or ""
  if text == "" then return end
  -- Indented lines are code; markdown wants four spaces and a blank line before.
  local code = false
  for line in (text .. "\n"):gmatch("(.-)\n") do
    local inside = line:find("^  +%S") ~= nil
    if inside and not code and out[#out] ~= "" then add(out, "") end
    code = inside
    add(out, inside and "    " .. line:gsub("^  ", "") or line)
  end
  add(out, "")
end

local function details(out, block)
  if not block then return end
  for _, p in ipairs(block.params) do
    add(out, ("* `%s`%s: `%s`%s"):format(p.name, p.optional and " (optional)" or "", p.type, p.text ~= ""
      and ". " .. p.text or ""))
  end
  for _, r in ipairs(block.returns) do
    add(out, ("* returns `%s`%s"):format(r.type, r.text ~= "" and " " .. r.text or ""))
  end
  if #block.params + #block.returns > 0 then add(out, "") end
end

local function call_text(block, arguments)
  local written = arguments and arguments:gsub("^%s*self%s*,?", ""):gsub("%s", "")
  -- the annotation names what the code takes apart
  if written == "..." and block and #block.params > 1 then arguments = nil end
  if not arguments then
    local names = {}
    for i, p in ipairs(block and block.params or {}) do
      names[i] = p.optional and "[" .. p.name .. "]" or p.name
    end
    return table.concat(names, ", ")
  end
  local optional = {}
  for _, p in ipairs(block and block.params or {}) do optional[p.name] = p.optional end
  local list = {}
  for name in arguments:gmatch("[%w_.]+") do
    if name ~= "self" then list[#list + 1] = optional[name] and "[" .. name .. "]" or name end
  end
  return table.concat(list, ", ")
end

local function write_function(out, level, prefix, name, fn, files, where)
  local block, arguments = public.function_block(name, fn, files)
  add(out, ("%s %s(%s)"):format(level, prefix .. name, positions.shown(fn) or call_text(block, arguments)))
  add(out, "")
  if not public.described(block) then undocumented[#undocumented + 1] = where .. prefix .. name end
  paragraphs(out, block)
  details(out, block)
end

-- ---- classes

local function field_list(out, block)
  for _, f in ipairs(block and block.fields or {}) do
    add(out, ("* `.%s`: `%s`%s"):format(f.name, f.type, f.text ~= "" and ". " .. f.text or ""))
  end
  if block and #block.fields > 0 then add(out, "") end
end

local function default_text(value)
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for i = 1, #value do parts[i] = default_text(value[i]) end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

--- The entries of a schema of utils.options: kind, default, limits, and what text_of says of each.
local function option_list(out, schema, text_of)
  for _, name in ipairs(public.sorted_names(schema or {})) do
    local entry = schema[name]
    local words = { entry[1]:gsub("|", " or "), nil }
    if entry.one_of then words[1] = '"' .. table.concat(entry.one_of, '" or "') .. '"' end
    if entry.default ~= nil then words[#words + 1] = ("default `%s`"):format(default_text(entry.default)) end
    if entry.optional then words[#words + 1] = "optional" end
    if entry.min then words[#words + 1] = "at least " .. entry.min end
    local text = text_of and text_of(name)
    add(out, ("* `%s`: %s%s"):format(name, table.concat(words, ", "), text and ". " .. text or ""))
  end
  if next(schema or {}) then add(out, "") end
end

local function write_class(out, call, name, Class, files, where)
  local init = Class.init
  local block = annotations.class(files, name)
  local made, arguments
  if init then
    local path, line = annotations.place(init)
    made = path and annotations.above(path, line)
    arguments = path and annotations.lines(path)[line]:match("function[^(]*(%b())")
    arguments = arguments and arguments:sub(2, -2)
    local own = annotations.find(files, name, public.described)
    if not public.described(block) and own then block = own end
  end
  add(out, ("## %s(%s)"):format(call, positions.shown(init) or call_text(made, arguments)))
  add(out, "")
  if not public.described(block) and not public.described(made) then  -- a class that has a file to itself
    for _, method in ipairs(public.sorted_names(Class)) do
      local path = type(rawget(Class, method)) == "function" and annotations.place(rawget(Class, method))
      block = block or path and annotations.header(path)
    end
  end
  if not public.described(block) and not public.described(made) then
    undocumented[#undocumented + 1] = where .. call
  end
  paragraphs(out, block)
  if made ~= block then paragraphs(out, made) end
  details(out, made or block)
  field_list(out, block)
  option_list(out, rawget(Class, "_schema"))
  for _, method in ipairs(public.methods_of(Class)) do
    local fn = rawget(Class, method)
    local prefix = public.of_class(fn) and call .. "." or name:lower() .. ":"
    write_function(out, "###", prefix, method, fn, files, where)
  end
end

--- A class of utils.properties: fields that are computed, methods.
local function write_object(out, call, name, made, files, where)
  local block, path = annotations.class(files, name)
  local maker, arguments = annotations.find(path and { path } or files, name, public.described)
  add(out, ("## %s%s"):format(call, arguments and "(" .. call_text(maker, arguments) .. ")" or ""))
  add(out, "")
  if not public.described(block) and not public.described(maker) then
    undocumented[#undocumented + 1] = where .. call
  end
  paragraphs(out, maker)
  if block ~= maker then paragraphs(out, block) end
  details(out, maker)
  field_list(out, block)
  local described = {}
  for _, f in ipairs(block and block.fields or {}) do described[f.name] = true end
  for _, field in ipairs(public.sorted_names(made.get)) do
    if not described[field] and not made.schema then
      undocumented[#undocumented + 1] = where .. name .. "." .. field
    end
  end
  for _, method in ipairs(public.sorted_names(made.methods)) do
    if not public.OWN[method] then
      write_function(out, "###", name:sub(1, 1):lower() .. name:sub(2) .. ":", method, made.methods[method],
        files, where)
    end
  end
end

--- A record: its fields with kind, default and the comment beside them.
local function write_record(out, call, name, value, files, where)
  local block, _, path, line = annotations.find(files, name)
  add(out, "## ", call)
  add(out, "")
  if not public.described(block) then undocumented[#undocumented + 1] = where .. call end
  paragraphs(out, block)
  option_list(out, value._schema, function(field)
    local lines = path and annotations.lines(path) or {}
    for n = line or 1, #lines do
      if lines[n]:find("^%s+" .. field .. " = {") then return lines[n]:match("},?%s*%-%- (.*)$") end
      if lines[n]:find("^}") then return nil end
    end
  end)
end

-- ---- pages

--- A member that the module's class block describes: `---@field zeros fun(…): accelerate.Tensor
--- text`.
local function write_field(out, level, call, field)
  local params = annotations.signature(field.type)
  if params[1] and params[1].name == "self" then table.remove(params, 1) end
  add(out, level, "## ", call, field.type:find("^fun%(") and "(" .. call_text { params = params } .. ")"
    or "")
  add(out, "")
  if field.text ~= "" then
    add(out, field.text:sub(1, 1):upper(), field.text:sub(2), field.text:find("[.!?]$") and "" or ".")
    add(out, "")
  end
  add(out, "* `", field.type, "`")
  add(out, "")
end

-- The members of a table of functions: an entry for each that the page's own module does not have.
local function write_functions(out, page, prefix, value, module, where)
  local own, rest, names = {}, {}, public.members(value)
  for _, name in ipairs(public.members(require(page[2]))) do own[name] = true end
  local files = module and public.files_under { public.header_file(module) } or {}
  for _, name in ipairs(names) do
    if type(value[name]) ~= "function" or own[name] then rest[#rest + 1] = name end
  end
  if #rest > 0 then
    add(out, "`", table.concat(rest, "` `"), "`")
    add(out, "")
  end
  for _, name in ipairs(names) do
    if type(value[name]) == "function" and not own[name] then
      write_function(out, "###", prefix, name, value[name], files, where)
    end
  end
end

local function write_member(out, page, name, value, files, fields)
  local alias = page[3]
  local call = alias == "accelerate" and "accelerate." .. name or alias .. "." .. name
  local where = page[1] .. ": "
  if fields[name] then
    write_field(out, "", call, fields[name])
  elseif type(value) == "function" then
    write_function(out, "##", alias .. ".", name, value, files, where)
  elseif public.is_class(value) and value.__name ~= name and (rawget(value, "name") == name) then
    add(out, "## ", call)
    add(out, "")
    add(out, ("Another name of `%s.%s`."):format(alias, value.__name))
    add(out, "")
  elseif public.is_class(value) then
    write_class(out, call, name, value, files, where)
  elseif public.is_callable(value) and rawget(value, "_schema") then
    write_record(out, call, name, value, files, where)
  elseif public.is_callable(value) and properties.defined[name] then
    write_object(out, call, name, properties.defined[name], files, where)
  elseif public.is_callable(value) then
    write_function(out, "##", alias .. ".", name, getmetatable(value).__make or getmetatable(value).__call,
      files, where)
  elseif type(value) == "table" then
    add(out, "## ", call)
    add(out, "")
    local module = public.module_of(value)
    local block = module and annotations.header(public.header_file(module))
      or annotations.find(files, name, public.described)
    if not block then undocumented[#undocumented + 1] = where .. call end
    paragraphs(out, block)
    if page[1] == "nn.utils" then
      write_functions(out, page, alias .. "." .. name .. ".", value, module, where)
    elseif #public.members(value) > 0 then
      add(out, "`", table.concat(public.members(value), "` `"), "`")
      add(out, "")
    end
  else
    add(out, ("## %s = `%s`"):format(call, tostring(value)))
    add(out, "")
  end
end

-- The script docs/synopsis/<module>.<name>.lua, if there is one, as a block.
local function write_example(out, name)
  local path = "docs/synopsis/" .. name .. ".lua"
  if not fs.exists(path) then return end
  add(out, "```lua")
  add(out, (assert(fs.read(path)):gsub("%s+$", "")))
  add(out, "```")
  add(out, "")
end

-- What a tensor has: entries for fields and methods of its class, and a line for each method that
-- is an op. A name without either is undocumented.
local function write_tensor_members(out, header)
  local methods, ops = {}, require("host.tools.gendoc").methods()
  for _, field in ipairs(annotations.class({ header }, "Tensor").fields) do methods[field.name] = field end
  local names, lines = public.sorted_names(core._tensor_names()), {}
  add(out, "## Tensors")
  add(out, "")
  add(out, "The fields and methods of a tensor `x`. Those that are ops follow, with links to their entries.")
  add(out, "")
  for _, name in ipairs(names) do
    local field, op = methods[name], ops[name]
    if not op and public.ops[core[name]] then
      local other = ops[public.ops[core[name]]]
      local call = other.call:gsub("^([%w_]+[:.])[%w_]+", "%1" .. name)
      -- "repeat" is a keyword of Lua
      if name == "repeat" then call = other.call:gsub("^x:[%w_]+%(", 'x["repeat"](x, ') end
      op = { call = call, of = other.of,
        summary = ("another name of `%s`"):format(other.of) }
    end
    if field then
      write_field(out, "#", (field.type:find("^fun%(") and "x:" or "x.") .. name, field)
    elseif op then
      lines[#lines + 1] = ("* [`%s`](ops.md#%s): %s"):format(op.call, op.of:lower(), op.summary)
    else
      undocumented[#undocumented + 1] = "tensor: x." .. name
    end
  end
  add(out, "### Ops as methods")
  add(out, "")
  add(out, table.concat(lines, "\n"))
  add(out, "")
end

-- A module's members; of accelerate.tensor also those that it loads when they are first read, for
-- which its class has fields.
local function names_of(page, module, fields)
  if page[1] ~= "tensor" then return public.members(module) end
  local there = {}
  for _, name in ipairs(public.members(module)) do there[name] = true end
  for name in pairs(fields) do there[name] = true end
  return public.sorted_names(there)
end

local function write_page(page)
  local out, files = {}, public.files_under(page[4])
  local module = require(page[2])
  add(out, "# ", page[1] == "accelerate" and "accelerate" or "accelerate." .. page[1])
  add(out, "")
  add(out, "*Written by `make docs` from the annotations in ", table.concat(page[4], ", "),
    "; edit those, not this page.*")
  add(out, "")
  paragraphs(out, annotations.header(public.header_file(page[2])))
  write_example(out, page[1])
  local later, op_names, answers, configs, fields = {}, {}, {}, {}, {}
  local class = annotations.class({ public.header_file(page[2]) }, page[2]:match("[%w_]+$"))
  for _, field in ipairs(class and class.fields or {}) do fields[field.name] = field end
  for _, name in ipairs(names_of(page, module, fields)) do
    local value = module[name]
    local own = public.page_of(value)
    if own then
      later[#later + 1] = ("[%s](%s.md)"):format(name, own[1])
    elseif public.ops[value] then
      op_names[#op_names + 1] = ("[%s](ops.md#%s)"):format(name, public.ops[value])
    elseif name:find("^is_.*_available$") then
      answers[#answers + 1] = "`" .. name .. "`"
    elseif page[1] == "models" and name:find "Config$" and name ~= "AutoConfig" then
      configs[#configs + 1] = "`" .. name .. "`"
    elseif name ~= "core" then
      write_member(out, page, name, value, files, fields)
      write_example(out, page[1] .. "." .. name)
    end
  end
  if #answers > 0 then
    add(out, "## is_*_available()")
    add(out, "")
    paragraphs(out, annotations.header("lua/accelerate/utils/available.lua"))
    add(out, table.concat(answers, ", "))
    add(out, "")
  end
  if #configs > 0 then
    add(out, "## Configurations")
    add(out, "")
    add(out, "`LlamaConfig { hidden_size = 64 }` returns a table with the architecture's defaults, " ..
      "which its classes and `from_config` take: ", table.concat(configs, ", "), ".")
    add(out, "")
  end
  if page[1] == "tensor" then write_tensor_members(out, public.header_file(page[2])) end
  if page[1] == "tensor" then
    for _, entry in ipairs(require("accelerate.tensor.composed").list) do
      if entry.form == "both" or entry.form == "function" then
        op_names[#op_names + 1] = ("[%s](ops.md#%s)"):format(entry.name, entry.name:lower())
      end
    end
    table.sort(op_names)
  end
  if #op_names > 0 then
    add(out, "## Ops")
    add(out, "")
    add(out, table.concat(op_names, ", "), ".")
  end
  if #later > 0 then table.insert(out, 6, "Pages of their own: " .. table.concat(later, ", ") .. ".\n") end
  local text = table.concat(out, "\n"):gsub("\n\n\n+", "\n\n"):gsub("%s+$", "")
  return markdown.fill(text .. "\n")
end

--- Every page's text by its file's name, and the names without a description.
---@return table<string, string> pages, string[] undocumented
function M.pages()
  undocumented = {}
  local pages = {}
  for _, page in ipairs(public.PAGES) do pages[page[1] .. ".md"] = write_page(page) end
  return pages, undocumented
end

if arg and arg[0] and arg[0]:find("reference.lua", 1, true) then
  local pages, missing = M.pages()
  for name, text in pairs(pages) do
    local file = assert(io.open(arg[1] .. "/" .. name, "w"))
    file:write(text)
    file:close()
  end
  table.sort(missing)
  for _, name in ipairs(missing) do print("no description: " .. name) end
end

return M
