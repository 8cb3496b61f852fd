--- Trains random small models under random sharding plans, and the same models plainly, and prints
--- the seeds whose parameters differ.  Each rank computes the plain training itself: it goes over
--- the slices of all ranks in turn.
---   accel-run --num_processes N spec/support/fuzz_sharded.lua FIRST LAST [device]
--- device: on the ranks' GPUs, without offload; a quarter of the programs capture their steps
--- there. ACCEL_SHARED_PARAMETERS=0 makes the ranks gather; then all of them use the same units.
local accelerate = require "accelerate"
local core, nn, optim = require "accelerate.core", require "accelerate.nn", require "accelerate.optim"
local fs = require "accelerate.utils.fs"
local F, state = require "accelerate.nn.functional", require "accelerate.state"
local parallel = require "accelerate.parallel"
local plans = require "accelerate.parallel.plan"

local RANKS, RANK = state.PartialState().num_processes, state.PartialState().process_index
local GATHERS = os.getenv "ACCEL_SHARED_PARAMETERS" == "0"
local ON_DEVICE = arg[3] == "device"
local FOLDER = os.getenv "TMPDIR" or "/tmp"
local ROWS = 3 -- of a rank's slice

--- Whole numbers that depend on the seed alone, alike on every rank.
local function numbers(seed)
  local x = (seed * 7919 + 12345) % 2147483647
  for _ = 1, 5 do x = x * 48271 % 2147483647 end
  return function(low, high)
    x = x * 48271 % 2147483647
    return low + x % (high - low + 1)
  end
end

local function one_of(draw, list) return list[draw(1, #list)] end

-- ---- models

-- Stages take [rows, width] and return [rows, width].
local STAGES = {}
function STAGES.plain(w) return nn.Linear(w, w), function(m, x) return F.tanh(m(x)) end end
function STAGES.thin(w) return nn.Linear(w, w, { bias = false }), function(m, x) return F.gelu(m(x)) end end
function STAGES.norm(w) return nn.LayerNorm(w), function(m, x) return m(x) end end
function STAGES.rms(w) return nn.RMSNorm(w), function(m, x) return m(x) + x end end
function STAGES.narrow(w)
  return nn.Sequential { nn.Linear(w, 3), nn.SiLU(), nn.Linear(3, w) }, function(m, x) return x + m(x) end
end
function STAGES.wide(w)
  return nn.Sequential { nn.LayerNorm(w), nn.Linear(w, 37), nn.GELU(), nn.Linear(37, w) },
    function(m, x) return x + m(x) end
end
local Gate = nn.class "Gate"
function Gate:init(w) self.gate, self.shift = nn.Parameter(core.ones(1)), nn.Parameter(core.randn(w)) end
function Gate:forward(x) return x * self.gate + self.shift * 0.1 end
function STAGES.gate(w) return Gate(w), function(m, x) return m(x) end end

local KINDS = { "plain", "thin", "norm", "rms", "narrow", "wide", "gate" }
local LINEAR = { plain = true, thin = true } -- a tied weight needs two of these
local WHEN = { "always", "always", "always", "always", "never", "some", "twice", "recomputed" }

local Net = nn.class "Net"
function Net:init(draw)
  local w = draw(5, 24)
  self.width, self.stages, self.run, self.when = w, nn.ModuleList {}, {}, {}
  self.tokens = nn.Embedding(11, w)
  local kinds = {}
  for k = 1, draw(2, 7) do
    local kind = one_of(draw, KINDS)
    local stage, run = STAGES[kind](w)
    self.stages:append(stage)
    self.run[k], kinds[k] = run, kind
    self.when[k] = one_of(draw, WHEN)
  end
  self.last = nn.Linear(w, 11, { bias = draw(0, 1) == 1 })
  if draw(1, 3) == 1 then self.last.weight = self.tokens.weight end
  for k = 2, #self.stages do -- a stage that shares a weight with an earlier one
    local a, b = self.stages[k - 1], self.stages[k]
    if draw(1, 3) == 1 and LINEAR[kinds[k]] and LINEAR[kinds[k - 1]] then b.weight = a.weight end
  end
  for _, stage in ipairs(self.stages) do
    if draw(1, 5) == 1 then
      for _, p in ipairs(stage:parameters()) do p.requires_grad = draw(1, 3) == 1 end
    end
  end
end

-- slice: whose rows they are; `some` stages run on slices of even numbers alone.
function Net:forward(ids, slice)
  local x = self.tokens(ids)
  for k, stage in ipairs(self.stages) do
    local when, run = self.when[k], self.run[k]
    if when == "recomputed" then
      x = nn.utils.checkpoint(function(y) return run(stage, y) end, x)
    elseif when == "always" or when == "twice" or (when == "some" and slice % 2 == 0) then
      x = run(stage, x)
      if when == "twice" then x = run(stage, x) end
    end
  end
  return self.last(x)
end

-- ---- programs

local OPTIMIZERS = {
  { "SGD", { lr = 0.05, momentum = 0.9, nesterov = true, weight_decay = 0.01 } }, { "SGD", { lr = 0.1 } },
  { "Adam", { lr = 0.003, eps = 1e-2 } }, { "AdamW", { lr = 0.003, eps = 1e-2, weight_decay = 0.1 } },
  { "RMSprop", { lr = 0.003, eps = 1e-2, momentum = 0.5 } }, { "Adagrad", { lr = 0.01, eps = 1e-2 } },
  { "NAdam", { lr = 0.003, eps = 1e-2 } }, { "Adamax", { lr = 0.003, eps = 1e-2 } },
}

-- Those that read more of a parameter than the element that they write. rest: who steps parameters
-- that are no matrices. rounded: steps go through bfloat16, so that a gradient that differs in its
-- last bit may move an element by this part of lr more or less. in_memory: its states are in no
-- files.
local BY_MATRIX = {
  { "Adafactor", { lr = 0.003, eps = { 1e-2, 1e-3 }, weight_decay = 0.1 } },
  { "Muon", { lr = 0.01, momentum = 0.8 }, rest = { "SGD", { lr = 0.05 } }, rounded = 0.1, in_memory = true },
}

local function draw_plan(p, draw)
  p.strategy = one_of(draw, { "ZeRO-1", "ZeRO-2", "ZeRO-3", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD" })
  local copies = {}
  for n = 1, RANKS do if RANKS % n == 0 then copies[#copies + 1] = n end end
  p.replicate = one_of(draw, copies)
  p.reshard, p.whole = draw(1, 2) == 1, draw(1, 4) == 1
  p.units, p.recompute = draw(0, 2), draw(1, 5) == 1
  p.offload = one_of(draw, { false, false, "states", "values", "all" })
  p.meta = draw(1, 3) == 1 -- prepare makes the values
  if draw(1, 8) == 1 then p.strategy, p.replicate = "replicas", RANKS end
end

-- What scripts do in their loops, and how a run is saved.
local function draw_loop(p, draw)
  p.left_out = draw(1, 4) == 1 and not p.captured  -- the second step: its gradients are thrown away
  p.decay = draw(1, 4) == 1 and 0.7 or nil         -- of the rates, after each step
  p.average = draw(1, 4) == 1 and not p.resume     -- the result is an average of the models
  p.by_hand = draw(1, 4) == 1 and not p.captured   -- no_sync in place of accumulate
  p.async = draw(1, 3) == 1
  for _, plan in ipairs { p, p.resume } do plan.kind = one_of(draw, { "full", "sharded", "local" }) end
end

-- Everything that both trainings share.
local function program(seed)
  local draw = numbers(seed)
  local p = { seed = seed, draw_model = draw(1, 1e9), steps = draw(2, 4), accumulate = draw(1, 3) }
  p.optimizer = one_of(draw, OPTIMIZERS)
  p.groups, p.clip = draw(1, 2), one_of(draw, { false, 0.3, 5.0 })
  p.value = draw(1, 5) == 1 and 0.02 or nil
  p.keep = draw(1, 4) == 1        -- zero_grad { set_to_none = false }
  p.evaluate = draw(1, 3) == 1    -- a pass without gradients after each step
  p.edit = one_of(draw, { false, false, "in place", "summon" })
  p.thaw = draw(1, 4) == 1        -- frozen parameters train from step 2 on
  draw_plan(p, draw)
  if draw(1, 4) == 1 then -- it goes on after a step, under another plan
    p.resume, p.keep = setmetatable({}, { __index = p }), false
    draw_plan(p.resume, draw)
  end
  if draw(1, 4) == 1 then p.optimizer = one_of(draw, BY_MATRIX) end
  for _, q in ipairs { p, p.resume } do
    if p.optimizer.in_memory and q.offload then q.offload = "values" end
  end
  p.captured = draw(1, 4) == 1
  draw_loop(p, draw)
  if ON_DEVICE then -- without what a recording refuses
    p.captured = p.captured and not p.optimizer.in_memory and p.optimizer[1] ~= "NAdam"
    for _, one in ipairs { p, p.resume } do
      one.offload, one.whole = false, one.whole and not p.captured
    end
  end
  -- Buckets of replicas take one gradient of a parameter in a pass.
  p.avoids = { some = GATHERS or ON_DEVICE, never = ON_DEVICE and p.captured,
    recomputed = p.strategy == "replicas"
    or p.resume and p.resume.strategy == "replicas" }
  return p
end

local function describe(p)
  local list = {}
  for _, key in ipairs { "strategy", "replicate", "reshard", "units", "accumulate", "clip", "value", "edit",
    "keep",
    "thaw", "whole", "evaluate", "recompute", "offload", "meta", "captured", "left_out", "decay", "average",
    "by_hand", "async", "kind" } do
    list[#list + 1] = key .. " " .. tostring(p[key])
  end
  if p.resume then list[#list + 1] = "then " .. p.resume.strategy end
  return ("seed %d: %s, %s"):format(p.seed, p.optimizer[1], table.concat(list, ", "))
end

-- An optimizer over some parameters, in groups with rates of their own.
local function optimizer_of(p, how, params)
  local lists, options = {}, {}
  for k, param in ipairs(params) do
    local g = #params > 1 and k % p.groups + 1 or 1
    lists[g] = lists[g] or { params = {} }
    table.insert(lists[g].params, param)
  end
  if lists[2] then lists[2].lr = how[2].lr / 2 end
  for k, v in pairs(how[2]) do options[k] = v end
  return optim[how[1]](lists, options)
end

local function optimizers_of(p, model)
  local matrices, others = {}, {}
  for _, q in ipairs(model:parameters()) do table.insert(q:dim() == 2 and matrices or others, q) end
  if not p.optimizer.rest then return { optimizer_of(p, p.optimizer, model:parameters()) } end
  return { optimizer_of(p, p.optimizer, matrices), others[1] and optimizer_of(p, p.optimizer.rest, others) }
end

local function start(p, meta)
  core.manual_seed(p.seed)
  local model = meta and accelerate.init_empty_weights(Net, numbers(p.draw_model))
    or Net(numbers(p.draw_model))
  for k, when in ipairs(model.when) do
    if p.avoids[when] then model.when[k] = "always" end
  end
  local n = p.steps * p.accumulate * RANKS * ROWS
  local ids, targets = core.randint(0, 11, { n }), core.randint(0, 11, { n })
  return model, optimizers_of(p, model), function(step, micro, slice)
    local from = 1 + (((step - 1) * p.accumulate + micro - 1) * RANKS + slice) * ROWS
    return ids:narrow(1, from, ROWS), targets:narrow(1, from, ROWS)
  end
end

local function edit(model)
  core.no_grad(function() for _, q in ipairs(model:parameters()) do q:mul_(0.97) end end)
end

local function thaw(model)
  for _, q in ipairs(model:parameters()) do q.requires_grad = true end
end

local function values(model)
  local all = {}
  for name, q in model:named_parameters() do all[#all + 1] = { name, q:detach():cpu():clone() } end
  return all
end

local function step_all(p, optimizers, step)
  for _, optimizer in ipairs(optimizers) do
    if not (p.left_out and step == 2) then optimizer:step() end
    optimizer:zero_grad { set_to_none = not p.keep }
  end
end

-- After each step.
local function decay(p, optimizers)
  for _, optimizer in ipairs(p.decay and optimizers or {}) do
    for _, group in ipairs(optimizer.param_groups) do group.lr = group.lr * p.decay end
  end
end

local function average_of(p, model) return p.average and optim.swa_utils.AveragedModel(model) end

local function plainly(p)
  local model, optimizers, slice_of = start(p)
  local average = average_of(p, model)
  for step = 1, p.steps do
    if p.thaw and step == 2 then thaw(model) end
    for micro = 1, p.accumulate do
      for slice = 0, RANKS - 1 do
        local x, y = slice_of(step, micro, slice)
        local loss = F.cross_entropy(model(x, slice), y) / (RANKS * p.accumulate)
        if loss.requires_grad then loss:backward() end
      end
    end
    if p.value then nn.utils.clip_grad_value_(model:parameters(), p.value)
    elseif p.clip then nn.utils.clip_grad_norm_(model:parameters(), p.clip) end
    step_all(p, optimizers, step)
    if p.edit and step == 1 then edit(model) end
    if average then average:update_parameters(model) end
    decay(p, optimizers)
  end
  return values(average or model)
end

local function units_of(p, model)
  local list = {}
  for k, stage in ipairs(p.units > 0 and model.stages or {}) do
    if p.units == 2 or k % 2 == 1 then list[#list + 1] = stage end
  end
  return list
end

-- Whether ranks offload to files, under another plan than that of replicas.
local FILES = { states = { states = "disk" }, values = { values = "disk" },
  all = { states = "disk", values = "disk", gradients = "disk" } }

local function offload_of(p)
  local list = {}
  for kind, place in pairs(FILES[p.offload] or {}) do list[kind] = place end
  list.path = next(list) and FOLDER or nil
  return list
end

local function plan_of(p)
  if p.strategy == "replicas" then return nil end
  return plans.new(p.strategy, { replicate = p.replicate, shard = RANKS / p.replicate,
    offload = offload_of(p),
    state_dict_type = p.kind, reshard_after_forward = p.reshard,
    whole_in_no_sync = p.whole, activation_checkpointing = p.recompute,
    units = function(model) return units_of(p, model) end }, RANKS)
end

local function prepared(p)
  state.reset()
  local accelerator = accelerate.Accelerator { cpu = not ON_DEVICE,
    gradient_accumulation_steps = not p.by_hand and p.accumulate or 1 }
  accelerator._plan = plan_of(p)
  local model, optimizers, slice_of = start(p, p.meta)
  model, optimizers[1], optimizers[2] = accelerator:prepare(model, unpack(optimizers))
  return accelerator, model, optimizers, slice_of
end

-- Another start, which goes on from what this one saves.
local function resumed(p, accelerator)
  local place = { RANK == 0 and os.tmpname() }
  accelerate.utils.broadcast_object_list(place)
  local folder = place[1] .. ".d"
  accelerator:save_state(folder, { async = p.async })
  local next_accelerator, model, optimizers = prepared(p.resume)
  next_accelerator:load_state(folder)
  next_accelerator:wait_for_everyone()
  if RANK == 0 then
    os.remove(place[1])
    fs.remove_tree(folder)
  end
  return next_accelerator, model, optimizers
end

-- What a rank does with one batch.
local function pass_of(p, accelerator, model, optimizers)
  local function pass(x, y, step)
    accelerator:backward(F.cross_entropy(model(x, RANK), y) / (p.by_hand and p.accumulate or 1))
    if accelerator.sync_gradients then
      if p.value then accelerator:clip_grad_value_(model:parameters(), p.value)
      elseif p.clip then accelerator:clip_grad_norm_(model:parameters(), p.clip) end
    end
    step_all(p, optimizers, step)
  end
  return p.captured and accelerate.utils.capture(pass, { warmup = 1 }) or pass
end

-- The micro-batches of a step.
local function window(p, accelerator, model, pass, slice_of, step)
  for micro = 1, p.accumulate do
    local x, y = slice_of(step, micro, RANK)
    if not p.by_hand then accelerator:accumulate(model, pass, x, y, p.left_out and step or nil)
    elseif micro == p.accumulate then pass(x, y, step)
    else
      accelerator:no_sync(model, function()
        accelerator:backward(F.cross_entropy(model(x, RANK), y) / p.accumulate)
      end)
    end
  end
end

local function sharded(p)
  local accelerator, model, optimizers, slices = prepared(p)
  local pass = pass_of(p, accelerator, model, optimizers)
  local average = average_of(p, model)
  local function slice_of(...)
    local x, y = slices(...)
    return x:to(accelerator.device), y:to(accelerator.device)
  end
  for step = 1, p.steps do
    if p.thaw and step == 2 then thaw(model) end
    window(p, accelerator, model, pass, slice_of, step)
    if p.evaluate then core.no_grad(function() model((slice_of(step, 1, 0)), 0) end) end
    if p.edit == "in place" and step == 1 then edit(model) end
    if p.edit == "summon" and step == 1 then
      accelerate.utils.summon_full_params(model, { writeback = true }, function() edit(model) end)
    end
    if p.resume and step == 1 then
      accelerator, model, optimizers = resumed(p, accelerator)
      pass = pass_of(p, accelerator, model, optimizers)
    end
    if average then average:update_parameters(model) end
    decay(p, optimizers)
  end
  local result = average or model
  return parallel.summon(result, false, nil, function() return values(result) end)
end

local function difference(p, a, b)
  local allowed = (ON_DEVICE and 1e-4 or 2e-5) + p.steps * (p.optimizer.rounded or 0) * p.optimizer[2].lr
  if #a ~= #b then return ("%d parameters, expected %d"):format(#a, #b) end
  for k, entry in ipairs(a) do
    local far = (entry[2] - b[k][2]):abs():max():item()
    local size = b[k][2]:abs():max():item()
    if not (far <= allowed * math.max(1, size)) then
      return ("%s differs by %g, of %g"):format(entry[1], far, size)
    end
  end
end

local bad = 0
for seed = tonumber(arg[1]) or 1, tonumber(arg[2]) or 50 do
  local p = program(seed)
  local expected = plainly(p)
  local ok, got = xpcall(sharded, debug.traceback, p)
  local what = not ok and tostring(got) or difference(p, got, expected)
  if what then
    bad = bad + 1
    io.stdout:write(("rank %d of %d: %s\n  %s\n"):format(RANK, RANKS, describe(p), what))
    if not ok then os.exit(1) end
  end
  collectgarbage()
end
if bad > 0 then error(("%d programs differ"):format(bad), 0) end
if RANK == 0 then print("all programs train as plain loops do") end
