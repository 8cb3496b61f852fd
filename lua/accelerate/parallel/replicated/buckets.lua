--- Gradient buckets: what one reduction over ranks takes, and when.
---
--- On GPUs a model's gradient buffers are cut into buckets of neighbouring slots (the first of 1
--- MiB, the others of bucket_cap_mb, as in PyTorch's DDP). The core counts the gradients of a pass
--- and calls M.arrived once for each full bucket, which is then reduced while backward continues.
--- All ranks reduce buckets in the order of the buffers. Buckets that lack a gradient are reduced
--- at the end of the pass. The device waits for the reductions; the host does not.
---
--- On the CPU a reduction blocks, so it starts after backward and takes everything at once.
local comm_hooks = require "accelerate.parallel.replicated.comm_hooks"
local core = require "accelerate.core"
local flat_buffers = require "accelerate.parallel.flat"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local FIRST_BUCKET, BUCKET = 2 ^ 20, 25 * 2 ^ 20  -- bytes, as in DDP

---@class accelerate.GradientBucket: accelerate.Bucket
---@field flat accelerate.Flat
---@field index integer position among the flat's buckets
---@field last boolean whether it is the flat's last bucket, which carries the presence
---@field whole accelerate.Tensor the elements of one all_reduce
---@field full boolean whether all its gradients of the current backward pass have arrived
---@field begun boolean whether its reduction has started
---@field work userdata? the running all_reduce
---@field hook thread? the running communication hook

-- Makes a bucket from the slots first..last of a flat.
local function new_bucket(record, flat, index, first, last)
  local n = #flat.params
  local from, to = flat.offsets[first], last == n and flat.size or flat.offsets[last + 1]
  local bucket = { flat = flat, index = index, last = last == n, parts = {}, full = false, begun = false }
  for k = first, last do
    local p = flat.params[k]
    local count, rows = p:numel(), p:dim() > 0 and p:size(1) or 1
    table.insert(bucket.parts, { offset = flat.offsets[k] - from, count = count, rows = rows,
      columns = rows > 0 and count / rows or 0 })
  end
  bucket.key = bucket
  bucket.buffer = flat.grads:narrow(1, from + 1, to - from)
  bucket.whole = bucket.last and not record.hook and flat.grads:narrow(1, from + 1, to - from + n)
    or bucket.buffer
  return bucket
end

--- Cuts a flat into buckets and appends them to `buckets`. On the CPU, where reductions block,
--- there is one bucket unless the script sets a size; a hook always gets one there.
local function cut(record, flat, buckets)
  local cap, size = record.ddp.bucket, flat.grads:element_size()
  local on_cpu = flat.device == "cpu"
  if on_cpu and (not cap or record.hook) then cap = math.huge end
  local limit = on_cpu and cap or #buckets == 0 and math.min(FIRST_BUCKET, cap or BUCKET) or cap or BUCKET
  local n, first, ends, own = #flat.params, 1, {}, {}
  for i = 1, n do
    local bytes = ((i == n and flat.size or flat.offsets[i + 1]) - flat.offsets[first]) * size
    if i == n or bytes >= limit then
      ends[#ends + 1] = i
      own[#ends] = new_bucket(record, flat, #ends, first, i)
      buckets[#buckets + 1] = own[#ends]
      first, limit = i + 1, cap or BUCKET
    end
  end
  flat.layout:cut(ends)
  flat.cutter = record
  flat.full = function(index, late, slot) M.arrived(record, own[index], late, flat.params[slot]) end
end

--- Returns the buckets of a model, cut again when its buffers have changed.
local function buckets_of(record)
  local wanted, same = {}, record.cut_of ~= nil
  for _, flat in ipairs(record.flats) do
    if flat.trainable or flat_buffers.has_thawed(flat) then
      wanted[#wanted + 1] = flat
      same = same and record.cut_of[#wanted] == flat and flat.cutter == record
    end
  end
  if not same or #record.cut_of ~= #wanted then
    record.buckets, record.cut_of = {}, wanted
    for _, flat in ipairs(wanted) do cut(record, flat, record.buckets) end
  end
  return record.buckets
end

--- Starts the reduction of one bucket; on the CPU it also ends it. The exchange carries the model's
--- number, so that ranks whose losses reached different models get an error even when the buffers
--- have equal sizes. Returns false when the layout is out of date.
local function launch(record, bucket)
  local flat, on_device = bucket.flat, bucket.flat.device ~= "cpu"
  if not flat.layout:collect(bucket.index) then return false end
  if not record.hook then
    local work = core.dist.all_reduce(bucket.whole, "mean", record.number, on_device)
    bucket.work = on_device and work or nil
    return true
  end
  -- A hook may change what it sends. The presence must arrive exactly, so it goes by itself.
  if bucket.last then
    core.dist.all_reduce(flat.grads:narrow(1, flat.size + 1, #flat.params), "mean", record.number)
  end
  if on_device then
    bucket.hook = comm_hooks.start(record.hook, bucket, core.dist.world_size())
    bucket.work = comm_hooks.go_on(bucket.hook)
  else
    core.no_grad(core.scope, record.hook.reduce, record.hook, bucket, core.dist.world_size())
  end
  return true
end

--- Makes later work on the device wait for the running reductions, and runs hooks to their ends, in
--- turn from exchange to exchange.
local function settle(record)
  local open
  repeat
    open = false
    for i = 1, record.launched do
      local bucket = record.buckets[i]
      local work, hook = bucket.work, bucket.hook
      bucket.work = nil
      if work then work:wait() end
      if hook then
        bucket.work = comm_hooks.go_on(hook)
        open = open or bucket.work ~= nil
        if not bucket.work then bucket.hook = nil end
      end
    end
  until not open
  record.launched = 0
end

--- Handles a gradient that fills a bucket, or (late) that came after it was full. Reduces the next
--- bucket in order, and full ones behind it.
function M.arrived(record, bucket, late, p)
  bucket.full = true
  if late and bucket.begun then
    fail("backward: a parameter of shape [%s] got another gradient in the same pass after its bucket had " ..
      "been reduced; with " ..
      "DistributedDataParallelKwargs { static_graph = true } the first pass finds out how many there are",
      table.concat(p.shape, ", "))
  end
  while record.overlapping do
    local following = record.buckets[record.launched + 1]
    if not following or not following.full then return end
    -- Other readers of these gradients would see them change.
    if following.flat.layout:is_watched(following.index) or not launch(record, following) then
      record.overlapping = false
      return
    end
    following.begun = true
    record.launched = record.launched + 1
  end
end

--- Prepares a backward pass that ends with a reduction: makes the core count the gradients that
--- each bucket waits for.
---@param record accelerate.ModelRecord
---@param overlapping boolean whether to reduce full buckets inside the pass
function M.expect(record, overlapping)
  for i = 1, record.launched do  -- an error ended the last pass
    local bucket = record.buckets[i]
    if bucket.work then pcall(bucket.work.wait, bucket.work) end
    bucket.work, bucket.hook = nil, nil
  end
  record.launched = 0
  for _, bucket in ipairs(buckets_of(record)) do bucket.full, bucket.begun = false, false end
  for _, flat in ipairs(record.cut_of) do flat.layout:expect(overlapping and flat.full or nil) end
  for _, bucket in ipairs(record.buckets) do bucket.full = bucket.flat.layout:pending(bucket.index) == 0 end
end

--- Reduces all buckets that are not being reduced yet, and makes the device wait for all of them.
--- Returns false when a parameter has new memory, so that the layout is out of date.
---@param record accelerate.ModelRecord
---@return boolean
function M.reduce(record)
  record.overlapping = false
  local buckets = record.launched > 0 and record.buckets or buckets_of(record)
  for _, flat in ipairs(record.cut_of) do
    flat.layout:ignore()
    if record.counting then flat.layout:remember() end
  end
  if record.counting then record.counted, record.counting = true, false end
  for i = record.launched + 1, #buckets do
    if not launch(record, buckets[i]) then
      settle(record)
      return false
    end
    record.launched = i
  end
  settle(record)
  -- A static graph's presence does not change, so it is exchanged and waited for only once.
  for _, flat in ipairs(record.cut_of) do flat.layout:adopt(record.ddp.static_graph) end
  return true
end

return M
