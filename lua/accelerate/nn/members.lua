--- What a module lists: its parameters, buffers and submodules, its own and those below it, by name
--- and by path.

local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local parameter = require "accelerate.nn.parameter"
local Module = require "accelerate.nn.attributes"

local fail, is_parameter, is_module = options.fail, parameter.is, Module._is_module
local registrations = Module._registrations

local function own(self, kind, list)
  local members, values = self._registered, self._values
  for _, name in ipairs(members.order) do
    if kind == nil or members.kinds[name] == kind then list[#list + 1] = { name, values[name] } end
  end
  return list
end

local function values_of(pairs_list)
  local list = {}
  for i, item in ipairs(pairs_list) do list[i] = item[2] end
  return list
end

--- Returns the kind under which a name is registered: "parameter", "buffer", "module"; nil for
--- none.
---@param name string
---@return string?
function Module:_kind_of(name) return self._registered.kinds[name] end

--- Returns whether a buffer is left out of state_dict.
---@param name string
---@return boolean
function Module:_is_transient(name) return self._registered.transient[name] or false end

--- Returns the direct submodules under all their names, in order of registration.
---@return accelerate.nn.Module[] list kept until something is registered or removed: do not change
---  it
function Module:_child_list()
  local members = self._registered
  if not members.children then members.children = values_of(own(self, "module", {})) end
  return members.children
end

--- Returns the module's own entries as {name, value} pairs, in order of registration.
---@param kind "parameter"|"buffer"|"module"|nil nil: of all kinds
---@return table[]
function Module:_own(kind) return own(self, kind, {}) end

local function over(pairs_list)
  local i = 0
  return function()
    i = i + 1
    local item = pairs_list[i]
    if item then return item[1], item[2] end
  end
end

local function joined(prefix, name)
  return prefix == "" and name or prefix .. "." .. name
end

-- again: a module that has several names comes under each of them.
local function collect_modules(self, prefix, seen, list, again)
  if seen[self] then return list end
  seen[self] = true
  list[#list + 1] = { prefix, self }
  for _, child in ipairs(own(self, "module", {})) do
    collect_modules(child[2], joined(prefix, child[1]), seen, list, again)
  end
  if again then seen[self] = nil end
  return list
end

-- A lazy module has no parameters before its first forward; what lists parameters (optimizers,
-- prepare, state dicts) must not go on without them.
local function check_settled(module, prefix)
  if module._lazy then
    fail("%s%s: has no parameters before its first call: call the model once with a batch, then use its " ..
      "parameters (optimizers, prepare, state_dict, to)", module.__name, prefix ~= ""
      and (" ('%s')"):format(prefix) or "")
  end
end
Module._check_settled = check_settled

local function collect(self, kind, o)
  local list, seen = {}, {}
  local again = not o.remove_duplicate
  local modules = o.recurse and collect_modules(self, o.prefix, {}, {}, again) or { { o.prefix, self } }
  for _, module in ipairs(modules) do
    check_settled(module[2], module[1])
    for _, item in ipairs(own(module[2], kind, {})) do
      if again or not seen[item[2]] then
        seen[item[2]] = true
        list[#list + 1] = { joined(module[1], item[1]), item[2] }
      end
    end
  end
  return list
end

local WALK = {
  prefix = { "string", default = "" },
  recurse = { "boolean", default = true },
  remove_duplicate = { "boolean", default = true },
}

local MODULES = { memo = { "table", optional = true }, prefix = WALK.prefix,
  remove_duplicate = WALK.remove_duplicate }
local PARAMETERS = { "recurse" }
local NAMED = { "prefix", "recurse", "remove_duplicate" }
local NAMED_MODULES = { "memo", "prefix", "remove_duplicate" }

local EVERYTHING = { prefix = "", recurse = true, remove_duplicate = true }
local WEAK = { __mode = "v" }

local DEEPEST, MOST = 3, 1000 -- tables inside each other, and entries, that are looked through for modules

-- Counts the parameters of modules in a plain table that are not in `known`.
local function hidden_in(list, known, depth)
  local count, looked = 0, 0
  for _, value in next, list do
    looked = looked + 1
    if looked > MOST then break end
    if is_module(value) then
      if not known[value] then count = count + #value:parameters { recurse = true } end
    elseif is_parameter(value) then
      if not known[value] then count = count + 1 end
    elseif type(value) == "table" and getmetatable(value) == nil and depth < DEEPEST then
      count = count + hidden_in(value, known, depth + 1)
    end
  end
  return count
end

-- Says, once, that modules in a plain table are no part of the module that has the table.
local function warn_hidden(self)
  local modules, known = collect_modules(self, "", {}, {}), {}
  for _, item in ipairs(modules) do
    known[item[2]] = true
    for _, p in ipairs(own(item[2], "parameter", {})) do known[p[2]] = true end
  end
  for _, item in ipairs(modules) do
    local module = item[2]
    for name, value in next, module._values do -- at most one has something to say, nearly always
      if type(value) == "table" and getmetatable(value) == nil then
        local count = hidden_in(value, known, 1)
        if count > 0 then
          notice.trap("modules in a plain table", "%s: '%s' is a plain table, and what is in it is no " ..
            "part of the module: %d parameter%s of it will not be trained, moved or saved; " ..
            "use nn.ModuleList or nn.ModuleDict (for parameters nn.ParameterList)",
            module.__name, tostring(name), count, count == 1 and "" or "s")
        end
      end
    end
  end
end

--- Returns all parameters in order of registration, a module's own before its children's. Tied ones
--- occur once.
---@param recurse? boolean|{ recurse: boolean } default true; false: the module's own ones only
---@return accelerate.Tensor[] a fresh list
function Module:parameters(recurse, ...)
  -- every step calls this, for clipping: the walk is done again only after a registration anywhere
  if recurse == nil and select("#", ...) == 0 then
    local listed = self._registered.listed
    if not listed or listed.registrations ~= registrations() then
      listed = setmetatable(values_of(collect(self, "parameter", EVERYTHING)), WEAK)
      listed.n, listed.registrations = #listed, registrations()
      self._registered.listed = listed
      warn_hidden(self)
    end
    local list = {}
    for i = 1, listed.n do list[i] = listed[i] end
    return list
  end
  return values_of(collect(self, "parameter", options.read("parameters", PARAMETERS, WALK, recurse, ...)))
end

--- `for name, p in model:named_parameters() do`: names like "fc.weight", the order of parameters().
---@param ... any prefix = "", recurse = true, remove_duplicate = true, or a table of them
---@return fun(): string, accelerate.Tensor
function Module:named_parameters(...)
  return over(collect(self, "parameter", options.read("named_parameters", NAMED, WALK, ...)))
end

--- Returns all buffers, in order of registration.
---@param ... any recurse = true, or a table with it
---@return accelerate.Tensor[]
function Module:buffers(...)
  return values_of(collect(self, "buffer", options.read("buffers", PARAMETERS, WALK, ...)))
end

---@param ... any prefix = "", recurse = true, remove_duplicate = true, or a table of them
---@return fun(): string, accelerate.Tensor
function Module:named_buffers(...)
  return over(collect(self, "buffer", options.read("named_buffers", NAMED, WALK, ...)))
end

--- Returns the direct submodules in order of registration. One that has two names occurs once.
---@return accelerate.nn.Module[]
function Module:children()
  local list, seen = {}, {}
  for _, item in ipairs(own(self, "module", {})) do
    if not seen[item[2]] then list[#list + 1] = item[2] end
    seen[item[2]] = true
  end
  return list
end

---@return fun(): string, accelerate.nn.Module
function Module:named_children()
  local list, seen = {}, {}
  for _, item in ipairs(own(self, "module", {})) do
    if not seen[item[2]] then list[#list + 1] = item end
    seen[item[2]] = true
  end
  return over(list)
end

--- Returns the module itself and everything below it, each once, parents before children.
---@return accelerate.nn.Module[]
function Module:modules()
  return values_of(collect_modules(self, "", {}, {}))
end

--- `for name, module in model:named_modules() do`: the module itself comes first, under the name
--- "".
---@param ... any memo (a table whose keys are the modules to leave out; those that are walked are
---  added), prefix = "", remove_duplicate = true, or a table of them
---@return fun(): string, accelerate.nn.Module
function Module:named_modules(...)
  local o = options.read("named_modules", NAMED_MODULES, MODULES, ...)
  return over(collect_modules(self, o.prefix, o.memo or {}, {}, not o.remove_duplicate))
end

--- Returns the submodule at a path such as "net.0". "" is the module itself. Raises if there is
--- none.
---@param target string
---@return accelerate.nn.Module
function Module:get_submodule(target)
  options.value("get_submodule", "target", target, { "string" })
  local at, done = self, {}
  for name in target:gmatch("[^.]+") do
    if at._registered.kinds[name] ~= "module" then
      local names = {}
      for _, child in ipairs(own(at, "module", {})) do names[#names + 1] = child[1] end
      fail("get_submodule: %s has no submodule '%s'%s", done[1] and "'" .. table.concat(done, ".") .. "'"
        or at.__name, name,
        options.hint(name, names))
    end
    at = at._values[name]
    done[#done + 1] = name
  end
  return at
end

-- The last name of a path and the module that has it.
local function owner(self, where, path)
  options.value(where, "target", path, { "string" })
  local above, name = path:match("^(.*)%.([^.]+)$")
  return self:get_submodule(above or ""), name or path
end

local function get(self, where, path, kind)
  local at, name = owner(self, where, path)
  local names = {}
  if at._registered.kinds[name] == kind then return at._values[name] end
  for _, item in ipairs(own(at, kind, {})) do names[#names + 1] = item[1] end
  fail("%s: %s has no %s '%s'%s", where, at.__name, kind, name, options.hint(name, names))
end

--- Returns the parameter at a path such as "net.0.weight". Raises if there is none.
---@param target string
---@return accelerate.Tensor
function Module:get_parameter(target) return get(self, "get_parameter", target, "parameter") end

--- Returns the buffer at a path. Raises if there is none.
---@param target string
---@return accelerate.Tensor
function Module:get_buffer(target) return get(self, "get_buffer", target, "buffer") end

--- Replaces the submodule at a path by a module.
---@param target string
---@param module accelerate.nn.Module
function Module:set_submodule(target, module)
  local at, name = owner(self, "set_submodule", target)
  if not is_module(module) then
    fail("set_submodule: '%s' must be a module, got %s", target, options.show(module))
  end
  at:get_submodule(name)
  at[name] = module
end

--- Returns how many elements the parameters have. Tied ones count once.
---@param opts? { only_trainable: boolean }
---@return integer
function Module:num_parameters(opts)
  local o = options.check("num_parameters", opts, { only_trainable = { "boolean", default = false } })
  local n = 0
  for _, p in ipairs(self:parameters()) do
    if p.requires_grad or not o.only_trainable then n = n + p:numel() end
  end
  return n
end

return { collect = collect }
