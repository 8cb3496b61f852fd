--- Models and optimizers of sharded runs in checkpoints, under the names that Accelerate gives them
--- (a second one of a kind has _1, ...):
---
---   sharded  pytorch_model_fsdp_0/, optimizer_0/   PyTorch's distributed checkpoints (dcp)
---   local    pytorch_model_fsdp_rank<r>.bin        each rank's pieces (intervals), and
---            optimizer_0/
---   full     pytorch_model_fsdp.bin, optimizer.bin whole, from rank 0, which receives all pieces
---
--- But for "full" a save exchanges nothing. Any number of ranks loads any of these, each its own
--- elements; so does a run that is not sharded.
local core = require "accelerate.core"
local dcp = require "accelerate.checkpoint.dcp"
local distributed = require "accelerate.distributed"
local files = require "accelerate.files"
local flat_buffers = require "accelerate.parallel.flat"
local fs = require "accelerate.utils.fs"
local intervals = require "accelerate.checkpoint.intervals"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parallel = require "accelerate.parallel"

local fail = options.fail

local M = {}

local MODEL = "pytorch_model_fsdp"

local function bin(stem, i) return ("%s%s.bin"):format(stem, i > 1 and "_" .. (i - 1) or "") end

--- The names of files and folders of the i-th model or optimizer, from 1.
M.names = {
  model = function(i) return bin(MODEL, i) end,
  model_folder = function(i) return ("%s_%d"):format(MODEL, i - 1) end,
  model_of_rank = function(i, rank)
    return ("%s%s_rank%d.bin"):format(MODEL, i > 1 and "_" .. (i - 1) or "", rank)
  end,
  optimizer = function(i) return bin("optimizer", i) end,
  optimizer_folder = function(i) return ("optimizer_%d"):format(i - 1) end,
}

--- Returns the names of the parameters of all models, by which optimizers' states are saved.
---@param models accelerate.nn.Module[]
---@return table<accelerate.Tensor, string>
function M.parameter_names(models)
  local names, taken = {}, {}
  for i, model in ipairs(models) do
    for name, p in model:named_parameters() do
      local unique = taken[name] and ("model_%d.%s"):format(i - 1, name) or name
      names[p], taken[unique] = names[p] or unique, true
    end
  end
  return names
end

-- ---- what there is to save

---@class accelerate.checkpoint.Values
---@field ranks integer
---@field rank integer
---@field parts integer that values are cut into
---@field list accelerate.dcp.Value[]
---@field bytes table<integer, number> that each rank writes of whole values

local function values_under(plan)
  return { ranks = core.dist.world_size(), rank = core.dist.rank(), parts = plan.shard,
    list = {}, bytes = {} }
end

-- Adds a value that all ranks have whole. One of them writes it, the one with the least so far.
local function add_whole(to, name, path, t)
  local writer = 0
  for rank = 1, to.ranks - 1 do
    if (to.bytes[rank] or 0) < (to.bytes[writer] or 0) then writer = rank end
  end
  to.bytes[writer] = (to.bytes[writer] or 0) + t:numel() * t:element_size()
  to.list[#to.list + 1] = { name = name, path = path, dtype = t.dtype, shape = t.shape, device = t.device,
    cut = { [writer] = { from = 0, n = t:numel() } },
    tensor = writer == to.rank and t:detach():contiguous():reshape(-1) or nil }
end

-- Adds a value that is cut as parameter p is. The ranks of the first copy write it.
local function add_cut(to, name, path, p, dtype, tensor)
  local layout, cut = flat_buffers.of(p).layout, {}
  local _, slot = core.flat_of(p)
  for rank = 0, to.parts - 1 do
    local from, n = layout:piece(slot, rank)
    if n > 0 then cut[rank] = { from = from, n = n } end
  end
  to.list[#to.list + 1] = { name = name, path = path, dtype = dtype, shape = p.shape, device = p.device,
    cut = cut, tensor = cut[to.rank] and tensor or nil }
end

local function add_object(to, name, path, value)
  to.list[#to.list + 1] = { name = name, path = path, value = value }
end

-- Adds what a parameter that is cut has another form of in the state dict: a transposed weight of
-- GPT-2. One rank writes it, from the whole value. A collective.
local function add_formed(to, name, path, p, t)
  local layout = flat_buffers.of(p).layout
  layout:acquire "read"
  local fine, why = pcall(function() add_whole(to, name, path, t:detach():clone()) end)
  layout:let_go(false)
  if not fine then error(why, 0) end
end

-- The values of a model, of whose state dict hooks may have replaced some.
local function model_values(model, dict)
  local to, piece_of, named = values_under(parallel.plan_of(model)), {}, {}
  for _, piece in ipairs(parallel.pieces_of(model)) do
    piece_of[piece.param] = piece
    for _, name in ipairs(piece.names) do named[name] = piece end
  end
  for name, t in ordered.pairs(dict) do
    local piece, path = piece_of[t], { "model", name }
    if not core.is_tensor(t) then add_object(to, "model." .. name, path, t)
    elseif piece and piece.cut then add_cut(to, "model." .. name, path, t, t.dtype, piece.tensor)
    elseif not piece and parallel.is_formed(named[name], t) then
      add_formed(to, "model." .. name, path, named[name].param, t)
    else add_whole(to, "model." .. name, path, t) end
  end
  return to
end

-- A number of a state as PyTorch has it: a tensor. Steps are exact in float32.
local function scalar(v)
  return core.tensor({ v }, { dtype = v % 1 == 0 and math.abs(v) < 2 ^ 24 and "float32"
    or "float64" }):view {}
end

local function add_states(to, optimizer, piece, name)
  local saved = optimizer:_saved(piece.kept, piece.group) or {}
  for _, key in ipairs(ordered.sorted_keys(saved)) do
    local v, path = saved[key], { "optimizer", "state", name, key }
    local full = ("optimizer.state.%s.%s"):format(name, key)
    if type(v) == "number" then add_whole(to, full, path, scalar(v))
    elseif not core.is_tensor(v) then add_object(to, full, path, v)
    elseif optimizer:_is_factor(key) then add_whole(to, full, path, v)
    elseif piece.cut and v:dim() == 1 and v:numel() == piece.n then
      add_cut(to, full, path, piece.param, v.dtype, v)
    elseif piece.cut and v:dim() > 0 then
      fail("save_state: %s has shape %s on this rank, which has %d elements of the parameter", full,
        lists.shape_text(v), piece.n)
    else add_whole(to, full, path, v) end
  end
end

-- Options of PyTorch's optimizers that change nothing here, and which its loader wants to see; nil
-- is None.
local function foreign_options(optimizer)
  return { { "foreach" }, { "fused" }, { "capturable", false }, { "differentiable", false },
    { "decoupled_weight_decay", optimizer.__name == "AdamW" } }
end

local function add_groups(to, optimizer, names)
  for g, group in ipairs(optimizer.param_groups) do
    local function add(name, value)
      add_object(to, ("optimizer.param_groups.%d.%s"):format(g - 1, name),
        { "optimizer", "param_groups", g - 1, name }, value)
    end
    local keys = lists.set(ordered.sorted_keys(group))
    for name, entry in next, optimizer._schema do keys[name] = keys[name] or entry.optional end
    for _, name in ipairs(ordered.sorted_keys(keys)) do
      if name ~= "params" then add(name, lists.copied(group[name])) end
    end
    for _, option in ipairs(foreign_options(optimizer)) do
      if not keys[option[1]] then add(option[1], option[2]) end
    end
    add("params", lists.map(group.params, function(p) return names[p] end))
  end
end

local function optimizer_values(accelerator, optimizer, names)
  local to = values_under(accelerator:_strategy().plan)
  for _, piece in ipairs(parallel.state_pieces(optimizer)) do
    local name = names[piece.param]
    if not name then
      fail("save_state: the optimizer has a parameter of shape %s that is in no prepared model",
        lists.shape_text(piece.param))
    end
    if piece.kept then add_states(to, optimizer, piece, name) end
  end
  add_groups(to, optimizer, names)
  return to
end

-- ---- saving

local function save_folder(save, name, to)
  local path = fs.join(save.draft, name)
  assert(fs.make_dirs(path))
  dcp.write(path, to.rank, to.ranks, to.list, save.files)
end

local function save_rank(save, name, to)
  local own = {}
  for _, v in ipairs(to.list) do
    local run = v.cut and v.cut[to.rank]
    if run then
      own[#own + 1] = { name = v.path[2], shape = v.shape, from = run.from, tensor = v.tensor }
    elseif not v.dtype then
      fail("save_state: '%s' is no tensor, which LOCAL_STATE_DICT does not hold", v.name)
    end
  end
  intervals.write_file(fs.join(save.draft, name), to.rank, own, { ranks = to.ranks, save = save.files })
end

-- Rank 0 receives a value's pieces. A collective; returns the value there.
local function received(to, v)
  local whole = to.rank == 0 and core.empty(v.shape, { dtype = v.dtype })
  for rank = 0, to.ranks - 1 do
    local run = v.cut[rank]
    if run and run.n > 0 and to.rank == 0 then
      local part = v.tensor
      if rank > 0 then
        part = distributed.recv(core.empty({ run.n }, { dtype = v.dtype, device = v.device }), { src = rank })
      end
      whole:reshape(-1):narrow(1, run.from + 1, run.n):copy_(part)
    elseif run and run.n > 0 and to.rank == rank then
      distributed.send(v.tensor, { dst = 0 })
    end
  end
  return whole
end

-- The nested value that the values' paths describe, without its first name. A collective; returns
-- it on rank 0. always: the name of a table that is there also when nothing is in it.
local function nested(to, always)
  local root = ordered.new()
  if always then root[always] = ordered.new() end
  for _, v in ipairs(to.list) do
    local value, at = v.value, root
    if v.dtype then value = received(to, v) end
    for d = 2, #v.path - 1 do
      local key = type(v.path[d]) == "number" and v.path[d] + 1 or v.path[d]
      if at[key] == nil then at[key] = d == 2 and key == "param_groups" and {} or ordered.new() end
      at = at[key]
    end
    at[v.path[#v.path]] = value
  end
  return root
end

local function save_full(save, name, to, always)
  local value = nested(to, always)
  if to.rank ~= 0 then return end
  files.write(value, fs.join(save.draft, name), false, "save_state", save.files)
end

--- Adds the weights of the i-th model to a save, on all ranks.
---@param save accelerate.checkpoint.Save
---@param kind "full"|"sharded"|"local"
---@param i integer from 1
---@param model accelerate.nn.Module
---@param dict table<string, accelerate.Tensor> its state dict
function M.save_model(save, kind, i, model, dict)
  local to = model_values(model, dict)
  if kind == "full" then save_full(save, M.names.model(i), to)
  elseif kind == "local" then save_rank(save, M.names.model_of_rank(i, to.rank), to)
  else save_folder(save, M.names.model_folder(i), to) end
end

--- Adds the i-th optimizer to a save, on all ranks.
---@param accelerator accelerate.Accelerator
---@param save accelerate.checkpoint.Save
---@param kind "full"|"sharded"|"local"
---@param i integer from 1
---@param optimizer accelerate.optim.Optimizer
---@param names table<accelerate.Tensor, string> of its parameters
function M.save_optimizer(accelerator, save, kind, i, optimizer, names)
  local to = optimizer_values(accelerator, optimizer, names)
  if kind == "full" then save_full(save, M.names.optimizer(i), to, "state")
  else save_folder(save, M.names.optimizer_folder(i), to) end
end

--- Adds models and optimizers to a save, on all ranks. A collective only for "full".
---@param accelerator accelerate.Accelerator
---@param save accelerate.checkpoint.Save
---@param kind "full"|"sharded"|"local"
---@param weights table<string, accelerate.Tensor>[] the models' state dicts
function M.save(accelerator, save, kind, weights)
  if accelerator._project_configuration.save_on_each_node then
    fail("save_state: save_on_each_node: a machine has only its ranks' parts of a sharded model; " ..
      "leave it out, and save to a folder that all machines share")
  end
  local names = M.parameter_names(accelerator._models)
  for i, dict in ipairs(weights) do
    M.save_model(save, kind, i, accelerator._models[i], dict)
  end
  for i, optimizer in ipairs(accelerator._optimizers) do
    M.save_optimizer(accelerator, save, kind, i, optimizer.optimizer, names)
  end
end

--- Returns weights of a model whole: by name, on the CPU of rank 0; an empty table elsewhere. A
--- collective.
---@param model accelerate.nn.Module
---@param dict? table<string, accelerate.Tensor> the tensors themselves, default all
---@return table<string, accelerate.Tensor>
function M.whole_state_dict(model, dict)
  local to = model_values(model, dict or model:state_dict { keep_vars = true })
  local whole = nested(to)
  return to.rank == 0 and whole or ordered.new()
end

return M
