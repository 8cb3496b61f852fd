--- What a checkpoint holds, file by file, under Accelerate's names. A list of entries, in the order
--- in which they are written and read: the objects that an Accelerator prepared, then what is each
--- rank's own.
---
---   model.safetensors  optimizer.bin  scheduler.bin  sampler.bin  scaler.pt   (a second one of a
---     kind: optimizer_1.bin, ...)
---   dl_state_dict.bin            with use_stateful_dataloader: where the pass is
---   random_states_<rank>.pkl     generators, step, open accumulation window, the rank's loaders
---   gradients_<rank>.safetensors gradients of an open accumulation window
---   custom_checkpoint_<i>.pkl    registered objects
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parallel = require "accelerate.parallel"
local resharded = require "accelerate.checkpoint.resharded"
local sharded = require "accelerate.checkpoint.sharded"
local state = require "accelerate.state"
local weights = require "accelerate.weights"

local fail = options.fail
local gradient_state = state.GradientState()

local M = {}

local function numbered(stem, i, ending)
  return ("%s%s.%s"):format(stem, i > 1 and "_" .. (i - 1) or "", ending)
end

-- Runs fn(...), and names the file of the checkpoint in its error: a state can be whole and still
-- not be one that this object takes.
local function with_file(source, name, fn, ...)
  local ok, why = pcall(fn, ...)
  if ok then return end
  local path = fs.join(source.path, name)
  why = tostring(why):gsub("^[^:\n]*:%d+: ", "")
  if why:find(path, 1, true) then fail("%s", why) end
  fail("load_state: %s: %s", path, why)
end

-- ---- models

--- Says what of models that LocalSGD trains does not go into a checkpoint.
---@param models accelerate.nn.Module[]
function M.note_local(models)
  for i, model in ipairs(models) do
    if parallel.record_of(model).local_only then
      notice.main_once(
        "save_state: LocalSGD trains model %d: parameters and optimizer states that each rank " ..
        "has for itself are not saved but those of rank 0; a resumed run goes on from these on all ranks, " ..
        "not with the same bits", i)
    end
  end
end

--- Returns the weights of prepared models, as hooks may change them before they are written.
---@param models accelerate.nn.Module[]
---@return table<string, accelerate.Tensor>[]
function M.weights_of(models)
  local list = {}
  for i, model in ipairs(models) do list[i] = model:state_dict { keep_vars = true } end
  return list
end

--- Adds the weights to a save.
---@param save accelerate.checkpoint.Save
---@param opts { max_shard_size: integer|string, safe_serialization: boolean }
function M.save_weights(list, save, opts)
  for i, dict in ipairs(list) do weights.add(dict, i, save, opts) end
end

local function load_model(model, path, strict)
  if not path:match "%.bin$" then return weights.load_checkpoint_in_model(model, path, strict) end
  local dict, check = files.lend(path)
  model:load_state_dict(dict, strict)
  check()
end

local function load_weights(models, source, opts)
  for i, model in ipairs(models) do
    local name, strict = weights.listed(i, source.files), { strict = opts.strict ~= false }
    if name and parallel.is_replicated(model) then
      with_file(source, name, load_model, model, fs.join(source.path, name), strict)
    elseif not resharded.load_model(model, source, i, strict.strict) then
      fail("load_state: %s has no weights for model %d of this Accelerator", source.path, i)
    end
  end
end

-- ---- what the main process writes for all ranks

-- An order to begin anew: what a loader's state says without the place inside the pass.
local function order_of(loader)
  local found = loader:state_dict()
  found.batches, found.seed = 0, nil
  return found
end

local function custom_file(i) return ("custom_checkpoint_%d.pkl"):format(i - 1) end

-- The state of the i-th object of a kind. A file holds no nil, and without a file the checkpoint
-- could not be loaded.
local function state_of(object, what, i)
  local found = object:state_dict()
  if found ~= nil then return found end
  local Class = class.of(object)
  fail("save_state: state_dict() of %s %d%s returned nil; expected a table, a tensor, " ..
    "a number, a text or a boolean", what, i, Class and (" (%s)"):format(Class.__name) or "")
end

-- File name -> what it holds, for the objects that are alike on all ranks.
local function shared_values(accelerator, without_optimizers)
  local values = ordered.new()
  local function add(name, ...) values[name] = state_of(...) end
  for i, optimizer in ipairs(without_optimizers and {} or accelerator._optimizers) do
    add(numbered("optimizer", i, "bin"), optimizer, "optimizer", i)
  end
  for i, scheduler in ipairs(accelerator._schedulers) do
    add(numbered("scheduler", i, "bin"), scheduler, "scheduler", i)
  end
  for i, loader in ipairs(accelerator._dataloaders) do
    values[numbered("sampler", i, "bin")] = order_of(loader)
    if accelerator.use_stateful_dataloader then
      add(numbered("dl_state_dict", i, "bin"), loader, "loader", i)
    end
  end
  if accelerator._scaler then add("scaler.pt", accelerator._scaler, "scaler", 1) end
  for i, object in ipairs(accelerator._custom_objects) do
    add(custom_file(i), object, "registered object", i)
  end
  return values
end

--- Adds what is alike on all ranks, but for the weights, to a save.
---@param save accelerate.checkpoint.Save
---@param without_optimizers boolean
function M.save_shared(accelerator, save, without_optimizers)
  for name, value in ordered.pairs(shared_values(accelerator, without_optimizers)) do
    files.write(value, fs.join(save.draft, name), nil, "save_state", save.files)
  end
end

-- ---- what is each rank's own

-- The gradients of an open accumulation window, by "<model>.<parameter>"; nil where there are none.
local function gradients_of(models)
  if not parallel.any_gradient(models) then return nil end
  local list = {}
  for i, model in ipairs(models) do
    for name, p in model:named_parameters() do
      list[("%d.%s"):format(i - 1, name)] = parallel.gradient_of(p)
    end
  end
  return list
end

-- The scales of eight bits that models have between steps, model by model.
local function scales_of(accelerator)
  local list = {}
  for i, scales in pairs(accelerator:_float8_scales()) do list[tostring(i - 1)] = scales:state_dict() end
  return next(list) and list
end

-- Buffers that ranks keep apart, by "<model>.<buffer>".
local function own_buffers(models)
  local list = {}
  for i, model in ipairs(models) do
    if parallel.keeps_buffers(model) then
      for name, b in model:named_buffers() do list[("%d.%s"):format(i - 1, name)] = b end
    end
  end
  return list
end

local function random_states()
  return { generator = core.default_generator():get_state(), math_random = core._math_random_state() }
end

local function own_values(accelerator)
  local models, loaders = accelerator._models, {}
  for i, loader in ipairs(accelerator._dataloaders) do loaders[i] = loader:state_dict() end
  return {
    step = accelerator.step, num_processes = accelerator.num_processes, random = random_states(),
    sync_gradients = gradient_state.sync_gradients, window = accelerator._window or false,
    windows = parallel.window_states(models), loaders = loaders, float8 = scales_of(accelerator),
    buffers = own_buffers(models),
  }
end

local function own_file(rank) return ("random_states_%d.pkl"):format(rank) end
local function gradients_file(rank) return ("gradients_%d.safetensors"):format(rank) end

-- The backward pass writes gradients right after the call, so a thread gets copies.
local function copied(gradients)
  local copies = {}
  for name, g in pairs(gradients) do copies[name] = g:clone() end
  return copies
end

--- Adds what is this rank's own to a save.
---@param save accelerate.checkpoint.Save
function M.save_own(accelerator, save)
  local rank, gradients = accelerator.process_index, gradients_of(accelerator._models)
  if gradients and save.async then gradients = copied(gradients) end
  if gradients then weights.save(gradients, fs.join(save.draft, gradients_file(rank)), true, save.files) end
  files.write(own_values(accelerator), fs.join(save.draft, own_file(rank)), nil, "save_state", save.files)
end

-- ---- reading

-- Only what the manifest lists belongs to the checkpoint; a folder may have other files.
---@class accelerate.CheckpointSource
---@field path string
---@field files table<string, table> names that the manifest lists

local function path_of(source, name, what)
  if not source.files[name] then fail("load_state: %s has no %s%s", source.path, name, what or "") end
  return fs.join(source.path, name)
end

local function read(source, name, what) return files.load(path_of(source, name, what)) end

local function read_each(source, objects, stem, what)
  local found = {}
  for i in ipairs(objects) do
    found[i] = read(source, numbered(stem, i, "bin"),
      (" for %s %d of this Accelerator"):format(what, i))
  end
  return found
end

-- An optimizer copies its state from the mapped file. The manifest was compared with the file
-- before.
local function lend(source, name, what)
  local dict, check = files.lend(path_of(source, name, what))
  return { dict = dict, check = check }
end

-- Those that are in a folder are read when the models have been.
local function read_optimizers(source, optimizers)
  local found = {}
  for i in ipairs(optimizers) do
    if not source.files[sharded.names.optimizer_folder(i) .. "/.metadata"] then
      found[i] = lend(source, numbered("optimizer", i, "bin"),
        (" for optimizer %d of this Accelerator"):format(i))
    end
  end
  return found
end

local function count_listed(source, pattern)
  local count = 0
  for name in pairs(source.files) do
    if name:match(pattern) then count = count + 1 end
  end
  return count
end

local function read_custom(source, objects)
  local found, count = {}, count_listed(source, "^custom_checkpoint_%d+%.pkl$")
  if count ~= #objects then
    fail("load_state: %s has %d custom_checkpoint files, and %d objects are registered for checkpointing",
      source.path, count, #objects)
  end
  for i = 1, count do found[i] = read(source, custom_file(i)) end
  return found
end

-- What random_states_<rank>.pkl says, with its types.
local OWN = { { "step", "number" }, { "num_processes", "number" }, { "sync_gradients", "boolean" },
  { "windows", "table" }, { "loaders", "table" }, { "buffers", "table" }, { "random", "table" } }

local function check_own(own)
  if type(own) ~= "table" then fail("expected a rank's own state, got %s", options.show(own)) end
  for _, field in ipairs(OWN) do
    if type(own[field[1]]) ~= field[2] then
      fail("'%s' must be a %s, got %s", field[1], field[2], options.show(own[field[1]]))
    end
  end
  for i, window in pairs(own.windows) do
    if type(window) ~= "table" then
      fail("windows[%s] must be a table, got %s", tostring(i), options.show(window))
    end
  end
  for name, buffer in pairs(own.buffers) do
    if not core.is_tensor(buffer) then
      fail("the buffer %s must be a tensor, got %s", tostring(name), options.show(buffer))
    end
  end
end

local function read_own_of(source, rank)
  local own = read(source, own_file(rank))
  with_file(source, own_file(rank), check_own, own)
  own.file = own_file(rank)
  return own
end

-- A rank that the saving run did not have takes the step, which is the same on all, from rank 0.
local function read_own(source, rank, ranks)
  if source.files[own_file(rank)] then return read_own_of(source, rank) end
  local own = read_own_of(source, 0)
  if own.num_processes == ranks then read(source, own_file(rank)) end -- raises
  own.random = nil
  return own
end

--- Reads all of a checkpoint but the weights, and changes nothing yet.
---@param source accelerate.CheckpointSource
---@return table
function M.read(accelerator, source)
  local rank, found = accelerator.process_index, {
    optimizers = read_optimizers(source, accelerator._optimizers),
    schedulers = read_each(source, accelerator._schedulers, "scheduler", "scheduler"),
    samplers = read_each(source, accelerator._dataloaders, "sampler", "loader"),
    custom = read_custom(source, accelerator._custom_objects),
    window_open = count_listed(source, "^gradients_%d+%.safetensors$") > 0,
    own = read_own(source, accelerator.process_index, accelerator.num_processes),
  }
  if accelerator.use_stateful_dataloader then
    found.loaders = read_each(source, accelerator._dataloaders, "dl_state_dict", "loader")
  end
  if accelerator._scaler then found.scaler = read(source, "scaler.pt", ", and this run scales its loss") end
  if source.files[gradients_file(rank)] then
    found.gradients = files.load_safetensors(fs.join(source.path, gradients_file(rank)))
  end
  return found
end

-- ---- into the prepared objects

local function restore_gradients(models, gradients)
  for i, model in ipairs(models) do
    for name, p in model:named_parameters() do
      local g = gradients[("%d.%s"):format(i - 1, name)]
      parallel.set_gradient(p, g and g:to(p.device) or nil)
    end
  end
end

local function restore_buffers(models, buffers)
  for i, model in ipairs(models) do
    for name, b in model:named_buffers() do
      local saved = buffers[("%d.%s"):format(i - 1, name)]
      if saved then core.no_grad(function() b:copy_(saved:to(b.device)) end) end
    end
  end
end

-- The window goes on with the gradients that this rank had.
local function restore_window(accelerator, own, gradients)
  local models = accelerator._models
  if gradients then restore_gradients(models, gradients) end
  accelerator._window = own.window or nil
  parallel.restore_windows(models, own.windows)
  restore_buffers(models, own.buffers)
end

-- On another number of ranks an open window begins anew: a mean over other ranks is another one.
local function drop_window(accelerator, own)
  notice.main("load_state: the checkpoint has gradients of an open accumulation window of %d ranks, and " ..
    "this run has %d: they are left out, and the window begins anew", own.num_processes,
    accelerator.num_processes)
  accelerator.step = own.step - own.step % gradient_state.num_steps
end

local function restore_loaders(accelerator, source, found)
  local own = found.own.num_processes == accelerator.num_processes and found.own.loaders
  for i, loader in ipairs(accelerator._dataloaders) do
    local place, file = found.samplers[i], numbered("sampler", i, "bin")
    if found.loaders then
      if own and own[i] then place, file = own[i], found.own.file
      else place, file = found.loaders[i], numbered("dl_state_dict", i, "bin") end
    end
    with_file(source, file, loader.load_state_dict, loader, place)
  end
end

local function restore_random(accelerator, source, random)
  if not random then
    return notice.here("load_state: %s has no %s: rank %d keeps its own generators", source.path,
      own_file(accelerator.process_index), accelerator.process_index)
  end
  core.default_generator():set_state(random.generator)
  core._math_random_state(random.math_random)
end

-- A run that computes in eight bits goes on with the scales that it had.
local function restore_scales(accelerator, source, own)
  local saved = own.float8 or {}
  for i, scales in pairs(accelerator:_float8_scales()) do
    local own_saved = type(saved) == "table" and saved[tostring(i - 1)]
    if type(own_saved) ~= "table" then
      fail("load_state: %s: %s has no scales of eight bits for model %d of this Accelerator", source.path,
        own.file, i)
    end
    with_file(source, own.file, scales.load_state_dict, scales, own_saved)
  end
end

local function restore_own(accelerator, source, found)
  local own = found.own
  restore_scales(accelerator, source, own)
  accelerator.step = own.step
  gradient_state.sync_gradients = own.sync_gradients
  for _, optimizer in ipairs(accelerator._optimizers) do optimizer.optimizer:zero_grad() end
  if own.num_processes == accelerator.num_processes then restore_window(accelerator, own, found.gradients)
  elseif found.window_open then drop_window(accelerator, own) end
  restore_random(accelerator, source, own.random)
end

-- Copying is all that happens meanwhile, so it has every core that this process may use.
local function on_all_cores(fn)
  local usual = core.get_num_threads()
  core.set_num_threads(math.max(usual, core._cores()))
  local ok, why = pcall(fn)
  core.set_num_threads(usual)
  if not ok then error(why, 0) end
end

-- Hands the objects of a kind their states.
local function restore_each(source, objects, states, file_of)
  for i, object in ipairs(objects) do
    with_file(source, file_of(i), object.load_state_dict, object, states[i])
  end
end

local function restore_optimizers(accelerator, source, found)
  local names = sharded.parameter_names(accelerator._models)
  for i, optimizer in ipairs(accelerator._optimizers) do
    local file = numbered("optimizer", i, "bin")
    if not resharded.load_optimizer(optimizer.optimizer, source, i, names) then
      with_file(source, file, function()
        optimizer:load_state_dict(
          resharded.with_numbers(found.optimizers[i].dict, optimizer.optimizer, names, file))
        found.optimizers[i].check()
      end)
    end
  end
end

--- Puts what `read` found, and the weights, into the prepared objects.
function M.restore(accelerator, source, found, opts, models)
  on_all_cores(function()
    load_weights(models, source, opts)
    restore_optimizers(accelerator, source, found)
  end)
  restore_each(source, accelerator._schedulers, found.schedulers,
    function(i) return numbered("scheduler", i, "bin") end)
  if found.scaler then
    restore_each(source, { accelerator._scaler }, { found.scaler }, function() return "scaler.pt" end)
  end
  restore_each(source, accelerator._custom_objects, found.custom, custom_file)
  restore_loaders(accelerator, source, found)
  with_file(source, found.own.file, restore_own, accelerator, source, found)
end

return M
