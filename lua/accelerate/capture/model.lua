--- Accelerator{ dynamo_backend = "cudagraphs" }: records a prepared model's forward and backward
--- passes for each set of shapes and modes. An op of the tape replays them, so an ordinary training
--- loop runs unchanged (as with torch.cuda.make_graphed_callables).
---
--- The optimizer, the loss and the rest of the script run as usual; accelerate.utils.capture
--- records a whole step.
---
--- The recorded backward adds into the parameters' gradients itself, with the bits of the eager
--- one; there is one recording for parameters without gradients and one for parameters that have
--- some. On several ranks the recording of a pass that ends with the reduction of gradients
--- contains that, overlapped as in the eager pass.
local autocast = require "accelerate.precision.autocast"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local scope = require "accelerate.utils.scope"
local values = require "accelerate.capture.values"

local fail = options.fail

local M = {}

local WARMUP, MOST = 3, 32

-- ---- recording

-- Records fn(...) on `device` and returns the list of its results. apart: it leaves gradients of
-- leaves alone.
local function record(device, apart, fn, ...)
  local given = scope.pack(...)
  return recording.record(device, function(active, capture)
    if apart then core.capture_leave_gradients(capture) end
    return recording.run(active, nil, fn, unpack(given, 1, given.n))
  end, function(capture, results, active)
    if #active.again > 0 then
      fail("the forward of a model with dynamo_backend = 'cudagraphs' steps an optimizer or a schedule")
    end
    core.capture_end(capture)
    return results
  end)
end

-- Returns values around the tensors of `list` in place of their own.
local function rebuild(given, list)
  local at = 0
  return values.map(given, "", function()
    at = at + 1
    return list[at]
  end)
end

local function wanted(list)
  local found = {}
  for _, t in ipairs(list) do
    if t.requires_grad then found[#found + 1] = t end
  end
  return found
end

-- Records the forward pass for arguments of this form. Backward passes are recorded at first use.
local function make(self, args, tensors)
  local inputs, outputs, words, paths = {}, {}, {}, {}
  core.no_grad(function()
    for i, t in ipairs(tensors) do inputs[i] = t:detach():clone() end
  end)
  for i, t in ipairs(tensors) do
    if t.requires_grad then inputs[i].requires_grad = true end
  end
  local copies = rebuild(args, inputs)
  local forward, results = record(self.device, true, self.forward, unpack(copies, 1, copies.n))
  for i = 1, results.n do
    if not values.describe(results[i], "", words, outputs, paths) then
      core.capture_free(forward)
      fail("dynamo_backend = 'cudagraphs': result %d of the model's forward must be a tensor, or a table " ..
        "of tensors and plain values, got %s", i,
        options.show(results[i]))
    end
  end
  local pair = { device = self.device, forward = forward, inputs = inputs, outputs = {}, seeded = {},
    shape = results, params = wanted(self.model:parameters()), reduction = self.reduction, first = true,
    roots = wanted(outputs), leaves = wanted(inputs), seeds = {}, backwards = {} }
  core.no_grad(function()
    for i, t in ipairs(pair.roots) do
      pair.seeds[i] = core.zeros(t.shape, { dtype = t.dtype, device = t.device })
    end
  end)
  for i, t in ipairs(outputs) do pair.outputs[i], pair.seeded[i] = t:detach(), t.requires_grad end
  return pair
end

-- Records the backward pass of the graph that the recorded forward left. reduces: with the
-- reduction of the parameters' gradients.
local function make_backward(pair, reduces)
  local function pass() core._backward(pair.roots, pair.seeds, true) end
  local capture
  if reduces then capture = record(pair.device, false, pair.reduction.run, pass)
  else capture = record(pair.device, false, pass) end
  local grads = {}
  for i, t in ipairs(pair.leaves) do grads[i], t.grad = t.grad, nil end
  return { capture = capture, grads = grads, reduces = reduces, first = true }
end

-- Returns the inputs' gradients.
local function replay_backward(pair)
  local found
  local reduces = pair.reduction ~= nil and pair.reduction.due()
  for _, backward in ipairs(pair.backwards) do
    if backward.reduces == reduces and core.capture_fits(backward.capture) then found = backward break end
  end
  if not found then
    if #pair.backwards == 8 then core.capture_free(table.remove(pair.backwards, 1).capture) end
    found = make_backward(pair, reduces)
    table.insert(pair.backwards, found)
  end
  core.capture_replay(found.capture, found.first)
  found.first = false
  if pair.reduction then pair.reduction.replayed(reduces) end
  for _, t in ipairs(pair.leaves) do t.grad = nil end
  return found.grads
end

-- ---- the op on the tape

local op = core.Function {
  name = "captured_model",
  -- (pair, tensors..., parameter) -> the result's tensors. One parameter stands for all of them.
  forward = function(ctx, pair, ...)
    ctx.pair, ctx.needs = pair, {}
    for i, input in ipairs(pair.inputs) do
      local given = select(i, ...)
      ctx.needs[i] = given.requires_grad
      input:copy_(given)
    end
    core.capture_replay(pair.forward, pair.first)
    pair.first = false
    pair.pending = setmetatable({ ctx }, { __mode = "v" })
    local copies = {}
    for i, t in ipairs(pair.outputs) do copies[i] = t:clone() end -- the next replay writes into t
    return unpack(copies)
  end,
  backward = function(ctx, ...)
    local pair, n = ctx.pair, 0
    if not pair.pending or pair.pending[1] ~= ctx then
      fail("backward: dynamo_backend = 'cudagraphs': the model was called again since, and its " ..
        "activations were overwritten; call backward once for each call")
    end
    for i, seeded in ipairs(pair.seeded) do
      if seeded then
        n = n + 1
        pair.seeds[n]:copy_((select(i, ...)))
      end
    end
    local list, at = { n = 1 + #pair.inputs + math.min(1, #pair.params) }, 0
    local grads = replay_backward(pair)
    pair.pending = nil
    for i = 1, #pair.inputs do
      if pair.inputs[i].requires_grad then
        at = at + 1
        list[1 + i] = grads[at]
      end
    end
    return unpack(list, 1, list.n)
  end,
}

-- ---- calls

local function key_of(self, words)
  words[#words + 1] = recording.flags(self.modes, self.modules, "training")
  words[#words + 1] = recording.flags(self.wanted, self.model:parameters(), "requires_grad")
  words[#words + 1] = autocast.is_autocast_enabled() and autocast.get_autocast_dtype() or "-"
  return table.concat(words, " ")
end

local function free(pair)
  core.capture_free(pair.forward)
  for _, backward in ipairs(pair.backwards) do core.capture_free(backward.capture) end
end

local function call(self, ...)
  local args, tensors, words, paths = scope.pack(...), {}, {}, {}
  if not core.is_grad_enabled() or recording.active or core.is_recording() then return self.forward(...) end
  for i = 2, args.n do
    if not values.describe(args[i], "", words, tensors, paths) then return self.forward(...) end
  end
  for _, t in ipairs(tensors) do
    if t.device ~= self.device then return self.forward(...) end
  end
  local key = key_of(self, words)
  local entry = self.entries[key]
  if not entry then
    if self.n >= MOST then
      fail("dynamo_backend = 'cudagraphs': the model was called with %d different sets of shapes and " ..
        "modes, each of which is recorded by itself; pad to fewer " ..
        "shapes, or use dynamo_backend = 'no'", self.n + 1)
    end
    entry = { calls = 0 }
    self.entries[key], self.n = entry, self.n + 1
  end
  local pair = entry.pair
  if pair and not core.capture_fits(pair.forward) then
    free(pair)
    pair, entry.pair, entry.calls = nil, nil, WARMUP - 1
  end
  if entry.calls < WARMUP then
    entry.calls = entry.calls + 1
    return self.forward(...)
  end
  if not pair then
    pair = make(self, { n = args.n, unpack(args, 1, args.n) }, tensors)
    entry.pair = pair
    self.recorded = self.recorded + 1
  elseif pair.pending and pair.pending[1] then
    return self.forward(...) -- the previous call's activations still wait for their backward pass
  end
  tensors[#tensors + 1] = pair.params[1]
  local outputs = { op(pair, unpack(tensors)) }
  self.replayed = self.replayed + 1
  local results = rebuild(pair.shape, outputs)
  return unpack(results, 1, results.n)
end

local wrapped = setmetatable({}, { __mode = "k" })

--- Makes `model.forward` replay recordings. A second call for one model does nothing.
---@param model accelerate.nn.Module
---@param device string the model's device; on the CPU nothing changes
---@param reduction table? of the gradients over several ranks (accelerate.parallel): due() is true
---  when the current backward pass ends with it; run(pass) runs a pass and it; replayed(reduces)
---  follows each replay
function M.wrap(model, device, reduction)
  if wrapped[model] or device == "cpu" then return end
  local self = { forward = model.forward, model = model, device = device, entries = {}, n = 0, modules = {},
    modes = {}, wanted = {}, recorded = 0, replayed = 0, reduction = reduction }
  for _, module in ipairs(model:modules()) do self.modules[#self.modules + 1] = module end
  wrapped[model] = self
  local own = model._values.forward or false
  model.forward = function(...) return call(self, ...) end
  recording.wrapped_forwards[model.forward] = own
end

--- Returns how often a wrapped model was recorded and replayed; nil when it is not wrapped.
---@param model accelerate.nn.Module
---@return { recorded: integer, replayed: integer }?
function M.stats(model)
  local self = wrapped[model]
  return self and { recorded = self.recorded, replayed = self.replayed }
end

return M
