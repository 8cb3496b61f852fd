--- Programs that train small models under a sharding plan, for specs: each rank takes its part of a
--- batch. They print the losses, norms and parameters after some steps, from rank 0.
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local ranks = require "spec.support.ranks"

local M = {}

--- Defines `train(name, plan, opts)`, which returns the numbers, the prepared model, its optimizer,
--- the accelerator and the pass, and `give(t)`, which prints them. plan: "DDP", or a key of the
--- plan's HOMES; opts: { steps, accumulate, replicate, clip, value, optimizer, options,
--- whole_in_no_sync, reshard, units = false, precision, reduced: a type, offload, captured, verify;
--- backend: dynamo_backend; recompute; ignored: modules or a pattern; thaw: the step from which
--- every third parameter trains; groups: so many of one optimizer, or optimizers, with rates of
--- their own; sync: batch norm over the ranks; alike: each rank has the whole batch; folder, save,
--- kill, resume: a state is saved after step `save`, rank 0 kills itself after step `kill`, and a
--- run with `resume` goes on from the state }.
M.TRAIN = [[
local accelerate = require "accelerate"
local core, nn, optim = require "accelerate.core", require "accelerate.nn", require "accelerate.optim"
local F, state = require "accelerate.nn.functional", require "accelerate.state"
local parallel = require "accelerate.parallel"
local plans = require "accelerate.parallel.plan"
local sharded_units = require "accelerate.parallel.plan.units"
local ffi = require "ffi"
ffi.cdef "int getpid(void); int kill(int pid, int sig);"
local ranks, rank = state.PartialState().num_processes, state.PartialState().process_index
local models, BATCH = {}, 12
local Block = nn.class "Block"
function Block:init(width)
  self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
  self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
end
function Block:forward(x)
  local q, k, v = self.qkv(self.norm(x)):split_heads(2)
  local seen = F.scaled_dot_product_attention(q, k, v, { is_causal = true })
  x = x + self.out(seen:transpose(2, 3):reshape(x:size(1), x:size(2), x:size(3)))
  return x + self.down(F.gelu(self.up(x)))
end
local GPT = nn.class "GPT" -- its head is tied to its embedding
function GPT:init()
  self.tokens, self.h = nn.Embedding(19, 16), nn.ModuleList { Block(16), Block(16), Block(16) }
  self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 19, { bias = false })
  self.head.weight = self.tokens.weight
end
function GPT:forward(ids)
  local x = self.tokens(ids)
  for _, block in ipairs(self.h) do x = block(x) end
  return self.head(self.norm(x))
end
function models.gpt()
  return GPT(), core.randint(0, 19, { BATCH, 6 }), function(m, x)
    return F.cross_entropy(m(x):narrow(2, 1, 5):reshape(-1, 19), x:narrow(2, 2, 5):reshape(-1))
  end
end
local Odd = nn.class "Odd" -- a frozen part, one that no loss reaches, and one that some ranks use alone
function Odd:init()
  self.first, self.h = nn.Linear(7, 13), nn.ModuleList { Block(10), Block(10) }
  self.frozen, self.unused, self.some = nn.Linear(13, 10), nn.Linear(3, 5), nn.Linear(10, 10)
  for _, p in ipairs(self.frozen:parameters()) do p.requires_grad = false end
  self.last = nn.Linear(10, 3)
end
function Odd:forward(x)
  x = self.frozen(F.relu(self.first(x))):reshape(-1, 1, 10)
  for _, block in ipairs(self.h) do x = block(x) end
  return self.last(x:reshape(-1, 10))
end
function models.odd()
  return Odd(), core.randn(BATCH, 7), function(m, x) return (m(x) - x:narrow(2, 1, 3)):square():mean() end
end
local Net = nn.class "Net" -- with running statistics
function Net:init()
  self.conv, self.bn, self.h = nn.Conv2d(2, 6, 3, { padding = 1 }), nn.BatchNorm2d(6), nn.ModuleList {}
  self.h:append(nn.Linear(96, 16))
  self.last = nn.Linear(16, 5)
end
function Net:forward(x)
  x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 2)
  return self.last(F.relu(self.h[1](x:reshape(x:size(1), -1))))
end
function models.net()
  return Net(), core.randn(BATCH, 2, 8, 8), function(m, x) return m(x):square():mean() end
end
function models.bert()
  local model = accelerate.models.BertForSequenceClassification { vocab_size = 19, hidden_size = 16,
    num_labels = 3, num_hidden_layers = 3, num_attention_heads = 2, intermediate_size = 24,
    max_position_embeddings = 8, hidden_dropout_prob = 0, attention_probs_dropout_prob = 0 }
  return model, core.randint(0, 19, { BATCH, 6 }), function(m, x)
    return m({ input_ids = x, labels = x:narrow(2, 1, 1):reshape(-1):remainder(3) }).loss
  end
end
function models.t5()
  local model = accelerate.models.T5ForConditionalGeneration { vocab_size = 19, d_model = 16, d_kv = 8,
    d_ff = 24, num_layers = 2, num_heads = 2, dropout_rate = 0, decoder_start_token_id = 0 }
  return model, core.randint(0, 19, { BATCH, 6 }), function(m, x)
    return m({ input_ids = x, labels = x:narrow(2, 3, 4):contiguous() }).loss
  end
end
local ResNet = nn.class "ResNet"
-- Two convolutions with batch norms, around which the input goes.  Not relu: a number that rounds
-- to the other side of 0 has another gradient, and steps would differ by more than rounding.
local Part = nn.class "Part"
function Part:init()
  self.one, self.two = nn.Conv2d(6, 6, 3, { padding = 1 }), nn.Conv2d(6, 6, 3, { padding = 1 })
  self.first, self.second = nn.BatchNorm2d(6), nn.BatchNorm2d(6)
end
function Part:forward(x)
  return F.silu(x + self.second(self.two(F.silu(self.first(self.one(x))))))
end
function ResNet:init()
  self.stem, self.h, self.last = nn.Conv2d(2, 6, 3), nn.ModuleList { Part(), Part() }, nn.Linear(6, 4)
end
function ResNet:forward(x)
  x = self.stem(x)
  for _, part in ipairs(self.h) do x = part(x) end
  return self.last(x:mean({ 3, 4 }))
end
function models.resnet()
  return ResNet(), core.randn(BATCH, 2, 8, 8), function(m, x)
    return F.cross_entropy(m(x), x:narrow(2, 1, 1):reshape(x:size(1), -1):sum(2):gt(0):long())
  end
end
local function plan_of(name, opts)
  if name == "DDP" then return nil end
  local replicate = opts.replicate or 1
  return plans.new(name, { replicate = replicate, shard = ranks / replicate, offload = opts.offload,
    reshard_after_forward = opts.reshard ~= false, whole_in_no_sync = opts.whole_in_no_sync or false,
    reduce_dtype = opts.reduced, activation_checkpointing = opts.recompute or false,
    ignored = function(m)
      return opts.ignored and sharded_units.parameters_of(m, opts.ignored) or {}
    end,
    units = function(m)
      if not m.h then return sharded_units.by_class(m, nil, "test") end
      local list = {}
      for _, block in ipairs(opts.units ~= false and m.h or {}) do list[#list + 1] = block end
      return list
    end }, ranks)
end
local function freeze(model, frozen)
  for k, p in ipairs(model:parameters()) do
    if k % 3 == 0 then p.requires_grad = not frozen end
  end
end
-- For matrices, and what steps the other parameters.
local function muon(model, options)
  local matrices, others = {}, {}
  for _, p in ipairs(model:parameters()) do table.insert(p:dim() == 2 and matrices or others, p) end
  return { optim.Muon(matrices, options), optim.SGD(others, { lr = 0.02 }) }
end
local function optimizers_of(model, opts)
  if opts.optimizer == "Muon" then return muon(model, opts.options) end
  -- not AdamW: a key's bias has no gradient but rounding, which AdamW makes large
  local how, list, made = opts.options or { lr = 0.1, momentum = 0.9 }, {}, {}
  local groups = opts.optimizers or opts.groups or 1
  for g = 1, groups do list[g] = { params = {}, lr = how.lr and how.lr / g } end
  for k, p in ipairs(model:parameters()) do table.insert(list[k % groups + 1].params, p) end
  for g = 1, opts.optimizers or 1 do
    made[g] = optim[opts.optimizer or "SGD"](opts.optimizers and { list[g] } or list, how)
  end
  return made
end
local function built(name, opts)
  local model, x, loss_of = models[name]()
  if opts.sync then model = nn.SyncBatchNorm.convert_sync_batchnorm(model) end
  if opts.thaw then freeze(model, true) end
  local rows = BATCH / ranks
  return model, opts.alike and x or x:narrow(1, 1 + rank * rows, rows), loss_of
end
local function numbers_of(model, all)
  local function add(t)
    for _, v in ipairs(t:detach():reshape(-1):totable()) do all[#all + 1] = v end
  end
  parallel.summon(model, false, nil, function() for _, p in ipairs(model:parameters()) do add(p) end end)
  for _, b in ipairs(model:buffers()) do if b.dtype == "float32" then add(b) end end
end
-- One pass over a part of the batch, which may be recorded: its loss, and the norm where it clips.
local function pass_of(accelerator, model, optimizers, loss_of, opts)
  return function(part)
    local loss, norm = loss_of(model, part)
    accelerator:backward(loss)
    if accelerator.sync_gradients and opts.value then
      accelerator:clip_grad_value_(model:parameters(), opts.value)
    elseif accelerator.sync_gradients and opts.clip ~= false then
      norm = accelerator:clip_grad_norm_(model:parameters(), opts.clip or 0.5)
    end
    for _, optimizer in ipairs(optimizers) do
      optimizer:step()
      optimizer:zero_grad()
    end
    return accelerate.utils.reduce(loss:detach(), "mean"), norm
  end
end
local function train(name, plan, opts)
  opts = opts or {}
  state.reset()
  core.manual_seed(4)
  local accelerator = accelerate.Accelerator { cpu = opts.cpu, gradient_accumulation_steps = opts.accumulate,
    mixed_precision = opts.precision, dynamo_backend = opts.backend }
  accelerator._plan = plan_of(plan, opts)
  local model, part, loss_of = built(name, opts)
  local optimizers, all = optimizers_of(model, opts), {}
  local prepared = { accelerator:prepare(model, unpack(optimizers)) }
  model, optimizers = prepared[1], { unpack(prepared, 2) }
  part = part:to(accelerator.device)
  local pass = pass_of(accelerator, model, optimizers, loss_of, opts)
  if opts.captured then pass = accelerate.utils.capture(pass, { verify = opts.verify }) end
  if opts.resume then accelerator:load_state(opts.folder) end
  for step = opts.resume and opts.save + 1 or 1, opts.steps or 6 do
    if step == opts.thaw then freeze(model, false) end
    for micro = 1, opts.accumulate or 1 do
      local loss, norm = accelerator:accumulate(model, pass, part)
      if norm then all[#all + 1] = norm:item() end
      if micro == 1 then all[#all + 1] = loss:item() end
    end
    if step == 2 then core.no_grad(function() loss_of(model, part) end) end -- an evaluation in between
    if step == opts.save then accelerator:save_state(opts.folder) end
    if step == opts.kill and rank == 0 then ffi.C.kill(ffi.C.getpid(), 9) end
  end
  numbers_of(model, all)
  return all, model, optimizers[1], accelerator, pass
end
local function give(t) if rank == 0 then print(accelerate.utils.json.encode(t)) end end
]]

--- Options of ranks.run. Ranks of one machine share the values' memory; those that gather do as
--- ranks on GPUs and on several machines do.
M.CPU = { launch = { "--cpu" } }
M.GATHERING = { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = "0" } }

--- The numbers that train(...) gives on n ranks. call: its arguments as text. opts: default M.CPU.
function M.numbers(n, call, opts)
  return json.decode(ranks.ok(n, M.TRAIN .. "give((train(" .. call .. ")))", opts or M.CPU))
end

local function options(gathers)
  return { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = gathers and "0" or "1" }, seconds = 600 }
end

--- The numbers of each of several calls, the arguments of train as text, in one run of n ranks on
--- the CPU. gathers: whether each rank gathers the values, as ranks of several machines do.
function M.train(n, calls, gathers)
  local script, all = M.TRAIN, {}
  for _, call in ipairs(calls) do script = script .. ("give((train(%s)))\n"):format(call) end
  for line in ranks.ok(n, script, options(gathers)):gmatch "[^\n]+" do all[#all + 1] = json.decode(line) end
  return all
end

--- The numbers of a run that saves a state after step 20, is killed after step 30 and goes on from
--- the state. call: the arguments of train up to the options' closing brace.
function M.resumed(n, call, gathers)
  local folder = os.tmpname()
  os.remove(folder)
  call = ("%s, folder = %q, save = 20"):format(call, folder)
  local status, _, err = ranks.run(n, ("%strain(%s, kill = 30 })"):format(M.TRAIN, call), options(gathers))
  assert(status ~= 0 and err:find "rank 0 of %d+ was killed by SIGKILL", err)
  local ok, there = pcall(M.train, n, { call .. ", resume = true }" }, gathers)
  fs.remove_tree(folder)
  return assert(ok and there, there)[1]
end

--- The last n numbers of a list: of a run that was resumed and one that was not, the shorter one's.
function M.tail(list, n)
  local part = {}
  for i = 1, n do part[i] = list[#list - n + i] end
  return part
end

--- The largest difference of two lists of numbers.
function M.worst(a, b)
  assert(#a == #b, ("%d numbers beside %d"):format(#a, #b))
  local w = 0
  for i = 1, #a do w = math.max(w, math.abs(a[i] - b[i])) end
  return w
end

return M
