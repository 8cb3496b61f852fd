local bit = require "bit"
local core = require "accelerate.core"
local disk = require "spec.support.disk"

local path = os.tmpname()

local function write(bytes) disk.write(path, bytes) end

-- A file with this header and data.
local function file(json, data)
  local n = #json
  return string.char(n % 256, math.floor(n / 256) % 256, math.floor(n / 65536) % 256,
    math.floor(n / 2 ^ 24)) .. "\0\0\0\0" ..
    json ..
    (data or "")
end

local function entry(name, dtype, shape, from, to)
  return ('"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%s,%s]}'):format(name, dtype, shape, from, to)
end

-- What the reference implementation (safetensors 0.8.0 for Python) writes.
local REFERENCE = file('{"__metadata__":{"format":"pt"},' .. entry("steps", "I64", "", 0, 8) .. "," ..
  entry("fc.weight", "F32", "2,3", 8, 32) .. "," ..
  entry("none", "F32", "0,4", 32, 32) .. "," .. entry("fc.bias", "F16", "2", 32, 36) .. "," ..
    entry("mask", "BOOL", "3", 36, 39) .. "}    ",
  disk.from_hex "0700000000000000000000000000003f0000803f0000c03f0000004000002040003e00c0010001")

local function failure(bytes)
  write(bytes)
  local ok, err = pcall(core.safetensors_load, path)
  assert.is_false(ok)
  assert.truthy(err:find(path, 1, true), err)
  return err
end

local function fails_with(text, bytes)
  local err = failure(bytes)
  assert.truthy(err:find(text, 1, true), err)
end

describe("safetensors_load", function()
  teardown(function() os.remove(path) end)

  it("reads what the reference implementation writes, in the header's order", function()
    write(REFERENCE)
    local list, metadata = core.safetensors_load(path)
    local names, by_name = {}, {}
    for i, e in ipairs(list) do
      names[i] = e[1]
      by_name[e[1]] = e[2]
    end
    assert.same({ "steps", "fc.weight", "none", "fc.bias", "mask" }, names)
    assert.same({ format = "pt" }, metadata)
    assert.equal("int64", by_name.steps.dtype)
    assert.equal(7, by_name.steps:item())
    assert.same({ { 0, 0.5, 1 }, { 1.5, 2, 2.5 } }, by_name["fc.weight"]:totable())
    assert.equal("float16", by_name["fc.bias"].dtype)
    assert.same({ 1.5, -2 }, by_name["fc.bias"]:totable())
    assert.same({ true, false, true }, by_name.mask:totable())
    assert.same({ 0, 4 }, by_name.none.shape)
  end)

  it("reads an empty file and one without metadata", function()
    write(file("{}"))
    local list, metadata = core.safetensors_load(path)
    assert.same({}, list)
    assert.same({}, metadata)
  end)

  it("takes any byte but 0 of a bool for true", function()
    write(file("{" .. entry("m", "BOOL", "2", 0, 2) .. "}", "\7\0"))
    local mask = core.safetensors_load(path)[1][2]
    assert.same({ true, false }, mask:totable())
    assert.equal(1, mask:sum():item())
  end)

  it("says what is wrong with the header", function()
    fails_with("has 3 bytes; expected at least the 8", "abc")
    fails_with("says its header has 200 bytes, but only 2 follow", "\200\0\0\0\0\0\0\0{}")
    fails_with("at most 100000000 are allowed", ("\255"):rep(8) .. "{}")
    fails_with("does not start with '{'", file("[]"))
    fails_with("does not start with '{'", file(""))
    fails_with("is not valid JSON", file("{"))
    fails_with("is not valid JSON", file('{"a":' .. ("["):rep(5000) .. ("]"):rep(5000) .. "}"))
    fails_with("goes on after its JSON (at byte 2)", file("{}{}"))
    fails_with("is not text: byte 0xff", file('{"\255":1}'))
    fails_with("is not text: byte 0x00", file('{"a\0b":1}'))
    fails_with("has a NUL in a name", file('{"a\\u0000b":1}'))
    fails_with("two tensors are called 'a'",
      file("{" .. entry("a", "U8", "0", 0, 0) .. "," .. entry("a", "U8", "0", 0, 0) .. "}"))
    fails_with("\"__metadata__\" is not an object", file('{"__metadata__":[]}'))
    fails_with("the metadata 'k' is not a text", file('{"__metadata__":{"k":1}}'))
  end)

  it("says what is wrong with a tensor's entry", function()
    local function wrong(text, ...) fails_with(text, file("{" .. entry(...) .. "}", "12345678")) end
    fails_with("the entry of tensor 'a' is not an object", file('{"a":1}'))
    fails_with("tensor 'a' has no \"dtype\"", file('{"a":{}}'))
    fails_with("tensor 'a' has no \"shape\"", file('{"a":{"dtype":"F32"}}'))
    fails_with("tensor 'a' has no \"data_offsets\"", file('{"a":{"dtype":"F32","shape":[]}}'))
    wrong("has dtype 'F8_E8M0'; known are", "a", "F8_E8M0", "8", 0, 8)
    wrong("size 1 of tensor 'a' is not a whole number", "a", "U8", "-8", 0, 8)
    wrong("size 2 of tensor 'a' is not a whole number", "a", "U8", "4,2.5", 0, 8)
    wrong("more than 8 dims", "a", "U8", "1,1,1,1,1,1,1,1,8", 0, 8)
    wrong("too large to be true", "a", "F32", "4294967296,4294967296", 0, 8)
    wrong("\"data_offsets\" of two whole numbers", "a", "U8", "8", 0, "1e300")
    wrong("lies at bytes 0 to 9 of the data, which has 8", "a", "U8", "9", 0, 9)
    wrong("lies at bytes 8 to 0", "a", "U8", "8", 8, 0)
    wrong("is float32 [3], which takes 12 bytes; its offsets give it 8", "a", "F32", "3", 0, 8)
    wrong("begins at byte 4 of the data; expected 0 (a hole)", "a", "U8", "4", 4, 8)
    wrong("has 8 bytes of data; its tensors take 4", "a", "U8", "4", 0, 4)
    fails_with("begins at byte 4 of the data; expected 6 (tensors overlap)",
      file("{" .. entry("a", "U8", "6", 0, 6) .. "," .. entry("b", "U8", "4", 4, 8) .. "}", "12345678"))
  end)

  it("holds the header to the specification", function()
    fails_with("tensor 'a' has \"dtype\" twice",
      file('{"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}', "1"))
    fails_with("the metadata has 'k' twice", file('{"__metadata__":{"k":"1","j":"2","k":"3"}}'))
    fails_with("the file has \"__metadata__\" twice", file('{"__metadata__":{},"__metadata__":{}}'))
    for _, text in ipairs { '{"a":}', '{"a"}', '{,}', '{"a":01}', '{"a":1.}', '{"a":1e}', '{"a":-}',
      '{"a":nul}',
      '{"a":[1,]}', '{"a":{"b":1,}}', '{"a":"\\x"}', '{"a":"\\u12"}', '{"a":"\\udc00"}', '{"a":"\\ud800x"}',
      '{"a":"\n"}', "{'a':1}", '{"a":[}' } do
      fails_with("is not valid JSON", file(text))
    end
    -- as many brackets and zeros as a header may have cost no more memory than they are
    fails_with("is not valid JSON", file('{"a":' .. ("["):rep(1e6)))
    fails_with("the entry of tensor 'a' is not an object", file('{"a":[' .. ("0,"):rep(1e6) .. "0]}"))
    fails_with("size 1 of tensor 'a' is not a whole number",
      file("{" .. entry("a", "U8", "8.0", 0, 8) .. "}", "12345678"))
    -- what the format allows
    write(file('{"\\u0061\\n\\ud83d\\ude00":{"shape":[ 2 ' ..
      '],"more":{"x":[1,-2.5e+3,null,true,"t"]},"data_offsets":[0,2],' ..
      '"dtype":"U8"}, "__metadata__":null}  \n', "ab"))
    local list, metadata = core.safetensors_load(path)
    assert.equal("a\n\240\159\152\128", list[1][1])
    assert.same({ 97, 98 }, list[1][2]:totable())
    assert.same({}, metadata)
  end)

  it("names a file that is not there, and a folder", function()
    assert.has_error(function() core.safetensors_load("/nowhere/x") end,
      "safetensors: '/nowhere/x': cannot be opened: No such file or directory")
    assert.is_false(pcall(core.safetensors_load, "/"))
  end)

  it("survives every cut, every flipped bit and thousands of changes, and leaks nothing", function()
    collectgarbage()
    collectgarbage()
    local before = core.memory_stats()
    local function try(bytes)
      write(bytes)
      local ok, list = pcall(core.safetensors_load, path)
      for _, e in ipairs(ok and list or {}) do core.release(e[2]) end
      return ok
    end
    for n = 0, #REFERENCE - 1 do assert.is_false(try(REFERENCE:sub(1, n)), n) end
    for at = 1, #REFERENCE do
      for b = 0, 7 do try(REFERENCE:sub(1, at - 1) .. string.char(bit.bxor(REFERENCE:byte(at), 2 ^ b)) ..
        REFERENCE:sub(at + 1)) end
    end
    local seed = 1
    local function random(n) -- 1 to n, the same numbers in every run
      seed = (seed * 16807) % 2147483647
      return seed % n + 1
    end
    local alphabet = '0123456789{}[]",:\\-eu'
    for _ = 1, 3000 do
      local bytes = REFERENCE
      for _ = 1, random(4) do
        local at, c = random(#bytes), random(#alphabet)
        local kind = random(3)
        bytes = bytes:sub(1, kind == 2 and at or at - 1) .. (kind == 3 and "" or alphabet:sub(c, c)) ..
          bytes:sub(at + 1)
      end
      try(bytes)
    end
    collectgarbage()
    collectgarbage()
    local after = core.memory_stats()
    assert.equal(before.live_bytes, after.live_bytes)
    assert.equal(before.structs, after.structs)
  end)

  it("frees what it made when an allocation fails, whichever it is", function()
    write(REFERENCE)
    collectgarbage()
    collectgarbage()
    local before, failed = core.memory_stats(), 0
    for n = 1, 1000 do
      core.debug_fail_alloc(n)
      local ok, list = pcall(core.safetensors_load, path)
      core.debug_fail_alloc(0)
      if ok then
        for _, e in ipairs(list) do core.release(e[2]) end
        break
      end
      failed = n
      collectgarbage()
      assert.equal(before.live_bytes, core.memory_stats().live_bytes, n)
      assert.equal(before.structs, core.memory_stats().structs, n)
    end
    assert.is_true(failed > 10 and failed < 1000)
  end)
end)

describe("safetensors_open", function()
  teardown(function() os.remove(path) end)

  it("reads one tensor at a time", function()
    write(REFERENCE)
    local f = core.safetensors_open(path)
    assert.same({ "steps", "fc.weight", "none", "fc.bias", "mask" }, f:keys())
    assert.same({ format = "pt" }, f:metadata())
    assert.same({ 2, 3 }, f:get_shape("fc.weight"))
    assert.equal("float16", f:get_dtype("fc.bias"))
    assert.same({ 1.5, -2 }, f:get_tensor("fc.bias"):totable())
    assert.equal(7, f:get_tensor("steps"):item())
    assert.has_error(function() f:get_tensor("fc.weigth") end,
      "get_tensor: '" .. path .. "' has no tensor 'fc.weigth'; did you mean 'fc.weight'?")
    assert.is_false(pcall(f.get_tensor, f, "steps\0"))
    assert.is_false(pcall(f.get_shape, f))
    f:close()
    f:close()
    for _, name in ipairs { "keys", "metadata", "get_tensor", "get_shape", "get_dtype" } do
      local ok, err = pcall(f[name], f, "steps")
      assert.is_false(ok)
      assert.truthy(err:find("got one that was closed", 1, true), err)
      assert.is_false(pcall(f[name], path))
    end
  end)

  it("keeps its file when another takes the place, and says when it was truncated", function()
    local big = core.arange(100000)
    core.safetensors_save(path, { { "x", big } })
    local f = core.safetensors_open(path)
    core.safetensors_save(path, { { "y", core.ones(1) } })
    assert.equal(99999, f:get_tensor("x")[100000]:item())
    core.safetensors_save(path, { { "x", big } })
    f = core.safetensors_open(path)
    assert.is_true(os.execute(("truncate -s 4096 '%s'"):format(path)) ~= false)
    local ok, err = pcall(f.get_tensor, f, "x")
    assert.is_false(ok)
    assert.truthy(err:find("truncated", 1, true), err)
  end)
end)

describe("safetensors_save", function()
  teardown(function() os.remove(path) end)

  it("writes bytes that the reference implementation reads: aligned, without holes, in the order of the list",
    function()
    core.safetensors_save(path, { { "m", core.tensor { true, false, true } }, { "w", core.tensor { 1, -2 } },
      { "n", core.tensor(3, { dtype = "int64" }) } },
      { format = "pt", a = 'b"' })
    local json = '{"__metadata__":{"a":"b\\"","format":"pt"},' .. entry("m", "BOOL", "3", 16, 19) .. "," ..
      entry("w", "F32", "2", 8, 16) .. "," ..
      entry("n", "I64", "", 0, 8) .. "}"
    json = json .. (" "):rep(-#json % 8)
    assert.equal(file(json, disk.from_hex "03000000000000000000803f000000c0010001"), disk.read(path))
  end)

  it("brings back every element type, shape and name, and views as they look", function()
    local base = core.arange(6, { dtype = "float64" }):view(2, 3)
    local list = { { "a \"quoted\" \\ name\n", base }, { "väg", base:t() },
      { "narrow", base:narrow(2, 2, 2) },
      { "none", core.zeros(0, 3) } }
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8",
      "bool" } do
      list[#list + 1] = { dtype, core.tensor({ { 1, 0 }, { 1, 1 } }, { dtype = dtype }) }
    end
    core.safetensors_save(path, list, { note = "é" })
    local back, metadata = core.safetensors_load(path)
    assert.equal(#list, #back)
    assert.same({ note = "é" }, metadata)
    for i, e in ipairs(list) do
      assert.equal(e[1], back[i][1])
      assert.equal(e[2].dtype, back[i][2].dtype)
      assert.same(e[2].shape, back[i][2].shape)
      assert.same(e[2]:totable(), back[i][2]:totable())
    end
  end)

  it("replaces a file as a whole and leaves nothing beside it", function()
    core.safetensors_save(path, { { "x", core.ones(3) } })
    core.safetensors_save(path, { { "y", core.ones(2) } })
    assert.equal("y", core.safetensors_load(path)[1][1])
    local pipe = io.popen("ls '" .. path .. "'*")
    assert.equal(path .. "\n", pipe:read("*a"))
    pipe:close()
  end)

  it("keeps the old file when it cannot write the new one", function()
    core.safetensors_save(path, { { "x", core.ones(3) } })
    local before = disk.read(path)
    assert.is_false(pcall(core.safetensors_save, path, { { "x", core.ones(3) }, { "x", core.ones(3) } }))
    -- a view: its copy is made while the file is written
    local list, failed = { { "x", core.ones(3, 4):t() } }, 0
    for n = 1, 100 do
      core.debug_fail_alloc(n)
      local ok = pcall(core.safetensors_save, path, list)
      core.debug_fail_alloc(0)
      if ok then break end
      failed = n
      assert.equal(before, disk.read(path))
    end
    assert.is_true(failed > 3 and failed < 100)
    assert.not_equal(before, disk.read(path))
    local pipe = io.popen("ls '" .. path .. "'*")
    assert.equal(path .. "\n", pipe:read("*a"))
    pipe:close()
  end)

  it("says what is wrong with what it was given", function()
    local function wrong(text, ...)
      local ok, err = pcall(core.safetensors_save, ...)
      assert.is_false(ok)
      assert.truthy(err:find(text, 1, true), err)
    end
    local t = core.ones(1)
    wrong("two tensors are called 'a'", path, { { "a", t }, { "a", t } })
    wrong("the format keeps that name", path, { { "__metadata__", t } })
    wrong("the name of tensor 1 is not UTF-8", path, { { "\255", t } })
    wrong("entry 1 of the metadata is not UTF-8", path, {}, { k = "\255" })
    wrong("goes on after a NUL", path, { { "a\0b", t } })
    wrong("entry 2: expected a pair { name, tensor }, got number", path, { { "a", t }, 5 })
    wrong("the name of entry 1: expected a string", path, { { 5, t } })
    wrong("tensor 'a': expected a tensor, got nil", path, { { "a" } })
    wrong("expected a list of pairs", path, { a = t })
    wrong("expected a list of pairs", path, t)
    wrong("k: expected a string", path, {}, { k = 1 })
    wrong("cannot write it: No such file or directory", "/nowhere/x", {})
    wrong("the path is empty", "", {})
  end)
end)
