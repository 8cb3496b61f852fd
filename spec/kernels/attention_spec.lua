--- Attention at sizes that cross its blocks, against the same thing from plain rows; dropout;
--- layouts; threads.
local core = require "accelerate.core"
local numbers = require "spec.support.numbers"

local sdpa = core.scaled_dot_product_attention

local function randn(seed, dtype, ...)
  return core.randn({ ... }, { generator = core.Generator(seed), dtype = dtype })
end

local function qkv(dtype, batch, heads, queries, keys, size, value_size, shared)
  return randn(1, dtype, batch, heads, queries, size):requires_grad_(),
    randn(2, dtype, batch, shared or heads, keys, size):requires_grad_(),
    randn(3, dtype, batch, shared or heads, keys, value_size or size):requires_grad_()
end

-- Result and gradients of attention both ways: a mask that wants a gradient makes the op take plain
-- rows.
local function both_ways(tolerance, q, k, v, options)
  options = options or {}
  local mask = options.attn_mask
  local hidden = core.zeros({ q.shape[3], k.shape[3] }, { dtype = q.dtype })
  if options.is_causal then
    hidden = (core.arange(k.shape[3]):gt(core.arange(q.shape[3]):view(-1, 1))):to("float64"):mul(-1e300):to(
      q.dtype)
  end
  if mask and mask.dtype == "bool" then
    hidden = hidden + core.zeros(mask.shape, { dtype = q.dtype }):masked_fill(mask:logical_not(), -1 / 0)
  elseif mask then
    hidden = hidden + mask
  end
  local plain = { attn_mask = hidden:requires_grad_(), scale = options.scale,
    enable_gqa = options.enable_gqa }
  local results = {}
  for way, given in ipairs { options, plain } do
    local y = sdpa(q, k, v, given)
    local weights = randn(4, y.dtype, unpack(y.shape))
    local total = (y * weights):sum()
    total:backward()
    results[way] = { y:detach(), q.grad, k.grad, v.grad }
    q.grad, k.grad, v.grad = nil, nil, nil
  end
  for i, what in ipairs { "result", "gradient of query", "gradient of key", "gradient of value" } do
    local off = numbers.largest(results[1][i], results[2][i])
    assert.is_true(off <= tolerance, ("%s is off by %g"):format(what, off))
  end
end

describe("attention", function()
  for _, dtype in ipairs { "float64", "float32" } do
    local tolerance = dtype == "float64" and 1e-11 or 2e-4
    it("over several blocks, " .. dtype, function() both_ways(tolerance, qkv(dtype, 2, 2, 101, 307, 20)) end)
    it("causal, " .. dtype, function()
      local q, k, v = qkv(dtype, 1, 2, 200, 200, 16)
      both_ways(tolerance, q, k, v, { is_causal = true })
    end)
    it("causal over several blocks, " .. dtype, function()
      local q, k, v = qkv(dtype, 1, 2, 203, 203, 24)
      both_ways(tolerance, q, k, v, { is_causal = true })
    end)
    it("causal with more queries than keys and the other way, " .. dtype, function()
      for _, sizes in ipairs { { 170, 61 }, { 61, 170 } } do
        local q, k, v = qkv(dtype, 1, 1, sizes[1], sizes[2], 8, 33)
        both_ways(tolerance, q, k, v, { is_causal = true, scale = 0.2 })
      end
    end)
    it("grouped heads, " .. dtype, function()
      local q, k, v = qkv(dtype, 2, 6, 55, 150, 12, 12, 2)
      both_ways(tolerance, q, k, v, { enable_gqa = true })
    end)
    it("padding masks, which hide whole blocks, " .. dtype, function()
      local q, k, v = qkv(dtype, 2, 2, 60, 300, 16)
      local mask = core.arange(300):lt(core.tensor({ 290, 100 }, { dtype = "int64" }):view(2, 1, 1, 1))
      both_ways(tolerance, q, k, v, { attn_mask = mask })
    end)
    it("masks of every shape, " .. dtype, function()
      for _, shape in ipairs { { 60, 150 }, { 2, 1, 60, 1 }, { 1, 2, 1, 150 }, { 2, 2, 60, 150 }, { 1 } } do
        local q, k, v = qkv(dtype, 2, 2, 60, 150, 16)
        both_ways(tolerance, q, k, v, { attn_mask = randn(5, dtype, unpack(shape)) })
      end
    end)
  end

  it("of one to four queries, as generation has them", function()
    for queries = 1, 4 do
      for _, size in ipairs { 1, 5, 16, 64, 70, 130 } do
        both_ways(2e-4, qkv("float32", 2, 3, queries, 77, size, size + 3))
      end
      local q, k, v = qkv("float32", 2, 6, queries, 300, 20, 20, 2)
      both_ways(2e-4, q, k, v, { enable_gqa = true, scale = 0.3 })
      q, k, v = qkv("float32", 2, 2, queries, 33, 24)
      both_ways(2e-4, q, k, v, { is_causal = true })
      both_ways(2e-4, q, k, v,
        { attn_mask = core.arange(33):lt(core.tensor({ 9, 33 }, { dtype = "int64" }):view(2, 1, 1, 1)) })
      for _, shape in ipairs { { queries, 33 }, { 2, 1, 1, 33 }, { 1, 2, queries, 1 } } do
        both_ways(2e-4, q, k, v, { attn_mask = randn(5, "float32", unpack(shape)) })
      end
    end
  end)

  it("of few queries keeps half types, layouts, NaN, and the bits for any number of threads", function()
    for dtype, tolerance in pairs { bfloat16 = 0.02, float16 = 0.003 } do
      local q, k, v = qkv(dtype, 2, 3, 2, 90, 37)
      local y = sdpa(q, k, v)
      assert.are.equal(dtype, y.dtype)
      assert.is_true(numbers.largest(y, sdpa(q:double(), k:double(), v:double())) < tolerance)
    end
    local q, k, v = qkv("float32", 2, 3, 2, 90, 40)
    q, k, v = q:detach(), k:detach(), v:detach()
    local function turned(t) return t:transpose(2, 3):contiguous():transpose(2, 3) end
    local function columns(t) return t:transpose(3, 4):contiguous():transpose(3, 4) end
    local y = sdpa(q, k, v)
    assert.is_true(core.same_bits(y, sdpa(turned(q), turned(k), turned(v))))
    assert.is_true(numbers.largest(y, sdpa(q, columns(k), columns(v))) < 1e-5)
    local threads = core.get_num_threads()
    core.set_num_threads(3)
    local other = sdpa(q, k, v)
    core.set_num_threads(threads)
    assert.is_true(core.same_bits(y, other))
    assert.are.equal(0, sdpa(q, k, v, { attn_mask = core.zeros(2, 90):ne(0) }):abs():sum():item())
    k[{ 1, 1, 5, 2 }] = 0 / 0
    assert.is_true(sdpa(q, k, v)[1][1]:isnan():all():item())
  end)

  it("gives 0, and gradients of 0, to a query that may look nowhere", function()
    local q, k, v = qkv("float32", 1, 1, 50, 60, 8)
    local mask = core.arange(50):ne(7):view(50, 1)
    local y = sdpa(q, k, v, { attn_mask = mask })
    assert.are.equal(0, y[1][1][8]:abs():sum():item())
    y:sum():backward()
    assert.are.equal(0, q.grad[1][1][8]:abs():sum():item())
    assert.is_true(k.grad:isfinite():all():item() and v.grad:isfinite():all():item())
  end)

  it("in bfloat16 and float16 is float32's, rounded", function()
    for dtype, tolerance in pairs { bfloat16 = 0.06, float16 = 0.01 } do
      local q, k, v = qkv(dtype, 1, 2, 70, 160, 20)
      local y = sdpa(q, k, v, { is_causal = true })
      assert.are.equal(dtype, y.dtype)
      y:sum():backward()
      local fq, fk, fv = q:detach():float():requires_grad_(), k:detach():float():requires_grad_(),
        v:detach():float():requires_grad_()
      local exact = sdpa(fq, fk, fv, { is_causal = true })
      exact:sum():backward()
      assert.is_true(numbers.largest(y, exact) < tolerance)
      assert.is_true(numbers.largest(q.grad, fq.grad) < tolerance
        and numbers.largest(k.grad, fk.grad) < 4 * tolerance
        and numbers.largest(v.grad, fv.grad) < 8 * tolerance)
    end
  end)

  it("with a mask that wants a gradient rounds no scores of half types", function()
    core.manual_seed(11)
    local given = { core.randn(1, 2, 16, 8) * 3, core.randn(1, 2, 16, 8) * 3, core.randn(1, 2, 16, 8),
      core.randn(16, 16) }
    for dtype, most in pairs { bfloat16 = 0.01, float16 = 0.002 } do
      local function run(to)
        local t = {}
        for i = 1, 4 do
          t[i] = given[i]:to(dtype):to(to):detach()
          t[i].requires_grad = true
        end
        local y = core.scaled_dot_product_attention(t[1], t[2], t[3], { attn_mask = t[4] })
        y:square():sum():backward()
        return y, t
      end
      local function far(a, b) return (a:double() - b):abs():max():item() end
      local y, half = run(dtype)
      local exact, wide = run("float64")
      assert.are.equal(dtype, y.dtype)
      assert.is_true(far(y, exact) < most)
      for i = 1, 4 do
        assert.is_true(far(half[i].grad, wide[i].grad) < most * wide[i].grad:abs():max():item())
      end
    end
  end)

  it("lets the transpose and reshape that follow it be views", function()
    local q, k, v = qkv("float32", 2, 3, 5, 5, 4)
    local y = sdpa(q, k, v):transpose(2, 3)
    assert.is_true(y:is_contiguous())
  end)

  it("writes the gradients of three views of a projection as one", function()
    local x = randn(1, "float32", 2, 70, 3 * 2 * 16):requires_grad_()
    local q, k, v = x:split_heads(2)
    sdpa(q, k, v, { is_causal = true }):sum():backward()
    local apart = {}
    for i, t in ipairs { q, k, v } do apart[i] = t:detach():contiguous():requires_grad_() end
    sdpa(apart[1], apart[2], apart[3], { is_causal = true }):sum():backward()
    for i = 1, 3 do
      local third = x.grad:narrow(3, (i - 1) * 32 + 1, 32):reshape(2, 70, 2, 16):transpose(2, 3)
      assert.are.equal(0, numbers.largest(third, apart[i].grad))
    end
  end)

  it("draws the same dropout forward and backward, and drops what it should", function()
    local T = 150
    local q, k = randn(1, "float64", 1, 2, T, 4), randn(2, "float64", 1, 2, T, 4)
    -- the result is the dropped weights
    local v = core.eye(T, { dtype = "float64" }):expand(1, 2, T, T):contiguous():requires_grad_()
    local y = sdpa(q, k, v, { dropout_p = 0.25, generator = core.Generator(5) })
    local kept = y:ne(0):double():mean():item()
    assert.is_true(math.abs(kept - 0.75) < 0.01, "kept " .. kept)
    local exact = sdpa(q, k, v:detach())
    assert.is_true(numbers.largest(y, core.where(y:ne(0), exact / 0.75, 0)) < 1e-12)
    local g = randn(3, "float64", 1, 2, T, T)
    y:backward(g)
    assert.is_true(numbers.largest(v.grad, y:detach():transpose(3, 4):matmul(g)) < 1e-11)
    -- and with respect to the query, by a difference
    local dq = randn(6, "float64", 1, 2, T, 4)
    local function at(step)
      return (sdpa(q + dq * step, k, v:detach(),
        { dropout_p = 0.25, generator = core.Generator(5) }) * g):sum():item()
    end
    local leaf = q:clone():requires_grad_()
    local total = (sdpa(leaf, k, v:detach(), { dropout_p = 0.25, generator = core.Generator(5) }) * g):sum()
    total:backward()
    assert.is_true(math.abs((leaf.grad * dq):sum():item() - (at(1e-5) - at(-1e-5)) / 2e-5) < 1e-6)
  end)

  it("drops what dropout drops in a tensor of scores", function()
    local T = 152 -- rows of whole Philox blocks
    local q, k = randn(1, "float32", 2, 3, T, 4), randn(2, "float32", 2, 3, T, 4)
    local y = sdpa(q, k, core.eye(T):expand(2, 3, T, T), { dropout_p = 0.3, generator = core.Generator(9) })
    local dropped = core.ones(2, 3, T, T):dropout({ p = 0.3, generator = core.Generator(9) })
    assert.is_true(y:ne(0):eq(dropped:ne(0)):all():item())
  end)

  it("gives the same bits with one thread and with two", function()
    local function run()
      local x = randn(1, "float32", 3, 150, 3 * 2 * 20):requires_grad_()
      local q, k, v = x:split_heads(2)
      local y = sdpa(q, k, v, { dropout_p = 0.1, is_causal = true, generator = core.Generator(2) })
      y:sum():backward()
      return y:detach(), x.grad
    end
    local threads = core.get_num_threads()
    core.set_num_threads(1)
    local y1, g1 = run()
    core.set_num_threads(2)
    local y2, g2 = run()
    core.set_num_threads(threads)
    assert.are.equal(0, numbers.largest(y1, y2))
    assert.are.equal(0, numbers.largest(g1, g2))
  end)

  it("uses memory linear in the sequence", function()
    local x = randn(1, "float32", 1, 4096, 3 * 8):requires_grad_()
    local threads = core.get_num_threads()
    core.set_num_threads(math.min(threads, 2)) -- each has memory of its own
    core.reset_peak_memory_stats()
    local before = core.memory_stats().live_bytes
    sdpa(x:split_heads(1)):sum():backward()
    core.set_num_threads(threads)
    assert.is_true(core.memory_stats().peak_bytes - before < 40 * 4096 * 8 * 4)
  end)

  it("explains what does not fit", function()
    local q, k, v = qkv("float32", 1, 2, 3, 4, 5)
    assert.has_error(function() sdpa(q, k:transpose(3, 4), v) end)
    assert.has_error(function() sdpa(q, k, v, { attn_mask = core.ones(3, 4):gt(0), is_causal = true }) end)
    assert.has_error(function() sdpa(q, k, v, { dropout_p = 1.5 }) end)
    assert.has_error(function() sdpa(q, k, v, { attn_mask = core.ones(3, 5) }) end)
    assert.has_error(function() sdpa(q, k:double(), v) end)
    local ok, message = pcall(sdpa, q, k, v, { attn_mask = core.ones(3, 5) })
    assert.is_false(ok)
    assert.truthy(message:find("attn_mask [3, 5] does not broadcast to the scores, [1, 2, 3, 4]", 1, true),
      message)
    ok, message = pcall(sdpa, q, k, v, { is_casual = true })
    assert.is_false(ok)
    assert.truthy(message:find("is_causal", 1, true), message)
  end)
end)
