local core = require "accelerate.core"
local disk = require "spec.support.disk"
local fuzz = require "spec.support.fuzz_files"
local reference = require "spec.reference.files_reference"

local path = os.tmpname()
local function write(bytes) disk.write(path, bytes) end

local function failure(bytes, read)
  write(bytes)
  local ok, err = pcall(read or core.read_npy, path)
  assert.is_false(ok, "expected an error")
  assert.truthy(err:find(path, 1, true), err)
  return err
end

-- A file of version 1.0 with this header.
local function with_header(header, data)
  return "\147NUMPY\1\0" .. string.char(#header % 256, math.floor(#header / 256)) .. header .. (data or "")
end

describe("read_npy", function()
  teardown(function() os.remove(path) end)

  it("reads every type, in both orders of bytes and of dims", function()
    for _, case in ipairs(reference.npy) do
      local descr, dtype, values, hex = unpack(case)
      write(disk.from_hex(hex))
      local t = core.read_npy(path)
      assert.equal(dtype, t.dtype, descr)
      assert.is_true(t:is_contiguous(), descr)
      if dtype == "bool" then t = t:to("int64"):ne(0) end
      local expected = values
      if dtype == "bool" then expected = { { true, false, true }, { false, true, true } } end
      assert.same(expected, t:totable(), descr)
    end
  end)

  it("reads numbers without dims, and no numbers", function()
    write(disk.from_hex(reference.npy_scalar))
    local t = core.read_npy(path)
    assert.equal(0, t.ndim)
    assert.equal(2.5, t:item())
    write(disk.from_hex(reference.npy_empty))
    assert.same({ 0, 3 }, core.read_npy(path).shape)
  end)

  it("quotes no control characters of the file", function()
    local err = failure(with_header("{'descr': '\27[2J\7', 'fortran_order': False, 'shape': ()}"))
    assert.truthy(err:find("the elements are '?[2J?', which", 1, true), err)
  end)

  it("reads complex numbers", function()
    write(disk.from_hex(reference.npy_complex))
    assert.equal("complex64", core.read_npy(path).dtype)
  end)

  it("says what is wrong", function()
    assert.truthy(failure(""):find("ends after 0 bytes", 1, true))
    assert.truthy(failure("hello, numpy"):find("it starts with 68 65 6c 6c", 1, true))
    assert.truthy(failure("\147NUMPY\9\0\0\0\0\0"):find("version 9.0", 1, true))
    assert.truthy(failure("\147NUMPY\1\0\255\0{"):find("ends inside its header: 11 bytes; expected 265", 1,
      true))
    assert.truthy(failure(with_header("{'descr': '<c32', 'fortran_order': False, 'shape': ()}")):find(
      "the elements are '<c32'", 1, true))
    assert.truthy(failure(disk.from_hex(reference.npy_records)):find("it holds records", 1, true))
    assert.truthy(failure(disk.from_hex(reference.npy_too_big)):find("18446744073709551615 " ..
      "does not fit into int64", 1, true))
    assert.truthy(failure(with_header("{'descr': '<f4', 'shape': (1,), }", "1234")):find(
      "lacks 'fortran_order'", 1, true))
    assert.truthy(failure(with_header("{'descr': '<f4', 'fortran_order': 1, 'shape': ()}")):find(
      "neither True nor False", 1, true))
    assert.truthy(failure(with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
      "1234")):find("2 elements of 4 bytes; found 4 bytes", 1, true))
    assert.truthy(failure(with_header("{'shape': (x,)}")):find("the shape in its header cannot be read", 1,
      true))
    assert.truthy(failure(with_header("{'colour': 'red'}")):find("unknown key 'colour'", 1, true))
    assert.truthy(failure(with_header("[]")):find("its header is no dict", 1, true))
    local huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999)}"
    assert.truthy(failure(with_header(huge)):find("too large to be true", 1, true))
    huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000,)}"
    assert.truthy(failure(with_header(huge)):find("4000000000 elements of 4 bytes; found 0 bytes", 1, true))
    assert.is_false(pcall(core.read_npy, "/nowhere/x"))
    assert.is_false(pcall(core.read_npy, "/"))
  end)

  it("survives damage", function()
    local bytes = disk.from_hex(reference.npy[2][4])
    assert.is_true(fuzz.damage(path, bytes, core.read_npy) > 100)
  end)
end)

describe("read_npz", function()
  teardown(function() os.remove(path) end)

  it("reads archives, stored and deflated", function()
    for _, name in ipairs { "npz_stored", "npz_deflated" } do
      write(disk.from_hex(reference[name]))
      local arrays, names = core.read_npz(path)
      assert.same({ "weights", "steps" }, names)
      assert.same({ { 1, 2 }, { 3, 4 } }, arrays.weights:totable())
      assert.equal("float32", arrays.weights.dtype)
      assert.same({ 0, 1, 2 }, arrays.steps:totable())
    end
  end)

  it("says what is wrong", function()
    local bytes = disk.from_hex(reference.npz_stored)
    assert.truthy(failure("", core.read_npz):find("not a zip archive, or cut off", 1, true))
    assert.truthy(failure(bytes:sub(1, -2), core.read_npz):find("not a zip archive, or cut off", 1, true))
    local at = bytes:find("\63\128\0\0", 1, true) or bytes:find("\0\0\128\63", 1, true)
    assert.truthy(failure(bytes:sub(1, at - 1) .. "\1" .. bytes:sub(at + 1),
      core.read_npz):find("'weights.npy' in it is damaged: its checksum", 1, true))
  end)

  it("survives damage", function()
    for _, name in ipairs { "npz_stored", "npz_deflated" } do
      assert.is_true(fuzz.damage(path, disk.from_hex(reference[name]), core.read_npz,
        { every = 3, rounds = 300 }) > 100)
    end
  end)
end)
