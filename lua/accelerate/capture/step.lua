--- Captured steps: a training step that is recorded once and then replayed on the device in one
--- call, without the script's Lua.
---
---   local step = accelerate.utils.capture(function(x, y)
---     local loss = loss_fn(model(x), y)
---     accelerator:backward(loss)
---     optimizer:step()
---     scheduler:step()
---     optimizer:zero_grad()
---     return loss
---   end)
---   for x, y in loader:iter() do local loss = step(x, y) end
local autocast = require "accelerate.precision.autocast"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local recording = require "accelerate.capture.recording"
local scope = require "accelerate.utils.scope"
local values = require "accelerate.capture.values"

local fail = options.fail

local M = {}

local OPTIONS = {
  verify = { "integer", optional = true, min = 1 },
  warmup = { "integer", default = 3, min = 1 },
  device = { "string", optional = true },
  max_graphs = { "integer", default = 32, min = 1 },
}

-- ---- arguments and results

-- Appends to `words` and lists as values.describe does. Raises for values that are neither tensors
-- nor plain.
local function describe(args, words, tensors, paths)
  for i = 1, args.n do
    local known, path, other = values.describe(args[i], ("argument %d"):format(i), words, tensors, paths)
    if not known then
      fail("capture: %s must be a tensor, a number, a string, a boolean, or a table of these, got %s", path,
        options.show(other))
    end
  end
end

-- Returns results without history, since a replay makes none. Raises for what a replay could not
-- return.
local function check_results(list, device)
  return values.map(list, "result", function(t, path)
    if t.device ~= device then
      fail("capture: %s lies on %s: a captured step for %s returns tensors of that device", path, t.device,
        device)
    end
    return t.grad_fn and t:detach() or t
  end, function(value, path)
    if value == nil then return end
    fail("capture: %s is %s: a replay would return the same one for ever; " ..
      "return tensors, or tables of tensors", path, options.show(value))
  end)
end

local function same(t) return t end

-- Returns the results in fresh tables around their tensors.
local function hand_out(list)
  local copy = values.map(list, "result", same)
  return unpack(copy, 1, list.n)
end

-- ---- keys

local function device_of(self, tensors)
  if self.device then return self.device end
  if tensors[1] then return tensors[1].device end
  return require("accelerate.state").PartialState().device
end

-- Appends what the step depends on besides its arguments.
local function describe_state(words)
  local gradient = require("accelerate.state").GradientState()
  words[#words + 1] = gradient.sync_gradients and "s" or "a"
  words[#words + 1] = core.is_grad_enabled() and "g" or "n"
  words[#words + 1] = autocast.is_autocast_enabled() and autocast.get_autocast_dtype() or "-"
end

-- Returns the modes of the modules that the step calls, as far as they are known.
local function modes(self) return " " .. recording.flags(self.modes, self.modules, "training") end

local function check_tensors(tensors, paths, device)
  for i, t in ipairs(tensors) do
    local path = paths[i]
    if t.device ~= device then
      fail("capture: %s lies on %s; the step is captured for %s", path, t.device, device)
    end
    if t.requires_grad and core.is_grad_enabled() then
      fail("capture: %s requires a gradient, which a captured step does not pass on: give it detached", path)
    end
  end
end

-- ---- running eagerly

-- Runs the function and collects the modules that it calls. Registers its actions on the host in
-- `active`, if given.
local function run(self, active, args)
  return recording.run(active, self, self.fn, unpack(args, 1, args.n))
end

local function eager(self, args, device)
  local results, message = run(self, nil, args)
  if not results then error(message, 0) end
  self.counts.eager = self.counts.eager + 1
  return check_results(results, device)
end

-- ---- recording

-- Returns copies of the arguments for the recorded kernels to read, their tensors, and where these
-- stand.
local function static_inputs(args)
  local inputs, paths, copies = {}, {}, nil
  core.no_grad(function()
    copies = values.map(args, "argument", function(t, path)
      local input = t:detach():clone()
      inputs[#inputs + 1], paths[#paths + 1] = input, path
      return input
    end)
  end)
  return copies, inputs, paths
end

local function record(self, args, device)
  local copies, inputs, paths = static_inputs(args)
  local capture, results, active = recording.record(device, function(active)
    return run(self, active, copies)
  end, function(capture, results)
    local checked = check_results(results, device)
    core.capture_end(capture)
    for i, input in ipairs(inputs) do
      if core.capture_writes(capture, input) then
        fail("capture: the step changes %s in place, which its caller would not see; clone it in the step",
          paths[i])
      end
    end
    core.capture_replay(capture, true)
    return checked
  end)
  self.counts.recorded = self.counts.recorded + 1
  return { capture = capture, inputs = inputs, results = results, again = active.again, fits = active.fits,
    replays = 0 }
end

-- ---- replaying

-- Returns why this recording cannot be replayed now, or nil.
local function misfit(variant)
  local fits, why = core.capture_fits(variant.capture)
  if not fits then return why end
  for i = 1, #variant.fits do
    why = variant.fits[i]()
    if why then return why end
  end
end

local function fill(variant, tensors)
  for i, t in ipairs(tensors) do variant.inputs[i]:copy_(t) end
end

local function replay(variant, tensors)
  core.no_grad(fill, variant, tensors)
  local again, capture = variant.again, variant.capture
  for i = 1, #again do again[i](capture) end
  core.capture_replay(capture, false)
  variant.replays = variant.replays + 1
end

-- Returns the name of the tensor at a byte of a storage.
local function name_of(self, address, byte)
  if address == 0 then return "the number of random draws" end
  local found
  local function look(name, t)
    if found or not core.is_tensor(t) then return end
    local home, first, last = core.tensor_place(t)
    if home == address and (byte < 0 or (byte >= first and byte < last)) then found = name return end
    local grad = t.grad
    if not grad then return end
    home, first, last = core.tensor_place(grad)
    if home == address and byte >= first and byte < last then found = "the gradient of " .. name end
  end
  for i = 1, #self.modules do
    for name, p in self.modules[i]:named_parameters() do look(("parameter '%s'"):format(name), p) end
    for name, b in self.modules[i]:named_buffers() do look(("buffer '%s'"):format(name), b) end
  end
  for optimizer in next, self.optimizers do
    local states = optimizer.state
    for g, group in ipairs(optimizer.param_groups) do
      for i, p in ipairs(group.params) do
        look(("parameter %d of group %d"):format(i, g), p)
        local state = states[p] or {}
        for _, key in ipairs(ordered.sorted_keys(state)) do
          look(("%s of parameter %d of group %d"):format(key, i, g), state[key])
        end
      end
    end
  end
  return found or ("a tensor of the step that is no parameter, " ..
    "buffer or optimizer state (byte %d of its storage)"):format(byte)
end

local function compare_results(eagerly, replayed)
  local function compare(a, b, path)
    if core.is_tensor(a) ~= core.is_tensor(b) then
      fail("capture: verify: %s is %s eagerly and %s in the replay", path, options.show(a), options.show(b))
    end
    if core.is_tensor(a) then
      if not core.same_bits(a, b) then
        fail("capture: verify: %s differs between the replay and the eager step", path)
      end
    elseif type(a) == "table" and type(b) == "table" then
      for key, inner in ordered.pairs(a) do compare(inner, b[key], nested.extend(path, key)) end
    end
  end
  for i = 1, math.max(eagerly.n, replayed.n) do compare(eagerly[i], replayed[i], ("result %d"):format(i)) end
end

-- Runs the step eagerly, restores everything, replays it, and compares.
local function verified(self, variant, args, tensors, device)
  local capture, active = variant.capture, recording.new "compare"
  core.no_grad(fill, variant, tensors)  -- the inputs are among the compared tensors
  local before = core.capture_save(capture)
  core.capture_compare(true)
  local results, message = run(self, active, args)
  core.capture_compare(false)
  if not results then
    recording.undo(active)
    core.capture_restore(capture, before)
    error(message, 0)
  end
  results = check_results(results, device)
  local eagerly = core.capture_save(capture)
  recording.undo(active)
  core.capture_restore(capture, before)
  replay(variant, tensors)
  compare_results(results, variant.results)
  local address, byte = core.capture_differ(capture, eagerly, core.capture_save(capture))
  if address then
    fail("capture: verify: %s differs between the replay and the eager step, in replay %d of this recording",
      name_of(self, address, byte), variant.replays)
  end
  self.counts.verified = self.counts.verified + 1
end

-- ---- calls

local MOST_VARIANTS = 8

-- Returns the entry's recording that fits now, or nil and why the last one does not. Frees
-- recordings that need an eager call before they could be made again.
local function fitting(self, entry)
  local why
  for i = #entry.variants, 1, -1 do
    local variant = entry.variants[i]
    why = misfit(variant)
    if not why then return variant end
    if why:find "given other memory" or why:find "left its flat buffer" or why:find "frozen or thawed" then
      table.remove(entry.variants, i)
      core.capture_free(variant.capture)
      -- one eager call: new state may first have to be made on the host
      entry.calls = math.min(entry.calls, self.warmup - 1)
    end
  end
  return nil, why
end

local function entry_of(self, key)
  local entry = self.entries[key]
  if entry then return entry end
  if self.n_entries >= self.max_graphs then
    fail("capture: the step was called with %d different sets of shapes, types and modes, each of which " ..
      "is recorded by itself and keeps its memory; " ..
      "pad to fewer shapes, or raise max_graphs", self.n_entries + 1)
  end
  entry = { calls = 0, variants = {} }
  self.entries[key], self.n_entries = entry, self.n_entries + 1
  return entry
end

local function call(self, ...)
  if recording.active then return self.fn(...) end  -- part of the enclosing step
  local args, words, tensors, paths = scope.pack(...), {}, {}, {}
  describe(args, words, tensors, paths)
  local device = device_of(self, tensors)
  check_tensors(tensors, paths, device)
  if device == "cpu" then return hand_out(eager(self, args, device)) end
  describe_state(words)
  local prefix = table.concat(words, " ")
  local key = prefix .. modes(self)
  local entry = entry_of(self, key)
  local variant, why = nil, "nothing was recorded yet"
  if entry.calls >= self.warmup then variant, why = fitting(self, entry) end
  if entry.calls < self.warmup then
    entry.calls = entry.calls + 1
    local results = eager(self, args, device)
    local renamed = prefix .. modes(self)
    if renamed ~= key and not self.entries[renamed] then  -- it called modules that were unknown before
      self.entries[key], self.entries[renamed] = nil, entry
    end
    return hand_out(results)
  end
  if variant then
    if self.verify and (variant.replays + 1) % self.verify == 0 then
      verified(self, variant, args, tensors, device)
    else replay(variant, tensors) end
    self.counts.replayed = self.counts.replayed + 1
    return hand_out(variant.results)
  end
  if #entry.variants >= MOST_VARIANTS then
    fail("capture: the step was captured %d times for the same arguments, since %s; clear gradients at " ..
      "the same place in each step", #entry.variants, why)
  end
  variant = record(self, args, device)
  table.insert(entry.variants, variant)
  return hand_out(variant.results)
end

-- ---- what scripts see

---@class accelerate.CapturedStep
---@overload fun(...): ...
local Step = class("CapturedStep")
Step.__call = call

function Step:init(fn, opts)
  self.fn, self.verify, self.warmup = fn, opts.verify, opts.warmup
  self.device, self.max_graphs = opts.device, opts.max_graphs
  self.entries, self.n_entries = {}, 0
  self.modules, self.modes, self.optimizers = {}, {}, setmetatable({}, { __mode = "k" })
  self.counts = { eager = 0, recorded = 0, replayed = 0, verified = 0 }
end

--- Frees all recordings. The step then runs eagerly and is recorded anew.
function Step:reset()
  for _, entry in next, self.entries do
    for _, variant in ipairs(entry.variants) do core.capture_free(variant.capture) end
  end
  self.entries, self.n_entries = {}, 0
end

--- Returns how often the step has run eagerly, been recorded, replayed and compared, and for how
--- many sets of arguments.
---@return { eager: integer, recorded: integer, replayed: integer, verified: integer, keys: integer
---  }
function Step:stats()
  local counts = self.counts
  return { eager = counts.eager, recorded = counts.recorded, replayed = counts.replayed,
    verified = counts.verified, keys = self.n_entries }
end

function Step.__tostring(self)
  return ("CapturedStep(%d recorded, %d replayed)"):format(self.counts.recorded, self.counts.replayed)
end

--- Makes a step that runs as one recording on a GPU. For each set of shapes, dtypes and modes the
--- first calls run eagerly, the next one is recorded, and later ones replay the recording: the
--- function's kernels, with bitwise equal results, in one launch. Tensor arguments are copied to
--- where the recording reads them. Each set of numbers, strings and booleans gets a recording of
--- its own. Results are tensors without history, which the next replay of the recording overwrites:
--- clone the ones to keep.
---
--- A replay repeats optimizer:step() with the groups' current numbers, schedulers, whether
--- gradients exist, random draws and the Accelerator's counters. It does not repeat anything else
--- that the function does in Lua. While a step is captured, a copy to or from the host, item() and
--- other calls that wait raise an error that names the script's line; nothing has changed then.
---
--- On the CPU every call runs the function, with the same checks of arguments and results.
---@param fn function takes and returns tensors, or nested tables of them
---@param opts { verify: integer?, warmup: integer?, device: string?, max_graphs: integer? }?
---  verify: compares every n-th replay of a recording, bit for bit, with the eager step from the
---  same state, and raises with what differs; such a call takes an eager step and copies all
---  parameters, states and gradients to the host three times. warmup: eager calls before each
---  recording, default 3. device: device of the arguments, default the first tensor's. max_graphs:
---  largest number of sets of shapes, dtypes and modes, default 32
---@return accelerate.CapturedStep
function M.capture(fn, opts)
  if type(fn) ~= "function"
    and not (type(fn) == "table" and type((getmetatable(fn) or {}).__call) == "function") then
    fail("capture: expected a function, got %s", options.show(fn))
  end
  return Step(fn, options.check("capture", opts, OPTIONS))
end

return M
