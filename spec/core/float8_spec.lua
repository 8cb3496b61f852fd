--- float8_e4m3fn and float8_e5m2: casts with PyTorch's bits, rows that move elements, and rows that
--- refuse them by name.
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local reference = require "spec.reference.float8_reference"
local tensor = require "accelerate.tensor"

local TYPES = { "float8_e4m3fn", "float8_e5m2" }
local NAN = 0 / 0

local function bits(t) return t:view("uint8") end
local function from_bits(list, dtype) return core.tensor(list, { dtype = "uint8" }):view(dtype) end

-- Whether two tensors of bytes are equal where `except` is false.
local function same_bits(expected, got, except)
  local differ = expected:ne(got)
  if except then differ = differ:logical_and(except:logical_not()) end
  local at = differ:nonzero()
  assert.equal(0, at:size(1), "first at " .. (at:size(1) > 0 and tostring(at[1]) or ""))
end

local function hexadecimal(text, pattern)
  local list = {}
  for a, b in text:gmatch(pattern) do list[#list + 1] = { tonumber(a, 16), b and tonumber(b, 16) } end
  return list
end

local function floats_of(words)
  local list = {}
  for i, w in ipairs(words) do list[i] = w >= 2 ^ 31 and w - 2 ^ 32 or w end
  return core.tensor(list, { dtype = "int32" }):view("float32")
end

describe("casts to and from types of eight bits", function()
  for _, dtype in ipairs(TYPES) do
    local of = reference[dtype]

    for _, from in ipairs { "float16", "bfloat16" } do
      it(("have PyTorch's bits for all numbers of %s to %s"):format(from, dtype), function()
        local expected = {}
        for n, byte in of[from]:gmatch("(%d+):(%x%x)") do
          for _ = 1, tonumber(n) do expected[#expected + 1] = tonumber(byte, 16) end
        end
        local low, high = core.arange(0, 256):to("uint8"), core.arange(0, 256):to("uint8")
        local all = core.stack({ low:tile { 256 }, high:repeat_interleave(256) }, 2):view(from):flatten()
        assert.equal(65536, all:numel())
        same_bits(core.tensor(expected, { dtype = "uint8" }), bits(all:to(dtype)))
      end)
    end

    it(("round float32 to nearest even in %s, beside every halfway point"):format(dtype), function()
      local words, expected = {}, {}
      for i, pair in ipairs(hexadecimal(of.float32, "(%x+):(%x+)")) do
        words[i], expected[i] = pair[1], pair[2]
      end
      local x = floats_of(words)
      same_bits(core.tensor(expected, { dtype = "uint8" }), bits(x:to(dtype)))
      same_bits(core.tensor(expected, { dtype = "uint8" }), bits(x:double():to(dtype)))
      -- with other strides
      local apart = core.stack({ x, x * 0 }, 2):select(2, 1)
      same_bits(core.tensor(expected, { dtype = "uint8" }), bits(apart:to(dtype):contiguous()))
    end)

    it(("give back every number of %s"):format(dtype), function()
      local x = core.arange(0, 256):to("uint8"):view(dtype)
      local words = {}
      for i, pair in ipairs(hexadecimal(of.back, "(%x+)")) do words[i] = pair[1] end
      local expected = floats_of(words)
      same_bits(expected:view("uint8"), x:float():view("uint8"))
      same_bits(bits(x), bits(x:float():to(dtype)), x:float():isnan())
      for _, wide in ipairs { "float64", "float16", "bfloat16" } do
        local got = x:to(wide):float()
        same_bits(expected:view("int32"), got:view("int32"), expected:isnan())
        assert.is_true(got:isnan():equal(expected:isnan()))
      end
      assert.same({ 1, 3, -2 }, from_bits(dtype == "float8_e5m2" and { 0x3c, 0x42, 0xc1 }
        or { 0x38, 0x44, 0xc2 },
        dtype):to("int64"):totable())
      assert.same({ true, false, false, true },
        core.tensor({ 2, 0, -0.0, NAN }):to(dtype):to("bool"):totable())
    end)

    it(("of %s to the other type have PyTorch's bits"):format(dtype), function()
      local other = TYPES[dtype == TYPES[1] and 2 or 1]
      local expected = {}
      for i, pair in ipairs(hexadecimal(of.other, "(%x%x)")) do expected[i] = pair[1] end
      same_bits(core.tensor(expected, { dtype = "uint8" }),
        bits(core.arange(0, 256):to("uint8"):view(dtype):to(other)))
    end)
  end

  it("pass gradients", function()
    local x = core.tensor({ 1, 2.6 }, { requires_grad = true })
    local y = x:to("float8_e4m3fn")
    assert.is_true(y.requires_grad)
    local sum = (y:float() * 3):sum()
    sum:backward()
    assert.same({ 3, 3 }, x.grad:totable())
    assert.same({ 1, 2.5 }, y:totable())
  end)
end)

describe("tensors of eight bits", function()
  local x
  before_each(function() x = core.tensor({ { 1, -2.5, 3 }, { 448, 0, NAN } }):to("float8_e4m3fn") end)

  it("are floating, of one byte, and have limits", function()
    assert.equal("float8_e4m3fn", x.dtype)
    assert.equal("float8_e4m3fn", tensor.float8_e4m3fn)
    assert.equal(1, x:element_size())
    assert.is_true(x:is_floating_point())
    local e4m3, e5m2 = tensor.finfo "float8_e4m3fn", tensor.finfo(tensor.float8_e5m2)
    assert.same({ 448, -448, 2 ^ -6, 0.125, 8 }, { e4m3.max, e4m3.min, e4m3.tiny, e4m3.eps, e4m3.bits })
    assert.same({ 57344, -57344, 2 ^ -14, 0.25, 8 }, { e5m2.max, e5m2.min, e5m2.tiny, e5m2.eps, e5m2.bits })
  end)

  it("are printed as PyTorch prints them", function()
    assert.equal("tensor([[  1.0000,  -2.5000,   3.0000],\n        [448.0000,   0.0000,      nan]], " ..
      "dtype=float8_e4m3fn)", (tostring(x):gsub("torch%.", "")))
  end)

  it("are made and filled", function()
    assert.same({ 3.25, 3.25 }, tensor.full({ 2 }, 3.3, { dtype = "float8_e4m3fn" }):totable())
    assert.same({ 0, 0 }, core.zeros({ 2 }, { dtype = "float8_e5m2" }):totable())
    assert.same({ 1, 1 }, core.ones({ 2 }, { dtype = "float8_e5m2" }):totable())
    assert.same({ { 1, 0 }, { 0, 1 } }, core.eye(2, { dtype = "float8_e4m3fn" }):totable())
    assert.same({ 1, 2.5, 448 }, core.tensor({ 1, 2.6, 500 }, { dtype = "float8_e4m3fn" }):totable())
    assert.same({ { 2, 2, 2 }, { 2, 2, 2 } }, x:clone():fill_(2):totable())
    assert.same({ 0, 0, 0 }, x:clone():zero_()[2]:totable())
    assert.equal(-2.5, x[1][2]:item())
    assert.equal("float8_e4m3fn", core.zeros_like(x).dtype)
  end)

  it("are copied from and into other types", function()
    local y = core.tensor { { 1.1, 2, 3 }, { 4, 5, 6 } }
    assert.same({ 1.125, 2, 3 }, x:clone():copy_(y)[1]:totable())
    assert.same({ 1, -2.5, 3 }, y:clone():copy_(x)[1]:totable())
    assert.same({ 1, 500, -7 }, core.tensor({ 1, 500, -7 }):to("float8_e5m2"):to("int32"):sub(
      core.tensor({ 0, 12, 0 }, { dtype = "int32" })):totable())
  end)

  -- Each is run on the bytes, too.
  local MOVES = {
    view = function(t) return t:view(3, 2) end, reshape = function(t) return t:t():reshape(6) end,
    contiguous = function(t) return t:t():contiguous() end, narrow = function(t) return t:narrow(2, 2, 2) end,
    cat = function(t) return core.cat({ t, t }, 2) end, stack = function(t) return core.stack { t, t } end,
    index_select = function(t) return t:index_select(1, core.tensor({ 1, 0 }, { dtype = "int64" })) end,
    gather = function(t) return t:gather(2, core.tensor({ { 2 }, { 0 } }, { dtype = "int64" })) end,
    masked_select = function(t)
      return t:masked_select(core.tensor { { true, false, true }, { true, false, false } })
    end,
    where = function(t) return core.where(core.tensor { true, false, true }, t, t:flip { 1 }) end,
    flip = function(t) return t:flip { 1, 2 } end, roll = function(t) return t:roll(1) end,
    tile = function(t) return t:tile { 2, 2 } end, pad = function(t) return core.pad(t, { 1, 2 }) end,
    diag = function(t)
      return core.diag(t[1])
    end, unfold = function(t) return t:unfold(2, 2, 1):contiguous() end,
    repeat_interleave = function(t) return t:repeat_interleave(2) end,
    split = function(t) return core.cat({ t:split(2, 2) }, 2) end,
    expand = function(t) return t:unsqueeze(1):expand(2, 2, 3):contiguous() end,
    permute = function(t) return t:permute { 2, 1 }:clone() end,
    embedding = function(t) return core.embedding(core.tensor({ 1, 1, 0 }, { dtype = "int64" }), t) end,
    pad_reflect = function(t) return core.pad(t, { 1, 1 }, "reflect") end,
    meshgrid = function(t) return (core.meshgrid({ t[1], t[2] })) end,
  }
  for name, move in pairs(MOVES) do
    it("are moved by " .. name, function()
      local got = move(x)
      assert.equal("float8_e4m3fn", got.dtype)
      same_bits(move(bits(x)), bits(got:contiguous()))
    end)
  end

  it("are written by positions", function()
    local y = x:clone()
    y[1][1] = 5
    y[2] = y[1]
    assert.same({ { 5, -2.5, 3 }, { 5, -2.5, 3 } }, y:totable())
    y:masked_fill_(core.tensor { true, false, false }, 0.3)
    assert.same({ 0.3125, -2.5, 3 }, y[1]:totable())
  end)

  it("are compared, multiplied and looked at in float32, as PyTorch does", function()
    local y = x:clone()
    assert.same({ { true, true, true }, { true, true, false } }, x:eq(y):totable())
    assert.same({ { false, false, false }, { false, false, true } }, x:ne(y):totable())
    assert.same({ true, false, false }, x[1]:eq(1.03):totable()) -- the number is rounded to the type
    assert.same({ false, false, true }, x[2]:isnan():totable())
    assert.same({ true, true, false }, x[2]:isfinite():totable())
    assert.same({ true, false }, core.tensor({ math.huge, 1 }):to("float8_e5m2"):isinf():totable())
    assert.is_true(x[1]:any():item())
    assert.is_false(x:all():item())
    assert.is_true(tensor.equal(x[1], x[1]))
    assert.same({ 1, 2.5, 3 }, x[1]:abs():totable())
    local z = x[1]:mul(x[1])
    assert.equal("float8_e4m3fn", z.dtype)
    assert.same({ 1, 6, 9 }, z:totable())
    assert.same({ 2, -5, 6 }, x[1]:clone():mul_(2):totable())
  end)

  it("have no arithmetic, by name", function()
    local refused = {
      add = function() return x + 1 end, neg = function() return -x end, sum = function() return x:sum() end,
      mean = function()
        return x:mean()
      end, max = function() return x:max() end, lt = function() return x:lt(1) end,
      matmul = function() return x:matmul(x:t()) end, exp = function() return x:exp() end,
      relu = function() return x:relu() end, sort = function() return x:sort() end,
      cumsum = function() return x:cumsum(1) end, softmax = function() return x:softmax(1) end,
      clamp = function() return x:clamp(0, 1) end, tril = function() return x:tril() end,
      norm = function() return x:norm() end, scatter_add = function()
        return x:scatter_add(1, core.zeros({ 1, 3 }, { dtype = "int64" }), x)
      end,
      sub = function() x:sub_(1) end, arange = function()
        core.arange(3, { dtype = "float8_e5m2" })
      end,
      normal = function() core.randn(3, { dtype = "float8_e5m2" }) end,
      index_add = function() x:index_add(1, core.tensor({ 0 }, { dtype = "int64" }), x:narrow(1, 1, 1)) end,
    }
    for name, call in pairs(refused) do
      local ok, err = pcall(call)
      assert.is_false(ok, name)
      assert.truthy(err:find("not defined for float8_e", 1, true), name .. ": " .. err)
      assert.truthy(err:find(name, 1, true), name .. ": " .. err)
    end
    assert.error_matches(function() core.set_default_dtype "float8_e5m2" end, "expected a floating type")
  end)

  it("have no common type with another one", function()
    local others = { core.ones { 2, 3 }, core.ones({ 2, 3 }, { dtype = "int64" }), x:to("float8_e5m2") }
    for _, y in ipairs(others) do
      for name, call in pairs { eq = function() return x:eq(y) end,
        cat = function() return core.cat { x, y } end,
        where = function() return core.where(core.tensor { true, false, true }, y, x) end,
        mul = function() return y * x end } do
        assert.error_matches(call, name ..
          ": float8_e.* and .* have no common type; convert one of them first")
      end
    end
    -- (a tensor of no dims follows)
    assert.same({ true, false, false }, x[1]:eq(core.tensor(1)):totable())
    assert.equal("float8_e4m3fn", core.where(core.tensor { true, false, true }, x[1], core.tensor(0)).dtype)
  end)

  it("are cast under autocast, as other floats are", function()
    local y = core.autocast and core.ones(2, 3) or core.ones { 2, 3 }
    local out
    tensor.autocast("cpu", { dtype = "bfloat16" }, function() out = core.matmul(y, x[1]:reshape(3, 1)) end)
    assert.equal("bfloat16", out.dtype)
    assert.equal(1.5, out[1][1]:item())
  end)
end)

describe("files with types of eight bits", function()
  local path = os.tmpname()
  teardown(function() os.remove(path) end)

  it("are safetensors' F8_E4M3 and F8_E5M2", function()
    local a = core.tensor({ 1, -448 }):to("float8_e4m3fn")
    local b = core.tensor({ { 2 ^ -16, math.huge } }):to("float8_e5m2")
    local files = require "accelerate.files"
    core.safetensors_save(path, { { "a", a }, { "b", b } }, { format = "pt" })
    local text = disk.read(path)
    assert.truthy(text:find('"F8_E4M3"', 1, true))
    assert.truthy(text:find('"F8_E5M2"', 1, true))
    local read = files.load_safetensors(path)
    assert.equal("float8_e4m3fn", read.a.dtype)
    same_bits(bits(a), bits(read.a))
    same_bits(bits(b), bits(read.b))
  end)

  it("are PyTorch's, which has them without storages of their own", function()
    local files = require "accelerate.files"
    local x = core.arange(0, 256):to("uint8"):view "float8_e4m3fn"
    files.save({ all = x, part = x:view(16, 16):narrow(1, 2, 3), bytes = x:view("uint8"):clone() },
      path .. ".pt")
    local text = disk.read(path .. ".pt")
    assert.truthy(text:find("_rebuild_tensor_v3", 1, true) and text:find("UntypedStorage", 1, true))
    local read = files.load(path .. ".pt")
    os.remove(path .. ".pt")
    assert.equal("float8_e4m3fn", read.all.dtype)
    same_bits(bits(x), bits(read.all))
    same_bits(bits(x:view(16, 16):narrow(1, 2, 3):contiguous()), bits(read.part:contiguous()))
    assert.equal("uint8", read.bytes.dtype)
    read.all[17] = 1 -- they share memory, as they did
    assert.equal(1, read.part[1][1]:item())
  end)

  it("are NumPy's with the names of ml_dtypes", function()
    local data = require "accelerate.data"
    for _, dtype in ipairs(TYPES) do
      local x = core.arange(0, 256):to("uint8"):view(dtype):view(2, 128)
      data.write_npy(path, x)
      assert.truthy(disk.read(path):find(("'descr': '%s'"):format(dtype), 1, true))
      local y = core.read_npy(path)
      assert.equal(dtype, y.dtype)
      same_bits(bits(x), bits(y))
    end
  end)
end)
