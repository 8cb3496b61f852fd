local data = require "accelerate.data"
local disk = require "spec.support.disk"
local ffi = require "ffi"
local fuzz = require "spec.support.fuzz_files"

local path, second = os.tmpname(), os.tmpname()

local function numbers(kind, from, to)
  local list = ffi.new(kind .. "[?]", to - from + 1)
  for i = from, to do list[i - from] = i end
  return ffi.string(list, ffi.sizeof(list))
end

local function header(magic, version, n)
  local h = ffi.new("int32_t[256]")
  h[0], h[1], h[2] = magic, version, n
  return ffi.string(h, 1024)
end

local function fails_with(text, ...)
  local ok, err = pcall(data.TokenDataset, ...)
  assert.is_false(ok, "expected an error")
  assert.truthy(err:find(text, 1, true), err)
end

describe("TokenDataset", function()
  teardown(function()
    os.remove(path)
    os.remove(second)
  end)

  it("gives windows, and the same one token later", function()
    disk.write(path, numbers("uint16_t", 0, 20))
    local set = data.TokenDataset(path, { block_size = 5 })
    assert.equal(4, set:len())
    assert.equal(21, set.num_tokens)
    local x, y = set:get(2)
    assert.same({ 5, 6, 7, 8, 9 }, x:totable())
    assert.same({ 6, 7, 8, 9, 10 }, y:totable())
    assert.equal("int64", x.dtype)
    assert.same({ 16, 17, 18, 19, 20 }, select(2, set:get(4)):totable())
    assert.is_false(pcall(set.get, set, 5))
    disk.write(path, numbers("uint16_t", 0, 19))
    assert.equal(3, data.TokenDataset(path, { block_size = 5 }):len())
    assert.equal(15, data.TokenDataset(path, { block_size = 5, stride = 1 }):len())
  end)

  it("reads uint32, headers, and several files", function()
    disk.write(path, numbers("uint32_t", 65530, 65545))
    assert.same({ 65534, 65535, 65536, 65537 },
      data.TokenDataset(path, { block_size = 4, dtype = "uint32" }):get(2):totable())
    disk.write(second, header(20240520, 1, 6) .. numbers("uint16_t", 1, 6))
    assert.same({ 1, 2, 3 }, data.TokenDataset(second, { block_size = 3 }):get(1):totable())
    disk.write(path, header(20240801, 7, 9) .. numbers("uint32_t", 101, 109))
    local set = data.TokenDataset({ second, path }, { block_size = 3, stride = 2 })
    assert.equal(2 + 3, set:len())
    assert.equal(15, set.num_tokens)
    local x = set:get_batch { 5, 2, 3 }
    assert.same({ { 105, 106, 107 }, { 3, 4, 5 }, { 101, 102, 103 } }, x:totable())
    for batch, later in data.DataLoader(set, { batch_size = 5, num_workers = 1 }):iter() do
      assert.same({ 5, 3 }, batch.shape)
      assert.is_true(later:sub(batch):eq(1):all():item())
    end
    set = nil -- luacheck: ignore 311 (its files are mapped: they must not change)
    collectgarbage()
    disk.write(path, "abc" .. numbers("uint16_t", 7, 9))
    assert.same({ 7, 8 }, data.TokenDataset(path, { block_size = 2, header_bytes = 3 }):get(1):totable())
  end)

  it("says what is wrong", function()
    disk.write(path, "abc")
    fails_with("3 bytes after 0 of header are no whole number of uint16 tokens", path, { block_size = 1 })
    fails_with("3 bytes, fewer than the 9 of its header", path, { block_size = 1, header_bytes = 9 })
    disk.write(path, numbers("uint16_t", 1, 4))
    fails_with("4 tokens, too few for one window of 4 and the token after it", path, { block_size = 4 })
    disk.write(path, header(20240520, 1, 7) .. numbers("uint16_t", 1, 6))
    fails_with("its header says 7 tokens; found 6", path, { block_size = 1 })
    fails_with("its header says uint16 tokens; uint32 were asked for", path,
      { block_size = 1, dtype = "uint32" })
    fails_with("cannot be opened: No such file", "/nowhere/x.bin", { block_size = 1 })
    fails_with("expected a path or a list of paths, got 5", 5, { block_size = 1 })
    disk.write(path, "")
    fails_with("0 tokens", path, { block_size = 1 })
  end)

  it("survives damage", function()
    fuzz.damage(path, header(20240520, 1, 40):sub(1, 1024) .. numbers("uint16_t", 1, 40), function(p)
      return data.TokenDataset(p, { block_size = 4 }):get_batch { 1 }
    end, { every = 97 })
  end)
end)
