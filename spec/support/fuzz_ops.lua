--- Random programs over the whole op table: shapes, types, strides, options, valid or not.
---
--- Every call must succeed or raise a string that names the op; results must keep the promises of
--- their type; a run depends on its seed alone. The sanitizer builds watch the rest: FUZZ_TRACE=1
--- prints each step before it is made, so that a crash names its cause.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local ffi = require "ffi"
local bit = require "bit"
local fitting = require "spec.support.fuzz_args"
local tensors = require "spec.support.fuzz_tensors"
require "accelerate.tensor.forms" -- loaded before allocations fail: a module that fails does not load again

local M = {}

local chance, fresh, relaid = tensors.chance, tensors.fresh, tensors.relaid
local DTYPES, FLOATS = tensors.DTYPES, tensors.FLOATS
local POOL, MOST = 24, 20000 -- tensors alive; elements of one that may join them

M.chance, M.fresh = chance, fresh

-- ---- programs

local Program = {}
Program.__index = Program

local function bytes_of(t)
  local flat = t:detach():clone()
  return flat, tonumber(flat:nbytes())
end

-- FNV over the bytes; booleans must be 0 or 1.
function Program:digest(t, what)
  if t:numel() > MOST then return end
  local flat, n = bytes_of(t)
  local p = ffi.cast("const uint8_t *", flat:data_ptr())
  local h = self.hash
  for i = 0, n - 1, n > 4096 and 13 or 1 do h = bit.tobit(bit.bxor(h, p[i]) * 403 + 1) end
  for d = 1, t.ndim do h = bit.tobit(bit.bxor(h, t.shape[d]) * 403 + 1) end
  self.hash = h
  if t.dtype == "bool" then
    for i = 0, n - 1 do
      if p[i] > 1 then error(("%s: a bool holds the byte %d"):format(what, p[i]), 0) end
    end
  end
end

local function text(v)
  if core.is_tensor(v) then
    if core.is_released(v) then return "released" end
    return ("%s[%s]/[%s]%s"):format(v.dtype, table.concat(v.shape, ","), table.concat(v:stride(), ","),
      v.requires_grad and "*" or "")
  elseif type(v) == "table" then
    local parts = {}
    for k, x in pairs(v) do parts[#parts + 1] = (type(k) == "string" and k .. "=" or "") .. text(x) end
    table.sort(parts)
    return "{" .. table.concat(parts, ", ") .. "}"
  elseif type(v) == "number" then
    return ("%.17g"):format(v)
  end
  return tostring(v)
end

-- One step: `names` are what a message may begin to blame.
function Program:try(what, names, f, n, ...)
  self.step = self.step + 1
  if self.trace or self.log then
    local parts = {}
    for i = 1, n do parts[i] = text((select(i, ...))) end
    local line = ("%d %08x: %s(%s)"):format(self.step, self.hash % 2 ^ 32, what, table.concat(parts, ", "))
    if self.trace then io.stderr:write(line, "\n") end
    self.last = line
  end
  if self.faults and self.c:once_in(2) then core.debug_fail_alloc(self.c:int(15)) end
  local result = { pcall(f, ...) }
  core.debug_fail_alloc(0)
  if result[1] then
    self.passed = self.passed + 1
    return select(2, unpack(result, 1, table.maxn(result)))
  end
  local message = result[2]
  if type(message) ~= "string" then error(("%s raised a %s"):format(self.last or what, type(message)), 0) end
  if (self.faults or self.short) and message:find("out of memory", 1, true) then return end
  for _, name in ipairs(names) do
    if message:find(name, 1, true) then return end
  end
  error(("%s: the message does not name it: %s"):format(self.last or what, message), 0)
end

function Program:pick()
  local k = self.c:int(POOL)
  local t = self.pool[k]
  if not t or core.is_released(t) then
    t = fresh(self.c)
    self.pool[k] = t
  end
  return t
end

function Program:keep(t)
  if core.is_tensor(t) and t:numel() <= MOST then self.pool[self.c:int(POOL)] = t end
end

-- A tensor that tends to fit x: its own shape, with some sizes 1, of its last dims.
function Program:partner(x, dtype)
  local c = self.c
  if c:once_in(4) then return self:pick() end
  local shape, first = {}, c:once_in(3) and c:int(x.ndim + 1) or 1
  for d = first, x.ndim do shape[#shape + 1] = c:once_in(5) and 1 or x.shape[d] end
  local numel = 1
  for _, s in ipairs(shape) do numel = numel * s end
  if numel > MOST then return self:pick() end
  dtype = dtype or c:once_in(2) and x.dtype or c:of(DTYPES)
  local t = tensor.randn(shape):to(dtype)
  if FLOATS[dtype] and c:once_in(3) then t.requires_grad = true end
  return t
end

local function wrong(c, self)
  return c:of { "x", true, {}, { 1, "a" }, -1, 2 ^ 60, 0.5, 0 / 0, function() end, self:pick(),
    { 1, 2, 3, 4, 5, 6, 7, 8, 9 } }
end

local function some_dim(c, x, extra)
  local n = math.max(x.ndim, 1) + (extra or 0)
  if c:once_in(20) then return c:of { 0, n + 1, -n - 1, 100, -100 } end
  local d = c:int(n)
  return c:once_in(3) and d - n - 1 or d
end

local function some_sizes(self, name, x)
  local c = self.c
  local sizes = {}
  for d = 1, x.ndim do sizes[d] = x.shape[d] end
  if name == "expand" then
    for d = 1, #sizes do
      if sizes[d] == 1 then sizes[d] = c:int(4) elseif c:once_in(3) then sizes[d] = -1 end
    end
    if c:once_in(3) and #sizes < 8 then table.insert(sizes, 1, c:int(3)) end
  else
    for _ = 1, c:int(3) do
      local d = c:int(#sizes + 1)
      if sizes[d] and sizes[d + 1] and c:once_in(2) then sizes[d] = sizes[d] * table.remove(sizes, d + 1)
      elseif #sizes < 8 then table.insert(sizes, d, 1) end
    end
    if #sizes > 0 and c:once_in(3) then sizes[c:int(#sizes)] = -1 end
  end
  if c:once_in(15) then sizes[c:int(#sizes + 1)] = c:of { 0, -2, 3, 2 ^ 40, 2 ^ 53 } end
  return sizes
end

local function index_for(self, x, d)
  local c = self.c
  local size = x.ndim > 0 and x.shape[(d > 0 and d or x.ndim + d + 1)] or 1
  size = size or 1
  if size == 0 then return tensor.zeros(0, { dtype = "int64" }) end
  local t = tensor.randint(0, math.min(size, 2 ^ 53), { c:int(9) - 1 })
  if c:once_in(20) then t = t + c:of { 1, -1, 2 ^ 40 } end
  return c:once_in(4) and t[{ { 1, t.shape[1], t.shape[1] > 1 and 2 or 1 } }] or t
end

-- The shapes that a product wants.
function Program:factors(name)
  local c = self.c
  local m, k, n = c:int(6) - 1, c:int(6) - 1, c:int(6) - 1
  if c:once_in(6) then m, k, n = 33, 70, 17 end
  local dtype = c:once_in(2) and "float32" or c:of(DTYPES)
  local function make(...)
    local t = tensor.randn({ ... }):to(dtype)
    if FLOATS[dtype] and c:once_in(2) then t.requires_grad = true end
    return t
  end
  local function matrix(a, b) return c:once_in(2) and make(a, b) or make(b, a):transpose(1, 2) end
  if name == "mm" then return matrix(m, k), matrix(k, n) end
  if name == "bmm" then
    local b = c:int(4) - 1
    return make(b, m, k), c:once_in(2) and make(b, k, n) or make(n, b, k):permute(2, 3, 1)
  end
  if name == "linear" or name == "linear_gelu" then
    local x = c:of { function() return make(m, k) end, function() return make(k) end,
      function() return make(2, m, k) end }()
    return x, matrix(n, k), c:once_in(2) and make(n) or nil
  end
  local left = c:of { { m, k }, { k }, { 2, m, k }, { 3, 1, m, k }, { 1, 1, 1, 1, 1, 2, m, k } }
  local right = c:of { { k, n }, { k }, { 2, k, n }, { 2, k, n }, { 3, 1, k, n } }
  return make(unpack(left)), make(unpack(right))
end

function Program:arguments(op, x)
  local c = self.c
  local args, n, dim = {}, 0, 1
  local name = op.name
  if fitting[name] and not c:once_in(10) then
    local fit = { fitting[name](c, x) }
    return fit, table.maxn(fit)
  end
  if name == "mm" or name == "bmm" or name == "linear" or name == "linear_gelu" or name == "matmul" then
    if not c:once_in(10) then
      local a, b, bias = self:factors(name)
      return { a, b, bias }, 3
    end
  elseif name == "cross_entropy" and not c:once_in(10) then
    local rows, classes = c:int(6) - 1, c:int(40)
    local logits = tensor.randn(rows, classes):to(c:of { "float32", "float32", "float64", "float16",
      "bfloat16" })
    if c:once_in(3) then logits = tensor.randn(classes, rows):t() end
    logits.requires_grad = c:once_in(2)
    local target = tensor.randint(0, classes, { rows })
    if c:once_in(10) then target = target + 1 end
    return { logits, target, { ignore_index = c:once_in(3) and c:int(classes) - 1 or nil,
      reduction = c:of { "mean", "sum", "none" } } }, 3
  end
  local dropped = false
  for param in op.signature:gsub("%->.*", ""):gmatch("%S+") do
    local pname, kind = param:match("^(.-):(.+)$")
    local optional = kind:find("[?=]") ~= nil
    kind = kind:gsub("=.*", ""):gsub("%?$", "")
    n = n + 1
    local v
    if dropped or (optional and c:once_in(2)) then
      v, dropped = nil, optional
    elseif kind == "T" or kind == "TN" then
      if n == 1 then v = x
      elseif kind == "TN" and c:once_in(3) then
        v = c:of { 2, -1, 0, 0.5, 3, 1e30, -2, 0 / 0, 300, 2 ^ 53, math.huge, true }
      elseif pname == "mask" or (pname == "condition") then
        v = self:partner(x, not c:once_in(10) and "bool" or nil)
      elseif pname == "index" then v = index_for(self, x, dim)
      else v = self:partner(x) end
      if name == "where" and n == 1 then
        v = self:partner(x, not c:once_in(10) and "bool" or nil)
      end
    elseif kind == "T*" then
      v = { x }
      for _ = 1, c:int(3) - 1 do
        v[#v + 1] = c:once_in(6) and self:pick() or c:once_in(3) and self:partner(x) or x
      end
      if c:once_in(10) then table.insert(v, c:int(#v), tensor.zeros(0)) end
    elseif kind == "dim" then v = some_dim(c, x) dim = v
    elseif kind == "dim+" then v = some_dim(c, x, 1)
    elseif kind == "dims" then
      if name == "permute" then
        v = {}
        for d = 1, x.ndim do table.insert(v, c:int(d), c:once_in(3) and d - x.ndim - 1 or d) end
        if c:once_in(15) then v[#v + 1] = 1 end
      elseif c:once_in(2) then v = some_dim(c, x)
      else
        v = {}
        for d = 1, x.ndim do if c:once_in(2) then v[#v + 1] = c:once_in(2) and d or d - x.ndim - 1 end end
        if c:once_in(15) then v[#v + 1] = 1 end
      end
    elseif kind == "ints" then v = some_sizes(self, name, x)
    elseif kind == "pos" or kind == "pos+" then
      local size = x.ndim > 0 and x.shape[dim > 0 and dim or x.ndim + 1 + dim] or 1
      v = c:once_in(10) and c:of { 0, -1, 1, 2 ^ 53, -2 ^ 53 } or c:int(math.max(size or 1, 1))
    elseif kind == "int" then v = c:once_in(8) and c:of { 0, -1, 2 ^ 53, -100 } or c:int(3) - 1
    elseif kind == "num" then
      v = pname == "p" and c:of { 0, 0.5, 0.3, 1, 0.9, 0.5, 2 }
      or c:of { -1, 0, 0.5, 1, 3, 2.5, -1e30, math.huge, 0 / 0, 1e-8, 300 }
    elseif kind == "bool" then v = c:once_in(2)
    elseif kind == "dtype" then v = c:of(DTYPES)
    elseif kind == "gen" then v = tensor.Generator(c:int(100))
    elseif kind:find("|", 1, true) then
      local words = {}
      for w in kind:gmatch("[^|]+") do words[#words + 1] = w end
      v = c:of(words)
    end
    if c:once_in(60) then v = wrong(c, self) end
    args[n] = v
  end
  if c:once_in(40) then
    n = n + 1
    args[n] = c:of { { dimm = 1 }, { keepdim = true }, { dim = 1 }, 7, { nonsense = 3 } }
  end
  return args, n
end

--- Returns the tensors among the arguments.
function M.flat_result(...)
  local list = {}
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if core.is_tensor(v) then list[#list + 1] = v end
  end
  return list
end

function Program:backward(t)
  local c = self.c
  local names = { "backward", "gradient", "grad" }
  if t:numel() > 4000 or t:numel() == 0 and #t.shape > 0 and math.max(unpack(t.shape)) > 1e6 then return end
  local seed = tensor.randn(t.shape):to(t.dtype)
  if c:once_in(4) and t.ndim > 0 then seed = tensor.ones({}, { dtype = t.dtype }):expand(t.shape) end
  if c:once_in(20) then seed = c:of { self:pick(), nil } end
  local options = { retain_graph = c:once_in(3) or nil, create_graph = c:once_in(4) or nil }
  if c:once_in(2) then
    -- a gradient with history holds its leaf, which holds it: only the script can cut that circle
    options.create_graph = nil
    self:try("backward", names, t.backward, 3, t, seed, options)
    for _, p in pairs(self.pool) do
      if not core.is_released(p) and p.grad then
        if p.grad.shape[1] ~= p.shape[1] or p.grad:numel() ~= p:numel() then
          error("a gradient does not fit its leaf: " .. text(p), 0)
        end
        self:digest(p.grad, "gradient")
        p.grad = nil
      end
    end
    return
  end
  local inputs = {}
  for _, p in pairs(self.pool) do
    if not core.is_released(p) and p.requires_grad and #inputs < 4 then inputs[#inputs + 1] = p end
  end
  if #inputs == 0 then return end
  options.grad_outputs = { seed }
  options.allow_unused = true
  local grads = M.flat_result(self:try("grad", names, core.grad, 3, { t }, inputs, options))
  for _, g in ipairs(grads) do
    self:digest(g, "grad")
    if options.create_graph and g.requires_grad and c:once_in(2) then
      local again = M.flat_result(self:try("grad (second)", names, core.grad, 3, { g }, inputs,
        { grad_outputs = { tensor.randn(g.shape):to(g.dtype) }, allow_unused = true }))
      for _, h in ipairs(again) do self:digest(h, "second gradient") end
    end
  end
end

local function some_key(self, x)
  local c = self.c
  local kind = c:int(5)
  if kind == 1 then return some_dim(c, { ndim = x.ndim > 0 and x.shape[1] or 1 }) end
  if kind == 2 then return self:partner(x, "bool") end
  if kind == 3 then return index_for(self, x, 1) end
  local key = {}
  for d = 1, math.min(x.ndim, c:int(4)) do
    local size = x.shape[d]
    key[d] = c:of { {}, { c:int(size + 1) }, { c:int(size + 1), c:int(size + 1) }, { 1, -1, c:int(3) },
      c:int(size + 1), -1, { -2, -1 } }
  end
  if c:once_in(30) then key[1] = wrong(c, self) end
  return key
end

function Program:other(x)
  local c = self.c
  local kind = c:int(13)
  if kind == 13 then
    local args = { fitting._einsum(c) }
    local r = self:try("einsum", { "einsum" }, core.einsum, #args, unpack(args))
    if core.is_tensor(r) then
      self:digest(r, "einsum")
      self:keep(r)
      if r.requires_grad and c:once_in(2) then self:backward(r) end
    end
  elseif kind == 1 then
    local r = self:try("index", { "index", "x[", "slice", "select", "position", "mask" },
      function(t, k) return t[k] end, 2, x, some_key(self, x))
    if core.is_tensor(r) then self:digest(r, "index") self:keep(r) end
  elseif kind == 2 or kind == 3 then
    local value = c:once_in(2) and c:of { 1, 0, 2.5, -1, 300, true } or self:partner(x)
    self:try("assignment", { "index", "copy_", "slice", "select", "masked_fill", "mask", "where" },
      function(t, k, v) t[k] = v end, 3, x, some_key(self, x), value)
    self:digest(x, "assignment")
  elseif kind == 4 then
    self:try("copy_", { "copy_" }, x.copy_, 2, x, c:once_in(3) and relaid(c, x) or self:partner(x))
    self:digest(x, "copy_")
  elseif kind == 5 then
    self:try("fill_", { "fill_" }, x.fill_, 2, x, c:of { 0, 1, 2.5, -1, 0 / 0, math.huge, 300, true, 1e300,
      self:pick() })
  elseif kind == 6 then
    local r = self:try("to", { "to", "cast" }, x.to, 2, x, c:of(DTYPES))
    if r then self:digest(r, "to") self:keep(r) end
  elseif kind == 7 then self:keep(x:detach())
  elseif kind == 8 then
    self:try("requires_grad", { "requires_grad" }, function(t, v) t.requires_grad = v end, 2, x, c:once_in(2))
  elseif kind == 9 then
    if c:once_in(3) then core.release(x) end
  elseif kind == 10 and not self.faults then -- (hooks may keep a leaf until memory is short)
    self:try("register_hook", { "hook" }, x.register_hook, 2, x,
      function(g) return c:once_in(2) and g * 2 or nil end)
  elseif kind == 11 then
    self:try("data", { "data" }, function(t, v) t.data = v end, 2, x, self:partner(x, x.dtype))
  else
    self:try("detach_", { "detach_" }, x.detach_, 1, x)
  end
end

function Program:op_step()
  local c = self.c
  local op = c:of(self.ops)
  local x = self:pick()
  if c:once_in(4) and op.inplace then
    local name = op.name .. "_"
    local args, n = self:arguments(op, x)
    local method = x[name]
    if not core.is_tensor(args[1]) then return end
    self:try(name, { op.name }, method, n, unpack(args, 1, n))
    if not core.is_released(args[1]) then self:digest(args[1], name) end
    return
  end
  local args, n = self:arguments(op, x)
  local results = M.flat_result(self:try(op.name, { op.name }, core[op.name], n, unpack(args, 1, n)))
  for _, r in ipairs(results) do
    self:digest(r, op.name)
    self:keep(r)
    if r.requires_grad and c:once_in(3) then self:backward(r) end
  end
end

--- Returns a program that begins with a seed.
---@param seed integer
---@param fields table<string, any> what else it has
---@return table
function M.program(seed, fields)
  core.manual_seed(seed)
  local p = setmetatable(fields, Program)
  p.c, p.pool, p.hash, p.step, p.passed = chance(seed), {}, 0, 0, 0
  p.trace, p.log = os.getenv("FUZZ_TRACE"), true
  return p
end

--- Runs `steps` random steps. Raises, with the step, where a promise is broken.
---@param seed integer
---@param steps integer
---@param faults? boolean some allocations fail
---@return integer hash of the bits of all results
---@return integer passed how many calls succeeded
---@return integer tried
function M.run(seed, steps, faults)
  local p = M.program(seed, { ops = {}, faults = faults })
  for _, op in ipairs(core.ops()) do if not op.hidden then p.ops[#p.ops + 1] = op end end
  for _ = 1, steps do
    local ok, message = pcall(function()
      if p.c:once_in(5) then p:other(p:pick()) else p:op_step() end
    end)
    if not ok then error(("seed %d: %s\nafter %s"):format(seed, tostring(message), tostring(p.last)), 2) end
  end
  return p.hash, p.passed, p.step
end

--- Returns how many of `rounds` calls of each row succeed.
---@param seed integer
---@param rounds integer
---@return table<string, integer> by the names of rows
function M.passes(seed, rounds)
  local p, passes = M.program(seed, { short = true }), {}
  for _, op in ipairs(core.ops()) do
    for _ = 1, op.hidden and 0 or rounds do
      local args, n = p:arguments(op, p:pick())
      local before = p.passed
      p:try(op.name, { op.name }, core[op.name], n, unpack(args, 1, n))
      passes[op.name] = (passes[op.name] or 0) + p.passed - before
    end
  end
  return passes
end

return M
