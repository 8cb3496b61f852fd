local core = require "accelerate.core"
local disk = require "spec.support.disk"

local path = os.tmpname()

local function write(bytes) disk.write(path, bytes) end

-- The header of an IDX file: type byte, then sizes.
local function header(kind, ...)
  local bytes = { "\0\0", string.char(kind), string.char(select("#", ...)) }
  for _, n in ipairs { ... } do
    bytes[#bytes + 1] = string.char(math.floor(n / 2 ^ 24) % 256, math.floor(n / 2 ^ 16) % 256,
      math.floor(n / 256) % 256,
      n % 256)
  end
  return table.concat(bytes)
end

-- uint8 [3, 4] with 0 to 11, as `gzip -9` writes it
local GZIP = disk.from_hex(
  "1f8b08000000000002036360e0606260606006621606462666165636760e4e2e6e0045d3c08418000000")
local PLAIN = header(8, 3, 4) .. "\0\1\2\3\4\5\6\7\8\9\10\11"

local function failure(bytes)
  write(bytes)
  local ok, err = pcall(core.read_idx, path)
  assert.is_false(ok)
  assert.truthy(err:find(path, 1, true), err) -- the file is named
  return err
end

describe("read_idx", function()
  teardown(function() os.remove(path) end)

  it("reads bytes, plain and gzip", function()
    for _, bytes in ipairs { PLAIN, GZIP } do
      write(bytes)
      local t = core.read_idx(path)
      assert.equal("uint8", t.dtype)
      assert.same({ { 0, 1, 2, 3 }, { 4, 5, 6, 7 }, { 8, 9, 10, 11 } }, t:totable())
    end
  end)

  it("reads wider elements, which are big-endian in the file", function()
    write(header(0x0c, 2) .. "\0\0\1\2" .. "\255\255\255\254")
    assert.same({ 258, -2 }, core.read_idx(path):totable())
    write(header(0x0d, 1) .. "\63\128\0\0")
    assert.same({ 1 }, core.read_idx(path):totable())
    write(header(0x0e, 1) .. "\192\0\0\0\0\0\0\0")
    assert.same({ -2 }, core.read_idx(path):totable())
  end)

  it("reads a file of no elements", function()
    write(header(8, 0, 28))
    assert.same({ 0, 28 }, core.read_idx(path).shape)
  end)

  it("says what is wrong with a file", function()
    assert.truthy(failure(""):find("ends after 0 bytes; expected an IDX header", 1, true))
    assert.truthy(failure("\0\0\8"):find("ends after 3 bytes", 1, true))
    assert.truthy(failure("hello, world"):find("starts with 68 65 6c 6c", 1, true))
    assert.truthy(failure(header(0x0f, 1) .. "\1"):find("element type 0x0f", 1, true))
    assert.truthy(failure(header(0x0b, 1) .. "\1\1"):find("int16, which tensors do not have", 1, true))
    assert.truthy(failure("\0\0\8\0"):find("0 dims; expected 1 to 8", 1, true))
    assert.truthy(failure("\0\0\8\9"):find("9 dims", 1, true))
    assert.truthy(failure(header(8, 0, 0x7fffffff, 0x7fffffff, 0x7fffffff)):find("has too many elements", 1,
      true))
    assert.truthy(failure("\0\0\8\2\0\0"):find("inside its header: 6 bytes; expected 12", 1, true))
    assert.truthy(failure(PLAIN:sub(1, -3)):find("uint8 [3, 4], which is 12 bytes after the header; found 10",
      1, true))
    assert.truthy(failure(PLAIN .. "x"):find("12 bytes after the header; found 13", 1, true))
    assert.truthy(failure(GZIP:sub(1, -9)):find("ends too early", 1, true))
    assert.truthy(failure(GZIP:sub(1, -9) .. "\0\0\0\0" .. GZIP:sub(-4)):find("incorrect data check", 1,
      true))
  end)

  it("believes no header that claims more than the file can hold", function()
    local before = core.memory_stats().peak_bytes
    assert.truthy(failure(header(8, 1000, 1000, 1000)):find("1000000000 bytes after the header; found 0", 1,
      true))
    assert.truthy(failure(header(0x0e, 0xffffffff, 0xffffffff)):find("too large to be true", 1, true))
    -- a header of 1000 x 1000 x 100, no data
    local claim = disk.from_hex "1f8b08000000000002036360e0606660607e01c10c2900acfa1edc10000000"
    assert.truthy(failure(claim):find("100000000 bytes; 31 compressed bytes cannot hold that much", 1, true))
    assert.equal(before, core.memory_stats().peak_bytes)
  end)

  it("names a file that is not there, a folder, and a path that is none", function()
    assert.has_error(function() core.read_idx("/nowhere/x") end,
      "read_idx: '/nowhere/x': cannot be opened: No such file or directory")
    local ok, err = pcall(core.read_idx, "/")
    assert.is_false(ok)
    assert.truthy(err:find("not a regular file", 1, true))
    assert.is_false(pcall(core.read_idx, "a\0b"))
    assert.is_false(pcall(core.read_idx, 5))
  end)

  it("survives every cut and every flipped bit, and leaks nothing", function()
    collectgarbage()
    collectgarbage()
    local before = core.memory_stats()
    for _, bytes in ipairs { PLAIN, GZIP } do
      for n = 0, #bytes - 1 do
        write(bytes:sub(1, n))
        assert.is_false(pcall(core.read_idx, path), n)
      end
      for at = 1, #bytes do
        for bit = 0, 7 do
          local flipped = require("bit").bxor(bytes:byte(at), 2 ^ bit)
          write(bytes:sub(1, at - 1) .. string.char(flipped) .. bytes:sub(at + 1))
          local ok, t = pcall(core.read_idx, path)
          if ok then core.release(t) end
        end
      end
    end
    collectgarbage()
    collectgarbage()
    local after = core.memory_stats()
    assert.equal(before.live_bytes, after.live_bytes)
    assert.equal(before.structs, after.structs)
  end)
end)
