-- Hooks beside Accelerate's: which modules get which, the order in which they are called, and where
-- tensors are meanwhile (generators/gen_hooks_reference.py wrote it down).
local accelerate = require "accelerate"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local hooks = require "accelerate.hooks"
local json = require "accelerate.utils.json"
local nn = require "accelerate.nn"
local ordered = require "accelerate.utils.ordered"
local tensor = require "accelerate.tensor"
local tree_models = require "spec.support.tree_models"

local events = {}
local function note(...) events[#events + 1] = (...):format(select(2, ...)) end

-- "c" or "m" for each tensor that a module has itself.
local function devices_of(module)
  local list = {}
  for _, t in module:named_parameters { recurse = false, remove_duplicate = false } do
    list[#list + 1] = t.device:sub(1, 1)
  end
  for _, t in module:named_buffers { recurse = false } do list[#list + 1] = t.device:sub(1, 1) end
  return table.concat(list)
end

local function all_devices(model)
  local list = {}
  for _, module in model:named_modules() do list[#list + 1] = devices_of(module) end
  return table.concat(list, " ")
end

local function class_of(name)
  local Node = nn.class(name)
  function Node:forward(x)
    note("run %s %s", self.path, devices_of(self))
    for _, child in ipairs(self:children()) do x = child(x) end
    return x
  end
  return Node
end

local Mark = class("Mark", hooks.ModelHook)

local null = json.null
local function or_null(value) if value == nil then return null end return value end

local function shown(hook)
  if class.is(hook, hooks.SequentialHook) then
    local list = {}
    for i, one in ipairs(hook.hooks) do list[i] = shown(one) end
    return list
  end
  if class.is(hook, Mark) then return "mark" end
  return { or_null(hook.execution_device), hook.offload, hook.io_same_device, hook.offload_buffers,
    hook.place_submodules, or_null(hook.skip_keys) }
end

local function leaves(hook, list)
  list = list or {}
  if not class.is(hook, hooks.SequentialHook) then list[#list + 1] = hook
  else
    for _, one in ipairs(hook.hooks) do leaves(one, list) end
  end
  return list
end

local function watch(hook, path, number)
  for _, name in ipairs { "pre", "post" } do
    local former = hook[name .. "_forward"]
    hook[name .. "_forward"] = function(...)
      note("%s %s %d", name, path, number)
      return former(...)
    end
  end
end

local function plain(map)
  local result = {}
  for key, value in ordered.pairs(map) do
    if value ~= null then
      result[key] = type(value) == "table" and value[1] == nil and plain(value) or value
    end
  end
  return result
end

-- Accelerate gives the modules of a tied tensor one each when it moves them; here it stays one,
-- which is where any of theirs is.
local function as_one(entry, devices)
  local place, list, at = {}, {}, 0
  for path, module in tree_models.build(entry.model):named_modules() do
    for _, each in ipairs { { module:named_parameters { recurse = false } },
      { module:named_buffers { recurse = false } } } do
      for name in unpack(each) do
        at = at + 1
        place[path == "" and name or path .. "." .. name] = at
      end
    end
  end
  for letter in devices:gmatch "%a" do list[#list + 1] = letter end
  for _ = 1, #entry.ties do
    for _, pair in ipairs(entry.ties) do
      local a, b = place[pair[1]], place[pair[2]]
      if list[a] == "c" or list[b] == "c" then list[a], list[b] = "c", "c" end
    end
  end
  at = 0
  return (devices:gsub("%a", function()
    at = at + 1
    return list[at]
  end))
end

local CALLS = { align = hooks.attach_align_device_hook, blocks = hooks.attach_align_device_hook_on_blocks }

local function call(case, model)
  local o = plain(case.options)
  if case.map then
    o.weights_map = {}
    for path, module in model:named_modules() do
      local prefix = path == "" and "" or path .. "."
      for name, t in module:named_parameters { recurse = false } do
        o.weights_map[prefix .. name] = t:clone()
      end
      for name, t in module:named_buffers { recurse = false } do o.weights_map[prefix .. name] = t:clone() end
    end
  end
  if case.call ~= "execution" then return CALLS[case.call](model, o) end
  local device = o.execution_device
  o.execution_device = nil
  hooks.attach_execution_device_hook(model, device, o)
end

-- What Accelerate's case says, of ours.
local function result_of(entry, case)
  local model = tree_models.tie(tree_models.build(entry.model, class_of), entry.ties)
  for path, module in model:named_modules() do module.path = path end
  for _, path in ipairs(case.marked) do
    hooks.add_hook_to_module(path == "" and model or model:get_submodule(path), Mark())
  end
  call(case, model)
  local result = { hooks = {}, attached = all_devices(model) }
  for path, module in model:named_modules() do
    local hook = module._values._hf_hook
    if hook then
      result.hooks[path] = shown(hook)
      for i, one in ipairs(leaves(hook)) do watch(one, path, i - 1) end
    end
  end
  events = {}
  model(tensor.zeros(1))
  result.events, result.left = events, all_devices(model)
  hooks.remove_hook_from_submodules(model)
  result.removed = all_devices(model)
  return result
end

describe("hooks beside Accelerate's", function()
  local entries
  setup(function() entries = tree_models.read "spec/reference/hooks_reference.json" end)

  it("stand on the same modules, are called in the same order, and move the same tensors", function()
    local n = 0
    for i, entry in ipairs(entries.models) do
      for k, case in ipairs(entry.cases) do
        local got, what = result_of(entry, case), ("model %d, case %d: %s"):format(i, k,
          json.encode(case.options))
        for _, field in ipairs { "hooks", "attached", "events", "left", "removed" } do
          local expected = case[field]
          if field == "hooks" then expected = plain(expected) end
          if type(expected) == "string" then expected = as_one(entry, expected) end
          assert.same(expected, got[field], what .. ": " .. field)
        end
        n = n + 1
      end
    end
    assert.is_true(n > 150)
  end)

  it("follow and replace each other on a module", function()
    local Told = class("Told", hooks.ModelHook)
    function Told:init(name) self.name = name end
    function Told:init_hook(module) note("init %s", self.name) return module end
    function Told:pre_forward(_, ...) note("pre %s", self.name) return ... end
    function Told:post_forward(_, ...) note("post %s", self.name) return ... end
    function Told:detach_hook(module) note("detach %s", self.name) return module end
    for i, entry in ipairs(entries.sequences) do
      local module = nn.Identity()
      events = {}
      for k, step in ipairs(entry.steps) do
        local name = tostring(k - 1)
        if step == "add" or step == "append" then
          hooks.add_hook_to_module(module, Told(name), { append = step == "append" })
        elseif step == "both" then
          hooks.add_hook_to_module(module, hooks.SequentialHook(Told(name .. "a"), Told(name .. "b")),
            { append = true })
        elseif step == "remove" then hooks.remove_hook_from_module(module)
        else module(tensor.zeros(1)) end
      end
      assert.same(entry.events, events, ("sequence %d: %s"):format(i, table.concat(entry.steps, " ")))
    end
  end)

  it("have models of a chain take turns on a device", function()
    local Mover = nn.class "Mover"
    function Mover:init(number) self.number, self.weight = number, nn.Parameter(tensor.zeros(2)) end
    function Mover:to(device)
      note("%d to %s", self.number, device)
      core.no_grad(function() self.weight.data = core.empty({ 2 }, { device = device }) end)
      return self
    end
    function Mover:forward() note("%d runs on %s", self.number, self.weight.device) end
    for i, entry in ipairs(entries.turns) do
      local models, held = {}, {}
      events = {}
      for k = 1, 3 do
        models[k] = Mover(k - 1)
        held[k] = select(2, accelerate.cpu_offload_with_hook(models[k],
          { execution_device = "meta", prev_module_hook = held[k - 1] }))
      end
      for _, step in ipairs(entry.steps) do
        local k = step[2] + 1
        if step[1] == "call" then models[k]()
        elseif step[1] == "offload" then held[k]:offload()
        else held[k]:remove() end
      end
      assert.same(entry.events, events, "turns " .. i)
    end
  end)
end)
