--- GGUF files (host/core/io/gguf.c): settings of all kinds, tensors of both byte orders and all
--- versions, and damaged files, each refused by name.
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local gguf = require "spec.support.gguf"

local PATH = os.tmpname()

local function open(o)
  disk.write(PATH, type(o) == "string" and o or gguf.bytes(o))
  return core._gguf_open(PATH)
end

local function f32(...)
  local parts = {}
  for i, v in ipairs { ... } do parts[i] = gguf.number("f32", v) end
  return table.concat(parts)
end

local SETTINGS = {
  { "a.u8", kind = "u8", value = 255 }, { "a.i8", kind = "i8", value = -1 },
  { "a.u16", kind = "u16", value = 65535 }, { "a.i16", kind = "i16", value = -2 },
  { "a.u32", kind = "u32", value = 4294967295 }, { "a.i32", kind = "i32", value = -3 },
  { "a.f32", kind = "f32", value = 0.5 }, { "a.bool", kind = "bool", value = 1 },
  { "a.text", kind = "text", value = "h\195\169" }, { "a.u64", kind = "u64", value = 2 ^ 52 },
  { "a.i64", kind = "i64", value = -4 }, { "a.f64", kind = "f64", value = 0.1 },
  { "a.list", kind = "list", of = "i32", value = { 1, -2, 3 } },
  { "a.texts", kind = "list", of = "text", value = { "x", "", "yz" } },
  { "a.bools", kind = "list", of = "bool", value = { 1, 0 } },
  { "a.bytes", kind = "list", of = "u8", value = { 0, 65, 255 } },
  { "a.lists", kind = "list", of = "list", value = { { kind = "list", of = "u8", value = { 66 } },
    { kind = "list", of = "f32", value = { 1.5 } } } },
}
local VALUES = { ["a.u8"] = 255, ["a.i8"] = -1, ["a.u16"] = 65535, ["a.i16"] = -2, ["a.u32"] = 4294967295,
  ["a.i32"] = -3, ["a.f32"] = 0.5, ["a.bool"] = true, ["a.text"] = "h\195\169", ["a.u64"] = 2 ^ 52,
  ["a.i64"] = -4, ["a.f64"] = 0.1, ["a.list"] = { 1, -2, 3 }, ["a.texts"] = { "x", "", "yz" },
  ["a.bools"] = { true, false }, ["a.bytes"] = "\0A\255", ["a.lists"] = { "B", { 1.5 } } }

describe("GGUF files", function()
  teardown(function() os.remove(PATH) end)

  for version = 1, 3 do
    for _, big in ipairs { false, true } do
      it(("give settings of every kind: version %d, %s-endian"):format(version, big and "big" or "little"),
        function()
          local file = open { version = version, big = big, settings = SETTINGS }
          assert.are.same({ version, big }, { file:version() })
          local keys = file:keys()
          assert.are.equal(#SETTINGS, #keys)
          for i, key in ipairs(keys) do
            assert.are.equal(SETTINGS[i][1], key)
            assert.are.same(VALUES[key], file:get(key))
          end
          assert.is_nil(file:get "a.other")
        end)
    end
  end

  it("give tensors by name, row-major", function()
    local file = open { tensors = { { "one", type = "F32", shape = { 2, 3 }, bytes = f32(1, 2, 3, 4, 5, 6) },
      { "none", type = "F32", shape = { 0, 2 } },
      { "two", type = "Q8_0", shape = { 2, 32 }, bytes = ("\1"):rep(68) } } }
    local list = file:tensors()
    assert.are.same({ name = "one", type = "F32", shape = { 2, 3 } }, list[1])
    assert.are.same({ name = "two", type = "Q8_0", shape = { 2, 32 } }, list[3])
    assert.are.same({ { 1, 2, 3 }, { 4, 5, 6 } }, file:_lend("one"):totable())
    assert.are.same({ 0, 2 }, file:_lend("none").shape)
    local two = file:_lend "two"
    assert.are.same({ 2, 34 }, two.shape)
    assert.are.equal("uint8", two.dtype)
    assert.has_error(function() file:_lend "three" end,
      ("_lend: '%s' has no tensor 'three'"):format(PATH))
  end)

  it("of big-endian machines give the same numbers", function()
    local half, block = "\60\0", "\0\60" -- 1 as a half, big-endian and little-endian
    local file = open { big = true, tensors = {
      { "f", type = "F32", shape = { 2 }, bytes = gguf.number("f32", 1.5, true) ..
        gguf.number("f32", -2, true) },
      { "q", type = "Q8_0", shape = { 1, 32 }, bytes = half .. ("\3"):rep(32) },
      { "k", type = "Q4_K", shape = { 1, 256 }, bytes = half .. half .. ("\7"):rep(140) } } }
    assert.are.same({ 1.5, -2 }, file:_lend("f"):totable())
    local one = disk.to_hex(block)
    local function hex(t, from, n)
      local s = {}
      for i, v in ipairs(t:reshape(-1):narrow(1, from, n):totable()) do s[i] = string.char(v) end
      return disk.to_hex(table.concat(s))
    end
    assert.are.equal(one .. "03", hex(file:_lend "q", 1, 3))
    assert.are.equal(one .. one .. "07", hex(file:_lend "k", 1, 5))
  end)

  it("respect general.alignment", function()
    local file = open { alignment = 64, settings = { { "general.alignment", kind = "u32", value = 64 } },
      tensors = { { "a", type = "F32", shape = { 1 }, bytes = f32(7) },
        { "b", type = "F32", shape = { 1 }, bytes = f32(8) } } }
    assert.are.same({ 8 }, file:_lend("b"):totable())
  end)

  it("stay readable when the handle is closed and collected", function()
    local file = open { tensors = { { "a", type = "F32", shape = { 2 }, bytes = f32(1, 2) } } }
    local t = file:_lend "a"
    file:close()
    file = nil -- luacheck: ignore 311
    collectgarbage()
    collectgarbage()
    assert.are.same({ 1, 2 }, t:totable())
  end)
end)

local ONE = { "a", type = "F32", shape = { 2 }, bytes = f32(1, 2) }
local function tensor(fields)
  local t = {}
  for key, v in pairs(ONE) do t[key] = v end
  for key, v in pairs(fields) do t[key] = v end
  return { tensors = { t } }
end
local function setting(fields) return { settings = { fields } } end

local WHOLE = gguf.bytes { settings = SETTINGS, tensors = { ONE } }

-- What a file says, and what the message says of it.
local DAMAGED = {
  { "no magic", "GGML" .. ("\0"):rep(40), 'does not begin with "GGUF"' },
  { "nothing", "", 'does not begin with "GGUF"' },
  { "a pointer", "version https://git-lfs.github.com/spec/v1", "Git LFS pointer" },
  { "version 4", { version = 4 }, "of version 4; 1 to 3 are read" },
  { "version 0", { version = 0 }, "of version 0; 1 to 3 are read" },
  { "too many tensors", { tensor_count = 2 ^ 40 }, "the count of tensors is 1099511627776, more than" },
  { "too many settings", { setting_count = 2 ^ 40 }, "the count of settings is 1099511627776, more than" },
  { "fewer tensors than it says", { tensor_count = 1 }, "more than the 16 bytes that follow can hold" },
  { "a key of 2^63 bytes", setting { "k", kind = "u8", value = 1, key_length = 2 ^ 63 },
    "the length of a key is 9223372036854775808, more than" },
  { "a text of 2^62 bytes", setting { "k", kind = "text", value = "x", length = 2 ^ 62 },
    "the length of a text is 4611686018427387904, more than" },
  { "a kind that is not there", setting { "k", kind = 13 }, "the kind of a value is 13; known are 0 to 12" },
  { "a list of a kind that is not there", setting { "k", kind = "list", of = 77, value = {} },
    "the kind of a value is 77" },
  { "a list of 2^60 entries", setting { "k", kind = "list", of = "f64", value = {}, count = 2 ^ 60 },
    "the count of a list is 1152921504606846976, more than" },
  { "a key twice", { settings = { { "k", kind = "u8", value = 1 }, { "k", kind = "u8", value = 1 } } },
    "it has the key 'k' twice" },
  { "a key with NUL", setting { "k\0x", kind = "u8", value = 1 }, '"k" goes on after a NUL' },
  { "alignment 0", setting { "general.alignment", kind = "u32", value = 0 },
    "general.alignment must be a power of two, got 0" },
  { "alignment 48", setting { "general.alignment", kind = "u32", value = 48 },
    "general.alignment must be a power of two, got 48" },
  { "an alignment of another kind", setting { "general.alignment", kind = "u64", value = 32 },
    "general.alignment is not of the kind u32" },
  { "five dims", tensor { shape = { 1, 1, 1, 1, 1 } }, "tensor 'a' has 5 dims; at most 4" },
  { "2^32 - 1 dims", tensor { dims = 2 ^ 32 - 1 }, "tensor 'a' has 4294967295 dims; at most 4" },
  { "a dim of 2^63", tensor { shape = { 2 ^ 63 } }, "tensor 'a': dim 1 has 9223372036854775808 numbers" },
  { "dims whose product is too large", tensor { shape = { 2 ^ 40, 2 ^ 40 } }, "is it truncated" },
  { "a row that is no whole block", tensor { type = "Q4_K", shape = { 1, 128 } },
    "tensor 'a': rows of Q4_K must be multiples of 256 numbers, got 128" },
  { "an offset between two places", tensor { offset = 8 },
    "tensor 'a' begins at byte 8, no multiple of general.alignment (32)" },
  { "an offset behind the end", tensor { offset = 2 ^ 40 }, "tensor 'a' has 8 bytes at byte 1099511627776" },
  { "an offset of 2^64 - 32", tensor { offset = 2 ^ 64 - 2048 }, "tensor 'a' begins at byte" },
  { "a tensor that ends behind the file", tensor { shape = { 100 } }, "but the file has 32 there" },
  { "a tensor of a type that is not known, outside", tensor { type = 99, offset = 2 ^ 41 },
    "is it truncated" },
  { "a tensor twice", { tensors = { ONE, ONE } }, "it has the tensor 'a' twice" },
  { "tensors that overlap", { tensors = { { "a", type = "F32", shape = { 12 }, bytes = ("\0"):rep(48) },
    { "b", type = "F32", shape = { 2 }, offset = 32, bytes = f32(1, 2) } } },
    "the tensors 'a' and 'b' overlap" },
}

describe("a damaged GGUF file is refused:", function()
  teardown(function() os.remove(PATH) end)

  for _, case in ipairs(DAMAGED) do
    it(case[1], function()
      local ok, message = pcall(open, case[2])
      assert.is_false(ok)
      assert.is_truthy(message:find(PATH, 1, true), message)
      assert.is_truthy(message:find(case[3], 1, true), message)
    end)
  end

  it("one that ends at any byte of its header", function()
    local head = #WHOLE - 32
    for n = 0, head - 33 do
      local ok, message = pcall(open, WHOLE:sub(1, n))
      assert.is_false(ok, ("%d bytes"):format(n))
      assert.is_truthy(message:find(PATH, 1, true), message)
    end
  end)

  it("lists in lists in lists", function()
    local entry = { kind = "list", of = "u8", value = { 1 } }
    for _ = 1, 5 do entry = { kind = "list", of = "list", value = { entry } } end
    entry[1] = "k"
    local ok, message = pcall(open, setting(entry))
    assert.is_false(ok)
    assert.is_truthy(message:find("lists are more than 4 deep", 1, true), message)
  end)

  it("a tensor of a type that is not read, when it is read", function()
    local file = open { tensors = { { "a", type = "IQ2_XXS", shape = { 1, 256 }, bytes = ("\0"):rep(66) },
      { "b", type = 99, shape = { 1 }, bytes = "" } } }
    assert.are.equal("type 99", file:tensors()[2].type)
    for name, type in pairs { a = "IQ2_XXS", b = "type 99" } do
      local ok, message = pcall(file._lend, file, name)
      assert.is_false(ok)
      assert.is_truthy(message:find(("tensor '%s' is of %s, which is not read"):format(name, type), 1, true),
        message)
    end
  end)

  it("one that is cut while it is open", function()
    local file = open { tensors = { { "a", type = "F32", shape = { 4096 }, bytes = ("\1"):rep(16384) } } }
    disk.write(PATH, "GGUF")
    assert.is_false((pcall(function()
      file:_lend("a"):sum():item()
      file:_check()
    end)))
  end)
end)
