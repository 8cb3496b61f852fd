--- Modules as functions of their parameters and buffers.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

-- The names of values, in order; a list of tables is one table.
local function joined_values(values)
  local all, names = {}, {}
  for _, list in ipairs(values[1] ~= nil and values or { values }) do
    options.value("functional_call", "values", list, { "table" })
    for name, value in next, list do
      if type(name) ~= "string" or not core.is_tensor(value) then
        fail("functional_call: values: expected tensors by name, got %s = %s", options.show(name),
          options.show(value))
      end
      if all[name] == nil then names[#names + 1] = name end
      all[name] = value
    end
  end
  table.sort(names)
  return all, names
end

--- Calls the module with other parameters and buffers, which need not be leaves. Those that are not
--- named stay its own; a tensor that the module has under several names is replaced under each.
---@param module accelerate.nn.Module
---@param values table<string, accelerate.Tensor>|table[] by the names of named_parameters and
---  named_buffers, or a list of such tables
---@param ... any the module's arguments, or one list of them, as PyTorch's tuple: a module that
---  takes a list gets it as { list }
---@return any ...
function M.functional_call(module, values, ...)
  if type(module) ~= "table" or type(module.get_submodule) ~= "function" then
    fail("functional_call: module: expected a module, got %s", options.show(module))
  end
  options.value("functional_call", "values", values, { "table" })
  local former, all, names = {}, joined_values(values)
  local function swap()
    local new, named = {}, {} -- the tensors that go -> those that come; modules -> keys that were named
    for _, name in ipairs(names) do
      local path, key = name:match "^(.*)%.([^.]+)$"
      local owner = module:get_submodule(path or "")
      key = key or name
      local old = owner._values[key]
      if not core.is_tensor(old) then
        fail("functional_call: the module has no parameter or buffer %s", name)
      end
      named[owner] = named[owner] or {}
      named[owner][key] = all[name]
      new[old] = all[name]
    end
    for _, owner in ipairs(module:modules()) do
      for key, old in next, owner._values do
        local value = named[owner] and named[owner][key] or core.is_tensor(old) and new[old]
        if value then former[#former + 1] = { owner, key, old, value } end
      end
    end
    for _, entry in ipairs(former) do entry[1]._values[entry[2]] = entry[4] end
  end
  local function restore()
    for i = #former, 1, -1 do former[i][1]._values[former[i][2]] = former[i][3] end
  end
  local args, n = { ... }, select("#", ...)
  local list = args[1]
  if n == 1 and type(list) == "table" and getmetatable(list) == nil and list[1] ~= nil then
    args, n = list, table.maxn(list)
  end
  return require("accelerate.utils.scope").run(function() end, restore, function()
    swap()
    return module(unpack(args, 1, n))
  end)
end

--- The parameters and the buffers of modules of one form, each stacked along dim 1: what vmap maps
--- over with functional_call to run an ensemble.
---@param models accelerate.nn.Module[]
---@return table<string, accelerate.Tensor> parameters leaves, which require a gradient where the
---  modules' do
---@return table<string, accelerate.Tensor> buffers
function M.stack_module_state(models)
  options.value("stack_module_state", "models", models, { "list" })
  if #models == 0 then fail("stack_module_state: expected at least one module, got {}") end
  local function gather(method)
    local found, result = {}, {}
    for i, model in ipairs(models) do
      if type(model) ~= "table" or type(model[method]) ~= "function" then
        fail("stack_module_state: entry %d: expected a module, got %s", i, options.show(model))
      end
      if model.training ~= models[1].training then
        fail("stack_module_state: module %d is in %s mode, module 1 is not", i,
          model.training and "training" or "evaluation")
      end
      for name, x in model[method](model) do
        found[name] = found[name] or {}
        found[name][i] = x
      end
    end
    for name, list in next, found do
      for i = 1, #models do
        local x, first = list[i], list[1]
        if not x or not first or not lists.same(x.shape, first.shape)
          or x.requires_grad ~= first.requires_grad
        then
          fail("stack_module_state: %s of module %d is %s, of module 1 %s", name, i, options.show(x),
            options.show(first))
        end
      end
      result[name] = core.no_grad(core.stack, list, 1):requires_grad_(list[1].requires_grad)
    end
    return result
  end
  return gather("named_parameters"), gather("named_buffers")
end

return M
