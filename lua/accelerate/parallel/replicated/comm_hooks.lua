--- Communication hooks: ways of averaging gradients over ranks other than one all_reduce in their
--- own dtype.
---
--- Names and algorithms are those of PyTorch's DistributedDataParallel. fp16 and bf16 send half as
--- many bytes. power_sgd (Vogels et al., arXiv 1905.13727) sends two thin matrices in place of each
--- gradient, and adds the approximation's error to the next gradient. A hook works on a bucket:
--- gradients of one dtype, end to end in one vector.
---
--- On a GPU a hook is a coroutine that yields at each exchange and is resumed at its end, so that
--- the exchanges of all buckets overlap with one another and with backward.
local core = require "accelerate.core"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

---@class accelerate.Bucket
---@field key table key of the hook's memory for this bucket
---@field buffer accelerate.Tensor 1-d
---@field parts { offset: integer, count: integer, rows: integer, columns: integer }[] the gradients
---  in it

local HALF = { fp16 = "float16", bf16 = "bfloat16" }

local stepping = false  -- inside go_on

--- Sums `t` over ranks, in place.
local function exchange(t)
  if not stepping then return core.dist.all_reduce(t, "sum") end
  coroutine.yield(core.dist.all_reduce(t, "sum", 0, true))
end

--- Starts a hook on a bucket of a GPU.
---@param hook table see M.make
---@return thread
function M.start(hook, bucket, ranks)
  return coroutine.create(function() hook:reduce(bucket, ranks) end)
end

--- Runs a hook up to its next exchange.
---@param co thread from M.start
---@return userdata? work the exchange, which must end before the next call; nil when the hook is
---  done
function M.go_on(co)
  local function step()
    stepping = true
    local ok, work = coroutine.resume(co)
    stepping = false
    if not ok then error(work, 0) end
    return work
  end
  return core.no_grad(step)
end

local function mean_(t, ranks)
  exchange(t)
  return t:div_(ranks)
end

-- ---- fp16 and bf16

--- Returns a hook that sends the gradients in a lower dtype.
local function compress(dtype)
  return function(_, bucket, ranks)
    local small = bucket.buffer:to(dtype):div_(ranks)
    exchange(small)
    bucket.buffer:copy_(small)
  end
end

--- Returns a hook that runs another hook on the gradients in a lower dtype.
local function wrapped(dtype, inner)
  return function(self, bucket, ranks)
    local small = { key = bucket.key, parts = bucket.parts, buffer = bucket.buffer:to(dtype) }
    inner(self, small, ranks)
    bucket.buffer:copy_(small.buffer)
  end
end

-- ---- PowerSGD

local POWER = {
  matrix_approximation_rank = { "integer", default = 1, min = 1 },
  start_powerSGD_iter = { "integer", default = 1000, min = 0 },
  min_compression_rate = { "number", default = 2, min = 0 },
  use_error_feedback = { "boolean", default = true },
  warm_start = { "boolean", default = true },
  orthogonalization_epsilon = { "number", default = 0, min = 0 },
  random_seed = { "integer", default = 0, min = 0 },
  compression_stats_logging_frequency = { "integer", default = 10000, min = 1 },
  batch_tensors_with_same_shape = { "boolean", default = false },
}

local function length(column) return (column * column):sum({ dim = 2, keepdim = true }):sqrt() end

--- Makes the columns of each matrix orthonormal, in place, by Gram-Schmidt. A column in the span of
--- the columns before it becomes zero.
---@param t accelerate.Tensor [batch, n, rank]
---@param epsilon number added to each column's norm
local function orthogonalize(t, epsilon)
  local rank, half = t:size(3), t.dtype == "float16" or t.dtype == "bfloat16"
  local wide = half and t:float() or t
  local done
  for k = 1, rank do
    local column, before = wide:narrow(3, k, 1), nil
    -- When earlier columns nearly span this one, the remainder is mostly rounding error, which
    -- further passes remove. A remainder that the last pass still halves is rounding error alone.
    for _ = 1, done and 3 or 0 do
      before = length(column)
      column = column - done:matmul(done:transpose(2, 3):matmul(column))
    end
    local norm = length(column)
    column = column / (norm + norm:eq(0):to(norm.dtype) + epsilon)
    if before then column = column * norm:ge(before * 0.5):to(norm.dtype) end
    done = done and core.cat({ done, column }, 3) or column
  end
  t:copy_(done)
end

--- Returns the bucket's matrices that are worth compressing, as groups [batch, n, m] of one shape,
--- and the parts that are not.
local function groups_of(self, bucket)
  local o, groups, by_shape, whole = self.options, {}, {}, {}
  for _, part in ipairs(bucket.parts) do
    local n, m = part.rows, part.columns
    local rank = math.min(n, m, o.matrix_approximation_rank)
    if part.count > 0 and (n + m) * rank * o.min_compression_rate < n * m then
      local shape = n .. " " .. m
      local group = o.batch_tensors_with_same_shape and by_shape[shape]
      if not group then
        group = { n = n, m = m, rank = rank, parts = {} }
        by_shape[shape], groups[#groups + 1] = group, group
      end
      table.insert(group.parts, part)
    else
      whole[#whole + 1] = part
    end
  end
  return groups, whole
end

local function view_of(bucket, part) return bucket.buffer:narrow(1, part.offset + 1, part.count) end

local function matrices_of(bucket, group)
  local list = {}
  for i, part in ipairs(group.parts) do list[i] = view_of(bucket, part):view(1, group.n, group.m) end
  return #list == 1 and list[1] or core.cat(list, 1)
end

--- Averages the parts that are not compressed, in one exchange.
local function average_whole(bucket, whole, ranks)
  local list = {}
  for i, part in ipairs(whole) do list[i] = view_of(bucket, part) end
  if #list == 0 then return end
  local all, at = mean_(core.cat(list, 1), ranks), 1
  for i, part in ipairs(whole) do
    list[i]:copy_(all:narrow(1, at, part.count))
    at = at + part.count
  end
end

local function announce(self)
  if self.steps < self.next_report then return end
  self.next_report = self.steps + self.options.compression_stats_logging_frequency
  notice.main("PowerSGD, step %d: %d of %d gradient elements sent so far", self.steps, self.after,
    self.before)
end

--- Replaces each group's gradients M by P Q^T: P is the orthonormal basis of the mean of M Q, and Q
--- becomes the mean of M^T P.
local function approximate(self, bucket, groups, whole, ranks)
  local o, memory = self.options, self.memory[bucket.key] or {}
  self.memory[bucket.key] = memory
  for g, group in ipairs(groups) do
    local matrices = matrices_of(bucket, group)
    if o.use_error_feedback and memory[g] and memory[g].lost then matrices = matrices + memory[g].lost end
    local own = o.warm_start and memory[g] or { lost = memory[g] and memory[g].lost }
    memory[g] = own
    own.q = own.q
      or self.random({ #group.parts, group.m, group.rank }, bucket.buffer.dtype):to(bucket.buffer.device)
    orthogonalize(own.q, o.orthogonalization_epsilon)
    group.matrices, group.own, group.p = matrices, own, matrices:matmul(own.q)
    self.before = self.before + matrices:numel()
    self.after = self.after + group.p:numel() + own.q:numel()
  end
  average_whole(bucket, whole, ranks)
  for _, part in ipairs(whole) do
    self.before, self.after = self.before + part.count, self.after + part.count
  end
  for _, group in ipairs(groups) do
    local own, p = group.own, group.p
    exchange(p)  -- not divided: orthogonalize drops the norm
    orthogonalize(p, o.orthogonalization_epsilon)
    local q = mean_(group.matrices:transpose(2, 3):matmul(p), ranks)
    local near = p:matmul(q:transpose(2, 3))
    if o.use_error_feedback then own.lost = core.keep(group.matrices - near) end
    for i, part in ipairs(group.parts) do view_of(bucket, part):copy_(near:narrow(1, i, 1):reshape(-1)) end
    own.q = o.warm_start and core.keep(q) or nil
  end
end

local function power(self, bucket, ranks)
  if self.steps < self.options.start_powerSGD_iter then
    mean_(bucket.buffer, ranks)
    return
  end
  announce(self)
  local groups, whole = groups_of(self, bucket)
  approximate(self, bucket, groups, whole, ranks)
end

--- Compresses the whole bucket as one square matrix, padded with zeros.
local function batched_power(self, bucket, ranks)
  if self.steps < self.options.start_powerSGD_iter then
    mean_(bucket.buffer, ranks)
    return
  end
  announce(self)
  local count = 0
  for _, part in ipairs(bucket.parts) do count = count + part.count end
  local side = math.ceil(math.sqrt(count))
  local square = { key = bucket.key,
    buffer = core.zeros({ side * side }, { dtype = bucket.buffer.dtype, device = bucket.buffer.device }) }
  local at = 0
  for _, part in ipairs(bucket.parts) do
    square.buffer:narrow(1, at + 1, part.count):copy_(view_of(bucket, part))
    at = at + part.count
  end
  local rank = math.min(side, self.options.matrix_approximation_rank)
  local part = { offset = 0, count = side * side, rows = side, columns = side }
  approximate(self, square, { { n = side, m = side, rank = rank, parts = { part } } }, {}, ranks)
  at = 0
  for _, own in ipairs(bucket.parts) do
    view_of(bucket, own):copy_(square.buffer:narrow(1, at + 1, own.count))
    at = at + own.count
  end
end

-- ---- by name

local function power_state(given)
  local o = options.check("comm_state_option", given, POWER)
  if (o.use_error_feedback or o.warm_start) and o.start_powerSGD_iter <= 1 then
    fail("comm_state_option: start_powerSGD_iter must be above 1 with use_error_feedback or warm_start, " ..
      "got %d: the first gradients are averaged whole",
      o.start_powerSGD_iter)
  end
  return o
end

--- Makes the hook that a DistributedDataParallelKwargs names; nil when it names none.
---@param handler { comm_hook: string?, comm_wrapper: string?, comm_state_option: table? }
---@return { reduce: fun(self: table, bucket: accelerate.Bucket, ranks: integer), steps: integer }?
---  hook `steps`: number of reductions so far. PowerSGD's hooks also have `random(shape, dtype)`,
---  which makes a matrix's first Q, equal on all ranks
function M.make(handler)
  local kind, wrapper = handler.comm_hook or "no", handler.comm_wrapper or "no"
  local state_option = handler.comm_state_option
  local reduce
  if HALF[kind] then reduce = compress(HALF[kind])
  elseif kind == "power_sgd" then reduce = power
  elseif kind == "batched_power_sgd" then reduce = batched_power
  elseif kind ~= "no" then
    fail("comm_hook: unknown hook '%s'; choose between no, fp16, bf16, power_sgd, batched_power_sgd",
      tostring(kind))
  end
  if wrapper ~= "no" and not HALF[wrapper] then
    fail("comm_wrapper: unknown wrapper '%s'; choose between no, fp16, bf16", tostring(wrapper))
  end
  local powers = reduce == power or reduce == batched_power
  if not powers and state_option ~= nil and next(state_option) ~= nil then
    fail("comm_state_option is for the hooks power_sgd and batched_power_sgd, and comm_hook is '%s'", kind)
  end
  if not reduce then return nil end
  local hook = { steps = 0, reduce = wrapper ~= "no" and wrapped(HALF[wrapper], reduce) or reduce }
  if powers then
    hook.options = power_state(state_option)
    hook.memory = setmetatable({}, { __mode = "k" })
    hook.before, hook.after, hook.next_report = 0, 0, hook.options.compression_stats_logging_frequency
    local generator = core.Generator(hook.options.random_seed)
    function hook.random(shape, dtype) return core.randn(shape, { generator = generator }):to(dtype) end
  end
  return hook
end

return M
