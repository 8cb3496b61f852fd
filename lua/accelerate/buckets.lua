--- Gradient buckets: what one reduction over ranks takes, and when.
---
--- On GPUs a model's gradient buffers are cut into buckets, neighbouring parameters each (the first
--- of 1 MiB, then of bucket_cap_mb, as in PyTorch's DDP).  A bucket whose gradients of a pass are
--- complete is reduced while backward goes on; buckets go in the order of the buffers on every
--- rank, and those that miss a gradient at the end of the pass go then.  What follows waits on the
--- device, the host does not.
---
--- On the CPU a reduction is over when it returns: there it begins after backward, and takes all at
--- once.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

--- Set by accelerate.parallel: does a chunk that was frozen at prepare want gradients by now?
---@type fun(record: accelerate.Record, chunk: accelerate.Chunk): boolean
M.thawed = nil

local function hooks() return require "accelerate.comm_hooks" end

local FIRST_BUCKET, BUCKET = 2 ^ 20, 25 * 2 ^ 20  -- bytes; DDP's

---@class accelerate.GradientBucket: accelerate.Bucket
---@field chunk accelerate.Chunk
---@field params accelerate.Tensor[] those in it
---@field offsets integer[] their places in the chunk
---@field first integer the place of the first one among the chunk's parameters
---@field last boolean whether it is the chunk's last one, which takes the presence along
---@field whole accelerate.Tensor what one all_reduce takes
---@field pending integer gradients that the backward pass under way has still to bring
---@field work userdata? the all_reduce under way
---@field hook thread? the communication hook at work on it

--- Cuts a chunk.  On the CPU, where a reduction is over when it returns, it is one bucket unless
--- the script says how large they are; a hook gets it whole there.
local function cut(record, chunk, buckets)
  local cap, size = record.ddp.bucket, chunk.grads:element_size()
  local on_cpu = chunk.device == "cpu"
  if on_cpu and (not cap or record.hook) then cap = math.huge end
  local limit = on_cpu and cap or #buckets == 0 and math.min(FIRST_BUCKET, cap or BUCKET) or cap or BUCKET
  local n, first = #chunk.params, 1
  for i = 1, n do
    local from, to = chunk.offsets[first], i == n and chunk.size or chunk.offsets[i + 1]
    if i == n or (to - from) * size >= limit then
      local bucket = { chunk = chunk, first = first, last = i == n, params = {}, offsets = {}, parts = {},
        pending = 0 }
      for k = first, i do
        local p = chunk.params[k]
        local count, rows = p:numel(), p:dim() > 0 and p:size(1) or 1
        table.insert(bucket.params, p)
        table.insert(bucket.offsets, chunk.offsets[k])
        table.insert(bucket.parts, { offset = chunk.offsets[k] - from, count = count, rows = rows,
          columns = rows > 0 and count / rows or 0 })
      end
      bucket.key = bucket
      bucket.buffer = chunk.grads:narrow(1, from + 1, to - from)
      bucket.whole = bucket.last and not record.hook and chunk.grads:narrow(1, from + 1, to - from + n)
        or bucket.buffer
      buckets[#buckets + 1] = bucket
      first, limit = i + 1, cap or BUCKET
    end
  end
end

--- The buckets of a model, cut again when its buffers have changed.
local function buckets_of(record)
  local wanted, same = {}, record.cut_of ~= nil
  for _, chunk in ipairs(record.chunks) do
    if chunk.trainable or M.thawed(record, chunk) then
      wanted[#wanted + 1] = chunk
      same = same and record.cut_of[#wanted] == chunk
    end
  end
  if not same or #record.cut_of ~= #wanted then
    record.buckets, record.cut_of = {}, wanted
    for _, chunk in ipairs(wanted) do cut(record, chunk, record.buckets) end
    record.bucket_of = setmetatable({}, { __mode = "k" })
    for _, bucket in ipairs(record.buckets) do
      for _, p in ipairs(bucket.params) do record.bucket_of[p] = bucket end
    end
  end
  return record.buckets
end

--- Writes a chunk's presence on its device.
local function mark_presence(chunk)
  local n = #chunk.params
  local presence = chunk.grads:narrow(1, chunk.size + 1, n)
  if chunk.missing == 0 then
    presence:fill_(1)
    return
  end
  local marks = {}
  for i, p in ipairs(chunk.params) do marks[i] = p.grad and 1 or 0 end
  presence:copy_(core.tensor(marks, { dtype = chunk.dtype }))
end

--- Begins the reduction of one bucket; on the CPU it is over then.  It carries the model's number:
--- a rank whose loss reached another model than its peers' is told so, also where both have buffers
--- of one size.  false: the layout is out of date.
local function launch(record, bucket)
  local chunk, on_device = bucket.chunk, bucket.chunk.device ~= "cpu"
  local missing = core.flat_collect(bucket.params, chunk.grads, bucket.offsets, chunk.size + bucket.first - 1)
  if not missing then return false end
  chunk.missing = (bucket.first == 1 and 0 or chunk.missing) + missing
  if bucket.last and on_device then core.no_grad(mark_presence, chunk) end
  if not record.hook then
    local work = core.dist.all_reduce(bucket.whole, "mean", record.number, on_device)
    bucket.work = on_device and work or nil
    return true
  end
  -- With a hook, gradients go through it and the presence by itself: it must arrive as it is.
  if bucket.last then
    core.dist.all_reduce(chunk.grads:narrow(1, chunk.size + 1, #chunk.params), "mean", record.number)
  end
  if on_device then
    bucket.hook = hooks().start(record.hook, bucket, core.dist.world_size())
    bucket.work = hooks().go_on(bucket.hook)
  else
    core.no_grad(core.scope, record.hook.reduce, record.hook, bucket, core.dist.world_size())
  end
  return true
end

--- Has what follows on the device wait for the reductions that were begun, and brings hooks to
--- their ends: each in turn goes on to its next exchange.
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
        bucket.work = hooks().go_on(hook)
        open = open or bucket.work ~= nil
        if not bucket.work then bucket.hook = nil end
      end
    end
  until not open
  record.launched = 0
end

--- A gradient of the pass under way is complete; so may be the next bucket, and those behind it.
function M.arrived(record, p)
  local bucket = record.bucket_of[p]
  if not bucket then return end
  bucket.pending = bucket.pending - 1
  local buckets = record.buckets
  if bucket.pending < 0 and bucket.begun then
    fail("backward: a parameter of shape [%s] got another gradient in the same pass after its bucket had " ..
      "been reduced; with " ..
      "DistributedDataParallelKwargs { static_graph = true } the first pass finds out how many there are",
      table.concat(p.shape, ", "))
  end
  while record.live do
    local following = buckets[record.launched + 1]
    if not following or following.pending > 0 then return end
    -- Whoever else looks at these gradients would do so while they change.
    if not core.flat_unwatched(following.params) or not launch(record, following) then
      record.live = false
      return
    end
    following.begun = true
    record.launched = record.launched + 1
  end
end

--- Before a backward pass that ends with a reduction: counts what each bucket waits for.
function M.expect(record)
  for i = 1, record.launched do  -- an error ended the last pass
    local bucket = record.buckets[i]
    if bucket.work then pcall(bucket.work.wait, bucket.work) end
    bucket.work, bucket.hook = nil, nil
  end
  record.launched = 0
  local counts = record.ddp.static_graph and record.arrivals
  for _, bucket in ipairs(buckets_of(record)) do
    bucket.pending, bucket.begun = 0, false
    for _, p in ipairs(bucket.params) do
      if p.requires_grad then bucket.pending = bucket.pending + (counts and (counts[p] or 0) or 1) end
    end
  end
end

--- Reduces what is not yet being reduced, and has what follows on the device wait for all of it.
--- false: a parameter was given other memory, and the layout is out of date.
---@param record accelerate.Record
---@return boolean
function M.reduce(record)
  record.live = false
  if record.counting then record.arrivals, record.counting = record.counting, nil end
  local buckets = record.launched > 0 and record.buckets or buckets_of(record)
  for i = record.launched + 1, #buckets do
    if not launch(record, buckets[i]) then
      settle(record)
      return false
    end
    record.launched = i
  end
  settle(record)
  for _, chunk in ipairs(record.cut_of) do
    if chunk.missing > 0 then
      if chunk.device == "cpu" then core.flat_adopt(chunk.params, chunk.grads, chunk.size)
      else
        -- What the ranks have of a graph that does not change need be asked, and waited for, once.
        local presence = record.ddp.static_graph and chunk.presence
          or chunk.grads:narrow(1, chunk.size + 1, #chunk.params):to("cpu")
        chunk.presence = presence
        core.flat_adopt(chunk.params, presence, 0)
      end
    end
  end
  return true
end

return M
