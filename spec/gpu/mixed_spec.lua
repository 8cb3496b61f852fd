--- Pointwise rows whose operands have different types, against the CPU: every pair of types over
--- every row, in every layout; functions that give float32 of half inputs; what the dispatcher and
--- a backend promise each other.
local device = require "spec.support.device"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"

if not device.name then
  describe("mixed types on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local TYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" }
local TOLERANCE = { float64 = 1e-11, float32 = 2e-5, bfloat16 = 2e-2, float16 = 4e-3 }

local function is_float(dtype) return TOLERANCE[dtype] ~= nil end

-- Numbers that every row takes in every type: 1, 2 and 3, and for floats what lies between.
local store = {}
for k, t in ipairs(TYPES) do
  local g = tensor.Generator(k)
  store[t] = (is_float(t) and tensor.rand(4000, { generator = g }) * 2 + 0.5
    or tensor.randint(1, 4, { 4000 }, { generator = g })):to(t)
end
store.condition = store.float32:gt(1.5)

-- Layouts of up to three operands, as views of stores of 4,000 elements.
local LAYOUTS = {
  { "runs and a rest", function(t) return t:narrow(1, 1, 1003) end },
  { "an odd start", function(t, k) return t:narrow(1, 1 + k, 1003) end },
  { "a row broadcast", function(t, k)
    return k == 2 and t:narrow(1, 1, 96) or t:narrow(1, 1, 960):view(10, 96)
  end },
  { "a column broadcast", function(t, k)
    return k == 1 and t:narrow(1, 1, 10):view(10, 1) or t:narrow(1, 1, 960):view(10, 96)
  end },
  { "odd rows", function(t, k) return t:narrow(1, k, 970):view(10, 97):narrow(2, 2, 13) end },
  { "steps of two", function(t, k)
    t = t:narrow(1, 1, 960):view(6, 160)
    return k == 2 and t[{ {}, { 1, 160, 2 } }] or t:narrow(2, 1, 80)
  end },
  { "transposed", function(t, k)
    return k == 1 and t:narrow(1, 1, 1200):view(40, 30):transpose(1, 2) or t:narrow(1, 1, 1200):view(30, 40)
  end },
  { "one element", function(t, k) return k == 2 and t:narrow(1, 3, 1):view({}) or t:narrow(1, 1, 163) end },
}

-- Rows that can be called with tensors alone, and how many they take.
local function tensors_of(row)
  local n = 0
  for kind in (row.signature .. " "):gsub("%->.*", ""):gmatch ":(%S+)" do
    if kind == "T" or kind == "TN" then n = n + 1
    elseif not kind:find "[=?]" then return nil end
  end
  return n
end
local WITH = { threshold = { 1, 7 }, masked_fill = { 2 }, clamp = { 1, 2 } }

local function compare(what, got, expected)
  assert.are.equal(D, got.device, what)
  assert.are.same(expected.shape, got.shape, what)
  assert.are.equal(expected.dtype, got.dtype, what)
  got = got:to("cpu")
  local tolerance = TOLERANCE[expected.dtype]
  if not tolerance then
    return assert.is_true(tensor.equal(got, expected), what .. " differs")
  end
  local a, b = got:double(), expected:double()
  assert.is_true(tensor.equal(a:isfinite(), b:isfinite()), what .. ": what is finite differs")
  local odd = b:isfinite():logical_not()
  local worst = (a - b):masked_fill(odd, 0):abs():max():item()
  local scale = math.max(1, b:masked_fill(odd, 0):abs():max():item())
  assert.is_true(worst <= tolerance * scale, ("%s: off by %g of %g"):format(what, worst, scale))
end

-- Operand k of type `dtype` in a layout, there and here.
local stores_there = {}
local function operand(dtype, layout, k)
  stores_there[dtype] = stores_there[dtype] or store[dtype]:to(D)
  return layout(stores_there[dtype], k), layout(store[dtype], k)
end

local function agree(what, fn, there, here)
  local ok, expected = pcall(fn, unpack(here))
  local fine, got = pcall(fn, unpack(there))
  if not ok then return assert.is_false(fine, what .. ": only the CPU refuses it: " .. tostring(expected)) end
  assert.is_true(fine, what .. ": " .. tostring(got))
  compare(what, got, expected)
end

local function rows(wanted)
  local list = {}
  for _, row in ipairs(core.ops()) do
    if row.form == "pointwise" and not row.hidden and (tensors_of(row) or WITH[row.name]) then
      if wanted(row) then list[#list + 1] = row end
    end
  end
  return list
end

local function count_of(row)
  return row.name == "masked_fill" and 2 or (row.name == "threshold" or row.name == "clamp") and 1
    or tensors_of(row)
end

-- The operands' types: all pairs; of three operands the first two in all pairs of floats, and the
-- third in each.
local function combinations(row)
  local list = {}
  if row.name == "where" then
    for _, a in ipairs(TYPES) do
      for _, b in ipairs(TYPES) do list[#list + 1] = { "condition", a, b } end
    end
  elseif row.name == "masked_fill" then
    for _, a in ipairs(TYPES) do list[#list + 1] = { a, "condition" } end
  elseif count_of(row) == 3 then
    for _, a in ipairs { "float32", "bfloat16", "float16", "int32" } do
      for _, b in ipairs { "float32", "bfloat16", "float16", "float64" } do
        for _, c in ipairs { "float32", "bfloat16", "float16" } do list[#list + 1] = { a, b, c } end
      end
    end
  else
    for _, a in ipairs(TYPES) do
      for _, b in ipairs(TYPES) do list[#list + 1] = { a, b } end
    end
  end
  return list
end

describe(("mixed types on %s (%s)"):format(D, device.kind), function()
  for _, row in ipairs(rows(function(r) return count_of(r) > 1 end)) do
    it(row.name .. ": every pair of types, every layout, in place", function()
      local more = WITH[row.name] or {}
      local function call(...)
        local all = { ... }
        for _, v in ipairs(more) do all[#all + 1] = v end
        return core[row.name](unpack(all))
      end
      local function in_place(first, ...)
        local all = { ... }
        for _, v in ipairs(more) do all[#all + 1] = v end
        local changed = first:clone()
        changed[row.name .. "_"](changed, unpack(all))
        return changed
      end
      for _, types in ipairs(combinations(row)) do
        for at, layout in ipairs(LAYOUTS) do
          -- every layout for the pairs that training meets, the first few for the others
          local halves = 0
          for _, t in ipairs(types) do
            if t == "float32" or t == "bfloat16" or t == "float16" then halves = halves + 1 end
          end
          if halves >= 2 or at <= 2 then
            local there, here = {}, {}
            for k, t in ipairs(types) do there[k], here[k] = operand(t, layout[2], k) end
            local what = ("%s of %s, %s"):format(row.name, table.concat(types, " and "), layout[1])
            agree(what, call, there, here)
            if row.inplace and row.name ~= "where" then agree(what .. ", in place", in_place, there, here) end
          end
        end
      end
    end)
  end

  it("every function of half inputs under autocast, beside a number too", function()
    local ran = 0
    for _, row in ipairs(rows(function(r) return r.autocast == "float" end)) do
      for _, lower in ipairs { "bfloat16", "float16" } do
        for _, layout in ipairs(LAYOUTS) do
          local there, here = {}, {}
          for k = 1, count_of(row) do there[k], here[k] = operand(lower, layout[2], k) end
          local function call(...)
            local all = { ... }
            return tensor.autocast({ dtype = lower }, function() return core[row.name](unpack(all)) end)
          end
          agree(("%s of %s, %s"):format(row.name, lower, layout[1]), call, there, here)
          assert.are.equal("float32", call(unpack(there)).dtype)
          if #there == 2 then
            agree(row.name .. " and a number", call, { there[1], 1.7 }, { here[1], 1.7 })
            agree("a number and " .. row.name, call, { 1.7, there[2] }, { 1.7, here[2] })
          end
          ran = ran + 1
        end
      end
    end
    assert.is_true(ran >= 2 * #LAYOUTS * 25, ran)
  end)

  it("gradients of a float32 result with respect to half inputs, and the other way round", function()
    for _, lower in ipairs { "bfloat16", "float16" } do
      local function run(on)
        local x = store.float32:narrow(1, 1, 1003):to(on):clone():requires_grad_()
        local h = store[lower]:narrow(1, 2, 1003):to(on):clone():requires_grad_()
        local y = tensor.autocast({ dtype = lower }, function()
          return (x * h + h:exp() - x / h + h:pow(1.5)):sum() + (h + x):tanh():sum()
        end)
        y:backward()
        return y, x.grad, h.grad
      end
      local y, gx, gh = run("cpu")
      local yt, gxt, ght = run(D)
      compare("the sum", yt:detach(), y:detach())
      compare("the float32 gradient", gxt, gx)
      compare("the half gradient", ght, gh)
    end
  end)
end)

if device.kind ~= "emulated" then return end

-- The plugin's own table (host/plugin.h: ax_backend begins with these), to break what it promises.
local ffi = require "ffi"
ffi.cdef [[
  typedef struct { uint32_t abi, widens; const char *name, *level; void *const *kernels; } spec_backend;
  spec_backend *ax_backend_get(void);
]]
local backend = ffi.load(os.getenv("ACCEL_CUDA_PLUGIN")).ax_backend_get()

describe("the dispatcher and the CUDA backend", function()
  local promised = backend.widens
  after_each(function() backend.widens = promised end)

  local function mixed(on)
    local x, h = store.float32:narrow(1, 1, 100):to(on), store.bfloat16:narrow(1, 1, 100):to(on)
    local changed = h:clone()
    changed:add_(x)
    return x + h, h:gt(x), changed
  end

  it("agree where the backend takes no mixtures: everything is cast", function()
    backend.widens = 0
    local sum, more, changed = mixed(D)
    local sum_here, more_here, changed_here = mixed("cpu")
    compare("the sum", sum, sum_here)
    compare("the comparison", more, more_here)
    compare("in place", changed, changed_here)
  end)

  it("disagree loudly: a kernel refuses what was to be cast", function()
    backend.widens = 0xffffffff
    local x = store.float32:narrow(1, 1, 100):to(D)
    local function refuses(pattern, fn)
      local ok, message = pcall(fn)
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find(pattern, 1, true), tostring(message))
    end
    refuses("add: error inside accel: the CUDA kernel takes float32, " ..
      "float16 or bfloat16 and was given int64 as operand 2",
      function() return x + store.int64:narrow(1, 1, 100):to(D) end)
    refuses("gt: error inside accel: the CUDA kernel takes one type and was given float32 as operand 2",
      function() return store.bool:narrow(1, 1, 100):to(D):gt(x) end)
    refuses("was given int32 as operand 2", function() return x / store.int32:narrow(1, 1, 100):to(D) end)
    backend.widens = promised
    assert.are.equal("float32", (x + store.int64:narrow(1, 1, 100):to(D)).dtype)
  end)
end)
