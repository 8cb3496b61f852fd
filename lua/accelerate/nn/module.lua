--- nn.Module: parameters, buffers and submodules registered by assignment, in the order of
--- assignment.
---
---   local Net = nn.class("Net")
---   function Net:init(width) self.fc = nn.Linear(width, 10) end
---   function Net:forward(x) return self.fc(x) end
---   local net = Net(64)
---
--- An instance has four fields. __new makes them and they are never nil, so reading and assigning
--- them calls no metamethod:
---
---   training
---   _values      what is assigned to the instance, by name; each assignment passes __newindex. A
---                layer of the library reads its own attributes there: `self._values.weight` is
---                `self.weight` without a call.
---   _registered  which of the values are registered:
---                kinds      name -> "parameter" | "buffer" | "module"
---                order      the names, in order of registration
---                transient  name -> true for buffers that are not saved
---                computed   nil, or name -> how an attribute is computed (nn/computed.lua)
---                children   the modules as a list, or nil (_child_list)
---                listed     what parameters() returned last, or nil
---   _hooked      false, or the lists of hooks by kind (nn/hooks.lua)
---
--- Lua does not say in which order `self.a, self.b = X(), Y()` assigns (LuaJIT: the last first),
--- and the order of registration is that of parameters, files and optimizer state: assign modules
--- and parameters one by one.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local notice = require "accelerate.utils.notice"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local description = require "accelerate.nn.description"
local hooks = require "accelerate.nn.hooks"
local parameter = require "accelerate.nn.parameter"

local fail, is_parameter = options.fail, parameter.is

---@class accelerate.nn.Module
---@field training boolean
local Module = class("Module")

-- ---- attributes ---------------------------------------------------------------------------------

function Module.__new(Class)
  local members = { kinds = {}, order = {}, transient = {} }
  return setmetatable({ training = true, _values = {}, _registered = members, _hooked = false }, Class)
end

-- rawget: of a table that __new did not make, `_values` would be looked up here again.
function Module.__index(self, key)
  local value = rawget(self, "_values")[key]
  if value ~= nil then return value end
  return getmetatable(self)[key]
end

local function is_module(value)
  return type(value) == "table" and class.is(value, Module)
end

local function kind_of(value)
  if is_parameter(value) then return "parameter" end
  if is_module(value) then return "module" end
end

local function check_name(self, key, kind)
  if type(key) ~= "string" or key == "" or key:find(".", 1, true) then
    fail("%s: a %s's name must be a string without dots that is not empty, got %s", self.__name, kind,
      options.show(key))
  end
  if Module[key] ~= nil or rawget(self, key) ~= nil then
    fail("%s: '%s' is a name of nn.Module's own; call the %s something else", self.__name, key, kind)
  end
end

-- Counts registrations of all modules: what was listed before the last one may be out of date.
local registrations = 0

local function unregister(self, key)
  registrations = registrations + 1
  local members = self._registered
  members.kinds[key], members.transient[key], members.children = nil, nil, nil
  local order = members.order
  for i = 1, #order do
    if order[i] == key then
      table.remove(order, i)
      break
    end
  end
end

local function register(self, key, value, kind)
  registrations = registrations + 1
  local members = self._registered
  local kinds, order = members.kinds, members.order
  if kinds[key] ~= kind then
    check_name(self, key, kind)
    if kinds[key] then unregister(self, key) end
    kinds[key] = kind
    order[#order + 1] = key
  end
  members.children = nil
  self._values[key] = value
end

function Module.__newindex(self, key, value)
  local kind, former = kind_of(value), self._registered.kinds[key]
  local computed = self._registered.computed
  if computed and computed[key] then return computed[key].assign(self, value) end
  if kind then
    register(self, key, value, kind)
  elseif former == nil then
    self._values[key] = value
  elseif value == nil then
    unregister(self, key)
    self._values[key] = nil
  elseif former == "buffer" and core.is_tensor(value) then
    self._values[key] = value
  else
    local wanted = former == "parameter" and "an nn.Parameter" or former == "buffer" and "a tensor"
      or "a module"
    fail("%s: '%s' is a %s and can be set to %s or nil, got %s", self.__name, key, former, wanted,
      options.show(value))
  end
end

--- Registers a parameter under `name`, as `self[name] = value` does; nil removes it.
---@param name string
---@param value accelerate.Tensor?
function Module:register_parameter(name, value)
  if value ~= nil and not is_parameter(value) then
    fail("%s: register_parameter('%s') takes an nn.Parameter, got %s", self.__name, tostring(name),
      options.show(value))
  end
  self[name] = value
end

--- Registers a submodule under `name`.
---@param name string
---@param value accelerate.nn.Module
function Module:add_module(name, value)
  if not is_module(value) then
    fail("%s: add_module('%s') takes a module, got %s", self.__name, tostring(name), options.show(value))
  end
  self[name] = value
end
Module.register_module = Module.add_module

local BUFFER = { persistent = { "boolean", default = true } }

--- Registers a tensor that is not trained but belongs to the state: it is saved (unless persistent
--- = false) and follows to().
---@param name string
---@param value accelerate.Tensor?
---@param opts? { persistent: boolean }
function Module:register_buffer(name, value, opts)
  local o = options.check("register_buffer", opts, BUFFER)
  if value ~= nil and not core.is_tensor(value) then
    fail("%s: register_buffer('%s') takes a tensor, got %s", self.__name, tostring(name), options.show(value))
  end
  if value == nil then
    if self._registered.kinds[name] then self[name] = nil end
    return
  end
  register(self, name, parameter.buffer(value), "buffer")
  self._registered.transient[name] = not o.persistent or nil
end

-- ---- calling ------------------------------------------------------------------------------------

local function pass(...) return ... end

--- Calling a module runs its pre-hooks, forward and its hooks. Not a tail call: errors find their
--- layer by this frame.
function Module.__call(self, ...)
  local seen = recording.modules
  if seen and not seen[self] then seen[#seen + 1], seen[self] = self, true end
  if self._hooked then return pass(hooks.call(self, ...)) end
  return pass(self:forward(...))
end

--- Computes the module's results. Every class that is called defines its own.
function Module:forward()
  fail("%s has no forward method: define `function %s:forward(x) ... end`", self.__name, self.__name)
end

hooks.install(Module)

-- ---- walking ------------------------------------------------------------------------------------

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

local function collect_modules(self, prefix, seen, list)
  if seen[self] then return list end
  seen[self] = true
  list[#list + 1] = { prefix, self }
  for _, child in ipairs(own(self, "module", {})) do
    collect_modules(child[2], joined(prefix, child[1]), seen, list)
  end
  return list
end

-- A lazy module has no parameters before its first forward; what lists parameters (optimizers,
-- prepare, state dicts) must not go on without them.
local function check_settled(module, prefix)
  if module._lazy then
    fail("%s%s: has no parameters before its first call: call the model once with a batch, then use its "
      .. "parameters (optimizers, prepare, state_dict, to)", module.__name, prefix ~= ""
      and (" ('%s')"):format(prefix) or "")
  end
end
Module._check_settled = check_settled

local function collect(self, kind, o)
  local list, seen = {}, {}
  local modules = o.recurse and collect_modules(self, o.prefix, {}, {}) or { { o.prefix, self } }
  for _, module in ipairs(modules) do
    check_settled(module[2], module[1])
    for _, item in ipairs(own(module[2], kind, {})) do
      if not (o.remove_duplicate and seen[item[2]]) then
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
          notice.trap("modules in a plain table", "%s: '%s' is a plain table, and what is in it is no part "
            .. "of the module: %d parameter%s of it will not be trained, moved or saved; use nn.ModuleList "
            .. "or nn.ModuleDict (for parameters nn.ParameterList)",
            module.__name, tostring(name), count, count == 1 and "" or "s")
        end
      end
    end
  end
end

--- Returns all parameters in order of registration, a module's own before its children's. Tied ones
--- occur once.
---@param opts? { recurse: boolean }
---@return accelerate.Tensor[] a fresh list
function Module:parameters(opts)
  -- every step asks, for clipping: the walk is done again only after a registration anywhere
  if opts == nil then
    local listed = self._registered.listed
    if not listed or listed.registrations ~= registrations then
      listed = setmetatable(values_of(collect(self, "parameter", EVERYTHING)), WEAK)
      listed.n, listed.registrations = #listed, registrations
      self._registered.listed = listed
      warn_hidden(self)
    end
    local list = {}
    for i = 1, listed.n do list[i] = listed[i] end
    return list
  end
  return values_of(collect(self, "parameter", options.check("parameters", opts, WALK)))
end

--- `for name, p in model:named_parameters() do`: names like "fc.weight", the order of parameters().
---@param opts? { prefix: string, recurse: boolean, remove_duplicate: boolean }
---@return fun(): string, accelerate.Tensor
function Module:named_parameters(opts)
  return over(collect(self, "parameter", options.check("named_parameters", opts, WALK)))
end

--- Returns all buffers, in order of registration.
---@return accelerate.Tensor[]
function Module:buffers(opts)
  return values_of(collect(self, "buffer", options.check("buffers", opts, WALK)))
end

---@return fun(): string, accelerate.Tensor
function Module:named_buffers(opts)
  return over(collect(self, "buffer", options.check("named_buffers", opts, WALK)))
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
---@param opts? { prefix: string }
---@return fun(): string, accelerate.nn.Module
function Module:named_modules(opts)
  local o = options.check("named_modules", opts, { prefix = WALK.prefix })
  return over(collect_modules(self, o.prefix, {}, {}))
end

--- Returns the submodule at a path such as "net.0". "" is the module itself. Raises if there is
--- none.
---@param path string
---@return accelerate.nn.Module
function Module:get_submodule(path)
  local at, done = self, {}
  for name in path:gmatch("[^.]+") do
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
  options.value(where, "path", path, { "string" })
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
---@param path string
---@return accelerate.Tensor
function Module:get_parameter(path) return get(self, "get_parameter", path, "parameter") end

--- Returns the buffer at a path. Raises if there is none.
---@param path string
---@return accelerate.Tensor
function Module:get_buffer(path) return get(self, "get_buffer", path, "buffer") end

--- Replaces the submodule at a path by a module.
---@param path string
---@param module accelerate.nn.Module
function Module:set_submodule(path, module)
  local at, name = owner(self, "set_submodule", path)
  if not is_module(module) then
    fail("set_submodule: '%s' must be a module, got %s", path, options.show(module))
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

-- ---- modes, gradients, placement ----------------------------------------------------------------

--- Puts the module and everything below it into training mode (dropout on), or out of it.
---@param mode? boolean default true
---@return accelerate.nn.Module self
function Module:train(mode)
  if mode == nil then mode = true end
  options.value(self.__name, "train's mode", mode, { "boolean" })
  for _, module in ipairs(self:modules()) do module.training = mode end
  return self
end

--- Puts the module and everything below it into evaluation mode (dropout off): `train(false)`.
---@return accelerate.nn.Module self
function Module:eval() return self:train(false) end

--- Calls fn(module) for everything below the module, children first, and last for the module
--- itself.
---@param fn fun(module: accelerate.nn.Module)
---@return accelerate.nn.Module self
function Module:apply(fn)
  options.value(self.__name, "apply's function", fn, { "function" })
  for _, child in ipairs(self:children()) do child:apply(fn) end
  fn(self)
  return self
end

--- Sets whether the parameters require gradients from now on.
---@param on? boolean default true
---@return accelerate.nn.Module self
function Module:requires_grad_(on)
  if on == nil then on = true end
  for _, p in ipairs(self:parameters()) do p.requires_grad = on end
  return self
end

--- Drops all gradients, or with set_to_none = false fills them with zeros.
---@param set_to_none? boolean|{ set_to_none: boolean } default true
function Module:zero_grad(set_to_none)
  parameter.zero_grad(self:parameters(), set_to_none)
end

--- Converts parameters and buffers of floating type to a type, and moves all to a device. The
--- tensors stay the same objects, so ties and optimizers hold.
---@param target string|{ dtype: string?, device: string? } a dtype, a device, or both by name
---@param other string? the one of the two that `target` is not
---@return accelerate.nn.Module self
function Module:to(target, other)
  local dtype, device = parameter.destination(self.__name, target, other)
  local seen = {}
  for _, kind in ipairs { "parameter", "buffer" } do
    for _, item in ipairs(collect(self, kind, { recurse = true, remove_duplicate = true, prefix = "" })) do
      if not seen[item[2]] then parameter.convert(item[2], dtype, device) end
      seen[item[2]] = true
    end
  end
  return self
end

--- Converts parameters and buffers of floating type to float32: `to("float32")`.
function Module:float() return self:to("float32") end
--- Converts parameters and buffers of floating type to float64: `to("float64")`.
function Module:double() return self:to("float64") end
--- Converts parameters and buffers of floating type to float16: `to("float16")`.
function Module:half() return self:to("float16") end
--- Converts parameters and buffers of floating type to bfloat16: `to("bfloat16")`.
function Module:bfloat16() return self:to("bfloat16") end
--- Moves parameters and buffers to the CPU: `to("cpu")`.
function Module:cpu() return self:to({ device = "cpu" }) end
--- Moves parameters and buffers to the GPU: `to("cuda")`.
function Module:cuda() return self:to({ device = "cuda" }) end
--- Converts parameters and buffers of floating type to a dtype: `to(dtype)`.
---@param dtype accelerate.DType
function Module:type(dtype) return self:to({ dtype = dtype }) end

description.install(Module)
Module._is_module = is_module

return Module
