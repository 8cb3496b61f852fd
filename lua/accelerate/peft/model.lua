--- PeftModel: a model whose weights stay as they are, with adapters that are trained.

local class = require "accelerate.utils.class"
local configs = require "accelerate.peft.config"
local core = require "accelerate.core"
local dataclasses = require "accelerate.config.dataclasses"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local layers = require "accelerate.peft.layer"
local lists = require "accelerate.utils.lists"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local scope = require "accelerate.utils.scope"
local targets = require "accelerate.peft.targets"
local weights = require "accelerate.weights"

local fail = options.fail

local M = {}

local LoraModel = nn.class "LoraModel"
function LoraModel:init(model) self.model = model end
function LoraModel:forward(...) return self.model(...) end

---@class accelerate.peft.PeftModel : accelerate.nn.Module
---@field base_model accelerate.nn.Module its `model` is the model with adapters
---@field peft_config table<string, accelerate.peft.LoraConfig> by adapter
---@field active_adapter string
--- A model with adapters. What it does not have itself, such as `generate` and `config`, is the
--- model's.
local PeftModel = nn.class "PeftModel"
PeftModel._is_peft = true
M.PeftModel = PeftModel

function PeftModel.__index(self, key)
  local own = rawget(PeftModel, key)
  if own ~= nil then return own end
  local base = rawget(self, "_values") and self._values.base_model
  local value = base and base.model[key]
  if type(value) ~= "function" or nn.Module[key] ~= nil then return nn.Module.__index(self, key) or value end
  return function(_, ...) return value(base.model, ...) end
end

-- All modules of a model that have adapters.
local function each(self, fn)
  for _, module in ipairs(self:modules()) do
    if class.is(module, layers.LoraLayer) or class.is(module, layers.ModulesToSaveWrapper) then fn(module) end
  end
end

local function is_taken(module)
  return class.is(module, layers.LoraLayer) or class.is(module, layers.ModulesToSaveWrapper)
end

-- ---- making adapters

-- The heads that models for a task have: trained as a whole with the adapter.
local HEADS = { SEQ_CLS = { "classifier", "score" }, TOKEN_CLS = { "classifier", "score" },
  QUESTION_ANS = { "qa_outputs" } }

-- The modules of a model whose paths end in one of some names, as { parent, name, module }.
local function ending_in(model, names)
  local found = {}
  for path, module in model:named_modules() do
    for _, child in ipairs(is_taken(module) and {} or module:_own("module")) do
      local at = path == "" and child[1] or path .. "." .. child[1]
      for _, name in ipairs(names) do
        if at:sub(-#name) == name and not class.is(child[2], layers.LoraLayer) then
          found[#found + 1] = { module, child[1], child[2] }
          break
        end
      end
    end
  end
  return found
end

-- Adds the heads that the model has to modules_to_save.
local function add_heads(model, config)
  local saved, known = {}, {}
  for i, name in ipairs(config.modules_to_save or {}) do saved[i], known[name] = name, true end
  local count = #saved
  for _, name in ipairs(HEADS[config.task_type] or {}) do
    if not known[name] and ending_in(model, { name })[1] then saved[#saved + 1] = name end
  end
  if #saved > count then config.modules_to_save = saved end
end

local function wrap_saved(model, config)
  local found = ending_in(model, config.modules_to_save or {})
  if config.modules_to_save and config.modules_to_save[1] and not found[1] then
    fail("get_peft_model: modules_to_save %s names no module of the model",
      options.show(config.modules_to_save))
  end
  return found
end

local function check_config(where, config)
  if not dataclasses.is(config, configs.LoraConfig) then
    fail("%s: expected a LoraConfig, got %s", where, options.show(config))
  end
end

--- Makes a model with one adapter of `model`, which is changed.
---@param model accelerate.nn.Module
---@param config accelerate.peft.LoraConfig
---@param adapter_name? string default "default"
function PeftModel:init(model, config, adapter_name)
  check_config("PeftModel", config)
  if not class.is(model, nn.Module) then
    fail("PeftModel: model must be a module, got %s", options.show(model))
  end
  if class.is(model, PeftModel) then fail("PeftModel: the model has adapters already; use add_adapter") end
  self.peft_config = {}
  model:requires_grad_(false)
  self.base_model = LoraModel(model)
  self:add_adapter(adapter_name or "default", config)
  self:set_adapter(adapter_name or "default")
end

function PeftModel:forward(...) return self.base_model.model(...) end

--- Adds an adapter, which set_adapter makes active.
---@param adapter_name string
---@param config accelerate.peft.LoraConfig
function PeftModel:add_adapter(adapter_name, config)
  check_config("add_adapter", config)
  options.value("add_adapter", "adapter_name", adapter_name, { "string" })
  if not adapter_name:match "^[%w_-]+$" then
    fail("add_adapter: a name is of letters, digits, _ and -, got %s", options.show(adapter_name))
  end
  if self.peft_config[adapter_name] then
    fail("add_adapter: the adapter '%s' is there already", adapter_name)
  end
  for name, other in next, self.peft_config do
    if other.bias ~= "none" or config.bias ~= "none" then
      fail("add_adapter: with bias = \"%s\" there can be one adapter, and '%s' is there",
        config.bias ~= "none" and config.bias or other.bias, name)
    end
  end
  local model = self.base_model.model
  add_heads(model, config)
  local rank_of = targets.by_pattern("rank_pattern", config.rank_pattern, config.r)
  local alpha_of = targets.by_pattern("alpha_pattern", config.alpha_pattern, config.lora_alpha)
  for _, item in ipairs(targets.find(model, config, is_taken)) do
    local layer = item[3]
    if not is_taken(layer) then
      layer = layers.LoraLayer(layer)
      layer.training = item[3].training
      item[1][item[2]] = layer
    end
    layer:add_adapter(adapter_name, config, rank_of(item[4]), alpha_of(item[4]))
  end
  for _, item in ipairs(wrap_saved(model, config)) do
    local wrapper = item[3]
    if not is_taken(wrapper) then
      wrapper = layers.ModulesToSaveWrapper(wrapper)
      item[1][item[2]] = wrapper
    end
    wrapper:add_adapter(adapter_name)
  end
  self.peft_config[adapter_name] = config
  if self.active_adapters then self:set_adapter(self.active_adapters) end
end

-- ---- which are active

-- The adapter that a parameter of this path belongs to, or nil.
local function adapter_of(path)
  return path:match "%.lora_[%w_]+%.([^.]+)%." or path:match "%.modules_to_save%.([^.]+)%."
end

-- Gradients: the active adapters' parameters, and biases as the configuration says.
local function set_gradients(self, active)
  local bias = self.peft_config[active[1]].bias
  local of_layers = {}
  each(self, function(module)
    if module.base_layer and module.base_layer.bias then of_layers[module.base_layer.bias] = true end
  end)
  local on = {}
  for _, name in ipairs(active) do on[name] = true end
  for path, p in self:named_parameters() do
    local adapter = adapter_of(path)
    local wanted
    if adapter then wanted = on[adapter]
    else wanted = path:find "bias$" and (bias == "all" or bias == "lora_only" and of_layers[p]) end
    if core._is_float(p) then p.requires_grad = wanted and true or false end
  end
end

--- Makes one adapter active, or several whose updates are added. Its parameters alone require
--- gradients.
---@param adapter_name string|string[]
function PeftModel:set_adapter(adapter_name)
  local active = type(adapter_name) == "table" and adapter_name or { adapter_name }
  if #active == 0 then fail("set_adapter: expected the name of an adapter") end
  for _, name in ipairs(active) do
    if not self.peft_config[name] then
      fail("set_adapter: there is no adapter %s; there are %s", options.show(name),
        table.concat(ordered.sorted_keys(self.peft_config), ", "))
    end
  end
  each(self, function(module)
    if module.merged and module.merged[1] then
      fail("set_adapter: adapters are merged into the weights; call unmerge_adapter first")
    end
    module.active = active
  end)
  self.active_adapters, self.active_adapter = active, active[1]
  set_gradients(self, active)
end

--- Removes an adapter that is not the only one.
---@param adapter_name string
function PeftModel:delete_adapter(adapter_name)
  if not self.peft_config[adapter_name] then
    fail("delete_adapter: there is no adapter %s", options.show(adapter_name))
  end
  self.peft_config[adapter_name] = nil
  local rest = ordered.sorted_keys(self.peft_config)
  if not rest[1] then
    fail("delete_adapter: '%s' is the only adapter; unload() gives the model back", adapter_name)
  end
  each(self, function(module)
    if module.delete_adapter then module:delete_adapter(adapter_name)
    else module.modules_to_save[adapter_name] = nil end
  end)
  if self.active_adapter == adapter_name then self:set_adapter(rest[1]) end
end

--- Calls fn(...), in which the model computes without adapters.
---@param fn fun(...): any
---@param ... any what fn gets
---@return any ... results of fn
function PeftModel:disable_adapter(fn, ...)
  options.value("disable_adapter", "fn", fn, { "function" })
  local function switch(on) each(self, function(module) module.disabled = on end) end
  return scope.run(function() switch(true) end, function() switch(false) end, fn, ...)
end

--- Returns the number of parameters that require gradients, and of all.
---@return integer trainable
---@return integer all
function PeftModel:get_nb_trainable_parameters()
  local trainable, all = 0, 0
  for _, p in ipairs(self:parameters()) do
    local n = p:numel() * (core._is_float(p) and 1 or 2)
    all = all + n
    if p.requires_grad then trainable = trainable + n end
  end
  return trainable, all
end

--- Prints how many parameters require gradients.
function PeftModel:print_trainable_parameters()
  local trainable, all = self:get_nb_trainable_parameters()
  print(("trainable params: %d || all params: %d || trainable%%: %.4f"):format(trainable, all,
    100 * trainable / all))
end

-- ---- merging

--- Adds the active adapters' updates to the weights.
---@param adapter_names? string[] default the active ones
function PeftModel:merge_adapter(adapter_names)
  local names = adapter_names or self.active_adapters
  each(self, function(module)
    if module.merge and not module.merged[1] then module:merge(names) end
  end)
end

--- Gives the weights back as they were before merge_adapter.
function PeftModel:unmerge_adapter()
  each(self, function(module)
    if module.unmerge then module:unmerge() end
  end)
end

-- Puts the modules that adapters stand around back in their places.
local function taken_apart(self)
  local model, found = self.base_model.model, {}
  for _, module in ipairs(model:modules()) do
    for _, child in ipairs(module:_own("module")) do
      if is_taken(child[2]) then found[#found + 1] = { module, child[1], child[2] } end
    end
  end
  for _, item in ipairs(found) do
    item[1][item[2]] = item[3].base_layer or item[3]:current()
  end
  return model
end

--- Returns the model with the active adapters' updates in its weights.
---@param adapter_names? string[] default the active ones
---@return accelerate.nn.Module
function PeftModel:merge_and_unload(adapter_names)
  self:merge_adapter(adapter_names)
  return taken_apart(self)
end

--- Returns the model without adapters; modules of modules_to_save are the original ones.
---@return accelerate.nn.Module
function PeftModel:unload()
  self:unmerge_adapter()
  each(self, function(module) module.disabled = true end)
  return taken_apart(self)
end

-- ---- files

-- An adapter's tensors by the names of files.
local function tensors_of(self, adapter, values)
  local dict, config = ordered.new(), self.peft_config[adapter]
  local trained = {}
  each(self, function(module)
    if module.base_layer and module.base_layer.bias then trained[module.base_layer.bias] = true end
  end)
  for path, p in self:named_parameters() do
    local name
    local replaced = path:find(".original_module.", 1, true)
    if adapter_of(path) == adapter then
      name = path:gsub("(%.lora_[%w_]+)%.[^.]+%.", "%1."):gsub("%.modules_to_save%.[^.]+%.", ".")
        :gsub("%.lora_magnitude_vector%.weight$", ".lora_magnitude_vector")
    elseif not replaced and not adapter_of(path) and path:find "bias$"
      and (config.bias == "all" or config.bias == "lora_only" and trained[p]) then
      name = path
    end
    if name then
      dict[name] = p
      if values then dict[name] = values[path] end
      if not core.is_tensor(dict[name]) then
        fail("save_pretrained: state_dict: '%s' must be a tensor, got %s", path, options.show(dict[name]))
      end
    end
  end
  return dict
end

local function write_folder(folder, config, dict)
  local made, why = fs.make_dirs(folder)
  if not made then fail("save_pretrained: %s", why) end
  configs.write("save_pretrained", folder, config)
  local list = {}
  for key, t in ordered.pairs(dict) do list[#list + 1] = { key, t:detach():contiguous() } end
  core.safetensors_save(fs.join(folder, "adapter_model.safetensors"), list, { format = "pt" })
end

local SAVE = {
  selected_adapters = { "list", optional = true },
  is_main_process = { "boolean", optional = true },
  state_dict = { "table", optional = true },
}

--- Writes adapters as PEFT does: adapter_config.json and adapter_model.safetensors; of an adapter
--- that is not "default" into a folder of its name below. Only the main process writes.
---@param directory string made if it is not there
---@param opts? { selected_adapters: string[], is_main_process: boolean, state_dict: table<string,
---  accelerate.Tensor> } selected_adapters: default all; is_main_process: whether this rank writes;
---  state_dict: the weights, default the model's. All ranks call it where the values of the model
---  are cut over them and state_dict is not given
function PeftModel:save_pretrained(directory, opts)
  local o = options.check("save_pretrained", opts, SAVE)
  options.value("save_pretrained", "directory", directory, { "string" })
  local writes = o.is_main_process
  if writes == nil then writes = require("accelerate.state").PartialState().is_main_process end
  for _, name in ipairs(o.selected_adapters or ordered.sorted_keys(self.peft_config)) do
    if not self.peft_config[name] then fail("save_pretrained: there is no adapter %s", options.show(name)) end
    local dict = (writes or not o.state_dict) and tensors_of(self, name, o.state_dict)
    dict = not o.state_dict and weights.received(self, dict) or dict
    if writes then write_folder(name == "default" and directory or fs.join(directory, name),
      self.peft_config[name], dict) end
  end
end

local function copy_into(where, path, name, t, value)
  if not lists.same(value.shape, t.shape) then
    fail("%s: %s: '%s' is [%s], the model has [%s]", where, path, name, table.concat(value.shape, ", "),
      table.concat(t.shape, ", "))
  end
  core.no_grad(function() t:copy_(value) end)
end

-- The model's own weight that PEFT writes beside an adapter of it, or after a change of the
-- vocabulary.
local function embedding_of(self, name)
  local path = name:match "^(.*)%.weight$"
  local module = path and path:gsub("%.base_layer$", ""):match "[^.]*$"
  if module ~= "embed_tokens" and module ~= "lm_head" then return nil end
  for own, p in self:named_parameters { remove_duplicate = false } do
    if own == name then return p end
  end
end

-- Returns whether a tensor is of a head that the task_type alone has added: a folder whose
-- configuration does not list the head may lack its values, and the model's own stay.
local function is_added(self, adapter, name, listed)
  local known = lists.set(listed or {})
  for _, head in ipairs(self.peft_config[adapter].modules_to_save or {}) do
    if not known[head] and name:find("." .. head .. ".", 1, true) then return true end
  end
  return false
end

-- Loads the tensors of a folder into an adapter. listed: modules_to_save of its configuration.
local function load_tensors(self, where, folder, adapter, listed)
  local path = fs.join(folder, "adapter_model.safetensors")
  if not fs.exists(path) then fail("%s: there is no %s", where, path) end
  local given, mine = files.load_safetensors(path), tensors_of(self, adapter)
  for name, t in ordered.pairs(mine) do
    local value = given[name]
    if value then copy_into(where, path, name, t, value)
    elseif not is_added(self, adapter, name, listed) then fail("%s: %s lacks '%s'", where, path, name) end
  end
  for name in ordered.pairs(given) do
    -- with bias = "all" PEFT writes biases of modules_to_save a second time
    local again = name:find(".modules_to_save.", 1, true) or name:find(".original_module.", 1, true)
    local base = not mine[name] and not again and embedding_of(self, name)
    if base then copy_into(where, path, name, base, given[name])
    elseif not mine[name] and not again then
      fail("%s: %s: '%s' is no part of the adapter", where, path, name) end
  end
end

local LOAD = { adapter_name = { "string", default = "default" },
  is_trainable = { "boolean", default = false } }

--- Adds an adapter of a folder in PEFT's layout.
---@param directory string
---@param opts? { adapter_name: string, is_trainable: boolean }
function PeftModel:load_adapter(directory, opts)
  local o = options.check("load_adapter", opts, LOAD)
  options.value("load_adapter", "directory", directory, { "string" })
  local config = configs.read("load_adapter", directory)
  local listed = config.modules_to_save
  self:add_adapter(o.adapter_name, config)
  load_tensors(self, "load_adapter", directory, o.adapter_name, listed)
end

--- Returns a model with the adapter of a folder, in evaluation mode.
---@param model accelerate.nn.Module changed
---@param directory string
---@param opts? { adapter_name: string, is_trainable: boolean } adapter_name: default "default";
---  is_trainable: the adapter requires gradients, default false
---@return accelerate.peft.PeftModel
function PeftModel.from_pretrained(model, directory, opts)
  local where = "PeftModel.from_pretrained"
  local o = options.check(where, opts, LOAD)
  options.value(where, "directory", directory, { "string" })
  local config = configs.read(where, directory)
  local listed = config.modules_to_save
  config.inference_mode = not o.is_trainable
  local self = PeftModel(model, config, o.adapter_name)
  load_tensors(self, where, directory, o.adapter_name, listed)
  if not o.is_trainable then self:requires_grad_off() end
  return self:eval()
end

--- Takes the gradients off all floating parameters.
function PeftModel:requires_grad_off()
  for _, p in ipairs(self:parameters()) do
    if core._is_float(p) then p.requires_grad = false end
  end
end

return M
